"""What bounds the evaluation of expressions, of both dialects: steps, a share for each claim of a call, and time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.cel import budget
from devalloc_solver.cel.budget import (
    Allowance,
    Budget,
    BudgetExceeded,
    CommonBudgetExceeded,
    Costs,
    OutOfTime,
    evaluate_in_turns,
)
from devalloc_solver.cel.kubernetes import program
from devalloc_solver.dialects.resource_k8s import selectors
from tests.support.dra_builders import ANY
from tests.support.manifests import claim, device, device_class, pool
from tests.unit.solver.dra.test_joint import node_slice, wants

LATER = 10.0**9


@pytest.mark.parametrize("ends", [None, LATER])
def test_a_budget_is_used_up_by_the_step_whether_or_not_there_is_a_deadline(ends: float | None) -> None:
    own = Budget(3 * budget.STEPS_PER_CLOCK_CHECK, ends)
    for _ in range(300):
        own.spend(budget.STEPS_PER_CLOCK_CHECK // 100)
    assert (own.left, own.spent) == (0, own.limit)
    with pytest.raises(BudgetExceeded):
        own.spend(1)
    assert own.spent == own.limit


def test_the_clock_is_looked_at_after_so_many_steps() -> None:
    own = Budget(10**9, time.monotonic() - 1)
    own.spend(budget.STEPS_PER_CLOCK_CHECK)
    with pytest.raises(OutOfTime):
        own.spend(1)


def spending(steps: dict[str, int], costs: Costs, allowance: Allowance) -> Callable[[str], str]:
    """Claims whose expressions take so many steps."""

    def act(claim: str) -> str:
        try:
            costs.evaluate(claim, lambda own: own.spend(steps[claim]), allowance)
            allowance.charge(claim, costs.of(claim))
        except CommonBudgetExceeded:
            if allowance.is_turn:
                raise
            allowance.exhaust()
            return "refused"
        return "answered"

    return act


@pytest.mark.parametrize(
    ("steps", "answered"),
    [
        ({"a": 90, "b": 90, "c": 90}, "abc"),
        ({"a": 10_000_000, "b": 600, "c": 90}, "bc"),
        ({"a": 900, "b": 900, "c": 150}, "ac"),
        ({"a": 1_000, "b": 1_200, "c": 90}, "ac"),
    ],
)
def test_cheap_claims_are_answered_whatever_others_cost(
    steps: dict[str, int], answered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first in their order have what is left."""
    monkeypatch.setattr(budget, "COMMON_BUDGET", 1_200)
    allowance, costs = Allowance(), Costs()
    results = evaluate_in_turns([*steps], allowance, spending(steps, costs, allowance), lambda claim, outcome: outcome)
    assert "".join(claim for claim, one in zip(steps, results, strict=True) if one == "answered") == answered


def test_a_claim_without_time_has_that_reason_and_others_are_answered() -> None:
    allowance = Allowance(ends=time.monotonic() + 0.2)

    def act(claim: str) -> str:
        while claim == "slow":
            budget.check_deadline(allowance.ends)
        return "answered"

    assert evaluate_in_turns(["slow", "quick"], allowance, act, lambda claim, why: str(why)) == [
        budget.OUT_OF_TIME,
        "answered",
    ]


def test_an_expression_is_charged_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "COMMON_BUDGET", 1_000)
    allowance = Allowance()
    allowance.charge("a", 600)
    allowance.charge("a", 600)
    with pytest.raises(CommonBudgetExceeded):
        allowance.charge("b", 401)
    allowance.charge("b", 400)


QUICK = 0.01
"""Seconds of calls that are called again: less than one evaluation of ``spend_slowly`` takes."""


def judge(first: int, costs: Costs, allowance: Allowance) -> int:
    """Judge three devices one after the other, from one of them on, each in 400,000 steps; with which to go on."""
    for number in range(first, 3):
        try:
            costs.evaluate("dear", spend_slowly, allowance)
        except OutOfTime:
            return number
    return 3


def spend_slowly(own: Budget) -> None:
    for _ in range(40):
        own.spend(budget.STEPS_PER_CLOCK_CHECK)
        time.sleep(0.0005)


