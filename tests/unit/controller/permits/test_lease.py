"""One server holds the lease; another has it when it was given away or not renewed for as long as it is good."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devalloc.controller.permits.lease import Lease, Lost
from devalloc.store.sqlite import SQLiteStore
from tests.support.faketree import memory_folder


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store() -> Iterator[SQLiteStore]:
    with memory_folder() as name, closing(SQLiteStore(Path(name) / "store.db")) as store:
        yield store


def test_it_is_taken_from_one_that_does_not_renew_it(store: SQLiteStore) -> None:
    clock = Clock()
    first, second = (Lease(store, name, seconds=10, clock=clock) for name in ("first", "second"))
    assert first.take()
    assert not second.take()
    clock.now = 9
    first.renew()
    assert first.is_valid
    assert not second.take(), "seen anew at 9"
    clock.now = 18.9
    assert not second.take()
    assert first.is_valid
    clock.now = 19.1
    assert not first.is_valid, "nobody else can have it before"
    assert second.take()
    with pytest.raises(Lost):
        first.renew()
    assert not first.is_valid


def test_one_that_is_given_away_is_free_at_once(store: SQLiteStore) -> None:
    first, second = Lease(store, "first"), Lease(store, "second")
    assert first.take()
    first.give()
    assert second.take()
    first.give()
    second.renew()


def test_who_knows_that_it_is_alone_does_not_wait(store: SQLiteStore) -> None:
    dead, new = Lease(store, "dead"), Lease(store, "new", alone=True)
    assert dead.take()
    assert new.take()
    with pytest.raises(Lost):
        dead.check(store.get("Lease", "default", "devalloc-permits"))
    new.check(store.get("Lease", "default", "devalloc-permits"))
    with pytest.raises(Lost):
        new.check(None)


def test_of_two_that_take_it_at_once_one_has_it(store: SQLiteStore) -> None:
    both = [Lease(store, name, alone=True) for name in ("a", "b")]
    read = store.get

    def raced(kind: str, namespace: str | None, name: str) -> dict[str, object]:
        found = read(kind, namespace, name)
        store.get = read  # type: ignore[method-assign]
        assert both[1].take()
        return found

    assert both[1].take()
    store.get = raced  # type: ignore[method-assign]
    assert not both[0].take()
    both[1].renew()
