"""cel-python as the evaluator of the check: what it is not asked, its bounds, and what it notices."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from devalloc.api.pool import AttributeValue
from devalloc_solver import Fleet, capacity, solve_manifests
from devalloc_solver.cel import closures, device_claims
from devalloc_solver.cel.device_claims import comparison, environment, program
from devalloc_solver.cel.environment import Run
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.operators import OPERATORS
from devalloc_solver.cel.registry import INT, Function
from devalloc_solver.cel.syntax_tree import Call
from devalloc_solver.check import CelResults, cel_results, celpy_engine
from devalloc_solver.check.celpy_engine import UNSUPPORTED_FORMS, TooCostly, UnreadableExpression, UnsupportedForm, Work
from devalloc_solver.check.classes import ClassCatalogue
from tests.support.cel_outcomes import DEVICE, outcome
from tests.support.manifests import claim, device, device_class, pool
from tests.support.sentences import at_length


@pytest.mark.parametrize("form", UNSUPPORTED_FORMS, ids=lambda form: form.name)
def test_an_unsupported_form_is_left_to_the_evaluator_of_the_solver(form: UnsupportedForm) -> None:
    assert celpy_engine.parse(form.example) is None
    assert outcome(form.example) in ((True,) if form.wanted else (False, "error"))
    assert CelResults().holds(form.example, DEVICE) is form.wanted


@pytest.mark.parametrize("form", UNSUPPORTED_FORMS, ids=lambda form: form.name)
def test_a_form_is_unsupported_as_long_as_cel_python_misreads_it(
    form: UnsupportedForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, cel-python reads the form now: remove it from UNSUPPORTED_FORMS."""
    monkeypatch.setattr(celpy_engine, "UNSUPPORTED_FORMS", ())
    try:
        expression = celpy_engine.parse.__wrapped__(form.example)
    except UnreadableExpression:
        return
    assert expression is not None
    assert expression.holds(DEVICE, Work(1000)) is not form.wanted


@pytest.mark.parametrize(
    "text",
    [
        "size([1, 2]) == 2 && device['pcie-root'] == 'pci0000:00'",
        "has(device.model) && !has(device.absent)",
        "['a100', 'h100'].exists(model, device.model == model)",
        "[[1, 2], [3]].all(list, list.size() < 3)",
    ],
)
def test_what_resembles_an_unsupported_form_is_judged(text: str) -> None:
    expression = celpy_engine.parse(text)
    assert expression is not None
    assert expression.holds(DEVICE, Work(1000)) is True


# -- bounds ------------------------------------------------------------------------------------------------------------

DIGITS = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"


def nested_loops(depth: int) -> str:
    return "true" if not depth else f"{DIGITS}.all(x{depth}, {nested_loops(depth - 1)})"


def growing_text(times: int) -> str:
    return "'aaaaaaaa'" + ".replace('a', 'aaaaaaaaaaaaaaaa')" * times + " == device.model"


@pytest.mark.parametrize(
    "text",
    [
        f"true || {nested_loops(9)}",
        f"true || {growing_text(30)}",
        "true || " + " + ".join(["'" + "a" * 40 + "'"] * 30) + ".split('').join('" + "b" * 300 + "') == ''",
        f"[[1, 1]].all(a, {'[[a, a]].all(a, ' * 5}a == a{')' * 5}) || {nested_loops(5)}",
        "true || 'x'.matches('((x{100}){100}){100}') || " + nested_loops(5),
        " || ".join(f"'{'a' * 200}'.matches('(a?){{{n}}}b')" for n in range(90, 99)),
        "true || " + f"{DIGITS}.exists(x, 'a'.replace('a', '{'b' * 500}').replace('b', '{'c' * 500}') == '')",
    ],
)
def test_what_runs_away_is_stopped(text: str) -> None:
    expression = celpy_engine.parse(text)
    started = time.process_time()
    if expression is not None:
        with pytest.raises(TooCostly):
            expression.holds(DEVICE, Work(cel_results.MAX_STEPS))
    assert time.process_time() - started < 2


def spent_on(text: str) -> int:
    expression, work = celpy_engine.parse(text), Work(100_000)
    assert expression is not None
    expression.holds(DEVICE, work)
    return work.spent


def test_a_pattern_costs_by_the_size_of_its_program_for_each_part_of_a_text() -> None:
    small, large = "'x'.matches('aaaaaaaab')", "'x'.matches('(a?){90}b')"  # of as many characters
    assert spent_on(large) >= spent_on(small) + 5, "also on a text of one character"
    long = large.replace("'x'", f"'{'x' * 16 * 20}'")
    assert spent_on(long) >= spent_on(large) + 20 * 5


