"""Errors of expressions as users see them, and that no expression can harm the allocator."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_solver.cel.device_claims import Budget, BudgetExceeded, CompileError, EvaluationError, compile
from tests.support.examples import examples

DEVICE: dict[str, str | int | Quantity | SemVer] = {
    "model": "a100",
    "numa": 0,
    "vram": Quantity.parse("40Gi"),
    "firmware": SemVer.parse("1.2.3"),
}
DIGITS = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


@pytest.mark.parametrize(
    ("expression", "line", "column", "words"),
    [
        ("", 1, 1, "a value is expected"),
        ("device.model ==", 1, 16, "found the end where a value"),
        ("device.model = 'a'", 1, 14, "=="),
        ("device.model == 'a' & true", 1, 21, "&&"),
        ("device.model == 'a' and true", 1, 21, "&& for and"),
        ("true &&\n  model == 'a'", 2, 3, "undeclared name 'model'"),
        ("device.pcie-root == 'x'", 1, 13, "device['pcie-root']"),
        ("device.model == a100", 1, 17, "quotes"),
        ("true\n&& foo(1)", 2, 4, "undeclared function foo()"),
        ("device.model.foo()", 1, 14, "undeclared function foo()"),
        ("device.model.quantity() == 1", 1, 14, "quantity(string)"),
        ("size(1, 2) == 3", 1, 1, "size(string)"),
        ("device.model + 'x'\n+ 'y'", 2, 1, "boolean"),
        ("'a100'", 1, 1, "always a string"),
        ("quantity('40Gi')", 1, 1, "always a quantity"),
        ("true && 1 == 'a' ? 1 : 2", 1, 18, "boolean"),
        ("1 == 'a'", 1, 3, "compares int with string"),
        ("1 == 1.0", 1, 3, "convert"),
        ("device.vram > quantity('40GB')", 1, 24, "G"),
        ("device.firmware > semver('1.2')", 1, 26, "MAJOR.MINOR.PATCH"),
        ("device.model.matches('a(')", 1, 22, "regular expression"),
        ("device.model == 'a", 1, 17, "not closed"),
        ("device.model == 'a\\q'", 1, 19, "escape"),
        ("device.numa == 9223372036854775808", 1, 16, "64-bit"),
        ("device.numa == -9223372036854775809", 1, 17, "64-bit"),
        ("device.numa == 18446744073709551616u", 1, 16, "64-bit"),
        ("device.numa == 1e999", 1, 16, "double"),
        ("device.numa == 0xg", 1, 16, "malformed number"),
        ("device.numa == 12abc", 1, 16, "malformed number"),
        ("device.if == 1 && if == 1", 1, 19, "reserved"),
        ("device.in == 1", 1, 8, "reserved"),
        ("(true", 1, 6, "')'"),
        ("true)", 1, 5, "an operator or the end"),
        ("size('a',) == 1", 1, 10, "argument"),
        ("device{}", 1, 7, "message types"),
        ("b'x' == b'x'", 1, 1, "bytes"),
        ("timestamp('x') == 1", 1, 1, "timestamp() is not part"),
        ("has(1)", 1, 1, "has(device.model)"),
        ("[1].all(1, true)", 1, 9, "variable"),
        ("[1].map(x) == []", 1, 5, "2 or 3"),
        ("true #", 1, 6, "'#'"),
        ("-1u == 1u", 1, 1, "negative"),
    ],
)
def test_an_invalid_expression_is_named_with_its_place(expression: str, line: int, column: int, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        compile(expression)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value.message
    assert words in caught.value.message
    assert f"line {line}, column {column}" in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("device.absent == 'a'", "no attribute 'absent'"),
        ("device.numa == '0'", "int and string"),
        ("device.vram > 'lots'", "not a quantity"),
        ("device.firmware > 'lots'", "not a semantic version"),
        ("device.numa + 9223372036854775807 + 1 > 0", "64-bit"),
        ("device.model", "string, not a boolean"),
        ("device.model.isLessThan(quantity('1'))", "isLessThan() is not defined for string and quantity"),
        ("1 / device.numa == 1", "zero"),
        ("[1][device.numa + 5] == 1", "no element 5"),
        ("!device.model", "negates a boolean"),
    ],
)
def test_a_device_that_cannot_be_judged_says_why(expression: str, words: str) -> None:
    with pytest.raises(EvaluationError) as caught:
        compile(expression).evaluate(DEVICE, Budget(1000))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        f"{DIGITS}.all(a, {DIGITS}.all(b, {DIGITS}.all(c, {DIGITS}.all(d, a + b + c + d >= 0))))",
        f"{DIGITS}.map(a, {DIGITS}.map(b, {DIGITS}.map(c, {DIGITS}.map(d, 'x')))).size() > 0",
        "['aaaaaaaaaa']" + ".map(s, s + s)" * 40 + ".size() > 0",
        "['aaaaaaaaaa']" + ".map(s, s.replace('a', s))" * 10 + ".size() > 0",
        "[['a', 'a']]" + ".map(l, l + l)" * 40 + ".map(l, l.join()).size() > 0",
        "[[1, 1]]" + ".map(l, [l, l])" * 40 + ".all(l, l == l)",
        "['aaaaaaaaaa']" + ".map(s, s + s)" * 10 + f".all(s, {DIGITS}.all(i, s.matches('(a|b)*c$') || true))",
    ],
)
def test_the_budget_ends_what_runs_away(expression: str) -> None:
    budget = Budget(20_000)
    with pytest.raises(BudgetExceeded, match="20000"):
        compile(expression).evaluate(DEVICE, budget)


@pytest.mark.parametrize("absorber", ["{} || true", "true ? {} : false", "[1].exists(x, {} || true)", "!({} && false)"])
def test_an_exhausted_budget_is_no_error_that_logic_absorbs(absorber: str) -> None:
    endless = f"{DIGITS}.all(a, {DIGITS}.all(b, {DIGITS}.all(c, a + b + c >= 0)))"
    with pytest.raises(BudgetExceeded):
        compile(absorber.format(endless)).evaluate(DEVICE, Budget(500))


def test_the_budget_counts_over_all_evaluations_and_the_same_each_time() -> None:
    program = compile("device.model == 'a100' && [1, 2].exists(n, device.numa + n == 2)")
    budget = Budget(10_000)
    program.evaluate(DEVICE, budget)
    once = budget.limit - budget.left
    program.evaluate(DEVICE, budget)
    assert budget.limit - budget.left == 2 * once
    exact = Budget(once)
    assert program.evaluate(DEVICE, exact) is True
    with pytest.raises(BudgetExceeded):
        program.evaluate(DEVICE, exact)


def test_the_length_is_bounded_in_bytes() -> None:
    fits = "true //" + "x" * (10 * 1024 - 7)
    assert compile(fits).evaluate(DEVICE, Budget(10)) is True
    for long in (fits + "x", "true //" + "é" * (5 * 1024)):
        with pytest.raises(CompileError, match="10240"):
            compile(long)


NESTING: list[Callable[[int], str]] = [
    lambda n: "(" * n + "true" + ")" * n,
    lambda n: "!" * n + "true",
    lambda n: "-" * n + "1 == 1",
    lambda n: "[" * n + "]" * n + " == []",
    lambda n: "{1: " * n + "1" + "}" * n + " == {}",
    lambda n: "device" + ".a" * n,
    lambda n: "device.a" + "[0]" * n,
    lambda n: "device.a" + ".trim()" * n + " == ''",
    lambda n: "true ? true : " * n + "true",
    lambda n: "1 + " * n + "1 == 1",
    lambda n: "string(" * n + "'a'" + ")" * n + " == 'a'",
    lambda n: "true || (false && (" * n + "true" + "))" * n,
    lambda n: "[1].all(x, " * n + "true" + ")" * n,
    lambda n: "1 + (2 * -(" * n + "1" + "))" * n + " == 1",
    lambda n: "false || true && 1 == 1 + 0 * size([{1: (" * n + "1" + ")}])" * n,
]


@pytest.mark.parametrize("nest", NESTING)
def test_depth_is_bounded_and_no_stack_overflows(nest: Callable[[int], str]) -> None:
    with pytest.raises(CompileError, match="levels deep"):
        compile(nest(150))
    deepest = 1
    for depth in range(1, 130, 3):
        try:
            program = compile(nest(depth))
        except CompileError as error:
            if "levels deep" in error.message:
                break
            continue
        deepest = depth
        try:
            program.evaluate(DEVICE, Budget(100_000))
        except EvaluationError:
            continue
    assert 8 <= deepest <= 100


@pytest.mark.parametrize("text", ["1?1:" * 2500 + "1", "(" * 10_000, "[" * 10_000, "!" * 10_000 + "true", "f(" * 5_000])
def test_an_expression_as_deep_as_its_length_allows_is_refused(text: str) -> None:
    with pytest.raises(CompileError, match="levels deep"):
        compile(text)


def test_the_deepest_expression_leaves_half_of_the_stack_to_the_caller() -> None:
    def under(frames: int, text: str) -> bool:
        if frames:
            return under(frames - 1, text)
        compile.cache_clear()
        return compile(text).evaluate(DEVICE, Budget(10_000))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1200)
    try:
        assert under(500, "(" * 98 + "true" + ")" * 98)
        assert under(500, "[1].all(x, " * 48 + "true" + ")" * 48)
    finally:
        sys.setrecursionlimit(limit)


def test_chains_of_and_and_or_are_as_long_as_the_text_may_be() -> None:
    assert compile(" || ".join(["device.numa == 1"] * 500 + ["true"])).evaluate(DEVICE, Budget(10_000)) is True
    assert compile(" && ".join(["true"] * 1200)).evaluate(DEVICE, Budget(10_000)) is True


TOKENS = r"""
device device.model device['numa'] .vram == != < <= > >= && || ! - + * / % ( ) [ ] { } , : ? . in true false null
1 -9223372036854775808 18446744073709551615u 1.5 0x 'a' "b" r'\' ''' \ '\u00e9' b'x' quantity('1Gi') semver( size(
has( .all(x, .map(x, .exists_one( x .matches('(') .add( // ` if for
"""
PIECES = [*TOKENS.split(), "\n", "é", "\0", chr(0xD800)]


def judge(text: str) -> None:
    """Compile and evaluate: only the three documented errors may come out, each with a message and its place."""
    message, line, column = "fine", 1, 1
    try:
        compile(text).evaluate(DEVICE, Budget(5_000))
    except (EvaluationError, BudgetExceeded) as error:
        message = str(error)
    except CompileError as error:
        message, line, column = error.message, error.line, error.column
    lines = text.split("\n")
    assert message
    assert 1 <= line <= len(lines)
    assert 1 <= column <= len(lines[line - 1]) + 1


@given(st.text(max_size=60))
@settings(max_examples=examples(30, 0.25), deadline=None)
def test_any_text_is_answered_with_an_error_for_people(text: str) -> None:
    judge(text)


@given(st.lists(st.sampled_from(PIECES), max_size=25), st.sampled_from(["", " "]))
@settings(max_examples=examples(90, 0.75), deadline=None)
def test_any_tokens_are_answered_with_an_error_for_people(pieces: list[str], blank: str) -> None:
    judge(blank.join(pieces))


def test_damaged_expressions_are_answered_with_an_error_for_people() -> None:
    rng = random.Random(1)
    sound = (
        "device.model == 'a100' && (device.vram >= quantity('40Gi') || device['numa'] in [0, 1, -2]) && "
        '[1, 2].map(x, x > 1, {"k": x}).exists(m, has(m.k) ? m.k == 2 : !false) && r"\\d".matches("""a""") || 1e3 < .5'
    )
    for _ in range(1000):
        text = list(sound)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 3)] = rng.choice(["", *sound, "'", '"', "\\", "\n", "(", "}", "\ud800", "\0"])
        judge("".join(text))


def test_text_that_is_no_unicode_is_an_error_of_the_device_or_the_expression() -> None:
    with pytest.raises(EvaluationError, match="Unicode"):
        compile("device.model.matches('a')").evaluate({"model": "\ud800"}, Budget(100))
    with pytest.raises(CompileError, match="Unicode"):
        compile("device.model.matches('\ud800')")
    assert compile("device.model == '\ud800'").evaluate({"model": "\ud800"}, Budget(100)) is True


def test_threads_compile_and_evaluate_side_by_side() -> None:
    def work(seed: int) -> list[bool]:
        texts = [f"[{seed}, {n}].exists(x, x + device.numa == {n}) && device.vram < '{n + 41}Gi'" for n in range(100)]
        return [compile(text).evaluate(DEVICE, Budget(1000)) for text in texts]

    with ThreadPoolExecutor(8) as pool:
        assert all(all(results) for results in pool.map(work, range(16)))
