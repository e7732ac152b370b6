"""The audit log: who changed what on this host, when and for which claim, as one JSON object per line (T17)."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path

from devalloc_node.model.step import Value

log = logging.getLogger(__name__)

LOGGER = logging.getLogger("devalloc.audit")
"""Its records are JSON objects, ``{"event": …}``, level INFO. The time is the handler's."""


def audit(event: str, **fields: Value) -> None:
    """``event``: ``step``, ``undo``, ``left`` (as others have set it), ``stuck``, ``withheld``, ``offered``,
    ``prepared``, ``unprepared``, ``failed``, ``machine``."""
    if LOGGER.isEnabledFor(logging.INFO):
        present = {name: value for name, value in fields.items() if value not in (None, "")}
        LOGGER.info(json.dumps({"event": event, **present}, sort_keys=False, separators=(",", ":"), default=str))


@contextmanager
def to_file(path: Path) -> Iterator[None]:
    """While inside, append the records to a file (0600), one JSON object a line with its time.

    It may be rotated by renaming it. What cannot be written later is no reason to let anything else fail: that is said
    once in the plugin's own log. Raises OSError if it cannot be begun.
    """
    handler = _AuditFile(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(_JsonFormatter())
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
        with suppress(OSError):  # said before
            handler.close()


class _AuditFile(logging.handlers.WatchedFileHandler):
    _failed = _has_warned = False

    def _open(self) -> TextIOWrapper:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=opener)

    def emit(self, record: logging.LogRecord) -> None:
        self._failed = False
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)
        self._has_warned = self._failed

    def handleError(self, record: logging.LogRecord) -> None:
        """Called where an error is being handled."""
        self._failed = True
        if not self._has_warned:
            log.warning("cannot write the audit log %s: %s", self.baseFilename, sys.exc_info()[1])


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return f'{{"time":"{time}",{record.getMessage().removeprefix("{")}'
