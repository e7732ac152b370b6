"""Machines among the claims: which node runs a machine is decided together with the devices of its claims.

A machine that waits for a node becomes one more claim of the solver's input, on the pools of what nodes have for
machines, in one group with its own claims. So one solve places all of it, and one commit writes it.
"""

from devalloc.controller.placing.decide import decide_machines
from devalloc.controller.placing.documents import Placing, with_machines
from devalloc.controller.placing.machines import KIND, counted, taken_by
from devalloc.controller.placing.service import served_units
from devalloc.controller.placing.solve import kept_back, solve_with_machines

__all__ = [
    "KIND",
    "Placing",
    "counted",
    "decide_machines",
    "kept_back",
    "served_units",
    "solve_with_machines",
    "taken_by",
    "with_machines",
]
