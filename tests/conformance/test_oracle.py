"""The solver against exhaustive search, on random small fleets that meet every rule.

DEVALLOC_FUZZ_EXAMPLES sets how many instances (default 40); `python -m tools.fuzz_claims` goes on by the clock.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from devalloc_solver import solve_manifests
from tests.support import random_fleets
from tests.support.examples import examples
from tests.support.hash_seeds import outputs
from tools.fuzz_claims import TooLargeForOracle, judge

EXAMPLES = examples(40)
BATCH = 50
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def _comparable(answer: dict[str, Any]) -> str:
    """The answer as text, less the one thing that may differ (D5)."""
    return json.dumps({key: value for key, value in answer.items() if key != "seconds"})


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_goals_rules_and_reasons_agree_with_exhaustive_search(first: int) -> None:
    wrong = {
        seed: problems
        for seed in range(first, min(first + BATCH, EXAMPLES))
        if (problems := judge(random_fleets.documents(Random(seed))))
    }
    assert wrong == {}


def test_shares_of_equal_claims_agree_with_exhaustive_search() -> None:
    by_seed = {seed: judge(random_fleets.equal_shares(Random(seed))) for seed in range(EXAMPLES // 3)}
    assert {seed: wrong for seed, wrong in by_seed.items() if wrong} == {}


def test_admins_beside_other_claims_agree_with_exhaustive_search() -> None:
    by_seed = {seed: judge(random_fleets.admins_beside_others(Random(seed))) for seed in range(EXAMPLES // 2)}
    assert {seed: wrong for seed, wrong in by_seed.items() if wrong} == {}


def test_groups_that_agree_on_an_attribute_agree_with_exhaustive_search() -> None:
    by_seed = {seed: judge(random_fleets.groups_that_agree(Random(seed))) for seed in range(EXAMPLES // 4)}
    assert {seed: wrong for seed, wrong in by_seed.items() if wrong} == {}


@settings(max_examples=examples(12, 0.1), deadline=None, suppress_health_check=SLOW)
@given(documents=random_fleets.DOCUMENTS)
def test_shrinkable_instances_agree_with_exhaustive_search(documents: list[dict[str, Any]]) -> None:
    try:
        problems = judge(documents)
    except TooLargeForOracle:
        reject()
    assert problems == []


@settings(max_examples=examples(8, 0.0625), deadline=None, suppress_health_check=SLOW)
@given(documents=random_fleets.DOCUMENTS, seed=st.integers(0, 1000))
def test_the_order_of_documents_does_not_matter(documents: list[dict[str, Any]], seed: int) -> None:
    shuffled = list(documents)
    Random(seed).shuffle(shuffled)
    one, other = solve_manifests(documents), solve_manifests(shuffled)
    assert one["claims"] == other["claims"]
    assert one["objective"] == other["objective"]


@settings(max_examples=examples(4, 0.0375), deadline=None, suppress_health_check=SLOW)
@given(documents=random_fleets.DOCUMENTS)
def test_the_same_input_gives_the_same_bytes(documents: list[dict[str, Any]]) -> None:
    assert _comparable(solve_manifests(documents)) == _comparable(solve_manifests(documents))


def test_another_process_with_another_hash_seed_gives_the_same_bytes() -> None:
    script = (
        "import json; from random import Random\n"
        "from devalloc_solver import solve_manifests\n"
        "from tests.support.random_fleets import documents\n"
        "for seed in range(6):\n"
        "    answer = solve_manifests(documents(Random(seed)))\n"
        "    del answer['seconds']; print(json.dumps(answer))\n"
    )
    one, other = outputs(script)
    assert one == other
    assert len(one) > 1000
