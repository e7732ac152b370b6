"""Which nodes to look at, in which order, and which of them are alike."""

from __future__ import annotations

from devalloc_solver.place.asks import Asks
from devalloc_solver.place.site import Place, Site, state_of
from devalloc_solver.snapshot import Snapshot


def nodes_of(asks: Asks, snapshot: Snapshot, busy: set[int], placement: str) -> list[Place]:
    """Nodes where every detail has some candidate, the preferred first: in use to pack, not in use to spread.

    A unit is always on some node, where there is any (S7).
    """
    if asks.unit.pin is not None:
        return [asks.unit.pin]
    found: dict[str, int] | None = None
    for detail in asks.details:
        nodes = _nodes_of_detail(asks, snapshot, detail)
        if nodes is not None:
            found = nodes if found is None else {node: 0 for node in found if node in nodes}
    order: dict[Place, int] = {node: rank for rank, node in enumerate(snapshot.nodes)}
    if found is None:
        found = dict.fromkeys(snapshot.nodes, 0)
        if not order:
            return [None]
    busy_nodes = {snapshot.pools[index].node for index in busy}
    pack = placement == "pack"
    preferred: list[Place] = []
    preferred += sorted(found, key=lambda node: ((node in busy_nodes) != pack, order[node]))
    return preferred


def _nodes_of_detail(asks: Asks, snapshot: Snapshot, detail: int) -> dict[str, int] | None:
    """None where network devices may do."""
    nodes: dict[str, int] = {}
    for accepted, mask in asks.sets:
        if mask & detail:
            for index in accepted:
                node = snapshot.pools[snapshot.devices[index].pool].node
                if node is None:
                    return None
                nodes[node] = 0
    return nodes


def kind_of(site: Site, busy: set[int]) -> object:
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
            state_of(asks, lot.one, ledger),
            tuple(tuple(rename(name, v) for v in sorted(lot.one.values(name), key=repr)) for name in names),
        )
        for lot in site.lots
    )
    pools = tuple(
        (
            pool.index if pool.node is None else None,
            pool.index in busy,
            tuple((name, ledger.free_pool_blocks(pool.index, name)) for name in sorted(pool.resources)),
            frozenset(ledger.groups.get(pool.index, ())),
        )
        for pool in site.pools
    )
    return lots, pools
