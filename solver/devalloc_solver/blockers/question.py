"""Whether a unit fits a fleet beside what is held: asked again and again, with something taken away each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from devalloc_solver.assignment import Placement, name_devices
from devalloc_solver.blockers.alike import Alike
from devalloc_solver.blockers.counting import Counting
from devalloc_solver.demand import Demand, Slot, Unit
from devalloc_solver.holdings import Holding, Key, Ledger
from devalloc_solver.place import DEFAULT, OutOfSteps, Reader, Steps, fits, place_on
from devalloc_solver.snapshot import Device, Pool, Snapshot

FEW = 4
"""Nodes that are searched rather than compared."""
PROBE = 2_000
"""Steps of ``place`` that a probe may take; a step is a few microseconds."""
FINDING = 3_500
"""The same for all probes of a finding."""


class Undecided(Exception):
    """The deadline or the search limit came before it was known whether a unit fits."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Does the unit fit? Devices keep their indexes in whatever an edit makes of the snapshot."""

    snapshot: Snapshot
    unit: Unit
    held: tuple[Holding, ...] = ()
    touched: frozenset[str | None] = frozenset()
    """nodes with a pool that was edited on its own; edits of all pools alike leave alike what was"""

    def with_slots(self, change: Callable[[Demand, Slot], Slot | None]) -> Question:
        """The same with every slot changed; a slot that becomes None goes, and with it a detail that has no other."""
        demands = []
        for demand in self.unit.demands:
            details = []
            for detail in demand.details:
                slots = tuple([new for slot in detail if (new := change(demand, slot)) is not None])
                if slots:
                    details.append(slots)
            demands.append(replace(demand, details=tuple(details), shape=None))
        return replace(self, unit=replace(self.unit, demands=tuple(demands)))

    def with_detail(self, key: Key, number: int, change: Callable[[Slot], Slot | None]) -> Question:
        """The same with the slots of one detail changed, as with ``with_slots``; the others stay the same objects."""
        demands = []
        for demand in self.unit.demands:
            details = demand.details
            if demand.key == key:
                changed = [
                    tuple([new for slot in detail if (new := change(slot)) is not None])
                    if detail[0].detail == number
                    else detail
                    for detail in details
                ]
                details = tuple([slots for slots in changed if slots])
            demands.append(replace(demand, details=details, shape=None))
        return replace(self, unit=replace(self.unit, demands=tuple(demands)))

    def with_demands(self, change: Callable[[Demand], Demand | None]) -> Question:
        """The same with every demand changed; one that becomes None goes."""
        demands = tuple(new for demand in self.unit.demands if (new := change(demand)) is not None)
        return replace(self, unit=replace(self.unit, demands=demands))

    def without_member(self, key: Key) -> Question:
        """The same once a claim has left the group."""
        return replace(self, unit=self.unit.without(key))

    def touching(self, pool: Pool) -> Question:
        """The same, knowing that an edit was about this pool only."""
        return replace(self, touched=self.touched | {pool.node})

    def with_pools(self, change: Callable[[Pool], Pool]) -> Question:
        """The same with every pool changed, and the devices that are in it then."""
        old = self.snapshot
        pools = tuple(change(pool) for pool in old.pools)
        devices = list(old.devices)
        for pool, before in zip(pools, old.pools, strict=True):
            if pool.devices is not before.devices:
                for device in pool.devices:
                    devices[device.index] = device
        by_node = {node: tuple(pools[p.index] for p in some) for node, some in old.pools_by_node.items()}
        by_name = {name: tuple(pools[p.index] for p in some) for name, some in old.pools_by_name.items()}
        snapshot = replace(old, pools=pools, devices=tuple(devices), pools_by_node=by_node, pools_by_name=by_name)
        return replace(self, snapshot=snapshot)

    def with_devices(self, changed: Mapping[int, Device]) -> Question:
        """The same with these devices in the place of those of the same index."""
        touched = {device.pool for device in changed.values()}

        def change(pool: Pool) -> Pool:
            if pool.index not in touched:
                return pool
            return replace(pool, devices=tuple(changed.get(d.index, d) for d in pool.devices))

        return self.with_pools(change)

    def pinned(self, node: str | None) -> Question:
        return replace(self, unit=replace(self.unit, pin=node))

    def without(self, claims: frozenset[Key]) -> Question:
        """The same once these claims are released."""
        return replace(self, held=tuple(holding for holding in self.held if holding.claim not in claims))


