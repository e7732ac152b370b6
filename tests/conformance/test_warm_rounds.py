"""The warm solver of the loop answers as solve_manifests does, whatever happened to the documents in between."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.controller.warm import WarmSolver
from devalloc_solver import solve_manifests
from tests.support.random_fleets import documents

Object = dict[str, Any]


def unique(found: list[Object]) -> list[Object]:
    """As in a store: one object of each kind, namespace and name."""
    by_name = {(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]): d for d in found}
    return list(by_name.values())


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    problems = sorted(map(str, answer["problems"]))
    claims = [
        {k: v for k, v in claim.items() if k not in ("allocations", "node", "annotations", "warnings", "blockers")}
        for claim in answer["claims"]
    ]
    return {**answer, "seconds": 0, "problems": problems, "claims": claims}


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
@settings(max_examples=12, deadline=None)
def test_rounds_are_answered_as_if_each_were_the_first(random: Random) -> None:
    warm = WarmSolver()
    state = unique(documents(random))
    for _ in range(4):
        expected = solve_manifests(copy.deepcopy(state), deadline=None)
        answer = warm(state, placement="pack", deadline=None)
        assert comparable(answer) == comparable(expected)
        answers = {each["name"]: each for each in answer["claims"]}
        kept = [written(document, answers, random) for document in state if random.random() < 0.9]
        state = unique([*kept, *random.sample(documents(random), 2)])
        random.shuffle(state)
