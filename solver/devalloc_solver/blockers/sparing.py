"""A placement beyond what pools share that needs little more of it: as much as fits keeps to the limits.

A placement without these limits has no reason to spare anything, so what it overdraws is long and says little. Here the
most that fits goes first, the devices that draw most before those that draw less, and only the rest goes beyond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from devalloc_solver.assignment import Placement
from devalloc_solver.blockers.question import Finder, Question
from devalloc_solver.demand import Demand, Mode, Slot
from devalloc_solver.holdings import Held, Holding, Key, Ledger
from devalloc_solver.snapshot import Device

Where = tuple[Key, int]
"""(claim, detail)"""
_PRICED = 20_000
"""Devices that may be looked at for what one detail has left out: a number at once, beyond that any will do."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A detail as it was served without limits, as so many devices that may be left out one by one."""

    where: Where
    slot: Slot
    weight: int
    """what the lightest candidate draws, in thousandths of its pool's resources"""

    @property
    def is_divisible(self) -> bool:
        """Whether two slots for some of its devices each are as good as one for all."""
        slot = self.slot
        return slot.mode is Mode.WHOLE and not (slot.requests or slot.limits or slot.match or slot.portions)

    @property
    def count(self) -> int:
        """1 where it is served all or none."""
        return self.slot.least if self.is_divisible else 1

    def split(self, kept: int, taken: Sequence[int], chosen: Sequence[int] | None) -> Iterator[Slot]:
        """One slot for what is kept, of the devices ``taken`` for it, and one for what is left out."""
        if kept:
            yield self.of(kept, taken)
        if kept < self.count:
            yield self.of(self.count - kept, chosen)

    def of(self, count: int, devices: Sequence[int] | None = None) -> Slot:
        """The slot for some of its devices, to be taken of these only."""
        slot = self.slot if count == self.count else replace(self.slot, least=count, most=count)
        if devices is None:
            return slot
        accepted = {index: slot.candidates.accepted[index] for index in devices}
        return replace(slot, candidates=replace(slot.candidates, accepted=accepted))


def sparing(question: Question, free: Question, found: Sequence[Placement], finder: Finder) -> Sequence[Placement]:
    """Placements of the same alternatives on the same node as ``found``, and ``found`` where there is nothing better.

    ``free`` is the question without the limits, and ``found`` answers it. The question itself has no answer.
    """
    node = found[0].node
    question, free = question.pinned(node), free.pinned(node)
    parts = _parts(question, found)
    best = _many(question, parts, finder)
    if best is None:
        return found
    count, placements = best
    kept = _first(parts, count)
    taken: dict[Where, list[int]] = defaultdict(list)
    for placement in placements:
        for entry in placement.entries:
            taken[placement.demand.key, entry.slot.detail].append(entry.device.index)
    light = _lightest(question, [placement.holding() for placement in placements], parts, kept)
    for chosen in (light, {}):
        slots = {
            part.where: [*part.split(kept[part.where], taken[part.where], chosen.get(part.where))] for part in parts
        }
        answer = finder.probe(_with(free, slots), any_will_do=True)
        if answer is not None:
            return answer
    return found


def _parts(question: Question, found: Sequence[Placement]) -> list[_Part]:
    """The details, those that draw nothing first, then those that draw most."""
    served = {(p.demand.key, e.slot.detail): e.slot for p in found for e in p.entries}
    devices = question.snapshot.devices
    parts = []
    weights: dict[int, int] = {}
    """accepted devices, by identity -> weight of the lightest"""
    for demand in question.unit.demands:
        for detail in demand.details:
            slot = served.get((demand.key, detail[0].detail), detail[0])
            accepted = slot.candidates.accepted
            if id(accepted) not in weights:
                weights[id(accepted)] = min((_weight(question, devices[index]) for index in accepted), default=0)
            parts.append(_Part((demand.key, slot.detail), slot, weights[id(accepted)]))
    return sorted(parts, key=lambda part: (part.weight > 0, -part.weight))


