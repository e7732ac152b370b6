"""From the solver's answer to what is written on migrations and their machines. Pure.

Each write is of one object. The reservation of a target is written on the machine alone; the phases of the migration
follow from it in a later round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.conditions import with_migration_conditions
from devalloc.api.findings import Finding, message_of, text_fact
from devalloc.api.meta import ALLOCATED_NODE
from devalloc.api.reasons import STILL_SEARCHING, Reason, is_transient_reason
from devalloc.api.views import (
    MIGRATION_ENDS,
    ClaimKey,
    ClaimView,
    MachineView,
    MigrationView,
    ObjectView,
    device_claims_in,
)
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.machines.schedule import machines
from devalloc.machines.schedule.messages import MachineMessages
from devalloc.machines.schedule.migrations import (
    MAX_PER_NODE,
    MigrationKey,
    too_many_message,
    was_refused,
)
from devalloc.machines.schedule.moving_claims import has_same_order
from devalloc.machines.schedule.solver_input import MigrationRequest, SchedulingInput
from devalloc.store import Change, Key, Object

MAX_MESSAGE = 4096
_OTHER_ORDER = "the solver assigned the devices on its target to other requests than the devices that it has"


@dataclass(frozen=True, slots=True)
class MigrationOutcome:
    """What is decided on a migration that has no target yet."""

    key: MigrationKey
    target: str | None = None
    """The node that was chosen."""
    move: MigrationRequest | None = None
    entries: Sequence[Any] = ()
    """What the target is to reserve."""
    why: tuple[str, Finding] | None = None
    """Reason and finding if none was."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What else there is to tell of the reason: as in answers of the solver."""
    claims: Mapping[ClaimKey, Mapping[str, Any]] = field(default_factory=dict)
    """For each claim of the machine that moves with it: the answer of what asks for its devices on the target."""


def decide_migrations(
    placing: SchedulingInput,
    answer: Mapping[str, Any],
    taken: Collection[Key],
    now: str,
    say: Callable[[str, Finding], str] = lambda namespace, finding: message_of(finding),
) -> list[WriteUnit]:
    """What is to be written. ``taken``: objects that are written otherwise in this round. ``now``: RFC 3339. ``say``:
    the sentence of a finding in a namespace."""
    states = placing.migrations
    units = [WriteUnit((withdrawal_change(doc),), granted=False, released=True) for doc in states.withdrawn.values()]
    load = dict(states.load)
    for outcome in migration_outcomes(placing, answer):
        if outcome.why is not None:
            reason, finding = outcome.why
            units += pending_units(states.objects[outcome.key], reason, say(outcome.key[0], finding), now)
            continue
        assert outcome.move is not None
        assert outcome.target is not None
        nodes = outcome.move.source, outcome.target
        if full := [node for node in nodes if load.get(node, 0) >= MAX_PER_NODE]:
            why = too_many_message(full[0])
            units += pending_units(states.objects[outcome.key], Reason.TOO_MANY_MIGRATIONS.value, why, now)
        else:
            if (change := _booking_change(placing, outcome)) is None:
                units += pending_units(states.objects[outcome.key], Reason.MACHINE_NOT_MOVABLE.value, _OTHER_ORDER, now)
                continue
            load |= {node: load.get(node, 0) + 1 for node in nodes}
            units.append(WriteUnit((change,), granted=False, grows=True, follows_up=True))
    for key, machine in states.booked.items():
        units += _scheduled_units(states.objects[key], machine, now)
    for key in states.moved:
        units += ended_units(states.objects[key], "Succeeded", "", "", now)
    for key, (reason, message) in states.failed.items():
        units += ended_units(states.objects[key], "Failed", reason, message, now)
    claims = {ClaimView(doc).key: doc for doc in device_claims_in(placing.documents)} if states.following else {}
    units += [_following_unit(claims[key], node) for key, node in states.following.items() if key in claims]
    return [unit for unit in units if not unit.keys & {*taken}]


def _following_unit(claim: Object, node: str) -> WriteUnit:
    """A claim of network devices is of the node of its machine."""
    notes = {ALLOCATED_NODE: node}
    change = Change.of(claim, claim.get("status"), notes)
    return WriteUnit((change,), granted=False)


