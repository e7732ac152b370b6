"""Compiled expressions on devices, as the judge and an index see them, whatever their language.

A dialect makes them (``Language``): it knows the syntax, and how to read its devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from devalloc_solver.cel.budget import Budget


class Program(Protocol):
    """A compiled expression, or one operand of it, that evaluates what it sees of a device."""

    @property
    def cost(self) -> int:
        """Steps of an evaluation that ``evaluator`` does not count."""

    def evaluator(self, budget: Budget) -> Callable[[Any], bool]:
        """Make what evaluates one view after the other. It raises ``cel.errors.EvaluationError``, and as
        ``Budget.spend``."""


@dataclass(frozen=True, slots=True)
class CostlyVerdict:
    """A verdict that counts towards what one evaluation of all operands may cost."""

    verdict: bool | str
    cost: int


class Exhausted(str):
    """Why an evaluation was stopped: no other operand can hide it."""

    __slots__ = ()


Outcome = bool | str | CostlyVerdict
"""True, False, or the error of an evaluation."""


@dataclass(slots=True, eq=False)
class Operand:
    """An operand of the top-level ``&&`` of an expression, or all of it, and its verdicts."""

    program: Program
    evaluate: Callable[[Any, Budget], bool]
    """one evaluation of a view; counts all steps but ``base``"""
    base: int
    key: Callable[[Any], Any]
    """what it reads of a device: equal keys have one verdict"""
    view: Callable[[Any], Any]
    """what evaluations see of a device"""
    view_of_key: Callable[[Any], Any] | None
    """the same by the key, if that is a single attribute or nothing; it is to be looked at before the next one"""
    reads: frozenset[str] | None
    """the names of the attributes that it reads; None for all"""
    safe_texts: frozenset[str] | None = None
    """attributes such that it cannot fail on a device of which each is one short text; None if it may"""
    verdicts: dict[object, Outcome] = field(default_factory=dict)
    capacity: int = sys.maxsize
    """the most verdicts that are cached"""
    costly: int = sys.maxsize
    """steps above which an evaluation counts towards those of all operands"""

    def views(self, keys: Sequence[object], examples: Mapping[object, Any]) -> Iterator[Any]:
        """List the views of devices by key; each is to be looked at before the next one."""
        if self.view_of_key is not None:
            return map(self.view_of_key, keys)
        return (self.view(examples[key]) for key in keys)


Literals = tuple[tuple[str, frozenset[Any]], ...]
"""(attribute, values) of which each accepted device has one, as far as an expression says so plainly"""


@dataclass(frozen=True, slots=True, eq=False)
class Predicate:
    """A compiled expression: what decides, and what is known before any device is looked at."""

    text: str
    operands: tuple[Operand, ...]
    """the expression is true where all are, and false where any is, whatever errors beside"""
    reads: frozenset[str] | None
    """the names of the attributes that it reads; None for all"""
    only: str | None
    """the one attribute that decides, if it reads nothing else"""
    find_literals: Callable[[], Literals]
    drivers: frozenset[str] | None = None
    """every accepted device is of one of these drivers; None if the expression does not say so"""


@dataclass(frozen=True, slots=True)
class Language:
    """A language of expressions, and what becomes of errors in it."""

    compile: Callable[[str], Predicate]
    """raises ``cel.errors.CompileError``"""
    on_error: Literal["skip", "refuse"]
    """``skip``: a device on which an expression costs too much is left out, with that error; after some such devices it
    is not evaluated any more, and a later call begins anew with it. ``refuse``: the expression itself is refused, for
    as long as the judge stays."""
    most: int | None = None
    """steps of one evaluation of all operands together; None: ``EVALUATION_BUDGET`` for each of them"""
    max_verdicts: int | None = None
    """verdicts of an expression that are cached; None without a limit"""
    fault: Callable[[Any], str | None] | None = None
    """why no expression can be evaluated on a device, or None"""
    is_certain: Callable[[Any, str, Iterable[Any]], bool] = lambda device, name, values: True
    """whether to compare an attribute with values is false, and never an error that counts, for devices like this one
    that have another value"""