@pytest.mark.parametrize(
    "text",
    [
        "r'\\' == ' + ' + \"" + "\\n" * 60 + '"',
        "(" * 40 + "true" + ")" * 40,
        " && ".join(["true"] * 300),
        "device.model == '" + "a" * celpy_engine.MAX_TEXT + "'",
    ],
)
def test_what_could_hold_up_the_parser_or_the_stack_is_not_asked(text: str) -> None:
    started = time.process_time()
    assert celpy_engine.parse(text) is None
    assert time.process_time() - started < 2


def test_the_deepest_expression_fits_into_half_of_the_stack() -> None:
    text = " && ".join(["(((((true)))))"] + ["true"] * 20)
    expression = celpy_engine.parse(text)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    try:
        assert expression is not None
        assert expression.holds(DEVICE, Work(1000))
    finally:
        sys.setrecursionlimit(limit)


def test_a_call_gives_cel_python_a_limited_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cel_results, "STEPS_PER_CALL", 300)
    requested: list[str] = []
    parse = celpy_engine.parse
    monkeypatch.setattr(celpy_engine, "parse", lambda text: requested.append(text) or parse(text))
    results = CelResults()
    texts = [f"device.numa == {number}" for number in range(20)]
    verdicts = [results.holds(text, DEVICE) for text in texts]
    assert verdicts == [number == 0 for number in range(20)]
    assert 1 <= len(requested) < 10
    requested.clear()
    results.begin_call()
    assert results.holds("device.numa < 1", DEVICE)
    assert requested


def test_each_expression_is_evaluated_once_for_each_set_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[object] = []
    parse = celpy_engine.parse
    monkeypatch.setattr(celpy_engine, "parse", lambda text: judged.append(text) or parse(text))
    results = CelResults()
    for number in range(30):
        results.holds("device.numa == 1", {"numa": number % 3, "serial": number})
    assert len(judged) == 3


