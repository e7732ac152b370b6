"""One unit on one node, exactly, whatever it asks for."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.assignment import Placement, name_devices
from devalloc_solver.demand import Unit
from devalloc_solver.goals import optimize
from devalloc_solver.holdings import Held, Holding, Ledger
from devalloc_solver.model import build_model
from devalloc_solver.snapshot import Snapshot


def place(snapshot: Snapshot, ledger: Ledger, unit: Unit, placement: str) -> Sequence[Placement]:
    """The best placements of the unit's demands on a snapshot of what one node reaches; empty when it does not fit."""
    search, _ = optimize(build_model(snapshot, [_holding(ledger)], [unit]), placement=placement, ends=None)
    return name_devices(search)


def _holding(ledger: Ledger) -> Holding:
    items = [Held(index, None) for index in sorted(ledger.whole)]
    items += [Held(index, tuple(sorted(amounts.items()))) for index, amounts in sorted(ledger.shared.items())]
    return Holding(("", ""), 0, tuple(items))
