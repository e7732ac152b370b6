"""Points in time and spans of time, with nanoseconds."""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.library.operators import quotient
from devalloc_solver.cel.registry import INT, STRING, Implementation, Overload
from devalloc_solver.cel.values import CHARACTERS_PER_UNIT, PARSING_COST, Frame

SECOND = 10**9
_EARLIEST = -62135596800 * SECOND
_LATEST = 253402300799 * SECOND + SECOND - 1
_LONGEST = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of ``nanoseconds``; it fits 64 bits."""

    type_name: ClassVar[str] = "google.protobuf.Duration"
    ordered: ClassVar[bool] = True
    nanoseconds: int

    def __post_init__(self) -> None:
        if abs(self.nanoseconds) > _LONGEST:
            raise EvaluationError("duration out of range")

    @classmethod
    def total(cls, spans: Iterable[Duration]) -> Duration:
        return cls(sum(span.nanoseconds for span in spans))

    def __str__(self) -> str:
        whole, rest = divmod(abs(self.nanoseconds), SECOND)
        fraction = f".{rest:09d}".rstrip("0") if rest else ""
        return f"{'-' if self.nanoseconds < 0 else ''}{whole}{fraction}s"


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A point in time, in ``nanoseconds`` since 1970, within the years 1 to 9999.

    ``offset`` is that of the text it was read from, in seconds; it only shows when the moment becomes text again.
    """

    type_name: ClassVar[str] = "google.protobuf.Timestamp"
    ordered: ClassVar[bool] = True
    nanoseconds: int
    offset: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if not _EARLIEST <= self.nanoseconds <= _LATEST:
            raise EvaluationError("timestamp out of range")

    def __str__(self) -> str:
        seconds, rest = divmod(self.nanoseconds, SECOND)
        shown = seconds + self.offset
        if not _EARLIEST <= shown * SECOND <= _LATEST:
            raise EvaluationError("timestamp out of range")
        moment = datetime(1970, 1, 1) + timedelta(seconds=shown)
        fraction = f".{rest:09d}".rstrip("0") if rest else ""
        zone = "Z"
        if self.offset:
            hours, minutes = divmod(abs(self.offset) // 60, 60)
            zone = f"{'-' if self.offset < 0 else '+'}{hours:02d}:{minutes:02d}"
        return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}{fraction}{zone}"

    def moved(self, nanoseconds: int) -> Timestamp:
        """The moment that much later."""
        return Timestamp(self.nanoseconds + nanoseconds, self.offset)

    def local(self, zone: str | None) -> datetime:
        """The moment in a time zone: a name, an offset such as ``+02:00``, or None for UTC."""
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.nanoseconds // 1000)
        if zone is None or zone in ("", "UTC"):
            return moment
        try:
            offset = _OFFSET.fullmatch(zone)
            return moment.astimezone(ZoneInfo(zone)) if offset is None else moment + _span(*offset.groups())
        except (KeyError, ValueError, OverflowError, OSError):
            raise EvaluationError(f"no such time zone: {zone[:60]!r}") from None


_OFFSET = re.compile(r"([+-]?)(\d{1,3}):(\d{1,3})", re.ASCII)


def _span(sign: str, hours: str, minutes: str) -> timedelta:
    span = timedelta(hours=int(hours), minutes=int(minutes))
    return -span if sign == "-" else span


_UNITS = {
    "ns": 1,
    "us": 10**3,
    "\u00b5s": 10**3,
    "\u03bcs": 10**3,
    "ms": 10**6,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)", re.ASCII)


def parse_duration(text: str) -> Duration:
    """Read ``1h30m``, ``-1.5s``, ``0``. Raises EvaluationError."""
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return Duration(0)
    total, position = 0, 0
    while position < len(rest) and (match := _PART.match(rest, position)):
        if len(match[1]) > 40:
            break
        total += int(Decimal(match[1]) * _UNITS[match[2]])
        position = match.end()
    if not rest or position != len(rest):
        raise EvaluationError(f"invalid duration {text[:60]!r}")
    return Duration(sign * total)


_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d?):(\d\d):(\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)


