"""The warm solver of the loop gets what changed in the documents, and nothing of a round stays behind."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import pytest

from devalloc.api.node_rules import Restrictions
from devalloc.api.owner_names import MACHINE, owner_document, owner_name
from devalloc.controller.reconcile import searches as searches_module
from devalloc.controller.reconcile.round_solver import RoundSolver
from devalloc.controller.reconcile.searches import BackgroundSearches, search_with_new_fleet
from devalloc_solver import AnswerRefused, Fleet, solve_manifests
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool

Object = dict[str, Any]


def test_a_decision_that_was_not_written_holds_nothing() -> None:
    state = [gpu_pool(devices=1), gpu_class(), gpu_claim("a"), gpu_claim("b")]
    warm = RoundSolver()
    for waiting in (["a", "b"], ["b"]):
        documents = [d for d in state if d["kind"] != "DeviceClaim" or d["metadata"]["name"] in waiting]
        answer = warm(documents, placement="pack", deadline=None)
        assert [a["name"] for a in answer["claims"] if a["allocated"]] == waiting[:1]


def test_the_warm_fleet_gets_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[str] = []
    monkeypatch.setattr(Fleet, "update", _noting(Fleet.update, updates))
    monkeypatch.setattr(Fleet, "delete", _noting(Fleet.delete, updates))
    warm = RoundSolver()
    state = [gpu_pool("p"), gpu_pool("q"), gpu_class()]
    warm(state, placement="pack", deadline=None)
    warm(copy.deepcopy(state), placement="pack", deadline=None)
    assert updates == []
    warm([gpu_pool("p", devices=5), gpu_class()], placement="pack", deadline=None)
    assert sorted(updates) == ["p", "q"]


def test_the_placement_may_change() -> None:
    held = {**gpu_claim("a"), "status": {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}}
    state = [gpu_pool("p", node="n1"), gpu_pool("q", node="n2"), gpu_class(), held, gpu_claim("b")]
    warm = RoundSolver()
    for placement, node in (("pack", "n1"), ("spread", "n2"), ("pack", "n1")):
        answer = warm(state, placement=placement, deadline=None)
        assert [each["node"] for each in answer["claims"]] == ["n1", node]


def test_an_error_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [gpu_pool(devices=1), gpu_class(), gpu_claim("a")]
    warm = RoundSolver()
    warm(state[:2], placement="pack", deadline=None)
    with monkeypatch.context() as patch:
        for verb in ("allocate", "allocate_all"):
            patch.setattr(Fleet, verb, _refusing)
        with pytest.raises(AnswerRefused):
            warm(state, placement="pack", deadline=None)
    assert warm(state, placement="pack", deadline=None)["claims"][0]["allocated"]


def test_a_problem_of_a_machine_is_gone_once_what_it_holds_is_another_device() -> None:
    def part(name: str, device: str) -> Object:
        one, entry = gpu_claim("vm"), {"devicePoolName": "p", "deviceName": device}
        key = "default", owner_name(MACHINE, "vm", name)
        return owner_document(key, one, {}, one["spec"], Restrictions(), [entry])

    state, warm = [gpu_pool(devices=2), gpu_class(), part("", "d0")], RoundSolver()
    for device, count in (("d0", 1), ("d1", 0)):
        problems = warm([*state, part("io", device)], placement="pack", deadline=None)["problems"]
        assert [one["kind"] for one in problems] == [MACHINE] * count


@pytest.mark.parametrize("another", ["b", "c"], ids=["has other devices now", "is new"])
def test_devices_that_several_hold_are_a_problem_although_only_claims_changed(another: str) -> None:
    def held(name: str, device: str) -> Object:
        return {**gpu_claim(name), "status": {"allocations": [{"devicePoolName": "p", "deviceName": device}]}}

    state, warm = [gpu_pool(devices=2), gpu_class(), held("a", "d0")], RoundSolver()
    for documents, count in (([held("b", "d1")], 0), ([held(another, "d0")], 2), ([held("b", "d1")], 0)):
        problems = warm([*state, *documents], placement="pack", deadline=None)["problems"]
        assert [one["name"] for one in problems] == ["a", another][:count]


def test_a_round_after_one_that_gave_devices_looks_only_at_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, warm = [gpu_pool(devices=4), gpu_class()], RoundSolver()
    warm(documents, placement="pack", deadline=None)
    monkeypatch.setattr(Fleet, "allocate_all", _refusing)
    for name in "abc":
        answers = warm([*documents, gpu_claim(name)], placement="pack", deadline=None)["claims"]
        (given,) = (each for each in answers if each["name"] == name)
        documents.append({**gpu_claim(name), "status": {"allocations": given["allocations"]}})


def test_claims_of_which_none_fits_are_answered_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [gpu_pool(devices=2), gpu_class()]
    claims = [gpu_claim("a", 3), gpu_claim("b", 4), gpu_claim("c", 5)]
    warm = RoundSolver()
    warm(state, placement="pack", deadline=None)
    joint: list[str] = []
    monkeypatch.setattr(Fleet, "allocate_all", lambda fleet, claims, *_, **__: joint.append("solved"))
    answers = warm([*state, *claims], placement="pack", deadline=None)["claims"]
    monkeypatch.undo()
    assert not joint
    assert answers == solve_manifests([*state, *claims])["claims"]


def test_claims_that_take_longer_to_refuse_than_a_round_has_are_left_to_a_joint_solve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state, claims = [gpu_pool(devices=2), gpu_class()], [gpu_claim("a", 3), gpu_claim("b", 4)]
    searches = BackgroundSearches(search_with_new_fleet("pack"))
    warm, alone = RoundSolver(searches=searches), Mock(wraps=Fleet.allocate)
    monkeypatch.setattr(Fleet, "allocate", lambda *arguments, **options: alone(*arguments, **options))
    monkeypatch.setattr(searches_module, "QUICK_SECONDS", 0.0)
    with searches.in_thread():
        warm(state, placement="pack", deadline=None)
        warm([*state, *claims], placement="pack", deadline=None)
        assert not alone.called
    warm([*state, *claims], placement="pack", deadline=None)
    assert alone.call_count == 2, "without a thread there is no such limit"


def test_claims_of_which_some_fit_are_answered_jointly() -> None:
    state = [gpu_pool(devices=2), gpu_class()]
    claims = [gpu_claim("a", 3), gpu_claim("b", 1), gpu_claim("c", 2)]
    warm = RoundSolver()
    warm(state, placement="pack", deadline=None)
    answers = warm([*state, *claims], placement="pack", deadline=None)["claims"]
    assert answers == solve_manifests([*state, *claims])["claims"]


def _held() -> Object:
    return {**gpu_claim("a"), "status": {"allocations": [{"devicePoolName": "p", "deviceName": "d0"}]}}


def test_a_settled_claim_keeps_its_devices_without_an_answer_also_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others, held, wanted = [gpu_pool(devices=2), gpu_class()], _held(), gpu_claim("b")
    warm = RoundSolver()
    before = warm([*others, held], placement="pack", deadline=None)["claims"]
    warm.settle([held])
    for is_failing in (False, True, False):
        with monkeypatch.context() as patch:
            if is_failing:
                patch.setattr(Fleet, "allocate", _refusing)
                with pytest.raises(AnswerRefused):
                    warm([*others, wanted], placement="pack", deadline=None)
                continue
        (answer,) = warm([*others, wanted], placement="pack", deadline=None)["claims"]
        assert answer["allocations"] == [{"devicePoolName": "p", "deviceName": "d1"}]
        assert not warm.has_unsettled
    warm.unsettle([held])
    assert warm([*others, held], placement="pack", deadline=None)["claims"] == before
    warm.settle([held])
    warm.unsettle([held])
    assert warm(others, placement="pack", deadline=None)["claims"] == []
    assert len(warm([*others, gpu_claim("c", 2)], placement="pack", deadline=None)["claims"][0]["allocations"]) == 2


def test_a_settled_claim_that_goes_frees_its_devices_although_nothing_else_changes() -> None:
    others, held, wanted = [gpu_pool(devices=1), gpu_class()], _held(), gpu_claim("b")
    warm = RoundSolver()
    warm([*others, held], placement="pack", deadline=None)
    warm.settle([held])
    assert not warm([*others, wanted], placement="pack", deadline=None)["claims"][0]["allocated"]
    warm.unsettle([held])
    assert warm.update(others)
    assert warm([*others, wanted], placement="pack", deadline=None)["claims"][0]["allocated"]


def test_a_settled_claim_with_another_answer_is_reported() -> None:
    others, held = [gpu_pool(devices=2), gpu_class()], _held()
    warm = RoundSolver()
    warm([*others, held], placement="pack", deadline=None)
    warm.settle([held])
    answer = warm([gpu_pool("q"), gpu_class()], placement="pack", deadline=None)
    assert answer["claims"] == []
    assert warm.has_unsettled
    warm.unsettle([held])
    (answer,) = warm([gpu_pool("q"), gpu_class(), held], placement="pack", deadline=None)["claims"]
    assert answer["lost"]
    assert not warm.has_unsettled


def test_after_the_restore_of_a_backup_a_claim_has_what_the_backup_says() -> None:
    """Versions are smaller then. What the claim had later is free, and what it had before is not."""
    warm = RoundSolver()
    fleet = [gpu_pool("p", devices=2), gpu_class()]
    for version, device in ((12, "d1"), (9, "d0")):
        held = {**gpu_claim("a"), "status": {"allocations": [{"devicePoolName": "p", "deviceName": device}]}}
        held["metadata"] = {**held["metadata"], "resourceVersion": str(version)}
        documents = [*fleet, held, gpu_claim("b")]
        answer = warm(documents, placement="pack", deadline=None)
        assert answer["claims"] == solve_manifests(documents)["claims"]


def test_a_claim_without_a_spec_is_refused_and_stops_no_other() -> None:
    bare = {name: part for name, part in gpu_claim("bare").items() if name != "spec"}
    warm = RoundSolver()
    state = [gpu_pool(devices=1), gpu_class(), bare]
    for claims in ([], [gpu_claim("a")], [gpu_claim("a"), {**bare, "spec": gpu_claim("x")["spec"]}]):
        documents = [*state[:2], *claims] if len(claims) == 2 else [*state, *claims]
        assert warm(documents, placement="pack", deadline=None)["claims"] == solve_manifests(documents)["claims"]


def _refusing(self: Fleet, claims: object, deadline: float | None = None, **_: Any) -> dict[str, Any]:
    raise AnswerRefused("no")


def _noting(method: Any, updates: list[str]) -> Any:
    def noting(self: Fleet, document: Object, **options: bool) -> Any:
        updates.append(document["metadata"]["name"])
        return method(self, document, **options)

    return noting
