"""The loop that counts usage while this process allocates, and writes it down."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from devalloc.store import (
    AlreadyExists,
    Conflict,
    Forbidden,
    KindNotServed,
    NotFound,
    NotLeader,
    Object,
    ObjectStore,
    Store,
    StoreError,
)
from devalloc.usage.accounting.holdings import KINDS, OPTIONAL_KINDS, Holding, holdings_of
from devalloc.usage.accounting.ledger import CounterKey, MonthRecord, UsageLedger, UsageTotal
from devalloc.usage.accounting.records import KIND, read_records, record_data, record_name
from devalloc.worker import repeat

log = logging.getLogger(__name__)

NAMESPACE = "default"
"""Where the ConfigMaps of an embedded store are."""
TICK_SECONDS = 1.0
"""The objects are looked at this often, if they have changed."""
SAVE_SECONDS = 60.0
"""The totals are written this often while anything is held."""
SAVE_CHANGES_SECONDS = 2.0
"""A change is written so soon, if that does not cost too much."""
JUMP_SECONDS = 5.0
"""A clock that is so much ahead of where it should be was set; what keeps clocks right does that in small steps."""
CPU_DIVISOR = 20
"""At most one part in so many of a CPU is spent on looking, and as much on writing."""
SAVE_BYTES_PER_SECOND = 20_000
"""At most this much is written: an etcd keeps each version for minutes."""


def _boot_seconds() -> float:
    """Seconds since the host started, also while it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class UsageAccountant:
    """``run`` in a thread, once, while this process allocates; the properties are for any thread."""

    def __init__(
        self,
        stores: Sequence[Store],
        records: ObjectStore,
        holder: str,
        *,
        namespace: str = NAMESPACE,
        clock: Callable[[], float] | None = None,
        ticks: Callable[[], float] | None = None,
    ) -> None:
        """``stores``: where the objects are; a kind is read from the last that has it. ``records``: where ConfigMaps
        are written. ``clock``: seconds since 1970, which the next process goes by as well. ``ticks``: seconds of
        a clock that no one sets, by which it shows that ``clock`` was set ahead; by default that of the kernel."""
        self.counters: Mapping[CounterKey, UsageTotal] = {}
        """As it is written down, so that no counter ever goes back."""
        self._stores = tuple(stores)
        self._records = records
        self._holder = holder
        self._namespace = namespace
        self._clock = clock or time.time
        self._ticks = ticks or clock or _boot_seconds
        self._last: tuple[float, float] | None = None
        """Both clocks, as they were last read."""
        self._ledger: UsageLedger | None = None
        self._stored: dict[str, Object] = {}
        """The ConfigMaps by name, as they were last read or written."""
        self._seen: tuple[str, ...] | None = None
        self._unserved: set[str] = set()
        self._is_dirty = False
        self._written_bytes = 0
        self._is_behind = False

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Nothing that fails here keeps claims from being answered."""
        saved, rest = time.monotonic(), 0.0

        def count() -> float:
            nonlocal saved, rest
            pause = self.tick()
            least = SAVE_CHANGES_SECONDS if self._is_dirty else SAVE_SECONDS
            if time.monotonic() - saved >= max(least, rest):
                before, self._written_bytes = time.thread_time(), 0
                self.save()
                saved = time.monotonic()
                rest = max((time.thread_time() - before) * CPU_DIVISOR, self._written_bytes / SAVE_BYTES_PER_SECOND)
            return pause

        # Rights of an earlier version may be missing, which lasts.
        repeat(stop, count, SAVE_CHANGES_SECONDS, "cannot count usage", most=SAVE_SECONDS, expected=(StoreError,))
        try:
            self.save()
        except (StoreError, NotLeader) as error:
            log.debug("cannot write the usage at the end: %s", error)

    def tick(self) -> float:
        """Look at the objects if any has changed; seconds until the next look. Raises StoreError."""
        if self._ledger is None:
            self._begin()
        assert self._ledger is not None
        self._skip_jump(self._ledger)
        self._check_clock(self._ledger)
        versions = tuple(store.list([]).resource_version for store in self._stores)
        if versions == self._seen:
            return TICK_SECONDS
        before = time.thread_time()
        holdings = self._holdings()
        self._is_dirty |= self._ledger.observe(holdings, self._now())
        self._seen = versions
        return max(TICK_SECONDS, (time.thread_time() - before) * CPU_DIVISOR)

    def _skip_jump(self, ledger: UsageLedger) -> None:
        """If the clock was set ahead since the last look, do not count that as time."""
        now, ticks = self._clock(), self._ticks()
        before, self._last = self._last, (now, ticks)
        if before is None:
            return
        expected = before[0] + (ticks - before[1])
        if now - expected > JUMP_SECONDS:
            log.warning("the clock was set ahead by %d s; they do not count as usage", now - expected)
            ledger.skip(round(expected * 1000), round(now * 1000))

    def _check_clock(self, ledger: UsageLedger) -> None:
        """Log, once, that nothing counts because the clock was set back, or is now right and was ahead before."""
        behind = ledger.until - self._now()
        if behind > SAVE_SECONDS * 1000 and not self._is_behind:
            log.warning(
                "usage is counted up to %s, which is %d s ahead of this host's clock; nothing more counts until then. "
                "If the clock is right, delete the ConfigMap %s/%s",
                datetime.fromtimestamp(ledger.until / 1000, UTC).isoformat(timespec="seconds"),
                behind // 1000,
                self._namespace,
                record_name(ledger.month),
            )
        self._is_behind = behind > 0

    def save(self) -> None:
        """Write down the month, and before it each that has ended. Raises StoreError."""
        ledger = self._ledger
        if ledger is None or self._seen is None:  # what was held before this process is not counted yet
            return
        self._skip_jump(ledger)
        record = ledger.record(self._now())
        try:
            while ledger.finished:
                self._write(ledger.finished[0])
                ledger.finished.pop(0)
            if record.rows or record.open or record_name(record.month) in self._stored:
                self._write(record)
        except (Conflict, NotFound, AlreadyExists):
            # Another process counts, or has: what it wrote counts, and what is held goes on from there.
            log.warning("another process has written the usage; continuing from what it wrote")
            self._ledger = self._seen = None
            self._is_behind = False
            return
        self._is_dirty = False
        self.counters = record.counters

    def _begin(self) -> None:
        stored = list(read_records(self._records, self._namespace))
        self._stored = {obj["metadata"]["name"]: obj for obj, _ in stored}
        latest = max((record for _, record in stored), key=lambda record: record.until, default=None)
        self._ledger = UsageLedger(latest, self._now())
        self.counters = {} if latest is None else latest.counters

    def _write(self, record: MonthRecord) -> None:
        name, data = record_name(record.month), record_data(record, self._holder)
        self._written_bytes += sum(map(len, data.values()))
        there = self._stored.get(name)
        if there is not None:
            self._stored[name] = self._records.replace({**there, "data": data})
            return
        metadata = {"name": name, "namespace": self._namespace}
        self._stored[name] = self._records.create(
            {"apiVersion": "v1", "kind": KIND, "metadata": metadata, "data": data}
        )

    def _holdings(self) -> Mapping[str, Holding]:
        return holdings_of(self._objects())

    def _objects(self) -> Iterator[Object]:
        """Raises StoreError: then no one knows what is held, and nothing counts as gone."""
        for kind in KINDS:
            yield from self._stores[0].list(kind).objects
        for kind in OPTIONAL_KINDS:
            try:
                yield from self._stores[-1].list(kind).objects
            except (Forbidden, KindNotServed) as error:
                if kind not in self._unserved:
                    self._unserved.add(kind)
                    log.debug("%ss do not count in the usage: %s", kind, error)

    def _now(self) -> int:
        return round(self._clock() * 1000)
