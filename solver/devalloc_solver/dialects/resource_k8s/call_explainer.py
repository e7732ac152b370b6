"""Why ``dra.allocate`` returned None: the explainer of one call, and the relaxations of its arguments.

These change what is read: pools, nodes, feature gates. Others change the problem that is read: ``relaxations``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Any, ClassVar, cast

from devalloc.api.findings import Cause, Fact, fact
from devalloc.api.quantity import type_name
from devalloc.api.reasons import Reason
from devalloc_solver.answer_types import ExplanationDict
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.deadline import ALLOCATE_SECONDS
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.call import Manifest, NodeCall, place_call
from devalloc_solver.dialects.resource_k8s.claims import ResourceClaim
from devalloc_solver.dialects.resource_k8s.decode import read_slice
from devalloc_solver.dialects.resource_k8s.explainer import ResourceClaimExplainer
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, FieldError
from devalloc_solver.dialects.resource_k8s.pools import PoolId, PoolStatus, PoolView
from devalloc_solver.dialects.resource_k8s.problem import ResourceClaimDialect
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DeviceId,
    DeviceUsage,
    add_allocation,
    published_device,
    read_usage,
    records_of_claim,
)
from devalloc_solver.dialects.resource_k8s.relaxations import (
    ResourceClaimRelaxations,
    SourceRelaxations,
    relax_counters,
)
from devalloc_solver.explain.explainer import Explanation
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.leaving import Leaving, LeavingSearch
from devalloc_solver.explain.relaxations import (
    MAX_TRIES,
    Relaxation,
    RelaxationSet,
    apply_relaxations,
    relaxation_sets,
)
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.problem.allocations import Holding, Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request

ManifestContent = dict[str, Any]
_REACH = ("nodeName", "nodeSelector", "perDeviceNodeSelection", "allNodes")
"""Fields that say which nodes reach a slice or a device."""


@gc_paused()
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
    if allocated is not None and not isinstance(allocated, Mapping):
        raise AllocationError(f"allocated: must be a map, not {type_name(allocated)}")
    call = ChangedCall.begin(node, claims, classes, slices, dict(allocated or {}), features, deadline)
    call = call.with_sorted_slices()
    try:
        problem = call.problem()
        fits = problem is None or place_call(problem, problem.units[0]) is not None
    except OutOfTime as error:
        raise AllocationError(str(error), exceeded=error.bound) from None
    call.allowance.begin_search()
    if problem is None:
        return {"reason": None, "message": None, "blockers": [], "claims": [], "pools": [], "ignored": []}
    (unit,), devices = problem.units, problem.dialect.devices
    explainer = CallExplainer(
        *(problem.snapshot, problem.allocations, (), call.allowance.until),
        source=call,
        dialect=problem.dialect,
    )
    first, *others = unit.demands
    namespace, name = first.claim.claim.key
    subject = ("", "") if others else (namespace or "default", name)
    refusal = {} if fits else explainer.as_data(explainer.find(unit, first.key), subject)
    funnels = [[explainer.funnels.make(request) for request in demand.requests] for demand in unit.demands]
    answer: dict[str, Any] = {
        "message": None,
        "blockers": [],
        **refusal,
        "reason": None if fits else str(refusal["reason"]),
        "claims": [
            dict(zip(("namespace", "name"), demand.claim.claim.key, strict=True))
            | {"requests": [*map(explainer.funnel_dict, of_claim)]}
            for demand, of_claim in zip(unit.demands, funnels, strict=True)
        ],
        "pools": [
            {"name": view.pool.title, "state": view.pool.state.value, "why": view.pool.why}
            for view in devices.seen.views
            if view.pool.why
        ],
        "ignored": [{"name": ignored.name, "why": ignored.message} for ignored in problem.problems],
    }
    return cast(ExplanationDict, answer)


@dataclass(frozen=True, slots=True)
class ChangedCall(NodeCall):
    """A call, and what is changed of it before it is read."""

    unread: tuple[Manifest, ...] = ()
    """slices that cannot be read, and stay as they are; the others are in order of pool and name"""
    complete: frozenset[PoolId] = frozenset()
    """pools whose slices are taken for all there are"""
    reached: frozenset[PoolId] = frozenset()
    """pools that the node is made to reach"""
    holders: tuple[DeviceUsage, ...] = ()
    """what each holder has; the claim of its allocation is ``holder_key`` of its number"""

    @property
    def node_name(self) -> str:
        return self.node if isinstance(self.node, str) else str(self.node["metadata"]["name"])

    @property
    def has_taints(self) -> bool:
        return any(device.get("taints") for one in self.slices for device in one["spec"].get("devices") or ())

    @property
    def has_counters(self) -> bool:
        return any(one["spec"].get("sharedCounters") for one in self.slices)

    def read_slices(self) -> Iterable[Manifest]:
        if self.complete or self.reached:
            yield from ({**one, "spec": self._changed_spec(dict(one["spec"]))} for one in self.slices)
        else:
            yield from self.slices
        yield from self.unread

    def question(self) -> FeasibilityQuestion:
        """Whether the waiting claims fit beside all holders. Raises as ``problem``."""
        problem = self.problem(self.holders)
        assert problem is not None
        return FeasibilityQuestion(problem.snapshot, problem.units[0], problem.allocations, source=self)

    def decode(self, question: FeasibilityQuestion) -> FeasibilityQuestion:
        try:
            decoded = self.question()
        except AllocationError:
            return replace(question, is_decoded=False)
        held = {allocation.owner for allocation in question.held}
        return replace(decoded, held=tuple(allocation for allocation in decoded.held if allocation.owner in held))

    def judge_beside_held(self, question: FeasibilityQuestion) -> FeasibilityQuestion:
        """Nothing that draws counters is to be had of a pool of which a counter is overdrawn."""
        usage, devices = Usage.of(question.snapshot, question.held), question.snapshot.devices
        overdrawn = {
            pool
            for pool, drawn in usage.drawn.items()
            for name, blocks in drawn.items()
            if blocks > question.snapshot.pools[pool].resources[name].blocks
        }

        def left(_: Demand, request: Request) -> Request:
            accepted = request.candidates.accepted
            there = (index for index in accepted if devices[index].pool in overdrawn and index not in usage.shared)
            barred = {index for index in there if published_device(devices[index]).device.consumes}  # be it nothing
            if not barred or request.mode.is_admin:
                return request
            is_all = request.mode is AllocationMode.EVERY
            rest = {} if is_all else {index: name for index, name in accepted.items() if index not in barred}
            return replace(request, candidates=replace(request.candidates, accepted=rest))

        return question.with_requests(left) if overdrawn else question

    def with_sorted_slices(self) -> ChangedCall:
        """Put its slices in an order that does not depend on theirs, and those apart that cannot be read."""
        readable: list[tuple[object, Manifest]] = []
        unread: list[Manifest] = []
        for content in self.slices:
            try:
                resource_slice = read_slice(content)
            except FieldError:
                unread.append(content)
                continue
            spec = resource_slice.spec
            place = spec.node_name or "", [device.name for device in spec.devices]
            readable.append(((*resource_slice.pool_id, spec.pool.generation, resource_slice.name, *place), content))
        slices = tuple(content for _, content in sorted(readable, key=itemgetter(0)))
        return replace(self, slices=slices, unread=tuple(unread))

    def _changed_spec(self, spec: ManifestContent) -> ManifestContent:
        """The spec of a slice with the changes made."""
        pool = _pool_of(spec)
        if pool in self.complete:
            spec = {**spec, "pool": {**spec["pool"], "resourceSliceCount": self._newest_slices(pool)}}
        if pool in self.reached:
            devices = [{k: v for k, v in d.items() if k not in _REACH} for d in spec.get("devices") or ()]
            spec = {key: value for key, value in spec.items() if key not in _REACH} | {"allNodes": True}
            spec |= {"devices": devices} if devices else {}
        return spec

    def _newest_slices(self, pool: PoolId) -> int:
        generations = [
            one["spec"]["pool"].get("generation") or 0 for one in self.slices if _pool_of(one["spec"]) == pool
        ]
        return generations.count(max(generations))


def _pool_of(spec: Mapping[str, Any]) -> PoolId:
    return spec["driver"], spec["pool"]["name"]


# -- what is decoded ---------------------------------------------------------------------------------------------------


def _source_edit(entry: Mapping[str, Any], name: str, value: object) -> Relaxation:
    """A value added to a set of what is changed."""

    def apply(question: FeasibilityQuestion) -> FeasibilityQuestion:
        source = question.source
        assert isinstance(source, ChangedCall)
        changes: dict[str, Any] = {name: getattr(source, name) | {value}}
        return replace(question, source=replace(source, **changes))

    return Relaxation(entry, apply, order=-1)


def complete_pools(views: Iterable[PoolView]) -> list[Relaxation]:
    """Pools that are incomplete: as if the slices there are were all."""
    return [
        _source_edit(
            {"kind": "pool", "driver": pool.driver, "pool": pool.name, "state": pool.state.value, "why": pool.why},
            "complete",
            pool.id,
        )
        for pool in (view.pool for view in views)
        if pool.state is PoolStatus.INCOMPLETE
    ]


def reach_pools(source: ChangedCall) -> list[Relaxation]:
    """Pools of other nodes: as if every node reached them."""
    node, pools = source.node_name, dict.fromkeys(_pool_of(one["spec"]) for one in source.slices)
    return [
        _source_edit(
            {"kind": "node", "node": node, "driver": pool[0], "pool": pool[1]},
            "reached",
            pool,
        )
        for pool in pools
    ]


def switch_on_features(source: ChangedCall) -> list[Relaxation]:
    """Features that are off, of those that are on by default."""
    names = sorted(gate.DEFAULT_GATES - source.features)
    return [_source_edit({"kind": "feature", "feature": n}, "features", n) for n in names]


# -- what is in use ----------------------------------------------------------------------------------------------------


def list_holders(
    claims: Iterable[ResourceClaim], allocated: Mapping[str, Sequence[Manifest]]
) -> list[tuple[Mapping[str, Any], DeviceUsage]]:
    """List who holds something, as JSON, and what: claims, and devices of which no claim is known to hold them."""
    listed: list[tuple[Mapping[str, Any], DeviceUsage]] = []
    named = ((claim.key[0] or "default", claim.key[1], claim) for claim in claims if claim.allocation is not None)
    for namespace, name, claim in sorted(named, key=lambda one: "/".join(one[:2])):
        entry = {"kind": "claim", "namespace": namespace, "name": name, "priority": 0}
        usage = DeviceUsage()
        with suppress(FieldError):  # all that names a device is added before
            add_allocation(usage, claim.allocation or {}, "status.allocation", records_of_claim(claim.annotations))
        listed.append((entry, usage))
    for where in sorted({_device_of(item) for part in allocated.values() for item in part or ()}):
        entry = {"kind": "device", **dict(zip(("driver", "pool", "device"), where, strict=True))}
        same = {part: [i for i in items or () if _device_of(i) == where] for part, items in allocated.items()}
        listed.append((entry, read_usage(same, ())))
    return listed


def _device_of(item: Mapping[str, Any]) -> DeviceId:
    return item["driver"], item["pool"], item["device"]


# -- the explainer -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class CallExplainer(ResourceClaimExplainer):
    """Explains the claims of one call, which all fit on its node or none does; only the time of the call bounds it."""

    names_users: ClassVar[bool] = False
    source: ChangedCall
    dialect: ResourceClaimDialect
    """of the problem that the call is"""
    holders: Sequence[Mapping[str, Any]] = field(init=False, default=())
    """as JSON; they own their holdings as ``holder_key`` of their number"""
    _call_question: FeasibilityQuestion | None = field(init=False, default=None)

    @property
    def call_question(self) -> FeasibilityQuestion:
        """Whether the claims fit beside all holders, each of which may be released."""
        if self._call_question is None:
            listed = list_holders(self.dialect.problem_input.claims, self.source.allocated)
            self.holders = [entry for entry, _ in listed]
            self.source = replace(self.source, holders=tuple(usage for _, usage in listed))
            self._call_question = self.source.question()
        return self._call_question

    def make_finder(self) -> FeasibilityChecker:
        return FeasibilityChecker(self.call_question.snapshot, self.reads, self.ends, is_bounded=False)

    def question(self, unit: PlacementUnit, held: tuple[Holding, ...]) -> FeasibilityQuestion:
        return self.call_question if held else replace(self.call_question, held=())

    def relaxations(self, question: FeasibilityQuestion, key: Key | None) -> RelaxationSet:
        pools, gates = complete_pools(self.dialect.devices.seen.views), switch_on_features(self.source)
        source = SourceRelaxations(self.source.has_taints, pools, gates, reach_pools(self.source))
        relaxations = ResourceClaimRelaxations(question.unit, question.unit, quotes_claims=True)
        return relaxations.in_order(
            self.shared_limits(), self._members_to_drop(question, relaxations.members(None)[::-1]), source
        )

    def _members_to_drop(self, question: FeasibilityQuestion, members: Sequence[Relaxation]) -> Iterator[Relaxation]:
        """The fewest claims without which the others fit; none when no part of them does."""
        for some in islice(relaxation_sets(members), MAX_TRIES):
            if len(some) < len(members) and self.finder.works(apply_relaxations(question, some)):
                yield from some
                return

    def shared_limits(self) -> Sequence[Relaxation]:
        return [relax_counters()] if self.source.has_counters else []

    def counted_reason(self, unit: PlacementUnit) -> Reason:
        """Leave the reason open: of a call for one node nothing is counted."""
        return Reason.SEARCH_LIMIT

    def blocking(self, question: FeasibilityQuestion) -> Leaving:
        """Found as in a cluster; without its bounds if these rule out too much."""
        checker = FeasibilityChecker(question.snapshot, self.reads, self.ends, is_bounded=False)
        search = LeavingSearch(question.snapshot, question.held)
        blocking = search.find(question, checker)
        return blocking if blocking.owners else search.find_uncounted(question, self.finder)

    def request_shortage(self, unit: PlacementUnit, demand: Demand, request: Request, *, is_empty: bool) -> Fact | None:
        return ResourceClaimExplainer.request_shortage(self, unit, demand, request, is_empty=False)

    def disagreement(self, unit: PlacementUnit) -> Fact:
        if not any(allocation.items for allocation in self.in_use):
            return ResourceClaimExplainer.disagreement(self, unit)
        names = dict.fromkeys(relation.attribute for demand in unit.demands for relation in demand.relations)
        return fact(Cause.CONSTRAINTS, attributes=(*names,), free=True)

    def holder(self, claim: Key) -> Mapping[str, Any]:
        return self.holders[int(claim[1])]

    def blockers(self, finding: Explanation) -> list[dict[str, Any]]:
        entries = (edit.entry for edit in finding.edits)
        return [*map(dict, entries), *(dict(self.holders[int(number)]) for _, number in finding.claims)]
