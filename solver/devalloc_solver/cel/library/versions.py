"""Semantic versions: ``device.attributes["d"].driverVersion.isGreaterThan(semver("550.0.0"))``.

Equality and order are by precedence, which leaves build metadata aside.
"""

from __future__ import annotations

from devalloc.api.semver import Precedence, SemVer, SemVerError
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.registry import BOOL, STRING, Overload
from devalloc_solver.cel.values import CHARACTERS_PER_UNIT, PARSING_COST, UINT_MAX, Frame, precedence


def parse(text: str) -> SemVer:
    """Read a version strictly. Raises EvaluationError."""
    try:
        version = SemVer.parse(text)
    except SemVerError as error:
        raise EvaluationError(f"version {error}") from None
    major, minor, patch, _released, suffix = version.precedence
    if max(major, minor, patch, *(number for _kind, number, _text in suffix)) > UINT_MAX:
        raise EvaluationError(f"{text[:60]!r} is not a semantic version: a number is too large")
    return version


def normalized(text: str) -> str:
    """The version that ``text`` means loosely: without a leading v, leading zeros, or missing parts.

    Raises EvaluationError for a short version with a suffix.
    """
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped[:1].isascii() and stripped[:1].isdigit() else "0" + stripped
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        raise EvaluationError("a short version cannot have a pre-release or build part")
    return ".".join(parts + ["0"] * (3 - len(parts)))


def _semver(frame: Frame, text: str, normalize: bool = False) -> SemVer:
    frame.spend(PARSING_COST + len(text) // CHARACTERS_PER_UNIT)
    return parse(normalized(text) if normalize else text)


def _is_semver(frame: Frame, text: str, normalize: bool = False) -> bool:
    try:
        _semver(frame, text, normalize)
    except EvaluationError:
        return False
    return True


def _compare(frame: Frame, left: SemVer, right: SemVer) -> int:
    first, second = _order(frame, left), _order(frame, right)
    return (first > second) - (first < second)


def _int(number: int) -> int:
    """A part of a version as ``int``. Raises EvaluationError beyond 64 bits."""
    if number >= 2**63:
        raise EvaluationError("a part of the version is too large")
    return number


def _order(frame: Frame, version: SemVer) -> Precedence:
    frame.pass_over(len(version.text))
    return precedence(version)


FUNCTIONS: tuple[Overload, ...] = (
    ("semver", (STRING,), _semver),
    ("semver", (STRING, BOOL), _semver),
    ("isSemver", (STRING,), _is_semver),
    ("isSemver", (STRING, BOOL), _is_semver),
    ("isGreaterThan", (SemVer, SemVer), lambda frame, left, right: _compare(frame, left, right) > 0),
    ("isLessThan", (SemVer, SemVer), lambda frame, left, right: _compare(frame, left, right) < 0),
    ("compareTo", (SemVer, SemVer), _compare),
    ("major", (SemVer,), lambda frame, version: _int(_order(frame, version)[0])),
    ("minor", (SemVer,), lambda frame, version: _int(_order(frame, version)[1])),
    ("patch", (SemVer,), lambda frame, version: _int(_order(frame, version)[2])),
)
