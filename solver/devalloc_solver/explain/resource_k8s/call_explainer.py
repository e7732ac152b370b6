"""Why ``dra.allocate`` returned None: the smallest sets of things without which it would not, verified (S19)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

from devalloc.api.quantity import type_name
from devalloc_solver.answer_types import ExplanationDict
from devalloc_solver.cel.budget import Allowance, OutOfTime
from devalloc_solver.deadline import ALLOCATE_SECONDS, end_time
from devalloc_solver.dialects.resource_k8s.errors import AllocationError
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.explain.blocking_claims import BlockingClaimFinder
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion, Undecided
from devalloc_solver.explain.messages import join_sentences
from devalloc_solver.explain.reasons import IMPOSSIBLE_VERDICT, VERDICTS, Reason
from devalloc_solver.explain.relaxations import drop_unneeded, relaxation_sets
from devalloc_solver.explain.resource_k8s import call_relaxations
from devalloc_solver.explain.resource_k8s.availability import Availability
from devalloc_solver.explain.resource_k8s.call_input import CallInput, sort_slices
from devalloc_solver.explain.resource_k8s.call_relaxations import CallRelaxation, apply_relaxations
from devalloc_solver.explain.resource_k8s.explainer import class_selectors
from devalloc_solver.explain.resource_k8s.funnel import describe_funnel, make_funnel
from devalloc_solver.explain.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.pipeline.one_node import AllocationTask, Manifest, as_manifests, holder_key
from devalloc_solver.problem.allocations import Usage

MAX_TRIES = 64
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
) -> ExplanationDict:
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
    allowance.begin(end_time(deadline, started), started)
    gates = read_gates(features)
    claims, classes, slices = (
        as_manifests(claims, "claims"),
        as_manifests(classes, "classes"),
        as_manifests(slices, "slices"),
    )
    if allocated is not None and not isinstance(allocated, Mapping):
        raise AllocationError(f"allocated: must be a map, not {type_name(allocated)}")
    read, unread = sort_slices(slices)
    inputs = CallInput(
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
    diagnosis = None if fits else find_call_reason(inputs)
    ledger = Usage.of(task.snapshot, task.holdings)
    answer: dict[str, Any] = {
        "reason": None if diagnosis is None else str(diagnosis.reason),
        "message": None if diagnosis is None else _message(diagnosis, task),
        "blockers": [] if diagnosis is None else [dict(blocker.entry) for blocker in diagnosis.blockers],
        "claims": [
            {
                "namespace": demand.claim.claim.namespace,
                "name": demand.claim.claim.name,
                "requests": [make_funnel(request, task.offers, task.snapshot, ledger) for request in demand.requests],
            }
            for demand in task.unit.demands
        ],
        "pools": [{"name": p.title, "state": p.state.value, "why": p.why} for p in task.pools if p.why],
        "ignored": [{"name": ignored.name, "why": ignored.why} for ignored in task.ignored],
    }
    return cast(ExplanationDict, answer)


def _message(diagnosis: CallReason, task: AllocationTask) -> str:
    """How final it is, the numbers of the request that is worst off, slips of the pen, and what makes it fit."""
    requests = [request for demand in task.unit.demands for request in demand.requests]
    ledger = Usage.of(task.snapshot, task.holdings)
    funnels = [make_funnel(request, task.offers, task.snapshot, ledger) for request in requests]
    worst = min(range(len(requests)), key=lambda i: funnels[i]["free"] - requests[i].least, default=None)
    parts = []
    if worst is not None:
        is_empty = VERDICTS[diagnosis.reason] == IMPOSSIBLE_VERDICT
        parts.append(f"request {funnels[worst]['request']}: {describe_funnel(funnels[worst], is_empty=is_empty)}")
    numbers = Availability(task.snapshot, task.offers, task.holdings)
    if diagnosis.reason in (Reason.NOT_ENOUGH_DEVICES, Reason.DEVICES_IN_USE):
        parts.append(numbers.shortage(task.unit, is_empty=False))
    elif diagnosis.reason is Reason.MATCH_ATTRIBUTES_CONFLICT and not any(held.items for held in task.holdings):
        parts.append(numbers.disagreement(task.unit))  # devices in use are not among those that are counted
    claims = (demand.claim.claim for demand in task.unit.demands)
    parts += ResourceTypoFinder(task.offers).of_claims(claims, class_selectors(task.unit), task.ends)
    verdict, _, remedy = diagnosis.message.partition(": ")
    return f"{verdict}: {join_sentences(*parts, remedy)}"


@dataclass(frozen=True, slots=True)
class CallReason:
    """The reason of a call, and what is in the way. No blocker can be left out, and without all of them it fits."""

    reason: Reason
    message: str
    blockers: tuple[CallRelaxation, ...]


def find_call_reason(inputs: CallInput) -> CallReason:
    """The reason for input that is valid and does not fit."""
    try:
        return _find_call_reason(inputs)
    except OutOfTime:
        message = "time ran out before the solver found what would have to change; allow more time"
        return CallReason(Reason.SEARCH_LIMIT, f"{VERDICTS[Reason.SEARCH_LIMIT]}: {message}", ())


def _find_call_reason(inputs: CallInput) -> CallReason:
    empty = apply_relaxations(inputs, [remedy for remedy, _ in call_relaxations.holders(inputs)])
    if empty.fits():
        return _why_with(Reason.DEVICES_IN_USE, _blocking_claims(inputs))
    for reason, offered in _relaxation_tiers(empty):
        structural = _fewest_relaxations(empty, offered)
        if structural is None:
            continue
        eased = apply_relaxations(inputs, structural)
        in_use = () if eased.fits() else _blocking_claims(eased)
        return _why_with(reason, (*structural, *in_use))
    return _why_with(_has_too_few(empty), ())


def _blocking_claims(inputs: CallInput) -> Sequence[CallRelaxation]:
    """The fewest owners whose release makes it fit, found by ``BlockingClaimFinder``, verified on the manifests."""
    offered = call_relaxations.holders(inputs)
    try:
        task = inputs.task([usage for _, usage in offered])
        assert task is not None
        finder = FeasibilityChecker(task.snapshot, lambda request: None, task.ends)
        releases = BlockingClaimFinder(task.snapshot, task.holdings, frozenset())
        keys = releases.find(FeasibilityQuestion(task.snapshot, task.unit), finder).claims
    except (AllocationError, Undecided):
        keys = ()
    chosen = [remedy for number, (remedy, _) in enumerate(offered) if holder_key(number) in keys]

    def works(some: Sequence[CallRelaxation]) -> bool:
        return apply_relaxations(inputs, some).fits()

    if not chosen or not works(chosen):
        return _fewest_relaxations(inputs, [remedy for remedy, _ in offered]) or ()
    return drop_unneeded(chosen, works) if len(chosen) > 1 else chosen


def _relaxation_tiers(inputs: CallInput) -> Iterator[tuple[Reason, Sequence[CallRelaxation]]]:
    """What is taken away, the first that suffices is the reason."""
    short = _has_too_few(inputs)
    constraints, counters = [*call_relaxations.constraints(inputs)], call_relaxations.counters(inputs)
    taints, capacities = call_relaxations.taints(inputs), [*call_relaxations.capacities(inputs)]
    pools, requests = [*call_relaxations.pools(inputs)], call_relaxations.requests(inputs)
    gates, counts = [*call_relaxations.gates(inputs)], [*call_relaxations.counts(inputs)]
    selectors, classes = [*call_relaxations.selectors(inputs)], [*call_relaxations.classes(inputs)]
    members, reaches = _claims_to_drop(inputs), [*call_relaxations.reaches(inputs)]
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


def _claims_to_drop(inputs: CallInput) -> Sequence[CallRelaxation]:
    """The fewest claims without which the others fit; none when no part of them does."""
    for some in islice(relaxation_sets(call_relaxations.members(inputs)), MAX_TRIES):
        if apply_relaxations(inputs, some).fits():
            return some
    return []


def _fewest_relaxations(inputs: CallInput, offered: Sequence[CallRelaxation]) -> list[CallRelaxation] | None:
    """The fewest that make it fit; None when not even all do."""

    def works(chosen: Sequence[CallRelaxation]) -> bool:
        return apply_relaxations(inputs, chosen).fits()

    if not offered or not works(offered):
        return None
    for chosen in islice(relaxation_sets(offered), MAX_TRIES):
        if len(chosen) == len(offered) or works(chosen):
            return _narrow_relaxations(inputs, chosen)
    return _narrow_relaxations(inputs, drop_unneeded(offered, works))


def _narrow_relaxations(inputs: CallInput, chosen: Sequence[CallRelaxation]) -> list[CallRelaxation]:
    """The same with each that takes away too much replaced by what is needed of it."""
    exact = [remedy for remedy in chosen if remedy.narrow is None]
    vague = [remedy for remedy in chosen if remedy.narrow is not None]
    while vague:
        remedy = vague.pop(0)
        assert remedy.narrow is not None
        exact += remedy.narrow(apply_relaxations(inputs, [*exact, *vague]))
    return drop_unneeded(exact, lambda some: apply_relaxations(inputs, some).fits()) if len(exact) > 1 else exact


def _has_too_few(inputs: CallInput) -> Reason:
    """Nothing matches some request, or too little does."""
    try:
        task = inputs.task()
    except AllocationError:
        return Reason.NOT_ENOUGH_DEVICES
    details = [detail for demand in task.unit.demands for detail in demand.details] if task is not None else []
    if any(not any(request.candidates.accepted for request in detail) for detail in details):
        return Reason.NO_MATCHING_DEVICES
    return Reason.NOT_ENOUGH_DEVICES


def _why_with(reason: Reason, blockers: Sequence[CallRelaxation]) -> CallReason:
    verdict = VERDICTS[reason]
    words = " and ".join(remedy.words for remedy in blockers)
    return CallReason(reason, f"{verdict}: it fits {words}" if words else verdict, tuple(blockers))
