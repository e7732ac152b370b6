"""Goals 5 and 6 of S17: the placement policy and the natural order of names. Preferences, not proven."""

from __future__ import annotations

from collections import defaultdict

from devalloc_solver.batch import BatchModel, Terms
from devalloc_solver.linear import add_at_most

PLACEMENTS = ("pack", "spread")
MAX_WEIGHT = 2**40
"""A preference whose weight would pass this is left out rather than let sums overflow."""


def policy_cost(model: BatchModel, placement: str) -> Terms:
    """One cost to minimise: fewest devices per share (S9), then nodes and pools not yet in use, then the rest."""
    snapshot, ledger = model.snapshot, model.ledger
    busy_pools = ledger.pools_in_use()
    busy_nodes = {snapshot.pools[p].node for p in busy_pools}
    sign = 1 if placement == "pack" else -1
    nodes: Terms = [(sign, used) for node, used in model.nodes_used.items() if node not in busy_nodes]
    pools: Terms = [(sign, used) for pool, used in model.pools_used.items() if pool not in busy_pools]
    shares: Terms = [(1, taken) for parts in model.slots for taken, _ in parts.shares.values()]
    cells = [cell for crowd in model.crowds for site in crowd.sites for found in site.cells.values() for cell in found]
    shares += [(1, cell.split) for cell in cells if cell.split is not None]
    cost: Terms = _order_of_devices(model)
    weight = 1 + sum(w * model.bunches[b].size for (w, _), b in zip(cost, model.devices_used, strict=True))
    largest = _largest_left(model) if placement == "pack" else []
    for terms in (_natural_order(model), largest, pools, nodes, shares):
        if weight * max((abs(w) for w, _ in terms), default=0) < MAX_WEIGHT:
            cost += [(weight * w, v) for w, v in terms]
            weight *= 1 + sum(abs(w) for w, _ in terms)
    return [(w, v) for w, v in cost if w]


def order_cost(model: BatchModel) -> Terms:
    """What is left to choose: earlier claims on nodes that come first."""
    rank = {node: position for position, node in enumerate(model.nodes)}
    last = len(model.units)
    found = [(number, place, v) for number, places in model.places.items() for place, v in places.items()]
    for crowd in model.crowds:
        found += [(crowd.units[0], site.place, v) for site in crowd.sites for v in site.patterns.values()]
    terms = [((last - number) * rank.get(place or "", 0), v) for number, place, v in found]
    return [(weight, v) for weight, v in terms if weight]


def _largest_left(model: BatchModel) -> Terms:
    """For each partitionable pool a claim may draw on: the largest device that can still be allocated, as a gain."""
    cp = model.cp
    gains: Terms = []
    draws: dict[int, dict[str, Terms]] = defaultdict(dict)
    for (pool_index, name), terms in model.draws.items():
        draws[pool_index][name] = terms
    for pool_index, by_resource in sorted(draws.items()):
        pool = model.snapshot.pools[pool_index]
        sizes: dict[tuple[tuple[str, int], ...], int] = {}
        for device in pool.devices:
            if device.undefined is None and device.unavailable is None and not model.ledger.in_use(device):
                sizes[device.draws] = _share_of_pool(device.draws, {n: r.blocks for n, r in pool.resources.items()})
        if len(sizes) < 2:
            continue
        fitting = []
        for needed, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
            fits = cp.new_bool_var("")
            for name, blocks in needed:
                terms = [*by_resource.get(name, ()), (blocks, fits)]
                free = model.ledger.free_pool_blocks(pool_index, name)
                add_at_most(cp, [v for _, v in terms], [amount for amount, _ in terms], free)
            fitting.append(fits)
            gains.append((-size, fits))
        cp.add_at_most_one(fitting)
    return gains


def _share_of_pool(draws: tuple[tuple[str, int], ...], capacity: dict[str, int]) -> int:
    return sum(1000 * blocks // capacity[name] for name, blocks in draws if capacity.get(name))


def _natural_order(model: BatchModel) -> Terms:
    """Prefer nodes, then pools that come first. Pools are already in natural order (snapshot.py)."""
    rank = {node: position for position, node in enumerate(model.snapshot.nodes)}
    first_pool = min(model.pools_used, default=0)
    terms: Terms = [(rank.get(node, 0), used) for node, used in model.nodes_used.items()]
    terms += [(pool - first_pool, used) for pool, used in model.pools_used.items()]
    return [(weight, v) for weight, v in terms if weight]


def _order_of_devices(model: BatchModel) -> Terms:
    """Prefer the devices of a pool that come first, as far as they are not interchangeable; one term per bunch."""
    pools = model.snapshot.pools
    return [
        (model.bunches[b].one.index - pools[model.bunches[b].pool].devices[0].index, used)
        for b, used in model.devices_used.items()
    ]
