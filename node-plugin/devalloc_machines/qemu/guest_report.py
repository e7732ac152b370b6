"""What a guest reports about itself: lines of JSON on its second serial port, each at most ``MAX_LINE`` bytes.

``{"status": "ready", "message": "...", "metrics": {"queue_length": 3}}``; each member is optional, but one must be
there. A guest is a stranger: everything that it says is bounded here, and a line that breaks a rule is passed over.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal, NoReturn, get_args

GuestStatus = Literal["ready", "not-ready", "finished"]
"""``finished``: it is to be powered down."""

_STATUSES: Mapping[str, GuestStatus] = {name: name for name in get_args(GuestStatus)}

MAX_LINE = 4096
"""Bytes of a line, without its end."""
MAX_METRICS = 32
MAX_MESSAGE = 256
"""Characters."""
MAX_NAMES, NAME_SECONDS = 64, 3600.0
"""Different names of metrics that a machine may use in so many seconds: each is a time series that others store."""
_METRIC_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,62}", re.ASCII)
_NO_METRICS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class GuestReport:
    """What the lines of one run of a machine say together."""

    status: GuestStatus | None = None
    """None: it has not said one."""
    message: str = ""
    """Of the line with the status."""
    metrics: Mapping[str, float] = field(default_factory=lambda: _NO_METRICS)
    """Of the last line with metrics."""


NOTHING_REPORTED = GuestReport()


class BadLine(ValueError):
    """A line that is not a report."""


def updated_report(before: GuestReport, line: bytes) -> GuestReport:
    """The report after one more line. A guest that has finished stays so. Raises BadLine."""
    content = _parsed(line)
    report = before
    if "status" in content:
        name, message = content["status"], content.get("message", "")
        status = _STATUSES.get(name) if isinstance(name, str) else None
        if status is None:
            raise BadLine(f"status must be one of {', '.join(_STATUSES)}")
        if not isinstance(message, str):
            raise BadLine("message must be a text")
        if before.status != "finished":
            report = replace(report, status=status, message=_one_line(message))
    if "metrics" in content:
        report = replace(report, metrics=_metrics(content["metrics"]))
    if "status" not in content and "metrics" not in content:
        raise BadLine("neither status nor metrics")
    return report


class MetricNames:
    """The names of metrics that a machine used lately, in all its runs."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}

    def check(self, names: Collection[str], now: float) -> None:
        """Note that it uses these. Raises BadLine if they are too many, with those before."""
        used = {name: at for name, at in self._used.items() if now - at < NAME_SECONDS}
        used |= dict.fromkeys(names, now)
        if len(used) > MAX_NAMES:
            raise BadLine(f"more than {MAX_NAMES} different metrics in {NAME_SECONDS / 3600:.0f} h")
        self._used = used

    def is_empty(self, now: float) -> bool:
        """Whether it used none lately."""
        return all(now - at >= NAME_SECONDS for at in self._used.values())


def _parsed(line: bytes) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        raise BadLine(f"longer than {MAX_LINE} bytes")
    try:
        content = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadLine("not JSON") from error
    if not isinstance(content, dict):
        raise BadLine("not an object")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _metrics(content: object) -> Mapping[str, float]:
    if not isinstance(content, dict) or len(content) > MAX_METRICS:
        raise BadLine(f"metrics must be an object with at most {MAX_METRICS} numbers")
    metrics = {}
    for name, value in content.items():
        if _METRIC_NAME.fullmatch(name) is None:
            raise BadLine("the name of a metric must be letters, digits and _, at most 63")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadLine(f"metric {name} must be a number")
        try:
            number = float(value)
        except OverflowError as error:
            raise BadLine(f"metric {name} is too large") from error
        if not math.isfinite(number):
            raise BadLine(f"metric {name} must be finite")
        metrics[name] = number
    return MappingProxyType(metrics)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:MAX_MESSAGE]).strip()


class LineBuffer:
    """Bytes of a port to lines, with memory for one line: the rest of a longer one is passed over."""

    def __init__(self) -> None:
        self._begun = bytearray()
        self._is_too_long = False
        self.dropped = 0
        """Lines that were too long."""

    def lines(self, received: bytes) -> Iterator[bytes]:
        """The lines that end within ``received``, without empty ones. All of them must be taken."""
        *ends, rest = received.split(b"\n")
        for end in ends:
            self._add(end)
            line, is_too_long = bytes(self._begun).strip(), self._is_too_long
            self._begun.clear()
            self._is_too_long = False
            if line and not is_too_long:
                yield line
        self._add(rest)

    def _add(self, part: bytes) -> None:
        if not self._is_too_long and len(self._begun) + len(part) > MAX_LINE + 1:  # with the CR that a terminal adds
            self._is_too_long = True
            self.dropped += 1
            self._begun.clear()
        if not self._is_too_long:
            self._begun += part
