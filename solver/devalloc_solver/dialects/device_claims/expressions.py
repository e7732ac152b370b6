"""Expressions of DeviceClaims: what they read and see of devices (S6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

from devalloc.api.pool import AttributeValue
from devalloc_solver.cel.device_claims import Program, compile
from devalloc_solver.cel.device_claims.reads import equalities
from devalloc_solver.eligibility.predicate import Language, Operand, Predicate
from devalloc_solver.problem.snapshot import Device

_MISSING = object()


def _compile(text: str) -> Predicate:
    program = compile(text)
    names = program.attributes
    only = next(iter(names)) if names is not None and len(names) == 1 else None
    operands = tuple(map(_operand, program.operands or (program,)))
    return Predicate(text, operands, names, only, partial(equalities, text))


LANGUAGE = Language(_compile, "refuse")


def _operand(program: Program) -> Operand:
    key, view_of_key = _key(program.attributes)
    return Operand(program, program.evaluate, 0, key, attrgetter("attributes"), view_of_key, program.attributes)


Views = Callable[[Any], Mapping[str, AttributeValue]]


def _key(names: frozenset[str] | None) -> tuple[Callable[[Device], object], Views | None]:
    """How to read of a device what an operand sees; a value's Python type tells its kind apart. And the attributes by
    that, if they are one or none."""
    if names is None:
        return _everything, None
    if len(names) == 1:
        (only,) = names
        return (
            lambda device: device.attributes.get(only, _MISSING),
            lambda value: {} if value is _MISSING else {only: value},
        )
    ordered = sorted(names)

    def values(device: Device) -> object:
        attributes = device.attributes
        return tuple([attributes.get(name, _MISSING) for name in ordered])

    return values, None if names else lambda _: {}


def _everything(device: Device) -> object:
    return tuple(sorted((name, type(value).__name__, value) for name, value in device.attributes.items()))
