"""What amounts alone allow: a bound for claims that take shares of devices, whatever else they ask for.

All amounts that claims ask for come out of what is free of them, wherever that is. So no more claims can be satisfied
than those that ask for least, of one resource or of several weighed together. All in integers: needs are rounded down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from devalloc_solver.demand import Mode, Slot, Unit
from devalloc_solver.holdings import Ledger
from devalloc_solver.snapshot import Snapshot

SCALE = 10**12
"""What all that is free of a resource weighs."""
STEPS = 8
"""In how many steps two resources are weighed against each other."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The amounts that were free at first, and what is asked of them."""

    wishes: tuple[tuple[Mapping[int, int], Mapping[str, int]], ...]
    """of each unit: its claims by priority, and by resource the least that it takes, in parts of SCALE of what is free
    """
    resources: tuple[str, ...]

    def bound(self, priority: int, floors: Mapping[int, int]) -> int:
        """Claims of a priority that can be satisfied at the most, with ``floors`` of the higher ones."""
        everybody = sum(claims.get(priority, 0) for claims, _ in self.wishes)
        return min((self._bound(priority, floors, weights) for weights in self._weights()), default=everybody)

    def parts(self) -> list[Fraction]:
        """What each unit takes of what there is too little of for all; of everything where there is enough."""
        scarce = [r for r in self.resources if sum(needs.get(r, 0) for _, needs in self.wishes) > SCALE]
        counted = scarce or self.resources
        return [
            Fraction(sum(needs.get(resource, 0) for resource in counted), SCALE * sum(claims.values()))
            for claims, needs in self.wishes
        ]

    def _weights(self) -> Iterator[dict[str, int]]:
        for resource in self.resources:
            yield {resource: STEPS}
        for one, other in combinations(self.resources, 2):
            for step in range(1, STEPS):
                yield {one: step, other: STEPS - step}

    def _bound(self, priority: int, floors: Mapping[int, int], weights: Mapping[str, int]) -> int:
        room = SCALE * sum(weights.values())
        own: list[tuple[int, int]] = []
        higher: dict[int, list[int]] = {each: [] for each in floors}
        for claims, needs in self.wishes:
            need = sum(needs.get(resource, 0) * weight for resource, weight in weights.items())
            if (count := claims.get(priority, 0)) > 0:
                own.append((need, count))
            elif len(claims) == 1 and (each := next(iter(claims))) in higher:
                higher[each] += [need // claims[each]] * claims[each]
        mixed = any(len(claims) > 1 for claims, _ in self.wishes)  # what else of a group is counted is not known here
        if not mixed:
            room -= sum(sum(sorted(higher[each])[: floors[each]]) for each in higher)
        found = 0
        for need, count in sorted(own, key=lambda one: one[0] / one[1]):
            if need > room:
                return found + max(0, room) * count // need
            found, room = found + count, room - need
        return found


def share_amounts(snapshot: Snapshot, ledger: Ledger, units: Sequence[Unit]) -> Sharing:
    """What there is to share. ``ledger``: what was in use before the batch."""
    slots = [s for unit in units for demand in unit.demands for each in demand.details for s in each]
    asked: dict[str, set[int]] = {}
    for slot in {id(slot.candidates): slot for slot in slots if slot.mode is Mode.SHARE}.values():
        for resource in {name for other in slots if other.mode is Mode.SHARE for name in other.requests}:
            asked.setdefault(resource, set()).update(slot.candidates.accepted)
    devices = snapshot.devices
    free = {
        resource: sum(max(0, ledger.free_nano(devices[index], resource)) for index in found)
        for resource, found in asked.items()
    }
    wishes = tuple(
        (Counter(demand.claim.priority for demand in unit.demands), dict(_needs(unit, free))) for unit in units
    )
    return Sharing(wishes, tuple(sorted(free)))


def _needs(unit: Unit, free: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for resource, there in free.items():
        least = sum(
            min(_amount(slot, resource) for slot in alternatives)
            for demand in unit.demands
            for alternatives in demand.details
        )
        if least:
            yield resource, least * SCALE // there if there else SCALE + 1


def _amount(slot: Slot, resource: str) -> int:
    return max(0, slot.requests.get(resource, 0)) if slot.mode is Mode.SHARE else 0
