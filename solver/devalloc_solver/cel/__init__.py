"""CEL for devices: ``compile(text).evaluate(attributes, budget)``.

The variable ``device`` is the map of a device's attributes. ``docs/cel.md`` has the dialect; claim-semantics S6 is its
contract.
"""

from devalloc_solver.cel.errors import Budget, BudgetExceeded, CompileError, EvaluationError
from devalloc_solver.cel.program import Program, compile

__all__ = ["Budget", "BudgetExceeded", "CompileError", "EvaluationError", "Program", "compile"]
