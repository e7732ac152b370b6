"""Semantic versions (semver.org 2.0.0): kept as written, ordered by precedence.

Two equalities exist on purpose (claim-semantics S3, S6): attributes are equal when their texts are (``==`` of
this class),
while expressions compare by precedence, which leaves build metadata aside (``precedence``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = r"(0|[1-9][0-9]*)"
_IDENTIFIER = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
PATTERN = (
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
)
_SEMVER = re.compile(PATTERN, re.ASCII)
MAX_LENGTH = 256

Precedence = tuple[int, int, int, int, tuple[tuple[int, int, str], ...]]


class SemVerError(ValueError):
    """A text that is not a semantic version."""


@dataclass(frozen=True, slots=True)
class SemVer:
    """A valid semantic version; equal to another when the texts are equal."""

    text: str

    @classmethod
    def parse(cls, text: object) -> SemVer:
        """Parse a version. Raises SemVerError with a message that completes the sentence "<field> ..."."""
        if isinstance(text, SemVer):
            return text
        if not isinstance(text, str):
            raise SemVerError("must be a semantic version in quotes, such as '1.8.2'")
        if len(text) > MAX_LENGTH or _SEMVER.fullmatch(text) is None:
            raise SemVerError(
                f"is not a semantic version: {text[:60]!r} (write MAJOR.MINOR.PATCH, such as 1.8.2 or 2.0.0-rc.1)"
            )
        return cls(text)

    @property
    def precedence(self) -> Precedence:
        """A sort key for the order of semver.org section 11."""
        match = _SEMVER.fullmatch(self.text)
        assert match is not None
        major, minor, patch, pre, _build = match.groups()
        if pre is None:
            return int(major), int(minor), int(patch), 1, ()
        parts = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in pre.split("."))
        return int(major), int(minor), int(patch), 0, parts

    def __str__(self) -> str:
        return self.text
