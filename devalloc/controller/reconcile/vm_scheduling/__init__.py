"""Machines among the claims: which node runs a machine is decided together with the devices of its claims.

A machine that waits for a node becomes one more claim of the solver's input, on the pools of what nodes have for
machines, in one group with its own claims. So one solve places all of it, and one commit writes it.
"""

from devalloc.controller.reconcile.vm_scheduling.claim_swap import swap_units
from devalloc.controller.reconcile.vm_scheduling.decision import decide_machines, node_service_units, stopped_units
from devalloc.controller.reconcile.vm_scheduling.machines import KIND, counted_entries, held_entries, sum_entries
from devalloc.controller.reconcile.vm_scheduling.messages import of_machine
from devalloc.controller.reconcile.vm_scheduling.migration_decision import decide_migrations
from devalloc.controller.reconcile.vm_scheduling.migrations import KIND as MIGRATION_KIND
from devalloc.controller.reconcile.vm_scheduling.migrations import relevant_part as relevant_migration_part
from devalloc.controller.reconcile.vm_scheduling.solver_input import SchedulingInput, scheduling_input
from devalloc.controller.reconcile.vm_scheduling.what_if import solve_with_machines, withheld_answers

__all__ = [
    "KIND",
    "MIGRATION_KIND",
    "SchedulingInput",
    "counted_entries",
    "decide_machines",
    "decide_migrations",
    "held_entries",
    "node_service_units",
    "of_machine",
    "relevant_migration_part",
    "scheduling_input",
    "solve_with_machines",
    "stopped_units",
    "sum_entries",
    "swap_units",
    "withheld_answers",
]
