"""Problem: an error or warning about the input, for its author; and "did you mean", the known word closest to one
that is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from typing import Any, Generic, Literal, TypeVar

_SIMILAR_CHARACTERS = str.maketrans({"-": None, "_": None, "o": "0", "l": "1"})
MAX_WORD = 100
"""Maximum characters of a word to compare: a longer one is not a misspelling."""


def closest_match(word: str, candidates: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The known word that is most similar to ``word``, or None if none is similar.

    Case, ``-`` and ``_`` do not count; o equals 0, and l equals 1. ``alike``: the required similarity, from 0 to 1.
    Among several candidates, it returns the one with the fewest edits, then one of the same length, then the first in
    order.
    """
    wanted = normalized(word[:MAX_WORD])
    by_folded = {normalized(name): name for name in sorted(candidates, reverse=True)}
    matches = get_close_matches(wanted, sorted(by_folded), n=5, cutoff=alike)
    best = min(matches, key=lambda m: (_edit_distance(wanted, m), abs(len(m) - len(wanted)), m), default=None)
    return None if best is None else by_folded[best]


def normalized(word: str) -> str:
    """Make one text of all that differ in case or in characters that look alike."""
    return word.lower().translate(_SIMILAR_CHARACTERS)


def _edit_distance(one: str, other: str) -> int:
    """The number of characters that were omitted, inserted, changed, or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, one[i - 2]) == (other[j - 2], b):
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]


Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and what to do.

    If there is a path, ``message`` completes the sentence "<path> ...". ``source`` names the document, such as
    "fleet.yaml, document 2". An error means that the object was left out, a warning that it was used anyway.
    """

    message: str
    path: str = ""
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    source: str | None = None
    severity: Severity = "error"
    group: str | None = None
    """The API group of the object, if objects of several groups could have its kind and name."""
    cause: Mapping[str, Any] | None = field(default=None, compare=False)
    """What the message says, as data (``findings.Fact``), if it names other objects."""

    @property
    def is_error(self) -> bool:
        return self.severity == "error"

    @property
    def subject(self) -> str:
        """The object, as "DeviceClaim team-a/train"; empty if the problem has none."""
        name = "/".join(part for part in (self.namespace, self.name) if part)
        return " ".join(part for part in (self.kind, name) if part)

    @property
    def text(self) -> str:
        """Location and message, without the severity."""
        return ": ".join([*(part for part in (self.source, self.subject, self.path) if part), self.message])

    def __str__(self) -> str:
        return ("warning: " if self.severity == "warning" else "") + self.text

    def to_dict(self) -> dict[str, Any]:
        """JSON content, without unset fields."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Only the problems because of which an object was left out."""
    return [problem for problem in problems if problem.is_error]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """What was read, or None with at least one error among the problems; warnings may come with either."""

    value: T | None
    problems: list[Problem]
