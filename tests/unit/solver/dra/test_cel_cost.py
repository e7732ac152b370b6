"""The cost of an evaluation bounds its work: what a function costs grows with what it has to do."""

from __future__ import annotations

import time

import pytest

from devalloc_solver.cel.budget import Budget, BudgetExceeded, OutOfTime
from devalloc_solver.cel.device_claims import EvaluationError as OwnError
from devalloc_solver.cel.device_claims import compile as compile_own
from devalloc_solver.cel.kubernetes import CelDevice, EvaluationError, ExhaustedError, compile
from devalloc_solver.cel.kubernetes.environment import FUNCTIONS
from devalloc_solver.cel.library.strings import compile_pattern, find_last
from devalloc_solver.cel.values import Frame

DEVICE = CelDevice("d", {"d": {"model": "a"}}, {})
LONG = "1.0.0-" + "1." * 120 + "1"


def cost(name: str, *arguments: object) -> int:
    frame = Frame(None, Budget(10**9), 0)
    FUNCTIONS[name](frame, *arguments)
    return frame.budget.spent


def own_cost(expression: str) -> int:
    budget = Budget(10**9)
    compile_own(expression).evaluate({"model": "a"}, budget)
    return budget.limit - budget.left


def doubled(times: int, start: str, last: str) -> str:
    """``last`` with ``$`` for ``start`` doubled ``times`` over."""
    text = last.replace("$", f"v{times}")
    for at in range(times, 0, -1):
        text = f"cel.bind(v{at}, v{at - 1} + v{at - 1}, {text})"
    return f"cel.bind(v0, {start}, {text})"


@pytest.mark.parametrize(
    "expression",
    [
        'lists.range(30000).all(x, !"a".matches("b" + string(x) + "{1,900}"))',
        'lists.range(1000).all(x, "a".find("b" + string(x) + "(.{1,90}){1,10}") == "")',
        doubled(14, '"aaaaaaaaaa"', '$.findAll("").size() > 0'),
        doubled(16, '"aaaaaaaaaa"', 'lists.range(20000).all(x, $ + "b" == $ + "b")'),
        doubled(16, '"aaaaaaaaaa"', 'cel.bind(m, {$ + "b": 1}, lists.range(2000).all(x, m[$ + "b"] == 1))'),
        f'cel.bind(v, semver("{LONG}"), lists.range(90000).all(x, !v.isLessThan(v)))',
    ],
)
def test_what_is_dear_is_exhausted(expression: str) -> None:
    with pytest.raises(ExhaustedError):
        compile(expression, ()).matches(DEVICE)


@pytest.mark.parametrize("limit", [10**12, 10**15])
def test_the_clock_alone_ends_what_is_dear(limit: int) -> None:
    """There is no end of steps: a list of lists of lists would be gone through for hours."""
    numbers = str([*range(100)])
    dear = f"{numbers}.all(x, {numbers}.all(y, {numbers}.all(z, {numbers}.all(w, x + y + z + w >= 0))))"
    with pytest.raises(OutOfTime):
        compile(dear, ()).matches(DEVICE, Budget(limit, time.monotonic()))
    with pytest.raises(OutOfTime):
        compile_own(dear).evaluate({}, Budget(limit, time.monotonic()))


def test_a_pattern_costs_its_program_however_short_its_text() -> None:
    assert cost("matches", "a", "b{1,900}") > 1800 > 20 * cost("matches", "a", "b{1,9}")
    assert cost("matches", "a" * 100, "b{1,900}") > 10 * 1800 // 4


def test_a_kept_pattern_costs_as_much_as_a_new_one() -> None:
    compile_pattern.cache_clear()
    new = cost("findAll", "abab", "[ab]{1,50}")
    assert cost("findAll", "abab", "[ab]{1,50}") == new


def test_each_match_costs() -> None:
    assert cost("findAll", "a" * 1000, "a") - cost("findAll", "b" * 1000, "a") == 1000 * 10


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("aabaabaab" * 3, "aabaabaab"),
        ("a" * 30, "a" * 9),
        ("xyz", "abcdefghij"),
        ("abcdefgh", "abcdefgh"),
        ("a" * 20, "b" * 8),
    ],
)
def test_the_last_place_is_found_as_python_finds_it(text: str, part: str) -> None:
    assert find_last(text, part) == text.rfind(part)


def test_own_dialect_charges_the_program_of_a_pattern_every_time() -> None:
    one, other = (own_cost(f"!device.model.matches('b' + string({n}) + '{{1,900}}')") for n in (1, 2))
    assert one == other == own_cost("!device.model.matches('b' + string(1) + '{1,900}')")
    assert one > 3000


def test_own_dialect_ends_patterns_built_at_run_time() -> None:
    hundred = "[" + ",".join(map(str, range(100))) + "]"
    attack = f"{hundred}.all(x, {hundred}.all(y, !'a'.matches('b' + string(x) + 'z' + string(y) + '{{1,900}}')))"
    with pytest.raises(BudgetExceeded):
        compile_own(attack).evaluate({}, Budget(500_000))


def test_own_dialect_charges_long_versions() -> None:
    assert own_cost(f"semver('{LONG}') == semver('{LONG}')") > own_cost("semver('1.0.0') == semver('1.0.0')") + 100


@pytest.mark.parametrize("text", ["1_" * 50_000, "1" * 50_000 + "x", "0x" + "f" * 50_000, "9" * 50_000, "1." * 50_000])
@pytest.mark.parametrize("function", ["double", "duration"])
def test_a_long_text_is_read_in_linear_time(function: str, text: str) -> None:
    """Quadratic readers would not end here."""
    with pytest.raises(EvaluationError):
        cost(function, text)


def test_own_dialect_reads_a_long_double_in_linear_time() -> None:
    with pytest.raises(OwnError):
        compile_own(f"double('{'1' * 9_000}x' + device.model) > 1.0").evaluate({"model": "a"}, Budget(10**6))
