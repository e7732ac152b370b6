"""Placing a unit: node by node, the preferred first, one of each kind."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Unit
from devalloc_solver.holdings import Ledger
from devalloc_solver.place.asks import Asks, read_unit
from devalloc_solver.place.choose import Chooser
from devalloc_solver.place.hand import hand_out
from devalloc_solver.place.nodes import kind_of, nodes_of
from devalloc_solver.place.polish import polish
from devalloc_solver.place.score import Score, score_of
from devalloc_solver.place.screen import Screen
from devalloc_solver.place.site import Place, survey
from devalloc_solver.place.steps import DEFAULT, Steps
from devalloc_solver.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Found:
    """Where a unit goes."""

    placements: tuple[Placement, ...]
    score: Score


def place(
    snapshot: Snapshot, ledger: Ledger, unit: Unit, *, placement: str = "pack", steps: int = DEFAULT
) -> Found | None:
    """The best placement of a unit on what is free: proven for goals 2 to 4 of S17. None: it fits nowhere, proven.

    Args:
        snapshot: the fleet.
        ledger: what is in use.
        unit: claims that share a node and are placed all or none.
        placement: ``pack`` or ``spread`` (goal 5).
        steps: the budget.

    Raises:
        OutOfSteps: the budget is spent, or the unit has something that this search does not handle.
    """
    asks = read_unit(unit)
    budget = Steps(steps)
    busy = ledger.pools_in_use()
    best: Found | None = None
    seen: set[object] = set()
    for node in nodes_of(asks, snapshot, busy, placement):
        found = _on(asks, snapshot, ledger, node, busy, placement, budget, best, seen)
        if found is not None and (best is None or found.score < best.score):
            best = found
    return best


def place_on(
    snapshot: Snapshot, ledger: Ledger, unit: Unit, node: Place, *, placement: str = "pack", steps: int = DEFAULT
) -> Found | None:
    """The same on one node (None: network devices only), whatever node the unit is pinned to."""
    asks = read_unit(unit)
    return _on(asks, snapshot, ledger, node, ledger.pools_in_use(), placement, Steps(steps), None, set())


def _on(
    asks: Asks,
    snapshot: Snapshot,
    ledger: Ledger,
    node: Place,
    busy: set[int],
    placement: str,
    steps: Steps,
    best: Found | None,
    seen: set[object],
) -> Found | None:
    """The best on one node, if it may be better than ``best``; None for a node like one of ``seen``."""
    site = survey(asks, snapshot, ledger, node)
    kind = kind_of(site, busy)
    if kind in seen:
        return None
    seen.add(kind)
    chooser = Chooser(Screen(site), steps)
    found = chooser.best(None if best is None else best.score.one_of)
    if found is None:
        return None
    _, settled = found
    cover = polish(settled, busy, placement, steps)
    placements = hand_out(settled.lanes, cover, settled.chosen)
    return Found(placements, score_of(snapshot, ledger, placements, node, busy, placement))
