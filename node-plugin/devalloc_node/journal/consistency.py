"""Check the rows of a journal for consistency."""

from __future__ import annotations

import json
import sqlite3

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
