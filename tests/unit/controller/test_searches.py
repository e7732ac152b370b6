"""Claims that take long to answer: searched for beside the loop, remembered, and no claim waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from devalloc.api.reasons import STILL_SEARCHING
from devalloc.controller.reconcile import searches as searches_module
from devalloc.controller.reconcile.round_solver import RESOURCE_CLAIMS, RoundSolver
from devalloc.controller.reconcile.searches import (
    MAX_EVALUATION_ROUNDS,
    OTHER_NAMESPACES,
    BackgroundSearches,
    search_with_new_fleet,
)
from devalloc.controller.reconcile.stored_claims import by_unit
from devalloc_solver.cel import budget
from devalloc_solver.pipeline.decomposition import SubproblemSummary
from tests.support.dra_builders import ANY, request, slice_
from tests.support.dra_builders import claim as resource_claim
from tests.support.dra_builders import device as gpu
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
    calls: list[list[str]] = field(default_factory=list)

    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> Manifest:
        names = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in claims]
        self.calls.append([name for _, name in names])
        parts = {name[1][0] for name in names if name[1].startswith("h-hard")}
        hard = [name for name in names if name[1][0] in parts and (is_quick or not self.finds)]
        return {
            "claims": [answer(name, reason="SearchLimit" if name in hard else None) for name in names],
            "optimal": not hard,
            "seconds": 0.0,
            "problems": [],
            "unproven": ["/".join(name) for name in hard],
        }

    def parts(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, alone: bool = False
    ) -> list[SubproblemSummary]:
        by_part: dict[str, list[Manifest]] = {}
        for each in claims:
            by_part.setdefault(each["metadata"]["name"][0 : None if alone else 1], []).append(each)
        return [
            SubproblemSummary(
                tuple(((each["metadata"]["namespace"], each["metadata"]["name"]),) for each in members),
                {(each["metadata"]["namespace"], each["metadata"]["name"]): 0 for each in members},
                f"{part[0]} {self.state} {len(members)}",
            )
            for part, members in by_part.items()
        ]

    def delete(self, document: Manifest) -> None:
        pass


@dataclass
class BackgroundSearch:
    """Searches with a search that goes on until it is let go."""

    go: threading.Event = field(default_factory=threading.Event)
    began: list[list[str]] = field(default_factory=list)
    error: Exception | None = None
    gives: frozenset[str] = frozenset()
    """claims that it finds a place for"""
    proves: bool = True

    def search(self, documents: Sequence[Manifest], claims: Sequence[Manifest], deadline: float | None) -> Manifest:
        self.began.append([each["metadata"]["name"] for each in claims])
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        names = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in claims]
        reasons = {name: None if name[1] in self.gives else "DevicesInUse" for name in names}
        return {"claims": [answer(name, reason=reason) for name, reason in reasons.items()], "optimal": self.proves}

    def close(self) -> None:
        self.go.set()


@pytest.fixture
def background() -> Iterator[BackgroundSearch]:
    with closing(BackgroundSearch()) as made:
        yield made


@pytest.fixture
def searches(background: BackgroundSearch) -> Iterator[BackgroundSearches]:
    made = BackgroundSearches(background.search)
    with made.in_thread():
        yield made
        background.go.set()


HARD_TOO = claim("h-hard-too", {}, namespace="hard")
HARD, EASY = claim("h-hard", {}, namespace="hard"), claim("e", {}, namespace="easy")


def outcome_by_name(answer: Manifest) -> dict[str, object]:
    """The answer to each claim: its reason, None where it has its devices, SEARCHING where nothing."""
    return {each["name"]: STILL_SEARCHING if each.get(STILL_SEARCHING) else each["reason"] for each in answer["claims"]}


def test_easy_claims_are_answered_while_hard_ones_are_searched_for(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    fleet = FakeFleet()
    assert outcome_by_name(searches.solve(fleet, [], [HARD, EASY], 10.0)) == {"h-hard": STILL_SEARCHING, "e": None}
    until(lambda: background.began, "the search begins")
    assert outcome_by_name(searches.solve(fleet, [], [HARD, EASY], 10.0)) == {"h-hard": STILL_SEARCHING, "e": None}
    assert fleet.calls[-1] == ["e"], "the hard claim is not tried meanwhile"
    background.go.set()
    until(searches.news, "the search is over")
    answer = searches.solve(fleet, [], [HARD, EASY], 10.0)
    assert outcome_by_name(answer) == {"h-hard": "DevicesInUse", "e": None}
    assert not answer[STILL_SEARCHING]


def test_a_search_is_not_repeated_while_nothing_changes(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    fleet = FakeFleet()
    background.go.set()
    searches.solve(fleet, [], [HARD], 10.0)
    until(searches.news, "the search is over")
    touched = {**HARD, "metadata": {**HARD["metadata"], "annotations": {"example.com/note": "again"}}}
    for each in (HARD, touched, HARD):
        assert outcome_by_name(searches.solve(fleet, [], [each, EASY], 10.0)) == {"h-hard": "DevicesInUse", "e": None}
    assert len(background.began) == 1
    fleet.state = "something is free now"
    assert outcome_by_name(searches.solve(fleet, [], [HARD], 10.0)) == {"h-hard": STILL_SEARCHING}
    until(lambda: len(background.began) == 2, "it is searched for again")


def ask_for_two_then_for_one(searches: BackgroundSearches, fleet: FakeFleet, then: FakeFleet | None = None) -> object:
    """The answer to one of two hard claims, solved alone after a search for both together."""
    searches.solve(fleet, [], [HARD, HARD_TOO], 10.0)
    until(searches.news, "the search is over")
    searches.solve(fleet, [], [HARD, HARD_TOO], 10.0)
    return outcome_by_name(searches.solve(then or fleet, [], [HARD_TOO], 10.0))["h-hard-too"]


def test_what_a_part_was_proven_not_to_get_none_of_its_claims_is_searched_for_alone(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    background.go.set()
    assert ask_for_two_then_for_one(searches, FakeFleet()) == "DevicesInUse"
    assert background.began == [["h-hard", "h-hard-too"]]
    assert not searches.is_busy


@pytest.mark.parametrize(
    ("gives", "proves", "state"),
    [(frozenset({"h-hard"}), True, ""), (frozenset(), False, ""), (frozenset(), True, "something is free now")],
    ids=["another-one-got-something", "not-proven", "something-changed"],
)
def test_a_claim_of_a_part_is_searched_for_alone_where_the_result_of_all_does_not_answer_it(
    searches: BackgroundSearches, background: BackgroundSearch, gives: frozenset[str], proves: bool, state: str
) -> None:
    background.gives, background.proves = gives, proves
    background.go.set()
    assert ask_for_two_then_for_one(searches, FakeFleet(), FakeFleet(state)) == STILL_SEARCHING
    until(lambda: background.began[1:] == [["h-hard-too"]], "it is searched for alone")


def test_a_namespace_that_was_not_searched_for_goes_first(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    fleet = FakeFleet()
    background.go.set()
    searches._usage.charge({"hard"}, 60.0, searches.clock())
    answer = searches.solve(fleet, [], [HARD, claim("h-other", {}, namespace="easy")], 10.0)
    assert outcome_by_name(answer) == {"h-hard": STILL_SEARCHING, "h-other": None}
    assert answer["again"], "the others are searched for once this is written"


def test_a_claim_that_was_overtaken_and_is_answered_now_gives_way_again(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    """The state changes while it is searched for, so it may take what a round finds; but only until it is answered."""
    fleet = FakeFleet()
    searches.solve(fleet, [], [HARD], 10.0)
    until(lambda: background.began, "the search begins")
    fleet.state = "something has changed"
    searches.solve(fleet, [], [HARD], 10.0)
    background.go.set()
    until(lambda: not searches.solve(fleet, [], [HARD], 10.0)[STILL_SEARCHING], "it is answered")
    assert len(background.began) == 2

    background.go.clear()
    searches._usage.charge({"hard"}, 60.0, searches.clock())
    answer = searches.solve(fleet, [], [HARD, claim("h-other", {}, namespace="easy")], 10.0)
    assert outcome_by_name(answer) == {"h-hard": STILL_SEARCHING, "h-other": None}


def test_a_claim_is_answered_though_claims_that_compete_with_it_come_and_go(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    """Each search is for a part that is gone when it is over, so the claim takes what a round finds."""
    fleet = FakeFleet(finds=True)
    background.go.set()
    answers = []
    for number in range(3):
        other = claim(f"h-{number}", {}, namespace="hard")
        answers.append(outcome_by_name(searches.solve(fleet, [], [HARD, other], 10.0))["h-hard"])
        if answers[-1] == STILL_SEARCHING:
            until(searches.news, "the search is over")
    assert None in answers, answers


def test_results_that_no_call_takes_are_forgotten(
    searches: BackgroundSearches, background: BackgroundSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches_module, "MAX_IDLE_CALLS", 4)
    background.go.set()
    for number in range(12):
        searches.solve(FakeFleet(), [], [claim(f"h-hard-{number}", {})], 10.0)
        until(searches.news, "the search is over")
    assert len(searches._results) <= 5


def test_all_is_answered_at_once_without_a_thread(background: BackgroundSearch) -> None:
    searches = BackgroundSearches(background.search)
    assert outcome_by_name(searches.solve(FakeFleet(), [], [HARD, EASY], 10.0)) == {"h-hard": "SearchLimit", "e": None}
    assert background.began == []


def test_a_search_that_fails_is_an_answer_and_holds_up_no_round(background: BackgroundSearch) -> None:
    fleet, now = FakeFleet(), [0.0]
    searches = BackgroundSearches(background.search, clock=lambda: now[0])
    background.error = RuntimeError("out of luck")
    background.go.set()
    with searches.in_thread():
        searches.solve(fleet, [], [HARD], 10.0)
        until(searches.news, "the search is over")
        answer = searches.solve(fleet, [], [HARD, EASY], 10.0)
        assert outcome_by_name(answer) == {"h-hard": "SearchLimit", "e": None}
        assert "see the log of the controller" in answer["claims"][1]["message"]
        assert not answer[STILL_SEARCHING]

        background.error, now[0] = None, searches_module.RETRY_SECONDS + 1
        assert outcome_by_name(searches.solve(fleet, [], [HARD], 10.0)) == {"h-hard": STILL_SEARCHING}
        until(searches.news, "the search is over")
        assert outcome_by_name(searches.solve(fleet, [], [HARD], 10.0)) == {"h-hard": "DevicesInUse"}


def test_a_solver_that_cannot_be_loaded_is_a_failed_search_and_the_thread_goes_on(
    background: BackgroundSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise OSError(24, "Too many open files")

    now = [0.0]
    searches = BackgroundSearches(background.search, clock=lambda: now[0])
    background.go.set()
    with searches.in_thread():
        with monkeypatch.context() as patch:
            patch.setattr(searches_module, "_load_solver", load)
            searches.solve(FakeFleet(), [], [HARD], 10.0)
            until(searches.news, "the search is over")
            assert outcome_by_name(searches.solve(FakeFleet(), [], [HARD], 10.0)) == {"h-hard": "SearchLimit"}
        now[0] = searches_module.RETRY_SECONDS + 1
        searches.solve(FakeFleet(), [], [HARD], 10.0)
        until(searches.news, "the search is over")
        assert outcome_by_name(searches.solve(FakeFleet(), [], [HARD], 10.0)) == {"h-hard": "DevicesInUse"}


def test_rounds_together_wait_no_longer_for_the_solver_than_one(
    background: BackgroundSearch, monkeypatch: pytest.MonkeyPatch
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
    searches = BackgroundSearches(background.search, clock=lambda: now[0], _solver_loaded=Loaded())
    with searches.in_thread():
        for _ in range(3):
            assert outcome_by_name(searches.solve(FakeFleet(), [], [EASY, claim("f", {})], 10.0)) == {
                "e": None,
                "f": None,
            }
        loaded.set()
    assert waits == [searches_module.LOAD_SECONDS]


def test_a_round_of_several_calls_keeps_the_result_of_a_claim_that_one_of_them_does_not_ask_for(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    """Quotas withhold claims from the first call of a round and admit them in a later one."""
    searches.solve(FakeFleet(), [], [EASY], 10.0)
    searches.solve(FakeFleet(), [], [HARD], 10.0)
    background.go.set()
    until(searches.news, "the search is over")
    searches.solve(FakeFleet(), [], [EASY], 10.0)
    assert outcome_by_name(searches.solve(FakeFleet(), [], [HARD], 10.0)) == {"h-hard": "DevicesInUse"}
    assert len(background.began) == 1


def test_a_round_of_several_calls_keeps_the_result_of_a_claim_for_which_one_of_them_asks_with_others(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    """Quotas leave claims out of a later call of a round."""
    fleet, other = FakeFleet(), claim("h-other", {}, namespace="hard")
    background.go.set()
    for _ in range(4):
        searches.solve(fleet, [], [HARD, other], 10.0)
        answer = searches.solve(fleet, [], [HARD], 10.0)
        until(lambda: not (searches.news() or searches.is_busy), "the searches are over")
    assert outcome_by_name(answer) == {"h-hard": "DevicesInUse"}
    assert sorted(background.began) == [["h-hard"], ["h-hard", "h-other"]]


def test_seconds_are_counted_by_namespace_with_a_bound(
    searches: BackgroundSearches, background: BackgroundSearch
) -> None:
    background.go.set()
    for number in range(70):
        searches.solve(FakeFleet(f"{number}"), [], [claim("h-hard", {}, namespace=f"ns{number}")], 10.0)
        until(searches.news, "the search is over")
    seconds = searches.seconds()
    assert len(seconds) <= 65
    assert OTHER_NAMESPACES in seconds


@dataclass
class SlowFleet(FakeFleet):
    """Expressions of claims of ``s`` take so many calls."""

    rounds: int = 3
    requested: dict[str, int] = field(default_factory=dict)

    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> Manifest:
        claims = list(claims)
        answer = super().allocate_all(claims, deadline, is_quick=is_quick)
        for one in answer["claims"]:
            if one["name"].startswith("s"):
                self.requested[one["name"]] = self.requested.get(one["name"], 0) + 1
                if self.requested[one["name"]] < self.rounds:
                    one |= {"allocated": False, "reason": "SearchLimit", "exceeded": "time"}
        return answer


def test_claims_whose_expressions_take_long_have_rounds_one_by_one_and_each_second_one(
    searches: BackgroundSearches,
) -> None:
    """So the others wait for one of them at most."""
    fleet, slow = SlowFleet(), [claim(f"s{number}", {}, namespace="slow") for number in range(3)]
    searches.solve(fleet, [], slow, 10.0)
    for _ in range(4):
        answer = searches.solve(fleet, [], [*slow, EASY], 10.0)
    assert fleet.calls[1:] == [["e"], ["s0"], ["e"], ["s0"]]
    assert answer["again"]
    assert outcome_by_name(answer) == {"s0": None, **dict.fromkeys(("e", "s1", "s2"), STILL_SEARCHING)}


def test_who_has_waited_for_the_end_of_long_expressions_is_answered_at_once(searches: BackgroundSearches) -> None:
    fleet, slow = SlowFleet(), claim("s", {}, namespace="slow")
    searches.solve(fleet, [], [slow], 10.0)
    for _ in range(4):
        answer = searches.solve(fleet, [], [slow, EASY], 10.0)
    assert outcome_by_name(answer) == {"s": None, "e": STILL_SEARCHING}
    assert answer["again"]


def test_of_claims_whose_expressions_take_long_the_next_is_of_the_namespace_that_used_least(
    background: BackgroundSearch,
) -> None:
    """However many others there are, and though they were there before."""
    now = [0.0]
    fleet, searches = SlowFleet(), BackgroundSearches(background.search, clock=lambda: now[0])
    hostile = [claim(f"s{number}", {}, namespace="hostile") for number in range(9)]
    honest = claim("s-honest", {}, namespace="honest")
    with searches.in_thread():
        searches.solve(fleet, [], [*hostile, honest], 10.0)
        searches._usage.charge(["hostile"], 1.0, searches.clock())
        answers = [outcome_by_name(searches.solve(fleet, [], [*hostile, honest], 10.0)) for _ in range(2)]
        background.go.set()
    assert fleet.calls[1:] == [["s-honest"], ["s-honest"]]
    assert answers[-1] == {"s-honest": None} | {f"s{number}": STILL_SEARCHING for number in range(9)}


def test_a_group_waits_for_the_expressions_of_each_of_its_members(searches: BackgroundSearches) -> None:
    """No member gets the interim answer of another one."""
    notes = {"devalloc.io/group": "g"}
    group = [claim(name, {}, namespace="slow", annotations=notes) for name in ("s", "m")]
    fleet = SlowFleet()
    answers = [outcome_by_name(searches.solve(fleet, [], group, 10.0)) for _ in range(3)]
    assert answers == [dict.fromkeys("sm", STILL_SEARCHING)] * 2 + [dict.fromkeys("sm")]
    assert fleet.calls == [["s", "m"]] * 3


def test_a_claim_whose_expressions_take_longer_than_a_round_is_judged_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is refused because they cost too much, and not because a round has little time for them."""
    monkeypatch.setattr(budget, "MIN_SECONDS", 0.02)
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 500_000)
    monkeypatch.setattr(searches_module, "QUICK_SECONDS", 0.05)
    monkeypatch.setattr(searches_module, "MAX_EVALUATION_ROUNDS", 100_000)  # on a busy machine a round comes less far
    numbers = f"[{','.join(map(str, range(60)))}]"
    slow = f"{numbers}.all(x, {numbers}.all(y, x + y != device.kind + 1000"
    documents = [
        device_class("gpu", driver="gpu"),
        pool("p", "n0", "gpu", devices=[device(f"d{number}", attributes={"kind": number}) for number in range(100)]),
        *(claim(f"c{n}", {"deviceClass": "gpu", "constraints": f"{slow}{n}))"}) for n in range(3)),
    ]
    searches = BackgroundSearches(search_with_new_fleet("pack"))
    solver = RoundSolver(searches=searches)
    reasons: set[str] = set()
    with searches.in_thread():
        while reasons != {"ExpressionTooExpensive"}:
            answer = solver(documents, placement="pack", deadline=30.0)
            reasons = {one["reason"] for one in answer["claims"] if not one.get(STILL_SEARCHING)}
            assert reasons <= {"ExpressionTooExpensive"}
            assert reasons or answer["again"] or answer["searching"], "another round follows"


