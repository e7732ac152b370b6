"""Text that cannot act on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, with everything escaped that is not a visible character or a space: control characters,
    line ends, and marks that change the direction of text."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """The text, escaped line by line."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


def one_line(expression: str) -> str:
    """An expression that was written on several lines, as a sentence quotes it: for CEL a line end is a space."""
    return expression if expression.isprintable() else " ".join(filter(None, map(str.strip, expression.split("\n"))))
