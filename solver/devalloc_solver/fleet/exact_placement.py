"""Place one unit on one node exactly, whatever it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.pipeline.strategy import solve_unit
from devalloc_solver.place import StepsExhausted, place_on
from devalloc_solver.place.score import largest_partition_loss
from devalloc_solver.problem.allocations import AllocatedDevice, Allocation, Usage
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Snapshot


def place_exactly(
    snapshot: Snapshot, ledger: Usage, unit: PlacementUnit, node: str | None, placement: str, ends: float | None = None
) -> tuple[Sequence[Placement], int]:
    """The best placements of the unit's demands on a snapshot of what one node reaches; empty when it does not fit.

    With what is lost of large partitions, where the policy minds (S17, goal 5). Raises OutOfTime where nothing is known
    at the monotonic time ``ends``.
    """
    try:
        answer = place_on(snapshot, ledger, unit, node, placement=placement)
        placements = () if answer is None else answer.placements
    except StepsExhausted:
        placements = (*solve_unit(snapshot, [_as_allocation(ledger)], unit, placement, ends),)
    entries = (entry for placed in placements for entry in placed.entries)
    return placements, largest_partition_loss(snapshot, ledger, entries) if placement == "pack" else 0


def _as_allocation(ledger: Usage) -> Allocation:
    items = [AllocatedDevice(index, None) for index in sorted(ledger.whole)]
    items += [
        AllocatedDevice(index, tuple(sorted(amounts.items()))) for index, amounts in sorted(ledger.shared.items())
    ]
    return Allocation(("", ""), 0, tuple(items))
