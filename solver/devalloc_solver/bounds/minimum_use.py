"""Lower bounds on the devices and pools that satisfied claims take (goals 3 and 4 of S17).

What claims take is measured in several ways: in whole devices, in what these draw on their pool, in amounts. By each
measure the claims take at least so much, and a pool has no more than so much; so they need as many pools as have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

SCALE = 10**9
"""What a device that draws all of a resource of its pool weighs."""
MAX_PARCELS = 16
"""Numbers of devices by which it is counted how many requests a node has room for."""

Alternatives = Sequence[Request]
"""The requests of which a satisfied claim fills one."""
Satisfied = Callable[[Callable[[Alternatives], int]], int]
"""The least that satisfied claims take, if each detail takes what the given function says of its alternatives."""
Measure = tuple[Callable[[Request], int], list[int]]
"""What a request takes at least, and what each pool, or node, has."""


def satisfied_details(details: Iterable[tuple[Alternatives, int]]) -> Satisfied:
    """Of claims that are known: the possible alternatives of their details, and how many details have these."""
    listed = list(details)
    return lambda cost: sum(times * cost(alternatives) for alternatives, times in listed)


def satisfied_counts(units: Sequence[PlacementUnit], counts: Mapping[int, int]) -> Satisfied:
    """Of so many claims of each priority, whichever these are: the ones that take least."""
    demands = [demand for unit in units for demand in unit.demands]

    def total(cost: Callable[[Alternatives], int]) -> int:
        costs: dict[int, list[int]] = {priority: [] for priority in counts}
        for demand in demands:
            costs[demand.claim.priority].append(sum(map(cost, demand.details)))
        return sum(sum(sorted(each)[: counts[priority]]) for priority, each in costs.items())

    return total


@dataclass(slots=True, eq=False)
class MinimumUse:
    """What claims of a batch take at least. ``usage``: what was in use before it."""

    snapshot: Snapshot
    usage: Usage
    units: Sequence[PlacementUnit]
    satisfied: Satisfied
    _drivers: dict[int, str | None] = field(default_factory=dict)
    """id of candidates -> the driver of all of them, if it is one"""

    def devices(self) -> int:
        """Whole takers never share a device, nor do they leave one to shares; these need room for their amounts."""
        whole = self.satisfied(lambda alternatives: min(map(_whole_devices, alternatives)))
        shares = 0
        for resource, candidates in self._shared().items():
            amount = self.satisfied(partial(_min_share, resource=resource))
            shares = max(shares, count_until(amount, (self._free(device, resource=resource) for device in candidates)))
        return max(whole + shares, self._any_device())

    def pools(self) -> int:
        """Counted for each driver, whose pools have no other's devices."""
        by_driver: dict[str, list[Pool]] = {}
        for pool in self.snapshot.pools:
            by_driver.setdefault(pool.driver, []).append(pool)
        total = 0
        for driver, pools in sorted(by_driver.items()):
            total += max(self._count(driver, measure) for measure in self._measures(driver, pools))
        return max(total, self._any_device())

    def _any_device(self) -> int:
        return int(self.satisfied(lambda _: 1) > 0)

    def _count(self, driver: str, measure: Measure) -> int:
        cost_of, sizes = measure

        def cost(alternatives: Alternatives) -> int:
            return min(cost_of(each) if self._driver_of(each) == driver else 0 for each in alternatives)

        return count_until(self.satisfied(cost), sizes)

    def _measures(self, driver: str, pools: Sequence[Pool]) -> Iterator[Measure]:
        free = {pool.index: sum(not self.usage.in_use(device) for device in pool.devices) for pool in pools}
        yield _whole_devices, [*free.values()]
        if all(pool.node is not None for pool in pools):
            on_node: Counter[str | None] = Counter()
            for pool in pools:
                on_node[pool.node] += free[pool.index]
            for parcel in self._parcels(driver):
                yield partial(_whole_devices, parcel=parcel), [count // parcel for count in on_node.values()]
        if any(pool.resources for pool in pools):
            yield self._least_cost(self._weight), [self._weight_left(pool) for pool in pools]
        for resource in self._shared():
            free_on = partial(self._free, resource=resource)
            whole = self._least_cost(free_on)
            cost = partial(_amount_taken, resource=resource, of_whole=whole)
            yield cost, [sum(map(free_on, pool.devices)) for pool in pools]

    def _parcels(self, driver: str) -> list[int]:
        """Numbers of devices by which to count: a node of 8 devices has room for two requests of three, since a request
        is on one node."""
        requests = (request for unit in self.units for request in unit.requests)
        sizes = {_whole_devices(request) for request in requests if self._driver_of(request) == driver}
        return sorted(size for size in sizes if size > 1)[:MAX_PARCELS]

    def _least_cost(self, of_device: Callable[[Device], int]) -> Callable[[Request], int]:
        """What a request for whole devices takes, if each of its candidates takes so much."""
        least: dict[int, int] = {}

        def cost(request: Request) -> int:
            if not (devices := _whole_devices(request)):
                return 0
            if (key := id(request.candidates)) not in least:
                accepted = (self.snapshot.devices[index] for index in request.candidates.accepted)
                least[key] = min({of_device(device) for device in accepted if not self.usage.in_use(device)}, default=0)
            return devices * least[key]

        return cost

    # -- amounts -------------------------------------------------------------------------------------------------------

    def _weight(self, device: Device) -> int:
        """What a device draws on its pool, in parts of what the pool has of each resource."""
        resources = self.snapshot.pools[device.pool].resources
        return sum(
            blocks * _weight_of_block(resources[name].blocks) for name, blocks in device.draws if name in resources
        )

    def _weight_left(self, pool: Pool) -> int:
        left = ((r.blocks, self.usage.free_pool_blocks(pool.index, name)) for name, r in pool.resources.items())
        return sum(free * _weight_of_block(blocks) for blocks, free in left)

    def _free(self, device: Device, *, resource: str) -> int:
        """Nano units that are free on a device for shares; a device that is taken whole has all of them."""
        if resource not in device.resources or device.shareable:
            return 0
        return self.usage.free_blocks(device, resource) * device.resources[resource].block

    def _shared(self) -> dict[str, list[Device]]:
        """resource -> devices that shares may take of it"""
        accepted: dict[str, set[int]] = {}
        seen: set[tuple[int, str]] = set()
        requests = (request for unit in self.units for request in unit.requests)
        for request in (request for request in requests if request.mode is AllocationMode.SHARE):
            for resource in request.requests:
                if (key := (id(request.candidates), resource)) not in seen:
                    seen.add(key)
                    accepted.setdefault(resource, set()).update(request.candidates.accepted)
        return {name: [self.snapshot.devices[index] for index in sorted(some)] for name, some in accepted.items()}

    def _driver_of(self, request: Request) -> str | None:
        key = id(request.candidates)
        if key not in self._drivers:
            pools, devices = self.snapshot.pools, self.snapshot.devices
            drivers = {pools[devices[index].pool].driver for index in request.candidates.accepted}
            self._drivers[key] = drivers.pop() if len(drivers) == 1 else None
        return self._drivers[key]


def _weight_of_block(blocks: int) -> int:
    return SCALE // blocks if blocks else 0


def _whole_devices(request: Request, parcel: int = 1) -> int:
    """Devices that no other request has, in full parcels of so many."""
    return request.min_count // parcel if request.takes_whole else 0


def _amount_taken(request: Request, *, resource: str, of_whole: Callable[[Request], int]) -> int:
    """What a request takes of a resource, by a share or with whole devices."""
    return request.least_share(resource) or of_whole(request)


def _min_share(alternatives: Alternatives, *, resource: str) -> int:
    return min(request.least_share(resource) for request in alternatives)


def count_until(needed: int, sizes: Iterable[int]) -> int:
    """How many of these, the largest first, come to what is needed."""
    count = 0
    for size in sorted(sizes, reverse=True):
        if needed <= 0:
            break
        needed, count = needed - size, count + 1
    return count
