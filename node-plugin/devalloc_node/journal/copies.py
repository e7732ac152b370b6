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
from devalloc.store.errors import Damaged, Held
from devalloc_node.journal.folder import lost_log, make_private, open_lock
from devalloc_node.journal.schema import SCHEMA
from devalloc_node.journal.sense import problems
from devalloc_node.journal.sqlite import FILE


def backup(folder: Path, path: Path) -> bool:
    """Copy the journal in a state folder to ``path`` (0600); False where there is none.

    Raises Damaged where part of its log is lost, which is then left as it is, and other StoreErrors.
    """
    if not (folder / FILE).exists():
        return False
    lock = open_lock(folder)
    try:
        lost = lost_log(folder / FILE, lock)
    finally:
        os.close(lock)
    if lost is not None:
        raise Damaged(f"the journal {folder / FILE} is damaged ({lost}). {SCHEMA.damaged}")
    copy_out(folder / FILE, path, SCHEMA, _checked)
    return True


def restore(copy: Path, folder: Path) -> Path | None:
    """Put a copy in the place of the journal; where what was there is now, None where nothing was.

    Raises Held while a node plugin has the journal open, and StoreError.
    """
    make_private(folder)
    lock = open_lock(folder)
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
