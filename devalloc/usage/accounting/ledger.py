"""Totals of what was held, times time, by month. Pure arithmetic on whole milliseconds: nothing is lost or counted
twice, however often the ledger is written down and read again.

A ledger counts one month (UTC). When the month ends, it is finished, and the next one begins with the same counters.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from devalloc.usage.accounting.holdings import Holding, UsageKey

OTHER = "(other)"
"""In place of names that no longer fit."""
MAX_ROWS = 20_000
"""Rows of a month; of more, the smallest lose their names."""
MAX_LABELS = 200
"""Combinations of kind, namespace and class with a counter of their own. A later one takes the place of one that was
not held in this month, or shares a counter with other later ones."""


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """What was held, times milliseconds."""

    whole: int = 0
    """Devices that were held whole."""
    shared: int = 0
    """Shares of devices: two shares of one device count twice."""
    cpu: int = 0
    """Thousandths of a CPU."""
    memory: int = 0
    """Bytes."""

    def plus(self, other: UsageTotal) -> UsageTotal:
        """The sum."""
        return UsageTotal(
            self.whole + other.whole, self.shared + other.shared, self.cpu + other.cpu, self.memory + other.memory
        )


CounterKey = tuple[str, str, str]
"""Kind, namespace and class."""


@dataclass(frozen=True)
class MonthRecord:
    """A month as it is written down."""

    month: str
    """``2026-11``"""
    until: int
    """Up to when it is counted, in milliseconds since 1970."""
    rows: Mapping[UsageKey, UsageTotal] = field(default_factory=dict)
    counters: Mapping[CounterKey, UsageTotal] = field(default_factory=dict)
    """Since the first month: they never go back, but one that is not held any more may give its place to another. If it
    is held again, its counter begins at 0."""
    open: frozenset[str] = frozenset()
    """Digests of what was held at ``until`` and does not say itself since when."""


class UsageLedger:
    """Use from one thread."""

    def __init__(self, record: MonthRecord | None, now: int) -> None:
        """Goes on from a record, or begins. ``now``: milliseconds since 1970."""
        self._record = record
        self.month = month_of(now) if record is None else record.month
        self.until = now if record is None else record.until
        """The last time that was looked at."""
        self.finished: list[MonthRecord] = []
        """Months that ended and are not written down yet."""
        self._rows = {} if record is None else dict(record.rows)
        self._counters = {} if record is None else dict(record.counters)
        self._held: dict[str, tuple[Holding, int]] = {}
        """With the time up to which each is counted."""
        self._in_use: set[CounterKey] = set(map(_counter_key, self._rows))
        """What was held in this month."""

    def observe(self, holdings: Mapping[str, Holding], now: int) -> bool:
        """What is held now, instead of what was held before; whether that is anything else.

        The time since the last look counts for what was held then. If that was before a restart, it counts for what
        was held then and is held now; of what has gone meanwhile, no one knows when.
        """
        now = max(now, self.until)
        record, self._record = self._record, None
        if record is not None:
            self._held = {each.id: (each, self._since_restart(each, record, now)) for each in holdings.values()}
            self._in_use |= self._held_now()
            self._close_months(now)
            self.until = now
            return True
        gone, new = self._held.keys() - holdings.keys(), holdings.keys() - self._held.keys()
        freed = {self._held[holding_id][0].key.device for holding_id in gone}
        for holding_id in new:
            holding = holdings[holding_id]
            is_new = holding.since is not None and holding.since > self.until and holding.key.device not in freed
            # Else it was held before, by another machine: each moment counts for one of the two.
            began = min(now, holding.since) if is_new and holding.since is not None else now
            self._held[holding_id] = (holding, began)
        self._close_months(now)
        for holding_id in gone:
            self._count(holding_id, now)
            del self._held[holding_id]
        self.until = now
        return bool(gone or new)

    def skip(self, until: int, now: int) -> None:
        """The clock was set ahead, from ``until`` to ``now``: that is no time for which anything was held."""
        if self._record is not None:  # nothing was looked at yet
            return
        until, now = max(until, self.until), max(now, self.until)
        self._close_months(until)
        for holding_id in self._held:
            self._count(holding_id, until)
        self._held = {holding_id: (holding, max(since, now)) for holding_id, (holding, since) in self._held.items()}
        self._close_months(now)
        self.until = now

    def record(self, now: int) -> MonthRecord:
        """The month up to now."""
        now = max(now, self.until)
        self._close_months(now)
        self.until = now
        return self._record_at(now)

    def _since_restart(self, holding: Holding, record: MonthRecord, now: int) -> int:
        """Since when it counts after a restart."""
        if holding.since is not None:
            return min(now, max(record.until, holding.since))
        return record.until if digest(holding) in record.open else now

    def _close_months(self, now: int) -> None:
        while (end := month_end(self.month)) <= now:
            self.finished.append(self._record_at(end))
            self.month, self._rows, self._in_use = month_of(end), {}, self._held_now()

    def _record_at(self, at: int) -> MonthRecord:
        for holding_id in self._held:
            self._count(holding_id, at)
        if len(self._rows) > MAX_ROWS:
            self._rows = folded(self._rows, MAX_ROWS // 2)
        held = [holding for holding, since in self._held.values() if since <= at and holding.since is None]
        return MonthRecord(
            self.month, at, dict(self._rows), dict(self._counters), frozenset(digest(holding) for holding in held)
        )

    def _count(self, holding_id: str, until: int) -> None:
        holding, since = self._held[holding_id]
        span = until - since
        if span <= 0:
            return
        self._held[holding_id] = holding, until
        is_device = bool(holding.key.device)
        more = UsageTotal(
            span if is_device and not holding.is_share else 0,
            span if is_device and holding.is_share else 0,
            holding.cpu * span,
            holding.memory * span,
        )
        self._rows[holding.key] = self._rows.get(holding.key, UsageTotal()).plus(more)
        label = _counter_key(holding.key)
        self._in_use.add(label)
        if label not in self._counters and len(self._counters) >= MAX_LABELS:
            idle = next((one for one in self._counters if one not in self._in_use and OTHER not in one), None)
            if idle is None:
                label = (holding.key.kind, OTHER, OTHER)
            else:
                del self._counters[idle]
        self._counters[label] = self._counters.get(label, UsageTotal()).plus(more)

    def _held_now(self) -> set[CounterKey]:
        return {_counter_key(holding.key) for holding, _ in self._held.values()}


def _counter_key(key: UsageKey) -> CounterKey:
    return key.kind, key.namespace, key.device_class


def folded(rows: Mapping[UsageKey, UsageTotal], most: int) -> dict[UsageKey, UsageTotal]:
    """At most about ``most`` rows (and never less than three) with the same sums. The smallest lose the name of their
    device first, then that of the machine, the class, and the namespace. Namespaces with more than their share of the
    rows come first."""
    rows = dict(rows)
    while len(rows) > max(3, most):
        order = sorted(rows, key=lambda key: (_weight(rows[key]), key))
        candidates = [key for key in order if _level(key) < len(_FOLDS)]
        if not candidates:
            break
        counts = Counter(key.namespace for key in rows)
        share = max(1, most // len(counts))
        # Of each namespace the smallest quarter at a time: what they add up to may be more than the largest one.
        excess = {name: -(-count // 4) for name, count in counts.items() if count > share}
        beyond = []
        for key in candidates:
            if excess.get(key.namespace, 0) > 0:
                excess[key.namespace] -= 1
                beyond.append(key)
        for key in (beyond or candidates)[: max(1, len(rows) // 4)]:
            total, target = rows.pop(key), _folded_key(key)
            rows[target] = rows.get(target, UsageTotal()).plus(total)
    return rows


_FOLDS = ("device", "machine", "device_class", "namespace")


def _level(key: UsageKey) -> int:
    """How many of its names are gone."""
    return next((number for number, name in enumerate(_FOLDS) if getattr(key, name) != OTHER), len(_FOLDS))


def _folded_key(key: UsageKey) -> UsageKey:
    return replace(key, **{_FOLDS[_level(key)]: OTHER})


def _weight(total: UsageTotal) -> int:
    return total.whole + total.shared + total.cpu // 1000


def digest(holding: Holding) -> str:
    """A short name of what is held, also if another machine uses it."""
    return hashlib.blake2b(holding.base.encode(), digest_size=8).hexdigest()


def month_of(at: int) -> str:
    """The month of a time in milliseconds since 1970, such as ``2026-11``, in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m")


def month_start(month: str) -> int:
    """In milliseconds since 1970. Raises ValueError."""
    return round(datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).timestamp() * 1000)


def month_end(month: str) -> int:
    """The start of the next one."""
    start = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    year, number = (start.year + 1, 1) if start.month == 12 else (start.year, start.month + 1)
    return round(start.replace(year=year, month=number).timestamp() * 1000)


def previous_month(month: str) -> str:
    """The one before."""
    return month_of(month_start(month) - 1)
