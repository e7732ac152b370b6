"""Who changed what on this host, when, and for which claim: one JSON object a line, in a file of its own (T17)."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from devalloc_node.step import Value

LOGGER = logging.getLogger("devalloc.audit")
"""Its records are JSON objects, ``{"event": …}``, level INFO. The time is the handler's."""


def audit(event: str, **fields: Value) -> None:
    """``event``: ``step``, ``undo``, ``left`` (as somebody else has made it), ``stuck``, ``withheld``, ``offered``,
    ``prepared``, ``unprepared``, ``failed``, ``machine``."""
    if LOGGER.isEnabledFor(logging.INFO):
        said = {name: value for name, value in fields.items() if value not in (None, "")}
        LOGGER.info(json.dumps({"event": event, **said}, sort_keys=False, separators=(",", ":"), default=str))


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """While inside, append the records to a file (0600), one JSON object a line with its time.

    It may be rotated by renaming it. Raises OSError.
    """
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    handler = logging.handlers.WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_Lines())
    before = LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False  # it is no part of what the plugin says to people
    try:
        yield
    finally:
        LOGGER.setLevel(before[0])
        LOGGER.propagate = before[1]
        LOGGER.removeHandler(handler)
        handler.close()


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return f'{{"time":"{time}",{record.getMessage().removeprefix("{")}'
