"""What is said about a plan, and about an estimate: made from records of every stage, for commands and the service.

`estimates` needs no torch, so nothing is imported here.
"""
