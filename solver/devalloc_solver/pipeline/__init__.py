"""From problems to answers: the steps of a solve, for both dialects.

- ``flow``: the steps, top to bottom, and what a dialect gives
- ``units``: from claims to units
- ``admission``, ``quota``: which pending claims may be solved
- ``decomposition``: subproblems; ``strategy``: which search for which of them
"""
