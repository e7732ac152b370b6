"""The schema of the journal, and what may be changed about it.

Compatibility policy
--------------------
* ``PRAGMA user_version`` counts the schema steps below. A step, once released, is never edited; a change is a new
  step at the end, which runs when a newer plugin opens the file, in a transaction of its own.
* A plugin reads what every earlier release wrote, and refuses what a newer one wrote (the file is left as it is):
  going back means unpreparing everything first, or restoring the backup taken before the upgrade.
* JSON inside rows (grants, prepared answers, values of steps, records) only gains members. A reader ignores members
  that it does not know and has a default for each that is missing. A change of the meaning of one is a schema step.
* Names of kinds of steps keep their meaning for ever: an upgraded plugin undoes what its predecessor did.
* What cannot be read as this schema says is never guessed: the file is moved aside and a new one begun.
"""

from __future__ import annotations

import json
import sqlite3

from devalloc.store.database import Schema

CLAIM = "uid, namespace, name, kind, state, granted, prepared, created, changed"
STEP = "id, owner, device, kind, target, was, becomes, state, problem"
"""Columns, in the order in which rows are read."""


def inconsistencies(sql: sqlite3.Connection) -> list[str]:
    """Tables that are not there, rows that cannot be read or speak of claims that are not there."""
    try:
        for columns, table in (
            (CLAIM, "claims"),
            (STEP, "steps"),
            ("key, uid, device", "holdings"),
            ("key, device, reason, since", "withheld"),
            ("name, value", "settings"),
        ):
            sql.execute(f"SELECT {columns} FROM {table} LIMIT 0")
        return _unreadable_rows(sql)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return [str(error)]


def _unreadable_rows(sql: sqlite3.Connection) -> list[str]:
    findings = []
    columns = (("claims", "uid", "granted"), ("claims", "uid", "coalesce(prepared, '{}')"), ("steps", "id", "was"))
    for table, key, column in (*columns, ("steps", "id", "becomes"), ("records", "room || '/' || name", "content")):
        for name, text in sql.execute(f"SELECT {key}, {column} FROM {table}"):
            try:
                value = json.loads(text)
            except (ValueError, TypeError):
                findings.append(f"{table} {name}: {column} is not JSON")
                continue
            if table != "steps" and not isinstance(value, dict):
                findings.append(f"{table} {name}: {column} is not an object")
    for what, query in (
        ("a holding of", "SELECT uid FROM holdings WHERE uid NOT IN (SELECT uid FROM claims)"),
        ("a step of", "SELECT owner FROM steps WHERE owner NOT LIKE '%/%' AND owner NOT IN (SELECT uid FROM claims)"),
        ("no answer of the prepared", "SELECT uid FROM claims WHERE state = 'prepared' AND prepared IS NULL"),
    ):
        findings += [f"{what} claim {uid}, which is unknown" for (uid,) in sql.execute(query)]
    return findings


APPLICATION_ID = 0x64_76_6E_6A
"""``PRAGMA application_id`` of journals: "dvnj"."""

SCHEMA = Schema(
    noun="journal",
    application_id=APPLICATION_ID,
    damaged="The node plugin moves it aside at its next start",
    full="Claims can still be unprepared and machines stopped, but nothing can be prepared, started or changed.",
    steps=(
        (
            """
            CREATE TABLE claims (
                uid TEXT PRIMARY KEY CHECK (uid NOT LIKE '%/%'),  -- names with a slash are shared
                namespace TEXT NOT NULL,
                name TEXT NOT NULL,
                kind TEXT NOT NULL,              -- DeviceClaim, ResourceClaim
                state TEXT NOT NULL CHECK (state IN ('preparing', 'prepared', 'unpreparing')),
                granted TEXT NOT NULL,           -- JSON
                prepared TEXT,                   -- JSON
                created TEXT NOT NULL,
                changed TEXT NOT NULL
            ) WITHOUT ROWID
            """,
            # The primary key is the last line of defence against two owners.
            """
            CREATE TABLE holdings (
                key TEXT PRIMARY KEY,
                uid TEXT NOT NULL,               -- of a claim
                device TEXT NOT NULL             -- pool/device
            ) WITHOUT ROWID
            """,
            "CREATE INDEX holdings_uid ON holdings (uid)",
            # AUTOINCREMENT: an id is not used again, so the order of ids is the order of beginning.
            """
            CREATE TABLE steps (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                owner TEXT NOT NULL,             -- uid of a claim, a shared name, withheld/<device>
                device TEXT NOT NULL,            -- pool/device, or empty
                kind TEXT NOT NULL,
                target TEXT NOT NULL,
                was TEXT NOT NULL,               -- JSON: the value before
                becomes TEXT NOT NULL,           -- JSON: the value after
                state TEXT NOT NULL CHECK (state IN ('intent', 'done', 'stuck')),
                problem TEXT NOT NULL DEFAULT ''
            )
            """,
            "CREATE INDEX steps_owner ON steps (owner, id)",
            "CREATE INDEX steps_target ON steps (target, kind)",
            """
            CREATE TABLE withheld (
                key TEXT PRIMARY KEY,
                device TEXT NOT NULL,
                reason TEXT NOT NULL,
                since TEXT NOT NULL
            ) WITHOUT ROWID
            """,
            """
            CREATE TABLE records (
                room TEXT NOT NULL,
                name TEXT NOT NULL,
                content TEXT NOT NULL,           -- JSON
                PRIMARY KEY (room, name)
            ) WITHOUT ROWID
            """,
            "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        ),
    ),
)
