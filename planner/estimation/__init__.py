"""The memory of a whole training step in closed form: no torch, no tracing, well under a second."""
