"""What can go wrong with an expression, and the budget that bounds its evaluation."""

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
    """This device does not match: an attribute is missing, two types do not go together, a number overflows."""


class BudgetExceeded(Exception):
    """The expression costs more than its budget. It says nothing about the device."""


class Budget:
    """Evaluation steps that may be spent, over as many evaluations as share this object.

    One step is one node of the expression; an operation on a text, list or map costs steps in proportion to its size,
    and each turn of a macro costs the nodes of its body. The count depends on the expression and the attributes only,
    never on the machine.
    """

    __slots__ = ("left", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.left = limit

    def spend(self, steps: int) -> None:
        """Take ``steps`` from the budget. Raises BudgetExceeded when it is used up."""
        self.left -= steps
        if self.left < 0:
            raise BudgetExceeded(f"costs more than its budget of {self.limit} evaluation steps")
