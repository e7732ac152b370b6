"""Log lines for programs: one JSON object each."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """``time`` (RFC 3339), ``level``, ``logger``, ``message``, the fields of ``extra``, and ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def is_json() -> bool:
    """Whether this process logs JSON (``--log-format json``)."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)


def json_line(level: int, message: str) -> str:
    """A line that is printed at every log level."""
    return JsonFormatter().format(logging.LogRecord("devalloc", level, "", 0, message, None, None))
