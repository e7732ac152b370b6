"""What somebody most likely meant who wrote a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_ALIKE = str.maketrans({"-": None, "_": None, "o": "0", "l": "1"})
LONGEST = 100
"""Characters of a word that are compared: a longer one is no slip of the pen."""


def nearest(word: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """The known word that is nearest to ``word``, or None when none is near.

    Case, ``-`` and ``_`` do not count, and o is as good as 0, l as 1. ``alike`` is how much of two words must be the
    same, from 0 to 1. Of several near ones the one with the fewest slips is told, then one as long as the word, then
    the first in order.
    """
    wanted = _folded(word[:LONGEST])
    by_folded = {_folded(name): name for name in sorted(known, reverse=True)}
    matches = get_close_matches(wanted, sorted(by_folded), n=5, cutoff=alike)
    best = min(matches, key=lambda m: (_slips(wanted, m), abs(len(m) - len(wanted)), m), default=None)
    return None if best is None else by_folded[best]


def _folded(word: str) -> str:
    return word.lower().translate(_ALIKE)


def _slips(one: str, other: str) -> int:
    """How many characters were left out, put in, changed, or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, one[i - 2]) == (other[j - 2], b):
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]
