"""Units that wait and were left to later rounds, in the order in which rounds look at them.

Each round takes the first of each namespace, and nothing before what is more urgent. A call costs what comes and goes,
not what waits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from devalloc.api.views import Order
from devalloc.controller.reconcile.vm_scheduling import KIND as MACHINE
from devalloc.controller.reconcile.vm_scheduling.machines import claims_of
from devalloc.store import Key, Object

CLAIM = "DeviceClaim"


class Unit(NamedTuple):
    """What waits as one; by its first object."""

    key: Key
    group: str = ""

    @property
    def namespace(self) -> str:
        return self.key.namespace or "default"


class _Postponed(NamedTuple):
    order: Order
    unit: Unit
    keys: tuple[Key, ...]
    owned: tuple[Key, ...]
    """Claims of a machine, whether they are there or not: they belong to the same unit."""


@dataclass(slots=True)
class PostponedUnits:
    """Of one loop. Not thread-safe."""

    claims: int = 0
    """How many of the objects are claims."""
    _queues: dict[str, list[_Postponed]] = field(default_factory=dict)
    """Namespace -> units in order."""
    _by_key: dict[Key, _Postponed] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._queues)

    @property
    def urgent(self) -> int | None:
        """The place by priority of the most urgent one; None if there are none."""
        return min((queue[0].order[0] for queue in self._queues.values()), default=None)

    def add(self, unit: Unit, order: Order, objects: Mapping[Key, Object]) -> None:
        """Postpone a unit; ``objects``: what it consists of."""
        machines = [claims_of(obj) for key, obj in objects.items() if key.kind == MACHINE]
        owned = tuple(Key(CLAIM, *claim) for claims in machines for claim in claims)
        entry = _Postponed(order, unit, tuple(objects), owned)
        insort(self._queues.setdefault(unit.namespace, []), entry, key=_place)
        for key in owned:
            self._by_key.setdefault(key, entry)
        self._by_key |= dict.fromkeys(entry.keys, entry)
        self.claims += sum(key.kind == CLAIM for key in entry.keys)

    def withdraw(self, key: Key) -> tuple[Key, ...]:
        """Postpone the unit no more to which an object belongs; the objects of that unit."""
        entry = self._by_key.get(key)
        if entry is None:
            return ()
        queue = self._queues[entry.unit.namespace]
        place = bisect_left(queue, _place(entry), key=_place)
        while queue[place] is not entry:
            place += 1
        del queue[place]
        self._forget([entry])
        return entry.keys

    def take(self, most: int) -> list[Key]:
        """Postpone the first units no more: so many of each namespace, and none that is less urgent than one that
        stays; their objects."""
        urgent = min((queue[most].order[0] for queue in self._queues.values() if len(queue) > most), default=None)
        taken: list[_Postponed] = []
        for namespace in [*self._queues]:
            queue = self._queues[namespace]
            first = [*takewhile(lambda entry: urgent is None or entry.order[0] <= urgent, queue[:most])]
            del queue[: len(first)]
            taken += first
        self._forget(taken)
        return [key for entry in taken for key in entry.keys]

    def _forget(self, entries: Iterable[_Postponed]) -> None:
        for entry in entries:
            if not self._queues.get(entry.unit.namespace, True):
                del self._queues[entry.unit.namespace]
            for key in (*entry.keys, *entry.owned):
                if self._by_key.get(key) is entry:
                    del self._by_key[key]
            self.claims -= sum(key.kind == CLAIM for key in entry.keys)


def _place(entry: _Postponed) -> Order:
    return entry.order
