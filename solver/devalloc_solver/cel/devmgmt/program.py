"""Compiled expressions and their cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.devmgmt.build import CompiledExpression, build
from devalloc_solver.cel.devmgmt.parser import parse
from devalloc_solver.cel.devmgmt.values import type_name
from devalloc_solver.cel.errors import EvaluationError


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A predicate on the attributes of a device. Immutable; any thread may evaluate it."""

    text: str
    attributes: frozenset[str] | None
    """The names of the attributes that can influence the result; None: all of them."""
    _predicate: CompiledExpression

    def evaluate(self, attributes: Mapping[str, str | int | Quantity | SemVer], budget: Budget) -> bool:
        """Whether the device matches.

        Raises EvaluationError when that cannot be computed for this device (which then does not match) and
        BudgetExceeded when the expression has used up ``budget``.
        """
        predicate = self._predicate
        budget.spend(predicate.cost)
        result = predicate.run([attributes, budget, *(None,) * predicate.slots])
        if result is True or result is False:
            return bool(result)
        raise EvaluationError(f"the result is a {type_name(result)}, not a boolean")


@lru_cache(maxsize=512)
def compile(text: str) -> Program:
    """Check ``text`` and make it ready to evaluate; the same text gives the same Program while it is cached.

    Raises CompileError for what does not parse, is too long or too deep, names something undeclared, or can never be
    a boolean.
    """
    predicate = build(text, parse(text))
    return Program(text, predicate.reads, predicate)
