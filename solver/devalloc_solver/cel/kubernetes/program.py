"""Compiled selectors and their cache."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import lru_cache

from devalloc_solver.cel.budget import EVALUATION_BUDGET, TOO_EXPENSIVE_ONCE, Budget, BudgetExceeded
from devalloc_solver.cel.closures import build
from devalloc_solver.cel.comprehensions import cost_of
from devalloc_solver.cel.environment import Environment, Run
from devalloc_solver.cel.errors import CompileError, EvaluationError, ExhaustedError
from devalloc_solver.cel.kubernetes.declarations import GATES, SHARING_GATE
from devalloc_solver.cel.kubernetes.device import CelDevice
from devalloc_solver.cel.kubernetes.environment import environment
from devalloc_solver.cel.kubernetes.reads import (
    DeviceField,
    Equality,
    conjuncts,
    drivers,
    equalities,
    needs_only_texts,
    reads,
)
from devalloc_solver.cel.kubernetes.type_checker import parse_and_check
from devalloc_solver.cel.syntax_tree import Node
from devalloc_solver.cel.values import Frame, type_name

COST_LIMIT = EVALUATION_BUDGET
"""Cost units of one evaluation, as in Kubernetes."""

CACHED = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A selector that is ready to judge devices. Immutable; any thread may use it."""

    text: str
    reads: frozenset[DeviceField] | None
    """Everything of a device that can influence the answer; None when that is not known beforehand."""
    equalities: tuple[Equality, ...]
    """What every matching device fulfils; a device that lacks such an attribute does not match either."""
    drivers: frozenset[str] | None
    """Every matching device is of one of these; None if the expression does not say so."""
    safe_texts: frozenset[DeviceField] | None
    """The expression cannot fail on a device of which each of these attributes is one string; None if it may."""
    operands: tuple[Program, ...]
    """Those of its top-level ``&&``, which may be evaluated apart: the expression is true where all of them are, and
    false where any is, whatever errors beside. None where it is one operand."""
    cost: int
    """Steps of an evaluation that no operation counts: a part of its nodes, since most evaluations do not reach all."""
    _run: Run = field(repr=False)
    _slots: int = field(repr=False)

    def matches(self, device: CelDevice, budget: Budget | None = None) -> bool:
        """Whether the device is selected. ``budget``: what the evaluation may cost; COST_LIMIT without one.

        Raises EvaluationError when that cannot be computed, ExhaustedError (one of these) when it costs more than
        COST_LIMIT, BudgetExceeded and OutOfTime when a smaller budget does not suffice.
        """
        return self.evaluator(Budget(COST_LIMIT) if budget is None else budget)(device)

    def evaluator(self, budget: Budget) -> Callable[[CelDevice], bool]:
        """The same for one device after the other."""
        frame, run = Frame(None, budget, self._slots), self._run

        def evaluate(device: CelDevice) -> bool:
            frame.device = device
            try:
                result = run(frame)
            except BudgetExceeded:
                if budget.limit < COST_LIMIT:
                    raise
                raise ExhaustedError(f"{TOO_EXPENSIVE_ONCE} {COST_LIMIT} units") from None
            except (RecursionError, MemoryError, OverflowError) as error:
                raise EvaluationError(f"the evaluation was given up: {type(error).__name__}") from None
            if result is True or result is False:
                return result
            raise EvaluationError(f"the result is a {type_name(result)}, not a bool")

        return evaluate


def compile(expression: str, features: Container[str]) -> Program:
    """Check ``expression`` and make it ready to evaluate; ``features`` holds the names of the enabled gates.

    The same expression gives the same Program while it is cached. Raises CompileError for what is too long, does not
    parse, names something undeclared, or can never be a bool.
    """
    result = _compiled(expression, frozenset(gate for gate in GATES if gate in features))
    if isinstance(result, CompileError):
        raise CompileError(result.message, result.line, result.column)
    return result


@lru_cache(maxsize=CACHED)
def _compiled(expression: str, gates: frozenset[str]) -> Program | CompileError:
    """Failures are kept too: an invalid selector of a class comes with every claim."""
    try:
        checked = parse_and_check(expression, gates)
        own = environment(SHARING_GATE in gates)
        apart = [_program(expression, node, read, own) for node, read in conjuncts(checked.root)]
        operands = tuple(apart) if len(apart) > 1 else ()
        return _program(expression, checked.root, reads(checked.root), own, operands)
    except CompileError as error:
        return error
    except RecursionError:
        return CompileError("the expression is nested too deeply")


def _program(
    text: str,
    node: Node,
    read: frozenset[DeviceField] | None,
    own: Environment,
    operands: tuple[Program, ...] = (),
) -> Program:
    demanded = equalities(node), drivers(node), needs_only_texts(node)
    return Program(text, read, *demanded, operands, cost_of(node) // 4, *build(node, own))
