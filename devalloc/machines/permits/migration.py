"""Migrations: what moves machines to other nodes, if anything, and a check that each one ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from devalloc.api.meta import parse_time
from devalloc.machines.permits.decide import NODE_PRESSURE, ConditionValue, PermitAnswer, PermitGrant, PermitRefused
from devalloc.machines.permits.ledger import (
    MIGRATING,
    SHOULD_MIGRATE,
    PermitLedgers,
    VmCondition,
    machines_to_migrate,
)
from devalloc.machines.permits.metrics import PermitMetrics
from devalloc.machines.permits.store_migrator import NO_MIGRATION, StoreMigrator
from devalloc.scaling.permits.ledger import MachineKey

log = logging.getLogger(__name__)

T = TypeVar("T")
WriteConditions = Callable[[MachineKey, Mapping[str, ConditionValue]], None]
"""Has conditions written on a machine."""


RETRY_SECONDS = 300.0
"""How long a machine is left where it is whose migration failed, did not begin, or was withdrawn."""


class MigrationTracker:
    """All migrations of one server. Use from one event loop."""

    def __init__(
        self,
        book: PermitLedgers,
        tell: WriteConditions,
        metrics: PermitMetrics,
        migrator: StoreMigrator | None,
        seconds: float,
    ) -> None:
        """``seconds``: how long one may take."""
        self._book = book
        self._write = tell
        self._metrics = metrics
        self._migrator = migrator
        self._seconds = seconds
        self._since: dict[MachineKey, float] = {}
        """Of those on their way: when that was seen first here. The clock by which objects are written may be set."""
        self._begun: dict[MachineKey, bool] = {}
        """What the migrator was told here, and whether it has answered. What another server wrote down, it may not have
        come to tell."""

    async def answered(self, granted: PermitGrant) -> PermitAnswer:
        """Return what to answer. If a migration is to begin, the migrator is asked first. What was granted stays so."""
        if not granted.begins_migration or self._migrator is None:
            return granted
        begun = await self._begin(granted.key, granted.node)
        if begun is None:
            return PermitRefused(500, "the migration could not begin")
        return granted if begun else replace(granted, body=granted.without_migration)

    async def run(self, interval: float) -> None:
        """Look at them now and then."""
        while True:
            await asyncio.sleep(interval)
            try:
                await self.look()
            except Exception:
                log.exception("cannot read the migrations")

    async def look(self) -> None:
        """Withdraw what takes too long, and begin what another server was to; in the newest form, what has to be."""
        now = time.monotonic()
        moving = {
            key: record.migrating
            for key, record in self._book.records.items()
            if record.is_own and record.migrating is not None and record.migrating.is_true
        }
        self._since = {key: self._since.get(key, now) for key in moving}
        self._begun = {key: is_answered for key, is_answered in self._begun.items() if key in moving}
        for key, condition in moving.items():
            if await self._has_ended(key, condition):
                continue
            if self._is_late(key, condition, now):
                await self._withdraw(key)
            elif condition.reason == NODE_PRESSURE and key not in self._begun and self._migrator is not None:
                await self._begin_here(key)
        self._book.backed_off = {key: until for key, until in self._book.backed_off.items() if until > now}
        for key in machines_to_migrate(self._book):
            record = self._book.records.get(key)
            if record is None:  # it has gone while another one was begun
                continue
            why = f"node {record.node} has too little room"
            if self._migrator is not None:
                self._write(key, {MIGRATING: (True, NODE_PRESSURE, why)})
                await self._begin_here(key)
            elif record.should_migrate is None or not record.should_migrate.is_true:
                self._metrics.wanting.inc()
                self._write(key, {SHOULD_MIGRATE: (True, NODE_PRESSURE, why)})

    async def _has_ended(self, key: MachineKey, condition: VmCondition) -> bool:
        """Whether the migrator is done with it, which is then written down."""
        if self._migrator is None or condition.reason != NODE_PRESSURE:
            return False
        is_begun = self._begun.get(key, False)
        try:
            end = await _run_in_thread(partial(self._migrator.ended, key, condition.since))
        except Exception:
            log.exception("cannot read how the migration of %s/%s is; trying again", *key)
            return False
        if end is None or (end == NO_MIGRATION and not is_begun):
            return False
        if not end.succeeded:
            self._back_off(key)
        self._metrics.migrations.labels("succeeded" if end.succeeded else "failed").inc()
        self._write(key, {MIGRATING: (False, end.reason, end.message[:1000])})
        return True

    def _is_late(self, key: MachineKey, condition: VmCondition, now: float) -> bool:
        latest = datetime.now(UTC) - timedelta(seconds=self._seconds)
        return now - self._since[key] >= self._seconds or _is_before(condition.since, latest)

    async def _begin_here(self, key: MachineKey) -> None:
        record = self._book.records.get(key)
        if record is not None:
            await self._begin(key, record.node)

    async def _begin(self, key: MachineKey, node: str) -> bool | None:
        """Whether it begins now; None if it could not be begun, which is written down."""
        assert self._migrator is not None
        self._begun[key] = False
        try:
            begun = await _run_in_thread(partial(self._migrator.begin, key, node))
        except Exception as error:
            log.exception("could not begin the migration of %s/%s", *key)
            self._back_off(key)
            self._metrics.migrations.labels("failed").inc()
            self._write(key, {MIGRATING: (False, "MigratorFailed", f"it could not begin: {error}"[:1000])})
            return None
        self._begun[key] = True
        self._metrics.migrations.labels("begun" if begun else "exists").inc()
        return begun

    def _back_off(self, key: MachineKey) -> None:
        """Leave the machine where it is for a time: what kept it from moving would most likely do so again."""
        self._book.backed_off = {**self._book.backed_off, key: time.monotonic() + RETRY_SECONDS}

    async def _withdraw(self, key: MachineKey) -> None:
        log.warning("the migration of %s/%s took too long; withdrawing it", *key)
        if self._migrator is not None:
            try:
                await _run_in_thread(partial(self._migrator.withdraw, key))
            except Exception:
                log.exception("could not withdraw the migration of %s/%s; trying again", *key)
                self._metrics.migrations.labels("failed").inc()
                return
        self._back_off(key)
        self._metrics.migrations.labels("withdrawn").inc()
        self._write(key, {MIGRATING: (False, "TimedOut", "it took too long and was withdrawn")})


async def _run_in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _is_before(since: str, latest: datetime) -> bool:
    try:
        return parse_time(since).astimezone(UTC) < latest
    except (ValueError, OverflowError):
        return True  # its duration is unknown
