"""What expressions say about devices, evaluated by the check itself and remembered."""

from __future__ import annotations

from collections.abc import Mapping

from devalloc.api.pool import AttributeValue
from devalloc_solver import cel

_BUDGET = 10_000_000
"""Cost that one evaluation may have: the bound for a whole fleet, so that what passed there passes here."""

_Attributes = tuple[tuple[str, str, str], ...]


class Verdicts:
    """A cache of CEL verdicts per expression and the attributes that it reads (L3).

    It may live as long as its owner likes: a verdict depends on nothing but its key.
    """

    def __init__(self) -> None:
        self._programs: dict[str, cel.Program | cel.CompileError] = {}
        self._verdicts: dict[tuple[str, _Attributes], bool] = {}

    def compile_error(self, text: str) -> str | None:
        """Why the expression is invalid; None when it is valid or empty."""
        program = None if _is_empty(text) else self._program(text)
        return program.message if isinstance(program, cel.CompileError) else None

    def holds(self, text: str, attributes: Mapping[str, AttributeValue]) -> bool:
        """Whether the expression is true for a device with these attributes; empty is true, an error is not (S6).

        Raises BudgetExceeded.
        """
        if _is_empty(text):
            return True
        program = self._program(text)
        if isinstance(program, cel.CompileError):
            return False
        names = attributes if program.attributes is None else program.attributes & attributes.keys()
        # By type and text: equal amounts in two notations are two keys, which costs little and can never be wrong.
        key = text, tuple((name, type(attributes[name]).__name__, str(attributes[name])) for name in sorted(names))
        if key not in self._verdicts:
            try:
                self._verdicts[key] = program.evaluate(attributes, cel.Budget(_BUDGET))
            except cel.EvaluationError:
                self._verdicts[key] = False
        return self._verdicts[key]

    def _program(self, text: str) -> cel.Program | cel.CompileError:
        if text not in self._programs:
            try:
                self._programs[text] = cel.compile(text)
            except cel.CompileError as error:
                self._programs[text] = error
        return self._programs[text]


def _is_empty(text: str) -> bool:
    return not text.strip()
