"""Every case with a known answer: the satisfied set, the alternatives, pools and devices (S17 goals 1 to 4)."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import solve_manifests
from tests.support import oracle
from tests.support.answer_verifier import complaints
from tests.support.reference_data import claim_cases, documents

CASES = [pytest.param(case, id=case["name"]) for case in claim_cases()]


@pytest.mark.parametrize("case", CASES)
def test_solver_gives_the_known_answer(case: dict[str, Any]) -> None:
    answer = solve_manifests(documents(case))
    waiting = {claim["metadata"]["name"] for claim in case["claims"] if "status" not in claim}
    satisfied = {one["name"]: one for one in answer["claims"] if one["allocated"] and one["name"] in waiting}
    assert sorted(satisfied) == sorted(case["expect"]["satisfied"])
    assert sorted(waiting - satisfied.keys()) == sorted(case["expect"]["unsatisfied"])
    chosen = {name: one["oneOf"] for name, one in satisfied.items() if any(i is not None for i in one["oneOf"] or ())}
    assert chosen == case["expect"]["oneOf"]
    goals = {level["goal"]: level["value"] for level in answer["objective"]["levels"] if "priority" not in level}
    assert goals.get("pools", 0) == case["expect"]["pools"]
    assert goals.get("devices", 0) == case["expect"]["devices"]
    assert answer["optimal"] is True


@pytest.mark.parametrize("case", CASES)
def test_answer_keeps_the_rules(case: dict[str, Any]) -> None:
    assert complaints(documents(case), solve_manifests(documents(case))) == []


@pytest.mark.parametrize("case", CASES)
def test_oracle_gives_the_known_answer(case: dict[str, Any]) -> None:
    best = oracle.solve(documents(case))
    assert sorted(name for _, name in best.satisfied) == sorted(case["expect"]["satisfied"])
    chosen = {name: one for (_, name), one in best.one_of.items() if any(i is not None for i in one)}
    assert chosen == case["expect"]["oneOf"]
    assert (best.pools, best.devices) == (case["expect"]["pools"], case["expect"]["devices"])
