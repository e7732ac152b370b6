"""The policy: among covers of as few pools and devices, the one that packs or spreads best (S17, goals 5 and 6)."""

from __future__ import annotations

from devalloc_solver.place.cells import make_yards
from devalloc_solver.place.cover import Cover, Taste, improve
from devalloc_solver.place.ground import Ground
from devalloc_solver.place.settle import Settled
from devalloc_solver.place.steps import OutOfSteps, Steps

_STEPS = 2_000
"""The policy is a preference: it may cost so much and no more."""
_RANK, _LOSS, _BUSY, _DEVICE = 1, 1 << 32, 1 << 64, 1 << 96
"""Weights of which one always outweighs all that come before."""


def polish(ground: Ground, settled: Settled, steps: Steps) -> Cover:
    """The cover to the taste of a policy, or the one at hand where that takes too long."""
    lanes, found = settled.lanes, settled.cover
    pools = lanes.stock.site.pools
    if not found.parts or (found.yards == found.pools and not any(lot.draws for lot in lanes.stock.site.lots)):
        return found
    own = Steps(min(_STEPS, steps.left))
    try:
        yards = make_yards(lanes, own, ground.partitions if ground.packs else None)
        opening = tuple(_RANK * rank + _BUSY * ground.cost_of_pool(pool.index, 1) for rank, pool in enumerate(pools))
        return improve(lanes, yards, found, Taste(opening, _DEVICE, _LOSS if ground.packs else 0), own)
    except OutOfSteps:
        return found
    finally:
        steps.left -= min(_STEPS, steps.left) - own.left
