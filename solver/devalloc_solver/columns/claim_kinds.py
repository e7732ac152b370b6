"""Units grouped by what they ask for, and the choices of alternatives that satisfy one of a group.

Units that differ in names and age only are one kind with a count; a way is one choice of alternatives. Only kinds that
take whole devices of a node's own pools have ways here. ``remaining_units`` places the others one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import product

from devalloc_solver.problem.demand import Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot

MAX_CHOICES = 24
"""Combinations of alternatives up to which a unit has a kind of its own."""


@dataclass(frozen=True, eq=False)
class AlternativeChoice:
    """One alternative of each detail of each claim."""

    claims: tuple[tuple[Demand, tuple[Request, ...]], ...]

    @property
    def requests(self) -> tuple[Request, ...]:
        """Those of all claims."""
        return tuple(request for _, requests in self.claims for request in requests)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The chosen indexes, in spec order, of the details that leave a choice (S17, goal 2)."""
        return tuple(request.alternative for request in self.requests if request.alternative is not None)

    @cached_property
    def rank(self) -> int:
        """Their sum, which is what the level shows."""
        return sum(self.ranks)

    @cached_property
    def devices(self) -> int:
        """How many it takes at least."""
        return sum(request.min_count for request in self.requests)


@dataclass(frozen=True, eq=False)
class ClaimKind:
    """Units that ask for the same, in the order in which they are to be satisfied (S17)."""

    units: tuple[PlacementUnit, ...]
    ways: tuple[AlternativeChoice, ...]
    """in the order of preference"""
    claims: Mapping[int, int] = field(init=False)
    """priority -> claims of one unit"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "claims", Counter(demand.claim.priority for demand in self.units[0].demands))

    @cached_property
    def priority(self) -> int:
        """The highest."""
        return max(self.claims)

    @property
    def pin(self) -> str | None:
        return self.units[0].pin

    @cached_property
    def fewest(self) -> int:
        """Devices that one of them takes at least."""
        return min(way.devices for way in self.ways)

    @cached_property
    def effort(self) -> Fraction:
        """The same for each of its claims."""
        return Fraction(self.fewest, sum(self.claims.values()))


def group_units(snapshot: Snapshot, units: Sequence[PlacementUnit]) -> tuple[list[ClaimKind], list[PlacementUnit]]:
    """The kinds, in the order of their first units, and the units that are of none."""
    by_kind: dict[object, list[PlacementUnit]] = {}
    others: list[PlacementUnit] = []
    plain: dict[int, bool] = {}
    for unit in units:
        if not _is_supported(snapshot, unit, plain):
            others.append(unit)
            continue
        shapes = tuple((demand.claim.priority, demand.shape) for demand in unit.demands)
        has_shapes = all(shape is not None for _, shape in shapes)
        by_kind.setdefault((unit.pin, shapes) if has_shapes else id(unit), []).append(unit)
    return [ClaimKind(tuple(alike), _alternative_choices(alike[0])) for alike in by_kind.values()], others


def _is_supported(snapshot: Snapshot, unit: PlacementUnit, plain: dict[int, bool]) -> bool:
    count = 1
    if any(demand.shared for demand in unit.demands):
        return False
    for alternatives in (alternatives for demand in unit.demands for alternatives in demand.details):
        count *= len(alternatives)
        for request in alternatives:
            if not request.takes_whole:
                return False
            key = id(request.candidates)
            if key not in plain:
                plain[key] = _are_whole_node_devices(snapshot, request.candidates)
            if not plain[key]:
                return False
    return 0 < count <= MAX_CHOICES and all(demand.details for demand in unit.demands)


def _are_whole_node_devices(snapshot: Snapshot, candidates: Candidates) -> bool:
    """Whether all candidates are devices of nodes, given away whole."""
    devices, pools = snapshot.devices, snapshot.pools
    return not any(devices[i].shareable or pools[devices[i].pool].node is None for i in candidates.accepted)


def _alternative_choices(unit: PlacementUnit) -> tuple[AlternativeChoice, ...]:
    each = [[(demand, requests) for requests in product(*demand.details)] for demand in unit.demands]
    return tuple(sorted(map(AlternativeChoice, product(*each)), key=lambda way: way.ranks))
