"""An upper bound from shared amounts alone: how many claims can be satisfied, whatever else they ask for.

All amounts that claims ask for come out of what is free of them, wherever that is. So no more claims can be satisfied
than those that ask for least. All in integers: needs are rounded down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit
from devalloc_solver.problem.snapshot import Snapshot

SCALE = 10**12
"""What all that is free of a resource weighs."""


@dataclass(frozen=True, slots=True)
class SharedAmountBound:
    """The amounts that were free at first, and what is asked of them."""

    wishes: tuple[tuple[Mapping[int, int], Mapping[str, int]], ...]
    """of each unit: its claims by priority, and by resource the least that it takes, in parts of SCALE of what is free
    """
    resources: tuple[str, ...]

    def bound(self, priority: int, floors: Mapping[int, int]) -> int:
        """Claims of a priority that can be satisfied at the most, with ``floors`` of the higher ones."""
        everybody = sum(claims.get(priority, 0) for claims, _ in self.wishes)
        return min((self._bound(priority, floors, resource) for resource in self.resources), default=everybody)

    def parts(self) -> list[Fraction]:
        """What each unit takes of what there is too little of for all; of everything where there is enough."""
        scarce = [r for r in self.resources if sum(needs.get(r, 0) for _, needs in self.wishes) > SCALE]
        counted = scarce or self.resources
        return [
            Fraction(sum(needs.get(resource, 0) for resource in counted), SCALE * sum(claims.values()))
            for claims, needs in self.wishes
        ]

    def _bound(self, priority: int, floors: Mapping[int, int], resource: str) -> int:
        room = SCALE
        own: list[tuple[int, int]] = []
        higher: dict[int, list[int]] = {each: [] for each in floors}
        for claims, needs in self.wishes:
            need = needs.get(resource, 0)
            if (count := claims.get(priority, 0)) > 0:
                own.append((need, count))
            elif len(claims) == 1 and (each := next(iter(claims))) in higher:
                higher[each] += [need // claims[each]] * claims[each]
        mixed = any(len(claims) > 1 for claims, _ in self.wishes)  # what else of a group is counted is not known here
        if not mixed:
            room -= sum(sum(sorted(higher[each])[: floors[each]]) for each in higher)
        satisfied = 0
        for need, count in sorted(own, key=lambda one: one[0] / one[1]):
            if need > room:
                return satisfied + max(0, room) * count // need
            satisfied, room = satisfied + count, room - need
        return satisfied


def make_shared_amount_bound(snapshot: Snapshot, usage: Usage, units: Sequence[PlacementUnit]) -> SharedAmountBound:
    """What there is to share. ``usage``: what was in use before the batch."""
    requests = [s for unit in units for demand in unit.demands for each in demand.details for s in each]
    candidates: dict[str, set[int]] = {}
    for request in {
        id(request.candidates): request for request in requests if request.mode is AllocationMode.SHARE
    }.values():
        for resource in {name for other in requests if other.mode is AllocationMode.SHARE for name in other.requests}:
            candidates.setdefault(resource, set()).update(request.candidates.accepted)
    devices = snapshot.devices
    free = {
        resource: sum(max(0, usage.free_nano(devices[index], resource)) for index in accepted)
        for resource, accepted in candidates.items()
    }
    wishes = tuple(
        (Counter(demand.claim.priority for demand in unit.demands), dict(_minimum_amounts(unit, free)))
        for unit in units
    )
    return SharedAmountBound(wishes, tuple(sorted(free)))


def _minimum_amounts(unit: PlacementUnit, free: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for resource, there in free.items():
        least = sum(
            min(request.least_share(resource) for request in alternatives)
            for demand in unit.demands
            for alternatives in demand.details
        )
        if least:
            yield resource, least * SCALE // there if there else SCALE + 1
