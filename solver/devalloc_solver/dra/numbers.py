"""How many devices there are for a request at most, on the node that has the most, and who holds the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from devalloc_solver.demand import Demand, Mode, Relation, Slot, Unit
from devalloc_solver.dra.inventory import Offer
from devalloc_solver.funnel import may_have, unavailable
from devalloc_solver.holdings import Holding, Key, Ledger
from devalloc_solver.snapshot import Snapshot

SHOWN = 3
"""Claims that are named as users of devices."""


@dataclass(slots=True)
class Numbers:
    """Counts devices; of those in use, by whom."""

    snapshot: Snapshot
    offers: Sequence[Offer]
    held: Sequence[Holding]
    _holders: dict[int, list[Key]] = field(init=False)
    _ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self._ledger = Ledger.of(self.snapshot, self.held)
        self._holders = defaultdict(list)
        for holding in self.held:
            for item in holding.items:
                self._holders[item.device].append(holding.claim)

    def users(self, slot: Slot) -> str:
        """Such as "2 of the matching ones are used by default/a (2)"; empty when nobody has any."""
        if slot.mode.is_admin:
            return ""
        taken, first, users = self.taken(slot)
        if not taken:
            return ""
        names = ", ".join(f"{'/'.join(claim)} ({count})" for claim, count in first)
        names += f" and {users - SHOWN} more claims" if users > SHOWN else ""
        return f"{taken} of the matching {'is' if taken == 1 else 'are'} used by {names}"

    def taken(self, slot: Slot) -> tuple[int, Sequence[tuple[Key, int]], int]:
        """(devices for a slot that are in use, the first SHOWN of those who have most of them, how many have any)"""
        taken = unavailable(slot, self.snapshot, slot.candidates.accepted, self._ledger)[0]
        ranked = Counter(claim for index in taken for claim in dict.fromkeys(self._holders[index]))
        users = sorted(ranked.items(), key=lambda item: (-item[1], item[0]))
        return len(taken), users[:SHOWN], len(users)

    def excluded(self, slot: Slot) -> int:
        """Free devices for a slot that cannot be had: others have what they need of their counters."""
        return unavailable(slot, self.snapshot, slot.candidates.accepted, self._ledger)[1]

    def shortage(self, unit: Unit, *, is_empty: bool) -> str:
        """Such as "no node has 4 free devices for request r (at most 3)"; empty when counting does not show it."""
        where = f"node {unit.pin} does not have" if unit.pin else "no node has"
        for slot in _counted(unit):
            best = self.most(unit, slot, is_empty=is_empty)
            if best < slot.least:
                noun = f"{'' if is_empty else 'free '}{'device' if slot.least == 1 else 'devices'}"
                return f"{where} {slot.least} {noun} for request {slot.spec.ask.name} (at most {best})"
        return ""

    def most(self, unit: Unit, slot: Slot, *, is_empty: bool) -> int:
        """The most devices for a slot that one node has, free or not (``is_empty``)."""
        accepted = slot.candidates.accepted
        found = [i for i in accepted if is_empty or may_have(slot, self.snapshot, i, self._ledger)]
        return self._best(unit, found, len)

    def having(self, slot: Slot, name: str) -> tuple[int, int]:
        """(devices for a slot that have a value of an attribute, all devices for it)"""
        accepted = slot.candidates.accepted
        return sum(bool(self.snapshot.devices[index].values(name)) for index in accepted), len(accepted)

    def disagreement(self, unit: Unit) -> str:
        """Such as "no node has 3 devices with one `d/numa` value for request r (at most 2)"; empty as above."""
        for demand in unit.demands:
            for relation in demand.relations:
                for slot in demand.slots:
                    if slot.label in relation.labels and slot in _counted(unit):
                        told = self._disagreement(unit, relation, slot)
                        if told:
                            return told
        names = dict.fromkeys(relation.attribute for demand in unit.demands for relation in demand.relations)
        return f"the devices do not go together in {' and '.join(f'`{name}`' for name in names)}" if names else ""

    def _disagreement(self, unit: Unit, relation: Relation, slot: Slot) -> str:
        values = {i: self.snapshot.devices[i].values(relation.attribute) for i in slot.candidates.accepted}
        having = [index for index, found in values.items() if found]
        name = f"`{relation.attribute}`"
        if relation.distinct:

            def count(some: Sequence[int]) -> int:
                return len(frozenset().union(*(values[index] for index in some)))

            what = f"all different in {name}"
        else:

            def count(some: Sequence[int]) -> int:
                counts = Counter(value for index in some for value in values[index])
                return max(counts.values(), default=0)

            what = f"with one {name} value"
        best = self._best(unit, having, count)
        if best >= slot.least:
            return ""
        there, total = self.having(slot, relation.attribute)
        without = f", {total - there} of {total} have no {name}" if there < total else ""
        noun = "device" if slot.least == 1 else "devices"
        return f"no node has {slot.least} {noun} {what} for request {slot.spec.ask.name} (at most {best}{without})"

    def _best(self, unit: Unit, found: Iterable[int], count: Callable[[Sequence[int]], int]) -> int:
        """The most that one node has, or the node that is allowed."""
        groups: dict[frozenset[str], list[int]] = defaultdict(list)
        for index in found:
            groups[self.offers[index].nodes].append(index)
        by_node: dict[str, list[int]] = defaultdict(list)
        for nodes, some in groups.items():
            for node in nodes:
                by_node[node] += some
        return max((count(some) for node, some in by_node.items() if unit.pin in (None, node)), default=0)


def _counted(unit: Unit) -> list[Slot]:
    """Slots without an alternative that take so many devices."""
    demands: Iterable[Demand] = unit.demands
    alone = (detail[0] for demand in demands for detail in demand.details if len(detail) == 1)
    return [slot for slot in alone if slot.mode in (Mode.WHOLE, Mode.ADMIN_COUNT)]
