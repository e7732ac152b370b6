"""Devices that a claim names by what tells those of one kind apart (a uuid): they are looked at one by one.

Only claims that say plainly which values they mean are told from these devices and their kinds. All other devices of a
kind stand together, since what is true of one is true of all: they fail the expressions that name others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.demand import Mode, Slot
from devalloc_solver.dra.inventory import Offer, lookup
from devalloc_solver.dra.slips import Slips
from devalloc_solver.dra.warm.rules import ClaimAsk
from devalloc_solver.index.kinds import Kinds
from devalloc_solver.index.states import NodeRecord

MOST_NODES = 80
"""Nodes that have what a claim names; where more have, the whole cluster is asked."""


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """What the expressions of one shape of claim name, for one layout of the cluster."""

    expressions: frozenset[str] = frozenset()
    """those that no device passes which is not on these nodes"""
    labels: frozenset[str] = frozenset()
    """of the slots that have such an expression"""
    records: tuple[NodeRecord, ...] = ()
    """the nodes that have devices with a value that is named, in natural order"""

    @classmethod
    def of(cls, ask: ClaimAsk) -> Named | None:
        """None where expressions tell devices of one kind apart in other ways, or name those of many nodes."""
        index, demand = ask.rules.index, ask.sight.demand
        related = {*demand.match, *(n for s in demand.slots for n in s.match), *(r.attribute for r in demand.relations)}
        if not related.isdisjoint(index.kinds.choice.scattered):
            return None
        expressions: set[str] = set()
        labels: set[str] = set()
        nodes: set[str | None] = set()
        for slot in demand.slots:
            for program in ask.rules.programs(slot.spec.ask):
                found = ask.rules.places(program)
                if found is None:
                    if ask.rules.is_of_kinds(program):
                        continue
                    return None
                if slot.mode is not Mode.WHOLE:
                    return None
                expressions.add(program.text)
                labels.add(slot.label)
                nodes.update(found)
        if len(nodes) > MOST_NODES:
            return None
        records = sorted((index.records[node] for node in nodes if node is not None), key=lambda one: one.rank)
        return cls(frozenset(expressions), frozenset(labels), tuple(records))

    @property
    def ranks(self) -> Collection[int]:
        return {record.rank for record in self.records}

    def sizes(self) -> Mapping[int, int]:
        """kind -> devices on these nodes"""
        return Counter(kind.index for record in self.records for kind in record.kinds)

    def has(self, slot: Slot) -> bool:
        """Whether a slot, maybe of an edited claim, may only take devices of these nodes."""
        ask, judge = slot.spec.ask, slot.spec.judge
        return not self.expressions.isdisjoint((*judge.classes[ask.class_name].selectors, *ask.selectors))

    def is_all_there(self, details: Iterable[Iterable[Slot]]) -> bool | None:
        """Whether a claim fits on these nodes only; None where an alternative does."""
        found = [[self.has(slot) for slot in slots] for slots in details]
        if any(map(all, found)):
            return True
        return None if any(map(any, found)) else False


@dataclass(slots=True)
class KindSlips(Slips):
    """Slips told from one device of each kind and all commons, and from all values of what kinds do not have."""

    kinds: Kinds | None = None
    commons: Sequence[Offer] = ()

    def _value(self, name: str, value: str) -> Iterator[str]:
        if self.kinds is not None and name in self.kinds.varied and name not in self._values:
            found = Counter(
                {str(v[1]): 1 for v in self.kinds.values(name) if isinstance(v, tuple) and v[0] == "string"}
            )
            for attribute in (lookup(offer, name) for offer in self.commons):
                if attribute is not None and attribute.kind == "string":
                    found.update(map(str, attribute.values))
            self._values[name] = found
        yield from Slips._value(self, name, value)
