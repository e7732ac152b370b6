"""Copies of the journal: made while the plugin runs, put back while it does not.

A journal tells what was done to the host, so an old one is worse than the present one: it is put back only where that
is lost. What was prepared after the copy was made is then unknown, and left as it is.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from devalloc.store.copies import copy_out, put_back
from devalloc.store.errors import Held
from devalloc_node.journal.folder import make_private
from devalloc_node.journal.schema import SCHEMA
from devalloc_node.journal.sqlite import FILE, problems


def backup(folder: Path, path: Path) -> bool:
    """Copy the journal in a state folder to ``path`` (0600); False where there is none. Raises StoreError."""
    if not (folder / FILE).exists():
        return False
    copy_out(folder / FILE, path, SCHEMA, _checked)
    return True


def restore(copy: Path, folder: Path) -> Path | None:
    """Put a copy in the place of the journal; where what was there is now, None where nothing was.

    Raises Held while a node plugin has the journal open, and StoreError.
    """
    make_private(folder)
    lock = os.open(folder / "journal.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Held(f"a node plugin runs with the journal in {folder}; stop it first", None) from None
        return put_back(copy, folder / FILE, SCHEMA, _checked, lambda connection: None)
    finally:
        os.close(lock)


def _checked(connection: sqlite3.Connection) -> list[str]:
    found = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
    return found or problems(connection)
