"""Lower bounds on the devices and pools that satisfied claims take (goals 3 and 4 of S17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot


def min_devices(units: Sequence[PlacementUnit], satisfied: Mapping[int, int]) -> int:
    """Devices that so many claims of each priority take at least: whole takers never share one."""
    needs: dict[int, list[int]] = {priority: [] for priority in satisfied}
    for demand in (demand for unit in units for demand in unit.demands):
        needs[demand.claim.priority].append(_whole_devices(demand))
    total = sum(sum(sorted(counts)[: satisfied[priority]]) for priority, counts in needs.items())
    return max(total, int(any(satisfied.values())))


def _whole_devices(demand: Demand) -> int:
    return sum(min(_whole(request) for request in alternatives) for alternatives in demand.details)


def _whole(request: Request) -> int:
    return request.least if request.mode is AllocationMode.WHOLE and not request.portions else 0


def min_pools(snapshot: Snapshot, ledger: Usage, units: Sequence[PlacementUnit], satisfied: Mapping[int, int]) -> int:
    """Pools that hold so many free devices: counted for each driver, whose pools hold no other's devices.

    ``ledger``: what was in use before the batch.
    """
    drivers = sorted({pool.driver for pool in snapshot.pools})
    sizes: dict[str, list[int]] = {driver: [] for driver in drivers}
    for pool in snapshot.pools:
        sizes[pool.driver].append(sum(not ledger.in_use(device) for device in pool.devices))
    of_set: dict[int, frozenset[str]] = {}
    pools, devices = snapshot.pools, snapshot.devices

    def drivers_of(request: Request) -> frozenset[str]:
        key = id(request.candidates)
        if key not in of_set:
            of_set[key] = frozenset(pools[devices[index].pool].driver for index in request.candidates.accepted)
        return of_set[key]

    total = 0
    for driver in drivers:
        needs: dict[int, list[int]] = {priority: [] for priority in satisfied}
        for demand in (demand for unit in units for demand in unit.demands):
            need = sum(
                min(_whole(request) if drivers_of(request) == {driver} else 0 for request in alternatives)
                for alternatives in demand.details
            )
            needs[demand.claim.priority].append(need)
        needed = sum(sum(sorted(counts)[: satisfied[priority]]) for priority, counts in needs.items())
        for size in sorted(sizes[driver], reverse=True):
            if needed <= 0:
                break
            needed -= size
            total += 1
    return max(total, int(any(satisfied.values())))
