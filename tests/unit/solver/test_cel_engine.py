"""The two dialects of CEL have one engine: their parsers build one tree, and what both can express has one answer."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import pytest

from devalloc_solver.cel import device_claims, kubernetes
from devalloc_solver.cel.budget import Budget
from devalloc_solver.cel.comprehensions import TURN
from devalloc_solver.cel.device_claims.parser import parse
from devalloc_solver.cel.kubernetes.type_checker import parse_and_check
from devalloc_solver.cel.syntax_tree import Call

DEVICE = kubernetes.CelDevice("d", {}, {})


def shape(node: Any) -> Any:
    """A tree without the ids of its nodes, a chain of ``&&`` or ``||`` being one call."""
    if isinstance(node, Call) and node.function in ("_&&_", "_||_"):
        operands: list[Any] = []
        for part in map(shape, node.arguments):
            operands += part[1] if part[0] == node.function else [part]
        return node.function, operands
    if is_dataclass(node):
        parts = ((field.name, getattr(node, field.name)) for field in fields(node) if field.name != "id")
        return type(node).__name__, [(name, shape(value)) for name, value in parts]
    if isinstance(node, tuple):
        return "tuple", [shape(part) for part in node]
    return type(node).__name__, repr(node)


@pytest.mark.parametrize(
    "text",
    [
        "1 + 2 * 3 - 4 / 2 % 2 == 5",
        "true || false && 1 < 2 && !true || 2 >= 1",
        "true ? (false ? true : false) : false ? true : 1 in [1, 2]",
        "-(1) < 0 && -9223372036854775808 < 0 && !(1 < -2) && 1 - -1 == 2",
        "[1, 2].all(x, x > 0) && [1].exists(x, x == 1) && [1].exists_one(x, x == 1)",
        "[1, 2].map(x, x + 1) == [2, 3] && [1, 2].map(x, x > 1, x) == [2] && [1].filter(x, x > 1).size() == 0",
        "[[1], [2]].all(xs, xs.exists(x, x == xs[0]))",
        "{'a': {'b': 1}}.a.b == 1 && has({'a': 1}.a) && {1: 2}[1] == 2 && 'a' in {'a': 1}",
        r"""'a\n\x41\101\u00e9\U0001F600\'' == "b" || r'\d' == '''c'd''' && '' != "é" """,
        "0x1F == 31 && 1u < 2u && 1.5e3 > .5 && 2.0 * 1e-3 < 1.0 && null == null",
        "'a,b'.split(',').join('-').substring(1, 2).contains('-') && size('abc') == 3 && 'a'.matches('a')",
        "quantity('1Gi').isLessThan(quantity('2Gi')) && semver('1.0.0').major() == 1",
        "1 == 1 // a comment\n  && [true, false][0]",
    ],
)
def test_the_parser_of_deviceclaims_builds_the_tree_of_the_official_runtime(text: str) -> None:
    assert shape(parse(text)) == shape(parse_and_check(text, frozenset()).root)


def _integer(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(
            ["0", "1", "-7", "3", "9223372036854775807", "size('abc')", "int('5')", "'abab'.indexOf('b')"]
        )
    left, right = _integer(rng, depth - 1), _integer(rng, depth - 1)
    return rng.choice(
        [
            f"({left} {rng.choice('+-*/%')} {right})",
            f"[{left}, {right}][{rng.choice('012')}]",
            f"[{left}, {right}].{rng.choice(['min', 'max', 'sum'])}()",
            f"({_predicate(rng, depth - 1)} ? {left} : {right})",
            f"{{'a': {left}, 'b': {right}}}.{rng.choice('abc')}",
        ]
    )


def _text(rng: random.Random) -> str:
    text = rng.choice(["'abab'", "'é😀'", "''", "'A b '", "'a,b'"])
    return text + rng.choice(
        ["", ".upperAscii()", ".trim()", ".replace('a', 'b')", ".substring(1)", ".charAt(2)", ".split(',').join('-')"]
    )


def _predicate(rng: random.Random, depth: int) -> str:
    order = rng.choice(["==", "!=", "<", "<=", ">", ">="])
    if depth == 0:
        return rng.choice(
            ["true", "false", f"{_integer(rng, 0)} {order} {_integer(rng, 0)}", f"{_text(rng)} {order} ''"]
        )
    left, right = _predicate(rng, depth - 1), _predicate(rng, depth - 1)
    numbers = f"[{_integer(rng, 0)}, {_integer(rng, 0)}]"
    return rng.choice(
        [
            f"({left} && {right})",
            f"({left} || {right})",
            f"!({left})",
            f"{_integer(rng, depth - 1)} {order} {_integer(rng, depth - 1)}",
            f"{numbers}.{rng.choice(['all', 'exists', 'exists_one'])}(x, 6 / x {order} {_integer(rng, 0)})",
            f"{numbers}.filter(x, x {order} 1) == {numbers}.map(x, x > 0, x)",
            f"{_integer(rng, 0)} in {numbers}",
            f"{_text(rng)}.{rng.choice(['contains', 'startsWith', 'endsWith', 'matches'])}('b')",
        ]
    )


def _outcome(evaluate: Any) -> object:
    try:
        return evaluate()
    except (device_claims.EvaluationError, kubernetes.EvaluationError):
        return "error"


def test_the_dialects_agree_on_what_both_can_express() -> None:
    rng, outcomes = random.Random(20), set()
    for _ in range(300):
        text = _predicate(rng, rng.randint(0, 3))
        own, other = device_claims.compile(text), kubernetes.compile(text, ())
        outcome = _outcome(lambda own=own: own.evaluate({}, Budget(100_000)))
        assert outcome == _outcome(lambda other=other: other.matches(DEVICE)), text
        outcomes.add(outcome)
    assert outcomes == {True, False, "error"}


@pytest.mark.parametrize("operator", ["&&", "||"])
def test_logic_reports_the_first_error(operator: str) -> None:
    decided = "false" if operator == "||" else "true"
    text = f"{decided} {operator} 1 / 0 == 1 {operator} 'a'.charAt(5) == 'b'"
    for evaluate in (
        lambda: device_claims.compile(text).evaluate({}, Budget(100)),
        lambda: kubernetes.compile(text, ()).matches(DEVICE),
    ):
        with pytest.raises((device_claims.EvaluationError, kubernetes.EvaluationError), match="division by zero"):
            evaluate()


def _spent(text: str) -> tuple[int, int]:
    own, other = Budget(10_000), Budget(10_000)
    device_claims.compile(text).evaluate({}, own)
    kubernetes.compile(text, ()).matches(DEVICE, other)
    return own.spent - device_claims.compile(text).cost, other.spent


@pytest.mark.parametrize("macro", ["all(x, x + x < 9)", "filter(x, x + x < 9) != []", "map(x, x + x < 9) != []"])
def test_each_turn_of_a_macro_costs_the_same_in_both_dialects(macro: str) -> None:
    costs = [_spent(f"{[1] * count}.{macro}") for count in (1, 2, 3)]
    steps = {(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(costs)}
    assert len(steps) == 1
    own, other = steps.pop()
    assert own == other >= TURN + 4


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("device.a == 1 && device['b'] == 2 || 'c' in device || has(device.d)", {"a", "b", "c", "d"}),
        ("[1].all(device, device == 1)", set()),
        ("[1].all(device, .device.a == 1)", {"a"}),
        ("[device.a].exists(x, x == device.b)", {"a", "b"}),
        ("device.a.b == 1", {"a"}),
        ("size(device) == 1", None),
        ("device.exists(name, name == 'a')", None),
        ("['a'].all(name, device[name] == 1)", None),
        ("1 == 1", set()),
    ],
)
def test_the_attributes_that_an_expression_reads(text: str, attributes: set[str] | None) -> None:
    assert device_claims.compile(text).attributes == attributes
