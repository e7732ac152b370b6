"""What expressions say about devices, evaluated by the check itself and remembered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from devalloc.api.pool import AttributeValue
from devalloc_solver import cel

_BUDGET = 10_000_000
"""Cost that one evaluation may have: the bound for a whole fleet, so that what passed there passes here."""

MAX_EXPRESSIONS = 10_000
MAX_VERDICTS = 100_000
"""Expressions remembered, and verdicts of one; when there are more, all are forgotten."""

_Values = tuple[object, ...]


class Verdicts:
    """A cache of CEL verdicts per expression and the attributes that it reads (L3).

    It may live as long as its owner likes: a verdict depends on nothing but its key.
    """

    def __init__(self) -> None:
        self._programs: dict[str, _Compiled | cel.CompileError] = {}

    def compile_error(self, text: str) -> str | None:
        """Why the expression is invalid; None when it is valid or empty."""
        program = None if _is_empty(text) else self._program(text)
        return program.message if isinstance(program, cel.CompileError) else None

    def names_read(self, text: str) -> tuple[str, ...] | None:
        """The attributes that an expression reads; None for all."""
        program = None if _is_empty(text) else self._program(text)
        return program.names if isinstance(program, _Compiled) else ()

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
            try:
                verdict = program.program.evaluate(attributes, cel.Budget(_BUDGET))
            except cel.EvaluationError:
                verdict = False
            if len(program.verdicts) >= MAX_VERDICTS:
                program.verdicts.clear()
            program.verdicts[key] = verdict
        return verdict

    def _program(self, text: str) -> _Compiled | cel.CompileError:
        known = self._programs.get(text)
        if known is None:
            if len(self._programs) >= MAX_EXPRESSIONS:
                self._programs.clear()
            known = self._programs[text] = _compile(text)
        return known


class _Compiled(NamedTuple):
    """An expression, and what is known of it."""

    program: cel.Program
    names: tuple[str, ...] | None
    """the attributes that it reads; None for all"""
    verdicts: dict[_Values, bool]


def _compile(text: str) -> _Compiled | cel.CompileError:
    try:
        program = cel.compile(text)
    except cel.CompileError as error:
        return error
    return _Compiled(program, None if program.attributes is None else tuple(sorted(program.attributes)), {})


def _is_empty(text: str) -> bool:
    return not text.strip()