def parse_timestamp(text: str) -> Timestamp:
    """Read a timestamp of RFC 3339. Raises EvaluationError."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise EvaluationError(f"invalid timestamp {text[:60]!r}")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, sign, hours, minutes = match.groups()[6:]
    try:
        moment = datetime(year, month, day, hour, minute, second)
    except ValueError:
        raise EvaluationError(f"invalid timestamp {text[:60]!r}") from None
    offset = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if sign else 0
    nanoseconds = int(((fraction or "") + "0" * 9)[:9])
    return Timestamp((timegm(moment.timetuple()) - offset) * SECOND + nanoseconds, offset)


# -- functions --------------------------------------------------------------------------------------------------------


def _spans(sign: int) -> Implementation:
    return lambda _, left, right: Duration(left.nanoseconds + sign * right.nanoseconds)


def _moved(sign: int) -> Implementation:
    return lambda _, moment, span: moment.moved(sign * span.nanoseconds)


def _local(frame: Frame, moment: Timestamp, zone: str) -> datetime:
    frame.spend(4 * PARSING_COST)  # reads the zone's file when it is not kept
    return moment.local(zone)


def _date_part(name: str, part: Callable[[Any], int]) -> tuple[Overload, Overload]:
    return (
        (name, (Timestamp,), lambda _, moment: part(moment.local(None))),
        (name, (Timestamp, STRING), lambda frame, moment, zone: part(_local(frame, moment, zone))),
    )


def _text_to_duration(frame: Frame, text: str) -> Duration:
    frame.spend(PARSING_COST + len(text))
    return parse_duration(text)


def _text_to_timestamp(frame: Frame, text: str) -> Timestamp:
    frame.spend(PARSING_COST + len(text) // CHARACTERS_PER_UNIT)
    return parse_timestamp(text)


FUNCTIONS: tuple[Overload, ...] = (
    ("_+_", (Duration, Duration), _spans(1)),
    ("_+_", (Timestamp, Duration), _moved(1)),
    ("_+_", (Duration, Timestamp), lambda _, span, moment: moment.moved(span.nanoseconds)),
    ("_-_", (Duration, Duration), _spans(-1)),
    ("_-_", (Timestamp, Duration), _moved(-1)),
    ("_-_", (Timestamp, Timestamp), lambda _, left, right: Duration(left.nanoseconds - right.nanoseconds)),
    ("-_", (Duration,), lambda _, span: Duration(-span.nanoseconds)),
    ("getHours", (Duration,), lambda _, span: quotient(span.nanoseconds, 3600 * SECOND)),
    ("getMinutes", (Duration,), lambda _, span: quotient(span.nanoseconds, 60 * SECOND)),
    ("getSeconds", (Duration,), lambda _, span: quotient(span.nanoseconds, SECOND)),
    ("getMilliseconds", (Duration,), lambda _, span: quotient(span.nanoseconds, 10**6)),
    ("int", (Timestamp,), lambda _, moment: moment.nanoseconds // SECOND),
    ("int", (Duration,), lambda _, span: span.nanoseconds),
    ("duration", (Duration,), lambda _, span: span),
    ("duration", (INT,), lambda _, value: Duration(value)),
    ("duration", (STRING,), _text_to_duration),
    ("timestamp", (Timestamp,), lambda _, moment: moment),
    ("timestamp", (INT,), lambda _, seconds: Timestamp(seconds * SECOND)),
    ("timestamp", (STRING,), _text_to_timestamp),
    *_date_part("getFullYear", lambda moment: moment.year),
    *_date_part("getMonth", lambda moment: moment.month - 1),
    *_date_part("getDate", lambda moment: moment.day),
    *_date_part("getDayOfMonth", lambda moment: moment.day - 1),
    *_date_part("getDayOfWeek", lambda moment: moment.isoweekday() % 7),
    *_date_part("getDayOfYear", lambda moment: moment.timetuple().tm_yday - 1),
    *_date_part("getHours", lambda moment: moment.hour),
    *_date_part("getMinutes", lambda moment: moment.minute),
    *_date_part("getSeconds", lambda moment: moment.second),
    *_date_part("getMilliseconds", lambda moment: moment.microsecond // 1000),
    *(("string", (kind,), lambda _, value: str(value)) for kind in (Duration, Timestamp)),
)
