"""Which way to an answer: a single unit is placed, a batch goes to the exact model, a large one into columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from devalloc_solver.assignment import Placement, name_devices
from devalloc_solver.demand import Unit
from devalloc_solver.goals import Level, optimize
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.model import build_model, model_size
from devalloc_solver.place import OutOfSteps, place
from devalloc_solver.snapshot import Snapshot

EXACT_SIZE = 4_000
"""Variables up to which a batch is solved as one exact model; beyond, it is decomposed into columns."""


def find_placements(
    snapshot: Snapshot, holdings: Sequence[Holding], units: Sequence[Unit], *, placement: str, ends: float | None
) -> tuple[list[Placement], list[Level]]:
    """The placements of the units that are satisfied, and each goal of S17 with its bound.

    Args:
        holdings: what is in use already.
        placement: ``pack`` or ``spread``.
        ends: monotonic time of the deadline, None for none.
    """
    if not units:
        return [], []
    if len(units) == 1 and (alone := _place_alone(snapshot, holdings, units[0], placement)) is not None:
        return alone
    if model_size(snapshot, Ledger.of(snapshot, holdings), units, enough=EXACT_SIZE) > EXACT_SIZE:
        from devalloc_solver.columns import allocate_batch  # brings numpy: for large batches only

        return allocate_batch(snapshot, holdings, units, placement=placement, ends=ends)
    search, levels = optimize(build_model(snapshot, holdings, units), placement=placement, ends=ends)
    return name_devices(search), levels


def _place_alone(
    snapshot: Snapshot, holdings: Sequence[Holding], unit: Unit, placement: str
) -> tuple[list[Placement], list[Level]] | None:
    """A single unit needs no general solver, and is proven in all goals; None where the question is too hard."""
    try:
        found = place(snapshot, Ledger.of(snapshot, holdings), unit, placement=placement)
    except OutOfSteps:
        return None
    members = Counter(demand.claim.priority for demand in unit.demands)
    counts = {priority: members[priority] if found else 0 for priority in sorted(members, reverse=True)}
    levels = [Level("satisfied", count, count, priority, choice=True) for priority, count in counts.items()]
    if found is None:
        return [], [*levels, Level("pools", 0, 0), Level("devices", 0, 0)]
    score = found.score
    if score.one_of:
        levels.append(Level("oneOf", sum(score.one_of), sum(score.one_of)))
    levels += [Level("pools", score.pools, score.pools), Level("devices", score.devices, score.devices)]
    return list(found.placements), levels