def _weight(question: Question, device: Device) -> int:
    resources = question.snapshot.pools[device.pool].resources
    return sum(1000 * blocks // max(1, resources[name].blocks) for name, blocks in device.draws)


def _many(question: Question, parts: Sequence[_Part], finder: Finder) -> tuple[int, Sequence[Placement]] | None:
    """Many devices, counted from the first part on, that fit within the limits, and where they go.

    Leaving out twice as many each time: what is left out and fits all the same is seen to later.
    """
    total = sum(part.count for part in parts)
    left_out = 1
    while left_out < total:
        kept = _first(parts, total - left_out)
        slots = {part.where: [part.of(kept[part.where])] if kept[part.where] else [] for part in parts}
        answer = finder.probe(_with(question, slots), any_will_do=True)
        if answer is not None:
            return total - left_out, answer
        left_out *= 2
    return None


def _first(parts: Sequence[_Part], count: int) -> dict[Where, int]:
    """How many devices of each part are among so many, from the first part on."""
    kept = {}
    for part in parts:
        kept[part.where] = min(part.count, count)
        count -= kept[part.where]
    return kept


def _with(question: Question, slots: Mapping[Where, Sequence[Slot]]) -> Question:
    """The question with each detail replaced by a detail for each of these slots."""

    def change(demand: Demand) -> Demand | None:
        asked = [(slot,) for detail in demand.details for slot in slots[demand.key, detail[0].detail]]
        return replace(demand, details=tuple(asked), shape=None) if asked else None

    return question.with_demands(change)


def _lightest(
    question: Question, placed: Sequence[Holding], parts: Sequence[_Part], kept: Mapping[Where, int]
) -> dict[Where, list[int]]:
    """For the devices of divisible parts that are left out, one by one: the one that adds least to what falls short."""
    snapshot = question.snapshot
    ledger = Ledger.of(snapshot, (*question.held, *placed))
    short: set[tuple[int, str]] = set()
    found: dict[Where, list[int]] = {}

    def missing(device: Device) -> list[tuple[int, str]]:
        pool = device.pool
        return [(pool, name) for name, blocks in device.draws if blocks > ledger.free_pool_blocks(pool, name)]

    def price(device: Device) -> tuple[int, int, int]:
        lacks = missing(device)
        held = ledger.groups.get(device.pool) if device.compatibility is not None else None
        mixes = bool(held and held != {device.compatibility})
        return sum(lack not in short for lack in lacks) + mixes, len(lacks), device.index

    for part in parts:
        count = part.count - kept[part.where]
        if not count or not part.is_divisible:
            continue
        alike = _alike(question, part.slot, ledger)
        if count * len(alike) > _PRICED:
            continue
        by_pool: dict[int, list[list[Device]]] = defaultdict(list)
        for devices in alike:
            by_pool[devices[0].pool].append(devices)
        best = {pool: min(price(devices[-1]) for devices in there) for pool, there in by_pool.items()}
        chosen = found[part.where] = []
        while best and len(chosen) < count:
            _, _, index = min(best.values())
            device = snapshot.devices[index]
            there = by_pool[device.pool]
            next(devices for devices in there if devices[-1] is device).pop()
            there[:] = filter(None, there)
            chosen.append(index)
            short.update(missing(device))
            ledger.add(Holding(part.where[0], 0, (Held(index, None),)))
            del best[device.pool]
            if there:
                best[device.pool] = min(price(devices[-1]) for devices in there)
    return found


def _alike(question: Question, slot: Slot, ledger: Ledger) -> list[list[Device]]:
    """The candidates of a slot that are free on the node, those together that draw the same; the first ones last."""
    snapshot, nodes = question.snapshot, (None, question.unit.pin)
    alike: dict[object, list[Device]] = defaultdict(list)
    for index in sorted(slot.candidates.accepted, reverse=True):
        device = snapshot.devices[index]
        if snapshot.pools[device.pool].node in nodes and not ledger.in_use(device):
            alike[device.pool, device.draws, device.compatibility].append(device)
    return [*alike.values()]
