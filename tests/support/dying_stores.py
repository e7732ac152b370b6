"""Stores of processes that die at a write: the embedded one, and that of a cluster, whose commits are many writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from devalloc.store import Object
from devalloc.store.kubernetes import KubernetesStore
from devalloc.store.sqlite import SQLiteStore
from tests.support.fake_kube import FakeClient, FakeKube


class Killed(BaseException):
    """The process is gone: nothing catches it."""


class DyingStore:
    """A store that one process writes to; before and after each write it may die."""

    def __init__(self, store: SQLiteStore, step: Callable[[], None]) -> None:
        self._store, self._step = store, step

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if name not in ("replace", "replace_status", "commit", "commit_each"):
            return value

        def write(*args: Any, **kwargs: Any) -> Any:
            self._step()
            done = value(*args, **kwargs)
            self._step()
            return done

        return write


class EmbeddedStores:
    """The embedded store, as processes open it."""

    def __init__(self, folder: Path, step: Callable[[], None]) -> None:
        self._file, self._step = folder / "store.db", step
        self.users = self.open()

    def open(self) -> SQLiteStore:
        return SQLiteStore(self._file)

    def objects(self) -> list[Object]:
        """All that is there, as of now."""
        return list(self.users.list().objects)

    def connect(self) -> Any:
        """For a process that may die at each write."""
        return DyingStore(self.open(), self._step)


class ClusterStores:
    """The store of a cluster, whose commits are transactions of many writes."""

    def __init__(self, folder: Path, step: Callable[[], None]) -> None:
        self._kube, self._step = FakeKube(), step
        self.users = KubernetesStore(FakeClient(self._kube))  # type: ignore[arg-type]

    def objects(self) -> list[Object]:
        """All that is there, as of now: what a client has read may be older, of some objects more than of others."""
        with self._kube.changed:
            return list(self._kube.objects.values())

    def connect(self) -> Any:
        """For a process that may die at each write. It ends what those before it have begun, as a leader does."""
        client = FakeClient(self._kube)
        opened = KubernetesStore(client)  # type: ignore[arg-type]
        opened.recover()
        client.before = client.after = lambda number, what: self._step()
        return opened


STORES = (EmbeddedStores, ClusterStores)
