"""Place one unit: by the exact placement search, and where its steps run out, by the exact model."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.place import DEFAULT_STEPS, StepBudget, StepsExhausted, place
from devalloc_solver.problem.allocations import Allocation, Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Snapshot


def place_unit(
    snapshot: Snapshot,
    allocations: Sequence[Allocation],
    unit: PlacementUnit,
    *,
    usage: Usage | None = None,
    placement: str = "pack",
    ends: float | None = None,
) -> list[Placement] | None:
    """A placement of every demand of the unit, best first by S17; None when it is proven that there is none.

    ``usage`` is what the allocations add up to, where that is known. Raises OutOfTime where neither is known at the
    monotonic time ``ends``.
    """
    try:
        steps = StepBudget(DEFAULT_STEPS, ends)
        placed = place(snapshot, usage or Usage.of(snapshot, allocations), unit, placement=placement, steps=steps)
        return None if placed is None else list(placed.placements)
    except StepsExhausted:
        from devalloc_solver.pipeline.strategy import solve_unit

        return solve_unit(snapshot, allocations, unit, placement, ends) or None
