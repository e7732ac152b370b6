"""How text and tables fit on a terminal: lines end between words, and a table that is too wide loses its least
important columns before a cell becomes a column of syllables."""

from __future__ import annotations

import re
from collections.abc import Sequence

GAP = "   "
MAX_UNBROKEN_WORD = 24
"""Words up to this length are not broken."""
MAX_NAME = 40
"""Names in the first column are not broken up to this length."""
_TALL = 2
"""Lines of a row from which on it is too tall, if the table has a column that others can do without."""
_NICE = ("PUBLISHED AS", "OBSERVED", "APPLIED", "NUMA", "DRIVER")
"""Columns that go where rows would be tall, the first one first."""
_EXPENDABLE = (*_NICE, "PERMITTED", "CLAIMS", "TYPE", "GROUP", "PRIORITY", "EXCLUDED", "CPUS", "CARDS", "AGE")
"""Columns that go where the table would be wider than the terminal."""
_SHORTENED = 20
"""Characters of a name that remain where lines are cut off."""
_LEAST_OF_LAST = 30
"""Characters of a sentence that are worth a column."""
_BREAKS = re.compile(r"(?<=/)")
"""Where a long word is broken, if it is."""


def wrap(text: str, width: int) -> list[str]:
    """A cell in lines of at most ``width`` characters, broken between words; longer words after a / or anywhere."""
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if len(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for part in _BREAKS.split(word) if len(word) > width else [word]:
            if len(lines[-1]) + len(part) > width and lines[-1]:
                lines.append("")
            while len(part) > width:
                lines[-1] = part[:width]
                lines.append("")
                part = part[width:]
            lines[-1] += part
    return lines


def wrap_sentence(text: str, width: int, hang: int = 0) -> list[str]:
    """A line of prose, broken only between words, because longer ones can be paths and addresses to copy. ``hang``: how
    far the lines after the first one are indented."""
    if len(text) <= width:
        return [text]
    indent = " " * (hang if hang + MAX_UNBROKEN_WORD < width else 0)
    start = len(text) - len(text.lstrip(" "))
    lines = [text[:start]]
    for i, word in enumerate(text[start:].split(" ")):
        if i and len(lines[-1]) + 1 + len(word) > width:
            lines.append(indent + word)
        else:
            lines[-1] += f" {word}" if i else word
    return lines


def fit_columns(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, keep_all: bool = False
) -> tuple[list[int], list[int]]:
    """Which columns of a table are shown on a terminal of ``width`` characters, and how wide they are.

    Columns without content go first, then those that others can do without. If even the others are too wide together,
    they keep the widths that they need at least, and the terminal breaks the lines. ``keep_all``: nothing goes; a table
    that does not fit has its full width.
    """
    shown = list(range(len(headers)))
    if keep_all:
        return shown, _widths(headers, rows, shown, width) or [_natural(headers, rows, i) for i in shown]
    while True:
        widths = _widths(headers, rows, shown, width)
        is_wide = widths is None
        if widths is not None and _tallest(rows, shown, widths) <= _TALL:
            return shown, widths
        victim = _victim(headers, rows, shown, _EXPENDABLE if is_wide else _NICE)
        if victim is None:
            return shown, widths or [_least(headers, rows, i, is_first=i == shown[0]) for i in shown]
        shown.remove(victim)


def fit_lines(headers: Sequence[str], widths: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Which columns are shown, and how wide they are, if each row is one line that is cut off at ``width``. Long cells
    are shortened before a column goes; the last column, which may be a sentence, goes if little of it would be left."""
    shown = list(range(len(headers)))
    while True:
        sizes = [widths[i] for i in shown]
        last = min(sizes[-1], _LEAST_OF_LAST)
        room = width - 2 * (len(shown) - 1) - last
        while sum(sizes[:-1]) > room and max(sizes[:-1], default=0) > _SHORTENED:
            sizes[sizes.index(max(sizes[:-1]))] -= 1
        if sum(sizes[:-1]) <= room or len(shown) == 1:
            return shown, sizes
        shown.remove(next((i for name in _EXPENDABLE for i in shown[1:] if headers[i] == name), shown[-1]))


def _victim(
    headers: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int], order: Sequence[str]
) -> int | None:
    """The column that is left out next; None: all are needed."""
    if len(shown) < 2:
        return None
    rest = [i for i in shown[1:] if rows]
    empty = next((i for i in rest if all(row[i] in ("", "-") for row in rows)), None)
    if empty is not None:
        return empty
    return next((i for name in order for i in rest if headers[i] == name), None)


def _natural(headers: Sequence[str], rows: Sequence[Sequence[str]], i: int) -> int:
    return max(len(headers[i]), *(len(row[i]) for row in rows), 1) if rows else len(headers[i])


def _least(headers: Sequence[str], rows: Sequence[Sequence[str]], i: int, *, is_first: bool) -> int:
    """The width at which no short word is broken."""
    longest = max((len(word) for row in rows for word in row[i].split(" ")), default=0)
    head = max(map(len, headers[i].split(" ")))
    return max(head, min(longest, MAX_NAME if is_first else MAX_UNBROKEN_WORD))


def _widths(
    headers: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int], width: int
) -> list[int] | None:
    """The widths of these columns; None if they do not fit."""
    room = width - len(GAP) * (len(shown) - 1)
    widths = [_natural(headers, rows, i) for i in shown]
    least = [_least(headers, rows, i, is_first=i == shown[0]) for i in shown]
    if sum(least) > room:
        return None
    while sum(widths) > room:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return widths


def _tallest(rows: Sequence[Sequence[str]], shown: Sequence[int], widths: Sequence[int]) -> int:
    cells = ((row[i], size) for row in rows for i, size in zip(shown, widths, strict=True) if len(row[i]) > size)
    return max((len(wrap(text, size)) for text, size in cells), default=1)
