"""Which nodes to look at, in which order, and which of them are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from devalloc_solver.demand import Mode, Slot, Unit
from devalloc_solver.loads import loads_of_nodes
from devalloc_solver.place.ground import Ground
from devalloc_solver.place.site import Place, Site, state_of
from devalloc_solver.snapshot import Snapshot


def nodes_of(ground: Ground, unit: Unit) -> list[Place]:
    """Nodes where every detail has some candidate, the preferred first: those in use to pack, those with the fewest
    devices in use to spread.

    A unit is always on some node, where there is any (S7).
    """
    if unit.pin is not None:
        return [unit.pin]
    snapshot = ground.snapshot
    if not snapshot.nodes:
        return [None]
    found: dict[str, int] | None = None
    known: dict[object, dict[str, int] | None] = {}
    for detail in (detail for demand in unit.demands for detail in demand.details):
        key = _accepted_by(detail)
        if key not in known:
            known[key] = _nodes_with(snapshot, detail)
        if (nodes := known[key]) is not None:
            least = min(slot.least if slot.mode in (Mode.WHOLE, Mode.ADMIN_COUNT) else 1 for slot in detail)
            enough = {node: count for node, count in nodes.items() if count >= least}
            found = enough if found is None else {node: 0 for node in found if node in enough}
    order = {node: rank for rank, node in enumerate(snapshot.nodes)}
    names = [*(order if found is None else found)]
    if ground.packs:
        busy = {snapshot.pools[index].node for index in ground.ledger.pools_in_use()}
        return [*sorted(names, key=lambda node: (node not in busy, order[node]))]
    loads = loads_of_nodes(snapshot, ground.ledger.devices_in_use())
    return [*sorted(names, key=lambda node: (loads[node], order[node]))]


def _accepted_by(detail: Sequence[Slot]) -> object:
    """Equal for details with the same candidates."""
    return id(detail[0].candidates.accepted) if len(detail) == 1 else tuple([id(s.candidates.accepted) for s in detail])


def _nodes_with(snapshot: Snapshot, detail: Sequence[Slot]) -> dict[str, int] | None:
    """The nodes that have candidates, in use or not, and no fewer than counted; None where network devices may do."""
    nodes: dict[str, int] = defaultdict(int)
    for accepted in {id(slot.candidates.accepted): slot.candidates.accepted for slot in detail}.values():
        for index in accepted:
            node = snapshot.pools[snapshot.devices[index].pool].node
            if node is None:
                return None
            nodes[node] += 1
    return nodes


def fewest_pools(snapshot: Snapshot, unit: Unit) -> int:
    """No node has a placement on fewer pools: details whose candidates have no pool in common need one each."""
    count, used = 0, set[int]()
    seen: set[object] = set()
    for detail in (detail for demand in unit.demands for detail in demand.details):
        if (key := _accepted_by(detail)) in seen:
            continue  # its pools are used, or there are none
        seen.add(key)
        pools = {snapshot.devices[index].pool for slot in detail for index in slot.candidates.accepted}
        if not pools & used:
            count, used = count + 1, used | pools
    return count


def kind_of(ground: Ground, site: Site) -> object:
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
            ground.use(pool.index),
            tuple((name, ledger.free_pool_blocks(pool.index, name)) for name in sorted(pool.resources)),
            frozenset(ledger.groups.get(pool.index, ())),
            tuple(ground.partitions(pool)) if ground.packs and pool.resources else (),
        )
        for pool in site.pools
    )
    return lots, pools
