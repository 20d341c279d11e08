"""Runs a plan on a live model: saved-tensor hooks, replay from a tape, and the check that both did what was
promised.
"""