@dataclass(slots=True)
class Finder:
    """Answers questions about one fleet and what edits make of it, for certain or not at all."""

    snapshot: Snapshot
    reads: Callable[[Slot], frozenset[str] | None]
    """the attributes that the expressions of a slot read; None: any"""
    ends: float | None = None
    """monotonic time of the deadline"""
    counting: Counting = field(init=False)
    alike: Alike = field(init=False)
    asked: int = field(default=0, init=False)
    """nodes that were searched, so that a caller can bound its work the same way every time"""
    is_cut_short: bool = field(default=False, init=False)
    """a probe of this finding was too hard to be answered"""
    _left: int = field(default=0, init=False)
    _reader: Reader = field(default_factory=Reader, init=False)

    def __post_init__(self) -> None:
        self.counting, self.alike = Counting(self.snapshot), Alike(self.snapshot)

    def fits(self, question: Question) -> bool:
        """Whether the unit fits, for certain. Raises Undecided."""
        found, hard = self._look(question, None, self._fits_on)
        return found is not None or any(self._search(question, node) is not None for node in hard)

    def works(self, question: Question) -> bool:
        """The same with little work: False may also mean that it is not known, and then ``is_cut_short`` is set."""
        return self._probe(question, self._fits_on) is not None

    def probe(self, question: Question, *, any_will_do: bool = False) -> Sequence[Placement] | None:
        """Where the unit goes best on some node, or just somehow, with little work; None as with ``works``."""
        found: Sequence[Placement] | None = self._probe(question, partial(self._place_on, any_will_do=any_will_do))
        return found

    def begin(self) -> None:
        """Begin with the next finding: its probes have a budget of their own."""
        self._left, self.is_cut_short = FINDING, False

    def refill(self, steps: int = FINDING) -> None:
        """Begin with another part of the same finding, which may take so many steps."""
        self._left = steps

    @property
    def has_steps(self) -> bool:
        """Whether probes may still be asked in this part of the finding."""
        return self._left > 0

    def _probe(self, question: Question, ask: Ask) -> Any:
        if self._left <= 0:
            self.is_cut_short = True
            return None
        budget = Steps(min(PROBE, self._left))
        given = budget.left
        found, hard = self._look(question, budget, ask)
        self._left -= given - max(0, budget.left)
        if found is None and hard and budget.left >= 0:  # not too hard: ``place`` does not know such units
            return next((there for node in hard if (there := self._search(question, node)) is not None), None)
        self.is_cut_short |= found is None and bool(hard)
        return found

    def _look(self, question: Question, budget: Steps | None, ask: Ask) -> tuple[Any, list[str | None]]:
        """The answer of a node where the unit fits, or None, and the nodes where the steps ran out.

        ``budget`` is for all nodes together; without it each has one of its own.
        """
        details = [detail for demand in question.unit.demands for detail in demand.details]
        if not details:
            return (), []
        if any(not any(slot.candidates.accepted for slot in detail) for detail in details):
            return None, []
        ledger = self._ledger(question)
        hard: list[str | None] = []
        for node in self._nodes(question):
            if self.ends is not None and time.monotonic() > self.ends:
                raise Undecided
            self.asked += 1
            try:
                found = ask(question, ledger, node, budget or Steps(DEFAULT))
            except OutOfSteps:
                hard.append(node)
                if budget is not None and budget.left <= 0:
                    break
                continue
            if found is not None:
                return found, []
        return None, hard

    def _nodes(self, question: Question) -> Sequence[str | None]:
        """Nodes that are worth a search."""
        if question.unit.pin is not None:
            return [question.unit.pin]
        nodes = self.counting.nodes(question.unit, question.held)
        if question.held or len(nodes) < FEW:
            return nodes
        names = set()
        for demand in question.unit.demands:
            names |= {*demand.match, *demand.shared}
            names |= {relation.attribute for relation in demand.relations}
            for slot in demand.slots:
                read = self.reads(slot)
                if read is None:
                    return nodes
                names |= read | {*slot.match}
        return self.alike.one_of_each(nodes, frozenset(names), question.touched)

    def _ledger(self, question: Question) -> Ledger:
        """What is in use; that of all holdings is kept, and its parts are small."""
        pinned = question.unit.pin is not None
        if question.snapshot is self.snapshot and not pinned:
            return self.counting.state(question.held).ledger
        return Ledger.of(question.snapshot, question.held)

    def _fits_on(self, question: Question, ledger: Ledger, node: str | None, steps: Steps) -> bool | None:
        unit = question.unit if node is None else replace(question.unit, pin=node)
        return fits(question.snapshot, ledger, unit, steps=steps, reader=self._reader) or None

    def _place_on(
        self, question: Question, ledger: Ledger, node: str | None, steps: Steps, *, any_will_do: bool
    ) -> Sequence[Placement] | None:
        snapshot, unit = question.snapshot, question.unit
        found = place_on(snapshot, ledger, unit, node, steps=steps, any_will_do=any_will_do, reader=self._reader)
        return None if found is None else found.placements

    def _search(self, question: Question, node: str | None) -> Sequence[Placement] | None:
        """The same for a node that ``place`` does not settle within its budget. Raises Undecided."""
        from devalloc_solver.goals import Search
        from devalloc_solver.model import build_model

        asked = question if node is None else question.pinned(node)
        search = Search(build_model(asked.snapshot, asked.held, [asked.unit]), self.ends)
        value, bound = search.maximize([(1, search.model.satisfied[0])], best=1)
        if value:
            return name_devices(search)
        if bound > 0:
            raise Undecided
        return None


Ask = Callable[[Question, Ledger, "str | None", Steps], Any]
"""Asks one node, within so many steps: something when the unit fits, None when it does not. Raises OutOfSteps."""
