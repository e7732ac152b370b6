"""The store on a full disk, and on one of which the user's quota is used up."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devalloc.store import Change, SkippedForSpace, Unavailable, database
from devalloc.store.errors import Key, NoSpace, is_disk_full
from devalloc.store.paths import wal_path
from devalloc.store.sql_statements import SqlStatements
from devalloc.store.sqlite import SQLiteStore

FULL = [errno.ENOSPC, errno.EDQUOT]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "devalloc.db")
    yield store
    store.close()


def claim(name: str, **metadata: Any) -> dict[str, Any]:
    content = {"name": name, "namespace": "default", **metadata}
    return {"apiVersion": "devmgmtproto.k8s.io/v1alpha1", "kind": "DeviceClaim", "metadata": content, "spec": {}}


@contextmanager
def nothing_allocated(monkeypatch: pytest.MonkeyPatch, code: int) -> Iterator[None]:
    """The file system allocates no block any more."""

    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        yield


@contextmanager
def no_file_grows(size: int) -> Iterator[None]:
    """A write beyond that size fails. SQLite takes it for an I/O error, as it takes EDQUOT."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("code", FULL)
def test_a_used_up_quota_is_a_full_disk(code: int) -> None:
    assert is_disk_full(OSError(code, os.strerror(code)))
    assert not is_disk_full(OSError(errno.EIO, os.strerror(errno.EIO)))
    assert not is_disk_full(ValueError())


@pytest.mark.parametrize("code", FULL)
def test_what_sqlite_calls_an_io_error_is_a_full_disk_if_nothing_can_be_allocated(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    old = store.create(claim("old"))
    with nothing_allocated(monkeypatch, code), no_file_grows(wal_path(store.path).stat().st_size):
        with pytest.raises(Unavailable, match="no space left for the store"):
            store.create(claim("new", annotations={"more": "x" * 2**16}))
        store.delete("DeviceClaim", "default", "old", uid=old["metadata"]["uid"])
    assert not store.list("DeviceClaim").objects


def test_another_io_error_is_no_full_disk(store: SQLiteStore) -> None:
    with no_file_grows(wal_path(store.path).stat().st_size), pytest.raises(Unavailable) as caught:
        store.create(claim("new", annotations={"more": "x" * 2**16}))
    assert "no space" not in str(caught.value)


@pytest.mark.parametrize("code", FULL)
def test_an_object_that_is_being_deleted_grows_by_a_few_words_a_write(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store.create(claim("old", finalizers=["example.com/hold"]))
    old = store.delete("DeviceClaim", "default", "old")
    os.truncate(database.reserve_path(store.path), database.RESERVE_BYTES // 2)
    with nothing_allocated(monkeypatch, code):
        with pytest.raises(Unavailable, match="no space left"):
            store.replace_status({**old, "status": {"message": "x" * 5000}})
        with pytest.raises(Unavailable, match="no space left"):
            store.replace({**old, "metadata": {**old["metadata"], "annotations": {"more": "x" * 5000}}})
        old = store.replace_status({**old, "status": {"message": "x" * 3000}})
        store.replace({**old, "metadata": {**old["metadata"], "finalizers": []}})
    assert not store.list("DeviceClaim").objects


@pytest.mark.parametrize("code", FULL)
def test_in_a_batch_what_takes_back_is_written_though_what_gives_is_left_out(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    held = {"allocations": [{"text": "x" * 2**16}]}
    store.create(claim("new"))
    old = store.create(claim("old"))
    old = store.replace_status({**old, "status": held})
    new = store.get("DeviceClaim", "default", "new")
    more = {"allocations": [{"text": "x" * 2**20}]}
    units = [
        [Change(Key.of(obj), obj["metadata"]["resourceVersion"], status)] for obj, status in ((new, more), (old, None))
    ]
    with nothing_allocated(monkeypatch, code), no_file_grows(wal_path(store.path).stat().st_size):
        left_out, written = store.commit_each(units)
    assert isinstance(left_out, SkippedForSpace)
    assert not isinstance(written, SkippedForSpace)
    assert ["status" in store.get("DeviceClaim", "default", name) for name in ("new", "old")] == [False, False]


@pytest.mark.parametrize("failures", [1, 2, 3, 17, 18])
def test_the_reserve_is_released_piece_by_piece_until_the_change_fits(store: SQLiteStore, failures: int) -> None:
    """After a first try without: SQLite may only have to start its log again."""
    tries = []

    def change() -> str:
        tries.append(reserve.stat().st_size)
        if len(tries) <= failures:
            raise NoSpace("full")
        return "done"

    reserve, piece = database.reserve_path(store.path), database.RESERVE_BYTES // 16
    if failures <= 17:
        assert database.run_with_reserve(store.path, change) == "done"
    else:
        with pytest.raises(NoSpace, match="is used up"):
            database.run_with_reserve(store.path, change)
    assert tries == [database.RESERVE_BYTES - piece * max(0, number - 1) for number in range(min(failures, 17) + 1)]


def test_an_error_that_ends_the_transaction_within_a_statement_is_the_one_that_is_raised() -> None:
    """SQLite does so if a page does not fit on the disk before the commit; the savepoint is gone with the rest."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("BEGIN")

    def write() -> None:
        connection.execute("ROLLBACK")
        raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(sqlite3.OperationalError, match="disk is full"):
        SqlStatements(connection).unless_it_grows(write)


def test_without_a_reserve_a_change_that_does_not_fit_is_tried_once_more(store: SQLiteStore) -> None:
    database.reserve_path(store.path).unlink()
    tries = []

    def change() -> None:
        tries.append(1)
        raise NoSpace("full")

    with pytest.raises(NoSpace, match="is used up"):
        database.run_with_reserve(store.path, change)
    assert len(tries) == 2
