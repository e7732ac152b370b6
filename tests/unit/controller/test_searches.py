"""Claims that take long to answer: searched for beside the loop, remembered, and nobody waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from devalloc.controller import searches as searches_module
from devalloc.controller.searches import OTHERS, Searches, search_anew
from devalloc.controller.warm import WarmSolver
from devalloc_solver import budget
from devalloc_solver.parts import Summary
from devalloc_solver.reasons import SEARCHING
from tests.support.manifests import claim, device, device_class, pool
from tests.support.waiting import until

Manifest = dict[str, Any]


def answer(name: tuple[str, str], *, reason: str | None) -> Manifest:
    return {"namespace": name[0], "name": name[1], "allocated": reason is None, "reason": reason, "allocations": []}


@dataclass
class FakeFleet:
    """Claims compete by their first letter; those of ``h`` are hard: they are only answered with much time."""

    state: str = ""
    """what parts depend on beside their claims"""
    finds: bool = False
    """whether a round that may look finds places for the hard ones, though it proves nothing"""
    asked: list[list[str]] = field(default_factory=list)

    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> Manifest:
        names = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in claims]
        self.asked.append([name for _, name in names])
        parts = {name[1][0] for name in names if name[1].startswith("h-hard")}
        hard = [name for name in names if name[1][0] in parts and (is_quick or not self.finds)]
        return {
            "claims": [answer(name, reason="SearchLimit" if name in hard else None) for name in names],
            "optimal": not hard,
            "seconds": 0.0,
            "problems": [],
            "unproven": ["/".join(name) for name in hard],
        }

    def parts(self, claims: Iterable[Manifest], deadline: float | None = None) -> list[Summary]:
        found: dict[str, list[Manifest]] = {}
        for each in claims:
            found.setdefault(each["metadata"]["name"][0], []).append(each)
        return [
            Summary(
                tuple(((each["metadata"]["namespace"], each["metadata"]["name"]),) for each in members),
                {(each["metadata"]["namespace"], each["metadata"]["name"]): 0 for each in members},
                f"{part} {self.state} {len(members)}",
            )
            for part, members in found.items()
        ]

    def delete(self, document: Manifest) -> None:
        pass


@dataclass
class Beside:
    """Searches with a search that goes on until it is let go."""

    go: threading.Event = field(default_factory=threading.Event)
    began: list[list[str]] = field(default_factory=list)
    error: Exception | None = None

    def search(self, documents: Sequence[Manifest], claims: Sequence[Manifest], deadline: float | None) -> Manifest:
        self.began.append([each["metadata"]["name"] for each in claims])
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        names = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in claims]
        return {"claims": [answer(name, reason="DevicesInUse") for name in names], "optimal": True}

    def close(self) -> None:
        self.go.set()


@pytest.fixture
def beside() -> Iterator[Beside]:
    with closing(Beside()) as made:
        yield made


@pytest.fixture
def searches(beside: Beside) -> Iterator[Searches]:
    made = Searches(beside.search)
    with made.beside():
        yield made
        beside.go.set()


HARD, EASY = claim("h-hard", {}, namespace="hard"), claim("e", {}, namespace="easy")


def told(found: Manifest) -> dict[str, object]:
    """What each claim is told: its reason, None where it has its devices, SEARCHING where nothing."""
    return {each["name"]: SEARCHING if each.get(SEARCHING) else each["reason"] for each in found["claims"]}


def test_easy_claims_are_answered_while_hard_ones_are_searched_for(searches: Searches, beside: Beside) -> None:
    fleet = FakeFleet()
    assert told(searches.solve(fleet, [], [HARD, EASY], 10.0)) == {"h-hard": SEARCHING, "e": None}
    until(lambda: beside.began, "the search begins")
    assert told(searches.solve(fleet, [], [HARD, EASY], 10.0)) == {"h-hard": SEARCHING, "e": None}
    assert fleet.asked[-1] == ["e"], "the hard claim is not tried meanwhile"
    beside.go.set()
    until(searches.news, "the search is over")
    found = searches.solve(fleet, [], [HARD, EASY], 10.0)
    assert told(found) == {"h-hard": "DevicesInUse", "e": None}
    assert not found[SEARCHING]


def test_what_was_searched_for_is_not_again_as_long_as_nothing_changes(searches: Searches, beside: Beside) -> None:
    fleet = FakeFleet()
    beside.go.set()
    searches.solve(fleet, [], [HARD], 10.0)
    until(searches.news, "the search is over")
    touched = {**HARD, "metadata": {**HARD["metadata"], "annotations": {"example.com/note": "again"}}}
    for each in (HARD, touched, HARD):
        assert told(searches.solve(fleet, [], [each, EASY], 10.0)) == {"h-hard": "DevicesInUse", "e": None}
    assert len(beside.began) == 1
    fleet.state = "something is free now"
    assert told(searches.solve(fleet, [], [HARD], 10.0)) == {"h-hard": SEARCHING}
    until(lambda: len(beside.began) == 2, "it is searched for again")


def test_who_competes_with_a_namespace_that_was_searched_for_goes_first(searches: Searches, beside: Beside) -> None:
    fleet = FakeFleet()
    beside.go.set()
    searches._usage.charge({"hard"}, 60.0, searches.clock())
    found = searches.solve(fleet, [], [HARD, claim("h-other", {}, namespace="easy")], 10.0)
    assert told(found) == {"h-hard": SEARCHING, "h-other": None}
    assert found["again"], "the others are searched for once this is written"


def test_a_claim_that_was_overtaken_and_is_answered_now_gives_way_again(searches: Searches, beside: Beside) -> None:
    """The state changes while it is searched for, so it may take what a round finds; but only until it is answered."""
    fleet = FakeFleet()
    searches.solve(fleet, [], [HARD], 10.0)
    until(lambda: beside.began, "the search begins")
    fleet.state = "something has changed"
    searches.solve(fleet, [], [HARD], 10.0)
    beside.go.set()
    until(lambda: not searches.solve(fleet, [], [HARD], 10.0)[SEARCHING], "it is answered")
    assert len(beside.began) == 2

    beside.go.clear()
    searches._usage.charge({"hard"}, 60.0, searches.clock())
    found = searches.solve(fleet, [], [HARD, claim("h-other", {}, namespace="easy")], 10.0)
    assert told(found) == {"h-hard": SEARCHING, "h-other": None}


def test_a_claim_is_answered_though_claims_that_compete_with_it_come_and_go(searches: Searches, beside: Beside) -> None:
    """Each search is for a part that is gone when it is over, so the claim takes what a round finds."""
    fleet = FakeFleet(finds=True)
    beside.go.set()
    answers = []
    for number in range(3):
        other = claim(f"h-{number}", {}, namespace="hard")
        answers.append(told(searches.solve(fleet, [], [HARD, other], 10.0))["h-hard"])
        if answers[-1] == SEARCHING:
            until(searches.news, "the search is over")
    assert None in answers, answers


def test_results_that_no_call_takes_are_forgotten(
    searches: Searches, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches_module, "MOST_CALLS", 4)
    beside.go.set()
    for number in range(12):
        searches.solve(FakeFleet(), [], [claim(f"h-hard-{number}", {})], 10.0)
        until(searches.news, "the search is over")
    assert len(searches._results) <= 5


def test_all_is_answered_at_once_without_a_thread(beside: Beside) -> None:
    searches = Searches(beside.search)
    assert told(searches.solve(FakeFleet(), [], [HARD, EASY], 10.0)) == {"h-hard": "SearchLimit", "e": None}
    assert beside.began == []


def test_a_search_that_fails_is_an_answer_and_nobody_waits_for_it(beside: Beside) -> None:
    fleet, now = FakeFleet(), [0.0]
    searches = Searches(beside.search, clock=lambda: now[0])
    beside.error = RuntimeError("out of luck")
    beside.go.set()
    with searches.beside():
        searches.solve(fleet, [], [HARD], 10.0)
        until(searches.news, "the search is over")
        answer = searches.solve(fleet, [], [HARD, EASY], 10.0)
        assert told(answer) == {"h-hard": "SearchLimit", "e": None}
        assert "the log of the controller says why" in answer["claims"][1]["message"]
        assert not answer[SEARCHING]

        beside.error, now[0] = None, searches_module.RETRY + 1
        assert told(searches.solve(fleet, [], [HARD], 10.0)) == {"h-hard": SEARCHING}
        until(searches.news, "the search is over")
        assert told(searches.solve(fleet, [], [HARD], 10.0)) == {"h-hard": "DevicesInUse"}


def test_a_solver_that_cannot_be_loaded_is_a_failed_search_and_the_thread_goes_on(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise OSError(24, "Too many open files")

    now = [0.0]
    searches = Searches(beside.search, clock=lambda: now[0])
    beside.go.set()
    with searches.beside():
        with monkeypatch.context() as patch:
            patch.setattr(searches_module, "_load_solver", load)
            searches.solve(FakeFleet(), [], [HARD], 10.0)
            until(searches.news, "the search is over")
            assert told(searches.solve(FakeFleet(), [], [HARD], 10.0)) == {"h-hard": "SearchLimit"}
        now[0] = searches_module.RETRY + 1
        searches.solve(FakeFleet(), [], [HARD], 10.0)
        until(searches.news, "the search is over")
        assert told(searches.solve(FakeFleet(), [], [HARD], 10.0)) == {"h-hard": "DevicesInUse"}


def test_rounds_together_wait_no_longer_for_the_solver_than_one(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A solver that takes long to load holds up the first round, and not each one until it is there."""
    now, waits, loaded = [0.0], list[float](), threading.Event()

    class Loaded(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waits.append(timeout)
            now[0] += timeout
            return False

    monkeypatch.setattr(searches_module, "_load_solver", loaded.wait)
    searches = Searches(beside.search, clock=lambda: now[0], _solver_loaded=Loaded())
    with searches.beside():
        for _ in range(3):
            assert told(searches.solve(FakeFleet(), [], [EASY, claim("f", {})], 10.0)) == {"e": None, "f": None}
        loaded.set()
    assert waits == [searches_module.LOAD_SECONDS]


def test_a_round_of_several_calls_keeps_the_result_of_a_claim_that_one_of_them_does_not_ask_for(
    searches: Searches, beside: Beside
) -> None:
    """Quotas withhold claims from the first call of a round and admit them in a later one."""
    searches.solve(FakeFleet(), [], [EASY], 10.0)
    searches.solve(FakeFleet(), [], [HARD], 10.0)
    beside.go.set()
    until(searches.news, "the search is over")
    searches.solve(FakeFleet(), [], [EASY], 10.0)
    assert told(searches.solve(FakeFleet(), [], [HARD], 10.0)) == {"h-hard": "DevicesInUse"}
    assert len(beside.began) == 1


def test_a_round_of_several_calls_keeps_the_result_of_a_claim_for_which_one_of_them_asks_with_others(
    searches: Searches, beside: Beside
) -> None:
    """Quotas leave claims out of a later call of a round."""
    fleet, other = FakeFleet(), claim("h-other", {}, namespace="hard")
    beside.go.set()
    for _ in range(4):
        searches.solve(fleet, [], [HARD, other], 10.0)
        answer = searches.solve(fleet, [], [HARD], 10.0)
        until(lambda: not (searches.news() or searches.is_busy), "the searches are over")
    assert told(answer) == {"h-hard": "DevicesInUse"}
    assert sorted(beside.began) == [["h-hard"], ["h-hard", "h-other"]]


def test_seconds_are_counted_by_namespace_with_a_bound(searches: Searches, beside: Beside) -> None:
    beside.go.set()
    for number in range(70):
        searches.solve(FakeFleet(f"{number}"), [], [claim("h-hard", {}, namespace=f"ns{number}")], 10.0)
        until(searches.news, "the search is over")
    found = searches.seconds()
    assert len(found) <= 65
    assert OTHERS in found


def test_a_claim_whose_expressions_take_longer_than_a_round_is_judged_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is refused because they cost too much, and not because a round has little time for them."""
    monkeypatch.setattr(budget, "LEAST_SECONDS", 0.02)
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 500_000)
    monkeypatch.setattr(searches_module, "QUICK", 0.05)
    monkeypatch.setattr(searches_module, "MOST_ROUNDS", 100_000)  # on a busy machine a round comes less far
    numbers = f"[{','.join(map(str, range(60)))}]"
    slow = f"{numbers}.all(x, {numbers}.all(y, x + y != device.kind + 1000"
    documents = [
        device_class("gpu", driver="gpu"),
        pool("p", "n0", "gpu", devices=[device(f"d{number}", attributes={"kind": number}) for number in range(100)]),
        *(claim(f"c{n}", {"deviceClass": "gpu", "constraints": f"{slow}{n}))"}) for n in range(3)),
    ]
    searches = Searches(search_anew("pack"))
    solver = WarmSolver(searches)
    told: set[str] = set()
    with searches.beside():
        while told != {"ClaimInvalid"}:
            answer = solver(documents, placement="pack", deadline=30.0)
            told = {one["reason"] for one in answer["claims"] if not one.get(SEARCHING)}
            assert told <= {"ClaimInvalid"}
            assert told or answer["again"] or answer["searching"], "another round follows"
