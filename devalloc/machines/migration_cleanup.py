"""End migrations of machines that take too long, and delete those that ended long ago.

Everything else about migrations is decided in rounds of the allocator; only what depends on the time is here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from devalloc.api.meta import parse_time
from devalloc.api.reasons import Reason
from devalloc.api.views import MachineView, MigrationView
from devalloc.controller.reconcile.write_backoff import WriteBackoff, unit_of
from devalloc.controller.settings import MigrationLimits
from devalloc.machines.schedule.machines import KIND
from devalloc.machines.schedule.migration_decision import explained_change, withdrawal_change
from devalloc.machines.schedule.migrations import KIND as MIGRATION_KIND
from devalloc.store import OBJECT_FAILURES, Conflict, Key, NotFound, Object, Store, StoreError
from devalloc.worker import repeat

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
MAX_ENDED = 100
"""Migrations of one namespace that ended and are not deleted yet; the oldest ones go first."""


class MigrationCleanup:
    """The loop. ``run`` in one thread."""

    def __init__(
        self,
        store: Store,
        limits: MigrationLimits | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._limits = limits or MigrationLimits()
        self._now = now
        self._backoff = WriteBackoff(clock)

    def run(self, stop: threading.Event) -> None:
        """Look again and again until ``stop`` is set. What cannot be written is tried again."""
        repeat(stop, self.look, INTERVAL_SECONDS, "cannot look after migrations of machines", expected=(StoreError,))

    def look(self) -> None:
        """End and delete what is due. What the store refuses to change is logged once, and tried again later. Raises
        StoreError."""
        migrations = self._store.list(MIGRATION_KIND).objects
        self._backoff.look(migrations)
        for doc in migrations:
            since = _time(MigrationView(doc).status.get("startTime"))
            if not MigrationView(doc).is_over and self._is_past(since, self._limits.timeout):
                self._try(self._end, doc, "it takes too long and cannot be ended")
        ended: dict[str, list[Object]] = defaultdict(list)
        for doc in migrations:
            if MigrationView(doc).is_over and not MigrationView(doc).is_deleting:
                ended[MigrationView(doc).key[0]].append(doc)
        for some in ended.values():
            some.sort(key=lambda doc: str(MigrationView(doc).status.get("completionTime") or ""))
            for number, doc in enumerate(some):
                is_old = self._is_past(_time(MigrationView(doc).status.get("completionTime")), self._limits.ttl)
                if is_old or number < len(some) - MAX_ENDED:
                    self._try(self._delete, doc, "it ended long ago and cannot be deleted")

    def _try(self, write: Callable[[Object], None], migration: Object, why: str) -> None:
        unit = unit_of(migration)
        if self._backoff.is_backed_off(unit):
            return
        with suppress(Conflict, NotFound):  # others were faster: it is looked at again
            try:
                write(migration)
            except OBJECT_FAILURES as error:
                self._backoff.note(unit, f"{why}: {error}")

    def _end(self, migration: Object) -> None:
        """Withdraw it: say why, and remove what its target reserves. If the machine was handed over before that, it has
        moved, and the migration did not fail; in both cases a round says so. Raises StoreError."""
        view = MigrationView(migration)
        assert view.machine is not None
        machine = self._store.get(KIND, *view.machine)
        if not view.is_booked_on(MachineView(machine)):
            return
        seconds, source = f"{self._limits.timeout:g} s", view.status.get("sourceNode")
        message = f"the machine did not move within {seconds}, and stays on node {source}"
        now = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        if (change := explained_change(migration, Reason.MIGRATION_TIMED_OUT.value, message, now)) is not None:
            self._store.commit([change])
        self._store.commit([withdrawal_change(machine)])
        log.warning("migration %s of machine %s: %s", "/".join(view.key), "/".join(view.machine), message)

    def _delete(self, migration: Object) -> None:
        """Raises StoreError."""
        metadata = migration["metadata"]
        self._store.delete(*Key.of(migration), uid=metadata["uid"], resource_version=metadata["resourceVersion"])

    def _is_past(self, since: datetime | None, seconds: float) -> bool:
        return since is not None and self._now() - since >= timedelta(seconds=seconds)


def _time(text: object) -> datetime | None:
    """A time of an object; None if it has none that can be read."""
    try:
        return parse_time(text).astimezone(UTC) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
