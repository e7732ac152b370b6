"""The rules of the solver's own normal form, and an exhaustive search over all answers to a tiny instance.

The rules are written here once more, from the types' own words and one device at a time, so that nothing of the model
(counts, bunches, crowds) is believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Snapshot

Place = str | None
Taken = tuple[Request, tuple[int, ...]]
"""One chosen request and its devices."""
Claimed = tuple[Taken, ...]
"""What one claim gets, a request for each detail."""


@dataclass(frozen=True, slots=True)
class SearchInstance:
    """Units in the order they are decided, and what they may take."""

    snapshot: Snapshot
    allocations: tuple[Holding, ...]
    units: tuple[PlacementUnit, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to satisfy a unit."""

    place: Place
    claims: tuple[Claimed, ...]

    @property
    def alternatives(self) -> tuple[tuple[int, ...], ...]:
        """For each claim the chosen alternatives of the details that have some (S17, goal 2)."""
        return tuple(tuple(s.alternative for s, _ in c if s.alternative is not None) for c in self.claims)


# -- the rules -------------------------------------------------------------------------------------------------------


def option_of(placements: Sequence[Placement]) -> Option:
    """What the solver gave to the claims of one unit."""
    claims = []
    for placement in placements:
        taken: dict[int, tuple[Request, list[int]]] = {}
        for entry in placement.entries:
            request, devices = taken.setdefault(entry.request.detail, (entry.request, []))
            assert request is entry.request, "two alternatives of a detail are filled"
            assert entry.amounts == request.portions.get(entry.device.index, ())
            devices.append(entry.device.index)
        claims.append(tuple((request, tuple(devices)) for _, (request, devices) in sorted(taken.items())))
    return Option(placements[0].node, tuple(claims))


def objections(instance: SearchInstance, unit: PlacementUnit, option: Option) -> Iterator[str]:
    """What speaks against an option, all other units aside."""
    for demand, claimed in zip(unit.demands, option.claims, strict=True):
        if [request.detail for request, _ in claimed] != [*range(len(demand.details))]:
            yield "a detail is not filled"
        for request, devices in claimed:
            yield from _slot_objections(instance, request, devices, option.place, unit)
        yield from _claim_objections(instance, demand, claimed)
    if unit.pin is not None and option.place != unit.pin:
        yield "another place than the unit is pinned to"
    yield from overuse(instance, [option])


def _slot_objections(
    instance: SearchInstance, request: Request, devices: Sequence[int], place: Place, unit: PlacementUnit
) -> Iterator[str]:
    if len(set(devices)) < len(devices):
        yield "a slot has a device twice"
    if not all(index in request.candidates.accepted for index in devices):
        yield "no candidate"
    if not all(_reaches(instance, place, index) for index in devices):
        yield "not reached from its place"
    if request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL):
        if {*devices} != {i for i in request.candidates.accepted if _reaches(instance, place, i)} or not devices:
            yield "not all candidates"
        if request.max_count is not None and len(devices) > request.max_count:
            yield "more than the limit"
    elif not request.min_count <= len(devices) <= (request.max_count or len(devices)):
        yield "not as many as asked for"
    for name in request.match:
        if not _agree(instance.snapshot.devices[i].attributes.get(name) for i in devices):
            yield "differ in a match attribute"
    given = Counter[str]()
    for index in devices:
        device = instance.snapshot.devices[index]
        amounts = (
            request.portions.get(index, ()) if device.shareable else [(n, r.nano) for n, r in device.resources.items()]
        )
        given.update(dict(amounts))
    if any(given[name] < amount for name, amount in request.requests.items()) and not request.mode.is_admin:
        yield "less than requested"


def _claim_objections(instance: SearchInstance, demand: Demand, claimed: Claimed) -> Iterator[str]:
    devices = instance.snapshot.devices
    for name in demand.match:
        if not _agree(devices[i].attributes.get(name) for _, taken in claimed for i in taken):
            yield "differ in a match attribute of the claim"
    for relation in demand.relations:
        values = [
            devices[i].values(relation.attribute) for s, taken in claimed if s.label in relation.labels for i in taken
        ]
        if not all(values):
            yield "has no value of a relation"
        elif relation.distinct and any(one & other for one, other in combinations(values, 2)):
            yield "not distinct"
        elif not relation.distinct and values and not frozenset.intersection(*values):
            yield "no value in common"
    entries = Counter(index for _, taken in claimed for index in taken)
    if demand.most is not None and sum(entries.values()) > demand.most:
        yield "too many entries"
    if demand.once and any(times > 1 and not devices[i].shareable for i, times in entries.items()):
        yield "a device twice in the claim"


def _agree(values: Iterable[object | None]) -> bool:
    distinct = {*values}
    return len(distinct) <= 1 and None not in distinct


def _reaches(instance: SearchInstance, place: Place, index: int) -> bool:
    device = instance.snapshot.devices[index]
    node = instance.snapshot.pools[device.pool].node
    return node == place if node is not None else device.reach is None or place in device.reach


