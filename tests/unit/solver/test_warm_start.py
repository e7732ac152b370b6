"""The first incumbent of larger exact models: right, and never to the worse."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.batches import BatchCase
from devalloc_solver import solve_manifests
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.exact import goals, warm_start
from devalloc_solver.exact.device_naming import name_devices
from devalloc_solver.exact.goal_search import GoalSearch
from devalloc_solver.exact.goals import optimize_goals
from devalloc_solver.exact.model import build_model
from devalloc_solver.exact.warm_start import LEAST_SIZE, start_search
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement import GoalLevel, Placement
from devalloc_solver.problem.placement_policy import PACK
from tests.support.column_batches import Batch
from tests.support.manifests import claim, device, device_class, pool

KINDS = ("mixed", "half full", "unlike", "groups", "oneOf", "partitions", "shares")


def warm_search(prepared: DeviceClaimProblem) -> GoalSearch:
    search = GoalSearch(build_model(prepared.snapshot, prepared.allocations, prepared.units))
    start_search(search, prepared.allocations, policy=PACK)
    return search


def problem(kind: str, nodes: int, claims: int) -> DeviceClaimProblem:
    return prepare(read_documents(BatchCase(kind, nodes, claims).documents()))


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_incumbent_is_an_answer_that_the_check_accepts(kind: str) -> None:
    prepared = problem(kind, 20, 20)
    search = warm_search(prepared)
    assert search.is_warm
    placements = name_devices(search)
    assert placements
    assert not Batch(prepared, placements, []).violations()


def test_each_order_of_the_claims_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim of many entries that no first fit places makes each order take long."""
    tried: list[list[str]] = []

    def refuse(_snapshot: object, _allocations: object, units: Sequence[PlacementUnit], **_: object) -> list[Placement]:
        tried.append([unit.demands[0].claim.metadata.name for unit in units])
        return []

    monkeypatch.setattr(warm_start, "place_compactly", refuse)
    cards = pool("cards", devices=[device(f"d{n}", attributes={"i": n}) for n in range(32)])
    entries = [{"constraints": f"device.i >= {n}"} for n in range(32)]
    documents = [cards, claim("chain", *entries), claim("another", {"constraints": "device.i == 1"})]
    warm_search(prepare(read_documents(documents)))
    assert tried == [["chain", "another"], ["another", "chain"]]


def test_small_models_begin_with_nothing() -> None:
    search = warm_search(problem("mixed", 2, 4))
    assert len(search.values) < LEAST_SIZE
    assert not search.is_warm
    assert not any(search.values)


def test_a_search_after_its_deadline_begins_with_nothing() -> None:
    prepared = problem("mixed", 20, 20)
    search = GoalSearch(build_model(prepared.snapshot, prepared.allocations, prepared.units), ends=0.0)
    start_search(search, prepared.allocations, policy=PACK)
    assert not any(search.values)


@pytest.mark.parametrize("kind", ["half full", "oneOf", "groups"])
def test_goals_end_where_they_do_without_a_first_incumbent(kind: str) -> None:
    prepared = problem(kind, 10, 13)

    def levels_of(search: GoalSearch) -> list[GoalLevel]:
        return optimize_goals(search.model, policy=PACK, ends=None, search=search)[1]

    cold = levels_of(GoalSearch(build_model(prepared.snapshot, prepared.allocations, prepared.units)))
    warm = levels_of(warm_search(prepared))
    assert [level for level in warm if level.goal in ("satisfied", "oneOf")] == [
        level for level in cold if level.goal in ("satisfied", "oneOf")
    ]
    (devices,) = (level for level in warm if level.goal == "devices")
    assert devices.is_proven


def test_lower_levels_do_not_outvote_a_higher_one_after_one_of_which_nothing_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More claims of the lowest priority would fit without the one of the middle priority."""
    monkeypatch.setattr(warm_start, "LEAST_SIZE", 0)
    devices = [device(name) for name in "abc"]
    waiting = [
        claim(name, {"deviceClass": "gpu", "requests": {"count": count}}, priority=priority)
        for name, count, priority in (("top", 4, 2), ("mid", 3, 1), ("x", 1, 0), ("y", 1, 0), ("z", 1, 0))
    ]
    answer = solve_manifests([device_class("gpu", driver="gpu"), pool("p", "n", "gpu", devices=devices), *waiting])
    counts = {level["priority"]: level["value"] for level in answer["objective"]["levels"] if "priority" in level}
    assert counts == {2: 0, 1: 1, 0: 0}


@pytest.mark.parametrize("at_once", range(1, 7))
def test_however_many_claims_one_search_decides_the_same_are_satisfied(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Of one priority, none like another: as many as possible, and of those the earliest."""
    monkeypatch.setattr(warm_start, "LEAST_SIZE", 0)
    monkeypatch.setattr(goals, "UNITS_PER_STEP", at_once)
    waiting = [
        claim(f"c{number}", {"deviceClass": "gpu", "constraints": f"device.i in {several}", "requests": {"count": 2}})
        for number, several in enumerate(([1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 1], [1, 3]))
    ]
    cards = pool("p", "n", "gpu", devices=[device(f"d{number}", attributes={"i": number}) for number in range(1, 7)])
    prepared = prepare(read_documents([device_class("gpu", driver="gpu"), cards, *waiting]))
    search = warm_search(prepared)
    assert search.is_warm
    optimize_goals(search.model, policy=PACK, ends=None, search=search)
    assert [number for number, one in enumerate(search.model.satisfied) if search.value(one)] == [0, 2, 4]


def test_no_search_proves_that_nothing_fits_beside_the_units_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two claims of priority 1 one is satisfied, and it is the one that takes all."""
    monkeypatch.setattr(warm_start, "LEAST_SIZE", 0)
    waiting = [
        claim(name, {"deviceClass": "gpu", "requests": {"count": count}}, priority=priority)
        for name, count, priority in (("all", 4, 1), ("most", 3, 1), ("one", 1, 0))
    ]
    cards = pool("p", "n", "gpu", devices=[device(name) for name in "abcd"])
    prepared = prepare(read_documents([device_class("gpu", driver="gpu"), cards, *waiting]))
    search = warm_search(prepared)
    bounds: list[int] = []

    def noted(search: GoalSearch, settled: set[int], priority: int, higher: dict[int, int]) -> int:
        bounds.append(most_beside(search, settled, priority, higher))
        return bounds[-1]

    most_beside = goals._most_beside
    monkeypatch.setattr(goals, "_most_beside", noted)
    _, levels = optimize_goals(search.model, policy=PACK, ends=None, search=search)
    assert [(level.priority, level.value, level.bound) for level in levels[:2]] == [(1, 1, 1), (0, 0, 0)]
    assert bounds == [0], "counting alone would leave room beside the smaller claim"
