"""Whether a unit fits a fleet beside what is held: asked again and again, with something taken away each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from devalloc_solver.assignment import Placement, name_devices
from devalloc_solver.demand import Demand, Slot, Unit
from devalloc_solver.goals import Search
from devalloc_solver.holdings import Holding, Key, Ledger
from devalloc_solver.model import build_model
from devalloc_solver.place import OutOfSteps, place
from devalloc_solver.snapshot import Device, Pool, Snapshot


class Undecided(Exception):
    """The deadline or the search limit came before it was known whether a unit fits."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Does the unit fit? Devices keep their indexes in whatever an edit makes of the snapshot."""

    snapshot: Snapshot
    unit: Unit
    held: tuple[Holding, ...] = ()

    def with_slots(self, change: Callable[[Demand, Slot], Slot | None]) -> Question:
        """The same with every slot changed; a slot that becomes None goes, and with it a detail that has no other."""
        demands = []
        for demand in self.unit.demands:
            details = []
            for detail in demand.details:
                slots = tuple(new for slot in detail if (new := change(demand, slot)) is not None)
                if slots:
                    details.append(slots)
            demands.append(replace(demand, details=tuple(details), shape=None))
        return replace(self, unit=replace(self.unit, demands=tuple(demands)))

    def with_demands(self, change: Callable[[Demand], Demand | None]) -> Question:
        """The same with every demand changed; one that becomes None goes."""
        demands = tuple(new for demand in self.unit.demands if (new := change(demand)) is not None)
        return replace(self, unit=replace(self.unit, demands=demands))

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
    """Answers questions, for certain or not at all."""

    ends: float | None = None
    """monotonic time of the deadline"""
    _last: tuple[tuple[Holding, ...], Ledger] | None = field(default=None, init=False)
    asked: int = field(default=0, init=False)
    """questions that took a search, so that a caller can bound its work the same way every time"""

    def find(self, question: Question) -> Sequence[Placement] | None:
        """Where the unit goes, or None when it is proven that it does not fit. Raises Undecided."""
        if not question.unit.demands or all(not demand.details for demand in question.unit.demands):
            return []
        if any(
            not any(slot.candidates.accepted for slot in d) for demand in question.unit.demands for d in demand.details
        ):
            return None
        if self.ends is not None and time.monotonic() > self.ends:
            raise Undecided
        self.asked += 1
        try:
            found = place(question.snapshot, self._ledger(question), question.unit)
        except OutOfSteps:
            return self._search(question)
        return None if found is None else found.placements

    def _ledger(self, question: Question) -> Ledger:
        """The ledger of what a question holds; the last one is kept, because many questions differ in the unit only."""
        if self._last is None or self._last[0] is not question.held or self._last[1].snapshot is not question.snapshot:
            self._last = question.held, Ledger.of(question.snapshot, question.held)
        return self._last[1]

    def _search(self, question: Question) -> Sequence[Placement] | None:
        """The same for questions that are too hard to be answered by ``place``."""
        search = Search(build_model(question.snapshot, question.held, [question.unit]), self.ends)
        value, bound = search.maximize([(1, search.model.satisfied[0])], best=1)
        if value:
            return name_devices(search)
        if bound > 0:
            raise Undecided
        return None

    def fits(self, question: Question) -> bool:
        """Whether the unit fits. Raises Undecided."""
        return self.find(question) is not None
