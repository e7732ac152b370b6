"""Looks at the fleet every few seconds while this process leads, as the page does: for metrics, and for alarms.

It reports an alarm once, as an Event on each claim that it is about, and again when its claims or devices change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from devalloc.api.findings import Finding, Reader, message_of
from devalloc.controller.reconcile.events import WARNING, ObjectEvent
from devalloc.store import Object, Store, StoreError
from devalloc.usage.overview import Alarm, Overview
from devalloc.usage.overview.cache import OPTIONAL_KINDS, REQUIRED_KINDS, CachedOverview
from devalloc.worker import repeat

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
"""From a look until it waits for the next pause."""
MIN_PAUSE = 1.0
"""It looks once no round has been under way for so many seconds, because a look slows a round down."""
MAX_DELAY = 30.0
"""After so many seconds it looks even if there are rounds all the time."""
_STEP = MIN_PAUSE / 4
SEVERAL_OWNERS, OVERCOMMITTED = "SeveralOwners", "Overcommitted"
"""Reasons of Events."""
MAX_EVENTS = 1000
"""Of one look."""
_HELD_BY = frozenset({"DeviceClaim", "VirtualMachine", "ResourceClaim"})

_Key = tuple[tuple[str, ...], tuple[tuple[str, str, str], ...], str]


class FleetMonitor:
    """``run`` in a thread; ``seen`` from any."""

    def __init__(
        self,
        look: Callable[[], CachedOverview],
        stores: Iterable[Store],
        record: Callable[[Iterable[ObjectEvent]], None],
        *,
        seconds: float | None = None,
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """``look``: the overview as it is now. ``stores``: where the objects are that alarms are about; later ones have
        what the first does not. ``is_busy``: whether claims are being answered."""
        self._look = look
        self._stores = tuple(stores)
        self._record = record
        self._seconds = INTERVAL_SECONDS if seconds is None else seconds
        self._is_busy = is_busy
        self._alarms: frozenset[_Key] = frozenset()
        """Those that were reported."""
        self._paused = self._waited = 0.0
        """How long no other work has been under way, and how long that was waited for."""
        self._logged: frozenset[_Key] = frozenset()
        """Those of the last look, which are in the log already: once each, however often the Event of one cannot be
        recorded."""
        self._reported: Overview | None = None
        """Whose alarms these are. If they could not be reported, the next look reports them."""
        self.seen: CachedOverview | None = None
        """What there was at the last look."""

    def run(self, stop: threading.Event) -> None:
        """Look until ``stop`` is set. Nothing that fails here keeps claims from being answered."""
        try:
            what = "cannot read the fleet for the metrics"
            repeat(stop, lambda: self._look_in_pause(stop), self._seconds, what, delay=_STEP, expected=(StoreError,))
        finally:
            self.seen = None

    def _look_in_pause(self, stop: threading.Event) -> float:
        """Look if no other work is under way for a while; seconds until the next look whether that is so."""
        self._waited += _STEP
        self._paused = 0.0 if self._is_busy() else self._paused + _STEP
        if self._paused < MIN_PAUSE and self._waited < MAX_DELAY:
            return _STEP
        self._paused = self._waited = 0.0
        if not stop.is_set():
            self.look()
        return self._seconds

    def look(self) -> None:
        """Once. Raises StoreError."""
        self.seen = seen = self._look()
        if seen.overview is not self._reported:
            self._tell(seen.overview)
            self._reported = seen.overview

    def _tell(self, overview: Overview) -> None:
        now = {_key(alarm): alarm for alarm in overview.alarms}
        for alarm in (alarm for key, alarm in now.items() if key not in self._logged):
            log.error("%s", alarm.text)
        self._logged = frozenset(now)
        if news := [alarm for key, alarm in now.items() if key not in self._alarms]:
            self._record(self._events(news))
        self._alarms = frozenset(now)

    def _events(self, alarms: Iterable[Alarm]) -> list[ObjectEvent]:
        objects = self._objects()
        events: list[ObjectEvent] = []
        for alarm in alarms:
            for holder in alarm.holders:
                if (held_by := objects.get(holder)) is not None and len(events) < MAX_EVENTS:
                    reason = SEVERAL_OWNERS if alarm.is_of_owners else OVERCOMMITTED
                    text = message_of(Finding([alarm.cause]), Reader(holder[1], width=None))
                    events.append(ObjectEvent(_regarding(held_by), WARNING, reason, "Check", text))
        return events

    def _objects(self) -> Mapping[tuple[str, str, str], Object]:
        objects: dict[tuple[str, str, str], Object] = {}
        for obj in self._read():
            metadata = obj["metadata"]
            objects.setdefault((obj["kind"], metadata.get("namespace") or "default", metadata["name"]), obj)
        return objects

    def _read(self) -> Iterator[Object]:
        for store in self._stores:
            for kind in (*REQUIRED_KINDS, *OPTIONAL_KINDS):
                if kind in _HELD_BY:
                    try:
                        yield from store.list(kind).objects
                    except StoreError as error:  # of this kind there is nothing that can be told
                        log.debug("cannot read %ss: %s", kind, error)


def _key(alarm: Alarm) -> _Key:
    return alarm.devices, alarm.holders, alarm.text


def _regarding(obj: Object) -> dict[str, str]:
    metadata = obj["metadata"]
    about = {"apiVersion": obj["apiVersion"], "kind": obj["kind"]}
    names = ("namespace", "name", "uid", "resourceVersion")
    return about | {name: metadata[name] for name in names if metadata.get(name)}
