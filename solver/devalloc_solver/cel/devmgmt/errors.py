"""What can go wrong with an expression; ``devalloc_solver.cel.budget`` bounds its evaluation."""

from __future__ import annotations

from devalloc_solver.cel.budget import Budget, BudgetExceeded

__all__ = ["Budget", "BudgetExceeded", "CompileError", "EvaluationError"]


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
    """This device does not match: an attribute is missing, two types do not go together, a number overflows."""
