"""Which saved tensors to keep, and how far from optimal the answer can be."""
