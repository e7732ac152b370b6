"""The build cache: a folder outside the tree, with one builder at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Progress = Callable[[str], None]
"""Told how far it is, a line at a time."""


class Unavailable(Exception):
    """What is wanted cannot be had here; the text says why."""


def cache_folder() -> Path:
    """DEVALLOC_TEST_CACHE, or devalloc below the user's cache folder."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "devalloc"
    return Path(os.environ.get("DEVALLOC_TEST_CACHE") or default)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """The folder, made if need be, with no other process building into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
