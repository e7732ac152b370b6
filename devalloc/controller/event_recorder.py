"""Kubernetes Events (events.k8s.io/v1): written beside the work, which never waits for them.

Events go into a bounded queue; a thread writes them. The same event of an object again, while it waits or within some
minutes, becomes one event with a count (``series``), as API conventions ask for. An event that the API server refuses
is dropped and counted: events are for people, and the objects contain the same facts.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote

from devalloc.controller.reconcile.events import ObjectEvent
from devalloc.store import Object
from devalloc.worker import Again, Why, Worker

if TYPE_CHECKING:
    from devalloc.store.kubernetes import Client

log = logging.getLogger(__name__)

CONTROLLER = "devalloc.io/controller"
MAX_WAITING = 10_000
MAX_SERIES = 4_000
SERIES_SECONDS = 360.0
"""For how long after it was told last something is the same event."""
MAX_NOTE, MAX_REASON = 1024, 128
"""Bytes; the API refuses longer ones."""


@dataclass(slots=True)
class _QueuedEvent:
    event: ObjectEvent
    count: int
    first: datetime
    last: datetime


@dataclass(slots=True)
class _StoredSeries:
    stored: Object
    count: int
    last: datetime


_SeriesKey = tuple[str, str, str, str]


class EventRecorder:
    """``record`` from any thread, ``run`` in one of its own."""

    def __init__(
        self,
        writer: Client,
        instance: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        most_waiting: int = MAX_WAITING,
    ) -> None:
        """``instance``: the name of this process."""
        self._writer = writer
        self._instance = instance[-128:]
        self._now = now
        self._most_waiting = most_waiting
        self._mutex = threading.Lock()
        self._worker: Worker[None, object] = Worker("cannot write events", self._work)
        self._waiting: OrderedDict[_SeriesKey, _QueuedEvent] = OrderedDict()
        self._series: OrderedDict[_SeriesKey, _StoredSeries] = OrderedDict()
        self._number = 0
        self.written = 0
        self.dropped = 0
        """Events that were not written: too many waited, or the API server did not take them."""

    def record(self, happened: Iterable[ObjectEvent]) -> None:
        """Have it written soon. Never waits."""
        now = self._now()
        with self._mutex:
            for event in happened:
                key = _series_key(event)
                if (waiting := self._waiting.get(key)) is not None:
                    waiting.event, waiting.count, waiting.last = event, waiting.count + 1, now
                elif len(self._waiting) < self._most_waiting:
                    self._waiting[key] = _QueuedEvent(event, 1, now, now)
                else:
                    self.dropped += 1
        self._worker.add(None)

    def run(self, stop: threading.Event) -> None:
        """Write events until ``stop`` is set, and then those that still wait, as long as the API server accepts
        them."""
        self._worker.run(stop)
        while self._waiting and self._write_next():
            pass

    def _write_next(self) -> bool:
        """Write the event that has waited for longest; whether that succeeded."""
        with self._mutex:
            key, waiting = self._waiting.popitem(last=False)
        try:
            self._write(key, waiting)
        except Exception as error:  # of whichever client; the loop lives
            self.dropped += 1
            log.warning("cannot write an event of %s: %s", waiting.event.regarding.get("name"), error)
            return False
        self.written += 1
        return True

    def _work(self, key: None, why: Why) -> Again | None:
        if not self._waiting:
            return None
        self._write_next()
        return Again(0.0)

    def _write(self, key: _SeriesKey, waiting: _QueuedEvent) -> None:
        path = f"/apis/events.k8s.io/v1/namespaces/{quote(_namespace(waiting.event), safe='')}/events"
        previous = self._series.pop(key, None)
        if previous is not None and (waiting.first - previous.last).total_seconds() < SERIES_SECONDS:
            count = previous.count + waiting.count
            body = {
                **previous.stored,
                "note": _truncate(waiting.event.note, MAX_NOTE),
                "series": _series_content(count, waiting.last),
            }
            try:
                stored = self._writer.replace(f"{path}/{quote(previous.stored['metadata']['name'], safe='')}", body)
            except Exception as error:  # it is gone, or others wrote it: one more event says it too
                log.debug("a new event series begins: %s", error)
            else:
                self._keep(key, _StoredSeries(stored, count, waiting.last))
                return
        stored = self._writer.create(path, self._event(waiting))
        self._keep(key, _StoredSeries(stored, waiting.count, waiting.last))

    def _keep(self, key: _SeriesKey, series: _StoredSeries) -> None:
        self._series[key] = series
        while len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    def _event(self, waiting: _QueuedEvent) -> Object:
        happened = waiting.event
        self._number = (self._number + 1) % 4096  # many happen at one moment
        number = int(waiting.first.timestamp() * 1_000_000) << 12 | self._number
        event: Object = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                # A name of 253 characters leaves no room: events are found by what they regard, not by their name.
                "name": f"{happened.regarding['name'][:220].rstrip('.-')}.{number:x}",
                "namespace": _namespace(happened),
            },
            "eventTime": _micro_time(waiting.first),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": happened.action,
            "reason": _truncate(happened.reason, MAX_REASON),
            "regarding": dict(happened.regarding),
            "note": _truncate(happened.note, MAX_NOTE),
            "type": happened.type,
        }
        return event if waiting.count == 1 else {**event, "series": _series_content(waiting.count, waiting.last)}


def _series_key(event: ObjectEvent) -> _SeriesKey:
    about = event.regarding
    return about.get("uid") or f"{about.get('namespace', '')}/{about['name']}", event.type, event.reason, event.action


def _namespace(event: ObjectEvent) -> str:
    """Events of objects without one are in ``default``."""
    return event.regarding.get("namespace") or "default"


def _series_content(count: int, last: datetime) -> Object:
    return {"count": max(2, count), "lastObservedTime": _micro_time(last)}


def _micro_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _truncate(text: str, size: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= size else f"{encoded[: size - 3].decode('utf-8', 'ignore')}..."
