"""What other tools decide, as rules over our graph, evaluated by the same simulation as a plan.

Only the decision rules are re-implemented, from their descriptions and from reading what the tools do; see each module
for its source and for what it leaves out. Where that is in doubt, a rule gets the benefit: no cost of its own runtime,
no region-sized waste that checkpoint's early stop avoids, and the best setting for every budget.
"""
