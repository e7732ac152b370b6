"""Machines among the claims: which node runs a machine is decided together with the devices of its claims.

A machine that waits for a node becomes one more claim of the solver's input, on the pools of what nodes have for
machines, in one group with its own claims. So one solve places all of it, and one commit writes it.
"""

from devalloc.controller.reconcile.vm_scheduling.decision import decide_machines, node_service_units
from devalloc.controller.reconcile.vm_scheduling.machines import KIND, counted_entries, sum_entries
from devalloc.controller.reconcile.vm_scheduling.solver_input import SchedulingInput, scheduling_input
from devalloc.controller.reconcile.vm_scheduling.what_if import solve_with_machines, withheld_answers

__all__ = [
    "KIND",
    "SchedulingInput",
    "counted_entries",
    "decide_machines",
    "node_service_units",
    "scheduling_input",
    "solve_with_machines",
    "sum_entries",
    "withheld_answers",
]
