"""Units that wait and were left to later rounds, in the order in which rounds look at them.

The most urgent come first; among equally urgent ones those of the namespace for which rounds have looked at least
lately, then the oldest. This account is apart from that of searches (``searches``): it decides when a unit is looked
at, never what is searched. A call costs what comes and goes, and a little for each namespace; not what waits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from devalloc.api.owner_names import MACHINE
from devalloc.api.views import MachineView, Order
from devalloc.store import Key, Object

CLAIM = "DeviceClaim"
FORGOTTEN = 1 / 64
"""What is left of a namespace's share of the rounds when it counts no more: six rounds after one object."""


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
    _by_unit: dict[Unit, _Postponed] = field(default_factory=dict)
    _shares: dict[str, float] = field(default_factory=dict)
    """Namespace -> objects that rounds have looked at; each round halves them."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    @property
    def urgent(self) -> int | None:
        """The place by priority of the most urgent one; None if there are none."""
        return min((queue[0].order[0] for queue in self._queues.values()), default=None)

    def add(self, unit: Unit, order: Order, objects: Mapping[Key, Object]) -> None:
        """Postpone a unit; ``objects``: what it consists of, beside what is postponed of it: a round looks at a group
        as a whole."""
        machines = [MachineView(obj).claims for key, obj in objects.items() if key.kind == MACHINE]
        keys = dict.fromkeys(objects)
        owned = dict.fromkeys(Key(CLAIM, *claim) for claims in machines for claim in claims)
        if (before := self._by_unit.get(unit)) is not None:
            self._withdraw(before)
            order = min(before.order, order)
            keys, owned = dict.fromkeys(before.keys) | keys, dict.fromkeys(before.owned) | owned
        entry = self._by_unit[unit] = _Postponed(order, unit, tuple(keys), tuple(owned))
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
        self._withdraw(entry)
        return entry.keys

    def _withdraw(self, entry: _Postponed) -> None:
        queue = self._queues[entry.unit.namespace]
        place = bisect_left(queue, _place(entry), key=_place)
        while queue[place] is not entry:
            place += 1
        del queue[place]
        self._forget([entry])

    def take(self, most: int) -> list[Key]:
        """Postpone the first units no more, each counted for its namespace before the next is chosen, until these are
        so many objects; they are returned. The last unit may be larger: it stays whole."""
        heads = [(*self._turn(queue[0]), namespace, 0) for namespace, queue in self._queues.items()]
        heapify(heads)
        taken: list[_Postponed] = []
        objects = 0
        while heads and objects < most:
            *_, namespace, place = heads[0]
            queue = self._queues[namespace]
            taken.append(queue[place])
            size = len(queue[place].keys)
            objects += size
            self._count(namespace, size)
            if place + 1 < len(queue):
                heapreplace(heads, (*self._turn(queue[place + 1]), namespace, place + 1))
            else:
                heappop(heads)
        for namespace, number in Counter(entry.unit.namespace for entry in taken).items():
            del self._queues[namespace][:number]
        self._forget(taken)
        return [key for entry in taken for key in entry.keys]

    def charge(self, keys: Iterable[Key]) -> None:
        """Count objects for their namespaces that a round looks at without having postponed them."""
        for key in keys:
            self._count(Unit(key).namespace, 1)

    def begin_round(self) -> None:
        """Let what rounds have looked at so far count half as much."""
        self._shares = {name: half for name, share in self._shares.items() if (half := share / 2) > FORGOTTEN}

    def _count(self, namespace: str, objects: int) -> None:
        self._shares[namespace] = self._shares.get(namespace, 0.0) + objects

    def _turn(self, entry: _Postponed) -> tuple[int, float, Order]:
        return entry.order[0], self._shares.get(entry.unit.namespace, 0.0), entry.order

    def _forget(self, entries: Iterable[_Postponed]) -> None:
        for entry in entries:
            del self._by_unit[entry.unit]
            if not self._queues.get(entry.unit.namespace, True):
                del self._queues[entry.unit.namespace]
            for key in (*entry.keys, *entry.owned):
                if self._by_key.get(key) is entry:
                    del self._by_key[key]
            self.claims -= sum(key.kind == CLAIM for key in entry.keys)


def _place(entry: _Postponed) -> Order:
    return entry.order
