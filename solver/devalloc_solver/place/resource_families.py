"""Pool resources by family: what partitions of equal cards draw on, weighed alike.

``gpu-0-slices`` and ``gpu-1-slices`` are of one family. A device weighs what it draws, as a fraction of the capacity;
no choice of devices weighs more than all that is free of the family.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from math import lcm

from devalloc_solver.place.node_view import NodeView

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class ResourceFamily:
    """Integer weights: fractions with one denominator."""

    weights: tuple[int, ...]
    """per lot, of one device"""
    total: int
    """of all that is free"""


def resource_families(site: NodeView) -> list[ResourceFamily]:
    """The families that some lot draws on."""
    named = _FamilyNames()
    capacities: dict[str, set[int]] = defaultdict(set)
    for lot in site.lots:
        for name, _ in lot.draws:
            capacities[named[name]].add(site.pools[lot.pool].resources[name].blocks)
    drawn = []
    for family, sizes in capacities.items():
        unit = lcm(*(size for size in sizes if size))
        shares: list[dict[str, int]] = []
        total = 0
        for pool in site.pools:
            # A resource without demand may have an odd size: leaving it out is no loss.
            own_blocks = {n: r.blocks for n, r in pool.resources.items() if r.blocks in sizes and named[n] == family}
            shares.append({name: unit // blocks for name, blocks in own_blocks.items() if blocks})
            total += sum(s * site.ledger.free_pool_blocks(pool.index, name) for name, s in shares[-1].items())
        weights = tuple(sum(blocks * shares[lot.pool].get(name, 0) for name, blocks in lot.draws) for lot in site.lots)
        drawn.append(ResourceFamily(weights, total))
    return drawn


class _FamilyNames(dict[str, str]):
    """resource -> its family"""

    def __missing__(self, name: str) -> str:
        family = self[name] = _DIGITS.sub("#", name)
        return family
