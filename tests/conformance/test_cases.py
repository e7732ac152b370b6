"""The claim semantics as a list of behaviours (``cases/*.yaml``), and the same cases before the oracle."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devalloc.api.meta import DEVMGMT
from devalloc.api.quantity import Quantity
from devalloc_solver import solve_manifests
from tests.conformance import case as cases
from tests.support.answer_verifier import complaints
from tests.support.manifests import claim, device, pool

CASES = cases.load()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_behaviour(case: dict[str, Any]) -> None:
    documents = cases.documents(case)
    answer = solve_manifests(documents)
    answers = {one["name"]: one for one in answer["claims"]}
    assert answers.keys() == case["expect"].keys()
    for name, expected in case["expect"].items():
        _compare(answers[name], expected)
    goals = {level["goal"]: level["value"] for level in answer["objective"]["levels"]}
    for goal, value in case.get("goals", {}).items():
        assert goals[goal] == value
    for expected in case.get("problems", []):
        assert any(_within(expected, problem) for problem in answer["problems"]), answer["problems"]
    for name, text in case.get("warnings", {}).items():
        assert any(text in warning for warning in answers[name].get("warnings", [])), answers[name]
    assert complaints(documents, answer) == []


def _compare(answer: dict[str, Any], expected: Any) -> None:
    outcome = (answer["name"], answer["allocated"], answer["reason"], answer["message"])
    match expected:
        case bool():
            assert answer["allocated"] is expected, outcome
        case str():
            assert (answer["allocated"], answer["reason"]) == (False, expected), outcome
        case list():
            assert answer["allocated"], outcome
            assert _entries(answer["allocations"]) == _entries(cases.entries(expected))
        case dict():
            assert answer["allocated"], outcome
            if "devices" in expected:
                assert _entries(answer["allocations"]) == _entries(cases.entries(expected["devices"]))
            for key in expected.keys() - {"devices"}:
                assert answer[key] == expected[key]


def _entries(allocations: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Quantity]]]:
    """Allocations with their amounts as numbers: 1Gi and 1024Mi are the same answer."""
    return [
        (
            one["devicePoolName"],
            one["deviceName"],
            {part["name"]: Quantity.parse(part["allocation"]) for part in one.get("allocations", [])},
        )
        for one in allocations
    ]


def _within(part: dict[str, Any], whole: dict[str, Any]) -> bool:
    return all(str(value) in str(whole.get(key, "")) for key, value in part.items())


def test_s6_an_expression_beyond_10_kib_makes_only_its_claim_invalid() -> None:
    long = " || ".join(["true"] * 2000)
    answer = solve_manifests([pool("p1", devices=[device("g0")]), claim("a", {"constraints": long}), claim("b", {})])
    assert [one["reason"] for one in answer["claims"]] == ["ClaimInvalid", None]


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        7,
        "text",
        [],
        {},
        {"kind": "DeviceClaim"},
        {"apiVersion": DEVMGMT, "kind": "DevicePool"},
        {"apiVersion": DEVMGMT, "kind": "DevicePool", "metadata": {"name": 5}},
        {"apiVersion": DEVMGMT, "kind": "DevicePool", "metadata": {"name": "p2"}, "spec": {"devices": 3}},
        {"apiVersion": DEVMGMT, "kind": "DeviceClass", "metadata": {"name": "c"}, "spec": []},
        {"apiVersion": DEVMGMT, "kind": "DeviceClaim", "metadata": {}, "spec": {"claims": [{}]}},
        {"apiVersion": DEVMGMT, "kind": "DeviceClaim", "metadata": None, "spec": None},
        {"apiVersion": DEVMGMT, "kind": "Unheard"},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}},
        {1: 2, "kind": [], "metadata": [[]]},
        pool("p2", devices=[device("g0", resources={"memory": "nonsense"})]),
        pool("p2", devices=[device("g0", attributes={"numa": {"intValue": 2**63}})]),
        claim("z", {"requests": {"count": float("nan")}}),
        claim("z", {"requests": {"count": True}}),
        claim("z", {"constraints": "(" * 5000}),
        claim("z", {"oneOf": [{"oneOf": []}]}),
    ],
    ids=lambda garbage: str(garbage)[:60],
)
def test_s4a_no_document_stops_the_others(garbage: Any) -> None:
    good = [pool("p1", devices=[device("g0")]), claim("a", {})]
    for documents in ([garbage, *good], [*good, garbage]):
        answer = solve_manifests(documents)
        assert [one["allocated"] for one in answer["claims"] if one["name"] == "a"] == [True]
        json.dumps(answer)
