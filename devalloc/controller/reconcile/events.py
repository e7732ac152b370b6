"""Kubernetes Events (events.k8s.io/v1): written beside the work, which never waits for them.

Events go into a bounded queue; a thread writes them. The same event of an object again, while it waits or within some
minutes, becomes one event with a count (``series``), as API conventions ask for. An event that the API server refuses
is dropped and counted: events are for people, and the objects contain the same facts.

A write of the allocator causes an event if a claim got or gave back something, or has nothing for another reason than
before. A sentence that changes only in its numbers is on the object, and no event.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from devalloc.api.conditions import ALLOCATED, DEVICE_LOST
from devalloc.api.views import ClaimView, as_mappings
from devalloc.store import Object
from devalloc.worker import Again, Why, Worker

if TYPE_CHECKING:
    from devalloc.store.kubernetes import Client

RELEASED = "Released"
NORMAL, WARNING = "Normal", "Warning"
_SHOWN = 8
"""Devices that an event names."""


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    """One thing that happened to an object."""

    regarding: Mapping[str, str]
    """apiVersion, kind, namespace, name, uid and resourceVersion of the object."""
    type: str
    reason: str
    """A code of docs/reasons.md, or what was done."""
    action: str
    """What the controller was at: Allocate, Release, Place, Migrate, Check."""
    note: str


def claim_events(before: Object, after: Object) -> Iterable[ObjectEvent]:
    """What became of a DeviceClaim by a write of ours; nothing for what no user waits for."""
    had, has = ClaimView(before).entries, ClaimView(after).entries
    if has and not had:
        node = ClaimView(after).node
        where = f" on node {node}" if node else ""
        yield object_event(after, NORMAL, ALLOCATED, "Allocate", f"{_count(has)}{where}: {_devices(has)}")
    elif had and not has:
        yield object_event(after, NORMAL, RELEASED, "Release", f"{_count(had)} taken back: {_devices(had)}")
    for lost in sorted(_lost_devices(after) - _lost_devices(before)):
        yield object_event(after, WARNING, DEVICE_LOST, "Check", f"device {lost} no longer exists")
    reason = ClaimView(after).reason
    if reason and reason != ClaimView(before).reason:
        yield object_event(after, WARNING, reason, "Check" if has else "Allocate", ClaimView(after).message)


def object_event(obj: Object, type: str, reason: str, action: str, note: str) -> ObjectEvent:
    """An event of an object as it is now."""
    metadata = obj["metadata"]
    regarding = {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "namespace": metadata.get("namespace", ""),
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
        "resourceVersion": metadata.get("resourceVersion", ""),
    }
    return ObjectEvent({name: value for name, value in regarding.items() if value}, type, reason, action, note)


def _lost_devices(claim: Object) -> set[str]:
    devices = set()
    for one in as_mappings(claim.get("status", {}).get("deviceStatuses")):
        conditions = {(each.get("type"), each.get("status")) for each in as_mappings(one.get("conditions"))}
        if (DEVICE_LOST, "True") in conditions:
            devices.add(f"{one.get('devicePoolName')}/{one.get('deviceName')}")
    return devices


def _count(entries: list[Any]) -> str:
    return f"{len(entries)} device{'s' if len(entries) > 1 else ''}"


def _devices(entries: list[Any]) -> str:
    names = [f"{entry.get('devicePoolName')}/{entry.get('deviceName')}" for entry in as_mappings(entries)]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


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
        object_event = waiting.event
        self._number = (self._number + 1) % 4096  # many happen at one moment
        number = int(waiting.first.timestamp() * 1_000_000) << 12 | self._number
        event: Object = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {
                # A name of 253 characters leaves no room: events are found by what they regard, not by their name.
                "name": f"{object_event.regarding['name'][:220].rstrip('.-')}.{number:x}",
                "namespace": _namespace(object_event),
            },
            "eventTime": _micro_time(waiting.first),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": object_event.action,
            "reason": _truncate(object_event.reason, MAX_REASON),
            "regarding": dict(object_event.regarding),
            "note": _truncate(object_event.note, MAX_NOTE),
            "type": object_event.type,
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
