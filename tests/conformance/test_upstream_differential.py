"""Allocations of resource.k8s.io against upstream's released allocator: the same outcome, or a documented difference.

Where the allocator is not built (``make built-upstream``), its recorded answers stand in for it. ``make fuzz`` goes on
with more instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import pytest

from tests.support import upstream_allocator, upstream_answers
from tests.support.dra_differential import DIFFERENCES, PEER_TIMEOUT, compare, ours, theirs, violations
from tests.support.dra_instances import instance
from tests.support.examples import IS_FUZZ
from tests.support.reference_data import resource_claim_cases
from tests.support.repository import REPO
from tests.support.upstream_allocator import Peer, UpstreamPeer
from tests.support.upstream_answers import INSTANCES, RecordedPeer

CHUNK = 250


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with upstream_answers.peer() as answering:
        yield answering


@pytest.fixture(scope="module")
def program() -> Iterator[UpstreamPeer]:
    path = upstream_allocator.built_binary()
    if path is None:
        pytest.skip("upstream's allocator is not built here: make built-upstream")
    with UpstreamPeer(path) as running:
        yield running


@pytest.mark.parametrize("first", range(0, INSTANCES, CHUNK))
def test_random_instances_get_the_right_answer(first: int, peer: Peer) -> None:
    wrong = {}
    for seed in range(first, first + CHUNK, 1 if IS_FUZZ else 3):
        comparison = compare(instance(Random(seed)), peer)
        if comparison.complaints:
            wrong[seed] = comparison.complaints
    assert not wrong, f"run python -m tools.fuzz_resource_claims --seed {min(wrong)} --count 1 for a small instance"


def test_half_of_the_random_instances_can_be_allocated() -> None:
    outcomes = [ours(instance(Random(seed))).outcome for seed in range(200)]
    assert 80 <= outcomes.count("allocated") <= 120
    assert 10 <= outcomes.count("error") <= 40


def test_the_recorded_answers_are_those_of_the_pinned_release(program: UpstreamPeer) -> None:
    recorded = upstream_answers.recorded_peer()
    stale = []
    for question in upstream_answers.questions():
        if not recorded.has(question):  # of DEVALLOC_SHARED_CASES
            continue
        answer = upstream_answers.without_chance(
            program.ask(question["input"], question["features"], timeout=PEER_TIMEOUT)
        )
        former = recorded.ask(question["input"], question["features"])
        if answer != former and "timeout" not in (answer["outcome"], former["outcome"]):
            stale.append((answer, former))
    assert stale == [], "record them anew: python -m tests.support.upstream_answers"


def test_peer_and_check_agree_with_the_suite(peer: Peer) -> None:
    for case in resource_claim_cases():
        if isinstance(peer, RecordedPeer) and not peer.has(case):  # of DEVALLOC_SHARED_CASES
            continue
        opinion = theirs(case, peer)
        expected = case["expected"]
        assert opinion.outcome == expected["outcome"], case["name"]
        assert opinion.node_local is bool(expected["errorIsNodeLocal"]), case["name"]
        if opinion.results is not None:
            assert violations(case, opinion.results) == [], case["name"]


def test_the_documentation_has_every_difference_and_no_other() -> None:
    rows = re.findall(r"^\| (.+?) \|", (REPO / "docs" / "development" / "dra-differences.md").read_text(), re.MULTILINE)
    assert sorted(rows[1:]) == sorted(DIFFERENCES)


def test_the_program_refuses_what_is_no_case(program: UpstreamPeer) -> None:
    with pytest.raises(ValueError, match="no node"):
        program.ask({}, {})
    with pytest.raises(ValueError, match="cannot unmarshal"):
        program.ask({"slices": 7}, {})
