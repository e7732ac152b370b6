"""Each stage of a joint solve looks at what is left of the deadline: states of nodes, single units, explanations."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from ortools.linear_solver import pywraplp

from devalloc.api.reasons import Reason
from devalloc_solver import capacity
from devalloc_solver.bounds.device_bound import make_device_bound
from devalloc_solver.columns import allocate, patterns, remaining_units, state_space
from devalloc_solver.columns.claim_kinds import group_units
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, prepare
from devalloc_solver.exact.builder import ModelBuilder
from devalloc_solver.explain.explainer import Explainer
from devalloc_solver.pipeline import strategy
from devalloc_solver.pipeline.decomposition import Subproblem
from devalloc_solver.pipeline.flow import explain_left_out
from devalloc_solver.pipeline.strategy import SearchOutcome
from devalloc_solver.place import SearchTimeout, greedy, place, place_on
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PACK
from tests.support.manifests import Manifest, claim, device, device_class, pool

GPU = device_class("gpu", driver="gpu")


class ManualClock:
    """A clock that moves only by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def unlike_pools(nodes: int) -> list[Manifest]:
    """Hardly two nodes are alike: each is a template of its own."""
    rng = random.Random(1)
    return [
        pool(f"n{n}", f"n{n}", devices=[device(f"g{i}", attributes={"g": rng.randrange(10)}) for i in range(20)])
        for n in range(nodes)
    ]


def choosing(name: str, seed: int, choices: int) -> Manifest:
    """A claim with so many choices of one device or else another: 2 ** choices ways."""
    rng = random.Random(seed)
    details: list[Manifest] = [
        {
            "oneOf": [
                {"deviceClass": "gpu", "requests": {"count": 1}, "constraints": f"device.g >= {rng.randrange(4)}"},
                {"deviceClass": "gpu", "requests": {"count": 1}, "constraints": f"device.g <= {5 + rng.randrange(5)}"},
            ]
        }
        for _ in range(choices)
    ]
    return claim(name, *details)


def ready(documents: list[Manifest]) -> DeviceClaimProblem:
    return prepare(read_documents(documents))


def counted(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, also: Callable[[], None]) -> list[None]:
    """A list that grows by each call of a method; ``also`` is done in each."""
    calls: list[None] = []
    original = getattr(owner, name)

    def count(*arguments: Any) -> Any:
        calls.append(None)
        also()
        return original(*arguments)

    monkeypatch.setattr(owner, name, count)
    return calls


# -- the states of nodes ---------------------------------------------------------------------------------------------


