"""How evenly devices are spread over nodes and pools: the measure of goal 5 of S17 for ``spread``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc_solver.assignment import Placement
    from devalloc_solver.holdings import Ledger
    from devalloc_solver.snapshot import Snapshot


def squares(loads: Iterable[int]) -> int:
    """How unevenly devices are spread: the less the better (S17, goal 5)."""
    return sum(load * load for load in loads)


def added(load: int, more: int) -> int:
    """What ``squares`` grows by when something that has a load gets more of it."""
    return more * (2 * load + more)


def loads_of_nodes(snapshot: Snapshot, by_pool: Mapping[int, int]) -> Counter[str]:
    """Devices of each node, told from those of each pool."""
    loads: Counter[str] = Counter()
    for pool, count in by_pool.items():
        if (node := snapshot.pools[pool].node) is not None:
            loads[node] += count
    return loads


def unevenness(snapshot: Snapshot, before: Ledger, placements: Iterable[Placement]) -> tuple[int, int]:
    """How well placements spread beside what was in use before: the squares of nodes, then those of pools."""
    entries = (entry for placed in placements for entry in placed.entries if not entry.slot.mode.is_admin)
    new = {entry.device.index: entry.device.pool for entry in entries if not before.in_use(entry.device)}
    pools = before.devices_in_use()
    pools.update(new.values())
    return squares(loads_of_nodes(snapshot, pools).values()), squares(pools.values())
