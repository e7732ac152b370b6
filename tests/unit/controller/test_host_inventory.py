"""The loop that repairs this host's published pools goes on after errors of the store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devalloc.controller.host_inventory import HostInventory, InventorySource
from devalloc.controller.pool_publisher import PublishLock
from devalloc.inventory.discover import Discovery
from devalloc.store import Expired, Listing, StoreError, Unusable, watcher


class CompactedStore:
    """Has forgotten what came after the first listing, and cannot be listed anew at first."""

    def __init__(self, stop: threading.Event, *errors: StoreError) -> None:
        self._stop, self._errors = stop, [*errors]
        self.listings = 0
        self.watched: list[str] = []

    def list(self, kinds: Any) -> Listing:
        self.listings += 1
        if self.listings > 1 and self._errors:
            raise self._errors.pop(0)
        return Listing([], str(self.listings))

    def watch(self, kinds: Any, since: str, **options: Any) -> Iterator[Any]:
        self.watched.append(since)
        if len(self.watched) == 1:
            raise Expired("list again")
        self._stop.set()
        return iter(())


class NoEvents:
    """A host that does not change."""

    def wait(self, timeout: float) -> bool:
        return False

    def wake(self) -> None:
        """No caller waits."""


def repaired(folder: Path, *errors: StoreError) -> CompactedStore:
    stop = threading.Event()
    store = CompactedStore(stop, *errors)
    inventory = HostInventory(
        store,  # type: ignore[arg-type]  all that it needs
        InventorySource("n", lambda records: Discovery([], [])),
        NoEvents(),
        PublishLock(folder / "store.db", "n", is_plugin=False),
        resync=0.01,
        on_published=lambda result: None,
    )
    inventory.repair(stop)
    return store


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.001)


def test_an_expired_watch_begins_again_at_a_new_listing(tmp_path: Path) -> None:
    compacted = repaired(tmp_path)
    assert compacted.watched == ["1", "2"]


def test_the_loop_survives_a_store_that_cannot_be_listed_after_its_watch_expired(tmp_path: Path) -> None:
    compacted = repaired(tmp_path, StoreError("connection refused"), StoreError("connection refused"))
    assert compacted.watched == ["1", "4"]


def test_an_unusable_store_ends_the_loop(tmp_path: Path) -> None:
    with pytest.raises(Unusable):
        repaired(tmp_path, Unusable("it is of a newer version"))
