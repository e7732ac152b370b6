"""Fast path for the common question: one request for whole devices, without constraints.

Covers a single device whatever it draws, and several that draw nothing, are of no compatibility group and fit into one
pool. The search answers everything else; it would give the same answers here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devalloc_solver.bounds.largest_partition import Draws, partition_loss
from devalloc_solver.place.node_view import free_blocks, pool_allows
from devalloc_solver.place.search_context import PlacementScore, SearchContext
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.snapshot import Device, Pool


def single_request_alternatives(unit: PlacementUnit) -> tuple[Request, ...]:
    """The alternatives of a unit that is simple; empty for any other."""
    if [len(demand.details) for demand in unit.demands] != [1]:
        return ()
    demand = unit.demands[0]
    requests = demand.details[0]
    return (
        requests
        if not (demand.relations or demand.shared) and all(_is_single_request(request, demand) for request in requests)
        else ()
    )


def _is_single_request(request: Request, demand: Demand) -> bool:
    if request.mode is not AllocationMode.WHOLE or request.requests or request.limits or request.portions:
        return False
    if request.min_count > 1 and (request.match or demand.match):
        return False
    return demand.most is None or request.min_count <= demand.most


def place_single_request(
    context: SearchContext, unit: PlacementUnit, requests: Sequence[Request], node: str | None
) -> tuple[Placement, PlacementScore] | bool:
    """Where the first request that fits goes on one node; False when none does, True when the search has to tell."""
    for request in requests:
        answer = _place_request(context, unit, request, node)
        if answer is not False:
            return answer
    return False


def _place_request(
    context: SearchContext, unit: PlacementUnit, request: Request, node: str | None
) -> tuple[Placement, PlacementScore] | bool:
    names = (*request.match, *unit.demands[0].match)
    best: tuple[tuple[int, ...], Pool, list[Device]] | None = None
    several = 0
    for pool, devices in _free(context, request, node, names):
        if request.min_count == 1:
            loss, device = _least_partition_loss(context, pool, devices)
            chosen = [device]
        elif any(device.draws or device.compatibility is not None for device in devices):
            return True
        elif len(devices) < request.min_count:
            several += len(devices)
            continue
        else:
            loss, chosen = 0, devices[: request.min_count]
        rank = (context.cost_of_pool(pool.index, request.min_count), loss, pool.index)
        if best is None or rank < best[0]:
            best = rank, pool, chosen
    if best is None:
        return several >= request.min_count
    (avoided, loss, _), pool, devices = best
    demand = unit.demands[0]
    placed = Placement(
        demand,
        None if pool.node is None and unit.is_free else node,
        tuple(PlacedDevice(request, device) for device in devices),
    )
    offsets = sum(device.index for device in devices) - len(devices) * pool.devices[0].index
    chosen_index = () if request.alternative is None else (request.alternative,)
    own = 0 if pool.node is None else request.min_count
    policy = (0, context.cost_of_node(node, own), avoided, loss, context.rank(node), pool.index, offsets)
    return placed, PlacementScore(chosen_index, 1, len(devices), policy)


def _free(
    context: SearchContext, request: Request, node: str | None, names: tuple[str, ...]
) -> Iterator[tuple[Pool, list[Device]]]:
    """The devices that the request may have, pool by pool."""
    snapshot, usage = context.snapshot, context.usage
    accepted = request.candidates.accepted
    whole, shared = usage.whole, usage.shared
    reached = snapshot.pools_by_node.get(None, ())
    for pool in (*reached, *snapshot.pools_by_node.get(node, ())) if node is not None else reached:
        devices = []
        free: dict[str, int] | None = None
        for device in pool.devices:
            index = device.index
            if index not in accepted or index in whole or index in shared:
                continue
            if device.shareable or device.undefined is not None:
                continue
            if device.reach is not None and node not in device.reach:
                continue
            if any(name not in device.attributes for name in names):
                continue
            if device.draws or device.compatibility is not None:
                free = free_blocks(pool, usage) if free is None else free
                if not pool_allows(device, free, usage):
                    continue
            devices.append(device)
        if devices:
            yield pool, devices


def _least_partition_loss(context: SearchContext, pool: Pool, devices: list[Device]) -> tuple[int, Device]:
    """The device that costs least of the largest partition; the first of equals."""
    first = devices[0]
    if not context.packs or not first.draws:
        return 0, first
    shapes = context.partitions(pool)
    if not shapes:
        return 0, first
    free = {name: context.usage.free_pool_blocks(pool.index, name) for name in pool.resources}
    losses: dict[Draws, int] = {}
    for device in devices:
        if device.draws not in losses:
            losses[device.draws] = partition_loss(shapes, free, [device.draws])
    return min(((losses[device.draws], device) for device in devices), key=lambda pair: pair[0])
