"""Kubernetes Events (events.k8s.io/v1): written beside the work, which never waits for them.

What is told goes into a queue that is bounded; a thread writes it. The same thing told of an object again while it
waits, or within some minutes, is one event with a count (``series``), as API conventions ask for. What the API server
does not take is dropped and counted: events are for people, and the objects say the same.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import quote

from devalloc.controller.told import Told

log = logging.getLogger(__name__)

Object = dict[str, Any]

CONTROLLER = "devalloc.io/controller"
MOST_WAITING = 10_000
MOST_SERIES = 4_000
SERIES_SECONDS = 360.0
"""For how long after it was told last something is the same event."""
MAX_NOTE, MAX_REASON = 1024, 128
"""Bytes; the API refuses longer ones."""


class Writer(Protocol):
    """The part of a client of the API server that is needed. Raises whatever it raises."""

    def create(self, path: str, body: Object, /) -> Object: ...

    def replace(self, path: str, body: Object, /) -> Object: ...


@dataclass(slots=True)
class _Waiting:
    told: Told
    count: int
    first: datetime
    last: datetime


@dataclass(slots=True)
class _Series:
    stored: Object
    count: int
    last: datetime


_Key = tuple[str, str, str, str]


class Recorder:
    """``record`` from any thread, ``run`` in one of its own."""

    def __init__(
        self,
        writer: Writer,
        instance: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """``instance``: the name of this process."""
        self._writer = writer
        self._instance = instance[-128:]
        self._now = now
        self._most_waiting = most_waiting
        self._condition = threading.Condition()
        self._waiting: OrderedDict[_Key, _Waiting] = OrderedDict()
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._number = 0
        self.written = 0
        self.dropped = 0
        """Events that were not written: too many waited, or the API server did not take them."""

    def record(self, happened: Iterable[Told]) -> None:
        """Have it written soon. Never waits."""
        now = self._now()
        with self._condition:
            for told in happened:
                key = _key(told)
                if (waiting := self._waiting.get(key)) is not None:
                    waiting.told, waiting.count, waiting.last = told, waiting.count + 1, now
                elif len(self._waiting) < self._most_waiting:
                    self._waiting[key] = _Waiting(told, 1, now, now)
                else:
                    self.dropped += 1
            self._condition.notify()

    def run(self, stop: threading.Event) -> None:
        """Write what is told until ``stop`` is set, and then what waits still, as long as the API server takes it."""
        while True:
            with self._condition:
                while not self._waiting:
                    if stop.is_set():
                        return
                    self._condition.wait(0.5)
                key, waiting = self._waiting.popitem(last=False)
            try:
                self._write(key, waiting)
                self.written += 1
            except Exception as error:  # of whichever client; the loop lives
                self.dropped += 1
                log.warning("an event of %s cannot be written: %s", waiting.told.regarding.get("name"), error)
                if stop.is_set():
                    return

    def _write(self, key: _Key, waiting: _Waiting) -> None:
        path = f"/apis/events.k8s.io/v1/namespaces/{quote(_namespace(waiting.told), safe='')}/events"
        known = self._series.pop(key, None)
        if known is not None and (waiting.first - known.last).total_seconds() < SERIES_SECONDS:
            count = known.count + waiting.count
            body = {**known.stored, "note": _cut(waiting.told.note, MAX_NOTE), "series": _series(count, waiting.last)}
            try:
                stored = self._writer.replace(f"{path}/{quote(known.stored['metadata']['name'], safe='')}", body)
            except Exception as error:  # it is gone, or somebody else wrote it: one more event says it too
                log.debug("an event begins anew: %s", error)
            else:
                self._keep(key, _Series(stored, count, waiting.last))
                return
        stored = self._writer.create(path, self._event(waiting))
        self._keep(key, _Series(stored, waiting.count, waiting.last))

    def _keep(self, key: _Key, series: _Series) -> None:
        self._series[key] = series
        while len(self._series) > MOST_SERIES:
            self._series.popitem(last=False)

    def _event(self, waiting: _Waiting) -> Object:
        told = waiting.told
        self._number = (self._number + 1) % 4096  # many happen at one moment
        number = int(waiting.first.timestamp() * 1_000_000) << 12 | self._number
        event: Object = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                # A name of 253 characters leaves no room: events are found by what they regard, not by their name.
                "name": f"{told.regarding['name'][:220].rstrip('.-')}.{number:x}",
                "namespace": _namespace(told),
            },
            "eventTime": _micro(waiting.first),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": told.action,
            "reason": _cut(told.reason, MAX_REASON),
            "regarding": dict(told.regarding),
            "note": _cut(told.note, MAX_NOTE),
            "type": told.type,
        }
        return event if waiting.count == 1 else {**event, "series": _series(waiting.count, waiting.last)}


def _key(told: Told) -> _Key:
    about = told.regarding
    return about.get("uid") or f"{about.get('namespace', '')}/{about['name']}", told.type, told.reason, told.action


def _namespace(told: Told) -> str:
    """Events of objects without one are in ``default``."""
    return told.regarding.get("namespace") or "default"


def _series(count: int, last: datetime) -> Object:
    return {"count": max(2, count), "lastObservedTime": _micro(last)}


def _micro(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _cut(text: str, size: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= size else f"{encoded[: size - 3].decode('utf-8', 'ignore')}..."