@pytest.mark.parametrize(("constraints", "imported"), [(None, False), ("device.model == 'm'", True)])
def test_only_an_expression_costs_the_import(constraints: str | None, imported: bool) -> None:
    program = (
        "import sys; from devalloc_solver import solve_manifests\n"
        "from tests.support.manifests import claim, device, device_class, pool\n"
        f"one = {{'deviceClass': 'gpu', 'constraints': {constraints!r}}}\n"
        "one = {name: value for name, value in one.items() if value}\n"
        "card = pool('p', 'n', 'gpu', devices=[device('d', attributes={'model': 'm'})])\n"
        "limit = sys.getrecursionlimit()\n"
        "solution = solve_manifests([card, device_class('gpu', driver='gpu'), claim('c', one)])\n"
        "assert solution['claims'][0]['allocated'] and sys.getrecursionlimit() == limit\n"
        "print('celpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(imported)
    assert not done.stderr


# -- what it notices ---------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _compiled_anew() -> Iterator[None]:
    device_claims.compile.cache_clear()
    yield
    device_claims.compile.cache_clear()


def inventory() -> list[dict[str, Any]]:
    attributes: dict[str, Any] = {"model": "a100", "numa": 1, "other": "x"}
    cards = pool("p", "n", "gpu", devices=[device("d", attributes=attributes)])
    return [cards, device_class("gpu", driver="gpu")]


def no_error(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except EvaluationError:
            return True

    return run


_literal_equality = closures._Builder._literal_equality


def _literal_equality_only(builder: closures._Builder, node: Call, compared: Run) -> Run | None:
    return _literal_equality(builder, replace(node, function="_==_"), compared)


MUTATIONS: list[tuple[str, str, Callable[[pytest.MonkeyPatch], None]]] = [
    (
        ">= is <",
        "device.numa >= 2",
        lambda patch: patch.setitem(OPERATORS, "_>=_", OPERATORS["_<_"]),
    ),
    (
        "!= is ==",
        "device.model != 'a100'",
        lambda patch: patch.setattr(closures._Builder, "_literal_equality", _literal_equality_only),
    ),
    (
        "an attribute that is missing is there",
        "has(device.absent)",
        lambda patch: patch.setattr(environment, "_has_attribute", lambda _: lambda _: True),
    ),
    (
        "&& is ||",
        "(device.numa == 1 && device.model == 'h100') || false",
        lambda patch: patch.setitem(OPERATORS, "_&&_", OPERATORS["_||_"]),
    ),
    (
        "two types are equal",
        "device.numa == device.model",
        lambda patch: patch.setattr(
            program, "ENVIRONMENT", replace(environment.ENVIRONMENT, equal=no_error(comparison.equal))
        ),
    ),
    (
        "division rounds down",
        "(0 - 7) / 2 == 0 - 4",
        lambda patch: patch.setitem(
            environment.FUNCTIONS,
            "_/_",
            Function("_/_", [((INT, INT), lambda _, left, right: left // right)], environment.no_overload),
        ),
    ),
]


@pytest.mark.parametrize(("constraints", "mutate"), [row[1:] for row in MUTATIONS], ids=[row[0] for row in MUTATIONS])
def test_a_mistake_in_the_evaluator_of_the_solver_is_noticed(
    constraints: str, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wish = claim("c", {"deviceClass": "gpu", "constraints": constraints})
    assert solve_manifests([*inventory(), wish])["claims"][0]["allocated"] is False
    mutate(monkeypatch)
    device_claims.compile.cache_clear()
    solved = solve_manifests([*inventory(), wish], cel_check="warn")
    problems = [problem["message"] for problem in solved["problems"] if problem["severity"] == "warning"]
    allocated = Fleet.from_manifests(inventory(), cel_check="warn").allocate(wish)
    for messages in (problems, allocated["warnings"]):
        (message,) = (each for each in messages if each.startswith("the evaluators disagree on"))
        assert repr(constraints) in message
        assert "cel-python does not accept" in message
        assert "solver accepts" in message


DISPUTED = claim("hostile", {"deviceClass": "gpu", "constraints": "device.numa >= 0"})


def answers_in_every_way(documents: list[Any], *claims: Any, **options: str) -> list[dict[str, Any]]:
    """By name: of one solve, of a warm fleet jointly, and of a warm fleet one by one."""
    fleet = Fleet.from_manifests(documents, **options)
    every = [
        solve_manifests([*documents, *claims], **options)["claims"],
        Fleet.from_manifests(documents, **options).allocate_all(claims)["claims"],
        [fleet.allocate(each) for each in claims if "devalloc.io/group" not in each["metadata"].get("annotations", {})],
    ]
    return [{each["name"]: each for each in answers} for answers in every]


def test_the_answer_of_a_disputed_claim_is_refused_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celpy_engine.Expression, "holds", lambda *_: False)
    documents = [*inventory(), pool("free", "n", "gpu", devices=[device("d")])]
    for answers in answers_in_every_way(documents, DISPUTED, claim("other", {"deviceClass": "gpu"})):
        refused = answers["hostile"]
        assert (refused["allocated"], refused["reason"], refused["allocations"]) == (False, "CheckFailed", [])
        assert "cel-python does not accept a device with numa=" in refused["message"]
        assert "the evaluator of the solver accepts it" in at_length(refused)
        assert answers["other"]["allocated"]


def test_a_group_with_a_disputed_claim_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celpy_engine.Expression, "holds", lambda *_: False)
    documents = [*inventory(), pool("free", "n", "gpu", devices=[device("d")])]
    members = [
        {**each, "metadata": {**each["metadata"], "annotations": {"devalloc.io/group": "g"}}}
        for each in (DISPUTED, claim("other", {"deviceClass": "gpu"}))
    ]
    for answers in answers_in_every_way(documents, *members)[:2]:
        assert {each["reason"] for each in answers.values()} == {"CheckFailed"}


def test_the_admin_can_have_it_as_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celpy_engine.Expression, "holds", lambda *_: False)
    every = answers_in_every_way(inventory(), DISPUTED, cel_check="warn")
    assert all(answers["hostile"]["allocated"] for answers in every)
    problems = solve_manifests([*inventory(), DISPUTED], cel_check="warn")["problems"]
    assert any("the evaluators disagree" in problem["message"] for problem in problems)
    with pytest.raises(ValueError, match="cel_check must be one of refuse, warn"):
        Fleet.from_manifests(inventory(), cel_check="never")


def test_what_cel_python_is_known_to_misread_or_cannot_read_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    misread = claim("misread", {"deviceClass": "gpu", "constraints": "size([device.numa, 2,]) == 2"})
    assert all(answers["misread"]["allocated"] for answers in answers_in_every_way(inventory(), misread))
    monkeypatch.setattr(celpy_engine, "UNSUPPORTED_FORMS", ())
    celpy_engine.parse.cache_clear()
    assert all(answers["misread"]["allocated"] for answers in answers_in_every_way(inventory(), misread))


def test_a_disagreement_names_the_attributes_and_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celpy_engine.Expression, "holds", lambda *_: False)
    attributes: dict[str, AttributeValue] = {"model": "a100", "numa": 1, "other": "x"}
    results = CelResults()
    for _ in range(2):
        results.begin_call()
        assert results.disagreements == []
        assert results.holds("device.numa == 1 && device.model == 'a100'", attributes) is True
        (message,) = results.disagreements
        assert "model='a100', numa=1," in message
        assert "other" not in message
        monkeypatch.undo()


def test_a_text_that_only_cel_python_refuses_is_a_disagreement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celpy_engine, "UNSUPPORTED_FORMS", ())
    celpy_engine.parse.cache_clear()
    results = CelResults()
    assert results.holds("size([1, 2,]) == 2", {}) is True
    assert results.disagreements[0].startswith("cel-python cannot read")


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError(), RecursionError(), MemoryError()], ids=repr)
def test_whatever_the_parser_of_cel_python_raises_stops_no_answer(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def compile(self, text: str) -> None:
            raise error

    monkeypatch.setattr(celpy_engine, "_environment", Broken)
    celpy_engine.parse.cache_clear()

    answer = solve_manifests([*inventory(), claim("c", {"deviceClass": "gpu", "constraints": "device.numa == 1"})])

    assert answer["claims"][0]["allocated"] is True
    reported = [each["message"] for each in answer["problems"] if "cel-python cannot read" in each["message"]]
    assert len(reported) == (not isinstance(error, RecursionError | MemoryError))
    celpy_engine.parse.cache_clear()


def test_others_get_the_devices_that_a_disputed_claim_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celpy_engine.Expression, "holds", lambda *_: False)
    cards = pool("one", "n", "gpu", attributes={"numa": 1}, devices=[device("d")])
    documents = [device_class("gpu", driver="gpu"), cards]
    hostile = [
        claim(f"h{number}", {"deviceClass": "gpu", "constraints": f"device.numa == 1 && {number} < 9"},
              namespace="hostile", priority=9)
        for number in range(8)
    ]  # fmt: skip
    for number in (1, 2, 8):
        answers = solve_manifests([*documents, *hostile[:number], claim("other", {"deviceClass": "gpu"})])["claims"]
        by_name = {each["name"]: each for each in answers}
        assert by_name["other"]["allocated"], number
        assert {by_name[name]["reason"] for name in by_name if name != "other"} == {"CheckFailed"}


