"""Compiled expressions and their cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from devalloc.api.pool import AttributeValue
from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.closures import build
from devalloc_solver.cel.comprehensions import cost_of
from devalloc_solver.cel.device_claims.comparison import type_name
from devalloc_solver.cel.device_claims.environment import ENVIRONMENT, PLACES
from devalloc_solver.cel.device_claims.parser import parse
from devalloc_solver.cel.device_claims.type_checker import check
from devalloc_solver.cel.environment import Run
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.reads import conjuncts, paths_read
from devalloc_solver.cel.syntax_tree import Node
from devalloc_solver.cel.values import Frame


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A predicate on the attributes of a device. Immutable; any thread may evaluate it."""

    text: str
    attributes: frozenset[str] | None
    """The names of the attributes that can influence the result; None: all of them."""
    operands: tuple[Program, ...]
    """Those of its top-level ``&&``, which may be evaluated apart: the expression is true where all of them are, and
    false where any is, whatever errors beside. None where it is one operand."""
    cost: int
    """Steps of every evaluation that no operation counts: the nodes, but for those of the bodies of macros."""
    _run: Run = field(repr=False)
    _slots: int = field(repr=False)

    def evaluate(self, attributes: Mapping[str, AttributeValue], budget: Budget) -> bool:
        """Whether the device matches.

        Raises EvaluationError when that cannot be computed for this device (which then does not match) and
        BudgetExceeded when the expression has used up ``budget``.
        """
        budget.spend(self.cost)
        return self.evaluator(budget)(attributes)

    def evaluator(self, budget: Budget) -> Callable[[Mapping[str, AttributeValue]], bool]:
        """The same for one device after the other, without what each costs in any case."""
        frame, run = Frame(None, budget, self._slots), self._run

        def evaluate(attributes: Mapping[str, AttributeValue]) -> bool:
            frame.device = attributes
            result = run(frame)
            if result is True or result is False:
                return result
            raise EvaluationError(f"the result is a {type_name(result)}, not a boolean")

        return evaluate


@lru_cache(maxsize=512)
def compile(text: str) -> Program:
    """Check ``text`` and make it ready to evaluate; the same text gives the same Program while it is cached.

    Raises CompileError for what does not parse, is too long or too deep, names something undeclared, or can never be
    a boolean.
    """
    tree = parse(text)
    check(text, tree)
    apart = [_program(text, node, paths) for node, paths in conjuncts(tree, PLACES)]
    return _program(text, tree, paths_read(tree, PLACES), tuple(apart) if len(apart) > 1 else ())


def _program(
    text: str, tree: Node, paths: frozenset[tuple[str, ...]] | None, operands: tuple[Program, ...] = ()
) -> Program:
    names = None if paths is None else frozenset(name for (name,) in paths)
    return Program(text, names, operands, 1 + cost_of(tree), *build(tree, ENVIRONMENT))
