"""A first answer: units in the order of claims, each on the first node that has room. What a deadline falls back on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Unit
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.place import OutOfSteps, place_on
from devalloc_solver.snapshot import Snapshot

STEPS = 2_000
"""Search steps for one unit on one node; a node that takes more is passed over."""


def place_greedily(
    snapshot: Snapshot, holdings: Sequence[Holding], units: Sequence[Unit], *, placement: str, ends: float
) -> list[Placement]:
    """Placements that are right but not always best, as many as come about before ``ends`` (monotonic time)."""
    ledger = Ledger.of(snapshot, holdings)
    found: list[Placement] = []
    hopeless: dict[object, int] = {}
    """kind of units -> how many of the nodes have no room for one: what a node has only gets less"""
    for unit in units:
        if time.monotonic() > ends:
            break
        nodes = _nodes(snapshot, unit)
        start = hopeless.get(unit.kind, 0) if unit.kind is not None else 0
        for position in range(start, len(nodes)):
            placed = _try(snapshot, ledger, unit, nodes[position], placement)
            if placed:
                for one in placed:
                    ledger.add(one.holding())
                found += placed
                break
        else:
            position = len(nodes)
        if unit.kind is not None:
            hopeless[unit.kind] = position
    return found


def _nodes(snapshot: Snapshot, unit: Unit) -> Sequence[str | None]:
    if unit.pin is not None:
        return [unit.pin]
    return snapshot.nodes or [None]


def _try(snapshot: Snapshot, ledger: Ledger, unit: Unit, node: str | None, placement: str) -> Sequence[Placement]:
    try:
        found = place_on(snapshot, ledger, unit, node, placement=placement, steps=STEPS)
    except OutOfSteps:
        return ()
    return () if found is None else found.placements
