"""What is answered at which address: one module per subject."""
