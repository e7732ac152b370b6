"""Notify watchers of changes; a slow watcher delays no other and costs no memory.

A watcher is not a queue of events. It remembers what it has sent. Whenever its reader has room for more, it compares
that with the state *now*: what changed five times meanwhile is sent once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


CLAIMS = "claims"
"""A change of claims, and of which ones is not known."""


DEVICES = "devices"
"""A change of how devices of the host are."""


def machine_change(key: str) -> str:
    """A change of the machine ``namespace/name``."""
    return f"machine {key}"


def claim_change(key: str) -> str:
    """A change of what this node holds for the claim ``namespace/name``."""
    return f"claim {key}"


class ChangeKind(Enum):
    """What an event says of its key."""

    IS = "is"
    GONE = "gone"
    SYNCED = "synced"
    """All there was at first has been told."""


class ChangeNotifier:
    """Counts changes, so that those who wait for one miss none, and says what changed to those who follow it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._followers: list[Callable[[Sequence[str]], None]] = []

    @property
    def count(self) -> int:
        return self._count

    def follow(self, hear: Callable[[Sequence[str]], None]) -> None:
        """Call ``hear`` at each beat with what changed; from any thread, so it must be quick."""
        self._followers.append(hear)

    def beat(self, *changed: str) -> None:
        """Something changed, or a watcher must check whether to go on.

        ``changed``: what, as ``machine_change`` and ``claim_change`` say it, or ``CLAIMS``, ``DEVICES``. Empty: nothing
        that a follower acts on.
        """
        for hear in self._followers:
            hear(changed)
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        """Until the count is another than ``seen``, or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._count != seen, seconds)


class TooManyWatchers(Exception):
    """As many as are served watch already."""


class WatcherSlots:
    """So many may watch at a time: each takes a thread of the server's."""

    def __init__(self, number: int, what: str = "watches") -> None:
        """``what``: they, for people."""
        self.number, self._what = number, what
        self._free = threading.BoundedSemaphore(number)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises TooManyWatchers."""
        if not self._free.acquire(blocking=False):
            raise TooManyWatchers(f"{self.number} {self._what} are open, which is the maximum; close one")
        try:
            yield
        finally:
            self._free.release()


def watch_changes(
    read: Callable[[], Mapping[Key, Value]], notifier: ChangeNotifier, is_active: Callable[[], bool], *, interval: float
) -> Iterator[tuple[ChangeKind, Key | None, Value | None]]:
    """What is, and then what changes, until ``is_active`` says no: looked at on each pulse, else every ``interval`` s.

    A GONE comes with the last value that was told.
    """
    reported: dict[Key, Value] = {}
    synced = False
    while is_active():
        seen = notifier.count
        now = read()
        for key in [key for key in reported if key not in now]:
            yield ChangeKind.GONE, key, reported.pop(key)
        for key, value in now.items():
            if reported.get(key) != value:
                reported[key] = value
                yield ChangeKind.IS, key, value
        if not synced:
            synced = True
            yield ChangeKind.SYNCED, None, None
        notifier.wait(seen, interval)
