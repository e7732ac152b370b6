"""Many writes in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devalloc.store import AlreadyExists, NotFound, Unavailable
from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import gpu_claim

CLAIM = "DeviceClaim"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "store.db")) as store:
        yield store


def names(store: SQLiteStore) -> list[str]:
    return [claim["metadata"]["name"] for claim in store.list(CLAIM).objects]


def test_what_is_written_together_is_read_inside_and_by_others_at_the_end(store: SQLiteStore) -> None:
    with closing(SQLiteStore(store.path)) as other:
        with store.together():
            store.create(gpu_claim("a"))
            store.create(gpu_claim("b"))
            store.delete(CLAIM, "default", "a")
            assert names(store) == ["b"]
            assert names(other) == []
        assert names(other) == ["b"]


def test_an_error_that_ends_it_undoes_all(store: SQLiteStore) -> None:
    store.create(gpu_claim("before"))

    def write() -> None:
        with store.together():
            store.create(gpu_claim("a"))
            store.delete(CLAIM, "default", "before")
            raise Unavailable("the disk is full")

    with pytest.raises(Unavailable):
        write()
    assert names(store) == ["before"]
    store.create(gpu_claim("after"))
    assert names(store) == ["after", "before"]


def test_an_error_about_one_object_leaves_the_others(store: SQLiteStore) -> None:
    with store.together():
        store.create(gpu_claim("a"))
        with pytest.raises(AlreadyExists):
            store.create(gpu_claim("a"))
        with pytest.raises(NotFound):
            store.delete(CLAIM, "default", "b")
        store.create(gpu_claim("c"))
    assert names(store) == ["a", "c"]


def test_each_object_has_a_version_of_its_own(store: SQLiteStore) -> None:
    with store.together():
        versions = [store.create(gpu_claim(name))["metadata"]["resourceVersion"] for name in "abc"]
    assert versions == sorted(set(versions), key=int)
    assert [event.resource_version for event in store.watch(CLAIM, "0", timeout=0)] == versions
