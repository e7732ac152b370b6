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
    """per device group, of one device"""
    total: int
    """of all that is free"""


def resource_families(node_view: NodeView) -> list[ResourceFamily]:
    """The families that some device group draws on."""
    named = _FamilyNames()
    capacities: dict[str, set[int]] = defaultdict(set)
    for device_group in node_view.candidate_groups:
        for name, _ in device_group.draws:
            capacities[named[name]].add(node_view.pools[device_group.pool].resources[name].blocks)
    drawn = []
    for family, sizes in capacities.items():
        unit = lcm(*(size for size in sizes if size))
        shares: list[dict[str, int]] = []
        total = 0
        for pool in node_view.pools:
            # A resource without demand may have an odd size: leaving it out is no loss.
            own_blocks = {n: r.blocks for n, r in pool.resources.items() if r.blocks in sizes and named[n] == family}
            shares.append({name: unit // blocks for name, blocks in own_blocks.items() if blocks})
            total += sum(s * node_view.usage.free_pool_blocks(pool.index, name) for name, s in shares[-1].items())
        weights = tuple(
            sum(blocks * shares[device_group.pool].get(name, 0) for name, blocks in device_group.draws)
            for device_group in node_view.candidate_groups
        )
        drawn.append(ResourceFamily(weights, total))
    return drawn


class _FamilyNames(dict[str, str]):
    """resource -> its family"""

    def __missing__(self, name: str) -> str:
        family = self[name] = _DIGITS.sub("#", name)
        return family
