"""A claim gets nothing on nodes that it excludes, warm or cold, and says so if only they would do (S7)."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import pytest

from devalloc.api.meta import EXCLUDED_NODES, GROUP, GROUP_MATCH, NODE
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.testing import allocated, claim, device, device_class, entry, pool, request
from tests.support import random_fleets
from tests.support.apply_blockers import with_blockers_applied
from tests.support.manifests import Manifest

GPU = device_class("gpu", driver="gpu")


def gpus(node: str | None, count: int = 1) -> Manifest:
    return pool(f"of-{node or 'all'}", node, driver="gpu", devices=[device(f"g{i}") for i in range(count)])


def waiting(*excluded: str, count: int = 1, **metadata: Any) -> Manifest:
    return claim("c", request("gpu", count), annotations={EXCLUDED_NODES: ", ".join(excluded)}, **metadata)


def answer(*documents: Manifest, name: str = "c") -> dict[str, Any]:
    one: dict[str, Any] = next(each for each in solve_manifests(documents)["claims"] if each["name"] == name)
    return one


def test_it_goes_to_the_best_of_the_other_nodes() -> None:
    three = [GPU, gpus("n1"), gpus("n2"), gpus("n3")]
    assert answer(*three, waiting("n1"))["node"] == "n2"
    assert answer(*three, waiting("n1", "n2", "no-such-node"))["node"] == "n3"


def test_a_warm_fleet_knows_nodes_of_one_kind_apart() -> None:
    fleet = Fleet.from_manifests([GPU, gpus("n1", 2), gpus("n2", 2), gpus("n3", 2)])
    nodes = [
        fleet.allocate({**waiting("n1"), "metadata": {**waiting("n1")["metadata"], "name": f"c{i}"}})["node"]
        for i in range(5)
    ]
    assert nodes == ["n2", "n2", "n3", "n3", None]
    assert fleet.allocate(waiting("n2"))["node"] == "n1"


def test_a_node_that_comes_later_does_for_a_shape_that_had_none() -> None:
    fleet = Fleet.from_manifests([GPU, gpus("n1")])
    assert not fleet.allocate(waiting("n1"))["allocated"]
    fleet.update(gpus("n2"))
    assert fleet.allocate(waiting("n1"))["node"] == "n2"


def test_several_claims_at_once_get_what_they_would_get_from_a_cold_solve() -> None:
    """A warm fleet looks at a few nodes of each kind only."""
    strange = pool("strange", "other", driver="gpu", devices=[device("g0", attributes={"model": "x"})])
    nodes = [GPU, *(gpus(f"n{number:02}") for number in range(20)), strange]
    first = waiting(*(f"n{number:02}" for number in range(8)))
    second = {**waiting("n08"), "metadata": {**waiting("n08")["metadata"], "name": "d"}}
    fleet = Fleet.from_manifests(nodes)
    fleet.allocate_all([])  # now it knows that nothing is wrong
    warm = fleet.allocate_all([first, second])["claims"]
    assert [(one["name"], one["node"]) for one in warm] == [("c", "n08"), ("d", "n00")]
    assert warm == [answer(*nodes, first, second, name=name) for name in ("c", "d")]


@pytest.mark.parametrize("seed", range(24))
def test_claims_that_use_the_same_devices_get_the_same_of_equal_ones_warm_and_cold(seed: int) -> None:
    """Of nodes that are equal but for who excludes them, a warm fleet looks at as many as the exact model does."""
    random = Random(seed)
    nodes = [f"n{number}" for number in range(random.randint(4, 7))]
    devices = [device("g0"), device("g1")]
    pools = [pool(f"{node}-p{number}", node, driver="gpu", devices=devices) for node in nodes for number in range(2)]
    watcher = waiting(*random.sample(nodes, random.randint(1, len(nodes) - 2)), count=3)
    watcher["spec"]["claims"][0]["deviceClass"] = "watch"
    claims = [watcher, claim("d", request("gpu", 3))]
    documents = [GPU, device_class("watch", driver="gpu", adminAccess=True), *pools]
    fleet = Fleet.from_manifests(documents)
    fleet.allocate_all([])
    warm, cold = fleet.allocate_all(claims)["claims"], solve_manifests([*documents, *claims])["claims"]
    assert [(one["node"], one["allocations"]) for one in warm] == [(one["node"], one["allocations"]) for one in cold]


def test_the_reason_names_the_annotation_where_only_excluded_nodes_would_do() -> None:
    refused = answer(GPU, gpus("n1", 2), gpus("n2"), waiting("n1", count=2))
    assert refused["reason"] == "NodeUnavailable"
    assert [one["kind"] for one in refused["blockers"]] == ["nodeRule"]
    assert refused["message"] == (
        "it fits only on nodes that it may not be on; remove the annotation devalloc.io/excluded-nodes"
    )


def test_no_node_lacks_what_an_excluded_one_has_whatever_another_member_of_the_group_needs() -> None:
    first = waiting("n1", count=2, group="g")
    other = claim("d", request("gpu", 9), group="g")
    refused = answer(GPU, gpus("n1", 2), gpus("n2"), first, other)
    assert refused["reason"] == "NodeUnavailable"
    assert [one["code"] for one in refused["causes"]] == ["nodeBarred"]


def test_a_node_that_is_cordoned_is_proposed_before_one_that_is_excluded() -> None:
    marks = [{"name": "devalloc.io/unavailable", "stringValue": "cordoned: not yet"}]
    closed = gpus("n2")
    closed = {**closed, "spec": {**closed["spec"], "attributes": marks}}
    refused = answer(GPU, gpus("n1"), closed, waiting("n1"))
    assert [one["kind"] for one in refused["blockers"]] == ["unavailable"]


def test_who_is_in_the_way_is_on_no_excluded_node() -> None:
    holders = [
        allocated(claim(f"on-{node}", request("gpu")), [entry(f"of-{node}", "g0")], node=node) for node in ("n1", "n2")
    ]
    refused = answer(GPU, gpus("n1"), gpus("n2"), *holders, waiting("n1"))
    assert [one["name"] for one in refused["blockers"]] == ["on-n2"]


def test_devices_of_the_network_are_not_reached_from_an_excluded_node() -> None:
    fleet = [GPU, gpus("n1"), gpus("n2"), gpus(None)]
    assert answer(*fleet, waiting("n1", count=2))["node"] == "n2"
    assert not answer(*fleet, waiting("n1", "n2", count=2))["allocated"]


def test_a_group_is_on_no_node_that_a_member_excludes() -> None:
    fleet = [GPU, gpus("n1", 2), gpus("n2", 2), gpus("n3", 2)]
    first = waiting("n1", group="g")
    other = claim("d", request("gpu"), group="g", annotations={EXCLUDED_NODES: "n2"})
    assert answer(*fleet, first, other)["node"] == answer(*fleet, first, other, name="d")["node"] == "n3"


def test_a_pin_to_an_excluded_node_gets_nothing() -> None:
    pinned = waiting("n1", node="n1")
    fleet = [GPU, gpus("n1"), gpus("n2")]
    assert not answer(*fleet, pinned)["allocated"]
    assert not Fleet.from_manifests(fleet).allocate(pinned)["allocated"]


def test_an_unreadable_name_is_refused() -> None:
    assert answer(GPU, gpus("n1"), waiting("n\t1"))["reason"] == "ClaimInvalid"


@pytest.mark.parametrize("seed", range(40))
def test_it_gets_what_it_would_get_without_these_nodes_warm_or_cold(seed: int) -> None:
    random = Random(seed)
    documents = random_fleets.documents(random)
    pools = [one for one in documents if one["kind"] == "DevicePool"]
    if len({one["metadata"]["name"] for one in pools}) < len(pools):
        return  # pools of one name make each other invalid, so that it matters that others are there
    claims = [one for one in documents if one["kind"] == "DeviceClaim" and not one.get("status")]
    nodes = sorted({one["spec"]["nodeName"] for one in pools if one["spec"].get("nodeName")})
    others = [one for one in documents if one not in claims]
    for plain in claims:
        notes = plain["metadata"].setdefault("annotations", {})
        for note in (GROUP, GROUP_MATCH, NODE):
            notes.pop(note, None)
        excluded = random.sample(nodes, random.randint(0, max(0, len(nodes) - 2)))
        limited = deepcopy(plain)
        limited["metadata"]["annotations"][EXCLUDED_NODES] = ",".join(excluded)
        name = plain["metadata"]["name"]
        empty = [one for one in others if one["kind"] != "DeviceClaim"]
        fewer = [one for one in empty if one["kind"] != "DevicePool" or one["spec"].get("nodeName") not in excluded]
        here, there = answer(*empty, limited, name=name), answer(*fewer, plain, name=name)
        assert [here[each] for each in ("node", "allocations")] == [there[each] for each in ("node", "allocations")]
        cold = answer(*others, limited, name=name)
        assert Fleet.from_manifests(others).allocate(limited) == cold
        if cold.get("funnel") and not cold.get("caveats"):
            key = limited["metadata"].get("namespace", "default"), name
            eased = with_blockers_applied([*others, limited], key, cold["blockers"])
            assert answer(*eased, name=name)["allocated"], cold["message"]


def test_a_claim_is_not_bound_to_a_node_that_it_excludes_by_devices_of_the_network() -> None:
    """And the claims beside it get their answers."""
    documents = [
        device_class("any"),
        pool("net", None, "g", devices=[device("g0")]),
        pool("p", "n0", "h", devices=[device("h0")]),
    ]
    bound, other = claim("bound", {"deviceClass": "any"}), claim("other", {"deviceClass": "any"})
    bound["metadata"]["annotations"] = {NODE: "n0", EXCLUDED_NODES: "n0"}
    for claims in ([bound], [bound, other]):
        answers = solve_manifests([*documents, *claims])["claims"]
        assert [each["reason"] for each in answers] == ["NodeUnavailable", None][: len(claims)]
    assert Fleet.from_manifests(documents).allocate(bound)["reason"] == "NodeUnavailable"
