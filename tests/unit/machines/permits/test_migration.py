"""Migrations come to an end, whatever becomes of the machines meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from devalloc.machines.permits.decide import ConditionValue, PermitGrant
from devalloc.machines.permits.ledger import Host, PermitLedgers
from devalloc.machines.permits.metrics import PermitMetrics
from devalloc.machines.permits.migration import MigrationTracker
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.store_migrator import NO_MIGRATION, MigrationEnd
from devalloc.scaling.permits.ledger import MachineKey, should_migrate
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra
from tests.support.permit_bench import amounts, machine
from tests.support.permit_records import SOURCES

LATE = "9999-12-31T23:59:59Z"
LABELS = {"autoscaling.neon.tech/enabled": "true", "autoscaling.neon.tech/auto-migration-enabled": "true"}


def crowded(era: ProtocolEra, *names: str, since: str | None = None) -> PermitLedgers:
    """A node that is too full, with machines that can leave it; on their way since then."""
    book = PermitLedgers(Settings(era=era), SOURCES, migrates=True)
    book.begin({"node-a": Host(amounts(4000, 4))})
    for number, name in enumerate(names):
        obj = machine(name, labels=LABELS)
        obj["metadata"] |= {"creationTimestamp": f"2026-01-0{number + 1}T00:00:00Z", "resourceVersion": str(number + 1)}
        condition = {"type": "Migrating", "status": "True", "reason": "NodePressure", "lastTransitionTime": since}
        conditions = [] if since is None else [condition]
        status = {"phase": "Running", "observed": {"cpus": "3", "memory": "3Gi"}, "conditions": conditions}
        book.put({**obj, "status": status})
    return book


class Migrator:
    """Takes machines away while it is asked to."""

    def __init__(
        self, book: PermitLedgers | None = None, error: Exception | None = None, end: MigrationEnd | None = None
    ) -> None:
        self.calls: list[tuple[str, str]] = []
        self._book, self._error, self._end = book, error, end

    def begin(self, key: MachineKey, node: str) -> bool:
        self.calls.append(("begin", key[1]))
        if self._book is not None:
            for other in list(self._book.records):
                self._book.drop(other)
        if self._error is not None:
            raise self._error
        return True

    def withdraw(self, key: MachineKey) -> None:
        self.calls.append(("withdraw", key[1]))
        if self._error is not None:
            raise self._error

    def ended(self, key: MachineKey, since: str) -> MigrationEnd | None:
        return self._end


def looked(
    book: PermitLedgers, migrator: Migrator, seconds: float, times: int = 1
) -> list[tuple[str, dict[str, ConditionValue]]]:
    """What it wants written after so many looks."""
    written: list[tuple[str, dict[str, ConditionValue]]] = []

    def tell(key: MachineKey, conditions: Mapping[str, ConditionValue]) -> None:
        written.append((key[1], dict(conditions)))

    async def look() -> None:
        migrations = MigrationTracker(book, tell, PermitMetrics(book), migrator, seconds)
        for _ in range(times):
            await migrations.look()

    asyncio.run(look())
    return written


@pytest.mark.parametrize("era", [ProtocolEra.NEWEST, ProtocolEra.V0_31])
def test_machines_that_go_meanwhile_are_no_longer_looked_at(era: ProtocolEra) -> None:
    book = crowded(era, "a", "b", "c", since=None if era is ProtocolEra.NEWEST else LATE)
    migrator = Migrator(book)
    looked(book, migrator, 3600)
    assert migrator.calls == [("begin", "a")]


@pytest.mark.parametrize("since", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-14:00", "soon", ""])
def test_a_migration_times_out_although_the_clock_was_set_back(since: str) -> None:
    migrator = Migrator()
    (written,) = looked(crowded(ProtocolEra.V0_31, "a", since=since), migrator, 0.0)
    assert (migrator.calls, written[0], written[1]["Migrating"][:2]) == ([("withdraw", "a")], "a", (False, "TimedOut"))


def test_a_migration_that_cannot_be_withdrawn_is_tried_again() -> None:
    migrator = Migrator(error=RuntimeError("no"))
    assert looked(crowded(ProtocolEra.V0_31, "a", since="2026-01-01T00:00:00Z"), migrator, 3600, times=2) == []
    assert migrator.calls == [("withdraw", "a")] * 2


def test_a_migration_that_cannot_begin_is_reported() -> None:
    migrator = Migrator(error=RuntimeError("no other node"))
    written = looked(crowded(ProtocolEra.NEWEST, "a", "b"), migrator, 3600)
    assert [conditions["Migrating"][:2] for name, conditions in written if name == "a"] == [
        (True, "NodePressure"),
        (False, "MigratorFailed"),
    ]


def test_a_machine_whose_migration_cannot_begin_is_left_for_a_while() -> None:
    book, migrator = crowded(ProtocolEra.NEWEST, "a", "b"), Migrator(error=RuntimeError("no other node"))
    looked(book, migrator, 3600, times=3)
    assert migrator.calls == [("begin", "a"), ("begin", "b")], "another one leaves in its place"


def test_a_machine_whose_migration_was_withdrawn_is_left_for_a_while() -> None:
    book = crowded(ProtocolEra.V0_31, "a", since="2026-01-01T00:00:00Z")
    looked(book, Migrator(), 3600)
    assert set(book.backed_off) == {("default", "a")}


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_migration_that_has_ended_is_reported_and_not_withdrawn(succeeded: bool) -> None:
    migrator = Migrator(end=MigrationEnd(succeeded, "Why", "as it was"))
    written = looked(crowded(ProtocolEra.V0_31, "a", since=LATE), migrator, 3600)
    assert written == [("a", {"Migrating": (False, "Why", "as it was")})]
    assert migrator.calls == []


def test_while_a_machine_stays_after_a_failure_another_one_leaves() -> None:
    book, keys = crowded(ProtocolEra.V0_31, "a", "b"), [("default", "a"), ("default", "b")]
    node = book.nodes["node-a"]
    assert [should_migrate(node, key, book.backed_off) for key in keys] == [True, False]
    book.backed_off = {keys[0]: 300.0}
    assert [should_migrate(node, key, book.backed_off) for key in keys] == [False, True]


def test_a_migration_that_was_begun_and_is_gone_has_ended() -> None:
    """A user has deleted it."""
    migrator = Migrator(end=NO_MIGRATION)
    written = looked(crowded(ProtocolEra.V0_31, "a", since=LATE), migrator, 3600, times=2)
    assert migrator.calls == [("begin", "a")], "what another server wrote down is begun first"
    assert written == [("a", {"Migrating": (False, "MigrationWithdrawn", "its migration was deleted before it ended")})]


def test_a_migration_that_is_just_beginning_has_not_ended() -> None:
    is_asked, may_answer = threading.Event(), threading.Event()

    class Slow(Migrator):
        def begin(self, key: MachineKey, node: str) -> bool:
            is_asked.set()
            may_answer.wait()
            return super().begin(key, node)

    book, migrator, written = crowded(ProtocolEra.V0_31, "a", since=LATE), Slow(end=NO_MIGRATION), list[MachineKey]()

    async def look_meanwhile() -> None:
        moves = MigrationTracker(book, lambda key, _: written.append(key), PermitMetrics(book), migrator, 3600)
        none = Resources(0, 0)
        granted = PermitGrant(("default", "a"), "node-a", b"", none, none, none, begins_migration=True)
        answer = asyncio.create_task(moves.answered(granted))
        await asyncio.to_thread(is_asked.wait)
        await moves.look()
        ended_meanwhile = [*written]
        may_answer.set()
        await answer
        assert ended_meanwhile == []
        await moves.look()

    asyncio.run(look_meanwhile())
    assert (migrator.calls, written) == ([("begin", "a")], [("default", "a")])
