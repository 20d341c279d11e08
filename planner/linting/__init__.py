"""From files to findings: reading with places, recognising a framework's dialect, running rules, and fixing.

Neither torch nor a solver is needed. What rules read is in `planner.configs`; rules are in `planner.rules`.
"""

MARK = "planner:"  # begins a comment that is meant for the linter
