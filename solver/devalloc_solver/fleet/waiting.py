"""Claims that wait for a change of the fleet: which of them one could help.

Claims that ask for the same, and fit nowhere, are a class. A class is left alone until devices that it could use become
free or new, or the rules change. Then it is asked whether one of them would fit, and only as many are woken as could
have a place at once, the first by order (S17). The others cannot get anything before these. What is only taken never
helps, so it wakes none.

Units that are satisfied together, such as a group, are a class of their own. They are woken by whatever could help one
of them.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

REFRESH_SECONDS = 60.0
"""How old a refusal may be while the fleet changes: who holds what is wanted is part of it."""
FIRST_REFRESHED = 4
"""Refusals that are found anew at once as long as it is not known how long that takes: 8 ms each where 10,000 claims
have as many shapes, 2 ms and less where shapes are few."""
YIELD_SECONDS = 2.0
"""How long refusals are not found anew because new claims are to be answered."""
QUESTION_SECONDS = 0.1
"""How long one claim may take to be judged; one that takes longer is not left alone."""
MAX_CLASSES = 50_000
"""Classes that are remembered; claims of further ones are not left alone."""

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 60.0, 960.0
"""How long a unit is left alone that takes too long to be judged: the first time and at most. Doubled each time in a
row."""
MAX_PAUSES = 10_000
"""Such units that are remembered; further ones are not left alone."""

T = TypeVar("T")
Manifest = Mapping[str, Any]
Answer = dict[str, Any]
Order = tuple[Any, ...]
"""The order in which claims are satisfied."""


class Prospects(NamedTuple):
    """What one claim alone could have."""

    key: Hashable
    """equal for claims that have the same answer"""
    kinds: frozenset[int] | None
    """kinds of devices that it could use; None for any"""
    drivers: frozenset[str] | None
    """drivers whose devices of new kinds it could use; None for any"""
    fits: bool
    """whether it has a place now"""
    most: int | None
    """how many of them could have a place at once, at most; None if that is not known"""
    least: int = 0
    """free devices of these kinds that a node must have for one of them, with those of the network"""


class Gains(NamedTuple):
    """What has become free or new in a fleet."""

    edition: tuple[object, ...]
    """other objects once all is to be asked for again"""
    names: object
    """another object once there are other objects than before that claims name"""
    kinds: frozenset[int]
    """kinds of devices that there are more of, or whose pools have more room"""
    room: Sequence[Mapping[int, int]] | None
    """of each node with such: kind -> devices that are free, with those of the network; None if that is not known"""
    altered: frozenset[int]
    """kinds of devices in pools that are new, changed or gone: refusals may have other reasons"""
    drivers: Sequence[str]
    """the driver of each kind"""


_Need = tuple[frozenset[int], int]
"""Kinds of devices, and how many of them a node must have free."""


class Questioned(Protocol):
    """The fleet as the book asks it; ``Fleet`` is one."""

    def gains(self, kind: str) -> Gains: ...
    def waiting_key(self, claim: Manifest) -> Hashable | None: ...
    def prospects(
        self, claim: Manifest, deadline: float | None = None, *, at_best: bool = False
    ) -> Prospects | None: ...


@dataclass(slots=True, eq=False)
class _Class:
    """Units that wait for the same."""

    claims: tuple[Manifest, ...]
    """of one of them, for questions"""
    namespace: str
    kinds: frozenset[int] | None
    least: int
    """free devices of these that a node must have"""
    drivers: frozenset[str] | None
    answer: Answer | None
    """the refusal; None of a unit of several claims"""
    as_of: int
    """the last change of the fleet before it"""
    since: float
    """when it was found"""
    members: list[tuple[Order, Hashable]] = field(default_factory=list)
    """in order"""
    woken: set[Hashable] = field(default_factory=set)
    """of its units those that are asked for now"""
    most: int = 0
    """how many of them may be at once"""
    is_outdated: bool = False
    """its refusal is to be found anew"""
    is_recorded: bool = False
    """its refusal is what one of its claims had recorded before there was this book; each says what it has recorded"""
    differs: bool = False
    """some of its units were told another refusal"""
    untold: list[Hashable] = field(default_factory=list)
    """units that are to be told the refusal of now, the first one last"""


@dataclass(slots=True)
class _Ages:
    """Classes in the order in which their refusals are found or told anew."""

    _due: dict[Hashable, None] = field(default_factory=dict)
    """at once"""
    _others: dict[Hashable, None] = field(default_factory=dict)
    """the oldest first"""

    @property
    def first(self) -> Hashable:
        return next(iter(self._due or self._others))

    def hasten(self, key: Hashable) -> None:
        """It is due at once."""
        self._others.pop(key, None)
        self._due[key] = None

    def renew(self, key: Hashable) -> None:
        """It is the newest."""
        self.remove(key)
        self._others[key] = None

    def remove(self, key: Hashable) -> bool:
        """Whether others are left."""
        self._due.pop(key, None)
        self._others.pop(key, None)
        return bool(self._due or self._others)


@dataclass(slots=True)
class _Pause:
    """Of a unit that takes too long to be judged."""

    times: int = 0
    """how many there were in a row"""
    until: float = math.inf
    """when it ends; infinite once the unit is solved again"""


@dataclass(slots=True)
class WaitingBook:
    """The refusals of one dialect that are still valid, so that a claim is solved again only if it may fit now.

    A unit is what waits as one: a claim, a group or a machine; the caller chooses its key. Not thread-safe.
    """

    kind: str = "DeviceClaim"
    clock: Callable[[], float] = time.monotonic
    compared: str = "message"
    """the part of a refusal that its claims report: if it is another one, they report it"""
    _classes: dict[Hashable, _Class] = field(default_factory=dict)
    _class_of: dict[Hashable, Hashable] = field(default_factory=dict)
    """unit -> its class"""
    _orders: dict[Hashable, Order] = field(default_factory=dict)
    _by_kind: dict[int, dict[_Need, None]] = field(default_factory=dict)
    _by_need: dict[_Need, dict[Hashable, None]] = field(default_factory=dict)
    _by_driver: dict[str | None, dict[Hashable, None]] = field(default_factory=dict)
    """driver (None: any) -> classes to which devices of a new kind may matter"""
    _of_any_kind: dict[str | None, dict[Hashable, None]] = field(default_factory=dict)
    """the same for classes to which all devices of a driver may matter"""
    _by_rules: dict[Hashable, None] = field(default_factory=dict)
    """classes of which a claim is refused by the rules, whatever is free"""
    _pauses: dict[Hashable, _Pause] = field(default_factory=dict)
    _dirty: dict[str, dict[Hashable, None]] = field(default_factory=dict)
    """namespace -> classes that a change could have helped"""
    _ages: OrderedDict[str, _Ages] = field(default_factory=OrderedDict)
    """namespace -> its classes; the namespace first whose turn it is to have refusals found anew"""
    _refreshed: float = -math.inf
    """when refusals were last to be found anew"""
    _refreshing: set[Hashable] = field(default_factory=set)
    """units of which they are found then"""
    _refreshed_until: float = -math.inf
    """when that of one of these was"""
    _share: int = FIRST_REFRESHED
    """how many there may be"""
    _edition: tuple[object, ...] = ()
    _names: object = None
    _judged_kinds: int = 0
    """kinds of devices that the classes were judged by"""
    _compared_with: dict[Hashable, Prospects] = field(default_factory=dict)
    """what recorded refusals were compared with since the last change"""
    _changes: int = 0

    # -- who waits -----------------------------------------------------------------------------------------------------

    def __contains__(self, unit: Hashable) -> bool:
        return unit in self._class_of

    def __len__(self) -> int:
        return len(self._class_of)

    @property
    def units(self) -> Set[Hashable]:
        """All units that wait, including those that are being solved now."""
        return self._class_of.keys() | self._pauses.keys()

    def equals(self, unit: Hashable) -> list[Hashable]:
        """All units that wait for the same thing as this unit, including itself; empty if it does not wait."""
        key = self._class_of.get(unit)
        return [] if key is None else [one for _, one in self._classes[key].members]

    def refusal(self, key: Hashable | None) -> Answer | None:
        """The answer, without names, to a claim of this ``waiting_key``, if an equal one waits. None if the claim must
        be solved."""
        record = self._classes.get(key)
        if record is None or record.answer is None or record.is_outdated or self._is_dirty(key, record):
            return None
        return None if record.is_recorded else {**record.answer}

    def still_holds(
        self,
        fleet: Questioned,
        claim: Manifest,
        key: Hashable | None,
        *,
        is_of_rules: bool,
        at_best: bool = False,
    ) -> bool:
        """Whether a claim still fits nowhere that was refused before there was this book.

        ``key``: its ``waiting_key``. ``is_of_rules``: it was refused because no device, in use or not, is what it asks
        for. ``at_best``: its expressions are not read where it fits nowhere whatever they accept. If they accept none
        any more, its reason, once found anew, says so.
        """
        if key is None:
            return False
        record = self._classes.get(key)
        if record is not None:
            return record.is_recorded and not self._is_dirty(key, record)
        prospects = self._compared_with.get(key)
        if prospects is None and at_best and not is_of_rules:
            prospects = fleet.prospects(claim, QUESTION_SECONDS, at_best=True)
        if prospects is None or prospects.fits or _is_of_rules(prospects) is not is_of_rules:
            prospects = fleet.prospects(claim, QUESTION_SECONDS)
        if prospects is None or prospects.fits or _is_of_rules(prospects) is not is_of_rules:
            return False
        self._compared_with[key] = prospects
        return True

    def rest(
        self,
        fleet: Questioned,
        unit: Hashable,
        order: Order,
        claim: Manifest,
        answer: Answer,
        *,
        is_recorded: bool = False,
    ) -> bool:
        """Record that a claim was refused, and need not be solved again for now. False if it may fit now.

        ``is_recorded``: the refusal is one that still holds. It is soon to be found anew.
        """
        self.discard(unit)
        if unit in self._refreshing:
            self._refreshed_until = self.clock()
        key = fleet.waiting_key(claim)
        if key is None:
            return False
        record = self._classes.get(key)
        if record is None or self._is_dirty(key, record) or (record.is_recorded and not is_recorded):
            prospects = self._compared_with.pop(key, None) or fleet.prospects(claim, QUESTION_SECONDS)
            if prospects is None or prospects.fits or (record is None and len(self._classes) >= MAX_CLASSES):
                return False
            is_first = record is None
            record = self._enter(key, record, (claim,), [prospects], answer)
            if is_recorded and is_first:
                record.is_recorded, record.as_of = True, -1
                self._renew_refusal(key)
        if is_recorded and not record.is_recorded:
            record.untold.append(unit)
            self._ages[record.namespace].hasten(key)
        else:
            self._note(key, record, answer, is_recorded=is_recorded)
        self._add(key, record, unit, order)
        return True

    def _note(self, key: Hashable, record: _Class, answer: Answer, *, is_recorded: bool) -> None:
        """The refusal of a class as it was last found, or as one of its claims has it."""
        before, record.answer = record.answer, answer
        record.differs |= before is not None and before[self.compared] != answer[self.compared]
        if not is_recorded and (record.is_outdated or record.is_recorded):
            record.is_outdated = record.is_recorded = False
            record.untold = [unit for _, unit in reversed(record.members)] if record.differs else []
            record.differs = False
            if record.untold:
                self._ages[record.namespace].hasten(key)

    def rest_together(self, fleet: Questioned, unit: Hashable, order: Order, claims: Sequence[Manifest]) -> bool:
        """Record the same of claims that must be satisfied together and are proven not to fit.

        False if it is not certain which changes could help them.
        """
        self.discard(unit)
        prospects = []
        for claim in claims:
            if (one := fleet.prospects(claim, QUESTION_SECONDS)) is None:
                return False
            prospects.append(one)
        if len(self._classes) >= MAX_CLASSES:
            return False
        key = ("unit", unit)
        self._add(key, self._enter(key, None, tuple(claims), prospects, None), unit, order)
        return True

    def discard(self, unit: Hashable) -> None:
        """Remove a unit that no longer waits, or that others solve."""
        if unit in self._pauses:
            self._pauses[unit].until = math.inf
        key = self._class_of.pop(unit, None)
        if key is None:
            return
        record = self._classes[key]
        order = self._orders.pop(unit)
        record.woken.discard(unit)
        position = _position(record.members, (order, unit))
        if position is not None:
            del record.members[position]
        if not record.members:
            self._drop(key, record)

    def _add(self, key: Hashable, record: _Class, unit: Hashable, order: Order) -> None:
        insort(record.members, (order, unit), key=_rank)
        self._class_of[unit], self._orders[unit] = key, order

    def _enter(
        self,
        key: Hashable,
        record: _Class | None,
        claims: tuple[Manifest, ...],
        prospects: Sequence[Prospects],
        answer: Answer | None,
    ) -> _Class:
        """A class that was judged now, with the prospects of its claims."""
        kinds, drivers = _union(one.kinds for one in prospects), _union(one.drivers for one in prospects)
        least = min(one.least for one in prospects)
        if record is not None:
            self._take_out(key, record)
            record.kinds, record.least, record.drivers = kinds, least, drivers
        else:
            namespace = str(claims[0].get("metadata", {}).get("namespace") or "default")
            record = _Class(claims, namespace, kinds, least, drivers, answer, self._changes, self.clock())
            self._classes[key] = record
            self._ages.setdefault(namespace, _Ages()).renew(key)
        for driver in (None,) if drivers is None else drivers:
            (self._by_driver if kinds is not None else self._of_any_kind).setdefault(driver, {})[key] = None
        if kinds:
            need = kinds, least
            for kind in kinds if need not in self._by_need else ():
                self._by_kind.setdefault(kind, {})[need] = None
            self._by_need.setdefault(need, {})[key] = None
        if any(map(_is_of_rules, prospects)):
            self._by_rules[key] = None
        return record

    def _drop(self, key: Hashable, record: _Class) -> None:
        self._take_out(key, record)
        if not self._ages[record.namespace].remove(key):
            del self._ages[record.namespace]
        del self._classes[key]

    def _take_out(self, key: Hashable, record: _Class) -> None:
        if record.kinds:
            need = record.kinds, record.least
            _remove(self._by_need, need, key)
            for kind in record.kinds if need not in self._by_need else ():
                _remove(self._by_kind, kind, need)
        for driver in (None,) if record.drivers is None else record.drivers:
            _remove(self._by_driver if record.kinds is not None else self._of_any_kind, driver, key)
        self._by_rules.pop(key, None)
        _remove(self._dirty, record.namespace, key)

    def _is_dirty(self, key: Hashable, record: _Class) -> bool:
        return key in self._dirty.get(record.namespace, ())

    # -- what takes too long -------------------------------------------------------------------------------------------

    def pause(self, unit: Hashable, at_least: float = 0.0) -> bool:
        """Record that a unit takes too long to be judged, and is not to be solved for a while, whatever changes.

        ``at_least``: seconds. False if too many have a pause already.
        """
        self.discard(unit)
        if unit not in self._pauses and len(self._pauses) >= MAX_PAUSES:
            return False
        pause = self._pauses.setdefault(unit, _Pause())
        seconds = min(PAUSE_SECONDS * 2.0 ** min(pause.times, 10), MAX_PAUSE_SECONDS)
        pause.times, pause.until = pause.times + 1, self.clock() + max(seconds, at_least)
        return True

    def is_paused(self, unit: Hashable) -> bool:
        """Whether a unit is left alone for a while."""
        return unit in self._pauses and self._pauses[unit].until < math.inf

    def end_pauses(self, unit: Hashable) -> None:
        """Forget how often a unit took too long: it is another one now, or was judged."""
        self._pauses.pop(unit, None)

    def due(self) -> list[Hashable]:
        """The units whose pause is over, until they are discarded."""
        now = self.clock()
        return [unit for unit, pause in self._pauses.items() if pause.until <= now]

    # -- what changes --------------------------------------------------------------------------------------------------

    def catch_up(self, fleet: Questioned) -> None:
        """Record which waiting units the changes since the last call could help."""
        self._changes += 1
        self._compared_with.clear()
        gains = fleet.gains(self.kind)
        if len(gains.edition) != len(self._edition) or any(
            one is not other for one, other in zip(gains.edition, self._edition, strict=True)
        ):
            self._renew_refusals()
            self._edition, self._names, self._judged_kinds = gains.edition, gains.names, len(gains.drivers)
            for key in self._classes:
                self._mark(key)
            return
        if gains.names is not self._names:
            self._renew_refusals()
            self._names = gains.names
            for key in self._by_rules:
                self._mark(key)
        elif len(gains.drivers) > self._judged_kinds:
            self._renew_refusals()
        for key in self._that_could_use(gains.kinds, gains.drivers, gains.room):
            self._mark(key)
        for key in self._that_could_use(gains.altered, gains.drivers):
            self._renew_refusal(key)
        self._judged_kinds = len(gains.drivers)

    def _renew_refusals(self) -> None:
        """Have refusals for want of any device found anew soon: they may name a class or a driver that is there now."""
        for key in self._by_rules:
            self._renew_refusal(key)

    def _renew_refusal(self, key: Hashable) -> None:
        record = self._classes[key]
        record.since = -math.inf
        self._ages[record.namespace].hasten(key)

    def ignore_changes(self, fleet: Questioned) -> None:
        """Ignore the changes since ``catch_up``: devices were only taken for a while, and are free again."""
        fleet.gains(self.kind)

    def _that_could_use(
        self, kinds: Set[int], drivers: Sequence[str], room: Sequence[Mapping[int, int]] | None = None
    ) -> Iterator[Hashable]:
        """The classes that could use devices of these kinds. ``room``: see ``Gains``; None: wherever they are."""
        for need in {need: None for kind in kinds for need in self._by_kind.get(kind, ())}:
            if room is None or any(_suffices(need, free) for free in room):
                yield from self._by_need[need]
        for number, among in ((self._judged_kinds, self._by_driver), (0, self._of_any_kind)):
            own = dict.fromkeys(drivers[kind] for kind in sorted(kinds) if kind >= number)
            for driver in (*own, None) if own else ():
                yield from among.get(driver, ())

    def _mark(self, key: Hashable) -> None:
        record = self._classes[key]
        record.most = len(record.members)  # until it is asked again
        self._dirty.setdefault(record.namespace, {})[key] = None

    def wake(self, fleet: Questioned, seconds: float | None = None, count: int | None = None) -> list[Hashable]:
        """The units that must be solved again, because they, or a unit that equals them, may fit now.

        ``seconds``: the time for this call, and ``count``: after so many units it ends; None for no limit. The next
        call continues. Namespaces take turns, and of each the most urgent are asked about first.
        """
        ends = None if seconds is None else self.clock() + seconds
        woken: list[Hashable] = []
        turns = [sorted(keys, key=lambda key: self._classes[key].members[0][0]) for keys in self._dirty.values()]
        try:
            for number in range(max(map(len, turns), default=0)):
                for keys in turns:
                    if number < len(keys):
                        woken += self._ask(fleet, keys[number])
                        if (count is not None and len(woken) >= count) or (ends is not None and self.clock() >= ends):
                            return woken
        except BaseException:
            for unit in woken:  # no caller hears of them
                self._classes[self._class_of[unit]].woken.discard(unit)
            raise
        return woken

    @property
    def is_behind(self) -> bool:
        """Whether ``wake`` had no time for some waiting units."""
        return any(not self._classes[key].woken for keys in self._dirty.values() for key in keys)

    def _ask(self, fleet: Questioned, key: Hashable) -> list[Hashable]:
        """Units of a class that are to be asked for as well."""
        record = self._classes[key]
        if record.woken and len(record.woken) >= min(record.most, len(record.members)):
            return []  # until these have their answers
        record.most = len(record.members)
        if record.answer is not None:
            prospects = fleet.prospects(record.claims[0], QUESTION_SECONDS)
            if prospects is not None and not prospects.fits and prospects.key == key:
                self._enter(key, record, record.claims, [prospects], record.answer)
                return []
            if prospects is None:
                record.most = 1
            elif prospects.most is not None:
                record.most = max(1, prospects.most)
        first = [unit for _, unit in record.members[: record.most] if unit not in record.woken]
        record.woken.update(first)
        return first

    def outdated(self, count: int, seconds: float | None = None, *, yields: bool = False) -> list[Hashable]:
        """At most ``count`` units whose refusals are old, and must be decided or reported again: the fleet changed.
        The oldest of each namespace, in turns.

        ``seconds``: how long that is to take at most, as it took so far. ``yields``: others wait for what is decided
        with them.
        """
        now = self.clock()
        if yields and now - self._refreshed < YIELD_SECONDS:
            return []
        if seconds is not None:
            if (took := self._refreshed_until - self._refreshed) >= 0:
                self._share = max(1, min(count, int(self._share * seconds / max(took, seconds / 2))))
            count, self._refreshed_until = self._share, -math.inf
        units: list[Hashable] = []
        turns = deque(self._ages)
        while turns and len(units) < count:
            key = self._due(ages := self._ages[namespace := turns.popleft()], now)
            if key is None:
                continue
            turns.append(namespace)
            self._ages.move_to_end(namespace)
            record = self._classes[key]
            if record.untold:
                units.append(record.untold.pop())
            else:
                record.is_outdated, record.is_recorded = True, False
                units.append(record.members[0][1])
            if not record.untold:
                self._renewed(ages, key, now)
        if units:
            self._refreshed, self._refreshing = now, {*units}
        return units

    @property
    def has_outdated(self) -> bool:
        """Whether ``outdated`` has units to return."""
        now = self.clock()
        return any(self._due(ages, now) is not None for ages in self._ages.values())

    def _due(self, ages: _Ages, now: float) -> Hashable | None:
        """The first of some classes if its refusal is to be found or told anew."""
        while True:
            record = self._classes[key := ages.first]
            if record.untold:
                return key
            if record.as_of >= self._changes or now - record.since < REFRESH_SECONDS:
                return None
            if not record.woken:
                return key
            self._renewed(ages, key, now)  # it is being asked for

    def _renewed(self, ages: _Ages, key: Hashable, now: float) -> None:
        record = self._classes[key]
        record.as_of, record.since = self._changes, now
        ages.renew(key)


def _is_of_rules(prospects: Prospects) -> bool:
    """Whether a claim is refused by the rules, whatever is free."""
    return prospects.kinds is not None and not prospects.kinds


def _suffices(need: _Need, free: Mapping[int, int]) -> bool:
    kinds, least = need
    return sum(number for kind, number in free.items() if kind in kinds) >= least


def _union(sets: Iterable[frozenset[T] | None]) -> frozenset[T] | None:
    """All of them; None if one is."""
    union: frozenset[T] = frozenset()
    for each in sets:
        if each is None:
            return None
        union |= each
    return union


def _rank(entry: tuple[Order, Hashable]) -> Order:
    return entry[0]


def _position(members: list[tuple[Order, Hashable]], entry: tuple[Order, Hashable]) -> int | None:
    for position in range(bisect_left(members, entry[0], key=_rank), len(members)):
        if members[position] == entry:
            return position
        if members[position][0] != entry[0]:
            return None
    return None


def _remove(index: dict[Any, dict[T, None]], name: Any, key: T) -> None:
    keys = index.get(name)
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del index[name]
