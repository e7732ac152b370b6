"""Allocate ResourceClaims on one node: what kube-scheduler asks of its allocator, exactly (settled D1 to D5)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from devalloc.api.quantity import type_name
from devalloc.api.suggest import closest_match
from devalloc_solver.answer_types import AllocationResult
from devalloc_solver.cel.budget import Allowance, OutOfTime
from devalloc_solver.check.resource_k8s import check_results
from devalloc_solver.deadline import ALLOCATE_SECONDS, end_time
from devalloc_solver.dialects.resource_k8s.allocation_result import ShareIds, devices_of_placement, make_result
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates, RequestJudge
from devalloc_solver.dialects.resource_k8s.decode import read_claim, read_class, read_node
from devalloc_solver.dialects.resource_k8s.errors import AllocationError, ResourceAnswerRefused
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import FieldError, short_text
from devalloc_solver.dialects.resource_k8s.objects import (
    ClusterNode,
    ResourceClaim,
    ResourceDeviceClass,
    claim_with_allocation,
)
from devalloc_solver.dialects.resource_k8s.pools import IgnoredObject, PoolStatus, ResourcePool, SliceBook, name_of
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DevicesInUse,
    PoolView,
    PublishedDevice,
    list_published_devices,
    make_snapshot,
)
from devalloc_solver.dialects.resource_k8s.selectors import SelectorJudge
from devalloc_solver.dialects.resource_k8s.translate import (
    MOST_DEVICES,
    ClaimMeta,
    PendingClaim,
    constrained_attributes,
    make_demand,
    make_unit,
)
from devalloc_solver.dialects.resource_k8s.usage import DeviceUsage, read_usage
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline.unit_search import place_unit
from devalloc_solver.problem.allocations import Allocation
from devalloc_solver.problem.demand import AllocationMode, Constraint, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Device, Snapshot

Manifest = Mapping[str, Any]


@dataclass(slots=True)
class AllocationTask:
    """Everything that is known of a call before the search begins."""

    node: ClusterNode
    gates: frozenset[str]
    claims: tuple[ResourceClaim, ...]
    pools: tuple[ResourcePool, ...]
    ignored: tuple[IgnoredObject, ...]
    usage: DeviceUsage
    classes: Mapping[str, ResourceDeviceClass]
    offers: Sequence[PublishedDevice]
    snapshot: Snapshot
    holdings: tuple[Allocation, ...]
    unit: PlacementUnit
    slices: Sequence[Manifest]
    """those that were read"""
    ends: float | None = None
    """monotonic time at which the call has to answer"""
    errors: list[str] = field(default_factory=list)
    """devices that could not be judged, in the order of claims, requests and devices"""


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
        allocated: what is in use besides: ``{"devices": [...], "shares": [...], "consumedCapacity": [...]}``.
        features: feature gates that are on; None for all up to beta, and lists.
        deadline: seconds after which it is an error that nothing is known yet; None for as long as it takes.

    Returns:
        One AllocationResult per claim, in the order of the claims; None when they do not fit on the node, or when no
        claim waits.

    Raises AllocationError for input that cannot be judged. ``node_local`` when only this node is at fault.
    """
    started = time.monotonic()
    allowance = Allowance()
    allowance.begin(end_time(deadline, started), started)
    claims, classes, slices = (
        as_manifests(claims, "claims"),
        as_manifests(classes, "classes"),
        as_manifests(slices, "slices"),
    )
    try:
        task = prepare(node, claims, classes, slices, allowance, allocated=allocated, features=features)
        if task is None:
            return None
        placements = place_unit(task.snapshot, task.holdings, task.unit, ends=task.ends)
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


