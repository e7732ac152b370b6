"""Named formats: ``!format.dns1123Label().validate(name).hasValue()``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import ClassVar

from devalloc_solver.cel.library.urls import is_request
from devalloc_solver.cel.registry import STRING, Overload
from devalloc_solver.cel.values import NOTHING, Frame, OptionalValue


@dataclass(frozen=True, slots=True)
class Format:
    """A format by its name; its ``validate`` tells how a text departs from it."""

    type_name: ClassVar[str] = "kubernetes.NamedFormat"
    name: str


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_OLD_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", re.ASCII)
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_BASE64 = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})", re.ASCII)
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(.\d+)?(z|[+-]\d\d:\d\d)", re.ASCII)


def _pattern_check(pattern: re.Pattern[str], limit: int, what: str) -> Callable[[str], list[str]]:
    def problems(text: str) -> list[str]:
        too_long = [f"must be no more than {limit} bytes"] if len(text.encode()) > limit else []
        return too_long if pattern.fullmatch(text) else [*too_long, f"is not {what}"]

    return problems


def _prefix(problems: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """The start of a name, to which something is appended: it may end with a dash."""
    return lambda text: problems(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return ["is not a name with an optional prefix and a slash"]
    problems = []
    if len(parts) == 2:
        if not parts[0]:
            problems.append("has an empty prefix")
        else:
            problems += [f"the prefix {problem}" for problem in _subdomain(parts[0])]
    name = parts[-1]
    if not name:
        problems.append("has an empty name")
    elif len(name) > 63:
        problems.append("the name must be no more than 63 bytes")
    if not _NAME.fullmatch(name):
        problems.append("the name must consist of letters, digits, '-', '_' and '.'")
    return problems


def _check(what: str, valid: Callable[[str], bool]) -> Callable[[str], list[str]]:
    return lambda text: [] if valid(text) else [f"is not {what}"]


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    try:
        date(year or 4, month, day)  # the year 0, which Python does not know, is a leap year
    except ValueError:
        return False
    return True


def _is_datetime(text: str) -> bool:
    parts = text.lower().split("t")
    if len(parts) < 2 or not _is_date(parts[0]):
        return False
    match = _TIME.fullmatch(parts[1])
    return match is not None and match[1] <= "23" and match[2] <= "59" and match[3] <= "59"


_label = _pattern_check(_LABEL, 63, "a DNS label")
_subdomain = _pattern_check(_SUBDOMAIN, 253, "a DNS subdomain")
_old_label = _pattern_check(_OLD_LABEL, 63, "a DNS label that starts with a letter")

_PROBLEMS: dict[str, Callable[[str], list[str]]] = {
    "dns1123Label": _label,
    "dns1123Subdomain": _subdomain,
    "dns1035Label": _old_label,
    "qualifiedName": _qualified_name,
    "dns1123LabelPrefix": _prefix(_label),
    "dns1123SubdomainPrefix": _prefix(_subdomain),
    "dns1035LabelPrefix": _prefix(_old_label),
    "labelValue": _pattern_check(_LABEL_VALUE, 63, "a label value"),
    "uri": _check("a URI", is_request),
    "uuid": _check("a UUID", lambda text: _UUID.fullmatch(text) is not None),
    "byte": _check("base64", lambda text: _BASE64.fullmatch(text) is not None),
    "date": _check("a date", _is_date),
    "datetime": _check("a date and time", _is_datetime),
}
NAMES = tuple(_PROBLEMS)
_FORMATS = {name: Format(name) for name in NAMES}


def _named(_: Frame, name: str) -> OptionalValue:
    return OptionalValue(True, _FORMATS[name]) if name in _FORMATS else NOTHING


def _validate(frame: Frame, wanted: Format, text: str) -> OptionalValue:
    frame.spend(1 + len(text))
    problems = _PROBLEMS[wanted.name](text)
    return OptionalValue(True, problems) if problems else NOTHING


def _constant(name: str) -> Callable[[Frame], Format]:
    return lambda _: _FORMATS[name]


FUNCTIONS: tuple[Overload, ...] = (
    ("format.named", (STRING,), _named),
    *((f"format.{name}", (), _constant(name)) for name in NAMES),
    ("validate", (Format, STRING), _validate),
)
