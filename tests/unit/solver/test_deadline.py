"""What a deadline does: it cuts short the search that there would have been, and nothing else."""

from __future__ import annotations

import importlib
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.cel.budget import SearchCutShort
from devalloc_solver.deadline import quick_search_end
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.exact import model
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.pipeline import strategy
from devalloc_solver.problem.placement import GoalLevel
from devalloc_solver.problem.placement_policy import PACK
from tests.support.dra_builders import ANY
from tests.support.manifests import Manifest, claim, device, device_class, pool
from tests.unit.solver.dra.test_joint import node_slice, wants

GPU = device_class("gpu", driver="gpu")


def fleet(nodes: int, size: int = 8) -> list[Manifest]:
    return [pool(f"n{n}", f"n{n}", devices=[device(f"g{i}") for i in range(size)]) for n in range(nodes)]


def wanting(name: str, *counts: int, priority: int = 0) -> Manifest:
    """A claim of so many devices, or else so many, or else."""
    each = [{"deviceClass": "gpu", "requests": {"count": count}} for count in counts]
    detail: Manifest = each[0] if len(each) == 1 else {"oneOf": each}
    return claim(name, detail, annotations={"devalloc.io/priority": str(priority)})


def contended(seed: int, nodes: int = 30) -> list[Manifest]:
    """More claims than fit; some would rather have a whole node, and can do with half of one."""
    rng = random.Random(seed)
    wishes = [(8, 4), (5, 2), (1,), (2,), (3,), (5,)]
    return [
        GPU,
        *fleet(nodes),
        *(wanting(f"c{n}", *rng.choice(wishes), priority=rng.choice([0, 5, 10])) for n in range(6 * nodes)),
    ]


def counts(answer: dict[str, Any]) -> list[tuple[int, int]]:
    """(value, bound) of each priority, highest first"""
    levels = answer["objective"]["levels"]
    return [(level["value"], level["bound"]) for level in levels if level["goal"] == "satisfied"]


def without_time(answer: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in answer.items() if k != "seconds"}, sort_keys=True)


class Clock:
    """Stands still, and is past every deadline once it was looked at so often; from then on each look takes a moment.

    If it stood still there too, it would be exactly at the deadline of a search that begins late, and not past it: a
    linear program would get the least time limit, a real millisecond, and the answer would depend on the machine.
    """

    def __init__(self, looks: int) -> None:
        self.looks, self.seen = looks, 0

    def __call__(self) -> float:
        self.seen += 1
        return 0.0 if self.seen <= self.looks else 10_000.0 + 1e-6 * self.seen


def cut_after(looks: int, documents: list[Manifest]) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", Clock(looks))
        return solve_manifests(documents, deadline=1_000)


# -- the same search, cut short --------------------------------------------------------------------------------------


