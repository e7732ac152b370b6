"""First answers: units in some order, each on the first node that has room. What a deadline falls back on, and what a
better answer must not fall short of."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from devalloc_solver.assignment import Placement
from devalloc_solver.demand import Mode, Slot, Unit
from devalloc_solver.eligibility import Candidates
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.place import OutOfSteps, place_on
from devalloc_solver.snapshot import Snapshot

STEPS = 2_000
"""Search steps for one unit on one node; a node that takes more is passed over."""


def place_greedily(
    snapshot: Snapshot, holdings: Sequence[Holding], units: Sequence[Unit], *, placement: str, ends: float | None
) -> list[Placement]:
    """Placements that are right but not always best, as many as come about before ``ends`` (monotonic time)."""
    ledger = Ledger.of(snapshot, holdings)
    rooms = _Rooms(snapshot, ledger)
    found: list[Placement] = []
    hopeless: dict[object, int] = {}
    """kind of units -> how many of the nodes have no room for one: what a node has only gets less"""
    for unit in units:
        if ends is not None and time.monotonic() > ends:
            break
        nodes = _nodes(snapshot, unit)
        kind = _kind(unit)
        start = hopeless.get(kind, 0) if kind is not None else 0
        wants = _wants(unit)
        for position in range(start, len(nodes)):
            if not rooms.may_have(nodes[position], wants):
                continue
            placed = _try(snapshot, ledger, unit, nodes[position], placement)
            if placed:
                for one in placed:
                    ledger.add(one.holding())
                    rooms.take(one)
                found += placed
                break
        else:
            position = len(nodes)
        if kind is not None:
            hopeless[kind] = position
    return found


def orders(units: Sequence[Unit], parts: Sequence[Fraction] = ()) -> Iterator[list[Unit]]:
    """Orders in which a first fit may do well, higher priorities first in all of them: the small units first; of these
    those with the fewest candidates; those with the fewest candidates, of these the small ones; as they come; and where
    ``parts`` tells what each takes of all amounts, the small units first, of these those that take little.

    Of orders that are the same one is left out.
    """
    taken = dict(zip(map(id, units), parts, strict=True)) if parts else {}
    looks: list[Callable[[Unit], tuple[Fraction | int, ...]]] = [
        lambda unit: (fewest(unit),),
        lambda unit: (fewest(unit), _choice(unit)),
        lambda unit: (_choice(unit), fewest(unit)),
        lambda unit: (),
    ]
    looks += [lambda unit: (fewest(unit), taken[id(unit)])] if taken else []
    seen: set[tuple[int, ...]] = set()
    for look in looks:
        found = sorted(units, key=lambda unit: (-unit.demands[0].claim.priority, *look(unit)))
        if (order := tuple(map(id, found))) not in seen:
            seen.add(order)
            yield found


def fewest(unit: Unit) -> Fraction:
    """Devices that a unit takes whole at least, for each of its claims."""
    devices = sum(
        min(slot.least if _is_whole(slot) else 0 for slot in alternatives)
        for demand in unit.demands
        for alternatives in demand.details
    )
    return Fraction(devices, len(unit.demands))


def _choice(unit: Unit) -> int:
    """Candidates of the detail that has the fewest."""
    return min(
        (sum(len(slot.candidates.accepted) for slot in detail) for demand in unit.demands for detail in demand.details),
        default=0,
    )


def _is_whole(slot: Slot) -> bool:
    return slot.mode is Mode.WHOLE and not slot.portions


def _kind(unit: Unit) -> object | None:
    """Equal for units that ask for the same, groups included."""
    shapes = tuple(demand.shape for demand in unit.demands)
    return None if None in shapes else (unit.pin, shapes)


_Wants = list[list[tuple[Candidates, int]]]
"""detail -> (candidates, devices) of each alternative"""


def _wants(unit: Unit) -> _Wants:
    details = (detail for demand in unit.demands for detail in demand.details)
    return [[(slot.candidates, slot.least) for slot in detail] for detail in details if all(map(_is_whole, detail))]


@dataclass(slots=True, eq=False)
class _Rooms:
    """How many devices of a set of candidates are free on a node: where there are too few, no search is needed."""

    snapshot: Snapshot
    ledger: Ledger
    free: dict[int, dict[str | None, int]] = field(default_factory=dict)
    """id of candidates -> node -> devices"""
    owners: dict[int, list[dict[str | None, int]]] = field(default_factory=lambda: defaultdict(list))
    """device -> the counts that it is in"""
    taken: set[int] = field(default_factory=set)

    def may_have(self, node: str | None, wants: _Wants) -> bool:
        return all(any(self.count(found, node) >= least for found, least in detail) for detail in wants)

    def count(self, candidates: Candidates, node: str | None) -> int:
        """Free devices on a node, those of the network included."""
        counts = self.free.get(id(candidates))
        if counts is None:
            counts = self.free[id(candidates)] = defaultdict(int)
            for index in candidates.accepted:
                device = self.snapshot.devices[index]
                if not self.ledger.in_use(device):
                    counts[self.snapshot.pools[device.pool].node] += 1
                    self.owners[index].append(counts)
        return counts.get(node, 0) + (counts.get(None, 0) if node is not None else 0)

    def take(self, placement: Placement) -> None:
        for entry in placement.entries:
            device = entry.device
            if device.index not in self.taken and self.ledger.in_use(device):
                self.taken.add(device.index)
                for counts in self.owners.get(device.index, ()):
                    counts[self.snapshot.pools[device.pool].node] -= 1


def _nodes(snapshot: Snapshot, unit: Unit) -> Sequence[str | None]:
    if unit.pin is not None:
        return [unit.pin]
    return snapshot.nodes or [None]


def _try(snapshot: Snapshot, ledger: Ledger, unit: Unit, node: str | None, placement: str) -> Sequence[Placement]:
    try:
        found = place_on(snapshot, ledger, unit, node, placement=placement, steps=STEPS)
    except OutOfSteps:
        return ()
    return () if found is None else found.placements
