"""Training configs as records: the tree of a file with every place, its settings, and what they mean for training.

Rules read these. How a file becomes them is in `planner.linting`.
"""
