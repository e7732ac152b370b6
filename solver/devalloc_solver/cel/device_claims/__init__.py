"""CEL of DeviceClaims: a parser and a static check of our own, and comparisons by S6.

The variable ``device`` is the map of a device's attributes. ``docs/cel.md`` describes the language; claim-semantics S6
is its contract.
"""

from devalloc_solver.cel.budget import Budget, BudgetExceeded
from devalloc_solver.cel.device_claims.program import Program, compile
from devalloc_solver.cel.errors import CompileError, EvaluationError

__all__ = ["Budget", "BudgetExceeded", "CompileError", "EvaluationError", "Program", "compile"]
