"""Sums over amounts beyond 64 bits are exact: compared with plain Python integers."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from devalloc_solver.exact.linear_constraints import add_at_least, add_at_most
from tests.support.examples import examples

NANO = 10**9
AMOUNTS = st.one_of(
    st.integers(0, 5),
    st.integers(0, 2**63 * NANO),
    st.sampled_from([2**30 * NANO, 2**30 * NANO + 1, 2**63 * NANO, 2**40, 2**40 - 1, 2**44, 2**80]),
)


def feasible(amounts: list[int], bound: int, fixed: tuple[int, ...], *, least: bool) -> bool:
    """Whether the constraint allows exactly these values."""
    model = cp_model.CpModel()
    variables = [model.new_int_var(0, 3, "") for _ in amounts]
    if least:
        always = model.new_constant(1)
        add_at_least(model, variables, amounts, bound, always)
    else:
        add_at_most(model, variables, amounts, bound)
    for variable, value in zip(variables, fixed, strict=True):
        model.add(variable == value)
    status = cp_model.CpSolver().solve(model)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE), model.validate()
    return status == cp_model.OPTIMAL


@settings(max_examples=examples(45, 0.375), deadline=None)
@given(st.lists(st.tuples(AMOUNTS, st.integers(0, 3)), min_size=1, max_size=4), st.integers(-2, 2), st.booleans())
def test_a_bound_next_to_the_sum_is_exact_to_the_last_nano(terms: list[tuple[int, int]], off: int, least: bool) -> None:
    amounts, fixed = [a for a, _ in terms], tuple(v for _, v in terms)
    total = sum(a * v for a, v in terms)
    bound = total + off
    expected = total >= bound if least else total <= max(bound, 0) and bound >= 0
    if bound < 0 and not least:
        return  # a capacity is never negative
    assert feasible(amounts, bound, fixed, least=least) == expected


@pytest.mark.parametrize("bound", range(13))
def test_small_sums_agree_with_counting(bound: int) -> None:
    amounts = [1, 2, 3]
    for fixed in product(range(3), repeat=3):
        total = sum(a * v for a, v in zip(amounts, fixed, strict=True))
        assert feasible(amounts, bound, fixed, least=True) == (total >= bound)
        assert feasible(amounts, bound, fixed, least=False) == (total <= bound)


def test_nothing_to_add_up_cannot_reach_a_bound() -> None:
    model = cp_model.CpModel()
    wanted = model.new_bool_var("")
    add_at_least(model, [], [], 1, wanted)
    model.maximize(wanted)
    solver = cp_model.CpSolver()
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.value(wanted) == 0
