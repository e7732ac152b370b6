"""The input of an allocation on one node, read: claims, classes and slices to one placement unit (D1 to D5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.problems import closest_match
from devalloc.api.quantity import type_name
from devalloc_solver.cel.budget import Allowance
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates, RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim, ResourceDeviceClass, claim_with_allocation
from devalloc_solver.dialects.resource_k8s.decode import read_claim, read_class, read_node
from devalloc_solver.dialects.resource_k8s.demands import (
    MOST_DEVICES,
    PendingClaim,
    constrained_attributes,
    make_demand,
    make_unit,
)
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, FieldError, short_text
from devalloc_solver.dialects.resource_k8s.pools import (
    IgnoredObject,
    PoolStatus,
    PoolView,
    ResourcePool,
    SliceBook,
    name_of,
)
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DevicesInUse,
    DeviceUsage,
    PublishedDevice,
    list_published_devices,
    make_snapshot,
    read_usage,
    recorded_use,
)
from devalloc_solver.dialects.resource_k8s.selectors import SelectorJudge
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode
from devalloc_solver.dialects.resource_k8s.versions import as_v1
from devalloc_solver.problem.allocations import Allocation
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.snapshot import Snapshot

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeManifests:
    """The objects of a call for one node."""

    node: Manifest | str
    claims: Iterable[Manifest]
    classes: Iterable[Manifest]
    slices: Iterable[Manifest]
    allocated: Manifest | None = None
    """what else is in use"""


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
    allocations: tuple[Allocation, ...]
    unit: PlacementUnit
    slices: Sequence[Manifest]
    """those that were read"""
    ends: float | None = None
    """monotonic time at which the call has to answer"""
    errors: list[str] = field(default_factory=list)
    """devices that could not be judged, in the order of claims, requests and devices"""


def prepare(
    manifests: NodeManifests,
    allowance: Allowance,
    *,
    features: Iterable[str] | None = None,
    selectors: SelectorJudge | None = None,
    holders: Sequence[DeviceUsage] | None = None,
) -> AllocationTask | None:
    """All before the search; None when no claim waits.

    ``selectors``: those of a call before with the same ``features``, whose verdicts hold for the same devices.
    ``holders``: what each holder has, so that each is an allocation; devices are judged as if nothing were in use then.
    Raises AllocationError and OutOfTime.
    """
    gates = read_gates(features)
    target = _read_node(manifests.node)
    faults: list[IgnoredObject] = []
    read = tuple(_read_claim(content, position, gates, faults) for position, content in enumerate(manifests.claims))
    pending = [
        PendingClaim(_claim_key(claim, position, read), 0, claim, position)
        for position, claim in enumerate(read)
        if claim.allocation is None
    ]
    if not pending:
        return None
    usage = _read_usage(manifests.allocated, read)
    named = _read_classes(manifests.classes, [one.claim for one in pending])
    book = SliceBook(manifests.slices, gates)
    pools = book.pools(target)
    for one in pending:
        _reject_incomplete_pools(one.claim, pools)
    recorded = recorded_use(usage, book, pools)
    offers = list_published_devices([PoolView(pool, (target,)) for pool in pools], usage, gates, recorded)
    judged = usage if holders is None else DeviceUsage()
    judge = RequestJudge(gates, offers, judged, selectors or SelectorJudge(gates, allowance), named)
    used = DevicesInUse(offers)
    choices = [
        [[judge.choose(one.claim, subrequest) for subrequest in r.subrequests] for r in one.claim.requests]
        for one in pending
    ]
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
        allocations=tuple(
            Allocation(holder_key(number), 0, used.items(one))
            for number, one in enumerate([usage] if holders is None else holders)
        ),
        unit=make_unit([make_demand(one, chosen) for one, chosen in zip(pending, choices, strict=True)], target.name),
        slices=book.seen(pools),
        ends=allowance.until,
        errors=[
            f"claim {one.claim.title}, request {choice.subrequest.name}: {error}"
            for one, chosen in zip(pending, choices, strict=True)
            for subrequests in chosen
            for choice in subrequests
            for error in choice.verdict.errors
        ],
    )


def holder_key(number: int) -> tuple[str, str]:
    """The claim of an allocation, by the position of its holder; keys are in the order of these."""
    return "", f"{number:09}"


def as_manifests(given: object, what: str) -> list[Manifest]:
    """What a caller gave as manifests. Raises AllocationError where it is something else."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise AllocationError(f"{what}: must be a list of objects, not {type_name(given)}")
    manifests = [as_v1(one) for one in given]
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
        if len(same) > 1 and any(other.is_list or other.subrequests[0].is_all for other in same):
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
    namespace, name = claim.key
    first = next(i for i, other in enumerate(claims) if other.key == claim.key)
    return namespace, name if first == position else f"{name}#{position}"


def _read_classes(classes: Iterable[Manifest], claims: Sequence[ResourceClaim]) -> dict[str, ResourceDeviceClass]:
    """The classes that claims name. Raises AllocationError for one that does not exist or cannot be read."""
    by_name = {name_of(content): content for content in classes}
    classes_read: dict[str, ResourceDeviceClass] = {}
    for claim in claims:
        for subrequest in claim.subrequests:
            name = subrequest.class_name
            if name not in by_name:
                near = closest_match(name, by_name)
                raise AllocationError(
                    f"claim {claim.title}, request {subrequest.name}: {subrequest.path}.deviceClassName: "
                    f"could not retrieve device class {name}: it does not exist; create it, or name another"
                    + ("" if near is None else f"; did you mean {near!r}?")
                )
            if name not in classes_read:
                try:
                    classes_read[name] = read_class(by_name[name])
                except FieldError as error:
                    raise AllocationError(f"class {name}: {error}") from None
    return classes_read


def _reject_incomplete_pools(claim: ResourceClaim, pools: Sequence[ResourcePool]) -> None:
    """``All`` cannot be told while any pool of the node is incomplete or invalid."""
    for subrequest in (subrequest for subrequest in claim.subrequests if subrequest.is_all):
        for pool in pools:
            if pool.state is not PoolStatus.COMPLETE:
                state = "being updated" if pool.state is PoolStatus.INCOMPLETE else "invalid"
                raise AllocationError(
                    f"claim {claim.title}, request {subrequest.name}: {subrequest.path}.allocationMode: "
                    f"asks for all devices, but resource pool {pool.title} is currently {state}: {pool.why}; "
                    f"wait for its driver, or ask by count"
                )


def _reject_too_many_devices(claim: ResourceClaim, choices: Sequence[Sequence[RequestCandidates]]) -> None:
    """A claim that cannot be met with 32 devices, whichever alternatives are taken (D4)."""
    total = 0
    for request, subrequests in zip(claim.requests, choices, strict=True):
        least = min(choice.size for choice in subrequests)
        if total + least > MOST_DEVICES:
            raise AllocationError(
                f"claim {claim.title}, request {request.name}: adding {least} devices exceeds the claim limit of "
                f"{MOST_DEVICES}, with {total} already accounted for; split the claim"
            )
        total += least
