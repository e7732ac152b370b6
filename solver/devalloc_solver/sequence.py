"""Large batches: units one by one, each placed exactly on what the ones before it left.

What comes out is right but not always best; the bounds say how far from best it can be. A unit that does not fit even
before the batch starts can never be satisfied, so it does not count in the bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.assignment import Placement, name_devices
from devalloc_solver.demand import Unit
from devalloc_solver.goals import Level, Search, optimize
from devalloc_solver.holdings import Holding
from devalloc_solver.model import build_model
from devalloc_solver.snapshot import Snapshot


def place_one_by_one(
    snapshot: Snapshot,
    holdings: Sequence[Holding],
    units: Sequence[Unit],
    *,
    placement: str,
    ends: float | None,
) -> tuple[list[Placement], list[Level]]:
    """Placements in the order of the units, and the satisfied counts with their bounds per priority."""
    held = list(holdings)
    placements: list[Placement] = []
    satisfied: dict[int, int] = {}
    possible: dict[int, int] = {}
    denied: dict[object, bool] = {}
    """kind of a unit that found no place -> whether it might have, before the batch; an equal one fares no better"""
    for unit in units:
        kind = unit.kind
        found = [] if kind in denied else _place(snapshot, held, unit, placement, ends)
        fits = bool(found) or (denied[kind] if kind in denied else _may_fit(snapshot, holdings, unit, ends))
        if not found and kind is not None:
            denied[kind] = fits
        placements += found
        held += [p.holding() for p in found]
        for demand in unit.demands:
            priority = demand.claim.priority
            satisfied[priority] = satisfied.get(priority, 0) + bool(found)
            possible[priority] = possible.get(priority, 0) + fits
    levels = [Level("satisfied", satisfied[p], possible[p], p) for p in sorted(satisfied, reverse=True)]
    chosen = {(p.demand.key, e.slot.detail): e.slot.alternative for p in placements for e in p.entries}
    indexes = [alternative for alternative in chosen.values() if alternative is not None]
    pools = {e.device.pool for p in placements for e in p.entries}
    devices = {e.device.index for p in placements for e in p.entries}
    if indexes:
        levels.append(Level("oneOf", sum(indexes), 0))
    levels.append(Level("pools", len(pools), int(bool(pools))))
    levels.append(Level("devices", len(devices), int(bool(devices))))
    return placements, levels


def _place(
    snapshot: Snapshot, held: Sequence[Holding], unit: Unit, placement: str, ends: float | None
) -> list[Placement]:
    search, _ = optimize(build_model(snapshot, held, [unit]), placement=placement, ends=ends)
    return name_devices(search)


def _may_fit(snapshot: Snapshot, held: Sequence[Holding], unit: Unit, ends: float | None) -> bool:
    """False only when it is proven that the unit does not fit."""
    search = Search(build_model(snapshot, held, [unit]), ends)
    _, bound = search.maximize([(1, search.model.satisfied[0])], best=1)
    return bound > 0