def prepare(
    node: Manifest | str,
    claims: Iterable[Manifest],
    classes: Iterable[Manifest],
    slices: Iterable[Manifest],
    allowance: Allowance,
    *,
    allocated: Manifest | None = None,
    features: Iterable[str] | None = None,
    selectors: SelectorJudge | None = None,
    holders: Sequence[DeviceUsage] | None = None,
) -> AllocationTask | None:
    """All before the search; None when no claim waits.

    ``selectors``: those of a call before with the same ``features``, whose verdicts hold for the same devices.
    ``holders``: what each holder has, so that each is a holding; devices are judged as if nothing were in use then.
    Raises AllocationError and OutOfTime.
    """
    gates = read_gates(features)
    target = _read_node(node)
    faults: list[IgnoredObject] = []
    read = tuple(_read_claim(content, position, gates, faults) for position, content in enumerate(claims))
    pending = [
        PendingClaim(_claim_key(claim, position, read), 0, ClaimMeta(claim.name, claim.created), claim, position)
        for position, claim in enumerate(read)
        if claim.allocation is None
    ]
    if not pending:
        return None
    usage = _read_usage(allocated, read)
    named = _read_classes(classes, [one.claim for one in pending])
    book = SliceBook(slices, gates)
    pools = book.pools(target)
    for one in pending:
        _reject_incomplete_pools(one.claim, pools)
    offers = list_published_devices([PoolView(pool, (target,)) for pool in pools], usage, gates)
    judged = usage if holders is None else DeviceUsage()
    judge = RequestJudge(gates, offers, judged, selectors or SelectorJudge(gates, allowance), named)
    used = DevicesInUse(offers)
    choices = [[[judge.choose(one.claim, ask) for ask in r.asks] for r in one.claim.requests] for one in pending]
    for one, chosen in zip(pending, choices, strict=True):
        _reject_too_many_devices(one.claim, chosen)
    return AllocationTask(
        node=target,
        gates=gates,
        claims=read,
        pools=pools,
        ignored=(*book.ignored, *faults),
        usage=usage,
        classes=named,
        offers=offers,
        snapshot=make_snapshot(offers, [target.name], constrained_attributes(read), gates),
        holdings=tuple(
            Allocation(holder_key(number), 0, used.items(one))
            for number, one in enumerate([usage] if holders is None else holders)
        ),
        unit=make_unit([make_demand(one, chosen) for one, chosen in zip(pending, choices, strict=True)], target.name),
        slices=book.seen(pools),
        ends=allowance.until,
        errors=[
            f"claim {one.claim.title}, request {choice.ask.name}: {error}"
            for one, chosen in zip(pending, choices, strict=True)
            for asks in chosen
            for choice in asks
            for error in choice.verdict.errors
        ],
    )


def holder_key(number: int) -> tuple[str, str]:
    """The claim of a holding, by the position of its holder; keys are in the order of these."""
    return "", f"{number:09}"


# -- input -------------------------------------------------------------------------------------------------------------


def as_manifests(given: object, what: str) -> list[Manifest]:
    """What a caller gave as manifests. Raises AllocationError where it is something else."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise AllocationError(f"{what}: must be a list of objects, not {type_name(given)}")
    manifests = list(given)
    for number, one in enumerate(manifests):
        if not isinstance(one, Mapping):
            raise AllocationError(f"{what}[{number}]: must be an object, not {type_name(one)}")
    return manifests


def _read_node(content: Manifest | str) -> ClusterNode:
    try:
        return read_node(content)
    except FieldError as error:
        raise AllocationError(f"node: {error}") from None


def _read_claim(content: Manifest, position: int, gates: frozenset[str], faults: list[IgnoredObject]) -> ResourceClaim:
    """A claim; of one that has an allocation and cannot be read, what it holds, and a fault."""
    try:
        claim = read_claim(content, gates)
        if claim.allocation is None:
            _reject_ambiguous_names(claim)
        return claim
    except FieldError as error:
        metadata, status = content.get("metadata"), content.get("status")
        fields = metadata if isinstance(metadata, Mapping) else {}
        title = (
            "/".join(short_text(fields[part]) for part in ("namespace", "name") if fields.get(part)) or f"#{position}"
        )
        allocation = status.get("allocation") if isinstance(status, Mapping) else None
        if not isinstance(allocation, Mapping) or not allocation:
            raise AllocationError(f"claim {title}: {_error_text(content, error)}") from None
        faults.append(
            IgnoredObject(f"claim {title}", f"{_error_text(content, error)}; its devices still count as in use")
        )
        return claim_with_allocation(
            short_text(fields.get("namespace") or ""), short_text(fields.get("name") or ""), allocation
        )


def _reject_ambiguous_names(claim: ResourceClaim) -> None:
    """Raises FieldError for requests of one name whose devices the result would not distinguish.

    The order distinguishes requests that ask by count, as in upstream's allocator.
    """
    for number, request in enumerate(claim.requests):
        same = [other for other in claim.requests if other.name == request.name]
        if len(same) > 1 and any(other.is_list or other.asks[0].is_all for other in same):
            message = f"is the name of {len(same)} requests, and not all of them request a count; rename one"
            raise FieldError(f"spec.devices.requests[{number}].name", message)


def _error_text(content: Manifest, error: FieldError) -> str:
    """An error with the name of the request it is about, where it is about one."""
    try:
        requests = content["spec"]["devices"]["requests"]
        number = int(error.path.removeprefix("spec.devices.requests[").partition("]")[0])
        return f"request {short_text(requests[number]['name'])}: {error}"
    except (KeyError, IndexError, TypeError, ValueError):
        return str(error)


def _read_usage(allocated: Manifest | None, claims: Sequence[ResourceClaim]) -> DeviceUsage:
    try:
        return read_usage(allocated, claims)
    except FieldError as error:
        raise AllocationError(f"{error}") from None


def _claim_key(claim: ResourceClaim, position: int, claims: Sequence[ResourceClaim]) -> tuple[str, str]:
    """A claim's name, which claims of one call may share (D1)."""
    first = next(i for i, other in enumerate(claims) if (other.namespace, other.name) == (claim.namespace, claim.name))
    return claim.namespace, claim.name if first == position else f"{claim.name}#{position}"


