"""The migrator of a permit server: migrations of machines as objects of the store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.machine_location import (
    MigrationTargets,
    is_migratability_unknown,
    migration_obstacle,
    network_pool_names,
)
from devalloc.api.meta import parse_time
from devalloc.api.moved_claims import claim_users
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimView, MachineView, MigrationView
from devalloc.machines.migrations import (
    begin_migration,
    has_purpose,
    migrations_by_machine,
    withdraw_migration,
)
from devalloc.machines.schedule.migrations import KIND
from devalloc.scaling.permits.ledger import MachineKey
from devalloc.store import Key, Object, Store

PURPOSE = "pressure"
"""Part of the names of the migrations that are created here."""
_MAX_AGE_OF_MIGRATIONS_SECONDS = 1.0
_CLOCK_SLACK = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class MigrationEnd:
    """How a migration ended."""

    succeeded: bool
    reason: str
    """A code."""
    message: str


NO_MIGRATION = MigrationEnd(False, Reason.MIGRATION_WITHDRAWN.value, "its migration was deleted before it ended")
"""How it ended if there is no migration of the machine: a user deleted it, or it did not begin."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """The migrations of one namespace."""

    by_machine: dict[MachineKey, list[MigrationView]]
    until: float
    """When it is read anew, by the migrator's clock."""


class StoreMigrator:
    """Has the controller migrate machines. From any thread; raises StoreError, which is a failure.

    It reads the migrations of a namespace at most once a second: a tenant can have any number that wait.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        """Held also while it writes, so that no listing from before a write is used after it."""
        self._listings: dict[str, _Listing] = {}

    def begin(self, key: MachineKey, node: str) -> bool:
        """Have the machine leave its node; False if it is on its way already."""
        with self._lock:
            views = self._migrations_of(key)
            if any(map(_is_unfinished, views)):
                return False
            views.append(MigrationView(begin_migration(self._store, key, purpose=PURPOSE)))
            return True

    def withdraw(self, key: MachineKey) -> None:
        """Have the machine stay after all: delete those that were created here. Others are their creators'."""
        with self._lock:
            views = self._migrations_of(key)
            for view in [view for view in views if _is_unfinished(view) and _is_own(view)]:
                withdraw_migration(self._store, Key(KIND, *view.key))
                views.remove(view)

    def ended(self, key: MachineKey, since: str) -> MigrationEnd | None:
        """How the last one ended that began or ended after a moment (RFC 3339), own or not; None while one goes on.
        ``NO_MIGRATION`` if there is none: what ``begin`` has begun is over then."""
        with self._lock:
            views = [*self._migrations_of(key)]
        ended = [view for view in views if view.is_over and _last_time(view) >= _time(since) - _CLOCK_SLACK]
        unfinished = [*filter(_is_unfinished, views)]
        if any(map(_is_own, unfinished)) or (unfinished and not ended):  # others' may wait for room for long
            return None
        if not ended:
            return NO_MIGRATION
        last = max(ended, key=_last_time)
        status = last.status
        if last.phase == "Succeeded":
            return MigrationEnd(True, "Migrated", f"it has moved to node {status.get('targetNode')}")
        return MigrationEnd(False, str(status.get("reason") or "MigrationFailed"), str(status.get("message", "")))

    def _migrations_of(self, key: MachineKey) -> list[MigrationView]:
        """All migrations of a machine, also those that are over."""
        now = self._clock()
        self._listings = {namespace: one for namespace, one in self._listings.items() if now < one.until}
        if (listing := self._listings.get(key[0])) is None:
            listing = _Listing(migrations_by_machine(self._store, key[0]), now + _MAX_AGE_OF_MIGRATIONS_SECONDS)
            self._listings[key[0]] = listing
        return listing.by_machine.setdefault(key, [])


class MovableMachines:
    """Whether machines can be migrated, as far as objects said it when it was made. Raises StoreError then."""

    def __init__(self, store: Store) -> None:
        listed = store.list(("DevicePool", "DeviceClaim", "VirtualMachine")).objects
        pools = {node: pool for pool in listed if (node := node_of_host_pool(pool)) is not None}
        self._targets = MigrationTargets.of(pools)
        self._claims = {ClaimView(one).key: one for one in listed if one["kind"] == "DeviceClaim"}
        self._users = claim_users(one for one in listed if one["kind"] == "VirtualMachine")
        self._networks = network_pool_names(listed)

    def __call__(self, machine: Object) -> bool:
        if machine["kind"] != "VirtualMachine":
            return False
        node = MachineView(machine).node or ""
        if self._targets.why_none(machine, node):
            return False
        folders = self._targets.folders.get(node, frozenset())
        if is_migratability_unknown(machine, self._claims, self._networks):
            return False
        return not migration_obstacle(machine, folders, self._claims, self._users, self._networks)


def _is_unfinished(view: MigrationView) -> bool:
    return not view.is_over and not view.is_deleting


def _is_own(view: MigrationView) -> bool:
    return view.machine is not None and has_purpose(view.key[1], PURPOSE)


def _last_time(view: MigrationView) -> datetime:
    """When it ended, or was created if that is later: nodes have clocks of their own."""
    return max(_time(view.metadata.get("creationTimestamp")), _time(view.status.get("completionTime")))


def _time(text: object) -> datetime:
    """A time of an object; long ago if it cannot be read."""
    try:
        return parse_time(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return datetime(1, 1, 3, tzinfo=UTC)
