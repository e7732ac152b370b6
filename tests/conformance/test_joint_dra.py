"""Many claims of resource.k8s.io over several nodes: as many of each priority as trying everything finds, checked.

DEVALLOC_FUZZ_EXAMPLES sets how many instances of each kind; `make fuzz` looks at more.
"""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from devalloc_solver import Fleet, dra
from tests.support.dra_differential import violations
from tests.support.dra_joint_instances import JointInstance, TooLarge, best, counts, joint, networked, placed
from tests.support.examples import examples

EXAMPLES = examples(10)
BATCH = min(20, EXAMPLES)
JOINTS = st.randoms(use_true_random=False).map(joint)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def complaints(one: JointInstance) -> tuple[list[str], bool]:
    """What is wrong with our answer, and whether its counts could be compared."""
    answer = dra.solve_manifests(one.documents)
    sentences = [sentence for instance, results in placed(one, answer) for sentence in violations(instance, results)]
    try:
        wanted = best(one)
    except TooLarge:
        return sentences, False
    if counts(one, answer) != wanted:
        sentences.append(f"satisfies {counts(one, answer)} of {wanted}")
    if not answer["optimal"]:
        sentences.append("does not prove it")
    return sentences, True


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_counts_agree_with_trying_everything(first: int) -> None:
    by_seed = {seed: complaints(joint(Random(seed))) for seed in range(first, first + BATCH)}
    assert {seed: sentences for seed, (sentences, _) in by_seed.items() if sentences} == {}
    assert sum(is_compared for _, is_compared in by_seed.values()) > BATCH * 3 // 4


@pytest.mark.parametrize("first", range(0, 2 * EXAMPLES, 2 * BATCH))
def test_devices_that_several_nodes_reach_are_judged_node_by_node(first: int) -> None:
    """Above all ``All``: it differs from node to node, and one where it cannot be had says nothing of others."""
    by_seed = {seed: complaints(networked(Random(seed))) for seed in range(first, first + 2 * BATCH)}
    assert {seed: sentences for seed, (sentences, _) in by_seed.items() if sentences} == {}
    assert sum(is_compared for _, is_compared in by_seed.values()) > BATCH


@settings(max_examples=examples(4, 0.0375), deadline=None, suppress_health_check=SLOW)
@given(one=JOINTS)
def test_shrinkable_instances_agree_with_trying_everything(one: JointInstance) -> None:
    assert complaints(one)[0] == []


@settings(max_examples=8, deadline=None, suppress_health_check=SLOW)
@given(one=JOINTS, seed=st.integers(0, 1000))
def test_the_order_of_documents_does_not_matter(one: JointInstance, seed: int) -> None:
    shuffled = one.documents
    Random(seed).shuffle(shuffled)
    first, second = dra.solve_manifests(one.documents), dra.solve_manifests(shuffled)
    assert json.dumps(first | {"seconds": 0}) == json.dumps(second | {"seconds": 0})


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_pools_that_every_node_names_alike_never_end_in_a_bug(first: int) -> None:
    """Devices of one name with whatever in them, from counters to admin access; each answer is checked."""
    warned = 0
    for seed in range(first, first + BATCH):
        documents = joint(Random(seed)).documents
        for one in documents:
            if one["kind"] == "ResourceSlice":
                pool = one["spec"]["pool"]
                pool["name"] = pool["name"].rpartition("-")[0]
        claims = [one for one in documents if one["kind"] == "ResourceClaim"]

        answer = dra.solve_manifests(documents)
        fleet = Fleet.from_manifests([one for one in documents if one["kind"] != "ResourceClaim"])
        for claim in claims:
            fleet.allocate(claim)

        results = [each["allocations"] for each in answer["claims"] if each["allocated"]]
        whole = [
            (one["driver"], one["pool"], one["device"])
            for result in results
            for one in result["devices"].get("results", ())
            if not one.get("shareID") and not one.get("adminAccess")
        ]
        assert len(whole) == len(set(whole))
        warned += any("published by the nodes" in problem["message"] for problem in answer["problems"])
    assert warned > BATCH // 2