def _read_classes(classes: Iterable[Manifest], claims: Sequence[ResourceClaim]) -> dict[str, ResourceDeviceClass]:
    """The classes that claims name. Raises AllocationError for one that does not exist or cannot be read."""
    by_name = {name_of(content): content for content in classes}
    classes_read: dict[str, ResourceDeviceClass] = {}
    for claim in claims:
        for ask in (ask for request in claim.requests for ask in request.asks):
            name = ask.class_name
            if name not in by_name:
                near = closest_match(name, by_name)
                raise AllocationError(
                    f"claim {claim.title}, request {ask.name}: {ask.path}.deviceClassName: "
                    f"could not retrieve device class {name}: it does not exist; create it, or name another"
                    + ("" if near is None else f"; did you mean {near!r}?")
                )
            if name not in classes_read:
                try:
                    classes_read[name] = read_class(by_name[name])
                except FieldError as error:
                    raise AllocationError(f"class {name}: {error}") from None
    return classes_read


# -- refusals ----------------------------------------------------------------------------------------------------------


def _reject_incomplete_pools(claim: ResourceClaim, pools: Sequence[ResourcePool]) -> None:
    """``All`` cannot be told while any pool of the node is incomplete or invalid."""
    for ask in (ask for request in claim.requests for ask in request.asks if ask.is_all):
        for pool in pools:
            if pool.state is not PoolStatus.COMPLETE:
                state = "being updated" if pool.state is PoolStatus.INCOMPLETE else "invalid"
                raise AllocationError(
                    f"claim {claim.title}, request {ask.name}: {ask.path}.allocationMode: asks for all devices, but "
                    f"resource pool {pool.title} is currently {state}: {pool.why}; wait for its driver, or ask by count"
                )


def _reject_too_many_devices(claim: ResourceClaim, choices: Sequence[Sequence[RequestCandidates]]) -> None:
    """A claim that cannot be met with 32 devices, whichever alternatives are taken (D4)."""
    total = 0
    for request, asks in zip(claim.requests, choices, strict=True):
        least = min(choice.size for choice in asks)
        if total + least > MOST_DEVICES:
            raise AllocationError(
                f"claim {claim.title}, request {request.name}: adding {least} devices exceeds the claim limit of "
                f"{MOST_DEVICES}, with {total} already accounted for; split the claim"
            )
        total += least


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
    would fit without the constraints on the request.
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
                    task, before, _demand_up_to(demand, detail, request), covering
                ):
                    continue
                ask = request.spec.ask
                names = " and ".join(sorted({r.attribute for r in broken or covering}))
                yield (
                    demand.claim.claim,
                    f"request {ask.name}: {ask.path}: cannot add all devices because a claim constraint would not be "
                    f"satisfied ({names}); narrow the request with a selector, or drop the constraint",
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
    task: AllocationTask, before: Sequence[Demand], start: Demand, relations: Sequence[Constraint]
) -> bool:
    """Whether requests would fit without these relations, and do not with them."""
    free = replace(start, relations=tuple(r for r in start.relations if r not in relations))
    return not _fits(task, (*before, start)) and _fits(task, (*before, free))


def _demand_up_to(demand: Demand, detail: int, request: Request) -> Demand:
    return replace(demand, details=(*demand.details[:detail], (request,)))


def _fits(task: AllocationTask, demands: Sequence[Demand]) -> bool:
    waiting = [demand for demand in demands if demand.details]
    unit = make_unit(waiting, task.node.name)
    return not waiting or place_unit(task.snapshot, task.holdings, unit, ends=task.ends) is not None


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
