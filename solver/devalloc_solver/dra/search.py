"""The search for devices: the exact placement on a node, and where its steps run out, the exact model."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Unit
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.place import OutOfSteps, place
from devalloc_solver.snapshot import Snapshot


def find(
    snapshot: Snapshot,
    holdings: Sequence[Holding],
    unit: Unit,
    *,
    ledger: Ledger | None = None,
    placement: str = "pack",
    ends: float | None = None,
) -> list[Placement] | None:
    """A placement of every demand of the unit, best first by S17; None when it is proven that there is none.

    ``ledger`` is what the holdings add up to, where that is known. Raises OutOfTime where neither is known at the
    monotonic time ``ends``.
    """
    try:
        found = place(snapshot, ledger or Ledger.of(snapshot, holdings), unit, placement=placement)
        return None if found is None else list(found.placements)
    except OutOfSteps:
        from devalloc_solver.search import solve_unit

        return solve_unit(snapshot, holdings, unit, placement, ends) or None
