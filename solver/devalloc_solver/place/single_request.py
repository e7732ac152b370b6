"""Fast path for the common question: one request for whole devices, without constraints.

Covers a single device whatever it draws, and several that draw nothing, are of no compatibility group and fit into one
pool. Where the policy weighs loads, it covers a share or portion of one device as well, since how much of a node comes
into use depends on the device. The search answers everything else; it would give answers as good here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from devalloc_solver.bounds.largest_partition import Draws, Losses, fitting_parts, losses
from devalloc_solver.place.node_view import free_blocks, pool_allows
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import PlacedDevice, Placement, added_loads
from devalloc_solver.problem.placement_score import PlacementScore, alternatives_of
from devalloc_solver.problem.snapshot import Device, Pool


def single_request_alternatives(unit: PlacementUnit, *, weighs_loads: bool = False) -> tuple[Request, ...]:
    """The alternatives of a unit that is simple; empty for any other."""
    if [len(demand.details) for demand in unit.demands] != [1]:
        return ()
    demand = unit.demands[0]
    requests = demand.details[0]
    return (
        requests
        if not (demand.relations or demand.shared)
        and all(_is_single_request(request, demand, weighs_loads) for request in requests)
        else ()
    )


def _is_single_request(request: Request, demand: Demand, weighs_loads: bool) -> bool:
    if weighs_loads and _takes_part(request):
        return True
    if not request.takes_whole or request.requests or request.limits:
        return False
    if request.min_count > 1 and (request.match or demand.match):
        return False
    return demand.most is None or request.min_count <= demand.most


def _takes_part(request: Request) -> bool:
    """Whether it takes a share, or a portion of a device; of a share the search tells whether several are needed."""
    if request.limits:
        return False
    if request.mode is AllocationMode.SHARE:
        return all(request.requests.values())
    return bool(request.portions) and request.mode is AllocationMode.WHOLE and request.min_count == 1


def place_single_request(
    context: SearchContext, unit: PlacementUnit, requests: Sequence[Request], node: str | None
) -> tuple[Placement, PlacementScore] | bool:
    """Where the first request that fits goes on one node; False when none does, True when the search has to tell."""
    for request in requests:
        if node in request.candidates.barred:
            continue
        place = _place_one_device if context.policy.weighs_loads and request.min_count == 1 else _place_request
        answer = place(context, unit, request, node)
        if answer is not False:
            return answer
    return False


def _place_one_device(
    context: SearchContext, unit: PlacementUnit, request: Request, node: str | None
) -> tuple[Placement, PlacementScore] | bool:
    """The device by which a node, then a pool, becomes least unevenly used; its amounts if it is a share or portion."""
    usage, snapshot = context.usage, context.snapshot
    names = (*request.match, *unit.demands[0].match)
    one_of, shares = alternatives_of([request]), int(request.mode is AllocationMode.SHARE)
    best: tuple[PlacementScore, PlacedDevice] | None = None
    for pool in _reached_pools(context, node):
        free: dict[str, int] | None = None
        own_node = None if pool.node is None else node
        for device in pool.devices:
            if device.index not in request.candidates.accepted or not _is_had(usage, device, node, names):
                continue
            amounts = _amounts_of(usage, request, device)
            if amounts is None:
                continue
            if not usage.in_use(device) and (device.draws or device.compatibility is not None):
                free = free_blocks(pool, usage) if free is None else free
                if not pool_allows(device, free, usage):
                    continue
            placed = PlacedDevice(request, device, amounts)
            load = added_loads(usage, [placed])[pool.index]
            costs = context.cost_of_node(own_node, load), context.cost_of_pool(pool.index, load)
            order = context.rank(node), pool.index, device.index - pool.devices[0].index
            score = PlacementScore(one_of, 1, 1, shares, *costs, 0, order)
            if best is None or score < best[0]:
                best = score, placed
    if best is None:
        # Of a share, several devices may have what one has not.
        return request.mode is AllocationMode.SHARE and request.max_count != 1
    score, placed = best
    pool = snapshot.pools[placed.device.pool]
    return Placement(unit.demands[0], None if pool.node is None and unit.is_free else node, (placed,)), score


def _is_had(usage: Usage, device: Device, node: str | None, names: tuple[str, ...]) -> bool:
    """Whether a device is not in use whole, and is reached and comparable."""
    return (
        device.index not in usage.whole
        and device.undefined is None
        and (device.reach is None or node in device.reach)
        and all(name in device.attributes for name in names)
    )


def _amounts_of(usage: Usage, request: Request, device: Device) -> tuple[tuple[str, int], ...] | None:
    """What a request takes of a device, none for all of it; None where the device has not that much."""
    if device.shareable:
        portion = request.portions.get(device.index)
        return None if portion is None or usage.portions_left(device, portion) == 0 else portion
    if request.mode is not AllocationMode.SHARE:
        return None if usage.in_use(device) else ()
    amounts = []
    for name, nano in sorted(request.requests.items()):
        if (resource := device.resources.get(name)) is None:
            return None
        blocks = -(-nano // resource.block)
        if blocks > usage.free_blocks(device, name):
            return None
        amounts.append((name, blocks * resource.block))
    return tuple(amounts)


def _place_request(
    context: SearchContext, unit: PlacementUnit, request: Request, node: str | None
) -> tuple[Placement, PlacementScore] | bool:
    names = (*request.match, *unit.demands[0].match)
    one_of = alternatives_of([request])
    best: tuple[PlacementScore, Pool, list[Device]] | None = None
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
        load = 0
        if context.policy.weighs_loads:
            load = sum(context.usage.loads.scale(pool.index).whole(device.draws) for device in chosen)
        own_node = None if pool.node is None and unit.group is None else node
        of_node = context.cost_of_node(own_node, 0 if pool.node is None else load)
        offsets = sum(device.index for device in chosen) - len(chosen) * pool.devices[0].index
        order = context.rank(node), pool.index, offsets
        score = PlacementScore(one_of, 1, len(chosen), 0, of_node, context.cost_of_pool(pool.index, load), loss, order)
        if best is None or score < best[0]:
            best = score, pool, chosen
    if best is None:
        return several >= request.min_count
    score, pool, devices = best
    demand = unit.demands[0]
    placed = Placement(
        demand,
        None if pool.node is None and unit.is_free else node,
        tuple(PlacedDevice(request, device) for device in devices),
    )
    return placed, score


def _reached_pools(context: SearchContext, node: str | None) -> Sequence[Pool]:
    by_node = context.snapshot.pools_by_node
    reached = by_node.get(None, ())
    return reached if node is None else (*reached, *by_node.get(node, ()))


def _free(
    context: SearchContext, request: Request, node: str | None, names: tuple[str, ...]
) -> Iterator[tuple[Pool, list[Device]]]:
    """The devices that the request may have, pool by pool."""
    usage = context.usage
    accepted = request.candidates.accepted
    whole, shared = usage.whole, usage.shared
    for pool in _reached_pools(context, node):
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
    """The device that costs least of the largest partition; of equals the one that rules out least, then the first."""
    first = devices[0]
    if not context.policy.keeps_partitions or not first.draws:
        return 0, first
    shapes = context.partitions(pool)
    if not shapes:
        return 0, first
    free = {name: context.usage.free_pool_blocks(pool.index, name) for name in pool.resources}
    fitting = fitting_parts(shapes, free)
    lost: dict[Draws, Losses] = {}
    for device in devices:
        if device.draws not in lost:
            lost[device.draws] = losses(fitting, free, [device.draws])
    best = min(devices, key=lambda device: lost[device.draws])
    return lost[best.draws][0], best