@pytest.mark.parametrize("exact_size", [0, strategy.EXACT_SIZE])
def test_a_deadline_that_is_not_reached_changes_nothing_and_costs_no_first_fit(
    monkeypatch: pytest.MonkeyPatch, exact_size: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("there was time for a search")

    monkeypatch.setattr(strategy, "EXACT_SIZE", exact_size)
    monkeypatch.setattr(strategy, "place_greedily", refuse)
    documents = contended(1, nodes=3)
    assert without_time(solve_manifests(documents, deadline=600)) == without_time(solve_manifests(documents))


@pytest.mark.parametrize("exact_size", [0, strategy.EXACT_SIZE])
def test_wherever_it_is_cut_short_an_answer_is_no_worse_than_the_first_one_and_its_bounds_hold(
    monkeypatch: pytest.MonkeyPatch, exact_size: int
) -> None:
    """That every answer is right is for the check to say, which none of them gets around."""
    monkeypatch.setattr(strategy, "EXACT_SIZE", exact_size)
    documents = contended(2, nodes=4)
    best = counts(solve_manifests(documents))
    assert all(value == bound for value, bound in best)
    first = counts(cut_after(1, documents))
    assert sum(value for value, _ in first) > 0
    for looks in [1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 22, 30, 40, 60]:
        counted = counts(cut_after(looks, documents))
        assert [value for value, _ in first] <= [value for value, _ in counted] <= [value for value, _ in best]
        for (value, bound), (most, _) in zip(counted, best, strict=True):
            assert value <= bound
            assert most <= bound, "the bound is wrong"
            if value < most:
                break  # what follows is bound by less than the optimum is


def test_the_first_answer_makes_room_with_the_alternatives_that_take_fewer_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(strategy, "EXACT_SIZE", 0)
    high = [wanting(f"high{n}", 8, 4, priority=9) for n in range(10)]
    documents = [GPU, *fleet(10), *high, *(wanting(f"low{n}", 4) for n in range(20))]
    answer = solve_manifests(documents, deadline=0)
    assert [value for value, _ in counts(answer)] == [10, 10]


def test_an_answer_cut_short_is_filled_up_with_claims_that_still_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short after the first priority, the exact model has not asked for the others yet."""
    documents = [GPU, *fleet(2), wanting("high", 5, priority=9), *(wanting(f"low{n}", 3) for n in range(3))]
    monkeypatch.setattr(strategy, "EXACT_SIZE", 1_000)
    for looks in range(1, 12):
        assert [value for value, _ in counts(cut_after(looks, documents))] == [1, 3]


def test_an_answer_with_fewer_of_a_higher_priority_has_no_bound_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search found none of 9, all of 5, and that then none of 0 fits: the first fit has what shows otherwise."""
    documents = [
        GPU,
        *fleet(1),
        wanting("high", 5, priority=9),
        wanting("middle", 8, priority=5),
        *(wanting(f"low{n}", 1) for n in range(3)),
    ]
    levels = [GoalLevel("satisfied", 0, 1, 9), GoalLevel("satisfied", 1, 1, 5), GoalLevel("satisfied", 0, 0, 0)]
    monkeypatch.setattr(strategy, "_place_jointly", lambda *_: ([], levels))
    assert counts(solve_manifests(documents, deadline=0)) == [(1, 1), (0, 1), (3, 3)]


# -- nothing but the answer after it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exact_size", [0, strategy.EXACT_SIZE])
def test_no_solver_is_begun_after_the_deadline(monkeypatch: pytest.MonkeyPatch, exact_size: int) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the deadline is over")

    monkeypatch.setattr(strategy, "EXACT_SIZE", exact_size)
    monkeypatch.setattr(cp_model.CpSolver, "solve", refuse)
    monkeypatch.setattr(pywraplp.Solver, "Solve", refuse)
    answer = solve_manifests(contended(3, nodes=6), deadline=0)
    assert answer["optimal"] is False
    assert {c["reason"] for c in answer["claims"] if not c["allocated"]} == {"SearchLimit"}


def test_a_reason_that_was_not_found_in_time_is_not_sought_again_for_equal_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions: list[FeasibilityQuestion] = []
    fits = FeasibilityChecker.fits

    def counted(finder: FeasibilityChecker, question: FeasibilityQuestion) -> bool:
        questions.append(question)
        return fits(finder, question)

    monkeypatch.setattr(FeasibilityChecker, "fits", counted)
    answer = solve_manifests([GPU, *fleet(3), *(wanting(f"c{n}", 3) for n in range(40))], deadline=0)
    assert sum(c["reason"] == "SearchLimit" for c in answer["claims"]) == 40 - 6
    assert len(questions) == 1


# -- what is a deadline ----------------------------------------------------------------------------------------------


WRONG = [
    (float("nan"), ValueError, "not nan"),
    (-1, ValueError, "not -1.0"),
    (10**400, ValueError, "too large: use None"),
    ("5", TypeError, "not a str"),
    (True, TypeError, "not a bool"),
    ([1], TypeError, "not a list"),
]


@pytest.mark.parametrize(("deadline", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_an_invalid_number_of_seconds_is_refused_in_words(deadline: Any, error: type[Exception], message: str) -> None:
    ours, theirs = Fleet.from_manifests([GPU, *fleet(1)]), Fleet.from_manifests([ANY, node_slice("n1", "g")])
    asks: list[Callable[[], object]] = [
        lambda: solve_manifests([GPU, *fleet(1)], deadline=deadline),
        lambda: dra.solve_manifests([], deadline=deadline),
        lambda: ours.allocate_all([wanting("c", 1)], deadline=deadline),
        lambda: theirs.allocate_all([wants("c")], deadline=deadline),
    ]
    for ask in asks:
        with pytest.raises(error, match=r"deadline must be a number of seconds, 0 .* or None for no limit") as caught:
            ask()
        assert message in str(caught.value)
    assert ours.allocate(wanting("c", 8))["allocated"], "nothing was given away"
    assert theirs.allocate(wants("c"))["allocated"], "nothing was given away"


@pytest.mark.parametrize("deadline", [None, float("inf"), 1e300, 600])
def test_all_the_time_in_the_world_is_as_good_as_no_deadline(deadline: float | None) -> None:
    documents = contended(4, nodes=2)
    assert without_time(solve_manifests(documents, deadline=deadline)) == without_time(solve_manifests(documents))


def test_a_unit_whose_search_begins_too_late_is_cut_short_and_its_expressions_are_not_blamed() -> None:
    """A program that hears of expressions gives them all of the time, which a search would then take."""
    prepared = prepare(read_documents([GPU, *fleet(1), wanting("c", 2)]))
    with pytest.raises(SearchCutShort) as cut:
        strategy.solve_unit(prepared.snapshot, prepared.allocations, prepared.units[0], PACK, time.monotonic() - 1)
    assert cut.value.bound is None


@pytest.mark.parametrize(
    ("wall", "cpu", "seconds"),
    [(0.3, 0.3, 0.25), (0.3, 0.1, 0.75), (9.0, 0.001, 1.0), (0.0, 0.0, 0.25)],
    ids=["idle machine", "busy", "very busy", "nothing was prepared"],
)
def test_a_quick_search_has_its_seconds_after_the_preparation_and_more_on_a_busy_machine(
    wall: float, cpu: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 100.0 + wall)
    monkeypatch.setattr(time, "thread_time", lambda: 7.0 + cpu)
    assert quick_search_end(0.25, 100.0, 7.0) == pytest.approx(100.0 + wall + seconds)
    assert quick_search_end(None, 100.0, 7.0) is None


@pytest.mark.parametrize("dialect", ["ours", "kubernetes"])
def test_a_preparation_that_takes_all_of_its_time_leaves_a_quick_search_its_own(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round of a controller reads the whole fleet."""
    stage = importlib.import_module(
        "devalloc_solver.dialects.device_claims.solve"
        if dialect == "ours"
        else "devalloc_solver.dialects.resource_k8s.fleet"
    )
    prepare_soon = stage.prepare

    def prepare_late(*args: Any, **named: Any) -> Any:
        prepared = prepare_soon(*args, **named)
        time.sleep(0.3)
        return prepared

    monkeypatch.setattr(stage, "prepare", prepare_late)
    model.load_solver()
    if dialect == "ours":
        warm = Fleet.from_manifests([GPU, *fleet(4)])
        claims = [wanting(f"c{n}", 2) for n in range(6)]
    else:
        warm = Fleet.from_manifests([ANY, node_slice("n0", "a", "b"), node_slice("n1", "a", "b")])
        claims = [wants(f"c{n}", 1) for n in range(4)]
    answer = warm.allocate_all(claims, 0.25, is_quick=True)
    assert (answer["unproven"], {each["allocated"] for each in answer["claims"]}) == ([], {True})
