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

from devalloc.store.database import Schema

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
