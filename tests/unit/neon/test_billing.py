"""What is billed: exact, told when it is written down, and going on where the last server ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

from devalloc.machines.permits.ledger import Host, PermitLedgers
from devalloc.machines.permits.metrics import PermitMetrics
from devalloc.machines.permits.settings import Settings
from devalloc.scaling.resources import Resources
from devalloc.store import Object, Unavailable
from devalloc.store.sqlite import SQLiteStore
from devalloc_neon.billing import FORGET_MILLISECONDS, KIND, BillingUsage, UsageTotal
from tests.support.permit_bench import GIB, amounts, machine
from tests.support.permit_records import SOURCES

T = TypeVar("T")
START = 1_800_000_000.0


class Server:
    """What counts, of one server after the other."""

    def __init__(self, store: SQLiteStore, holder: str = "first") -> None:
        self.now = START
        self.book = PermitLedgers(Settings(), SOURCES)
        self.book.begin({"node-a": Host(amounts(100_000, 100))})
        self.usage = BillingUsage(store, self.book, "lease", holder, clock=lambda: self.now)

    def knows(
        self, name: str, bill: str, has: Resources, *, permit: bool = True, created: str = "", **more: Any
    ) -> None:
        obj = machine(name, annotations={"autoscaling.neon.tech/billing-endpoint-id": bill})
        obj["metadata"] |= {"creationTimestamp": created, "resourceVersion": "1"}
        amounts = {"cpus": f"{has.cpu}m", "memory": has.memory}
        status = {"phase": "Running", "observed": amounts} | (
            {"permitted": {**amounts, "givenBy": "s"}} if permit else {}
        )
        self.book.put({**obj, "status": {**status, **more}}, starting=True)

    def goes_on(self, seconds: float) -> None:
        self.now += seconds
        self.usage.add(seconds)

    def begin(self) -> None:
        asyncio.run(self.usage.begin(here))

    def save(self) -> None:
        asyncio.run(self.usage.save(here))

    def reported(self) -> dict[str, tuple[float, float]]:
        """CPU-seconds and GiB-seconds."""
        return {
            name: (total.cpu / 10**6, total.memory / 1000 / GIB) for name, total in self.usage.stored_totals.items()
        }


def here(work: Callable[[], T]) -> Awaitable[T]:
    async def done() -> T:
        return work()

    return done()


def test_a_machine_that_runs_is_billed_for_its_reservation(store: SQLiteStore) -> None:
    server = Server(store)
    server.begin()
    server.knows("a", "ep-1", amounts(1500, 2))
    server.knows("b", "ep-1", amounts(500, 1))
    server.knows("c", "ep-2", amounts(1000, 1), permit=False)
    server.knows("d", "", amounts(1000, 1))
    server.knows("e", "ep-3", amounts(1000, 1), phase="Stopped")
    assert server.book.nodes["node-a"].machines["default", "c"].buffer == amounts(7000, 15)
    for _ in range(1000):
        server.goes_on(0.25)
    assert server.reported() == {}, "it is not written yet"
    server.save()
    assert server.reported() == {"ep-1": (500, 750), "ep-2": (250, 250)}, "a buffer is a guess, which no owner pays"


def test_the_next_server_goes_on_and_counts_the_time_without_one(store: SQLiteStore) -> None:
    first = Server(store)
    first.begin()
    first.knows("a", "ep-1", amounts(2000, 1))
    first.goes_on(100)
    first.save()
    first.goes_on(7)  # and is killed
    second = Server(store, "second")
    second.now = START + 160
    second.knows("a", "ep-1", amounts(2000, 1))
    second.knows("new", "ep-2", amounts(1000, 1), created="2027-01-15T08:02:10Z")  # 30 s ago
    second.begin()
    assert second.reported() == {"ep-1": (200, 100)}, "no counter goes back, nor ahead of what is written"
    second.save()
    assert second.reported() == {"ep-1": (320, 160), "ep-2": (30, 30)}


def test_a_clock_that_was_set_back_takes_nothing_away(store: SQLiteStore) -> None:
    first = Server(store)
    first.begin()
    first.knows("a", "ep-1", amounts(2000, 1))
    first.goes_on(100)
    first.save()
    second = Server(store, "second")
    second.now = START - 5000
    second.knows("a", "ep-1", amounts(2000, 1))
    second.begin()
    second.goes_on(1)
    second.save()
    assert second.reported() == {"ep-1": (202, 101)}


def test_a_server_that_another_replaced_writes_nothing(store: SQLiteStore) -> None:
    first, second = Server(store), Server(store, "second")
    for server in (first, second):
        server.knows("a", "ep-1", amounts(1000, 1))
        server.begin()
    first.goes_on(10)
    first.save()
    second.begin()
    second.goes_on(5)
    second.save()
    first.goes_on(1000)
    first.save()
    assert first.reported() == second.reported() == {"ep-1": (15, 15)}


@pytest.mark.parametrize("was_written", [True, False])
def test_a_write_with_a_lost_answer_counts_once(store: SQLiteStore, was_written: bool) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def replace(self, obj: Object) -> Object:
            if was_written:
                store.replace(obj)
            raise Unavailable("the disk is slow")

    server = Server(store)
    server.begin()
    server.knows("a", "ep-1", amounts(1000, 1))
    server.goes_on(10)
    server.save()
    server.goes_on(10)
    server.usage._store = Failing()  # type: ignore[assignment]
    with pytest.raises(Unavailable):
        server.save()
    assert server.reported() == {"ep-1": (10, 10)}
    server.usage._store = store
    for _ in range(2):
        server.goes_on(1)
        server.save()
    assert server.reported() == {"ep-1": (22, 22)}


def test_a_deleted_record_is_written_again_and_a_damaged_one_begins_anew(store: SQLiteStore) -> None:
    server = Server(store)
    server.begin()
    server.knows("a", "ep-1", amounts(1000, 1))
    server.goes_on(10)
    server.save()
    store.delete(KIND, "default", "lease-usage")
    for _ in range(2):
        server.save()
    assert server.reported() == {"ep-1": (10, 10)}
    for data in (None, [], {}, {"totals": "[]", "untilMilliseconds": "1"}, {"totals": '{"a":[1,2,3,4]}'}):
        stored = store.get(KIND, "default", "lease-usage")
        store.replace({**stored, "data": data})
        other = Server(store, "other")
        other.begin()
        assert other.reported() == {}


def test_ids_that_no_machine_has_are_forgotten_in_the_end(store: SQLiteStore) -> None:
    server = Server(store)
    server.begin()
    server.knows("a", "ep-1", amounts(1000, 1))
    server.goes_on(10)
    server.book.drop(("default", "a"))
    server.knows("b", "ep-2", amounts(1000, 1))
    server.goes_on(FORGET_MILLISECONDS / 1000 - 1)
    server.save()
    assert sorted(server.reported()) == ["ep-1", "ep-2"]
    server.goes_on(2)
    server.save()
    assert sorted(server.reported()) == ["ep-2"]


@pytest.mark.parametrize(("letter", "ids"), [("x", 640), ("\U0001f600", 120)])
def test_a_machine_that_changes_its_id_again_and_again_takes_no_room_from_others(
    store: SQLiteStore, letter: str, ids: int
) -> None:
    """Else the ConfigMap would become larger than Kubernetes stores, and no usage could be written down."""
    server = Server(store)
    server.begin()
    server.knows("runs", "ep-runs", amounts(1000, 1))
    server.knows("ended", "ep-ended", amounts(4000, 1))
    server.goes_on(1000)
    server.book.drop(("default", "ended"))
    for number in range(ids):
        server.knows("evil", f"{number}-{letter * 900}", amounts(1000, 1))
        server.goes_on(1)
        if number % 40 == 39:
            server.save()
            stored = store.get(KIND, "default", "lease-usage")["data"]
            assert sum(map(len, stored.values())) < 2**20 * 3 // 4
    reported = server.reported()
    assert reported["ep-runs"] == (1000 + ids, 1000 + ids)
    assert reported["ep-ended"] == (4000, 1000)
    assert reported["(other)"][0] > 10
    assert sum(cpu for cpu, _ in reported.values()) == pytest.approx(1000 + ids + 4000 + ids)
    next_one = Server(store, "next")
    next_one.begin()
    assert next_one.reported() == reported


@pytest.mark.parametrize("name", ["ep", 'a"b\\c\nd', "ü", "\ud800", "x" * 5000])
def test_ids_of_all_kinds_are_shown(store: SQLiteStore, name: str) -> None:
    server = Server(store)
    server.begin()
    server.knows("a", name, amounts(1500, 1))
    server.goes_on(2)
    server.save()
    page = PermitMetrics(server.book, server.usage).text().decode()
    shown = [s for family in text_string_to_metric_families(page) for s in family.samples if "permitted_cpu" in s.name]
    assert [sample.value for sample in shown] == [3.0]


def test_totals_are_exact_however_large() -> None:
    total = replace(UsageTotal(), memory=2**80 + 1)
    assert total.memory - 2**80 == 1
