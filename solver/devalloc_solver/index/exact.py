"""One unit on one node, exactly, whatever it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Unit
from devalloc_solver.holdings import Held, Holding, Ledger
from devalloc_solver.place import OutOfSteps, place_on
from devalloc_solver.place.score import loss
from devalloc_solver.snapshot import Snapshot


def place(
    snapshot: Snapshot, ledger: Ledger, unit: Unit, node: str | None, placement: str
) -> tuple[Sequence[Placement], int]:
    """The best placements of the unit's demands on a snapshot of what one node reaches; empty when it does not fit.

    With what is lost of large partitions, where the policy minds (S17, goal 5).
    """
    try:
        found = place_on(snapshot, ledger, unit, node, placement=placement)
        placements = () if found is None else found.placements
    except OutOfSteps:
        placements = (*_by_model(snapshot, ledger, unit, placement),)
    entries = (entry for placed in placements for entry in placed.entries)
    return placements, loss(snapshot, ledger, entries) if placement == "pack" else 0


def _by_model(snapshot: Snapshot, ledger: Ledger, unit: Unit, placement: str) -> Sequence[Placement]:
    """CP-SAT, which is imported only here: for what counting does not settle."""
    from devalloc_solver.assignment import name_devices
    from devalloc_solver.goals import optimize
    from devalloc_solver.model import build_model

    search, _ = optimize(build_model(snapshot, [_holding(ledger)], [unit]), placement=placement, ends=None)
    return name_devices(search)


def _holding(ledger: Ledger) -> Holding:
    items = [Held(index, None) for index in sorted(ledger.whole)]
    items += [Held(index, tuple(sorted(amounts.items()))) for index, amounts in sorted(ledger.shared.items())]
    return Holding(("", ""), 0, tuple(items))
