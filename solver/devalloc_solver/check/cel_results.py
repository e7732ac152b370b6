"""Results of expressions on devices, evaluated by cel-python, held against the solver's evaluator, and cached.

The check evaluates with cel-python (``celpy_engine``), which shares no code with the evaluator of the solver
(``devalloc_solver.cel.device_claims``). It evaluates with that one, too:

- first, because only that one has a budget, finds out which expressions are invalid, and knows what they read;
- for a second verdict: if the two differ, one is wrong. ``disagreements`` reports it, and ``disputed`` tells whose
  answer rests on it. ``solve_manifests`` does not give that answer, unless the admin says ``warn``; the others stand,
  because a tenant with such an expression must not stop the answers of others;
- alone, for what cel-python cannot judge (``celpy_engine.UNSUPPORTED_FORMS``, its bounds on text, depth and steps), and
  when the steps of one call are used up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from devalloc.api.pool import AttributeValue
from devalloc_solver.cel import device_claims as cel

_BUDGET = 10_000_000
"""Cost that one evaluation may have: the bound for a whole fleet, so that what passed there passes here."""

MAX_STEPS = 3_000
"""Steps that cel-python may take for one evaluation; a step takes about 10 us."""
STEPS_PER_CALL = 100_000
"""Steps that it may take for all expressions of one call: about a second. Reading a character of a text costs one."""

MAX_EXPRESSIONS = 10_000
MAX_VERDICTS = 100_000
"""Expressions remembered, and verdicts of one; when there are more, all are forgotten."""

_MAX_SHOWN = 500
"""Characters of attributes in a message."""

_Values = tuple[object, ...]

CEL_CHECKS = ("refuse", "warn")
"""What becomes of an answer that rests on a verdict in which the evaluators disagree."""


def check_cel_check(cel_check: str) -> None:
    """Raise ValueError for what is none of CEL_CHECKS."""
    if cel_check not in CEL_CHECKS:
        raise ValueError(f"cel_check must be one of {', '.join(CEL_CHECKS)}, not {cel_check!r}")


class Disagreement(NamedTuple):
    """The two evaluators judge a device differently."""

    of_solver: bool
    message: str
    """the expression, the attributes that it reads, and both verdicts"""
    is_verdict: bool = True
    """False where cel-python has none: it cannot read the expression"""


class CelResults:
    """A cache of CEL verdicts per expression and the attributes that it reads (L3).

    It may live as long as its owner likes: a verdict depends on nothing but its key.
    """

    def __init__(self) -> None:
        self._programs: dict[str, _CompiledExpression | cel.CompileError] = {}
        self._steps_left = STEPS_PER_CALL
        self._disagreements: dict[str, None] = {}
        self._of_claim: dict[str, None] = {}
        self.disputed: dict[tuple[str, str], list[str]] = {}
        """(namespace, name) of a claim with new devices -> the disagreements that its answer rests on, since
        ``begin_call``"""

    def begin_call(self) -> None:
        """A call of the check begins: cel-python has all its steps again, and nothing is reported yet."""
        self._steps_left = STEPS_PER_CALL
        if self._disagreements:
            self._disagreements.clear()
            self._of_claim.clear()
            self.disputed.clear()

    def begin_claim(self) -> None:
        """The answer to a claim is judged from now on."""
        self._of_claim.clear()

    def end_claim(self, key: tuple[str, str]) -> None:
        """The answer to a claim has been judged: what was disputed since ``begin_claim`` is about it."""
        if self._of_claim:
            self.disputed[key] = [*self._of_claim]

    @property
    def disagreements(self) -> list[str]:
        """What the two evaluators judged differently since ``begin_call``, as sentences."""
        return [*self._disagreements]

    def compile_error(self, text: str) -> str | None:
        """Why the expression is invalid; None when it is valid or empty."""
        program = None if _is_empty(text) else self._program(text)
        return program.message if isinstance(program, cel.CompileError) else None

    def names_read(self, text: str) -> tuple[str, ...] | None:
        """The attributes that an expression reads; None for all."""
        program = None if _is_empty(text) else self._program(text)
        return program.names if isinstance(program, _CompiledExpression) else ()

    def holds(self, text: str, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether the expression is true for a device with these attributes; empty is true, an error is not (S6).

        Raises BudgetExceeded.
        """
        if _is_empty(text):
            return True
        program = self._program(text)
        if isinstance(program, cel.CompileError):
            return False
        # Values of two types are never equal, and no expression tells equal amounts in two notations apart.
        names = program.names
        key: _Values
        if names is None:
            key = tuple([(name, attributes[name]) for name in sorted(attributes)])
        else:
            key = tuple(map(attributes.get, names))
        verdict = program.verdicts.get(key)
        if verdict is None:
            verdict = self._judge(program, attributes)
            if len(program.verdicts) >= MAX_VERDICTS:
                program.verdicts.clear()
            program.verdicts[key] = verdict
        if isinstance(verdict, Disagreement):
            self._disagreements[verdict.message] = None
            if verdict.is_verdict:
                self._of_claim[verdict.message] = None
            return verdict.of_solver
        return verdict

    def _judge(self, program: _CompiledExpression, attributes: Mapping[str, AttributeValue]) -> bool | Disagreement:
        """The verdict, or how the two evaluators disagree. Raises BudgetExceeded."""
        try:
            of_solver = program.program.evaluate(attributes, cel.Budget(_BUDGET))
        except cel.EvaluationError:
            of_solver = False
        text = program.program.text
        # An import of 0.3 seconds: only a check that meets an expression pays for it.
        from devalloc_solver.check import celpy_engine

        if len(text) > self._steps_left:
            return of_solver
        if not program.verdicts:
            self._steps_left -= len(text)
        try:
            expression = celpy_engine.parse(text)
        except celpy_engine.UnreadableExpression as error:
            return Disagreement(of_solver, f"cel-python cannot read {text!r}: {error} (S6)", is_verdict=False)
        if expression is None:
            return of_solver
        work = celpy_engine.Work(min(MAX_STEPS, self._steps_left))
        try:
            verdict = expression.holds(attributes, work)
        except celpy_engine.TooCostly:
            return of_solver
        finally:
            self._steps_left -= work.spent
        if verdict is of_solver:
            return verdict
        read = {name: attributes[name] for name in program.names or sorted(attributes) if name in attributes}
        shown = ", ".join(f"{name}={value!r}" for name, value in read.items())[:_MAX_SHOWN]
        word = {True: "accepts", False: "does not accept"}
        return Disagreement(
            of_solver,
            f"the evaluators disagree on {text!r}: cel-python {word[verdict]} a device with {shown or 'no attributes'},"
            f" and the evaluator of the solver {word[of_solver]} it (S6); please report it",
        )

    def _program(self, text: str) -> _CompiledExpression | cel.CompileError:
        program = self._programs.get(text)
        if program is None:
            if len(self._programs) >= MAX_EXPRESSIONS:
                self._programs.clear()
            program = self._programs[text] = _compile(text)
        return program


class _CompiledExpression(NamedTuple):
    """An expression, and what is known of it."""

    program: cel.Program
    names: tuple[str, ...] | None
    """the attributes that it reads; None for all"""
    verdicts: dict[_Values, bool | Disagreement]
    """by the values of these: whether a device matches, or how the evaluators disagree"""


def _compile(text: str) -> _CompiledExpression | cel.CompileError:
    try:
        program = cel.compile(text)
    except cel.CompileError as error:
        return error
    return _CompiledExpression(program, None if program.attributes is None else tuple(sorted(program.attributes)), {})


def load_evaluator() -> None:
    """Load what the first expression needs: an import of 0.3 seconds."""
    from devalloc_solver.check import celpy_engine

    celpy_engine.parse("true")


def _is_empty(text: str) -> bool:
    return not text.strip()
