"""Relaxations of ResourceClaims: what can be dropped from a unit to make it fit (S19).

A relaxation finds what it changes by name, not by identity: the problem may have been decoded anew before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api.reasons import Reason
from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import DeviceConstraint, ResourceDeviceClass, SubRequest
from devalloc_solver.dialects.resource_k8s.demands import make_request
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, Amount
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DeviceId,
    counter_name,
    is_counter,
    published_device,
)
from devalloc_solver.dialects.resource_k8s.slices import DeviceTaint
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.joint_counts import quantity_format
from devalloc_solver.explain.relaxations import (
    Relaxation,
    RelaxationSet,
    RelaxationTier,
    RelaxedQuestion,
    UnitRelaxations,
    reduce_amount,
    unmatched_requests,
)
from devalloc_solver.explain.supply_relaxations import (
    SharedLimits,
    fewest_on_nodes,
    relax_shared_limits,
)
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import Constraint, Demand, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Device, Pool

ANY_DEVICE = ResourceDeviceClass("", (), ())
"""A class of all devices; no object can have its name."""


@dataclass(frozen=True, slots=True)
class SourceRelaxations:
    """Edits of the input of a call that is about one node, from which the problem is decoded anew."""

    has_taints: bool = False
    pools: Sequence[Relaxation] = ()
    gates: Sequence[Relaxation] = ()
    reaches: Sequence[Relaxation] = ()


@dataclass(frozen=True, slots=True)
class ResourceClaimRelaxations(UnitRelaxations):
    """What a unit of ResourceClaims offers to be taken away."""

    quotes_claims: bool = False
    """amounts as the claims have them, not in normal form: no equal claim gets this answer"""

    # -- the order -----------------------------------------------------------------------------------------------------

    def in_order(
        self, shared: Sequence[Relaxation], members: Iterable[Relaxation], source: SourceRelaxations | None = None
    ) -> RelaxationSet:
        """All of them, for a unit that does not fit an empty fleet.

        ``shared``: the counters, if there are any; ``source``: of a call, whose claims are bound to its node.
        """
        pins = self.pins() if source is None else []
        tried = [*pins, *self.constraints(), *shared]
        short = Reason.NO_MATCHING_DEVICES if unmatched_requests(self.unit) else Reason.NOT_ENOUGH_DEVICES
        others = self._rules_and_requests(short, tried, members, source)
        return RelaxationSet(short, others, pins, self.constraints(), shared)

    def _rules_and_requests(
        self,
        short: Reason,
        tried: Sequence[Relaxation],
        members: Iterable[Relaxation],
        source: SourceRelaxations | None,
    ) -> Iterator[RelaxationTier]:
        """Yield what is tried after the special tiers, in this order: members of a group, counts, requests, capacities,
        rules for nodes, selectors, classes (counts and requests last if nothing matches), then all of these; of a call
        for one node also what its slices do not offer to it (NodeUnavailable)."""
        is_unmatched, is_call = short is Reason.NO_MATCHING_DEVICES, source is not None
        # Where taints keep a request from all devices that it chooses, no rule by which it chooses is the cause.
        rule_bound = [
            (demand, request)
            for demand, request in self.each_request()
            if is_call or request.candidates.accepted or not request.spec.verdict.is_tainted
        ]
        capacities, counts = self.capacities(rule_bound), self.counts()
        selectors, classes = self.selectors(rule_bound), self.classes(rule_bound)
        requests = self.requests()
        several = requests if len(requests) > 1 else []
        if source is None:
            requests, source = several, SourceRelaxations()
        taints = self.taints() if source.has_taints else []
        pools, gates, reaches = source.pools, source.gates, source.reaches
        yield short, taints
        yield short, pools
        smaller: RelaxationTier = (short if is_unmatched else Reason.INSUFFICIENT_CAPACITY, capacities)
        if is_call:
            yield smaller
        yield short, gates
        fewer: list[RelaxationTier] = [
            (Reason.GROUP_UNSATISFIABLE, [*members]),
            (short, counts),
            (short, several),
        ]
        other: list[RelaxationTier] = [
            *self.node_rules_by_reason(),
            (short, selectors),
            (Reason.NODE_UNAVAILABLE, reaches),
            (short, classes),
        ]
        if not is_call:
            other.insert(0, smaller)
        # To ask for less helps where there is something to have.
        yield from (*other, *fewer) if is_unmatched else (*fewer, *other)
        rules = [*tried, *taints, *pools, *capacities, *gates, *counts, *self.node_rules(), *selectors]
        yield short, rules
        yield Reason.NODE_UNAVAILABLE, [*reaches, *rules] if reaches else []
        yield short, [*rules, *reaches, *classes]
        yield short, [*rules, *reaches, *classes, *requests]

    # -- rules of a claim ----------------------------------------------------------------------------------------------

    def constraints(self) -> list[Relaxation]:
        """Constraints that are left; all relations of a demand are in the order of the constraints of its claim."""
        relations = {demand.key: demand.relations for demand in self.group.demands}
        return [
            self._constraint(demand, index, constraint, relation)
            for demand in self.unit.demands
            for index, (constraint, relation) in enumerate(
                zip(demand.claim.claim.constraints, relations[demand.key], strict=True)
            )
            if relation in demand.relations
        ]

    def _constraint(self, demand: Demand, index: int, constraint: DeviceConstraint, relation: Constraint) -> Relaxation:
        name = "distinctAttribute" if constraint.distinct else "matchAttribute"
        path = f"spec.devices.constraints[{index}]"

        def change(other: Demand) -> Demand:
            if relation not in other.relations:
                return other
            number = other.relations.index(relation)
            return replace(other, relations=(*other.relations[:number], *other.relations[number + 1 :]), shape=None)

        entry = {"kind": "constraint", "path": path, name: constraint.attribute}
        return self.edit_demand(demand, entry, change)

    def counts(self) -> list[Relaxation]:
        """Counts above one, narrowed to the most that fits."""
        return [
            reduce_amount(1, request.min_count, partial(self._count, demand, request))
            for demand, request in self.each_request()
            if request.mode.is_counted and request.min_count > 1
        ]

    def _count(self, demand: Demand, request: Request, most: int) -> Relaxation:
        subrequest = request.spec.subrequest
        entry = {"kind": "amount", "path": f"{subrequest.path}.count", "requested": str(subrequest.count)}
        return self.edit_request(demand, request, {**entry, "most": str(most)}, partial(replace, count=most))

    def selectors(self, requests: Iterable[tuple[Demand, Request]]) -> list[Relaxation]:
        """The selectors of a request."""
        edits = []
        for demand, request in requests:
            if selectors := request.spec.subrequest.selectors:
                path = f"{request.spec.subrequest.path}.selectors"
                entry = {"kind": "selector", "path": path, "expressions": [*selectors]}
                edits.append(self.edit_request(demand, request, entry, partial(replace, selectors=())))
        return edits

    def classes(self, requests: Iterable[tuple[Demand, Request]]) -> list[Relaxation]:
        """The selectors of a class, for all requests that name it."""
        names = dict.fromkeys(request.spec.subrequest.class_name for _, request in requests)
        return [self._class(name) for name in names]

    def _class(self, name: str) -> Relaxation:
        def changed(demand: Demand, request: Request) -> Request:
            if request.spec.subrequest.class_name != name:
                return request
            return self.judge_changed(demand, request, lambda other: replace(other, class_name=ANY_DEVICE.name))

        return Relaxation({"kind": "class", "deviceClassName": name}, lambda question: question.with_requests(changed))

    def capacities(self, requests: Iterable[tuple[Demand, Request]]) -> list[Relaxation]:
        """Requested capacities, one by one."""
        edits = []
        for demand, request in requests:
            for name, normal in request.spec.subrequest.capacity.items():
                amount = _written_amount(demand, request, name) if self.quotes_claims else normal
                path = f"{request.spec.subrequest.path}.capacity.requests[{name}]"
                entry = {"kind": "capacity", "path": path, "capacity": name, "requested": str(amount)}
                change = partial(_without_capacity, name=name)
                edits.append(self.edit_request(demand, request, entry, change))
        return edits

    def claim_name(self, demand: Demand) -> Key:
        """Claims of one call may share a name (D1)."""
        namespace, name = demand.claim.claim.key
        return namespace or "default", name

    def claim_entry(self, demand: Demand) -> dict[str, Any]:
        return {"claim": "/".join(self.claim_name(demand))}

    def request_place(self, demand: Demand, request: Request) -> tuple[str, str]:
        return demand.claim.claim.requests[request.detail].name, f"spec.devices.requests[{request.detail}]"

    def judge_changed(self, demand: Demand, request: Request, change: Callable[[SubRequest], SubRequest]) -> Request:
        judge: RequestJudge = request.spec.judge
        subrequest = change(request.spec.subrequest)
        judge = judge if subrequest.class_name in judge.classes else judge.with_class(ANY_DEVICE)
        return _judged_by(judge, demand, request, subrequest)

    # -- the supply ----------------------------------------------------------------------------------------------------

    def taints(self) -> list[Relaxation]:
        """All taints at once, narrowed to those of the devices that are needed."""
        without = _without_taints(lambda where, taint: True)

        def narrow(relaxed: RelaxedQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
            question = relaxed([])
            return fewest_on_nodes(question, finder, without(question), _taints_of, nodes=0)

        return [Relaxation({"kind": "taint"}, without, narrow=narrow)]


def _without_capacity(subrequest: SubRequest, name: str) -> SubRequest:
    return replace(subrequest, capacity={n: amount for n, amount in subrequest.capacity.items() if n != name})


def _judged_by(judge: RequestJudge, demand: Demand, request: Request, subrequest: SubRequest) -> Request:
    """The request with other devices to choose from."""
    try:
        return make_request(
            request.detail, request.alternative, judge.choose(demand.claim.claim, subrequest, demand.restrictions)
        )
    except AllocationError:  # what is asked for now cannot be judged: no remedy
        return request


def _written_amount(demand: Demand, request: Request, name: str) -> object:
    written = demand.claim.claim.spec["devices"]["requests"][request.detail]
    written_subrequest = (
        written["exactly"] if request.alternative is None else written["firstAvailable"][request.alternative]
    )
    return written_subrequest["capacity"]["requests"][name]


# -- taints ------------------------------------------------------------------------------------------------------------


def _without_taints(
    is_gone: Callable[[DeviceId, DeviceTaint], bool],
) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
    """With all requests judged for devices without some taints. The judges that it made are remembered."""
    judges: dict[int, tuple[RequestJudge, RequestJudge]] = {}
    """by identity"""

    def untainted(device: Device) -> Device:
        offer = published_device(device)
        taints = tuple(taint for taint in offer.device.taints if not is_gone(offer.id, taint))
        if len(taints) == len(offer.device.taints):
            return device
        return replace(device, source=replace(offer, device=replace(offer.device, taints=taints)))

    def changed(demand: Demand, request: Request) -> Request:
        judge: RequestJudge = request.spec.judge
        if id(judge) not in judges:
            devices = [*map(untainted, judge.devices)]
            judges[id(judge)] = judge, replace(judge, devices=devices, _verdicts={}, _wider=None)
        return _judged_by(judges[id(judge)][1], demand, request, request.spec.subrequest)

    return lambda question: question.with_requests(changed)


def _taints_of(question: FeasibilityQuestion, placements: Sequence[Placement]) -> list[Relaxation]:
    """Those of the devices that were placed."""
    taken = {entry.device.index for placement in placements for entry in placement.entries}
    requests = (request for demand in question.unit.demands for request in demand.requests)
    devices: Sequence[Device] = next((request.spec.judge.devices for request in requests), ())
    offers = (published_device(device) for device in devices if device.index in taken)
    return [_taint(offer.id, taint) for offer in offers for taint in offer.device.taints]


def _taint(where: DeviceId, taint: DeviceTaint) -> Relaxation:
    fields = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    entry = {"kind": "taint", **dict(zip(("driver", "pool", "device"), where, strict=True))}
    entry |= {name: value for name, value in fields.items() if value}
    return Relaxation(entry, _without_taints(lambda *one: one == (where, taint)))


# -- counters ----------------------------------------------------------------------------------------------------------


def relax_counters() -> Relaxation:
    """All counters raised at once, narrowed to those that fall short, and by how much."""
    return relax_shared_limits(_COUNTERS)


def _counter_entry(pool: Pool, name: str, wanted: int, missing: int) -> dict[str, Any]:
    """The blocker for a counter that falls short. ``name`` is "set/counter"; amounts are in nano."""
    counter_set, _, counter = name.rpartition("/")
    driver, pool_name = pool.driver, pool.name.removeprefix(f"{pool.driver}/")
    needed, shown = (str(Amount(nano, quantity_format(nano))) for nano in (wanted, missing))
    entry = {"kind": "counter", "driver": driver, "pool": pool_name, "counterSet": counter_set, "counter": counter}
    return {**entry, "needed": needed, "missing": shown}


_COUNTERS = SharedLimits({"kind": "counter"}, _counter_entry, is_counter, counter_name, nodes=0)
"""Nodes may see a counter differently, each as a resource of its own."""