def test_quick_calls_come_to_an_end_however_little_time_each_of_them_has() -> None:
    """What is cut short cannot be gone on with. So of each call one evaluation that was cut before is completed."""
    costs, allowance, come_to = Costs(), Allowance(), [0]
    while come_to[-1] < 3 and len(come_to) < 9:
        started = time.monotonic()
        allowance.begin(started + QUICK, started, is_quick=True)
        come_to.append(judge(come_to[-1], costs, allowance))
    assert come_to == [0, 0, 1, 2, 3]


def test_other_calls_end_in_time_though_evaluations_were_cut_before() -> None:
    costs, allowance = Costs(), Allowance()
    for _ in range(3):
        allowance.begin(time.monotonic() + QUICK)
        allowance.ends = time.monotonic() + QUICK
        assert judge(0, costs, allowance) == 0


# -- each bound alone --------------------------------------------------------------------------------------------------

ENDLESS = 10**15
"""Steps that nothing here takes."""


def dear_claim(name: str = "dear", times: int = 3) -> dict[str, Any]:
    """A DeviceClaim whose expression takes minutes to evaluate."""
    numbers = f"[{','.join(map(str, range(99)))}]"
    expression = "device.kind == -1"
    for turn in range(times):
        expression = f"{numbers}.exists(x{turn}, {expression})"
    return claim(name, {"deviceClass": "gpu", "constraints": expression})


def own_fleet() -> list[dict[str, Any]]:
    devices = [device(f"d{number}", attributes={"kind": number}) for number in range(40)]
    return [device_class("gpu", driver="gpu"), pool("p", devices=devices)]


def test_steps_alone_end_an_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 20_000)
    (one,) = solve_manifests([*own_fleet(), dear_claim()])["claims"]
    assert (one["reason"], one["exceeded"]) == ("ExpressionTooExpensive", "expression")


def test_the_common_budget_alone_ends_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", ENDLESS)
    monkeypatch.setattr(budget, "COMMON_BUDGET", 20_000)
    claims = [dear_claim(), claim("plain", {"deviceClass": "gpu"})]
    dear, plain = solve_manifests([*own_fleet(), *claims])["claims"]
    assert (dear["reason"], dear["exceeded"]) == ("ExpressionTooExpensive", "common")
    assert plain["allocated"]


def test_what_the_expressions_of_classes_cost_is_no_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "COMMON_BUDGET", 20_000)
    (dear,) = dear_claim(times=2)["spec"]["claims"]
    documents = [device_class("gpu", driver="gpu", constraints=f"!({dear['constraints']})"), own_fleet()[1]]
    answers = solve_manifests([*documents, claim("one", {"deviceClass": "gpu"}), claim("two", {"deviceClass": "gpu"})])
    assert [one["allocated"] for one in answers["claims"]] == [True, True]


def test_steps_alone_end_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPRESSION_BUDGET", "COMMON_BUDGET"):
        monkeypatch.setattr(budget, name, ENDLESS)
    dear, plain = solve_manifests([*own_fleet(), dear_claim(), claim("plain", {"deviceClass": "gpu"})])["claims"]
    assert (dear["reason"], dear["exceeded"]) == ("ExpressionTooExpensive", "expression")
    assert f"more than {budget.EVALUATION_BUDGET} units for one device" in dear["message"]
    assert plain["allocated"]


def test_the_clock_alone_ends_expressions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EVALUATION_BUDGET", "EXPRESSION_BUDGET", "COMMON_BUDGET"):
        monkeypatch.setattr(budget, name, ENDLESS)
    claims = [dear_claim(), claim("plain", {"deviceClass": "gpu"})]
    dear, plain = solve_manifests([*own_fleet(), *claims], deadline=0.1)["claims"]
    assert (dear["reason"], dear["exceeded"]) == ("SearchLimit", "time")
    assert plain["allocated"]


# -- resource.k8s.io ---------------------------------------------------------------------------------------------------

NUMBERS = str([*range(60)])


def costly(number: int) -> str:
    """Some ten thousand units on each device; true for all of them."""
    return f"{NUMBERS}.all(x, {NUMBERS}.all(y, x + y != {1000 + number} && device.attributes['gpu.io'].i >= 0))"


def selecting(name: str, *expressions: str) -> dict[str, Any]:
    one = wants(name)
    exactly = one["spec"]["devices"]["requests"][0]["exactly"]
    exactly["selectors"] = [{"cel": {"expression": text}} for text in expressions]
    return one


