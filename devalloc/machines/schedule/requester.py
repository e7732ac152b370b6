"""Machines and migrations as what asks for devices beside claims."""

from __future__ import annotations

from functools import cache
from typing import Any

from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.requester import AnsweredRound, Requester
from devalloc.machines.schedule import machines, migrations
from devalloc.machines.schedule.claim_swap import swap_units
from devalloc.machines.schedule.decision import decide_machines, node_service_units, stopped_units
from devalloc.machines.schedule.events import events_of_node, events_of_write
from devalloc.machines.schedule.messages import of_machine, withheld_answers
from devalloc.machines.schedule.migration_decision import decide_migrations
from devalloc.machines.schedule.solver_input import SchedulingInput, scheduling_input
from devalloc.plugins import REQUESTERS, installed
from devalloc.store import Key


def _decide(placing: SchedulingInput, units: list[WriteUnit], done: AnsweredRound) -> list[WriteUnit]:
    units = decide_machines(placing, done.answer, units, done.now, done.say)
    units = swap_units(placing, done.documents, units, done.now)
    units += decide_migrations(placing, done.answer, _keys(units), done.now, done.say)
    if there := machines.virtual_machines_in(done.objects):
        units += node_service_units([*there, *done.around.nodes_and_pools], _keys(units), done.now)
        if done.in_conditions:
            units += stopped_units(there, _keys(units), done.now)
    return units


def _keys(units: list[WriteUnit]) -> set[Key]:
    return {key for unit in units for key in unit.keys}


MACHINES = Requester(
    kinds=frozenset({machines.KIND, migrations.KIND}),
    holders=frozenset({machines.KIND}),
    read=scheduling_input,
    decide=_decide,
    withheld=withheld_answers,
    in_words=of_machine,
    held=machines.held_entries,
    relevant=migrations.relevant_part,
    wrote=events_of_write,
    heard=events_of_node,
)


@cache
def requesters() -> tuple[Requester[Any], ...]:
    """All that ask for devices beside claims: machines, and what installed packages add."""
    return (MACHINES, *installed(REQUESTERS, Requester))
