"""The overview of a store, made anew when something changed and somebody looks."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from devalloc.controller.overview import Overview, overview
from devalloc.store import Store, StoreError

log = logging.getLogger(__name__)

KINDS = ("DevicePool", "DeviceClass", "DeviceClaim", "VirtualMachine")
LEAST_SECONDS = 1.0
SHARE = 10
"""However many look, and however large the fleet is: no more than one part in so many of a CPU is spent."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What there was to see."""

    version: str
    """Another one whenever there is anything else to see, also in another process."""
    overview: Overview
    at: datetime
    """When the store was last read."""
    trouble: str = ""
    """Why the store cannot be read; what is shown is the last that was."""


class Sight:
    """Use from any thread."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Seen | None = None
        self._read = ""
        self._run, self._number = secrets.token_hex(4), 0
        self._next = 0.0

    def latest(self) -> Seen:
        """What there is now, or was a moment ago. Raises StoreError where the store could never be read."""
        with self._lock:
            if self._seen is None or self._clock() >= self._next:
                began = self._clock()
                try:
                    self._seen = self._looked(self._seen)
                except StoreError as error:
                    if self._seen is None:
                        raise
                    log.warning("the page shows what was, for the store cannot be read: %s", error)
                    self._seen = replace(self._seen, trouble=str(error), version=self._version())
                ended = self._clock()
                self._next = ended + max(LEAST_SECONDS, SHARE * (ended - began))
            return self._seen

    def _looked(self, before: Seen | None) -> Seen:
        objects, version = self._store.list(KINDS)
        now = datetime.now(UTC)
        if before is not None and version == self._read:
            return before if not before.trouble else Seen(self._version(), before.overview, now)
        found = overview(objects)
        self._read = version
        if before is not None and before.overview == found and not before.trouble:
            return replace(before, at=now)
        return Seen(self._version(), found, now)

    def _version(self) -> str:
        self._number += 1
        return f"{self._run}-{self._number}"
