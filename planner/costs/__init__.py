"""What a step costs: seconds per op from a device profile, and bytes that no plan can change."""
