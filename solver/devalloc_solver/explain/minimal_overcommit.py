"""A placement that exceeds the shared limits of pools by as little as possible.

A placement without these limits has no reason to spare anything, so it overdraws many resources and explains little.
Here as much as fits is placed within the limits, the devices that draw most first, and only the rest exceeds them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.problem.allocations import AllocatedDevice, Allocation, Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Device

DetailKey = tuple[Key, int]
"""(claim, detail)"""
_MAX_DEVICES_WEIGHED = 20_000
"""Devices that may be looked at for what one detail has left out: a number at once, beyond that any will do."""


@dataclass(frozen=True, slots=True, eq=False)
class _DetailPart:
    """A detail as it was served without limits, as so many devices that may be left out one by one."""

    where: DetailKey
    request: Request
    weight: int
    """what the lightest candidate draws, in thousandths of its pool's resources"""

    @property
    def is_divisible(self) -> bool:
        """Whether two requests for some of its devices each are as good as one for all."""
        request = self.request
        return request.mode is AllocationMode.WHOLE and not (
            request.requests or request.limits or request.match or request.portions
        )

    @property
    def count(self) -> int:
        """1 where it is served all or none."""
        return self.request.least if self.is_divisible else 1

    def split(self, used: int, taken: Sequence[int], chosen: Sequence[int] | None) -> Iterator[Request]:
        """One request for what is kept, of the devices ``taken`` for it, and one for what is left out."""
        if used:
            yield self.of(used, taken)
        if used < self.count:
            yield self.of(self.count - used, chosen)

    def of(self, count: int, devices: Sequence[int] | None = None) -> Request:
        """The request for some of its devices, to be taken of these only."""
        request = self.request if count == self.count else replace(self.request, least=count, most=count)
        if devices is None:
            return request
        accepted = {index: request.candidates.accepted[index] for index in devices}
        return replace(request, candidates=replace(request.candidates, accepted=accepted))


def minimal_overcommit(
    question: FeasibilityQuestion, free: FeasibilityQuestion, placed: Sequence[Placement], finder: FeasibilityChecker
) -> Sequence[Placement]:
    """Placements of the same alternatives on the same node as ``placed``, and ``placed`` where there is nothing better.

    ``free`` is the question without the limits, and ``placed`` answers it. The question itself has no answer.
    """
    node = placed[0].node
    question, free = question.pinned(node), free.pinned(node)
    parts = _parts(question, placed)
    best = _place_most(question, parts, finder)
    if best is None:
        return placed
    count, placements = best
    counts = _first_devices(parts, count)
    taken: dict[DetailKey, list[int]] = defaultdict(list)
    for placement in placements:
        for entry in placement.entries:
            taken[placement.demand.key, entry.request.detail].append(entry.device.index)
    light = _least_excess(question, [placement.holding() for placement in placements], parts, counts)
    for chosen in (light, {}):
        requests = {
            part.where: [*part.split(counts[part.where], taken[part.where], chosen.get(part.where))] for part in parts
        }
        answer = finder.probe(_with_parts(free, requests), any_will_do=True)
        if answer is not None:
            return answer
    return placed


def _parts(question: FeasibilityQuestion, placements: Sequence[Placement]) -> list[_DetailPart]:
    """The details, those that draw nothing first, then those that draw most."""
    served = {(p.demand.key, e.request.detail): e.request for p in placements for e in p.entries}
    devices = question.snapshot.devices
    parts = []
    weights: dict[int, int] = {}
    """accepted devices, by identity -> weight of the lightest"""
    for demand in question.unit.demands:
        for detail in demand.details:
            request = served.get((demand.key, detail[0].detail), detail[0])
            accepted = request.candidates.accepted
            if id(accepted) not in weights:
                weights[id(accepted)] = min((_weight(question, devices[index]) for index in accepted), default=0)
            parts.append(_DetailPart((demand.key, request.detail), request, weights[id(accepted)]))
    return sorted(parts, key=lambda part: (part.weight > 0, -part.weight))


