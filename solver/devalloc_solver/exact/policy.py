"""Goals 5 and 6 of S17: the placement policy and the natural order of names. Preferences, not proven."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from math import gcd

from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.linear_constraints import add_at_most
from devalloc_solver.exact.variables import BatchModel, LinearTerms
from devalloc_solver.problem.loads import Measure, growth
from devalloc_solver.problem.placement_policy import PlacementPolicy

MAX_WEIGHT = 2**40
"""A preference whose weight would pass this is left out rather than let sums overflow."""


def share_cost(model: BatchModel) -> LinearTerms:
    """Fewest devices per share (S9)."""
    shares: LinearTerms = [(1, taken) for parts in model.requests for taken, _ in parts.shares.values()]
    cells = [
        cell
        for claim_group in model.claim_groups
        for site in claim_group.sites
        for group in site.cells.values()
        for cell in group
    ]
    return shares + [(1, cell.split) for cell in cells if cell.split is not None]


MAX_STEPS = 64
"""Steps by which the load of a node or pool grows; finer ones are rounded up."""


def spread_costs(search: GoalSearch, measure: Measure) -> list[tuple[LinearTerms, int | None]]:
    """What to minimise so that a measure of loads is least: over nodes, then over pools; each with the least it can be,
    if that is known.

    The measure of a load is a sum over the steps that come on top, each costing more than the one before it.
    """
    model = search.model
    loads, snapshot = model.usage.loads, model.snapshot
    by_pool: dict[int, LinearTerms] = defaultdict(list)
    by_node: dict[str, LinearTerms] = defaultdict(list)
    most_of_pools: Counter[int] = Counter()
    for group_index, terms in model.loads.items():
        device_group = model.device_groups[group_index]
        by_pool[device_group.pool] += terms
        most = device_group.size * loads.scale(device_group.pool).whole(device_group.one.draws)
        most_of_pools[device_group.pool] += most - device_group.size * model.usage.load_of(device_group.one)
        if device_group.node is not None:
            by_node[device_group.node] += terms
    most_of_nodes: Counter[str] = Counter()
    for pool, most in most_of_pools.items():
        if (node := snapshot.pools[pool].node) is not None:
            most_of_nodes[node] += most
    if not any(by_pool.values()):
        return []
    # Of other devices there may be more or less in use: how much is known only where all are alike.
    alike = len({load for terms in model.loads.values() for load, _ in terms}) <= 1
    total = sum(search.total(terms) for terms in by_pool.values())
    limit = total if alike else sum(most_of_pools.values())
    step = gcd(*(load for terms in by_pool.values() for load, _ in terms))
    over_nodes = [
        _growth(
            search, measure, (loads.nodes[node], loads.capacity(node)), terms, min(limit, most_of_nodes[node]), step
        )
        for node, terms in by_node.items()
    ]
    over_pools = [
        _growth(
            search, measure, (loads.pools[at], loads.scale(at).capacity), terms, min(limit, most_of_pools[at]), step
        )
        for at, terms in by_pool.items()
    ]
    on_nodes = sum(search.total(terms) for terms in by_node.values())
    return [
        _with_minimum(over_nodes, (0 if on_nodes < total else total // step) if alike else None),
        _with_minimum(over_pools, total // step if alike else None),
    ]


def _with_minimum(costs: Sequence[LinearTerms], steps: int | None) -> tuple[LinearTerms, int | None]:
    """All of these costs, and their sum when so many steps are spread as evenly as there is room."""
    terms = [term for terms in costs for term in terms]
    divisor = gcd(*(weight for weight, _ in terms)) or 1
    terms = [(weight // divisor, variable) for weight, variable in terms]
    return terms, None if steps is None else sum(sorted(weight for weight, _ in terms)[:steps])


def _growth(
    search: GoalSearch, measure: Measure, now: tuple[int, int], terms: LinearTerms, most: int, step: int
) -> LinearTerms:
    """What the measure of a load grows by. ``now``: the load and the capacity; at most ``most`` comes on top."""
    (load, capacity), cp, more = now, search.model.cp, search.total(terms)
    most = max(most, more)
    step *= max(1, -(-most // (step * MAX_STEPS)))
    steps = [search.new_int(1, int(number * step < more)) for number in range(-(-most // step))]
    cp.add(sum(steps) * step >= sum(weight * variable for weight, variable in terms))
    return [(growth(load + number * step, capacity, step, measure), taken) for number, taken in enumerate(steps)]


def policy_cost(model: BatchModel, policy: PlacementPolicy) -> LinearTerms:
    """One cost to minimise: where loads are not weighed, fewest devices per share (S9); where those in use come first,
    nodes and pools not yet in use; where partitions are kept, what is lost of them; then the rest."""
    snapshot, usage = model.snapshot, model.usage
    nodes: LinearTerms = []
    pools: LinearTerms = []
    shares: LinearTerms = []
    largest: LinearTerms = []
    if policy.prefers_used:
        busy_pools = usage.pools_in_use()
        busy_nodes = {snapshot.pools[p].node for p in busy_pools}
        nodes = [(1, used) for node, used in model.nodes_used.items() if node not in busy_nodes]
        pools = [(1, used) for pool, used in model.pools_used.items() if pool not in busy_pools]
    if not policy.weighs_loads:
        shares = share_cost(model)
    if policy.keeps_partitions:
        largest = _largest_left(model)
    cost: LinearTerms = _order_of_devices(model)
    weight = 1 + sum(
        w * model.device_groups[group_index].size for (w, _), group_index in zip(cost, model.devices_used, strict=True)
    )
    for terms in (_natural_order(model), largest, pools, nodes, shares):
        if weight * max((abs(w) for w, _ in terms), default=0) < MAX_WEIGHT:
            cost += [(weight * w, v) for w, v in terms]
            weight *= 1 + sum(abs(w) for w, _ in terms)
    return [(w, v) for w, v in cost if w]


def order_cost(model: BatchModel) -> LinearTerms:
    """What is left to choose: earlier claims on nodes that come first."""
    last = len(model.units)
    placed = [(number, place, v) for number, places in model.places.items() for place, v in places.items()]
    for claim_group in model.claim_groups:
        placed += [(claim_group.units[0], site.place, v) for site in claim_group.sites for v in site.patterns.values()]
    among = {place for _, place, _ in placed}
    rank = {node: position for position, node in enumerate(node for node in model.nodes if node in among)}
    terms = [((last - number) * rank.get(place or "", 0), v) for number, place, v in placed]
    return [(weight, v) for weight, v in terms if weight]


def _largest_left(model: BatchModel) -> LinearTerms:
    """For each partitionable pool a claim may draw on: the largest device that can still be allocated, as a gain."""
    cp = model.cp
    gains: LinearTerms = []
    draws: dict[int, dict[str, LinearTerms]] = defaultdict(dict)
    for (pool_index, name), terms in model.draws.items():
        draws[pool_index][name] = terms
    for pool_index, by_resource in sorted(draws.items()):
        pool = model.snapshot.pools[pool_index]
        sizes: dict[tuple[tuple[str, int], ...], int] = {}
        for device in pool.devices:
            if device.undefined is None and device.unavailable is None and not model.usage.in_use(device):
                sizes[device.draws] = _share_of_pool(device.draws, {n: r.blocks for n, r in pool.resources.items()})
        if len(sizes) < 2:
            continue
        fitting = []
        for needed, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
            fits = cp.new_bool_var("")
            for name, blocks in needed:
                terms = [*by_resource.get(name, ()), (blocks, fits)]
                free = model.usage.free_pool_blocks(pool_index, name)
                add_at_most(cp, [v for _, v in terms], [amount for amount, _ in terms], free)
            fitting.append(fits)
            gains.append((-size, fits))
        cp.add_at_most_one(fitting)
    return gains


def _share_of_pool(draws: tuple[tuple[str, int], ...], capacity: dict[str, int]) -> int:
    return sum(1000 * blocks // capacity[name] for name, blocks in draws if capacity.get(name))


def _natural_order(model: BatchModel) -> LinearTerms:
    """Prefer nodes and pools that come first, counted among those that may be used: others must make no difference."""
    nodes = [model.nodes_used[node] for node in model.nodes if node in model.nodes_used]
    pools = [used for _, used in sorted(model.pools_used.items())]
    return [(rank, used) for in_order in (nodes, pools) for rank, used in enumerate(in_order) if rank]


def _order_of_devices(model: BatchModel) -> LinearTerms:
    """Prefer the devices of a pool that come first, one term per group.

    Which of the devices that draw the same go to which claim is dealt afterwards (``pipeline.natural_order``); without
    this, 17 of 212 random batches take devices that draw something else and come later.
    """
    pools, groups = model.snapshot.pools, model.device_groups
    used_pools = {groups[group_index].pool for group_index in model.devices_used}
    last = max([len(pools[pool].devices) for pool in used_pools if not pools[pool].comes_last], default=0)
    return [
        (
            groups[group_index].one.index
            - pools[groups[group_index].pool].devices[0].index
            + (last if pools[groups[group_index].pool].comes_last else 0),
            used,
        )
        for group_index, used in model.devices_used.items()
    ]