def migration_outcomes(placing: SchedulingInput, answer: Mapping[str, Any]) -> Iterator[MigrationOutcome]:
    """Of each migration that has no target yet, except those that are still searched for."""
    answers = {(one["namespace"], one["name"]): one for one in answer["claims"]}
    messages = MachineMessages(placing, answer["claims"])
    for machine_key, move in placing.moves.items():
        key = MigrationView(move.migration).key
        own, of_claims = [answers[part] for part in move.parts], {k: answers[v] for k, v in move.claims.items()}
        all_answers = [*own, *of_claims.values()]
        refused = next((one for one in all_answers if not one["allocated"]), None)
        if refused is None:
            entries = [entry for one in own for entry in one["allocations"]]
            yield MigrationOutcome(key, own[0]["node"], move, entries, claims=of_claims)
        elif not any(one.get(STILL_SEARCHING) for one in all_answers):
            reason, finding, details = messages.why(machine_key, refused)
            yield MigrationOutcome(key, why=(reason, finding), details=details)
    for key, (reason, message) in placing.migrations.waiting.items():
        yield MigrationOutcome(key, why=(reason, Finding([text_fact(message)])))


def withdrawal_change(machine: Object) -> Change:
    """The machine's status without what a migration reserves. If this is written before the machine is handed over, the
    machine stays where it is."""
    status = {name: value for name, value in MachineView(machine).status.items() if name != "migrationState"}
    return Change.of(machine, status)


def pending_units(migration: Object, reason: str, message: str, now: str) -> list[WriteUnit]:
    """Why it has no target; nothing if it says so already."""
    fields = {"phase": "Pending", "reason": reason, "message": message[:MAX_MESSAGE]}
    gives_way = reason != Reason.TOO_MANY_MIGRATIONS and not was_refused(MigrationView(migration))
    return _units(migration, fields, now, transient=is_transient_reason(reason), follows_up=gives_way)


def explained_change(migration: Object, reason: str, message: str, now: str) -> Change | None:
    """Why it is withdrawn, before it is; None if it says so already."""
    units = _units(migration, {"reason": reason, "message": message[:MAX_MESSAGE]}, now)
    return units[0].changes[0] if units else None


def ended_units(migration: Object, phase: str, reason: str, message: str, now: str) -> list[WriteUnit]:
    """That it is over."""
    fields = {"phase": phase, "completionTime": now, "reason": reason, "message": message[:MAX_MESSAGE]}
    return _units(migration, fields, now)


def _scheduled_units(migration: Object, machine: Object, now: str) -> list[WriteUnit]:
    if MigrationView(migration).phase != "Pending":
        return []
    state = MachineView(machine).migration_state
    nodes = {"sourceNode": state.get("sourceNode"), "targetNode": state.get("targetNode")}
    return _units(migration, {"phase": "Scheduled", "reason": "", "message": "", "startTime": now, **nodes}, now)


def _units(
    migration: Object, fields: Mapping[str, Any], now: str, *, transient: bool = False, follows_up: bool = False
) -> list[WriteUnit]:
    before = ObjectView(migration).status
    status = {name: value for name, value in {**before, **fields}.items() if value != ""}
    status = with_migration_conditions(status, now, ObjectView(migration).metadata.get("generation"))
    if status == before:
        return []
    change = Change.of(migration, status)
    is_over = fields.get("phase") in MIGRATION_ENDS  # then others may move
    return [WriteUnit((change,), granted=False, transient=transient, follows_up=follows_up or is_over)]


def _booking_change(placing: SchedulingInput, outcome: MigrationOutcome) -> Change | None:
    """None if the devices on the target cannot be told apart as those of the claims can."""
    assert outcome.move is not None
    machine, migration = outcome.move.machine, outcome.move.migration
    booking: Object = {
        "migrationName": migration["metadata"]["name"],
        "migrationUID": MigrationView(migration).uid,
        "sourceNode": outcome.move.source,
        "targetNode": outcome.target,
        "allocations": [*outcome.entries],
    }
    claims = {ClaimView(doc).key: doc for doc in device_claims_in(placing.documents)} if outcome.claims else {}
    if outcome.claims:
        if not all(has_same_order(claims[key], answer) for key, answer in outcome.claims.items()):
            return None
        booking["claims"] = [
            {
                "name": key[1],
                "uid": str(ClaimView(claims[key]).metadata.get("uid") or ""),
                "allocations": [*answer["allocations"]],
            }
            for key, answer in outcome.claims.items()
        ]
    if MachineView(machine).spec.get("numaPolicy") == machines.SINGLE_NUMA:
        compute = [entry for entry in outcome.entries if entry.get("allocations")]
        if (numa := machines.single_numa(compute, placing.pools)) is not None:
            booking["numaNode"] = numa
    status = {**MachineView(machine).status, "migrationState": booking}
    return Change.of(machine, status)
