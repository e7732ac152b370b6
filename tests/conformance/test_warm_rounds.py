"""The warm solver of the loop answers as solve_manifests does, whatever happened to the documents in between."""

from __future__ import annotations

import copy
from random import Random
from typing import Any
from unittest.mock import Mock, patch

from hypothesis import event, given, settings
from hypothesis import strategies as st

from devalloc.controller.reconcile.round_solver import RoundSolver
from devalloc_solver import Fleet, solve_manifests
from tests.support.examples import examples
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.random_fleets import documents

Object = dict[str, Any]


def unique(objects: list[Object]) -> list[Object]:
    """As in a store: one object of each kind, namespace and name."""
    by_name = {(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]): d for d in objects}
    return list(by_name.values())


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    problems = sorted(map(str, answer["problems"]))
    claims = [
        {k: v for k, v in claim.items() if k not in ("allocations", "node", "annotations", "warnings", "blockers")}
        for claim in answer["claims"]
    ]
    rest = {name: value for name, value in answer.items() if name != "objective"}
    return {**rest, "seconds": 0, "problems": problems, "claims": claims}


def written(document: Object, answers: dict[str, Any], random: Random) -> Object:
    """The document as the store has it in the next round: most answers are written, some are not."""
    answer = answers.get(document["metadata"]["name"]) if document["kind"] == "DeviceClaim" else None
    if answer is None or not answer["allocated"] or document.get("status") or random.random() < 0.3:
        return document
    claim = copy.deepcopy(document)
    claim["metadata"].setdefault("annotations", {}).update(answer["annotations"])
    claim["status"] = {"allocations": answer["allocations"]}
    return claim


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(4, 0.03), deadline=None)
def test_rounds_are_answered_as_if_each_were_the_first(random: Random) -> None:
    warm = RoundSolver()
    state = unique(documents(random))
    for _ in range(4):
        expected = solve_manifests(copy.deepcopy(state), deadline=None)
        answer = warm(state, placement="pack", deadline=None)
        assert comparable(answer) == comparable(expected)
        answers = {each["name"]: each for each in answer["claims"]}
        survivors = [written(document, answers, random) for document in state if random.random() < 0.9]
        state = unique([*survivors, *random.sample(documents(random), 2)])
        random.shuffle(state)


@given(st.randoms(use_true_random=False))
@settings(max_examples=examples(4, 0.03), deadline=None)
def test_rounds_that_differ_by_little_are_answered_as_if_each_were_the_first(random: Random) -> None:
    warm, allocate_all = RoundSolver(), Mock(wraps=Fleet.allocate_all)
    drawn = unique(documents(random))
    state = [document for document in drawn if document["kind"] != "DeviceClaim"]
    claims = [document for document in drawn if document["kind"] == "DeviceClaim"]
    claims += [gpu_claim(f"simple-{number}", count=1 + number % 2) for number in range(4)]
    state = unique([*state, gpu_class(), *(gpu_pool(f"simple-{number}", node="node") for number in range(3))])
    random.shuffle(claims)
    with patch.object(Fleet, "allocate_all", lambda *arguments, **options: allocate_all(*arguments, **options)):
        for number, claim in enumerate(claims):
            state = unique([*state, claim])
            if number % 4 == 3:
                state.remove(random.choice(state))
            expected = solve_manifests(copy.deepcopy(state), deadline=None)
            answer = warm(state, placement="pack", deadline=None)
            assert comparable(answer) == comparable(expected)
            answers = {each["name"]: each for each in answer["claims"]}
            state = [written(document, answers, random) for document in state]
            if random.random() < 0.9:  # claims that wait have all looked at
                state = [each for each in state if each["kind"] != "DeviceClaim" or each.get("status")]
    event(f"all are looked at in {10 * allocate_all.call_count // len(claims)} of 10 rounds")
