"""The store as a file, read with nothing of the project's."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def machine_statuses(store: Path) -> dict[str, dict[str, Any]]:
    """Of all machines, by name; empty where one has none."""
    return statuses(store, "VirtualMachine")


def statuses(store: Path, kind: str) -> dict[str, dict[str, Any]]:
    """Of all objects of a kind, by name; empty where one has none."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=30)) as connection:
        rows = connection.execute("SELECT name, content FROM objects WHERE kind = ?", (kind,)).fetchall()
    return {name: json.loads(content).get("status") or {} for name, content in rows}