# -- ResourceClaims whose expressions take long ------------------------------------------------------------------------


def slow_selector(number: int) -> str:
    numbers = f"[{','.join(map(str, range(60)))}]"
    return f"{numbers}.all(x, {numbers}.all(y, x + y + device.attributes['gpu.io'].i != {1_000_000 + number}))"


def test_resource_claims_whose_expressions_take_long_have_rounds_one_by_one_as_device_claims_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rounds between are for the others, and what was evaluated is not evaluated again until all are refused."""
    evaluated: list[str] = []
    evaluate = budget.Costs.evaluate

    def note(self: budget.Costs, expression: str, *rest: Any, **options: Any) -> Any:
        evaluated.append(expression)
        return evaluate(self, expression, *rest, **options)

    monkeypatch.setattr(budget.Costs, "evaluate", note)
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 1_500_000)
    monkeypatch.setattr(searches_module, "QUICK_SECONDS", 0.05)
    monkeypatch.setattr(searches_module, "LATE_SECONDS", 0.01)
    cluster = [ANY, slice_("s", [gpu(f"g{number}", {"i": number}) for number in range(120)])]
    slow = {f"slow{number}": slow_selector(number) for number in range(2)}
    waiting = [resource_claim(request("r", 1, slow[name]), name=name, namespace=name) for name in slow]
    quick = resource_claim(request("r"), name="quick", namespace="other")
    searches = BackgroundSearches(search_with_new_fleet("pack"))
    solver = RoundSolver(RESOURCE_CLAIMS, searches)
    reasons: dict[str, str] = {}
    was_given = True
    with searches.in_thread():
        solver.update(cluster)
        assert [one.get(STILL_SEARCHING) for one in solver.solve(by_unit(waiting[:1]), 30.0)["claims"]] == [True]
        solver.solve(by_unit(waiting), 30.0)
        for _ in range(2 * MAX_EVALUATION_ROUNDS):
            evaluated.clear()
            solver.update(cluster)
            answers = {one["name"]: one for one in solver.solve(by_unit([*waiting, quick]), 30.0)["claims"]}
            assert len({*evaluated} & {*slow.values()}) <= 1, "one has its turn"
            if answers["quick"]["allocated"]:
                assert not {*evaluated} & {*slow.values()}, "no claim has to wait for them"
            assert answers["quick"]["allocated"] or was_given, "in each second round"
            was_given = answers["quick"]["allocated"]
            reasons = {name: answers[name]["reason"] for name in slow if not answers[name].get(STILL_SEARCHING)}
            if len(reasons) == len(slow):
                break
    assert reasons == dict.fromkeys(slow, "ExpressionTooExpensive")
