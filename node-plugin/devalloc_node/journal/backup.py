"""Back up the journal while the plugin runs, and restore it while it does not.

A journal tells what was done to the host, so an old one is worse than the present one: it is put back only where that
is lost. What was prepared after the copy was made is then unknown, and left as it is.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from devalloc.store.database_copies import copy_database, restore_database
from devalloc.store.errors import Damaged, StoreLocked
from devalloc_node.journal.schema import SCHEMA, inconsistencies
from devalloc_node.journal.sqlite import FILE
from devalloc_node.journal.state_folder import make_private, missing_wal, open_lock


def backup(folder: Path, path: Path) -> bool:
    """Copy the journal in a state folder to ``path`` (0600); False where there is none.

    Raises Damaged where part of its log is lost, which is then left as it is, and other StoreErrors.
    """
    if not (folder / FILE).exists():
        return False
    with open_lock(folder) as lock:
        lost = missing_wal(folder / FILE, lock)
    if lost is not None:
        raise Damaged(f"the journal {folder / FILE} is damaged ({lost}). {SCHEMA.damaged}")
    copy_database(folder / FILE, path, SCHEMA, _checked)
    return True


def restore(copy: Path, folder: Path) -> Path | None:
    """Put a copy in the place of the journal; where what was there is now, None where nothing was.

    Raises StoreLocked while a node plugin has the journal open, and StoreError.
    """
    make_private(folder)
    with open_lock(folder) as lock:
        if not lock.try_lock():
            raise StoreLocked(f"a node plugin uses the journal in {folder}; stop it first", None)
        return restore_database(copy, folder / FILE, SCHEMA, _checked, lambda connection: None)


def _checked(connection: sqlite3.Connection) -> list[str]:
    errors = [text for (text,) in connection.execute("PRAGMA integrity_check") if text != "ok"]
    return errors or inconsistencies(connection)