@pytest.fixture
def cluster() -> list[dict[str, Any]]:
    devices = [{"name": f"d{n}", "attributes": {"i": {"int": n}}} for n in range(4)]
    one = node_slice("n", 4)
    one["spec"]["driver"] = "gpu.io"
    one["spec"]["devices"] = devices
    return [ANY, one]


def messages_by_name(answer: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["reason"] and one["message"] for one in answer["claims"]}


def test_a_selector_has_a_budget_over_all_devices(
    cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 60_000)
    claims = [selecting("bad", "true", costly(0)), selecting("good", "device.attributes['gpu.io'].i >= 0")]
    answer = dra.solve_manifests([*cluster, *claims])
    assert messages_by_name(answer)["good"] is None
    (bad,) = [one for one in answer["claims"] if one["name"] == "bad"]
    assert bad["reason"] == "ExpressionTooExpensive"
    assert "request r" in bad["message"]
    assert f"selector #1: {budget.TOO_EXPENSIVE}" in bad["message"]
    fleet = Fleet.from_manifests(cluster)
    for _ in range(2):
        assert fleet.allocate(claims[0]) == bad
    with pytest.raises(dra.AllocationError, match="too expensive"):
        dra.allocate("n", claims[:1], cluster[:1], cluster[1:])


def test_a_selector_has_a_budget_on_each_device(cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", ENDLESS)
    monkeypatch.setattr(budget, "COMMON_BUDGET", ENDLESS)
    for module in (program, selectors):
        monkeypatch.setattr(module, "COST_LIMIT", 5_000)
    pending = selecting("dear", costly(0))
    answers = [*dra.solve_manifests([*cluster, pending])["claims"], Fleet.from_manifests(cluster).allocate(pending)]
    assert [(one["reason"], one["exceeded"]) for one in answers] == [("NoMatchingDevices", "device")] * 2


def test_the_clock_alone_ends_selectors(cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EXPRESSION_BUDGET", "COMMON_BUDGET"):
        monkeypatch.setattr(budget, name, ENDLESS)
    monkeypatch.setattr(selectors, "COST_LIMIT", ENDLESS)
    deep = f"{NUMBERS}.all(v, {NUMBERS}.all(w, {costly(0)}))"
    (one,) = dra.solve_manifests([*cluster, selecting("dear", deep)], deadline=0.1)["claims"]
    assert (one["reason"], one["exceeded"]) == ("SearchLimit", "time")


def test_a_class_with_such_a_selector_is_valid_and_too_expensive(
    cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 60_000)
    heavy = {**cluster[0], "spec": {"selectors": [{"cel": {"expression": costly(0)}}]}}
    (one,) = dra.solve_manifests([heavy, cluster[1], wants("c")])["claims"]
    assert one["reason"] == "ExpressionTooExpensive"
    assert budget.TOO_EXPENSIVE in one["message"]


def test_the_selectors_of_all_claims_have_a_budget_in_common(
    cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "COMMON_BUDGET", 400_000)
    claims = [selecting(f"bad{n}", costly(n)) for n in range(8)] + [selecting("good", "true")]
    answers = {each["name"]: each for each in dra.solve_manifests([*cluster, *claims])["claims"]}
    refused = [name for name, each in answers.items() if "common budget" in str(each.get("causes"))]
    assert answers["good"]["allocated"]
    assert "bad0" not in refused
    assert "bad7" in refused


def test_a_late_answer_is_not_remembered(cluster: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    claims = [selecting("c", costly(0)), selecting("none", f"{costly(1)} && device.attributes['gpu.io'].i > 9")]
    expected = [dra.solve_manifests([*cluster, one])["claims"][0] for one in claims]
    fleet = Fleet.from_manifests(cluster)
    monkeypatch.setattr(budget, "MIN_SECONDS", 0.0)
    assert [fleet.allocate(one, 0.0)["reason"] for one in claims] == ["SearchLimit", "SearchLimit"]
    assert [fleet.allocate(one) for one in claims] == expected


def test_an_invalid_deadline_is_refused(cluster: list[dict[str, Any]]) -> None:
    fleet = Fleet.from_manifests(cluster)
    with pytest.raises(ValueError, match="deadline must be"):
        fleet.allocate(wants("c"), -1.0)
    with pytest.raises(TypeError, match="deadline must be"):
        dra.allocate("n", [wants("c")], cluster[:1], cluster[1:], deadline="soon")  # type: ignore[arg-type]
    assert solve_manifests([])["claims"] == []
