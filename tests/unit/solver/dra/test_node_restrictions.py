"""A ResourceClaim gets nothing on nodes on which it may not be, warm or cold, and says so if only they would do."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from devalloc.api.node_rules import FIELD, NodeRestriction, Restrictions
from devalloc_solver import Fleet
from devalloc_solver.check.resource_k8s import check_results
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dra import solve_manifests
from tests.support.call_count import calls
from tests.support.dra_random_clusters import BUT, ONLY, RandomCluster
from tests.support.manifests import Manifest

API = "resource.k8s.io/v1"
ANY = {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any"}, "spec": {}}
Rules = tuple[NodeRestriction, ...]


def gpus(node: str, count: int = 1) -> Manifest:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu", "nodeName": node, "pool": pool, "devices": [{"name": f"g{i}"} for i in range(count)]}
    return {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": node}, "spec": spec}


def wants(rules: Rules = (), count: int = 1, name: str = "c") -> Manifest:
    exactly = {"deviceClassName": "any", "allocationMode": "ExactCount", "count": count}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    claim = {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"namespace": "a", "name": name}, "spec": spec}
    return {**claim, FIELD: Restrictions(rules)} if rules else claim


def only(*nodes: str) -> Rules:
    return (NodeRestriction(ONLY, frozenset(nodes)),)


def but(*nodes: str) -> Rules:
    return (NodeRestriction(BUT, frozenset(nodes)),)


def answer(*documents: Manifest, name: str = "c") -> dict[str, Any]:
    one: dict[str, Any] = next(each for each in solve_manifests(documents)["claims"] if each["name"] == name)
    return one


THREE = [ANY, gpus("n1"), gpus("n2"), gpus("n3")]


@pytest.mark.parametrize(
    ("rules", "node"),
    [
        (but("n1"), "n2"),
        (but("n1", "n2", "no-such-node"), "n3"),
        (only("n3", "n2"), "n2"),
        ((*only("n2", "n3"), *but("n2")), "n3"),
        (only("no-such-node"), None),
        (only(), None),
    ],
)
def test_it_goes_to_the_best_of_the_nodes_on_which_it_may_be(rules: Rules, node: str | None) -> None:
    assert answer(*THREE, wants(rules))["node"] == node
    assert Fleet.from_manifests(THREE).allocate(wants(rules)) == answer(*THREE, wants(rules))


def test_a_warm_fleet_knows_nodes_of_one_kind_apart() -> None:
    fleet = Fleet.from_manifests([ANY, gpus("n1", 2), gpus("n2", 2), gpus("n3", 2)])
    nodes = [fleet.allocate(wants(only("n2", "n3"), name=f"c{i}"))["node"] for i in range(5)]
    assert nodes == ["n2", "n2", "n3", "n3", None]
    assert fleet.allocate(wants(name="free"))["node"] == "n1"


def test_several_claims_that_may_be_on_other_nodes_each_get_what_a_cold_solve_gives() -> None:
    """A warm fleet looks at the nodes that matter only."""
    nodes = [ANY, *(gpus(f"n{number:02}") for number in range(20))]
    claims = [wants(only("n18", "n19"), name="c"), wants(but("n00"), name="d"), wants(only("n18"), name="e")]
    fleet = Fleet.from_manifests(nodes)
    fleet.allocate_all([])  # now it knows that nothing is wrong
    warm = fleet.allocate_all(claims)["claims"]
    assert [(one["name"], one["node"]) for one in warm] == [("c", "n19"), ("d", "n01"), ("e", "n18")]
    assert warm == [answer(*nodes, *claims, name=name) for name in "cde"]


def test_the_reason_says_why_it_may_not_be_there_where_only_other_nodes_would_do() -> None:
    documents = [ANY, gpus("n1", 2), wants(but("n1"))]
    refused = answer(*documents)
    assert (refused["reason"], refused["message"]) == (
        "NodeUnavailable",
        "its pod's node selector, affinity or tolerations exclude the nodes where it fits; allow one of them",
    )
    assert not refused["blockers"], "no user wrote that"
    step = refused["funnel"][0]["steps"][-1]
    assert (step["code"], step["count"], refused["funnel"][0]["matching"]) == ("nodeBarred", 2, 0)
    assert Fleet.from_manifests(documents[:-1]).allocate(documents[-1]) == refused


def test_who_is_in_the_way_is_on_no_other_node() -> None:
    fleet = Fleet.from_manifests(THREE)
    for node in ("n1", "n2", "n3"):
        assert fleet.allocate(wants(only(node), name=f"on-{node}"))["allocated"]
    refused = fleet.allocate(wants(only("n3", "n4")))
    assert [one["name"] for one in refused["blockers"]] == ["on-n3"]


def test_refusals_one_after_the_other_are_those_of_a_cold_solve_and_an_equal_one_costs_less() -> None:
    nodes = [ANY, *(gpus(f"n{number:02}", 2) for number in range(40))]
    fleet = Fleet.from_manifests(nodes)
    given: list[object] = []

    def refuse(wanted: Manifest) -> None:
        given.append(fleet.allocate(wanted))

    costs = []
    for name in "xy":
        for number, (rules, count) in enumerate(
            (rules, count) for rules in (only("n03"), but("n00")) for count in (3, 4)
        ):
            wanted = wants(rules, count, name=f"{name}{number}")
            costs.append(calls(partial(refuse, wanted)))
            assert given[-1] == answer(*nodes, wanted, name=f"{name}{number}")
    assert costs[4] < costs[0] / 2


def test_the_check_refuses_an_answer_on_another_node() -> None:
    given = answer(*THREE, wants())
    assert given["node"] == "n1"
    for rules, is_wrong in (((), False), (only("n1"), False), (only("n2"), True), (but("n1"), True)):
        arguments = [given["allocations"]], "n1", [wants(rules)], [ANY], [gpus("n1")]
        wrong = check_results(*arguments, features=DEFAULT_GATES)
        assert [each.partition(": ")[2] for each in wrong] == ["must not be on node n1, and is answered there"][
            : int(is_wrong)
        ]


def test_claims_that_may_be_on_the_same_nodes_wait_for_the_same_thing() -> None:
    fleet = Fleet.from_manifests(THREE)
    key = fleet.waiting_key(wants(only("n1")))
    assert key == fleet.waiting_key(wants(only("n1"), name="d"))
    assert key not in (fleet.waiting_key(wants()), fleet.waiting_key(wants(only("n2"))))
    for one, fits in ((wants(only("n9")), False), (wants(only("n1")), True)):
        prospects = fleet.prospects(one)
        assert prospects is not None
        assert prospects.fits is fits


def test_a_part_of_a_batch_has_another_fingerprint_on_other_nodes() -> None:
    fleet = Fleet.from_manifests(THREE)
    prints = [fleet.parts([wants(rules)])[0].fingerprint for rules in ((), only("n1"), only("n2"), but("n1"))]
    assert len({*prints}) == len(prints)


def test_what_was_learned_of_a_shape_holds_wherever_a_claim_may_be() -> None:
    """A tenant may have thousands of pods, each of which may run on other nodes."""
    names = [f"n{number:03}" for number in range(100)]
    fleet = Fleet.from_manifests([ANY, *map(gpus, names)])
    first, second = (
        calls(partial(fleet.allocate, wants(rules, name=name)))
        for name, rules in (("first", only("n50", "n51")), ("second", only("n60", "n61")))
    )
    assert second < first / 2
    every = calls(partial(fleet.allocate, wants(but("n00"), name="third")))
    assert every < second + 20 * len(names), "nodes are looked at, and no device"


@pytest.mark.parametrize("seed", range(60))
def test_it_gets_what_it_would_get_without_the_other_nodes(seed: int) -> None:
    cluster = RandomCluster(Random(seed))
    documents = [*cluster.documents.values()]
    if any(not one["spec"].get("nodeName") for one in documents if one["kind"] == "ResourceSlice"):
        return  # without a node its labels do not select devices that others reach
    for _ in range(4):
        claim = {key: value for key, value in cluster.claim().items() if key != FIELD}
        claim["metadata"].pop("annotations", None)
        nodes = frozenset(name for name in cluster.nodes if cluster.rng.random() < 0.6)
        left = [one for one in documents if one["kind"] != "ResourceSlice" or one["spec"]["nodeName"] in nodes]
        free = answer(*left, claim, name=claim["metadata"]["name"])
        for rules in (only(*nodes), but(*(frozenset(cluster.nodes) - nodes))):
            limited = {**claim, FIELD: Restrictions(rules)}
            cold = answer(*documents, limited, name=claim["metadata"]["name"])
            assert _given(cold) == _given(answer(*left, limited, name=claim["metadata"]["name"]))
            assert _has_pools_of_several_nodes(documents) or _given(cold) == _given(free)
            assert Fleet.from_manifests(documents).allocate(limited) == cold


def _has_pools_of_several_nodes(documents: list[Manifest]) -> bool:
    """Their devices bring no node into use, but a claim with rules for nodes does wherever it is (S17, goal 5)."""
    slices = [one["spec"] for one in documents if one["kind"] == "ResourceSlice"]
    places = {(one["driver"], one["pool"]["name"], one["nodeName"]) for one in slices}
    return len({place[:2] for place in places}) < len(places)


def _given(answer: dict[str, Any]) -> tuple[object, ...]:
    """The node, and how many devices for which request: which ones come first depends on all nodes (S17, goal 6)."""
    results = answer["allocations"].get("devices", {}).get("results", [])
    return answer["allocated"], answer["node"], [one["request"] for one in results]
