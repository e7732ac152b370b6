"""The vocabulary of the solver: devices, requests, allocations, usage, and what is equal.

- ``snapshot``: pools and devices, interned, with amounts as whole blocks
- ``allocations``, ``overuse``: what allocated claims hold, and what is allocated beyond what exists
- ``demand``: requests, and placement units
- ``device_groups``, ``ordering``: interchangeable devices, and the order of names and claims
- ``loads``, ``placement_policy``: how much is in use, and which answers are preferred for it
- ``placement``, ``placement_score``: the node and the devices of a claim, and how good that is
"""
