"""The joint allocation of a large batch: every level of S17 with its value and a bound."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from devalloc_solver.assignment import Placement
from devalloc_solver.columns.board import Board, Cache, set_up
from devalloc_solver.columns.counting import count_devices
from devalloc_solver.columns.extent import fewest_devices, fewest_pools
from devalloc_solver.columns.kinds import Kind, split_units
from devalloc_solver.columns.levels import TOLERANCE, Decider
from devalloc_solver.columns.naming import name_devices
from devalloc_solver.columns.sharing import share_amounts
from devalloc_solver.columns.singles import Singles
from devalloc_solver.demand import Unit
from devalloc_solver.goals import Level
from devalloc_solver.greedy import orders, place_greedily
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.loads import loads_of_nodes
from devalloc_solver.snapshot import Snapshot

GRACE = 0.2
"""Seconds that a board may take to set up if less time than that is left."""


def allocate_batch(
    snapshot: Snapshot,
    holdings: Sequence[Holding],
    units: Sequence[Unit],
    *,
    placement: str,
    ends: float | None,
) -> tuple[list[Placement], list[Level]]:
    """Placements of the units that can be satisfied, and the levels of S17 in their order.

    Args:
        snapshot: the fleet.
        holdings: what is in use and stays so.
        units: in the order in which they are to be satisfied.
        placement: ``pack`` or ``spread``.
        ends: monotonic time at which to answer with the best found so far; None for as long as it takes.
    """
    batch = _Batch(snapshot, holdings, units, placement, ends)
    batch.run()
    return batch.placements, batch.levels()


def allocate_quickly(
    snapshot: Snapshot,
    holdings: Sequence[Holding],
    units: Sequence[Unit],
    *,
    placement: str,
    ends: float | None,
) -> tuple[list[Placement], list[Level]] | None:
    """The same, if all units are columns' and these are soon found; else None, after some milliseconds."""
    batch = _Batch(snapshot, holdings, units, placement, ends, is_quick=True)
    return (batch.placements, batch.levels()) if batch.run() else None


