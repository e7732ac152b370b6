"""What the solver says of documents with machines among them, without writing anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from devalloc.api.reservation import reserved
from devalloc.controller.placing import machines
from devalloc.controller.placing.documents import Placing, with_machines
from devalloc.controller.placing.growth import Growth
from devalloc.controller.placing.words import Words, named
from devalloc.store import Object
from devalloc_solver import gate
from devalloc_solver.deadline import end_of, left_of
from devalloc_solver.reasons import Reason

Answer = dict[str, Any]


def solve_with_machines(
    documents: Iterable[Any],
    *,
    placement: str = "pack",
    deadline: float | None = None,
    admin_namespaces: gate.AdminNamespaces = "all",
) -> Answer:
    """The dict of ``solve_manifests``, with ``machines``, where there are any that are placed: an entry for each, of
    the form of those of claims.

    ``documents`` may be anything: what is invalid is reported. ``admin_namespaces``: where claims may have admin
    access, as in the settings of the allocator. Raises as ``solve_manifests`` does.
    """
    from devalloc_solver import solve_manifests  # takes a while to load

    ends = end_of(deadline, time.monotonic())
    apart = gate.apart(documents)
    placing = with_machines(apart.readable)

    def solve(asked: list[Object]) -> Answer:
        written = [*map(apart.written, asked), *apart.rest]
        return solve_manifests(written, placement=placement, deadline=left_of(ends))

    answer = gate.answered(placing.documents, solve, admin_namespaces, beside=apart.rest)
    if not placing.objects:
        return answer
    return _with_machines_named(answer, placing)


def _with_machines_named(answer: Answer, placing: Placing) -> Answer:
    claims = {(one["namespace"], one["name"]): one for one in answer["claims"]}
    own = [_told(one, placing) for key, one in claims.items() if key not in placing.names]
    own += kept_back(placing)
    own.sort(key=lambda one: (one["namespace"], one["name"]))
    found, words = [], Words(placing, answer["claims"])
    for key, machine in sorted(placing.objects.items()):
        if (wish := placing.wishes.get(key)) is not None:
            found.append(_merged(key, [claims[part] for part in wish.parts], words))
        elif (why := placing.waiting.get(key)) is not None:
            found.append(_entry(key, False, None, (), *why))
        elif (more := placing.growing.get(key)) is not None:
            found.append(_grown(key, more, claims[more.part], words))
        elif key in placing.running or reserved(machine):
            entries = placing.running.get(key) or reserved(machine)
            found.append(_entry(key, True, machines.status_of(machine).get("nodeName"), entries, None, None))
    problems = [{**one, "message": named(one["message"], placing)} for one in answer["problems"]]
    return {**answer, "claims": own, "machines": found, "problems": problems}


def _grown(key: tuple[str, str], growth: Growth, more: Answer, words: Words) -> Answer:
    """Of a machine that is placed and is to have more; the reason is why it does not get it."""
    node = machines.status_of(growth.machine).get("nodeName")
    if more["allocated"]:
        return _entry(key, True, node, growth.grown(more["allocations"]), None, None)
    reason, message, details = words.why(key, more)
    return {**_entry(key, True, node, reserved(growth.machine), reason, message), **details}


def _merged(key: tuple[str, str], parts: Sequence[Answer], words: Words) -> Answer:
    refused = next((part for part in parts if not part["allocated"]), None)
    if refused is None:
        entries = [entry for part in parts for entry in part["allocations"]]
        return _entry(key, True, parts[0]["node"], entries, None, None)
    reason, message, details = words.why(key, refused)
    return {**_entry(key, False, None, (), reason, message), **details}


def _entry(
    key: tuple[str, str], placed: bool, node: str | None, entries: Sequence[Any], reason: str | None, text: str | None
) -> Answer:
    return {
        "namespace": key[0],
        "name": key[1],
        "allocated": placed,
        "node": node,
        "allocations": [*entries],
        "oneOf": None,
        "reason": reason,
        "message": text,
    }


def _told(answer: Answer, placing: Placing) -> Answer:
    """``machine`` is there of claims that are placed with one."""
    owner = placing.owners.get((answer["namespace"], answer["name"]))
    told = answer if answer["message"] is None else {**answer, "message": named(answer["message"], placing)}
    return told if owner is None else {**told, "machine": "/".join(owner)}


def kept_back(placing: Placing) -> list[Answer]:
    """The answers of claims that wait with a machine and are not asked for."""
    return [_kept_back(claim, placing) for claim in sorted(placing.kept_back)]


def _kept_back(claim: tuple[str, str], placing: Placing) -> Answer:
    owner = placing.owners.get(claim)
    if owner is None:
        why = "it is in a group with a claim that waits with its machine"
        return _entry(claim, False, None, (), Reason.GROUP_UNSATISFIABLE.value, why)
    _, waits_for = placing.waiting.get(owner, ("", "a claim of it waits with another machine"))
    why = f"it is placed with machine {'/'.join(owner)}, which waits: {waits_for}"
    return {**_entry(claim, False, None, (), Reason.GROUP_UNSATISFIABLE.value, why), "machine": "/".join(owner)}
