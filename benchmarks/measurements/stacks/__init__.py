"""What each stack does, written down once: the library versions and kernels that a source's figures were measured with.

Settings come from a row, or from code and documentation that the stack's docstring names; what neither says is a
refusal, never a guess, and nothing is fitted to a figure.
"""
