"""Semantic versions: ``device.attributes["d"].driverVersion.isGreaterThan(semver("550.0.0"))``.

Equality and order are by precedence, which leaves build metadata aside.
"""

from __future__ import annotations

from devalloc.api.semver import SemVer, SemVerError
from devalloc_solver.dra.cel.errors import EvaluationError
from devalloc_solver.dra.cel.library.registry import BOOL, STRING, Overload
from devalloc_solver.dra.cel.values import UINT_MAX, Frame, precedence


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
    frame.pass_over(len(text))
    return parse(normalized(text) if normalize else text)


def _is_semver(frame: Frame, text: str, normalize: bool = False) -> bool:
    try:
        _semver(frame, text, normalize)
    except EvaluationError:
        return False
    return True


def _compare(_: Frame, left: SemVer, right: SemVer) -> int:
    first, second = precedence(left), precedence(right)
    return (first > second) - (first < second)


def _int(number: int) -> int:
    """A part of a version as ``int``. Raises EvaluationError beyond 64 bits."""
    if number >= 2**63:
        raise EvaluationError("a part of the version is too large")
    return number


FUNCTIONS: tuple[Overload, ...] = (
    ("semver", (STRING,), _semver),
    ("semver", (STRING, BOOL), _semver),
    ("isSemver", (STRING,), _is_semver),
    ("isSemver", (STRING, BOOL), _is_semver),
    ("isGreaterThan", (SemVer, SemVer), lambda _, left, right: precedence(left) > precedence(right)),
    ("isLessThan", (SemVer, SemVer), lambda _, left, right: precedence(left) < precedence(right)),
    ("compareTo", (SemVer, SemVer), _compare),
    ("major", (SemVer,), lambda _, version: _int(precedence(version)[0])),
    ("minor", (SemVer,), lambda _, version: _int(precedence(version)[1])),
    ("patch", (SemVer,), lambda _, version: _int(precedence(version)[2])),
)
