"""Where the audit log goes: a file of its own, whatever else is logged (T17).

The records are those of the logger ``devalloc.audit``: one JSON object each, ``{"event": …}``, without the time.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

LOGGER = logging.getLogger("devalloc.audit")


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
