"""Units merged by kind, and the ways in which one of a kind can be satisfied.

Claims that differ in name and age only are one kind with a count; a way is one choice of alternatives. Only kinds that
take whole devices of a node's own pools have ways here. The other units are placed one by one (singles.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.eligibility import Candidates
from devalloc_solver.snapshot import Snapshot

MOST_WAYS = 24
"""Combinations of alternatives up to which a claim has a kind of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One alternative of each detail."""

    demand: Demand
    slots: tuple[Slot, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The chosen indexes, in spec order, of the details that leave a choice (S17, goal 2)."""
        return tuple(slot.alternative for slot in self.slots if slot.alternative is not None)

    @property
    def rank(self) -> int:
        """Their sum, which is what the level shows."""
        return sum(self.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Units that ask for the same, in the order in which they are to be satisfied (S17)."""

    units: tuple[Unit, ...]
    ways: tuple[Way, ...]
    """in the order of preference"""

    @property
    def priority(self) -> int:
        priority: int = self.units[0].demands[0].claim.priority
        return priority

    @property
    def pin(self) -> str | None:
        return self.units[0].pin

    @property
    def fewest(self) -> int:
        """Devices that one of them takes at least."""
        return min(sum(slot.least for slot in way.slots) for way in self.ways)


def split_units(snapshot: Snapshot, units: Sequence[Unit]) -> tuple[list[Kind], list[Unit]]:
    """The kinds, in the order of their first units, and the units that are of none."""
    by_kind: dict[object, list[Unit]] = {}
    others: list[Unit] = []
    plain: dict[int, bool] = {}
    for unit in units:
        if not _has_ways(snapshot, unit, plain):
            others.append(unit)
            continue
        kind = unit.kind
        by_kind.setdefault(id(unit) if kind is None else kind, []).append(unit)
    return [Kind(tuple(alike), _ways(alike[0].demands[0])) for alike in by_kind.values()], others


def _has_ways(snapshot: Snapshot, unit: Unit, plain: dict[int, bool]) -> bool:
    if unit.group is not None or len(unit.demands) != 1:
        return False
    demand = unit.demands[0]
    count = 1
    for alternatives in demand.details:
        count *= len(alternatives)
        for slot in alternatives:
            if slot.mode is not Mode.WHOLE or slot.portions:
                return False
            key = id(slot.candidates)
            if key not in plain:
                plain[key] = _is_plain(snapshot, slot.candidates)
            if not plain[key]:
                return False
    return 0 < count <= MOST_WAYS and bool(demand.details)


def _is_plain(snapshot: Snapshot, candidates: Candidates) -> bool:
    """Whether all candidates are devices of nodes, given away whole."""
    devices, pools = snapshot.devices, snapshot.pools
    return not any(devices[i].shareable or pools[devices[i].pool].node is None for i in candidates.accepted)


def _ways(demand: Demand) -> tuple[Way, ...]:
    return tuple(sorted((Way(demand, slots) for slots in product(*demand.details)), key=lambda way: way.ranks))
