"""Why ``allocate`` returned None: the smallest sets of things without which it would not, each solved again (S19)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from devalloc.api.quantity import type_name
from devalloc_solver.blockers.claims import Releases
from devalloc_solver.blockers.edits import needed, sets_of
from devalloc_solver.blockers.question import Finder, Question, Undecided
from devalloc_solver.blockers.words import joined
from devalloc_solver.budget import Allowance, OutOfTime
from devalloc_solver.deadline import ALLOCATE_SECONDS, end_of
from devalloc_solver.dra import remedies
from devalloc_solver.dra.allocate import Manifest, Task, holder_key, objects
from devalloc_solver.dra.errors import AllocationError
from devalloc_solver.dra.features import read_features
from devalloc_solver.dra.funnel import funnel, sentence
from devalloc_solver.dra.inputs import Inputs, sorted_out
from devalloc_solver.dra.numbers import Numbers
from devalloc_solver.dra.reasons import class_selectors
from devalloc_solver.dra.remedies import Remedy, applied
from devalloc_solver.dra.slips import Slips
from devalloc_solver.holdings import Ledger
from devalloc_solver.reasons import NEVER, VERDICTS, Reason

TRIES = 64
"""Questions that the search for a smallest set may ask."""


def explain(
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    *,
    allocated: Manifest | None = None,
    features: Iterable[str] | None = None,
    deadline: float | None = ALLOCATE_SECONDS,
) -> dict[str, Any]:
    """What ``allocate`` saw, and where it returns None, why.

    Returns ``{"reason", "message", "blockers": [{kind, ...}], "claims": [{namespace, name, requests: [funnel]}],
    "pools": [{name, state, why}], "ignored": [{name, why}]}``. Without the blockers the claims fit, and not with any of
    them. ``reason`` is None where they fit as it is, or where no claim waits. A funnel has ``request, devices, steps:
    [{what, count, devices, example?}], matching, inUse, excluded, free``.

    ``deadline``: seconds after which nothing more is found out; None for as long as it takes. Where the claims do not
    fit and the time does not suffice to find out why, the reason is ``SearchLimit``.

    Raises AllocationError as ``allocate`` does.
    """
    started = time.monotonic()
    allowance = Allowance()
    allowance.begin(end_of(deadline, started), started)
    gates = read_features(features)
    claims, classes, slices = objects(claims, "claims"), objects(classes, "classes"), objects(slices, "slices")
    if allocated is not None and not isinstance(allocated, Mapping):
        raise AllocationError(f"allocated: must be a map, not {type_name(allocated)}")
    read, unread = sorted_out(slices)
    inputs = Inputs(
        node, tuple(claims), tuple(classes), read, dict(allocated or {}), gates, unread, allowance=allowance
    )
    try:
        task = inputs.task()
        fits = task is None or inputs.fits()
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    allowance.begin_search()
    if task is None:
        return {"reason": None, "message": None, "blockers": [], "claims": [], "pools": [], "ignored": []}
    found = None if fits else find_why(inputs)
    ledger = Ledger.of(task.snapshot, task.holdings)
    return {
        "reason": None if found is None else str(found.reason),
        "message": None if found is None else _message(found, task),
        "blockers": [] if found is None else [dict(blocker.entry) for blocker in found.blockers],
        "claims": [
            {
                "namespace": demand.claim.claim.namespace,
                "name": demand.claim.claim.name,
                "requests": [funnel(slot, task.offers, task.snapshot, ledger) for slot in demand.slots],
            }
            for demand in task.unit.demands
        ],
        "pools": [{"name": p.title, "state": p.state.value, "why": p.why} for p in task.pools if p.why],
        "ignored": [{"name": ignored.name, "why": ignored.why} for ignored in task.ignored],
    }


def _message(found: Why, task: Task) -> str:
    """How final it is, the numbers of the request that is worst off, slips of the pen, and what makes it fit."""
    slots = [slot for demand in task.unit.demands for slot in demand.slots]
    ledger = Ledger.of(task.snapshot, task.holdings)
    funnels = [funnel(slot, task.offers, task.snapshot, ledger) for slot in slots]
    worst = min(range(len(slots)), key=lambda i: funnels[i]["free"] - slots[i].least, default=None)
    parts = []
    if worst is not None:
        is_empty = VERDICTS[found.reason] == NEVER
        parts.append(f"request {funnels[worst]['request']}: {sentence(funnels[worst], is_empty=is_empty)}")
    numbers = Numbers(task.snapshot, task.offers, task.holdings)
    if found.reason in (Reason.NOT_ENOUGH_DEVICES, Reason.DEVICES_IN_USE):
        parts.append(numbers.shortage(task.unit, is_empty=False))
    elif found.reason is Reason.MATCH_ATTRIBUTES_CONFLICT and not any(held.items for held in task.holdings):
        parts.append(numbers.disagreement(task.unit))  # devices in use are not among those that are counted
    claims = (demand.claim.claim for demand in task.unit.demands)
    parts += Slips(task.offers).of_claims(claims, class_selectors(task.unit), task.ends)
    verdict, _, remedy = found.message.partition(": ")
    return f"{verdict}: {joined(*parts, remedy)}"


@dataclass(frozen=True, slots=True)
class Why:
    """The reason of a call, and what is in the way. No blocker can be left out, and without all of them it fits."""

    reason: Reason
    message: str
    blockers: tuple[Remedy, ...]


def find_why(inputs: Inputs) -> Why:
    """The reason for input that is valid and does not fit."""
    try:
        return _find_why(inputs)
    except OutOfTime:
        told = "the time did not suffice to find out what would have to change; give more time"
        return Why(Reason.SEARCH_LIMIT, f"{VERDICTS[Reason.SEARCH_LIMIT]}: {told}", ())


def _find_why(inputs: Inputs) -> Why:
    empty = applied(inputs, [remedy for remedy, _ in remedies.holders(inputs)])
    if empty.fits():
        return _told(Reason.DEVICES_IN_USE, _in_the_way(inputs))
    for reason, offered in _tiers(empty):
        structural = _fewest(empty, offered)
        if structural is None:
            continue
        eased = applied(inputs, structural)
        in_use = () if eased.fits() else _in_the_way(eased)
        return _told(reason, (*structural, *in_use))
    return _told(_short(empty), ())


def _in_the_way(inputs: Inputs) -> Sequence[Remedy]:
    """The fewest holders whose release makes it fit, as ``Releases`` finds them, asked again of the manifests."""
    offered = remedies.holders(inputs)
    try:
        task = inputs.task([usage for _, usage in offered])
        assert task is not None
        finder = Finder(task.snapshot, lambda slot: None, task.ends)
        releases = Releases(task.snapshot, task.holdings, frozenset())
        keys = releases.find(Question(task.snapshot, task.unit), finder).claims
    except (AllocationError, Undecided):
        keys = ()
    chosen = [remedy for number, (remedy, _) in enumerate(offered) if holder_key(number) in keys]

    def works(some: Sequence[Remedy]) -> bool:
        return applied(inputs, some).fits()

    if not chosen or not works(chosen):
        return _fewest(inputs, [remedy for remedy, _ in offered]) or ()
    return needed(chosen, works) if len(chosen) > 1 else chosen


def _tiers(inputs: Inputs) -> Iterator[tuple[Reason, Sequence[Remedy]]]:
    """What is taken away, the first that suffices is the reason."""
    short = _short(inputs)
    constraints, counters = [*remedies.constraints(inputs)], remedies.counters(inputs)
    taints, capacities = remedies.taints(inputs), [*remedies.capacities(inputs)]
    pools, requests = [*remedies.pools(inputs)], remedies.requests(inputs)
    gates, counts = [*remedies.gates(inputs)], [*remedies.counts(inputs)]
    selectors, classes = [*remedies.selectors(inputs)], [*remedies.classes(inputs)]
    members, reaches = _leavers(inputs), [*remedies.reaches(inputs)]
    lacking = short is Reason.NO_MATCHING_DEVICES
    yield Reason.MATCH_ATTRIBUTES_CONFLICT, constraints
    yield Reason.POOL_RESOURCES_EXHAUSTED, counters
    if constraints and counters:
        yield Reason.MATCH_ATTRIBUTES_CONFLICT, [*constraints, *counters]
    yield short, taints
    yield short, pools
    yield short if lacking else Reason.INSUFFICIENT_CAPACITY, capacities
    yield short, gates
    fewer = [(Reason.GROUP_UNSATISFIABLE, members), (short, counts), (short, requests if len(requests) > 1 else [])]
    other = [(short, selectors), (Reason.NODE_UNAVAILABLE, reaches), (short, classes)]
    # To ask for less helps where there is something to have.
    yield from (*other, *fewer) if lacking else (*fewer, *other)
    rules = [*constraints, *counters, *taints, *pools, *capacities, *gates, *counts, *selectors]
    yield short, rules
    yield Reason.NODE_UNAVAILABLE, [*reaches, *rules]
    yield short, [*rules, *reaches, *classes]
    yield short, [*rules, *reaches, *classes, *requests]


def _leavers(inputs: Inputs) -> Sequence[Remedy]:
    """The fewest claims without which the others fit; none when no part of them does."""
    for some in islice(sets_of(remedies.members(inputs)), TRIES):
        if applied(inputs, some).fits():
            return some
    return []


def _fewest(inputs: Inputs, offered: Sequence[Remedy]) -> list[Remedy] | None:
    """The fewest that make it fit; None when not even all do."""

    def works(chosen: Sequence[Remedy]) -> bool:
        return applied(inputs, chosen).fits()

    if not offered or not works(offered):
        return None
    for chosen in islice(sets_of(offered), TRIES):
        if len(chosen) == len(offered) or works(chosen):
            return _narrowed(inputs, chosen)
    return _narrowed(inputs, needed(offered, works))


def _narrowed(inputs: Inputs, chosen: Sequence[Remedy]) -> list[Remedy]:
    """The same with each that takes away too much replaced by what is needed of it."""
    exact = [remedy for remedy in chosen if remedy.narrow is None]
    vague = [remedy for remedy in chosen if remedy.narrow is not None]
    while vague:
        remedy = vague.pop(0)
        assert remedy.narrow is not None
        exact += remedy.narrow(applied(inputs, [*exact, *vague]))
    return needed(exact, lambda some: applied(inputs, some).fits()) if len(exact) > 1 else exact


def _short(inputs: Inputs) -> Reason:
    """Nothing matches some request, or too little does."""
    try:
        task = inputs.task()
    except AllocationError:
        return Reason.NOT_ENOUGH_DEVICES
    details = [detail for demand in task.unit.demands for detail in demand.details] if task is not None else []
    if any(not any(slot.candidates.accepted for slot in detail) for detail in details):
        return Reason.NO_MATCHING_DEVICES
    return Reason.NOT_ENOUGH_DEVICES


def _told(reason: Reason, blockers: Sequence[Remedy]) -> Why:
    verdict = VERDICTS[reason]
    words = " and ".join(remedy.words for remedy in blockers)
    return Why(reason, f"{verdict}: it fits {words}" if words else verdict, tuple(blockers))
