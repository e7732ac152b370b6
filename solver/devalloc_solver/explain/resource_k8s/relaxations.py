"""Relaxations of a ResourceClaim: what can be dropped from a unit to make it fit (S19).

The entries have the kinds that ``dra.explain`` reports. There they come from changed manifests, here from the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc_solver.dialects.resource_k8s.candidates import RequestCandidates, RequestJudge
from devalloc_solver.dialects.resource_k8s.duplicate_devices import counter_name, is_counter
from devalloc_solver.dialects.resource_k8s.errors import AllocationError
from devalloc_solver.dialects.resource_k8s.objects import DeviceConstraint, ResourceDeviceClass, SubRequest
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.minimal_overcommit import minimal_overcommit
from devalloc_solver.explain.relaxations import Relaxation
from devalloc_solver.explain.resource_k8s.call_relaxations import counter_entry
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Pool, Resource, Snapshot

ANY_DEVICE = ResourceDeviceClass("", (), ())
"""A class of all devices; no object can have its name."""


@dataclass(frozen=True, slots=True)
class ResourceClaimRelaxations:
    """Makes the edits of one unit."""

    unit: PlacementUnit
    judge: RequestJudge
    """judges what is asked for otherwise; it knows the class ANY"""

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
            if request.mode in (AllocationMode.WHOLE, AllocationMode.ADMIN_COUNT) and request.least > 1
        ]

    def requests(self) -> list[Relaxation]:
        """Whole requests."""
        return [
            self._request(demand, requests[0].detail)
            for demand in self.unit.demands
            for requests in demand.details
            if sum(len(demand.details) for demand in self.unit.demands) > 1
        ]

    def members(self, key: Key) -> list[Relaxation]:
        """The other claims of a group, as the claim ``key`` sees it."""
        return [self._member(demand) for demand in reversed(self.unit.demands) if demand.key != key]

    def pins(self) -> list[Relaxation]:
        """The node that the unit is bound to."""
        if self.unit.pin is None:
            return []
        entry = {"kind": "node", "node": self.unit.pin}
        words = f"if it were not bound to node {self.unit.pin}"
        return [Relaxation(entry, words, lambda question: question.pinned(None))]

    def selectors(self) -> list[Relaxation]:
        """The selectors of a request."""
        return [self._selectors(d, request) for d, request in self._requests() if request.spec.ask.selectors]

    def classes(self) -> list[Relaxation]:
        """The selectors of a class, for all requests that name it."""
        names = dict.fromkeys(request.spec.ask.class_name for _, request in self._requests())
        return [self._class(name) for name in names]

    def capacities(self) -> list[Relaxation]:
        """Requested capacities, one by one."""
        return [
            self._capacity(d, request, name) for d, request in self._requests() for name in request.spec.ask.capacity
        ]

    def _requests(self) -> Iterator[tuple[Demand, Request]]:
        return ((demand, request) for demand in self.unit.demands for request in demand.requests)

    def counters(self, question: FeasibilityQuestion) -> list[Relaxation]:
        """All counters raised at once, narrowed to those that fall short, and by how much."""
        if not any(is_counter(name) for pool in question.snapshot.pools for name in pool.resources):
            return []
        last: list[tuple[Snapshot, Snapshot]] = []

        def apply(changed: FeasibilityQuestion) -> FeasibilityQuestion:
            if not (last and last[0][0] is changed.snapshot):
                last[:] = [(changed.snapshot, _without_counters(changed).snapshot)]
            return replace(changed, snapshot=last[0][1])

        return [Relaxation({"kind": "counter"}, "with more of the counters", apply, 1, _short_counters)]

    def draws_counters(self, question: FeasibilityQuestion) -> bool:
        """Whether any device that the unit may take draws one."""
        devices = question.snapshot.devices
        requests = [request for demand in question.unit.demands for request in demand.requests]
        accepted = {id(request.candidates.accepted): request.candidates.accepted for request in requests}.values()
        return any(is_counter(name) for some in accepted for i in some for name, _ in devices[i].draws)

    # -- one edit each -------------------------------------------------------------------------------------------------

    def _constraint(self, demand: Demand, index: int, constraint: DeviceConstraint) -> Relaxation:
        gone = demand.relations[index]
        name = "distinctAttribute" if constraint.distinct else "matchAttribute"
        path = f"spec.devices.constraints[{index}]"
        entry = {"kind": "constraint", **_claim_entry(demand), "path": path, name: constraint.attribute}
        words = f"without {path} ({name} {constraint.attribute}){self._of(demand)}"

        def change(other: Demand) -> Demand:
            if other.key != demand.key:
                return other
            return replace(other, relations=tuple(r for r in other.relations if r is not gone), shape=None)

        return Relaxation(entry, words, lambda question: question.with_demands(change))

    def _count(self, demand: Demand, request: Request) -> Relaxation:
        path = f"{request.spec.ask.path}.count"
        entry = {"kind": "amount", **_claim_entry(demand), "path": path, "requested": str(request.spec.ask.count)}

        def asking(count: int) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
            def changed(other: Demand, now: Request) -> Request:
                same = other.key == demand.key and now.label == request.label
                return replace(now, least=count, most=count) if same else now

            return lambda question: question.with_requests(changed)

        def narrow(question: FeasibilityQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
            fits, fails = 1, request.least
            while fails - fits > 1:
                middle = (fits + fails) // 2
                fits, fails = (middle, fails) if finder.works(asking(middle)(question)) else (fits, middle)
            noun = "device" if fits == 1 else "devices"
            words = f"with at most {fits} {noun} for request {request.spec.ask.name}{self._of(demand)}"
            return [Relaxation({**entry, "most": str(fits)}, words, asking(fits))]

        return Relaxation(entry, f"with {path} of 1", asking(1), narrow=narrow)

    def _selectors(self, demand: Demand, request: Request) -> Relaxation:
        path = f"{request.spec.ask.path}.selectors"
        entry = {"kind": "selector", **_claim_entry(demand), "path": path, "expressions": [*request.spec.ask.selectors]}
        change = self._asking(_same_request(demand, request), lambda ask: replace(ask, selectors=()))
        return Relaxation(entry, f"without {path}{self._of(demand)}", change)

    def _class(self, name: str) -> Relaxation:
        def change(ask: SubRequest) -> SubRequest:
            return replace(ask, class_name=ANY_DEVICE.name) if ask.class_name == name else ask

        words = f"without the selectors of class {name}"
        return Relaxation({"kind": "class", "deviceClassName": name}, words, self._asking(lambda *_: True, change))

    def _capacity(self, demand: Demand, request: Request, name: str) -> Relaxation:
        amount = str(request.spec.ask.capacity[name])
        path = f"{request.spec.ask.path}.capacity.requests[{name}]"
        entry = {"kind": "capacity", **_claim_entry(demand), "path": path, "capacity": name, "requested": amount}

        def change(ask: SubRequest) -> SubRequest:
            return replace(ask, capacity={other: a for other, a in ask.capacity.items() if other != name})

        return Relaxation(
            entry, f"without {path}{self._of(demand)}", self._asking(_same_request(demand, request), change)
        )

    def _asking(
        self, about: Callable[[Demand, Request], bool], change: Callable[[SubRequest], SubRequest]
    ) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
        """With what some requests ask for changed, and judged again."""

        def changed(demand: Demand, request: Request) -> Request:
            if not about(demand, request):
                return request
            try:
                choice = self.judge.choose(demand.claim.claim, change(request.spec.ask))
            except AllocationError:  # what is asked for now cannot be judged: no remedy
                return request
            return with_candidates(request, choice)

        return lambda question: question.with_requests(changed)

    def _request(self, demand: Demand, detail: int) -> Relaxation:
        name = demand.claim.claim.requests[detail].name
        entry = {"kind": "request", **_claim_entry(demand), "request": name, "path": f"spec.devices.requests[{detail}]"}

        def change(other: Demand, request: Request) -> Request | None:
            return None if other.key == demand.key and request.detail == detail else request

        return Relaxation(entry, f"without request {name}{self._of(demand)}", lambda q: q.with_requests(change))

    def _member(self, demand: Demand) -> Relaxation:
        namespace, name = demand.key
        entry = {"kind": "member", "namespace": namespace, "name": name}
        words = f"without {namespace}/{name}"
        return Relaxation(entry, words, lambda question: question.without_member(demand.key))

    def _of(self, demand: Demand) -> str:
        return f" of {'/'.join(demand.key)}" if len(self.unit.demands) > 1 else ""


def _same_request(demand: Demand, request: Request) -> Callable[[Demand, Request], bool]:
    return lambda other, now: other.key == demand.key and now.label == request.label


def with_candidates(request: Request, choice: RequestCandidates) -> Request:
    """The request with other devices to choose from."""
    takes = {} if choice.ask.admin else choice.verdict.takes
    portions = {i: tuple(sorted((n, a.nano) for n, a in take.items())) for i, take in takes.items()}
    return replace(request, spec=choice, candidates=choice.candidates(), portions=portions)


def _claim_entry(demand: Demand) -> dict[str, Any]:
    return {"claim": "/".join(demand.key)}


# -- counters ----------------------------------------------------------------------------------------------------------


def _without_counters(question: FeasibilityQuestion) -> FeasibilityQuestion:
    """With devices that draw on no counter: to raise all counters would come to the same, and take longer to solve."""

    def change(pool: Pool) -> Pool:
        if not any(is_counter(name) for name in pool.resources):
            return pool
        free = (replace(d, draws=tuple(draw for draw in d.draws if not is_counter(draw[0]))) for d in pool.devices)
        return replace(pool, devices=tuple(free))

    return question.with_pools(change)


def _with_counter_raised(index: int, counter: str, nano: int) -> Callable[[FeasibilityQuestion], FeasibilityQuestion]:
    """With one counter raised, wherever it is seen and has less."""

    def more(name: str, resource: Resource) -> Resource:
        if counter_name(name) != counter or resource.nano >= nano:
            return resource
        return replace(resource, blocks=-(-nano // resource.block))

    def change(pool: Pool) -> Pool:
        if pool.index != index:
            return pool
        return replace(pool, resources={name: more(name, current) for name, current in pool.resources.items()})

    return lambda question: question.with_pools(change)


def _short_counters(question: FeasibilityQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
    """The counters that an answer without them draws too much of, where as much as fits keeps to them."""
    free = _without_counters(question)
    placements = finder.probe(free)
    if not placements:
        return []
    edits = [*_counter_relaxations(question, _drawn_counters(question, placements))]
    if len(edits) > 1:
        spared = [
            *_counter_relaxations(
                question, _drawn_counters(question, minimal_overcommit(question, free, placements, finder))
            )
        ]
        edits = min(spared, edits, key=len)
    return edits


def _drawn_counters(question: FeasibilityQuestion, placements: Sequence[Placement]) -> dict[tuple[int, str], int]:
    """What the devices of these placements draw, by pool and counter."""
    taken = {e.device.index for p in placements for e in p.entries if not e.request.mode.is_admin}
    drawn: dict[tuple[int, str], int] = {}
    for device in (question.snapshot.devices[index] for index in taken):
        for name, blocks in device.draws:
            drawn[device.pool, name] = drawn.get((device.pool, name), 0) + blocks
    return drawn


def _counter_relaxations(question: FeasibilityQuestion, drawn: dict[tuple[int, str], int]) -> Iterator[Relaxation]:
    """One edit for each counter of which too much is drawn; nodes may see it differently."""
    short: dict[tuple[int, str], tuple[int, int]] = {}
    for (index, name), wanted in sorted(drawn.items()):
        missing = wanted - question.snapshot.pools[index].resources[name].nano
        if missing > 0:
            worst = short.get((index, counter_name(name)), (0, 0))
            short[index, counter_name(name)] = max(worst, (wanted, missing))
    for (index, name), (wanted, missing) in short.items():
        pool = question.snapshot.pools[index]
        title = pool.driver, pool.name.removeprefix(f"{pool.driver}/")
        entry, words = counter_entry(title, name, wanted, missing)
        yield Relaxation(entry, words, _with_counter_raised(index, name, wanted), 1)
