"""What an expression reads of a device, and the equalities that it demands, found without evaluating it.

Equalities are ``device.a == 'x'`` and ``device.a in ['x', 'y']``, joined by ``&&``, or by ``||`` where each
alternative has one for the same attribute.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from devalloc_solver.cel import reads as analysis
from devalloc_solver.cel.device_claims.environment import PLACES
from devalloc_solver.cel.device_claims.parser import parse
from devalloc_solver.cel.device_claims.program import compile
from devalloc_solver.cel.errors import CompileError

Equalities = tuple[tuple[str, frozenset[str | int]], ...]
"""(attribute, values) of which a device must have one each for the expression to be true of it"""


@lru_cache(maxsize=1024)
def equalities(expression: str) -> Equalities:
    """The attributes that such a conjunct names. An expression that does not parse says nothing."""
    try:
        pairs = analysis.equalities(parse(expression), PLACES, lambda _, values: _texts_and_numbers(values) is not None)
        return tuple((path[0], _texts_and_numbers(values) or frozenset()) for path, values in pairs)
    except CompileError:
        return ()


@lru_cache(maxsize=1024)
def attributes_read(expression: str) -> frozenset[str] | None:
    """The attributes that an expression reads; None for all, also of one that is invalid."""
    try:
        return compile(expression).attributes
    except CompileError:
        return None


def _texts_and_numbers(values: Sequence[object]) -> frozenset[str | int] | None:
    """The values, if all are texts or whole numbers. A version may equal a text that is written otherwise."""
    plain = [value for value in values if isinstance(value, str | int) and not isinstance(value, bool)]
    return frozenset(plain) if len(plain) == len(values) else None
