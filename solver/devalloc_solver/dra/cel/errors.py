"""What can go wrong with a selector: it does not compile, or a device cannot be judged by it."""

from __future__ import annotations


class CompileError(ValueError):
    """The expression is invalid: too long, does not parse, names something undeclared, or can never be a boolean.

    ``message`` is for the person who wrote it; ``line`` and ``column`` are 1-based.
    """

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column


class EvaluationError(Exception):
    """The expression has no answer for this device: a missing key, types that do not go together, an overflow."""


class ExhaustedError(EvaluationError):
    """The evaluation costs more than it may. Most likely it does for every other device too."""


class CostExceeded(Exception):
    """The evaluation has used up its cost. No operator of the language can absorb it."""
