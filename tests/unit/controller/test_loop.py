"""The loop that all allocators share, and sets of claims that belong together."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.loop import AllocatorSettings, CommitReport, ReconcileLoop
from devalloc.controller.reconcile.snapshot import Snapshot
from devalloc.controller.reconcile.stored_claims import DisjointSets
from devalloc.store import Change, Expired, Fence
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import fill, gpu_claim


class _Stop(threading.Event):
    """Counts pauses, and is set after some of them; no test waits."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.left, self.delays = pauses, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        self.delays.append(timeout or 0.0)
        if len(self.delays) >= self.left:
            self.set()
        return self.is_set()


def test_a_store_that_always_forgets_is_read_again_with_growing_pauses() -> None:
    rounds = 0

    def act() -> None:
        nonlocal rounds
        rounds += 1

    def wait() -> None:
        raise Expired("list again")

    stop = _Stop(4)
    _loop().run(stop, act, wait)
    assert (rounds, stop.delays) == (4, [1.0, 2.0, 4.0, 8.0])


def test_after_a_wait_that_ended_well_the_pause_is_short_again() -> None:
    waits = iter([True, True, False, True])

    def wait() -> None:
        if next(waits):
            raise Expired("list again")

    stop = _Stop(3)
    _loop().run(stop, lambda: None, wait)
    assert stop.delays == [1.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("state", "pause"), [({"is_again": True}, 0.05), ({"is_unfinished": True}, 1.0), ({}, None)], ids=str
)
def test_a_round_that_left_something_is_followed_by_another_without_a_wait(
    state: dict[str, bool], pause: float | None
) -> None:
    loop, stop, waits = _loop(), _Stop(1), list[bool]()

    def act() -> None:
        for name, value in state.items():
            setattr(loop, name, value)

    def wait() -> None:
        waits.append(True)
        stop.set()

    loop.run(stop, act, wait)
    assert (stop.delays, waits) == (([], [True]) if pause is None else ([pause], []))


@pytest.mark.parametrize(("is_busy", "seconds"), [(True, 0.1), (False, 60.0)])
def test_while_a_search_runs_a_wait_looks_often_whether_it_has_ended(is_busy: bool, seconds: float) -> None:
    loop, waits = _loop(), list[float]()

    def watch(kinds: object, version: str, *, timeout: float, stop: threading.Event) -> Iterator[Any]:
        waits.append(timeout)
        return (event for event in ())

    store: Any = SimpleNamespace(watch=watch)
    searches: Any = SimpleNamespace(is_busy=is_busy, news=lambda: len(waits) == 2)
    loop._store, loop.searches = store, searches
    assert loop.wait_for_change("0", 60.0, threading.Event())
    assert waits == [seconds, seconds]


class TestCommit:
    """Of a loop over two claims, the second of which another writer may reach first."""

    @pytest.fixture
    def store(self, store: SQLiteStore) -> SQLiteStore:
        fill(store, gpu_claim("a"), gpu_claim("b"))
        return store

    def test_a_broken_fence_writes_nothing(self, store: SQLiteStore) -> None:
        loop, units, fence = _planned(store)
        _touch(store, "b")
        assert loop.commit(units, fence) == CommitReport()
        assert _noted(store) == {"a": None, "b": "touched"}

    def test_what_still_stands_is_written_and_the_rest_is_due_at_once(self, store: SQLiteStore) -> None:
        loop, units, fence = _planned(store)
        _touch(store, "b")
        seen: list[Snapshot] = []

        def standing(planned: Sequence[WriteUnit], now: Snapshot) -> Sequence[WriteUnit]:
            seen.append(now)
            return planned[:1]

        report = loop.commit(units, fence, standing)
        assert [key.name for key in report.written] == ["a"]
        assert (_noted(store), loop.is_again, len(seen)) == ({"a": "decided", "b": "touched"}, True, 1)

    def test_a_fence_that_breaks_every_time_is_given_up(self, store: SQLiteStore) -> None:
        loop, units, fence = _planned(store)
        _touch(store, "b")
        looks = 0

        def standing(planned: Sequence[WriteUnit], now: Snapshot) -> Sequence[WriteUnit]:
            nonlocal looks
            looks += 1
            _touch(store, "b", f"again {looks}")
            return planned

        assert loop.commit(units, fence, standing).written == {}
        assert (_noted(store)["a"], looks) == (None, 5)

    def test_an_object_that_changed_costs_only_its_own_unit(self, store: SQLiteStore) -> None:
        loop, units, _ = _planned(store)
        _touch(store, "b")
        report = loop.commit(units, fence=None)
        assert [key.name for key in report.written] == ["a"]
        assert (_noted(store), loop.is_again) == ({"a": "decided", "b": "touched"}, False)

    def test_after_a_stop_nothing_is_written(self, store: SQLiteStore) -> None:
        loop, units, fence = _planned(store)
        stop = threading.Event()
        stop.set()
        loop.run(stop, lambda: None, lambda: None)
        assert loop.commit(units, fence) == CommitReport()
        assert _noted(store) == {"a": None, "b": None}


def _planned(store: SQLiteStore) -> tuple[ReconcileLoop, list[WriteUnit], Fence]:
    """A loop that has read two claims, and a unit for each."""
    loop = ReconcileLoop("could not answer", store, AllocatorSettings(), None, lambda: 0.0)
    snapshot = loop.reading.look()
    status = {"podNames": ["decided"]}
    changes = [Change(key, obj["metadata"]["resourceVersion"], status) for key, obj in snapshot.objects.items()]
    fence = Fence(snapshot.version, frozenset(), frozenset({"DeviceClaim"}))
    return loop, [WriteUnit((change,), granted=False) for change in changes], fence


def _touch(store: SQLiteStore, name: str, what: str = "touched") -> None:
    obj = store.get("DeviceClaim", "default", name)
    store.replace_status({**obj, "status": {"podNames": [what]}})


def _noted(store: SQLiteStore) -> dict[str, str | None]:
    objects = store.list().objects
    return {obj["metadata"]["name"]: (obj.get("status", {}).get("podNames") or [None])[0] for obj in objects}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20))
def test_what_is_joined_is_one_set_and_nothing_else_is(pairs: list[tuple[int, int]]) -> None:
    joined: DisjointSets[int] = DisjointSets()
    for one, other in pairs:
        joined.join(one, other)
    members = {number for pair in pairs for number in pair}
    expected = sorted({tuple(sorted(_reach(number, pairs))) for number in members})
    assert sorted(tuple(sorted(each)) for each in joined.sets()) == expected
    assert all(joined.set_of(n) == _reach(n, pairs) for n in members)
    assert joined.set_of(10) is None


def _reach(start: int, pairs: Iterable[tuple[int, int]]) -> set[int]:
    reached, before = {start}, set[int]()
    while reached != before:
        before = set(reached)
        reached |= {end for pair in pairs if reached & set(pair) for end in pair}
    return reached


def _loop() -> ReconcileLoop:
    nothing: Any = None
    return ReconcileLoop("could not answer", nothing, AllocatorSettings(retry=1.0, resync=60.0), None, lambda: 0.0)