ODD = claim("odd", {"deviceClass": "gpu", "constraints": "device.numa >= 0"})


def odd_on(monkeypatch: pytest.MonkeyPatch, *numas: int) -> None:
    """cel-python judges devices of these NUMA nodes differently."""
    holds = celpy_engine.Expression.holds

    def judge(self: celpy_engine.Expression, attributes: Any, work: Work) -> bool:
        return holds(self, attributes, work) is not (attributes.get("numa") in numas)

    monkeypatch.setattr(celpy_engine.Expression, "holds", judge)


def cards_of(*numas: int) -> list[dict[str, Any]]:
    cards = [device(f"d{number}", attributes={"numa": numa}) for number, numa in enumerate(numas)]
    return [device_class("gpu", driver="gpu"), pool("cards", "n", "gpu", devices=cards)]


def test_what_would_be_refused_does_not_count_as_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    odd_on(monkeypatch, 0, 1)
    counted = capacity(cards_of(0, 0, 1), ODD)
    assert (counted.count, counted.proven, counted.reason) == (0, True, "CheckFailed")
    assert "the evaluators disagree on 'device.numa >= 0'" in str(counted.message)
    assert capacity(cards_of(0, 0, 1), ODD, cel_check="warn").count == 3
    assert capacity(cards_of(0, 0, 1), claim("even", {"deviceClass": "gpu"})).count == 3
    with pytest.raises(ValueError, match="cel_check must be one of refuse, warn"):
        capacity(cards_of(0), ODD, cel_check="never")


def test_capacity_asks_the_second_evaluator_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    requested, refusal = [], ClassCatalogue.refusal

    def slow(catalogue: ClassCatalogue, *arguments: Any) -> str | None:
        requested.append(arguments)
        time.sleep(0.5)
        return refusal(catalogue, *arguments)

    monkeypatch.setattr(ClassCatalogue, "refusal", slow)
    counted = capacity(cards_of(0, 1, 2), ODD, deadline=0.4)
    assert len(requested) <= 1, "each card has another numa"
    assert (counted.count, counted.proven, counted.reason) == (0, False, "SearchLimit")


def test_capacity_counts_the_devices_about_which_both_evaluators_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    odd_on(monkeypatch, 1)
    counted = capacity(cards_of(0, 0, 1), ODD)
    assert (counted.count, counted.reason) == (2, None)
    fleet = Fleet.from_manifests(cards_of(0, 0, 1))
    answers = [fleet.allocate({**ODD, "metadata": {**ODD["metadata"], "name": f"c{number}"}}) for number in range(3)]
    assert [answer["reason"] for answer in answers] == [None, None, "CheckFailed"]
    first = capacity(cards_of(1, 0, 0), ODD)
    assert Fleet.from_manifests(cards_of(1, 0, 0)).allocate(ODD)["reason"] == first.reason == "CheckFailed"
