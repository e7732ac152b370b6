"""CEL of DeviceClaims: an implementation of our own, with static checks and a budget.

The variable ``device`` is the map of a device's attributes. ``docs/cel.md`` describes the language; claim-semantics S6
is its contract.
"""

from devalloc_solver.cel.devmgmt.errors import Budget, BudgetExceeded, CompileError, EvaluationError
from devalloc_solver.cel.devmgmt.program import Program, compile

__all__ = ["Budget", "BudgetExceeded", "CompileError", "EvaluationError", "Program", "compile"]
