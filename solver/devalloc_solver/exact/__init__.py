"""The exact model of a batch, solved by CP-SAT.

- ``model``: every rule as constraints; ``builder``, ``variables``: what is under construction
- ``unit_constraints``: what units ask for; ``supply_constraints``: what there is
- ``linear_constraints``: amounts, exact beyond 64 bits
- ``claim_groups``: equal claims are counted
- ``goals``, ``policy``: the goals of S17, one after the other; ``goal_search``: how one is searched for
"""
