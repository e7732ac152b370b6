"""The placement policies and how they measure (S17, goal 5).

``pack`` counts nodes and pools that come into use, and what is lost of large partitions
(``bounds.largest_partition``). ``spread`` sums the squares of the devices in use of each node, then of each pool.

ARCHITECTURE.md ("Where do I change what?") lists the modules that apply them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devalloc_solver.problem.allocations import Usage
    from devalloc_solver.problem.placement import Placement
    from devalloc_solver.problem.snapshot import Snapshot

POLICIES = ("pack", "spread")


def check_policy(placement: str) -> None:
    """Raise ValueError for what is no placement policy."""
    if placement not in POLICIES:
        raise ValueError(f"placement must be one of {', '.join(POLICIES)}, not {placement!r}")


def sum_of_squares(loads: Iterable[int]) -> int:
    """How unevenly devices are spread: the less the better (S17, goal 5)."""
    return sum(load * load for load in loads)


def square_growth(load: int, more: int) -> int:
    """What ``sum_of_squares`` grows by when something that has a load gets more of it."""
    return more * (2 * load + more)


def load_by_node(snapshot: Snapshot, by_pool: Mapping[int, int]) -> Counter[str]:
    """Devices of each node, told from those of each pool."""
    loads: Counter[str] = Counter()
    for pool, count in by_pool.items():
        if (node := snapshot.pools[pool].node) is not None:
            loads[node] += count
    return loads


def unevenness(snapshot: Snapshot, before: Usage, placements: Iterable[Placement]) -> tuple[int, int]:
    """How well placements spread beside what was in use before: the squares of nodes, then those of pools."""
    entries = (entry for placed in placements for entry in placed.entries if not entry.request.mode.is_admin)
    new = {entry.device.index: entry.device.pool for entry in entries if not before.in_use(entry.device)}
    pools = before.devices_in_use()
    pools.update(new.values())
    return sum_of_squares(load_by_node(snapshot, pools).values()), sum_of_squares(pools.values())
