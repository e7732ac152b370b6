"""Relaxations of ResourceClaims: what can be dropped from a unit to make it fit (S19).

A relaxation finds what it changes by name, not by identity: the problem may have been decoded anew before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.reasons import Reason
from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates, RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import DeviceConstraint, ResourceDeviceClass, SubRequest
from devalloc_solver.dialects.resource_k8s.fields import AllocationError, Amount
from devalloc_solver.dialects.resource_k8s.published_devices import DeviceId, PublishedDevice, counter_name, is_counter
from devalloc_solver.dialects.resource_k8s.slices import DeviceTaint
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.funnel import count_devices
from devalloc_solver.explain.relaxations import (
    Relaxation,
    RelaxationSet,
    RelaxationTier,
    UnitRelaxations,
    drop_unneeded,
    most_that_fits,
    unmatched_requests,
)
from devalloc_solver.explain.supply_relaxations import SharedLimits, quantity_format, relax_shared_limits
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import AllocationMode, Demand, Request
from devalloc_solver.problem.snapshot import Pool, Resource, Snapshot

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
        if short is Reason.NO_MATCHING_DEVICES:
            return RelaxationSet(short, others)
        return RelaxationSet(short, others, pins, self.constraints(), shared)

    def _rules_and_requests(
        self,
        short: Reason,
        tried: Sequence[Relaxation],
        members: Iterable[Relaxation],
        source: SourceRelaxations | None,
    ) -> Iterator[RelaxationTier]:
        is_unmatched, is_call = short is Reason.NO_MATCHING_DEVICES, source is not None
        capacities, counts, selectors, classes = self.capacities(), self.counts(), self.selectors(), self.classes()
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
        other: list[RelaxationTier] = [(short, selectors), (Reason.NODE_UNAVAILABLE, reaches), (short, classes)]
        if not is_call:
            other.insert(0, smaller)
        # To ask for less helps where there is something to have.
        yield from (*other, *fewer) if is_unmatched else (*fewer, *other)
        rules = [*tried, *taints, *pools, *capacities, *gates, *counts, *selectors]
        yield short, rules
        yield Reason.NODE_UNAVAILABLE, [*reaches, *rules] if reaches else []
        yield short, [*rules, *reaches, *classes]
        yield short, [*rules, *reaches, *classes, *requests]

    # -- all of one sort -----------------------------------------------------------------------------------------------

    def constraints(self) -> list[Relaxation]:
        """Constraints, one by one; the relations of a demand are in the order of its claim's constraints."""
        return [
            self._constraint(demand, index, constraint)
            for demand in self.unit.demands
            for index, constraint in enumerate(demand.claim.claim.constraints)
        ]

    def counts(self) -> list[Relaxation]:
        """Counts above one, narrowed to the most that fits."""
        return [
            self._count(demand, request)
            for demand in self.unit.demands
            for request in demand.requests
            if request.mode in (AllocationMode.WHOLE, AllocationMode.ADMIN_COUNT) and request.min_count > 1
        ]

    def claim_name(self, demand: Demand) -> Key:
        """Claims of one call may share a name (D1)."""
        claim = demand.claim.claim
        return claim.namespace or "default", claim.name

    def claim_entry(self, demand: Demand) -> dict[str, Any]:
        return {"claim": "/".join(self.claim_name(demand))}

    def request_place(self, demand: Demand, request: Request) -> tuple[str, str]:
        return demand.claim.claim.requests[request.detail].name, f"spec.devices.requests[{request.detail}]"

    def selectors(self) -> list[Relaxation]:
        """The selectors of a request."""
        return [self._selectors(d, request) for d, request in self.each_request() if request.spec.subrequest.selectors]

    def classes(self) -> list[Relaxation]:
        """The selectors of a class, for all requests that name it."""
        names = dict.fromkeys(request.spec.subrequest.class_name for _, request in self.each_request())
        return [self._class(name) for name in names]

    def capacities(self) -> list[Relaxation]:
        """Requested capacities, one by one."""
        return [
            self._capacity(d, request, name)
            for d, request in self.each_request()
            for name in request.spec.subrequest.capacity
        ]

    def taints(self) -> list[Relaxation]:
        """All taints at once, narrowed to those of the devices that are needed."""
        return [
            Relaxation({"kind": "taint"}, "without the taints", _changing_devices(_without_taints), 0, _needed_taints)
        ]

    # -- one edit each -------------------------------------------------------------------------------------------------

    def _constraint(self, demand: Demand, index: int, constraint: DeviceConstraint) -> Relaxation:
        relation = demand.relations[index]
        name = "distinctAttribute" if constraint.distinct else "matchAttribute"
        path = f"spec.devices.constraints[{index}]"
        entry = {"kind": "constraint", **self.claim_entry(demand), "path": path, name: constraint.attribute}
        words = f"without {path} ({name} {constraint.attribute}){self.of_claim(demand)}"

        def change(other: Demand) -> Demand:
            if other.key != demand.key or relation not in other.relations:
                return other
            number = other.relations.index(relation)
            return replace(other, relations=(*other.relations[:number], *other.relations[number + 1 :]), shape=None)

        return Relaxation(entry, words, lambda question: question.with_demands(change))

    def _count(self, demand: Demand, request: Request) -> Relaxation:
        path = f"{request.spec.subrequest.path}.count"
        entry = {
            "kind": "amount",
            **self.claim_entry(demand),
            "path": path,
            "requested": str(request.spec.subrequest.count),
        }

        def asking(count: int) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
            def changed(other: Demand, now: Request) -> Request:
                same = other.key == demand.key and now.label == request.label
                return replace(now, min_count=count, max_count=count) if same else now

            return lambda question: question.with_requests(changed)

        def narrow(question: FeasibilityQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
            fits = most_that_fits(request.min_count, lambda count: finder.works(asking(count)(question)))
            words = (
                f"with at most {count_devices(fits)} for request {request.spec.subrequest.name}{self.of_claim(demand)}"
            )
            return [Relaxation({**entry, "most": str(fits)}, words, asking(fits))]

        return Relaxation(entry, f"with {path} of 1", asking(1), narrow=narrow)

    def _selectors(self, demand: Demand, request: Request) -> Relaxation:
        path = f"{request.spec.subrequest.path}.selectors"
        entry = {
            "kind": "selector",
            **self.claim_entry(demand),
            "path": path,
            "expressions": [*request.spec.subrequest.selectors],
        }
        change = _asking(_same_request(demand, request), lambda subrequest: replace(subrequest, selectors=()))
        return Relaxation(entry, f"without {path}{self.of_claim(demand)}", change)

    def _class(self, name: str) -> Relaxation:
        def change(subrequest: SubRequest) -> SubRequest:
            return replace(subrequest, class_name=ANY_DEVICE.name) if subrequest.class_name == name else subrequest

        words = f"without the selectors of class {name}"
        return Relaxation({"kind": "class", "deviceClassName": name}, words, _asking(lambda *_: True, change))

    def _capacity(self, demand: Demand, request: Request, name: str) -> Relaxation:
        amount = (
            _written_amount(demand, request, name) if self.quotes_claims else request.spec.subrequest.capacity[name]
        )
        path = f"{request.spec.subrequest.path}.capacity.requests[{name}]"
        entry = {
            "kind": "capacity",
            **self.claim_entry(demand),
            "path": path,
            "capacity": name,
            "requested": str(amount),
        }

        def change(subrequest: SubRequest) -> SubRequest:
            return replace(subrequest, capacity={other: a for other, a in subrequest.capacity.items() if other != name})

        words = f"without {path}{self.of_claim(demand)}"
        return Relaxation(entry, words, _asking(_same_request(demand, request), change))


def _same_request(demand: Demand, request: Request) -> Callable[[Demand, Request], bool]:
    return lambda other, now: other.key == demand.key and now.label == request.label


def _asking(
    about: Callable[[Demand, Request], bool], change: Callable[[SubRequest], SubRequest]
) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
    """With what some requests ask for changed, and judged again."""

    def changed(demand: Demand, request: Request) -> Request:
        if not about(demand, request):
            return request
        return _judged_by(_wider_judge(request.spec.judge), demand, request, change(request.spec.subrequest))

    return lambda question: question.with_requests(changed)


def _wider_judge(judge: RequestJudge) -> RequestJudge:
    """The same judge, who knows ANY_DEVICE."""
    return judge if ANY_DEVICE.name in judge.classes else judge.with_class(ANY_DEVICE)


def _judged_by(judge: RequestJudge, demand: Demand, request: Request, subrequest: SubRequest) -> Request:
    try:
        choice = judge.choose(demand.claim.claim, subrequest)
    except AllocationError:  # what is asked for now cannot be judged: no remedy
        return request
    return _with_candidates(request, choice)


def _with_candidates(request: Request, choice: RequestCandidates) -> Request:
    """The request with other devices to choose from."""
    takes = {} if choice.subrequest.admin else choice.verdict.takes
    portions = {i: tuple(sorted((n, a.nano) for n, a in take.items())) for i, take in takes.items()}
    return replace(request, spec=choice, candidates=choice.candidates(), portions=portions)


def _written_amount(demand: Demand, request: Request, name: str) -> object:
    written = demand.claim.claim.spec["devices"]["requests"][request.detail]
    written_subrequest = (
        written["exactly"] if request.alternative is None else written["firstAvailable"][request.alternative]
    )
    return written_subrequest["capacity"]["requests"][name]


# -- taints ------------------------------------------------------------------------------------------------------------


def _changing_devices(
    change: Callable[[PublishedDevice], PublishedDevice],
) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
    """With all requests judged for devices that are changed. The judges that it made are remembered."""
    judges: dict[int, tuple[RequestJudge, RequestJudge]] = {}
    """by identity"""

    def changed(demand: Demand, request: Request) -> Request:
        judge: RequestJudge = request.spec.judge
        if id(judge) not in judges:
            offers = [change(offer) for offer in judge.offers]
            judges[id(judge)] = judge, replace(judge, offers=offers, _verdicts={}, _wider=None)
        return _judged_by(judges[id(judge)][1], demand, request, request.spec.subrequest)

    return lambda question: question.with_requests(changed)


def _without_taints(offer: PublishedDevice) -> PublishedDevice:
    return replace(offer, device=replace(offer.device, taints=())) if offer.device.taints else offer


def _needed_taints(question: FeasibilityQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
    placements = finder.probe(_changing_devices(_without_taints)(question)) or ()
    taken = {entry.device.index for placement in placements for entry in placement.entries}
    requests = (request for demand in question.unit.demands for request in demand.requests)
    offers: Sequence[PublishedDevice] = next((request.spec.judge.offers for request in requests), ())
    edits = [_taint(offer.id, t) for offer in offers if offer.index in taken for t in offer.device.taints]
    return drop_unneeded(question, edits, finder)


def _taint(where: DeviceId, taint: DeviceTaint) -> Relaxation:
    fields = {"key": taint.key, "value": taint.value, "effect": taint.effect}
    entry = {"kind": "taint", **dict(zip(("driver", "pool", "device"), where, strict=True))}
    entry |= {name: value for name, value in fields.items() if value}

    def change(offer: PublishedDevice) -> PublishedDevice:
        if offer.id != where:
            return offer
        return replace(offer, device=replace(offer.device, taints=tuple(t for t in offer.device.taints if t != taint)))

    words = f"without the taint {taint.key}={taint.value}:{taint.effect} of {'/'.join(where)}"
    return Relaxation(entry, words, _changing_devices(change))


# -- counters ----------------------------------------------------------------------------------------------------------


def _with_counter_raised(raised: Pool, counter: str, nano: int) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
    """With one counter raised, wherever it is seen and has less."""

    def more(name: str, resource: Resource) -> Resource:
        if counter_name(name) != counter or resource.nano >= nano:
            return resource
        return replace(resource, blocks=-(-nano // resource.block))

    def change(pool: Pool) -> Pool:
        if (pool.name, pool.node) != (raised.name, raised.node):
            return pool
        return replace(pool, resources={name: more(name, current) for name, current in pool.resources.items()})

    return lambda question: question.with_pools(change)


def _raise_counters(snapshot: Snapshot, short: Mapping[tuple[int, str], int]) -> Iterator[Relaxation]:
    """One edit for each counter of which too much is drawn; nodes may see it differently."""
    worst: dict[tuple[int, str], tuple[int, int]] = {}
    for (index, name), missing in short.items():
        wanted = snapshot.pools[index].resources[name].nano + missing
        key = index, counter_name(name)
        worst[key] = max(worst.get(key, (0, 0)), (wanted, missing))
    for (index, name), (wanted, missing) in worst.items():
        pool = snapshot.pools[index]
        title = pool.driver, pool.name.removeprefix(f"{pool.driver}/")
        entry, words = _counter_entry(title, name, wanted, missing)
        yield Relaxation(entry, words, _with_counter_raised(pool, name, wanted), 1)


def relax_counters() -> Relaxation:
    """All counters raised at once, narrowed to those that fall short, and by how much."""
    return relax_shared_limits(_COUNTERS)


_COUNTERS = SharedLimits({"kind": "counter"}, "with more of the counters", is_counter, _raise_counters, nodes=0)


def _counter_entry(pool: tuple[str, str], name: str, wanted: int, missing: int) -> tuple[dict[str, Any], str]:
    """The blocker for a counter that falls short, and the words. ``name`` is "set/counter"; amounts are in nano."""
    counter_set, _, counter = name.rpartition("/")
    shown = [str(Amount(nano, quantity_format(nano))) for nano in (wanted, missing)]
    entry = {"kind": "counter", "driver": pool[0], "pool": pool[1], "counterSet": counter_set, "counter": counter}
    words = f"with {shown[1]} more of counter {name} in pool {'/'.join(pool)}"
    return {**entry, "needed": shown[0], "missing": shown[1]}, words