def _weight(question: FeasibilityQuestion, device: Device) -> int:
    resources = question.snapshot.pools[device.pool].resources
    return sum(1000 * blocks // max(1, resources[name].blocks) for name, blocks in device.draws)


def _place_most(
    question: FeasibilityQuestion, parts: Sequence[_DetailPart], finder: FeasibilityChecker
) -> tuple[int, Sequence[Placement]] | None:
    """Many devices, counted from the first part on, that fit within the limits, and where they go.

    Leaving out twice as many each time: what is left out and fits all the same is seen to later.
    """
    total = sum(part.count for part in parts)
    left_out = 1
    while left_out < total:
        counts = _first_devices(parts, total - left_out)
        requests = {part.where: [part.of(counts[part.where])] if counts[part.where] else [] for part in parts}
        answer = finder.probe(_with_parts(question, requests), any_will_do=True)
        if answer is not None:
            return total - left_out, answer
        left_out *= 2
    return None


def _first_devices(parts: Sequence[_DetailPart], count: int) -> dict[DetailKey, int]:
    """How many devices of each part are among so many, from the first part on."""
    counts = {}
    for part in parts:
        counts[part.where] = min(part.count, count)
        count -= counts[part.where]
    return counts


def _with_parts(question: FeasibilityQuestion, requests: Mapping[DetailKey, Sequence[Request]]) -> FeasibilityQuestion:
    """The question with each detail replaced by a detail for each of these requests."""

    def change(demand: Demand) -> Demand | None:
        details = [(request,) for detail in demand.details for request in requests[demand.key, detail[0].detail]]
        return replace(demand, details=tuple(details), shape=None) if details else None

    return question.with_demands(change)


def _least_excess(
    question: FeasibilityQuestion,
    placed: Sequence[Allocation],
    parts: Sequence[_DetailPart],
    counts: Mapping[DetailKey, int],
) -> dict[DetailKey, list[int]]:
    """For the devices of divisible parts that are left out, one by one: the one that adds least to what falls short."""
    snapshot = question.snapshot
    ledger = Usage.of(snapshot, (*question.held, *placed))
    short: set[tuple[int, str]] = set()
    lightest: dict[DetailKey, list[int]] = {}

    def missing(device: Device) -> list[tuple[int, str]]:
        pool = device.pool
        return [(pool, name) for name, blocks in device.draws if blocks > ledger.free_pool_blocks(pool, name)]

    def price(device: Device) -> tuple[int, int, int]:
        lacks = missing(device)
        held = ledger.groups.get(device.pool) if device.compatibility is not None else None
        mixes = bool(held and held != {device.compatibility})
        return sum(lack not in short for lack in lacks) + mixes, len(lacks), device.index

    for part in parts:
        count = part.count - counts[part.where]
        if not count or not part.is_divisible:
            continue
        alike = _equal_candidates(question, part.request, ledger)
        if count * len(alike) > _MAX_DEVICES_WEIGHED:
            continue
        by_pool: dict[int, list[list[Device]]] = defaultdict(list)
        for devices in alike:
            by_pool[devices[0].pool].append(devices)
        best = {pool: min(price(devices[-1]) for devices in there) for pool, there in by_pool.items()}
        chosen = lightest[part.where] = []
        while best and len(chosen) < count:
            _, _, index = min(best.values())
            device = snapshot.devices[index]
            there = by_pool[device.pool]
            next(devices for devices in there if devices[-1] is device).pop()
            there[:] = filter(None, there)
            chosen.append(index)
            short.update(missing(device))
            ledger.add(Allocation(part.where[0], 0, (AllocatedDevice(index, None),)))
            del best[device.pool]
            if there:
                best[device.pool] = min(price(devices[-1]) for devices in there)
    return lightest


def _equal_candidates(question: FeasibilityQuestion, request: Request, ledger: Usage) -> list[list[Device]]:
    """The candidates of a request that are free on the node, those together that draw the same; the first ones last."""
    snapshot, nodes = question.snapshot, (None, question.unit.pin)
    alike: dict[object, list[Device]] = defaultdict(list)
    for index in sorted(request.candidates.accepted, reverse=True):
        device = snapshot.devices[index]
        if snapshot.pools[device.pool].node in nodes and not ledger.in_use(device):
            alike[device.pool, device.draws, device.compatibility].append(device)
    return [*alike.values()]