def test_looking_at_the_ways_of_kinds_ends_with_the_time_and_is_not_done_again(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    problem = ready([GPU, *unlike_pools(20), *(choosing(f"c{n}", n, 4) for n in range(40))])
    kinds, others = group_units(problem.snapshot, problem.units)
    assert len(kinds) == 40
    assert not others

    def a_millisecond() -> None:
        clock.now += 0.001

    looks = counted(monkeypatch, patterns.Localizer, "localize", a_millisecond)
    monkeypatch.setattr(state_space, "find_patterns", lambda *_, **__: [])
    usage = Usage.of(problem.snapshot, problem.allocations)
    space, refused = state_space.build_state_space(problem.snapshot, usage, kinds, {}, ends=clock.now + 6)
    assert refused == kinds
    assert not space.kinds
    # 6 seconds, and no more than the kind that is being looked at; all of them are 12,800.
    assert 6_000 <= len(looks) <= 6_000 + 16


def test_ways_that_cannot_be_looked_at_in_time_are_left_for_a_first_fit(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    problem = ready([GPU, *unlike_pools(20), *(choosing(f"c{n}", n, 4) for n in range(40))])
    kinds, _ = group_units(problem.snapshot, problem.units)
    looks = counted(monkeypatch, patterns.Localizer, "localize", lambda: None)
    usage = Usage.of(problem.snapshot, problem.allocations)
    _, refused = state_space.build_state_space(problem.snapshot, usage, kinds, {}, ends=clock.now + 0.05)
    assert refused == kinds
    assert not looks


def test_without_the_time_for_a_model_nothing_is_in_use_and_all_might_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_late(*_: object, **__: object) -> None:
        raise SearchTimeout

    problem = ready(
        [GPU, pool("p", "n", devices=[device("d")]), *(claim(name, {"deviceClass": "gpu"}) for name in "ab")]
    )
    monkeypatch.setattr(strategy, "build_model", is_late)
    placements, levels = strategy._place_jointly(problem.snapshot, problem.allocations, problem.units, PACK, None)
    assert placements == []
    assert [(level.goal, level.value, level.bound) for level in levels] == [
        ("satisfied", 0, 2),
        ("pools", 0, 0),
        ("devices", 0, 0),
    ]


# -- units that are no column's --------------------------------------------------------------------------------------


def test_what_there_is_no_time_to_place_best_is_placed_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    """Each of 30 takes a second to place best, and there are 10: all are placed, half of the time being left for it."""
    problem = ready([GPU, *unlike_pools(10), *(choosing(f"c{n}", n, 5) for n in range(30))])
    assert not group_units(problem.snapshot, problem.units)[0], "more than 24 ways"

    def search_for_a_second(*arguments: Any, **options: Any) -> Any:
        clock.now += 1.0
        return place(*arguments, **options)

    monkeypatch.setattr(remaining_units, "place", search_for_a_second)
    placements, levels = allocate.allocate_batch(
        problem.snapshot, problem.allocations, problem.units, policy=PACK, ends=clock.now + 10
    )
    assert len({placed.demand.key for placed in placements}) == 30
    assert levels[0].value == levels[0].bound == 30
    assert clock.now == 106.0, "half of the time, and the search that it was over in"


def test_a_first_fit_in_haste_begins_where_the_unit_before_found_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 10 takes two of a node's devices, and the two that are left do not match."""
    numas = (0, 0, 0, 1)
    pools = [
        pool(f"n{n}", f"n{n}", devices=[device(f"g{i}", attributes={"numa": numa}) for i, numa in enumerate(numas)])
        for n in range(10)
    ]
    pair = {"deviceClass": "gpu", "requests": {"count": 2}}
    claims = [
        claim(f"c{n}", {**pair, "constraints": f"device.numa < {2 + n}", "matchAttributes": ["numa"]})
        for n in range(10)
    ]
    problem = ready([GPU, *pools, *claims])
    nodes: list[Any] = []

    def note(*arguments: Any, **options: Any) -> Any:
        nodes.append(arguments[3])
        return place_on(*arguments, **options)

    monkeypatch.setattr(greedy, "place_on", note)
    for in_haste, questions in ((False, 55), (True, 19)):
        nodes.clear()
        placed = greedy.place_greedily(
            problem.snapshot, problem.allocations, problem.units, policy=PACK, ends=None, in_haste=in_haste
        )
        assert (len(placed), len(nodes)) == (10, questions)


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_a_bound_that_there_is_no_time_for_is_all_claims_and_writes_nothing_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    problem = ready([GPU, *unlike_pools(1), *(claim(f"c{n}", {"deviceClass": "gpu"}) for n in range(30))])
    usage = Usage.of(problem.snapshot, problem.allocations)
    counting = make_device_bound(problem.snapshot, usage, problem.units)
    assert counting.bound(0, {}) == 20
    monkeypatch.setattr(pywraplp.Solver, "Solve", lambda _: pywraplp.Solver.NOT_SOLVED)
    assert counting.bound(0, {}, time.monotonic()) == 30
    assert capfd.readouterr().err == ""


# -- explanations ----------------------------------------------------------------------------------------------------


def test_units_without_time_for_a_search_are_explained_for_a_moment_at_most(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ready([GPU, *unlike_pools(2), *(choosing(f"c{n}", n, 1) for n in range(6))])
    certain, *unsure = problem.units
    part = Subproblem(tuple(unsure), frozenset())
    outcome = SearchOutcome([], [], [part], [part])

    def explain(explainer: Explainer, unit: PlacementUnit) -> list[ClaimAnswer]:
        clock.now += 0.04
        return [ClaimAnswer(*unit.demands[0].key, allocated=False, message="explained")]

    monkeypatch.setattr(Explainer, "explain", explain)
    answers = [*explain_left_out(problem, outcome, 90.0, is_quick=False)]
    assert answers[0].key == certain.demands[0].key
    assert [answer.message == "explained" for answer in answers] == [True] * 3 + [False] * 3
    assert {answer.reason for answer in answers[3:]} == {Reason.SEARCH_LIMIT}


# -- models of CP-SAT ------------------------------------------------------------------------------------------------


def test_a_model_is_built_no_longer_than_there_is_time_and_all_that_has_room_is_placed(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    problem = ready([GPU, *unlike_pools(10), *(choosing(f"c{n}", n, 5) for n in range(30))])
    monkeypatch.setattr(strategy, "EXACT_SIZE", 10**9)

    def a_millisecond() -> None:
        clock.now += 0.001

    made = counted(monkeypatch, ModelBuilder, "spend", a_millisecond)
    outcome = strategy.search_parts(
        problem.snapshot, problem.allocations, problem.units, policy=PACK, ends=clock.now + 6
    )
    assert 6_000 <= len(made) <= 6_001
    assert len({placed.demand.key for placed in outcome.placements}) == 30
    assert outcome.doubtful, "the search was cut short"


def test_capacity_says_by_its_deadline_what_it_has_counted(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    documents = [GPU, *unlike_pools(20)]
    pairs = {"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["g"]}
    most = capacity(documents, claim("c", pairs), deadline=None)
    assert most.proven

    def a_millisecond() -> None:
        clock.now += 0.001

    made = counted(monkeypatch, ModelBuilder, "spend", a_millisecond)
    assert capacity(documents, claim("c", pairs), deadline=None) == most
    all_made = len(made)
    for share in (2, 4):
        made.clear()
        some = capacity(documents, claim("c", pairs), deadline=all_made / 1_000 / share)
        assert not some.proven
        assert 0 < some.count < most.count
        assert len(made) < all_made / share + 5_000, "a model that is small is always built"
    none = capacity(documents, claim("c", pairs), deadline=0)
    assert (none.count, none.proven, none.reason) == (0, False, "SearchLimit")
    with pytest.raises(TypeError, match="deadline must be"):
        capacity(documents, claim("c", pairs), deadline="1")  # type: ignore[arg-type]
