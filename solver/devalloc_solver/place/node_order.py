"""Which nodes to try, in which order, and which of them are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from devalloc_solver.place.node_view import NodeView, Place, device_state
from devalloc_solver.place.search_context import SearchContext
from devalloc_solver.problem.balance import load_by_node
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot


def candidate_nodes(ground: SearchContext, unit: PlacementUnit) -> list[Place]:
    """Nodes where every detail has some candidate, the preferred first: those in use to pack, those with the fewest
    devices in use to spread.

    A unit is always on some node, where there is any (S7).
    """
    if unit.pin is not None:
        return [unit.pin]
    snapshot = ground.snapshot
    if not snapshot.nodes:
        return [None]
    common: dict[str, int] | None = None
    cached: dict[object, dict[str, int] | None] = {}
    for detail in (detail for demand in unit.demands for detail in demand.details):
        key = _detail_key(detail)
        if key not in cached:
            cached[key] = _nodes_with(snapshot, detail)
        if (nodes := cached[key]) is not None:
            least = min(
                request.least if request.mode in (AllocationMode.WHOLE, AllocationMode.ADMIN_COUNT) else 1
                for request in detail
            )
            enough = {node: count for node, count in nodes.items() if count >= least}
            common = enough if common is None else {node: 0 for node in common if node in enough}
    order = {node: rank for rank, node in enumerate(snapshot.nodes)}
    names = [*(order if common is None else common)]
    if ground.packs:
        busy = {snapshot.pools[index].node for index in ground.ledger.pools_in_use()}
        return [*sorted(names, key=lambda node: (node not in busy, order[node]))]
    loads = load_by_node(snapshot, ground.ledger.devices_in_use())
    return [*sorted(names, key=lambda node: (loads[node], order[node]))]


def _detail_key(detail: Sequence[Request]) -> object:
    """Equal for details with the same candidates."""
    return id(detail[0].candidates.accepted) if len(detail) == 1 else tuple([id(s.candidates.accepted) for s in detail])


def _nodes_with(snapshot: Snapshot, detail: Sequence[Request]) -> dict[str, int] | None:
    """The nodes that have candidates, in use or not, and no fewer than counted; None where network devices may do."""
    nodes: dict[str, int] = defaultdict(int)
    for accepted in {id(request.candidates.accepted): request.candidates.accepted for request in detail}.values():
        for index in accepted:
            node = snapshot.pools[snapshot.devices[index].pool].node
            if node is None:
                return None
            nodes[node] += 1
    return nodes


def min_pools(snapshot: Snapshot, unit: PlacementUnit) -> int:
    """No node has a placement on fewer pools: details whose candidates have no pool in common need one each."""
    count, used = 0, set[int]()
    seen: set[object] = set()
    for detail in (detail for demand in unit.demands for detail in demand.details):
        if (key := _detail_key(detail)) in seen:
            continue  # its pools are used, or there are none
        seen.add(key)
        pools = {snapshot.devices[index].pool for request in detail for index in request.candidates.accepted}
        if not pools & used:
            count, used = count + 1, used | pools
    return count


def node_key(ground: SearchContext, site: NodeView) -> object:
    """Equal for nodes where the unit fares alike, up to a renaming of attribute values that only they carry."""
    asks, ledger = site.asks, site.ledger
    names = asks.names
    shared = {
        value
        for lot in site.lots
        if site.pools[lot.pool].node is None
        for name in names
        for value in lot.one.values(name)
    }
    renamed: dict[object, int] = {}

    def rename(name: str, value: object) -> object:
        return value if value in shared else renamed.setdefault((name, value), len(renamed))

    lots = tuple(
        (
            lot.pool,
            lot.size,
            lot.accepted,
            lot.takers,
            device_state(asks, lot.one, ledger),
            tuple(tuple(rename(name, v) for v in sorted(lot.one.values(name), key=repr)) for name in names),
        )
        for lot in site.lots
    )
    pools = tuple(
        (
            pool.index if pool.node is None else None,
            ground.use(pool.index),
            tuple((name, ledger.free_pool_blocks(pool.index, name)) for name in sorted(pool.resources)),
            frozenset(ledger.groups.get(pool.index, ())),
            tuple(ground.partitions(pool)) if ground.packs and pool.resources else (),
        )
        for pool in site.pools
    )
    return lots, pools
