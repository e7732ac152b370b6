"""What the solver says of documents with machines among them, without writing anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, cast

from devalloc.api.findings import finding_of, message_of
from devalloc.api.machine_reservation import reserved_entries
from devalloc.api.owner_names import is_object
from devalloc.api.views import MachineView
from devalloc.controller.reconcile.requester import RoundRequests
from devalloc.machines.schedule.messages import MachineMessages, answer_entry
from devalloc.machines.schedule.migration_decision import migration_outcomes
from devalloc.machines.schedule.requester import MACHINES, requesters
from devalloc.machines.schedule.resize import MachineGrowth
from devalloc.machines.schedule.solver_input import SchedulingInput
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
    requests = RoundRequests(requesters(), apart.readable)

    def solve(requested: list[Object]) -> SolverAnswer:
        written, left = _written(apart, requested), seconds_left(ends)
        return cast(SolverAnswer, solve_manifests(written, placement=placement, deadline=left, cel_check=cel_check))

    answer = admission.solve_admitted(requests.documents, solve, admin_namespaces, unread=apart.rest)
    return answer if requests.documents is apart.readable else _with_machine_names(answer, requests)


def requested_documents(documents: Iterable[Any]) -> list[Any]:
    """Return the documents as a solver reads them: with what all requesters have and ask for, as claims."""
    apart = admission.sort_documents(documents)
    return _written(apart, RoundRequests(requesters(), apart.readable).documents)


def _written(apart: admission.SortedDocuments, requested: Iterable[Object]) -> list[Any]:
    """As they were given, and what could not be read."""
    return [*map(apart.written, requested), *apart.rest]


def _with_machine_names(answer: SolverAnswer, requests: RoundRequests) -> SolverAnswer:
    placing = requests.of(MACHINES)
    claims = {(one["namespace"], one["name"]): one for one in answer["claims"]}
    own = [_with_owner(one, requests, placing) for key, one in claims.items() if is_object(key)]
    own += requests.withheld()
    own.sort(key=lambda one: (one["namespace"], one["name"]))
    machine_answers, messages = [], MachineMessages(placing, answer["claims"])
    for key, machine in sorted(placing.objects.items()):
        if (wish := placing.wishes.get(key)) is not None:
            machine_answers.append(_machine_answer(key, [claims[part] for part in wish.parts], messages))
        elif (why := placing.waiting.get(key)) is not None:
            machine_answers.append(answer_entry(key, why=why))
        elif (more := placing.growing.get(key)) is not None:
            machine_answers.append(_growth_answer(key, more, claims[more.parts[0]], messages))
        elif key in placing.standing.running or reserved_entries(machine):
            entries = placing.standing.running.get(key) or reserved_entries(machine)
            machine_answers.append(answer_entry(key, MachineView(machine).status.get("nodeName"), entries))
    migrations = [
        {**answer_entry(each.key, each.target, each.entries, each.why), **each.details}
        for each in migration_outcomes(placing, answer)
    ]
    migrations += [answer_entry(key, why=why) for key, why in placing.migrations.failed.items()]
    if placing.migrations.objects:
        answer = {**answer, "migrations": sorted(migrations, key=lambda one: (one["namespace"], one["name"]))}
    problems = [*answer["problems"], *(problem.to_dict() for problem in requests.problems)]
    return {**answer, "claims": own, "machines": machine_answers, "problems": problems}


def _growth_answer(
    key: tuple[str, str], growth: MachineGrowth, more: SolverAnswer, messages: MachineMessages
) -> SolverAnswer:
    """Of a machine that is placed and is to have more; the reason is why it does not get it."""
    node = MachineView(growth.machine).status.get("nodeName")
    if more["allocated"]:
        return answer_entry(key, node, growth.grown_entries(more["allocations"]))
    reason, finding, details = messages.why(key, more)
    return answer_entry(key, node, reserved_entries(growth.machine), (reason, finding)) | details


def _machine_answer(key: tuple[str, str], parts: Sequence[SolverAnswer], messages: MachineMessages) -> SolverAnswer:
    refused = next((part for part in parts if not part["allocated"]), None)
    if refused is None:
        entries = [entry for part in parts for entry in part["allocations"]]
        return answer_entry(key, parts[0]["node"], entries)
    reason, finding, details = messages.why(key, refused)
    return answer_entry(key, why=(reason, finding)) | details


def _with_owner(answer: SolverAnswer, requests: RoundRequests, placing: SchedulingInput) -> SolverAnswer:
    """``machine`` is there of claims that are placed with one."""
    owner = placing.owners.get((answer["namespace"], answer["name"]))
    renamed = requests.in_words(answer)
    if renamed["message"]:
        renamed = {**renamed, "message": message_of(finding_of(renamed))}
    return renamed if owner is None else {**renamed, "machine": "/".join(owner)}
