"""What a watcher tells: all that is, each change after it, and all again after a gap."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import DEVALLOC
from devalloc.store import Event, Expired, Object, StoreError, Unavailable, Unusable, watcher
from devalloc.store.sqlite import SQLiteStore
from devalloc.store.watcher import Listed, Watcher
from tests.support.waiting import until

KIND = "VirtualMachine"


def device_class(name: str, **spec: Any) -> Object:
    return {"apiVersion": DEVALLOC, "kind": KIND, "metadata": {"name": name}, "spec": spec}


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.01)


@pytest.fixture
def store(tmp_path: Path) -> Generator[SQLiteStore, None, None]:
    store = SQLiteStore(tmp_path / "store.db")
    yield store
    store.close()


class Heard:
    """Runs a watcher and notes what it tells."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.problem: Callable[[str], None] = lambda message: None

    def __call__(self, change: Listed | Event) -> None:
        if isinstance(change, Listed):
            message = "all: " + " ".join(obj["metadata"]["name"] for obj in change.objects)
        else:
            message = f"{change.type.value}: {change.object['metadata']['name']}"
        self.heard.append(message)
        self.problem(message)

    def start(self, watcher: Watcher) -> threading.Thread:
        def run() -> None:
            try:
                watcher.run(self.stop)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def end(self, thread: threading.Thread) -> None:
        self.stop.set()
        thread.join(5.0)
        assert not thread.is_alive()


def test_first_all_that_is_and_then_each_change(store: SQLiteStore) -> None:
    store.create(device_class("a"))
    heard = Heard()
    thread = heard.start(Watcher(store, KIND, heard, "cannot watch"))
    until(lambda: heard.heard == ["all: a"])
    store.create(device_class("b"))
    store.delete(KIND, None, "a")
    until(lambda: heard.heard == ["all: a", "ADDED: b", "DELETED: a"])
    heard.end(thread)


def test_from_a_place_in_the_history_only_changes(store: SQLiteStore) -> None:
    store.create(device_class("a"))
    since = store.list([]).resource_version
    store.create(device_class("b"))
    heard = Heard()
    thread = heard.start(Watcher(store, KIND, heard, "cannot watch", since=since))
    until(lambda: heard.heard == ["ADDED: b"])
    heard.end(thread)


def test_without_a_listing_it_says_that_changes_may_have_been_missed(store: SQLiteStore) -> None:
    store.create(device_class("a"))
    heard = Heard()
    thread = heard.start(Watcher(store, KIND, heard, "cannot watch", lists=False))
    until(lambda: heard.heard == ["all: "])
    store.create(device_class("b"))
    until(lambda: heard.heard == ["all: ", "ADDED: b"])
    heard.end(thread)


def test_all_is_reported_again_after_a_while_if_asked_for(store: SQLiteStore) -> None:
    store.create(device_class("a"))
    heard = Heard()
    thread = heard.start(Watcher(store, KIND, heard, "cannot watch", relist=0.05))
    until(lambda: heard.heard[:2] == ["all: a", "all: a"])
    heard.end(thread)


@pytest.mark.parametrize("error", [Unavailable("disk full"), Expired("too old"), ValueError("a bug")])
def test_a_change_that_could_not_be_taken_is_followed_by_all(store: SQLiteStore, error: Exception) -> None:
    heard = Heard()
    failures = iter([error, error])

    def fail(message: str) -> None:
        if message != "all: " and (problem := next(failures, None)):
            raise problem

    heard.problem = fail
    thread = heard.start(Watcher(store, KIND, heard, "cannot watch"))
    until(lambda: heard.heard == ["all: "])
    store.create(device_class("a"))
    until(lambda: heard.heard == ["all: ", "ADDED: a", "all: a", "all: a"])
    store.create(device_class("b"))
    until(lambda: heard.heard[4:] == ["ADDED: b"])
    heard.end(thread)


def test_what_happens_during_a_failure_is_not_missed(store: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    thread = heard.start(Watcher(store, KIND, heard, "cannot watch"))
    until(lambda: heard.heard == ["all: "])
    with monkeypatch.context() as broken:

        def refuse(*args: object, **options: object) -> None:
            raise Unavailable("no answer")

        broken.setattr(store, "list", refuse)

        def fail(message: str) -> None:
            raise Unavailable("no answer")

        heard.problem = fail
        store.create(device_class("a"))
        until(lambda: heard.heard == ["all: ", "ADDED: a"])
        store.create(device_class("b"))
        store.delete(KIND, None, "a")
        heard.problem = lambda message: None
    until(lambda: heard.heard[2:] == ["all: b"])
    heard.end(thread)


def test_a_store_that_must_not_be_used_ends_it(store: SQLiteStore) -> None:
    heard = Heard()

    def fail(message: str) -> None:
        raise Unusable("the file is damaged")

    heard.problem = fail
    thread = heard.start(Watcher(store, KIND, heard, "cannot watch"))
    thread.join(5.0)
    assert isinstance(heard.error, Unusable)


def test_an_error_after_the_stop_is_not_logged(store: SQLiteStore, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()

    def fail(message: str) -> None:
        heard.stop.set()
        raise StoreError("another process leads")

    heard.problem = fail
    with caplog.at_level(logging.DEBUG):
        heard.end(heard.start(Watcher(store, KIND, heard, "cannot watch")))
    assert caplog.records == []
