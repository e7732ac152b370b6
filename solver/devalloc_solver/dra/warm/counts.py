"""What one claim may have of a whole cluster, counted kind by kind of device, and class by class of nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge, nsmallest
from itertools import islice
from typing import Any

from devalloc_solver.blockers.claims import NEVER, fewest
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.dra.numbers import SHOWN, Numbers
from devalloc_solver.dra.warm.firsts import First, Firsts, common, devices_of
from devalloc_solver.dra.warm.named import Named
from devalloc_solver.dra.warm.part import Part
from devalloc_solver.dra.warm.rules import ClaimAsk
from devalloc_solver.holdings import Key
from devalloc_solver.index.census import Census, Sort
from devalloc_solver.index.counts import excluded_of
from devalloc_solver.index.states import NodeClass, NodeKind, PoolState


@dataclass(slots=True, eq=False)
class _Lot:
    """The kinds that a slot may take, none of which is taken in shares."""

    slot: Slot
    kinds: frozenset[int]
    _free: dict[int, int] = field(default_factory=dict)
    """state of a pool -> devices that are free"""

    @property
    def least(self) -> int:
        """Devices without which a node will not do."""
        return self.slot.least if self.slot.mode in (Mode.WHOLE, Mode.ADMIN_COUNT) else 1

    def free(self, node: NodeClass) -> int:
        return sum(map(self._free_of, node.states))

    def _free_of(self, state: PoolState) -> int:
        found = self._free.get(state.index)
        if found is None:
            mine = zip(state.kind.kinds, state.free, strict=True)
            found = self._free[state.index] = sum(free for kind, free in mine if kind.index in self.kinds)
        return found

    def size(self, node: NodeKind) -> int:
        """Devices, in use or not."""
        pairs = ((kind, size) for pool in node.pools for kind, size in zip(pool.kinds, pool.sizes, strict=True))
        return sum(size for kind, size in pairs if kind.index in self.kinds)


Lots = Sequence[Sequence[_Lot]]
"""For each detail of a claim its alternatives."""


@dataclass(slots=True, eq=False)
class Counts:
    """Counts for one shape of claim, for one layout of the cluster."""

    census: Census
    firsts: Firsts
    ask: ClaimAsk
    layout: int
    """of the cluster"""
    named: Named
    _lots: Mapping[str, _Lot] = field(init=False)
    _steps: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """slot -> the steps of its funnel"""

    def __post_init__(self) -> None:
        demand: Demand = self.ask.sight.demand
        there = {kind for kind, size in self.census.sizes().items() if size}
        self._lots = {s.label: _Lot(s, frozenset(there.intersection(s.candidates.accepted))) for s in demand.slots}

    @property
    def errors(self) -> Sequence[str]:
        """The devices that could not be judged. Raises AllocationError."""
        return self.ask.rules.warnings(self.ask, self.layout)

    @property
    def is_exact(self) -> bool:
        """Whether counting kinds tells all: no device is shared, and requests for all devices can have them."""
        kinds, sizes = self.census.index.kinds.kinds, self.census.sizes()
        for label, lot in self._lots.items():
            if label in self.named.labels:
                continue  # its devices are looked at one by one
            verdict = lot.slot.spec.verdict
            if any(kinds[kind].one.shareable for kind in lot.kinds):
                return False
            if any(sizes.get(kind) for kind in verdict.blocked) or any(sizes.get(int(kind)) for kind in verdict.broken):
                return False
        return True

    def matching(self, label: str) -> int:
        sizes = self.census.sizes()
        return sum(sizes[kind] for kind in self._lots[label].kinds)

    def in_use(self, label: str) -> int:
        kinds, total = self._lots[label].kinds, 0
        for state, count in self.census.states():
            if state.in_use:
                groups = zip(state.kind.kinds, state.kind.sizes, state.free, strict=True)
                total += count * sum(size - free for kind, size, free in groups if kind.index in kinds)
        return total

    def excluded(self, label: str) -> int:
        """Free devices that cannot be had: others have what they need of their counters."""
        kinds = self._lots[label].kinds
        states = self.census.states()
        return sum(count * excluded_of(state, kinds) for state, count in states if state.excluded_free)

    def users(self, label: str) -> tuple[Sequence[tuple[Key, int]], int]:
        """(the first SHOWN of the claims that hold most, how many hold any)"""
        kinds, users = self._lots[label].kinds, 0
        by_count: dict[int, list[Sequence[Key]]] = defaultdict(list)
        for holds, claims in self.census.claims().items():
            count = sum(number for kind, number in holds if kind in kinds)
            if count:
                by_count[count].append(claims.first())
                users += len(claims.keys)
        ranked = ((key, count) for count in sorted(by_count, reverse=True) for key in merge(*by_count[count]))
        return [*islice(ranked, SHOWN)], users

    def most(self, label: str, pin: str | None, *, is_empty: bool) -> int:
        """The most devices of one node, or of the one it is bound to."""
        lot = self._lots[label]
        nodes = [node for node, _ in self.census.classes()] if pin is None else [*self._class_of(pin)]
        if is_empty:
            return max(map(lot.size, {node.kind for node in nodes}), default=0)
        return max(map(lot.free, nodes), default=0)

    def having(self, label: str, name: str) -> int:
        """Devices that have a value of an attribute."""
        kinds, sizes = self.census.index.kinds.kinds, self.census.sizes()
        return sum(sizes[kind] for kind in self._lots[label].kinds if kinds[kind].one.values(name))

    def _class_of(self, node: str) -> Iterator[NodeClass]:
        """None for a node without devices."""
        record = self.census.index.records.get(node)
        if record is not None and record.member_of is not None:
            yield record.member_of

    # -- the funnel --------------------------------------------------------------------------------------------------

    def funnel(self, slot: Slot, matching: int, used: int, excluded: int) -> dict[str, Any]:
        """See ``dra.funnel``."""
        label = slot.label
        if label not in self._steps:
            self._steps[label] = [*self._steps_of(self._lots[label].slot)]
        return {
            "request": slot.spec.ask.name,
            "devices": sum(self.census.sizes().values()) + len(self.ask.rules.commons.offers),
            "steps": [{**step, "devices": [*step["devices"]]} for step in self._steps[label]],
            "matching": matching,
            "inUse": used,
            "excluded": excluded,
            "free": matching - used - excluded,
        }

    def _steps_of(self, slot: Slot) -> Iterator[dict[str, Any]]:
        """In the order in which the first device of each falls."""
        firsts: dict[str, list[First]] = defaultdict(list)
        counts: Counter[str] = Counter()
        for what, some, count in self._fallen(slot):
            firsts[what] += some
            counts[what] += count
        rules = self.ask.rules
        numbers = {offer.index: number for number, offer in enumerate(rules.commons.offers)}
        for what, fallen in rules.judge_commons(self.ask.claim, slot.spec.ask).fallen.items():
            there = ((numbers[index], rules.commons.offers[numbers[index]]) for index, _ in fallen[:SHOWN])
            firsts[what] += [common(number, offer) for number, offer in there]
            counts[what] += len(fallen)
        found = sorted((nsmallest(SHOWN, some), what, counts[what]) for what, some in firsts.items())
        for first, what, count in found:
            names = [self.firsts.offer(one).title for one in first]
            step: dict[str, Any] = {"what": what, "count": count, "devices": names}
            why = self._why(slot, what, first[0])
            yield step | ({"example": why} if why else {})

    def _fallen(self, slot: Slot) -> Iterator[tuple[str, Sequence[First], int]]:
        """(step, first devices, how many): some that fall there, which are of the index."""
        sizes = self.census.sizes()
        if slot.label not in self.named.labels:
            for what, fallen in slot.spec.verdict.fallen.items():
                kinds = [kind for kind, _ in fallen if sizes.get(kind)]
                if kinds:
                    yield what, self.firsts.of(kinds), sum(sizes[kind] for kind in kinds)
            return
        ranks, near = self.named.ranks, self.named.sizes()
        left = {kind: size - near.get(kind, 0) for kind, size in sizes.items()}
        lots = [(self.firsts.beside(kind, ranks), count) for kind, count in left.items() if count]
        lots += [((first,), 1) for record in self.named.records for first in devices_of(record)]
        offers = [replace(self.firsts.offer(first[0]), index=number) for number, (first, _) in enumerate(lots)]
        verdict = self.ask.rules.judge(offers).choose(self.ask.claim, slot.spec.ask).verdict
        for what, fallen in verdict.fallen.items():
            for number, _ in fallen:
                yield what, *lots[number]

    def _why(self, slot: Slot, what: str, first: First) -> str:
        """What there is to say of a device, in its own words."""
        offer = replace(self.firsts.offer(first), index=0)
        verdict = self.ask.rules.judge([offer]).choose(self.ask.claim, slot.spec.ask).verdict
        ((_, why),) = verdict.fallen[what]
        return why

    # -- claims in the way -------------------------------------------------------------------------------------------

    def lots(self, unit: Unit, part: Part) -> Lots | None:
        """What the slots of a part may take of the whole cluster; None where any of it is taken in shares."""
        (demand,) = unit.demands
        if any(slot.portions for slot in demand.slots):
            return None
        return [
            [_Lot(slot, frozenset(part.kinds[index] for index in slot.candidates.accepted)) for slot in detail]
            for detail in demand.details
        ]

    def roomy(self, lots: Lots, most: int) -> list[int]:
        """Ranks of nodes with enough free devices, the first of each class."""
        found = (
            first
            for node, first in self.census.classes()
            if all(any(lot.free(node) >= lot.least for lot in detail) for detail in lots)
        )
        return nsmallest(most, found)

    def fewest_claims(self, lots: Lots, most: int) -> tuple[list[int], int]:
        """(ranks of the nodes where the fewest claims are in the way, as counting tells; the fewest on all others)

        The order is that of ``blockers.claims``.
        """
        found: list[tuple[int, Sort]] = []
        for node, _ in self.census.classes():
            if all(any(lot.size(node.kind) >= lot.least for lot in detail) for detail in lots):
                sorts = ((_bound(lots, sort), sort) for sort in self.census.sorts_of(node))
                found += [(bound, sort) for bound, sort in sorts if bound < NEVER]
        ranked = nsmallest(most + 1, ((bound, rank) for bound, sort in found for rank in sort.ranks))
        return [rank for _, rank in ranked[:most]], ranked[most][0] if len(ranked) > most else NEVER


def _bound(lots: Lots, sort: Sort) -> int:
    """How many claims must go at least, counting each detail on its own."""
    return max(1, *(min(_bound_of(lot, sort) for lot in detail) for detail in lots))


def _bound_of(lot: _Lot, sort: Sort) -> int:
    missing = lot.slot.least - lot.free(sort.node) if lot.slot.mode is Mode.WHOLE else 0
    if missing <= 0:
        return 0
    return fewest(missing, [sum(n for kind, n in holds if kind in lot.kinds) for holds in sort.tenants])


@dataclass(slots=True)
class FleetNumbers(Numbers):
    """The numbers of a whole cluster, for slots of a part of it that has a node of each kind, and what is named."""

    counts: Counts

    @property
    def errors(self) -> Sequence[str]:
        return self.counts.errors

    def funnel(self, slot: Slot) -> dict[str, Any]:
        if self._is_named(slot):
            matching, used = len(slot.candidates.accepted), Numbers.taken(self, slot)[0]
            excluded = self.excluded(slot)
        else:
            matching = self.counts.matching(slot.label)
            used = 0 if slot.mode.is_admin else self.counts.in_use(slot.label)
            excluded = 0 if slot.mode.is_admin else self.counts.excluded(slot.label)
        return self.counts.funnel(slot, matching, used, excluded)

    def taken(self, slot: Slot) -> tuple[int, Sequence[tuple[Key, int]], int]:
        if self._is_named(slot):
            return Numbers.taken(self, slot)
        return self.counts.in_use(slot.label), *self.counts.users(slot.label)

    def most(self, unit: Unit, slot: Slot, *, is_empty: bool) -> int:
        if self._is_named(slot):
            return Numbers.most(self, unit, slot, is_empty=is_empty)
        return self.counts.most(slot.label, unit.pin, is_empty=is_empty or slot.mode.is_admin)

    def having(self, slot: Slot, name: str) -> tuple[int, int]:
        if self._is_named(slot):
            return Numbers.having(self, slot, name)
        return self.counts.having(slot.label, name), self.counts.matching(slot.label)

    def _is_named(self, slot: Slot) -> bool:
        """Whether all of its devices are in the part."""
        return slot.label in self.counts.named.labels
