"""What the solver says of documents with machines among them, without writing anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from devalloc.api.findings import Finding, as_json, finding_of, message_of, text_fact
from devalloc.api.machine_reservation import reserved_entries
from devalloc.api.owner_names import is_object
from devalloc.api.reasons import Reason, find_reason
from devalloc.api.views import MachineView
from devalloc.controller.reconcile.vm_scheduling.messages import (
    MachineMessages,
    of_machine,
)
from devalloc.controller.reconcile.vm_scheduling.migration_decision import migration_outcomes
from devalloc.controller.reconcile.vm_scheduling.resize import MachineGrowth
from devalloc.controller.reconcile.vm_scheduling.solver_input import SchedulingInput, scheduling_input
from devalloc.store import Object
from devalloc_solver.deadline import end_time, seconds_left
from devalloc_solver.pipeline import admission
from devalloc_solver.problem.placement_policy import DEFAULT_PLACEMENT

SolverAnswer = dict[str, Any]


def solve_with_machines(
    documents: Iterable[Any],
    *,
    placement: str = DEFAULT_PLACEMENT,
    deadline: float | None = None,
    admin_namespaces: admission.AdminNamespaces = "all",
    cel_check: str = "refuse",
) -> SolverAnswer:
    """The dict of ``solve_manifests``, with ``machines``, if there are any that are placed: an entry for each, of
    the form of those of claims; and with ``migrations`` in the same form, of those that have no target yet.

    ``documents`` may be anything: what is invalid is reported. ``admin_namespaces``: where claims may have admin
    access, as in the settings of the allocator. ``cel_check``: see ``solve_manifests``. Raises as that does.
    """
    from devalloc_solver import solve_manifests  # takes a while to load

    ends = end_time(deadline, time.monotonic())
    apart = admission.sort_documents(documents)
    placing = scheduling_input(apart.readable)

    def solve(requested: list[Object]) -> SolverAnswer:
        written, left = [*map(apart.written, requested), *apart.rest], seconds_left(ends)
        return cast(SolverAnswer, solve_manifests(written, placement=placement, deadline=left, cel_check=cel_check))

    answer = admission.solve_admitted(placing.documents, solve, admin_namespaces, unread=apart.rest)
    if not placing.objects and not placing.migrations.objects:
        return answer
    return _with_machine_names(answer, placing)


def _with_machine_names(answer: SolverAnswer, placing: SchedulingInput) -> SolverAnswer:
    claims = {(one["namespace"], one["name"]): one for one in answer["claims"]}
    own = [_with_owner(one, placing) for key, one in claims.items() if is_object(key)]
    own += withheld_answers(placing)
    own.sort(key=lambda one: (one["namespace"], one["name"]))
    machine_answers, messages = [], MachineMessages(placing, answer["claims"])
    for key, machine in sorted(placing.objects.items()):
        if (wish := placing.wishes.get(key)) is not None:
            machine_answers.append(_machine_answer(key, [claims[part] for part in wish.parts], messages))
        elif (why := placing.waiting.get(key)) is not None:
            machine_answers.append(_entry(key, False, None, (), *_stated(*why)))
        elif (more := placing.growing.get(key)) is not None:
            machine_answers.append(_growth_answer(key, more, claims[more.parts[0]], messages))
        elif key in placing.running or reserved_entries(machine):
            entries = placing.running.get(key) or reserved_entries(machine)
            machine_answers.append(_entry(key, True, MachineView(machine).status.get("nodeName"), entries, None, None))
    migrations = [
        {**_entry(each.key, each.target is not None, each.target, each.entries, None, None), **each.details}
        if each.target is not None
        else {**_entry(each.key, False, None, (), each.reason, each.finding), **each.details}
        for each in migration_outcomes(placing, answer)
    ]
    migrations += [_entry(key, False, None, (), *_stated(*why)) for key, why in placing.migrations.failed.items()]
    if placing.migrations.objects:
        answer = {**answer, "migrations": sorted(migrations, key=lambda one: (one["namespace"], one["name"]))}
    problems = [*answer["problems"], *(problem.to_dict() for problem in placing.problems)]
    return {**answer, "claims": own, "machines": machine_answers, "problems": problems}


def _growth_answer(
    key: tuple[str, str], growth: MachineGrowth, more: SolverAnswer, messages: MachineMessages
) -> SolverAnswer:
    """Of a machine that is placed and is to have more; the reason is why it does not get it."""
    node = MachineView(growth.machine).status.get("nodeName")
    if more["allocated"]:
        return _entry(key, True, node, growth.grown_entries(more["allocations"]), None, None)
    reason, finding, details = messages.why(key, more)
    return {**_entry(key, True, node, reserved_entries(growth.machine), reason, finding), **details}


def _machine_answer(key: tuple[str, str], parts: Sequence[SolverAnswer], messages: MachineMessages) -> SolverAnswer:
    refused = next((part for part in parts if not part["allocated"]), None)
    if refused is None:
        entries = [entry for part in parts for entry in part["allocations"]]
        return _entry(key, True, parts[0]["node"], entries, None, None)
    reason, finding, details = messages.why(key, refused)
    return {**_entry(key, False, None, (), reason, finding), **details}


def _stated(reason: str, text: str) -> tuple[str, Finding]:
    return reason, Finding([text_fact(text)])


def _entry(
    key: tuple[str, str],
    placed: bool,
    node: str | None,
    entries: Sequence[Any],
    reason: str | None,
    finding: Finding | None,
) -> SolverAnswer:
    row = find_reason(reason)
    verdict = {"verdict": row.verdict} if row is not None and row.verdict else {}
    data = {} if finding is None else verdict | as_json(finding)
    return {
        "namespace": key[0],
        "name": key[1],
        "allocated": placed,
        "node": node,
        "allocations": [*entries],
        "oneOf": None,
        "reason": reason,
        "message": None,
        **data,
    }


def _with_owner(answer: SolverAnswer, placing: SchedulingInput) -> SolverAnswer:
    """``machine`` is there of claims that are placed with one."""
    owner = placing.owners.get((answer["namespace"], answer["name"]))
    renamed = of_machine(answer, placing)
    if renamed["message"]:
        renamed = {**renamed, "message": message_of(finding_of(renamed))}
    return renamed if owner is None else {**renamed, "machine": "/".join(owner)}


def withheld_answers(placing: SchedulingInput) -> list[SolverAnswer]:
    """The answers of claims that wait with a machine and are not asked for."""
    return [_withheld_answer(claim, placing) for claim in sorted(placing.kept_back)]


def _withheld_answer(claim: tuple[str, str], placing: SchedulingInput) -> SolverAnswer:
    """Answer a claim that is not asked for, because its machine moves, is stopped or waits."""
    if (devices := placing.arriving.get(claim)) is not None:
        why = f"its machine has moved to node {devices.node}; it gets the devices that wait for it there"
        return _entry(claim, False, None, (), *_stated(Reason.CLAIM_MOVING.value, why))
    owner = placing.owners.get(claim)
    if owner is None:
        why = "it is in a group with a claim that waits with its machine"
        return _entry(claim, False, None, (), *_stated(Reason.GROUP_UNSATISFIABLE.value, why))
    if owner in placing.resting:
        why = f"it is placed with machine {'/'.join(owner)}, which left its node and is stopped, when that is to run"
        return {
            **_entry(claim, False, None, (), *_stated(Reason.GROUP_UNSATISFIABLE.value, why)),
            "machine": "/".join(owner),
        }
    if owner in placing.moving:
        why = f"its machine {'/'.join(owner)} is moving to node {placing.moving[owner]}; it is placed when that is done"
        return {
            **_entry(claim, False, None, (), *_stated(Reason.GROUP_UNSATISFIABLE.value, why)),
            "machine": "/".join(owner),
        }
    _, waits_for = placing.waiting.get(owner, ("", "a claim of it waits with another machine"))
    why = f"it is placed with machine {'/'.join(owner)}, which waits: {waits_for}"
    return {
        **_entry(claim, False, None, (), *_stated(Reason.GROUP_UNSATISFIABLE.value, why)),
        "machine": "/".join(owner),
    }
