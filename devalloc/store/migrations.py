"""Schemas of SQLite files, and that of the store: one step for each release that changed it.

Released steps are never edited. Steps run in order, each in its own transaction, so a crash leaves the schema of the
last complete step. ``PRAGMA user_version`` is the number of completed steps. If it is higher than this program knows,
a newer version wrote the file, which then stays unchanged.

There is no event log: a watch reads objects by their resourceVersion, and deletions from ``tombstones``.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

APPLICATION_ID = 0x64_76_61_6C
"""``PRAGMA application_id`` of our files: "dval"."""

STORE_STEPS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE objects (
            kind TEXT NOT NULL,
            namespace TEXT NOT NULL,         -- '' for cluster-scoped objects
            name TEXT NOT NULL,
            version INTEGER NOT NULL,        -- metadata.resourceVersion
            created_version INTEGER NOT NULL,
            spec_version INTEGER NOT NULL,   -- resourceVersion of the last change of spec, the creation included
            status_version INTEGER NOT NULL, -- resourceVersion of the last change of status, 0 for never
            content TEXT NOT NULL,           -- the manifest as JSON
            PRIMARY KEY (kind, namespace, name)
        )
        """,
        "CREATE UNIQUE INDEX objects_version ON objects (version)",
        """
        CREATE TABLE tombstones (
            version INTEGER PRIMARY KEY,     -- resourceVersion of the deletion
            kind TEXT NOT NULL,
            content TEXT NOT NULL            -- the manifest as it was last
        )
        """,
        "CREATE INDEX tombstones_kind ON tombstones (kind, version)",
        """
        CREATE TABLE counter (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            version INTEGER NOT NULL,        -- the newest resourceVersion
            forgotten INTEGER NOT NULL       -- tombstones up to this resourceVersion are gone
        )
        """,
        "INSERT INTO counter VALUES (1, 0, 0)",
    ),
    (
        # A manual copy is the same store; a store from `restore`, and a new file at the same path, are different ones.
        "CREATE TABLE identity (id INTEGER PRIMARY KEY CHECK (id = 1), value TEXT NOT NULL)",
        "INSERT INTO identity VALUES (1, lower(hex(randomblob(16))))",
    ),
)


@dataclass(frozen=True)
class Schema:
    """A type of SQLite file."""

    noun: str
    """Its name in messages, such as "the store is damaged"."""
    application_id: int
    """``PRAGMA application_id`` of such files."""
    steps: tuple[tuple[str, ...], ...]
    damaged: str
    """What to do if it is damaged; ``{name}`` stands for its file name."""
    full: str
    """A sentence about what still works if the disk is full."""


STORE_SCHEMA = Schema(
    "store",
    APPLICATION_ID,
    STORE_STEPS,
    "Stop devalloc, and run `devalloc restore` with the last backup of `devalloc backup`; it keeps {name} for "
    "inspection",
    "Objects can still be deleted, but not created or made larger.",
)


def migrate(connection: sqlite3.Connection, schema: Schema) -> None:
    """Update the schema. The caller has checked that it is not newer."""
    try:
        while True:
            connection.execute("BEGIN IMMEDIATE")
            # Read it before each step: another process may have run this or later steps while we had no lock.
            (done,) = connection.execute("PRAGMA user_version").fetchone()
            if done >= len(schema.steps):
                connection.execute("COMMIT")
                return
            for statement in schema.steps[done]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {done + 1}")
            connection.execute(f"PRAGMA application_id = {schema.application_id}")
            connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
