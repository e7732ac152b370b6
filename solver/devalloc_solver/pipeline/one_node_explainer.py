"""Why ``dra.allocate`` returned None: the smallest sets of things without which it would not, verified (S19)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from devalloc.api.quantity import type_name
from devalloc_solver.answer_types import ExplanationDict
from devalloc_solver.cel.budget import Allowance, OutOfTime
from devalloc_solver.deadline import ALLOCATE_SECONDS, end_time
from devalloc_solver.dialects.resource_k8s.allocation_task import AllocationTask, Manifest, as_manifests, holder_key
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import AllocationError
from devalloc_solver.dialects.resource_k8s.pools import ResourcePool
from devalloc_solver.explain.blocking_claims import BlockingClaimFinder
from devalloc_solver.explain.explainer import Finding, RelaxationTier, first_sufficient, unmatched_details
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion, Undecided
from devalloc_solver.explain.funnel import describe_funnel
from devalloc_solver.explain.messages import join_sentences
from devalloc_solver.explain.relaxations import (
    MAX_TRIES,
    Relaxation,
    apply_relaxations,
    drop_unneeded,
    fewest_relaxations,
    relaxation_sets,
)
from devalloc_solver.explain.resource_k8s.availability import Availability
from devalloc_solver.explain.resource_k8s.call_relaxations import (
    CallInput,
    complete_pools,
    list_holders,
    reach_pools,
    sort_slices,
    switch_on_features,
)
from devalloc_solver.explain.resource_k8s.explainer import class_selectors
from devalloc_solver.explain.resource_k8s.relaxations import ResourceClaimRelaxations
from devalloc_solver.explain.resource_k8s.typos import ResourceTypoFinder
from devalloc_solver.pipeline.unit_search import place_unit
from devalloc_solver.reasons import VERDICTS, Reason


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
        fits = task is None or place_unit(task.snapshot, task.holdings, task.unit, ends=task.ends) is not None
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    allowance.begin_search()
    if task is None:
        return {"reason": None, "message": None, "blockers": [], "claims": [], "pools": [], "ignored": []}
    diagnosis = None if fits else find_call_reason(inputs, task.pools)
    numbers = Availability(task.snapshot, task.offers, task.holdings)
    answer: dict[str, Any] = {
        "reason": None if diagnosis is None else str(diagnosis.reason),
        "message": None if diagnosis is None else _message(diagnosis, task, numbers),
        "blockers": [] if diagnosis is None else [dict(blocker.entry) for blocker in diagnosis.edits],
        "claims": [
            {
                "namespace": demand.claim.claim.namespace,
                "name": demand.claim.claim.name,
                "requests": [numbers.funnel(request) for request in demand.requests],
            }
            for demand in task.unit.demands
        ],
        "pools": [{"name": p.title, "state": p.state.value, "why": p.why} for p in task.pools if p.why],
        "ignored": [{"name": ignored.name, "why": ignored.why} for ignored in task.ignored],
    }
    return cast(ExplanationDict, answer)


def _message(diagnosis: Finding, task: AllocationTask, numbers: Availability) -> str:
    """How final it is, the numbers of the request that is worst off, slips of the pen, and what makes it fit."""
    requests = [request for demand in task.unit.demands for request in demand.requests]
    funnels = [numbers.funnel(request) for request in requests]
    worst = min(range(len(requests)), key=lambda i: funnels[i]["free"] - requests[i].least, default=None)
    parts = []
    if worst is not None:
        is_empty = diagnosis.is_impossible
        parts.append(f"request {funnels[worst]['request']}: {describe_funnel(funnels[worst], is_empty=is_empty)}")
    if diagnosis.reason in (Reason.NOT_ENOUGH_DEVICES, Reason.DEVICES_IN_USE):
        parts.append(numbers.shortage(task.unit, is_empty=False))
    elif diagnosis.reason is Reason.MATCH_ATTRIBUTES_CONFLICT and not any(held.items for held in task.holdings):
        parts.append(numbers.disagreement(task.unit))  # devices in use are not among those that are counted
    claims = (demand.claim.claim for demand in task.unit.demands)
    parts += ResourceTypoFinder(task.offers).of_claims(claims, class_selectors(task.unit), task.ends)
    return f"{VERDICTS[diagnosis.reason]}: {join_sentences(*parts, diagnosis.text)}"


def find_call_reason(source: CallInput, pools: Sequence[ResourcePool]) -> Finding:
    """The reason for input that is valid and does not fit. ``pools``: as the node sees them."""
    try:
        holders = list_holders(source)
        source = replace(source, holders=tuple(usage for _, usage in holders))
        return _find_call_reason(source.question(), [relaxation for relaxation, _ in holders], source, pools)
    except (OutOfTime, Undecided):
        message = "time ran out before the solver found what would have to change; allow more time"
        return Finding(Reason.SEARCH_LIMIT, message)


def _find_call_reason(
    question: FeasibilityQuestion, holders: Sequence[Relaxation], source: CallInput, pools: Sequence[ResourcePool]
) -> Finding:
    finder = FeasibilityChecker(question.snapshot, lambda request: None, source.allowance.until, is_bounded=False)
    empty = replace(question, held=())
    if finder.works(empty):
        return _finding(Reason.DEVICES_IN_USE, _blocking_holders(question, holders, finder))
    sufficient = first_sufficient(empty, _relaxation_tiers(empty, source, pools, finder), finder)
    if sufficient is None:
        return _finding(_short_reason(empty), ())
    reason, edits = sufficient
    structural = drop_unneeded(edits, lambda some: finder.works(apply_relaxations(empty, some)))
    eased = apply_relaxations(question, structural)
    in_use = () if finder.works(eased) else _blocking_holders(eased, holders, finder)
    return _finding(reason, (*structural, *in_use))


def _finding(reason: Reason, edits: tuple[Relaxation, ...]) -> Finding:
    return Finding(reason, f"it fits {' and '.join(edit.words for edit in edits)}" if edits else "", edits)


def _blocking_holders(
    question: FeasibilityQuestion, holders: Sequence[Relaxation], finder: FeasibilityChecker
) -> tuple[Relaxation, ...]:
    """The fewest owners whose release makes it fit, found by ``BlockingClaimFinder``, verified without its bounds."""
    bounded = FeasibilityChecker(question.snapshot, finder.reads, finder.ends)
    keys = BlockingClaimFinder(question.snapshot, question.held, frozenset()).find(question, bounded).claims
    chosen = [edit for number, edit in enumerate(holders) if holder_key(number) in keys]

    def works(some: Sequence[Relaxation]) -> bool:
        return finder.works(apply_relaxations(question, some))

    if not chosen or not works(chosen):
        return tuple(fewest_relaxations(question, holders, finder) or ())
    return tuple(drop_unneeded(chosen, works) if len(chosen) > 1 else chosen)


def _relaxation_tiers(
    question: FeasibilityQuestion, source: CallInput, seen: Sequence[ResourcePool], finder: FeasibilityChecker
) -> Iterator[RelaxationTier]:
    """What is taken away, the first that suffices is the reason."""
    made, short = ResourceClaimRelaxations(question.unit, quotes_claims=True), _short_reason(question)
    constraints, counters = made.constraints(), made.counters() if source.has_counters else []
    taints, capacities = made.taints() if source.has_taints else [], made.capacities()
    pools, gates = complete_pools(seen), switch_on_features(source)
    counts, requests, selectors, classes = made.counts(), made.requests(), made.selectors(), made.classes()
    reaches = reach_pools(source)
    lacking = short is Reason.NO_MATCHING_DEVICES
    yield Reason.MATCH_ATTRIBUTES_CONFLICT, constraints
    yield Reason.POOL_RESOURCES_EXHAUSTED, counters
    if constraints and counters:
        yield Reason.MATCH_ATTRIBUTES_CONFLICT, [*constraints, *counters]
    yield short, taints
    yield short, pools
    yield short if lacking else Reason.INSUFFICIENT_CAPACITY, capacities
    yield short, gates
    members = _members_to_drop(question, made.members(None), finder)
    fewer = [(Reason.GROUP_UNSATISFIABLE, members), (short, counts), (short, requests if len(requests) > 1 else [])]
    other = [(short, selectors), (Reason.NODE_UNAVAILABLE, reaches), (short, classes)]
    # To ask for less helps where there is something to have.
    yield from (*other, *fewer) if lacking else (*fewer, *other)
    rules = [*constraints, *counters, *taints, *pools, *capacities, *gates, *counts, *selectors]
    yield short, rules
    yield Reason.NODE_UNAVAILABLE, [*reaches, *rules]
    yield short, [*rules, *reaches, *classes]
    yield short, [*rules, *reaches, *classes, *requests]


def _members_to_drop(
    question: FeasibilityQuestion, members: Sequence[Relaxation], finder: FeasibilityChecker
) -> Sequence[Relaxation]:
    """The fewest claims without which the others fit; none when no part of them does."""
    for some in islice(relaxation_sets(members), MAX_TRIES):
        if len(some) < len(members) and finder.works(apply_relaxations(question, some)):
            return some
    return []


def _short_reason(question: FeasibilityQuestion) -> Reason:
    """Nothing matches some request, or too little does."""
    return Reason.NO_MATCHING_DEVICES if unmatched_details(question.unit) else Reason.NOT_ENOUGH_DEVICES
