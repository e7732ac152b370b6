"""What can go wrong with an expression; ``devalloc_solver.cel.budget`` bounds its evaluation."""

from __future__ import annotations


class CompileError(ValueError):
    """The expression is invalid: it does not parse, names something undeclared, or can never be a boolean.

    ``message`` is for the person who wrote it; ``line`` and ``column`` are 1-based.
    """

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.message = message
        self.line = line
        self.column = column


class EvaluationError(Exception):
    """The expression has no answer for this device: an attribute is missing, two types do not go together, a number
    overflows."""


class ExhaustedError(EvaluationError):
    """The evaluation costs more than it may. Most likely it does for every other device too."""


def error_at(text: str, at: int, message: str) -> CompileError:
    """The error at the offset ``at`` of ``text``, as line and column."""
    before = text[:at]
    return CompileError(message, before.count("\n") + 1, at - before.rfind("\n"))
