"""One unit on one node, exactly, whatever it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Unit
from devalloc_solver.holdings import Held, Holding, Ledger
from devalloc_solver.place import OutOfSteps, place_on
from devalloc_solver.place.score import loss
from devalloc_solver.search import solve_unit
from devalloc_solver.snapshot import Snapshot


def place(
    snapshot: Snapshot, ledger: Ledger, unit: Unit, node: str | None, placement: str, ends: float | None = None
) -> tuple[Sequence[Placement], int]:
    """The best placements of the unit's demands on a snapshot of what one node reaches; empty when it does not fit.

    With what is lost of large partitions, where the policy minds (S17, goal 5). Raises OutOfTime where nothing is known
    at the monotonic time ``ends``.
    """
    try:
        found = place_on(snapshot, ledger, unit, node, placement=placement)
        placements = () if found is None else found.placements
    except OutOfSteps:
        placements = (*solve_unit(snapshot, [_holding(ledger)], unit, placement, ends),)
    entries = (entry for placed in placements for entry in placed.entries)
    return placements, loss(snapshot, ledger, entries) if placement == "pack" else 0


def _holding(ledger: Ledger) -> Holding:
    items = [Held(index, None) for index in sorted(ledger.whole)]
    items += [Held(index, tuple(sorted(amounts.items()))) for index, amounts in sorted(ledger.shared.items())]
    return Holding(("", ""), 0, tuple(items))
