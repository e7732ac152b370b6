"""A call for one node, as kube-scheduler asks of its allocator (settled D1 to D5): its problem, and its answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from devalloc.api.problems import Problem, closest_match
from devalloc.api.quantity import type_name
from devalloc_solver.answer_types import AllocationResult
from devalloc_solver.cel.budget import Allowance, OutOfTime
from devalloc_solver.check.resource_k8s import check_results
from devalloc_solver.deadline import ALLOCATE_SECONDS, Call
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim, ResourceDeviceClass, claim_with_allocation
from devalloc_solver.dialects.resource_k8s.cluster_devices import ClusterDevices
from devalloc_solver.dialects.resource_k8s.decode import read_claim, read_class, read_node
from devalloc_solver.dialects.resource_k8s.demands import (
    MOST_DEVICES,
    PendingClaim,
    make_demand,
    make_unit,
)
from devalloc_solver.dialects.resource_k8s.feature_gates import read_gates
from devalloc_solver.dialects.resource_k8s.fields import (
    AllocationError,
    FieldError,
    ResourceAnswerRefused,
    short_text,
)
from devalloc_solver.dialects.resource_k8s.manifests import ClusterInput
from devalloc_solver.dialects.resource_k8s.pools import (
    ClusterView,
    IgnoredObject,
    PoolStatus,
    PoolView,
    ResourcePool,
    SliceBook,
    UnreachedDevices,
    name_of,
)
from devalloc_solver.dialects.resource_k8s.problem import ResourceClaimDialect, ResourceClaimProblem
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DeviceUsage,
    read_usage,
)
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode
from devalloc_solver.dialects.resource_k8s.versions import as_v1
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline.flow import UnsolvedProblem
from devalloc_solver.pipeline.strategy import place_unit
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request, relation_holds
from devalloc_solver.problem.placement import Placement

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NodeCall:
    """The arguments of a call, before they are read."""

    node: Manifest | str
    claims: tuple[Manifest, ...]
    classes: tuple[Manifest, ...]
    slices: tuple[Manifest, ...]
    allocated: Any
    features: frozenset[str]
    allowance: Allowance = field(default_factory=Allowance)
    """of all that is asked about the call"""
    _selectors: dict[frozenset[str], Judge] = field(default_factory=dict)
    """feature gates -> what expressions said of devices, in whatever question"""

    @classmethod
    def begin(
        cls,
        node: Manifest | str,
        claims: Iterable[Manifest],
        classes: Iterable[Manifest],
        slices: Iterable[Manifest],
        allocated: Manifest | None,
        features: Iterable[str] | None,
        deadline: float | None,
    ) -> Self:
        """Begin a call; see ``allocate``. Raises AllocationError."""
        call, allowance = Call(deadline), Allowance()
        allowance.begin(call.ends, call.started)
        lists = _as_manifests(claims, "claims"), _as_manifests(classes, "classes"), _as_manifests(slices, "slices")
        return cls(node, *lists, allocated, read_gates(features), allowance)

    def problem(self, holders: Sequence[DeviceUsage] | None = None) -> ResourceClaimProblem | None:
        """Read all before the search, with one unit; None when no claim waits. Raises AllocationError and OutOfTime.

        ``holders``: what each holder has, so that each is an allocation; devices are judged as if nothing were in use
        then.
        """
        self.allowance.begin_again()
        gates, target = self.features, _read_node(self.node)
        faults: list[IgnoredObject] = []
        read = [_read_claim(content, position, gates, faults) for position, content in enumerate(self.claims)]
        pending = [
            PendingClaim(_claim_key(claim, position, read), 0, claim, position)
            for position, claim in enumerate(read)
            if claim.allocation is None
        ]
        if not pending:
            return None
        usage = _read_usage(self.allocated, read)
        named = _read_classes(self.classes, [one.claim for one in pending])
        book = SliceBook(self.read_slices(), gates)
        pools = book.pools(target)
        for one in pending:
            _reject_incomplete_pools(one.claim, pools)
        views = tuple(PoolView(pool, (target,)) for pool in pools)
        seen = ClusterView({target.name: target}, views, {}, UnreachedDevices())
        are_compared = any(one.claim.constraints for one in pending)
        devices = ClusterDevices.of(book, seen, usage, gates, are_compared=are_compared)
        selectors = self._selectors.setdefault(gates, Judge(selector_language(gates), self.allowance))
        judge = devices.judge(selectors, named, usage if holders is None else None)
        choices = [
            [[judge.choose(one.claim, subrequest) for subrequest in r.subrequests] for r in one.claim.requests]
            for one in pending
        ]
        for one, chosen in zip(pending, choices, strict=True):
            _reject_too_many_devices(one.claim, chosen)
        problem_input = ClusterInput(slices=book.seen(pools), classes=named, claims=read)
        return UnsolvedProblem(
            snapshot=devices.snapshot,
            allocations=tuple(
                Holding(holder_key(number), 0, devices.used.items(one))
                for number, one in enumerate([usage] if holders is None else holders)
            ),
            units=(make_unit([*map(make_demand, pending, choices)], target.name),),
            refused=(),
            priorities=(0,) * len(pending),
            problems=tuple(Problem(one.why, name=one.name) for one in (*book.ignored, *faults)),
            allowance=self.allowance,
            dialect=ResourceClaimDialect(problem_input, devices, usage, lost={}),
        )

    def read_slices(self) -> Iterable[Manifest]:
        """List the slices that count."""
        return self.slices


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
    call = NodeCall.begin(node, claims, classes, slices, allocated, features, deadline)
    try:
        problem = call.problem()
        if problem is None:
            return None
        placements = place_call(problem, problem.units[0])
        if placements is None:
            raise_failure(problem)
            return None
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    dialect = problem.dialect
    answers = {answer.key: answer.allocations for answer in dialect.write(placements)}
    given = {placed.demand.claim.position: answers[placed.demand.key] for placed in placements}
    named = [content for content in call.classes if name_of(content) in dialect.problem_input.classes]
    seen, fresh = dialect.problem_input.slices, [given[position] for position in sorted(given)]
    if violations := check_results(fresh, node, call.claims, named, seen, allocated=allocated, features=call.features):
        raise ResourceAnswerRefused(violations)
    in_order = enumerate(dialect.problem_input.claims)
    return [cast(AllocationResult, given.get(n) or dict(claim.allocation or {})) for n, claim in in_order]


def place_call(problem: ResourceClaimProblem, unit: PlacementUnit) -> list[Placement] | None:
    """Place the claims of a call, or some of them; None if they do not fit. Raises OutOfTime."""
    return place_unit(problem.snapshot, problem.allocations, unit, ends=problem.allowance.until)


# -- when nothing fits -------------------------------------------------------------------------------------------------


def raise_failure(problem: ResourceClaimProblem) -> None:
    """Raise the error that is the answer when nothing fits; return when there simply is too little.

    Raises OutOfTime when the time does not suffice to find that out.
    """
    for claim, message in _conflicts(problem):
        raise AllocationError(f"claim {claim.title}, {message}")
    for demand in problem.units[0].demands:
        for request in demand.requests:
            for error in request.spec.verdict.errors:
                raise AllocationError(
                    f"claim {demand.claim.claim.title}, request {request.spec.subrequest.name}: {error}"
                )
    pools = [view.pool for view in problem.dialect.devices.seen.views]
    broken = [pool for pool in pools if pool.state is PoolStatus.INVALID]
    if broken:
        faults = "; ".join(f"{pool.title}: {pool.why}" for pool in broken)
        raise AllocationError(f"invalid resource pools were encountered: {faults}; correct its slices", node_local=True)


def _conflicts(problem: ResourceClaimProblem) -> Iterator[tuple[ResourceClaim, str]]:
    """Requests for all devices that a constraint forbids: it makes no sense to ask so.

    What comes before the request fits, and then either its devices cannot be together under a constraint, or all
    would fit if no constraint covered the request.
    """
    demands, devices = problem.units[0].demands, problem.snapshot.devices
    for position, demand in enumerate(demands):
        before = demands[:position]
        for detail, requests in enumerate(demand.details):
            for request in requests:
                covering = [r for r in demand.relations if request.label in r.labels]
                if (
                    request.mode not in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL)
                    or not covering
                    or not request.candidates.accepted
                ):
                    continue
                needed = [devices[index] for index in request.spec.verdict.accepted]
                broken = [
                    one
                    for one in covering
                    if not relation_holds([each.values(one.attribute) for each in needed], distinct=one.distinct)
                ]
                if not _fits(problem, (*before, replace(demand, details=demand.details[:detail]))):
                    continue  # what comes before is what is missing
                up_to_request = replace(demand, details=(*demand.details[:detail], (request,)))
                if not broken and not _constraints_prevent(problem, before, up_to_request, request):
                    continue
                subrequest = request.spec.subrequest
                names = " and ".join(sorted({r.attribute for r in broken or covering}))
                yield (
                    demand.claim.claim,
                    f"request {subrequest.name}: {subrequest.path}: cannot add all devices because a "
                    f"claim constraint would not be satisfied ({names}); "
                    "narrow the request with a selector, or drop the constraint",
                )


def _constraints_prevent(
    problem: ResourceClaimProblem, before: Sequence[Demand], up_to_request: Demand, request: Request
) -> bool:
    """Whether requests would fit if no constraint covered this one, and do not with them.

    The other requests stay under their constraints: these decide which devices are left for this one.
    """
    relations = tuple(replace(r, labels=r.labels - {request.label}) for r in up_to_request.relations)
    free = replace(up_to_request, relations=tuple(r for r in relations if r.labels))
    return not _fits(problem, (*before, up_to_request)) and _fits(problem, (*before, free))


def _fits(problem: ResourceClaimProblem, demands: Sequence[Demand]) -> bool:
    waiting = [demand for demand in demands if demand.details]
    return not waiting or place_call(problem, replace(problem.units[0], demands=tuple(waiting))) is not None


# -- what is read ------------------------------------------------------------------------------------------------------


def holder_key(number: int) -> tuple[str, str]:
    """The claim of an allocation, by the position of its holder; keys are in the order of these."""
    return "", f"{number:09}"


def _as_manifests(given: object, what: str) -> tuple[Manifest, ...]:
    """What a caller gave as manifests. Raises AllocationError where it is something else."""
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise AllocationError(f"{what}: must be a list of objects, not {type_name(given)}")
    manifests = tuple(as_v1(one) for one in given)
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
