"""Who serves a store, by the locks of its processes."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path

import pytest

from devalloc.controller.pool_publisher import PublishLock
from devalloc.file_lock import FileLock
from devalloc.store import StoreLocked
from devalloc.store.paths import hold_store
from devalloc.store.serving import has_lost_plugin, is_answered, serving_process


def test_a_plugin_that_runs_one_that_ended_and_one_that_never_ran(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    assert (has_lost_plugin(store, "a"), serving_process(store, "a")) == (False, "")
    with closing(PublishLock(store, "a", is_plugin=True)):
        assert not has_lost_plugin(store, "a")
        assert serving_process(store, "a").startswith(f"process {os.getpid()} (")
        assert not has_lost_plugin(store, "b"), "another node of the store"
    assert has_lost_plugin(store, "a")
    assert serving_process(store, "a") == ""


def test_a_store_is_answered_while_a_process_runs_its_loops(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    assert not is_answered(store)
    with hold_store(store):
        assert is_answered(store)
    assert not is_answered(store), "its lock file stays, and means nothing"


def test_who_looks_whether_a_store_is_answered_keeps_no_process_from_answering_it(tmp_path: Path) -> None:
    """To look, it shares the lock for a moment: `devalloc up` waits for that."""
    store = tmp_path / "store.db"
    with hold_store(store):
        pass
    with FileLock.existing(tmp_path / "store.db.lock") as look:
        assert look.try_lock(shared=True)
        over = threading.Timer(0.02, look.unlock)
        over.start()
        with hold_store(store):
            over.join()
    with hold_store(store), pytest.raises(StoreLocked), hold_store(store):
        pass
