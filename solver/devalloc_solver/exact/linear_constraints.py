"""Exact linear constraints over amounts that may not fit into 64 bits.

CP-SAT computes in int64, while an amount in nano units may reach 2**93. Amounts are divided by their greatest common
divisor and clamped to the bound; where that is not enough, the sum is written in digits with carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    Literal = cp_model.BoolVarT

_DIRECT = 2**44
"""Bounds below this leave room in 64 bits for sums over 2**18 devices."""
_ROOM = 61
"""Bits that a sum of digits may have."""


def add_at_least(
    model: cp_model.CpModel,
    variables: Sequence[cp_model.IntVar],
    amounts: Sequence[int],
    bound: int,
    when: Literal,
) -> None:
    """``when`` implies sum(amount * variable) >= bound. Amounts and variables are not negative."""
    if bound <= 0:
        return
    useful = [(v, a) for v, a in zip(variables, amounts, strict=True) if a > 0]
    if not useful:
        model.add_implication(when, when.negated())
        return
    unit = gcd(*(a for _, a in useful))
    least = -(-bound // unit)
    scaled = [min(a // unit, least) for _, a in useful]
    terms = [v for v, _ in useful]
    if least < _DIRECT:
        model.add(_sum(terms, scaled) >= least).only_enforce_if(when)
        return
    carries: list[cp_model.IntVar] = []
    for digits, digit, base in _to_digits(terms, scaled, least):
        total = _sum([*terms, *carries], [*digits, *(1 for _ in carries)])
        if base is None:
            model.add(total >= digit).only_enforce_if(when)
        else:
            carries = [model.new_int_var(-1, _max_sum(terms), "")]
            model.add(total >= digit + base * carries[0]).only_enforce_if(when)


def add_at_most(
    model: cp_model.CpModel, variables: Sequence[cp_model.IntVar], amounts: Sequence[int], bound: int
) -> None:
    """sum(amount * variable) <= bound. Amounts and variables are not negative."""
    useful = [(v, a) for v, a in zip(variables, amounts, strict=True) if a > 0]
    if not useful:
        return
    unit = gcd(*(a for _, a in useful))
    most = max(bound, -1) // unit
    for variable, amount in useful:
        if amount // unit > most:
            model.add(variable == 0)
    terms = [v for v, a in useful if a // unit <= most]
    scaled = [a // unit for _, a in useful if a // unit <= most]
    if not terms:
        return
    if most < _DIRECT:
        model.add(_sum(terms, scaled) <= most)
        return
    carries: list[cp_model.IntVar] = []
    for digits, digit, base in _to_digits(terms, scaled, most):
        total = _sum([*terms, *carries], [*digits, *(1 for _ in carries)])
        if base is None:
            model.add(total <= digit)
        else:
            carries = [model.new_int_var(0, _max_sum(terms), "")]
            model.add(total <= digit + base * carries[0])


def _to_digits(
    variables: Sequence[cp_model.IntVar], amounts: Sequence[int], bound: int
) -> Iterator[tuple[list[int], int, int | None]]:
    """The digits of all amounts and of the bound, low ones first, with the base; None with the last ones.

    The base is so small that a sum of digits has room.
    """
    base = 1 << (_ROOM - _max_sum(variables).bit_length())
    left, rest = list(amounts), bound
    while max(rest, *left) >= base:
        yield [amount % base for amount in left], rest % base, base
        left, rest = [amount // base for amount in left], rest // base
    yield left, rest, None


def _max_sum(variables: Sequence[cp_model.IntVar]) -> int:
    """The greatest sum of the variables: no more low limbs than that can overflow into the high one."""
    return sum(int(list(variable.proto.domain)[-1]) for variable in variables)


def _sum(variables: Sequence[cp_model.IntVar], coefficients: Sequence[int]) -> cp_model.LinearExprT:
    from ortools.sat.python import cp_model

    return cp_model.LinearExpr.weighted_sum(variables, coefficients)
