"""Units merged by kind, and the ways in which one of a kind can be satisfied.

Units that differ in names and age only are one kind with a count; a way is one choice of alternatives. Only kinds that
take whole devices of a node's own pools have ways here. The other units are placed one by one (singles.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product

from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.eligibility import Candidates
from devalloc_solver.snapshot import Snapshot

MOST_WAYS = 24
"""Combinations of alternatives up to which a unit has a kind of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One alternative of each detail of each claim."""

    claims: tuple[tuple[Demand, tuple[Slot, ...]], ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Those of all claims."""
        return tuple(slot for _, slots in self.claims for slot in slots)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The chosen indexes, in spec order, of the details that leave a choice (S17, goal 2)."""
        return tuple(slot.alternative for slot in self.slots if slot.alternative is not None)

    @property
    def rank(self) -> int:
        """Their sum, which is what the level shows."""
        return sum(self.ranks)

    @property
    def devices(self) -> int:
        """How many it takes at least."""
        return sum(slot.least for slot in self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Units that ask for the same, in the order in which they are to be satisfied (S17)."""

    units: tuple[Unit, ...]
    ways: tuple[Way, ...]
    """in the order of preference"""
    claims: Mapping[int, int] = field(init=False)
    """priority -> claims of one unit"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "claims", Counter(demand.claim.priority for demand in self.units[0].demands))

    @property
    def priority(self) -> int:
        """The highest."""
        return max(self.claims)

    @property
    def pin(self) -> str | None:
        return self.units[0].pin

    @property
    def fewest(self) -> int:
        """Devices that one of them takes at least."""
        return min(way.devices for way in self.ways)

    @property
    def effort(self) -> Fraction:
        """The same for each of its claims."""
        return Fraction(self.fewest, sum(self.claims.values()))


def split_units(snapshot: Snapshot, units: Sequence[Unit]) -> tuple[list[Kind], list[Unit]]:
    """The kinds, in the order of their first units, and the units that are of none."""
    by_kind: dict[object, list[Unit]] = {}
    others: list[Unit] = []
    plain: dict[int, bool] = {}
    for unit in units:
        if not _has_ways(snapshot, unit, plain):
            others.append(unit)
            continue
        shapes = tuple((demand.claim.priority, demand.shape) for demand in unit.demands)
        known = all(shape is not None for _, shape in shapes)
        by_kind.setdefault((unit.pin, shapes) if known else id(unit), []).append(unit)
    return [Kind(tuple(alike), _ways(alike[0])) for alike in by_kind.values()], others


def _has_ways(snapshot: Snapshot, unit: Unit, plain: dict[int, bool]) -> bool:
    count = 1
    if any(demand.shared for demand in unit.demands):
        return False
    for alternatives in (alternatives for demand in unit.demands for alternatives in demand.details):
        count *= len(alternatives)
        for slot in alternatives:
            if slot.mode is not Mode.WHOLE or slot.portions:
                return False
            key = id(slot.candidates)
            if key not in plain:
                plain[key] = _is_plain(snapshot, slot.candidates)
            if not plain[key]:
                return False
    return 0 < count <= MOST_WAYS and all(demand.details for demand in unit.demands)


def _is_plain(snapshot: Snapshot, candidates: Candidates) -> bool:
    """Whether all candidates are devices of nodes, given away whole."""
    devices, pools = snapshot.devices, snapshot.pools
    return not any(devices[i].shareable or pools[devices[i].pool].node is None for i in candidates.accepted)


def _ways(unit: Unit) -> tuple[Way, ...]:
    each = [[(demand, slots) for slots in product(*demand.details)] for demand in unit.demands]
    return tuple(sorted(map(Way, product(*each)), key=lambda way: way.ranks))