@dataclass(slots=True, eq=False)
class _Batch:
    snapshot: Snapshot
    holdings: Sequence[Holding]
    units: Sequence[Unit]
    placement: str
    ends: float | None
    is_quick: bool = False
    """whether to give up on units that are no column's, and columns that take long to find"""
    placements: list[Placement] = field(default_factory=list)
    bounds: dict[int, int] = field(default_factory=dict)
    """priority -> claims that can be satisfied at the most"""
    cache: Cache = field(default_factory=dict)
    least_ranks: int = 0
    """a lower bound of the sum of chosen alternatives, where columns are all there is"""
    is_greedy: bool = False
    """whether a first fit was better"""
    singles: Singles = field(init=False)

    def run(self) -> bool:
        """Level after level. Where a level has units that are no column's, they are placed before its columns.

        Whether there is an answer: always, but for a quick one.
        """
        ledger = Ledger.of(self.snapshot, self.holdings)
        self.singles = Singles(self.snapshot, self.holdings, ledger, self.placement, self.ends)
        kinds, others = split_units(self.snapshot, self.units)
        if self.is_quick and others:
            return False
        board, refused = self.set_up(ledger, kinds)
        if self.is_quick and (refused or len(board.network.stubs)):
            return False
        alone: dict[int, list[Unit]] = {}
        turn = {id(unit): position for position, unit in enumerate(self.units)}
        others += [unit for kind in refused for unit in kind.units]
        for unit in sorted(others, key=lambda unit: turn[id(unit)]):
            alone.setdefault(unit.demands[0].claim.priority, []).append(unit)
        waiting: list[Kind] = []
        for priority in sorted({*board.priorities, *alone}, reverse=True):
            if priority in alone:
                self.columns(waiting, None)
                waiting = []
                for unit in alone[priority]:
                    self.placements += self.singles.place(unit)
            waiting += [kind for kind in board.kinds if kind.priority == priority]
        self.columns(waiting, None if alone else board)
        is_partial = bool(alone) or len(board.network.stubs) > 0
        if is_partial:
            self.prove(board if alone else None)
        if self.falls_short(0 if is_partial else TOLERANCE) and self.compare():
            self.prove(board)  # of a level that lost, what was found holds no more for those below
        return True

    def set_up(self, ledger: Ledger, kinds: Sequence[Kind]) -> tuple[Board, list[Kind]]:
        ends, now = self.ends, time.monotonic()
        if ends is not None:
            # The first packing of a board is better than a first fit; if it is not soon there, a model may be.
            ends = (now + ends) / 2 if self.is_quick else max(ends, now + GRACE)
        return set_up(self.snapshot, ledger, kinds, self.cache, ends=ends, is_quick=self.is_quick)

    def falls_short(self, tolerance: int) -> bool:
        """Whether more than so many claims of some priority may be missing; of the highest one, any at all."""
        reached = dict(zip(self.priorities, self.counts(self.placements), strict=True))
        gaps = [self.bounds.get(priority, 0) - count for priority, count in reached.items()]
        return any(gaps[:1]) or any(gap > tolerance for gap in gaps)

    def compare(self) -> bool:
        """A first fit may do better where not all was proven: never answer less than that. Whether it does."""
        sharing = share_amounts(self.snapshot, Ledger.of(self.snapshot, self.holdings), self.units)
        for units in orders(self.units, sharing.parts() if sharing.resources else ()):
            if self.is_late():
                break
            found = place_greedily(self.snapshot, self.holdings, units, placement=self.placement, ends=self.ends)
            if self.counts(found) > self.counts(self.placements):
                self.placements, self.is_greedy = found, True
        return self.is_greedy

    def prove(self, board: Board | None) -> None:
        """Bounds for as many claims of higher priorities as there are now.

        ``board``: of all that was free at first. The other units may have as many claims as could be anybody's. None
        where there are no others: then what was found on it holds.
        """
        reached, possible = dict(zip(self.priorities, self.counts(self.placements), strict=True)), self.singles.possible
        if board is not None:
            decider = Decider(board, board.supply(), [len(kind.units) for kind in board.kinds], self.ends)
            needed = {priority: count - possible.get(priority, 0) for priority, count in reached.items()}
            decider.prove(needed, needed)
            self.bounds = decider.bounds
        counting = sharing = None
        if not self.is_late():
            ledger = Ledger.of(self.snapshot, self.holdings)
            counting = count_devices(self.snapshot, ledger, self.units)
            sharing = share_amounts(self.snapshot, ledger, self.units)
        for priority in self.priorities:
            bound = self.bounds.get(priority, 0) + possible.get(priority, 0)
            if reached[priority] < bound and counting is not None and not self.is_late():
                higher = {p: count for p, count in reached.items() if p > priority}
                bound = min(bound, counting.bound(priority, higher))
                bound = min(bound, bound if sharing is None else sharing.bound(priority, higher))
            self.bounds[priority] = bound

    def is_late(self) -> bool:
        return self.ends is not None and time.monotonic() > self.ends

    @property
    def priorities(self) -> list[int]:
        """Of all claims, highest first."""
        return sorted({demand.claim.priority for unit in self.units for demand in unit.demands}, reverse=True)

    def counts(self, placements: Sequence[Placement]) -> list[int]:
        """Claims of each priority."""
        found = Counter(placed.demand.claim.priority for placed in placements)
        return [found[priority] for priority in self.priorities]

    def columns(self, kinds: list[Kind], board: Board | None) -> None:
        """Satisfy these kinds on what is free by now. ``board``: where it is the one of what was free at first."""
        if not kinds:
            return
        refused: list[Kind] = []
        if board is None:
            board, refused = self.set_up(self.singles.ledger, kinds)
        decider = Decider(board, board.supply(), [len(kind.units) for kind in board.kinds], self.ends)
        decider.decide()
        loads = loads_of_nodes(self.snapshot, self.singles.ledger.devices_in_use())
        found = name_devices(self.snapshot, board, decider.best, loads, self.placement)
        self.bounds |= decider.bounds
        self.least_ranks = decider.least_ranks
        self.placements += found
        self.singles.hold(found)
        if len(board.network.stubs):
            refused = kinds
        self.fill_up(refused, found)

    def fill_up(self, kinds: Sequence[Kind], found: Sequence[Placement]) -> None:
        """One by one what columns cannot tell of, or where not all states were looked at: more may fit."""
        placed = {placement.demand.key for placement in found}
        for kind in sorted(kinds, key=lambda kind: -kind.priority):
            for unit in kind.units:
                if unit.demands[0].key not in placed:
                    more = self.singles.find(unit)
                    if not more:
                        break
                    self.placements += more

    # -- levels ------------------------------------------------------------------------------------------------------

    def levels(self) -> list[Level]:
        asked = Counter(demand.claim.priority for unit in self.units for demand in unit.demands)
        levels: list[Level] = []
        for priority, value in zip(self.priorities, self.counts(self.placements), strict=True):
            bound = self.bounds.get(priority, 0)
            # Which ones of several kinds are left out is best effort; all or none of them is no choice.
            certain = (value == asked[priority] or bound == 0) and all(level.choice for level in levels)
            levels.append(Level("satisfied", value, bound, priority, choice=certain))
        chosen = {(p.demand.key, e.slot.detail): e.slot.alternative for p in self.placements for e in p.entries}
        indexes = [alternative for alternative in chosen.values() if alternative is not None]
        if indexes:
            levels.append(
                Level("oneOf", sum(indexes), 0 if self.is_greedy or self.singles.satisfied else self.least_ranks)
            )
        pools = {e.device.pool for p in self.placements for e in p.entries}
        devices = {e.device.index for p in self.placements for e in p.entries}
        reached = {level.priority: level.value for level in levels if level.priority is not None}
        before = Ledger.of(self.snapshot, self.holdings)
        levels.append(Level("pools", len(pools), fewest_pools(self.snapshot, before, self.units, reached)))
        levels.append(Level("devices", len(devices), fewest_devices(self.units, reached)))
        return levels
