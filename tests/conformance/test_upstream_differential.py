"""Allocations of resource.k8s.io against upstream's released allocator: the same outcome, or a documented difference.

The peer is built from a pinned Go module the first time. ``make fuzz`` goes on with more instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import pytest

from tests.support import upstream_allocator
from tests.support.dra_differential import DIFFERENCES, compare, ours, theirs, violations
from tests.support.dra_instances import instance
from tests.support.go_build import Unavailable
from tests.support.reference_data import resource_claim_cases
from tests.support.repository import REPO
from tests.support.upstream_allocator import UpstreamPeer

# The first one waits until the peer is built.
pytestmark = pytest.mark.timeout(1200)
INSTANCES = 1000
CHUNK = 250


@pytest.fixture(scope="module")
def peer(request: pytest.FixtureRequest) -> Iterator[UpstreamPeer]:
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def progress(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"  {line}", flush=True)

    try:
        running = upstream_allocator.running(progress)
    except Unavailable as reason:
        pytest.skip(f"no peer: {reason}")
    with running:
        yield running


@pytest.mark.parametrize("first", range(0, INSTANCES, CHUNK))
def test_random_instances_get_the_right_answer(first: int, peer: UpstreamPeer) -> None:
    wrong = {}
    for seed in range(first, first + CHUNK):
        comparison = compare(instance(Random(seed)), peer)
        if comparison.complaints:
            wrong[seed] = comparison.complaints
    assert not wrong, f"run python -m tools.fuzz_resource_claims --seed {min(wrong)} --count 1 for a small instance"


def test_half_of_the_random_instances_can_be_allocated() -> None:
    outcomes = [ours(instance(Random(seed))).outcome for seed in range(200)]
    assert 80 <= outcomes.count("allocated") <= 120
    assert 10 <= outcomes.count("error") <= 40


def test_peer_and_check_agree_with_the_suite(peer: UpstreamPeer) -> None:
    for case in resource_claim_cases():
        opinion = theirs(case, peer)
        expected = case["expected"]
        assert opinion.outcome == expected["outcome"], case["name"]
        assert opinion.node_local is bool(expected["errorIsNodeLocal"]), case["name"]
        if opinion.results is not None:
            assert violations(case, opinion.results) == [], case["name"]


def test_the_documentation_has_every_difference_and_no_other() -> None:
    rows = re.findall(r"^\| (.+?) \|", (REPO / "docs" / "dra-differences.md").read_text(), re.MULTILINE)
    assert sorted(rows[1:]) == sorted(DIFFERENCES)


def test_peer_says_what_is_no_case(peer: UpstreamPeer) -> None:
    with pytest.raises(ValueError, match="no node"):
        peer.ask({}, {})
    with pytest.raises(ValueError, match="cannot unmarshal"):
        peer.ask({"slices": 7}, {})