def overuse(instance: SearchInstance, options: Iterable[Option]) -> Iterator[str]:
    """Devices given twice, capacities and pool resources exceeded, all options together."""
    snapshot, usage = instance.snapshot, Usage.of(instance.snapshot, instance.allocations)
    whole: Counter[int] = Counter()
    portions: dict[int, Counter[str]] = {}
    for option in options:
        for request, taken in (t for claimed in option.claims for t in claimed if not t[0].mode.is_admin):
            for index in taken:
                if not snapshot.devices[index].shareable:
                    whole[index] += 1
                elif index in request.portions:
                    portions.setdefault(index, Counter()).update(dict(request.portions[index]))
                else:
                    yield "a shareable device whole"
    if any(times > 1 or i in usage.whole or i in usage.shared for i, times in whole.items()):
        yield "a device given twice"
    for index, amounts in portions.items():
        device = snapshot.devices[index]
        held = usage.shared.get(index, {})
        if index in usage.whole:
            yield "a portion of a device in use"
        if any(held.get(name, 0) + amount > device.resources[name].nano for name, amount in amounts.items()):
            yield "more than the device has"
    drawn: Counter[tuple[int, str]] = Counter()
    for index in {*whole, *portions}:
        device = snapshot.devices[index]
        if not usage.in_use(device):
            drawn.update({(device.pool, name): blocks for name, blocks in device.draws})
    for (pool, name), blocks in drawn.items():
        if blocks + usage.drawn[pool][name] > snapshot.pools[pool].resources[name].blocks:
            yield "more than the pool has"


# -- exhaustive search -----------------------------------------------------------------------------------------------

Score = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], int, int]


def score(instance: SearchInstance, options: Mapping[int, Option]) -> Score:
    """The goals of S17 as one tuple to minimise: counts, who, alternatives, pools, devices."""
    priorities = sorted({d.claim.priority for unit in instance.units for d in unit.demands}, reverse=True)
    members = [(d.claim.priority, number) for number, unit in enumerate(instance.units) for d in unit.demands]
    counts = tuple(-sum(p == priority and number in options for p, number in members) for priority in priorities)
    who = tuple(tuple(number not in options for p, number in members if p == priority) for priority in priorities)
    by_level = tuple(entry for pair in zip(counts, who, strict=True) for entry in ((pair[0],), pair[1]))
    chosen = tuple(vector for number in sorted(options) for vector in options[number].alternatives)
    devices = {i for option in options.values() for claimed in option.claims for _, taken in claimed for i in taken}
    pools = {instance.snapshot.devices[index].pool for index in devices}
    return counts, by_level, chosen, len(pools), len(devices)


def rank(score: Score) -> tuple[object, ...]:
    """What is compared: a level is fully decided before the next."""
    return score[1:]


def best_score(instance: SearchInstance, budget: int) -> Score | None:
    """The best score of all answers, or None when there are more than ``budget`` to look at."""
    options = []
    total = 1
    for unit in instance.units:
        unit_options = _options(instance, unit, budget)
        if unit_options is None or (total := total * (1 + len(unit_options))) > budget:
            return None
        options.append(unit_options)
    best: Score | None = None
    for chosen in _combinations(instance, options, {}, 0):
        now = score(instance, chosen)
        if best is None or rank(now) < rank(best):
            best = now
    return best


def _combinations(
    instance: SearchInstance, options: Sequence[Sequence[Option]], chosen: dict[int, Option], number: int
) -> Iterator[dict[int, Option]]:
    if number == len(options):
        yield chosen
        return
    for option in options[number]:
        more = chosen | {number: option}
        if not any(overuse(instance, more.values())):
            yield from _combinations(instance, options, more, number + 1)
    yield from _combinations(instance, options, chosen, number + 1)


def _options(instance: SearchInstance, unit: PlacementUnit, budget: int) -> list[Option] | None:
    """The ways to satisfy a unit, or None when there are too many to try."""
    places: Sequence[Place] = instance.snapshot.nodes or [None]
    by_claims: dict[object, Option] = {}
    tried = 0
    for place in [unit.pin] if unit.pin is not None else places:
        for claims in product(*(_claims(instance, demand, place) for demand in unit.demands)):
            tried += 1
            if tried > budget:
                return None
            option = Option(place, claims)
            if not any(objections(instance, unit, option)):
                by_claims.setdefault(claims, option)
    return [*by_claims.values()]


def _claims(instance: SearchInstance, demand: Demand, place: Place) -> list[Claimed]:
    details = [[taken for request in detail for taken in _sets(instance, request, place)] for detail in demand.details]
    return [claimed for claimed in product(*details) if not any(_claim_objections(instance, demand, claimed))]


def _sets(instance: SearchInstance, request: Request, place: Place) -> list[Taken]:
    reached = [index for index in sorted(request.candidates.accepted) if _reaches(instance, place, index)]
    if request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL):
        return [(request, tuple(reached))]
    most = len(reached) if request.max_count is None else min(request.max_count, len(reached))
    return [
        (request, devices) for size in range(request.min_count, most + 1) for devices in combinations(reached, size)
    ]
