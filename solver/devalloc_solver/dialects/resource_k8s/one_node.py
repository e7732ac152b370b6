"""Allocate ResourceClaims on one node, as kube-scheduler asks of its allocator (settled D1 to D5), and explain."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from devalloc.api.quantity import type_name
from devalloc_solver.answer_types import AllocationResult, ExplanationDict
from devalloc_solver.cel.budget import Allowance, OutOfTime
from devalloc_solver.check.resource_k8s import check_results
from devalloc_solver.deadline import ALLOCATE_SECONDS, end_time
from devalloc_solver.dialects.resource_k8s.allocation_task import (
    AllocationTask,
    Manifest,
    NodeManifests,
    as_manifests,
    prepare,
)
from devalloc_solver.dialects.resource_k8s.answers import ShareIds, devices_of_placement, make_result
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim
from devalloc_solver.dialects.resource_k8s.demands import PendingClaim, make_unit
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, ResourceAnswerRefused
from devalloc_solver.dialects.resource_k8s.one_node_explainer import CallExplainer, CallInput, sort_slices
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, name_of
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline.strategy import place_unit
from devalloc_solver.problem.demand import AllocationMode, Constraint, Demand, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Device


@gc_paused()
def allocate(
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    *,
    allocated: Manifest | None = None,
    features: Iterable[str] | None = None,
    deadline: float | None = ALLOCATE_SECONDS,
) -> list[AllocationResult] | None:
    """Allocate all claims on one node, or none.

    Args:
        node: a Node object, or the name of a node without labels.
        claims: ResourceClaims. One that has an allocation keeps it, and its devices are in use.
        classes: DeviceClasses.
        slices: ResourceSlices of any nodes.
        allocated: what else is in use: ``{"devices": [...], "shares": [...], "consumedCapacity": [...]}``.
        features: feature gates that are on. None means all features up to beta, and list-typed attributes.
        deadline: seconds, or None for no limit. If there is no answer by then, AllocationError is raised.

    Returns:
        One AllocationResult per claim, in the order of the claims. None if the claims do not fit on the node, or if no
        claim is pending.

    Raises:
        AllocationError: the input is invalid, or the deadline has passed. With ``node_local`` only this node's pools
            are at fault, so another node can still fit.
    """
    allowance = _begin(deadline)
    claims, classes, slices = _as_manifests(claims, classes, slices)
    try:
        task = prepare(NodeManifests(node, claims, classes, slices, allocated), allowance, features=features)
        if task is None:
            return None
        placements = place_unit(task.snapshot, task.allocations, task.unit, ends=task.ends)
        if placements is None:
            raise_failure(task)
            return None
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    results = _results(task, placements)
    named = [content for content in classes if name_of(content) in task.classes]
    fresh = [result for result, claim in zip(results, task.claims, strict=True) if claim.allocation is None]
    if violations := check_results(fresh, node, claims, named, task.slices, allocated=allocated, features=task.gates):
        raise ResourceAnswerRefused(violations)
    return cast(list[AllocationResult], results)


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
    """Explain why ``allocate`` returns None for the same arguments, and show what it looked at.

    Returns ``{"reason", "message", "blockers": [{kind, ...}], "claims": [{namespace, name, requests: [funnel]}],
    "pools": [{name, state, why}], "ignored": [{name, why}]}``. If all blockers were removed, the claims would fit; if
    only some of them were, they would not. ``reason`` is None if the claims fit, or if no claim is pending. A funnel
    has ``request, devices, steps: [{what, count, devices, example?}], matching, inUse, excluded, free``.

    ``deadline``: seconds, or None for no limit. If the claims do not fit and the cause is still unknown by then, the
    reason is ``SearchLimit``.

    Raises AllocationError as ``allocate`` does.
    """
    allowance = _begin(deadline)
    gates = read_gates(features)
    claims, classes, slices = _as_manifests(claims, classes, slices)
    if allocated is not None and not isinstance(allocated, Mapping):
        raise AllocationError(f"allocated: must be a map, not {type_name(allocated)}")
    read, unread = sort_slices(slices)
    inputs = CallInput(
        node, tuple(claims), tuple(classes), read, dict(allocated or {}), gates, unread, allowance=allowance
    )
    try:
        task = inputs.task()
        fits = task is None or place_unit(task.snapshot, task.allocations, task.unit, ends=task.ends) is not None
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    allowance.begin_search()
    if task is None:
        return {"reason": None, "message": None, "blockers": [], "claims": [], "pools": [], "ignored": []}
    explainer = CallExplainer(
        task.snapshot, task.allocations, (), allowance.until, task.offers, source=inputs, pools=task.pools
    )
    finding = None if fits else explainer.find(task.unit, task.unit.demands[0].key)
    funnels = [[explainer.funnels.make(request) for request in demand.requests] for demand in task.unit.demands]
    answer: dict[str, Any] = {
        "reason": None if finding is None else str(finding.reason),
        "message": None if finding is None else explainer.message(finding, [*chain(*funnels)]),
        "blockers": [] if finding is None else explainer.blockers(finding),
        "claims": [
            dict(zip(("namespace", "name"), demand.claim.claim.key, strict=True))
            | {"requests": [*map(explainer.funnel_dict, of_claim)]}
            for demand, of_claim in zip(task.unit.demands, funnels, strict=True)
        ],
        "pools": [{"name": p.title, "state": p.state.value, "why": p.why} for p in task.pools if p.why],
        "ignored": [{"name": ignored.name, "why": ignored.why} for ignored in task.ignored],
    }
    return cast(ExplanationDict, answer)


def _begin(deadline: float | None) -> Allowance:
    """``deadline``: in seconds."""
    started = time.monotonic()
    allowance = Allowance()
    allowance.begin(end_time(deadline, started), started)
    return allowance


def _as_manifests(
    claims: Iterable[Manifest], classes: Iterable[Manifest], slices: Iterable[Manifest]
) -> tuple[Sequence[Manifest], Sequence[Manifest], Sequence[Manifest]]:
    return as_manifests(claims, "claims"), as_manifests(classes, "classes"), as_manifests(slices, "slices")


# -- when nothing fits -------------------------------------------------------------------------------------------------


def raise_failure(task: AllocationTask) -> None:
    """Raise the error that is the answer when nothing fits; return when there simply is too little.

    Raises OutOfTime when the time does not suffice to find that out.
    """
    for claim, message in _conflicts(task):
        raise AllocationError(f"claim {claim.title}, {message}")
    if task.errors:
        raise AllocationError(task.errors[0])
    broken = [pool for pool in task.pools if pool.state is PoolStatus.INVALID]
    if broken:
        faults = "; ".join(f"{pool.title}: {pool.why}" for pool in broken)
        raise AllocationError(f"invalid resource pools were encountered: {faults}; correct its slices", node_local=True)


def _conflicts(task: AllocationTask) -> Iterator[tuple[ResourceClaim, str]]:
    """Requests for all devices that a constraint forbids: it makes no sense to ask so.

    What comes before the request fits, and then either its devices cannot be together under a constraint, or all
    would fit if no constraint covered the request.
    """
    for position, demand in enumerate(task.unit.demands):
        before = task.unit.demands[:position]
        for detail, requests in enumerate(demand.details):
            for request in requests:
                covering = [r for r in demand.relations if request.label in r.labels]
                if (
                    request.mode not in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL)
                    or not covering
                    or not request.candidates.accepted
                ):
                    continue
                broken = [
                    r
                    for r in covering
                    if not _constraint_holds(r, [task.snapshot.devices[i] for i in request.spec.verdict.accepted])
                ]
                if not _preceding_requests_fit(task, before, demand, detail):
                    continue
                if not broken and not _constraints_prevent(
                    task, before, _demand_up_to(demand, detail, request), request
                ):
                    continue
                subrequest = request.spec.subrequest
                names = " and ".join(sorted({r.attribute for r in broken or covering}))
                yield (
                    demand.claim.claim,
                    f"request {subrequest.name}: {subrequest.path}: cannot add all devices because a "
                    f"claim constraint would not be satisfied ({names}); "
                    "narrow the request with a selector, or drop the constraint",
                )


def _constraint_holds(relation: Constraint, devices: Sequence[Device]) -> bool:
    """Whether a relation holds among devices that are taken once each."""
    values = [device.values(relation.attribute) for device in devices]
    if not all(values):
        return False
    if relation.distinct:
        return sum(map(len, values)) == len(frozenset().union(*values))
    return not values or bool(frozenset.intersection(*values))


def _preceding_requests_fit(task: AllocationTask, before: Sequence[Demand], demand: Demand, detail: int) -> bool:
    """Whether what comes before a request fits: otherwise that is what is missing."""
    return _fits(task, (*before, replace(demand, details=demand.details[:detail])))


def _constraints_prevent(
    task: AllocationTask, before: Sequence[Demand], up_to_request: Demand, request: Request
) -> bool:
    """Whether requests would fit if no constraint covered this one, and do not with them.

    The other requests stay under their constraints: these decide which devices are left for this one.
    """
    relations = tuple(replace(r, labels=r.labels - {request.label}) for r in up_to_request.relations)
    free = replace(up_to_request, relations=tuple(r for r in relations if r.labels))
    return not _fits(task, (*before, up_to_request)) and _fits(task, (*before, free))


def _demand_up_to(demand: Demand, detail: int, request: Request) -> Demand:
    return replace(demand, details=(*demand.details[:detail], (request,)))


def _fits(task: AllocationTask, demands: Sequence[Demand]) -> bool:
    waiting = [demand for demand in demands if demand.details]
    unit = make_unit(waiting, task.node.name)
    return not waiting or place_unit(task.snapshot, task.allocations, unit, ends=task.ends) is not None


# -- output ------------------------------------------------------------------------------------------------------------


def _results(task: AllocationTask, placements: Sequence[Placement]) -> list[dict[str, Any]]:
    """One result per claim of the call; a claim that came with an allocation keeps it."""
    by_position: dict[int, dict[str, Any]] = {}
    shares = ShareIds(task.usage.share_ids)
    for placement in sorted(placements, key=lambda p: p.demand.claim.position):
        pending: PendingClaim = placement.demand.claim
        by_position[pending.position] = make_result(
            pending.claim,
            devices_of_placement(placement.entries, task.offers),
            task.classes,
            task.node.name,
            task.gates,
            shares,
        )
    return [by_position[i] if i in by_position else dict(claim.allocation or {}) for i, claim in enumerate(task.claims)]
