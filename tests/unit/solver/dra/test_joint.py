"""Many claims over many nodes at once: priorities, groups, pins, and what is said of the rest (S7, S17, S19)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from devalloc_solver import AnswerRefused, Fleet
from devalloc_solver.dialects.resource_k8s.cluster_check import ClusterChecker
from devalloc_solver.dra import solve_manifests
from tests.support.dra_builders import ANY, claim, counter_slice, device, device_class, devices, node, request, slice_


def node_slice(node: str, *names: str, **spec: Any) -> dict[str, Any]:
    content = spec.pop("content", None) or devices(*names)
    return slice_(f"s-{node}", content, pool=node, nodeName=node, **spec)


def wants(name: str, count: int | None = 1, *selectors: str, match: str | None = None, **marks: str) -> dict[str, Any]:
    return claim(request("r", count, *selectors), name=name, match=match, marks=marks)


def solved(*documents: dict[str, Any], **options: Any) -> dict[str, dict[str, Any]]:
    answer = solve_manifests([ANY, *documents], **options)
    return {one["name"]: one for one in answer["claims"]}


def nodes(answers: dict[str, dict[str, Any]]) -> dict[str, str | None]:
    """The node of every claim; "-" where nothing was allocated."""
    return {name: one["node"] if one["allocated"] else "-" for name, one in answers.items()}


def test_claims_go_where_they_fit_all_of_them_if_that_can_be() -> None:
    answers = solved(node_slice("n1", *"ab"), node_slice("n2", *"abc"), wants("x", 3), wants("y", 2))

    assert nodes(answers) == {"x": "n2", "y": "n1"}


def test_every_priority_that_waits_has_a_level() -> None:
    """Also where every claim of it is refused before the search (S17)."""
    odd = wants("odd", 1, "device.", priority="9")
    answer = solve_manifests([ANY, node_slice("n1", "a"), wants("x", priority="5"), odd])

    levels = [
        (level["goal"], level.get("priority"), level["value"], level["bound"])
        for level in answer["objective"]["levels"]
    ]
    assert levels[:2] == [("satisfied", 9, 0, 0), ("satisfied", 5, 1, 1)]
    assert [goal for goal, *_ in levels[2:]] == ["pools", "devices"]


def _all_over_two_nodes(**local: Any) -> list[dict[str, Any]]:
    """Two nodes, a device that both reach, and one of n0 alone."""
    nodes = [node(name) for name in ("n0", "n1")]
    return [
        *nodes,
        slice_("net", devices("d0"), pool="net", allNodes=True),
        node_slice("n0", **local),
    ]


TAINTED = [device("d0", taints=[{"key": "t", "value": "v", "effect": "NoSchedule"}])]


def test_a_node_where_all_cannot_be_had_says_nothing_of_others() -> None:
    """What counts as all is what the node reaches; here it is the shared device alone on n1."""
    documents = _all_over_two_nodes(content=TAINTED)
    pending = wants("x", None)

    (answers,) = solve_manifests([ANY, *documents, pending])["claims"]
    taken = [(one["pool"], one["device"]) for one in answers["allocations"]["devices"]["results"]]

    assert taken == [("net", "d0")]
    assert Fleet.from_manifests([ANY, *documents]).allocate(pending) == answers


def test_all_is_refused_where_its_only_node_cannot_have_it() -> None:
    documents = _all_over_two_nodes(content=TAINTED)

    answer = solved(*documents, wants("x", None, node="n0"))["x"]
    nowhere = solved(*documents, node_slice("n1", content=TAINTED), wants("x", None))["x"]

    assert (answer["allocated"], answer["reason"]) == (False, "NodeUnavailable")
    assert (nowhere["allocated"], nowhere["reason"]) == (False, "NoMatchingDevices")


def test_all_is_decided_on_a_node_without_a_broken_pool() -> None:
    incomplete = _all_over_two_nodes(content=devices("d0"), count=2)

    assert not solved(*incomplete, wants("x", None, node="n0"))["x"]["allocated"]
    assert solved(*incomplete, wants("x", None))["x"]["allocated"]


def test_higher_priority_comes_first_and_the_loser_has_that_reason() -> None:
    answers = solved(node_slice("n1", *"ab"), wants("low", 1), wants("high", 2, priority="7"))

    assert nodes(answers) == {"high": "n1", "low": "-"}
    assert answers["low"]["reason"] == "LostToHigherPriority"


def test_a_group_shares_a_node_or_gets_nothing() -> None:
    group = [wants("x", 2, group="g"), wants("y", 1, group="g")]

    assert nodes(solved(node_slice("n1", *"ab"), node_slice("n2", *"abc"), *group)) == {"x": "n2", "y": "n2"}
    assert nodes(solved(node_slice("n1", *"ab"), node_slice("n2", *"ab"), *group)) == {"x": "-", "y": "-"}


def test_a_member_that_is_allocated_fixes_the_node_of_its_group() -> None:
    first = solved(node_slice("n2", "a"), wants("x", group="g"))["x"]
    done = wants("x", group="g") | {"status": {"allocation": first["allocations"]}}

    answers = solved(node_slice("n1", *"abc"), node_slice("n2", *"ab"), done, wants("y", 1, group="g"))

    assert nodes(answers) == {"x": "n2", "y": "n2"}


def test_a_pin_is_kept() -> None:
    slices = node_slice("n1", *"ab"), node_slice("n2", "a")

    assert nodes(solved(*slices, wants("x", 1, node="n2"))) == {"x": "n2"}
    assert solved(*slices, wants("x", 2, node="n2"))["x"]["reason"] == "NodeUnavailable"


def test_network_devices_alone_need_no_node_unless_they_bind_to_one() -> None:
    everywhere = slice_("s", devices("a"), allNodes=True)
    binding = slice_("s", [device("a", bindsToNode=True)], allNodes=True)

    free = solved(everywhere, node_slice("n1", "b"), wants("x", 1, "device.driver == 'gpu.io'"))["x"]
    bound = solved(binding, node("n1"), wants("x"))["x"]

    assert free["allocated"]
    assert bound["node"] == "n1"
    assert "nodeSelector" in bound["allocations"]


def test_nodes_have_the_labels_of_their_objects() -> None:
    zone = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}]}
    shared = slice_("s", devices("d"), driver="net.io", nodeSelector=zone)
    labelled = [node(n, zone=z) for n, z in (("n1", "a"), ("n2", "b"))]
    both = claim(request("r", 1, "device.driver == 'net.io'"), request("q", 1, "device.driver == 'gpu.io'"), name="x")

    assert nodes(solved(shared, *labelled, node_slice("n1", "a"), node_slice("n2", "a"), both)) == {"x": "n2"}
    assert nodes(solved(shared, *labelled, node_slice("n1", "a"), both)) == {"x": "-"}


def test_all_devices_are_those_of_one_node() -> None:
    answers = solved(node_slice("n1", *"abc"), node_slice("n2", "a"), wants("x", None), wants("y", 2))

    assert nodes(answers) == {"x": "n2", "y": "n1"}


def test_a_node_with_an_incomplete_pool_gets_no_claim_for_all() -> None:
    broken = node_slice("n1", *"abc"), slice_("t", devices("d"), pool="q", count=2)

    assert nodes(solved(*broken, node_slice("n2", "a"), wants("x", None))) == {"x": "n2"}


def test_counters_of_a_pool_that_spans_nodes_count_over_all_of_them() -> None:
    def content(name: str) -> list[dict[str, Any]]:
        return [device(name, counters={"s": {"m": "2"}})]

    pool = [
        counter_slice("c", {"s": {"m": "3"}}, count=3),
        slice_("s1", content("a"), count=3),
        slice_("s2", content("b"), count=3, nodeName="n2"),
    ]

    answers = solved(*pool, wants("x"), wants("y"))

    assert sorted(one["allocated"] for one in answers.values()) == [False, True]


def test_an_allocated_claim_is_echoed_and_holds_its_devices() -> None:
    first = solved(node_slice("n1", "a"), wants("x"))["x"]
    done = wants("x") | {"status": {"allocation": first["allocations"]}}

    answers = solved(node_slice("n1", "a"), done, wants("y"))

    assert answers["x"]["allocations"] == first["allocations"]
    assert answers["y"]["reason"] == "DevicesInUse"


@pytest.mark.parametrize(
    ("pending", "reason"),
    [
        (wants("x", 1, "device.driver == 'other'"), "NoMatchingDevices"),
        (wants("x", 3), "NotEnoughDevices"),
        (wants("x", 2, match="gpu.io/none"), "MatchAttributesConflict"),
        (wants("x", 33), "ClaimInvalid"),
        (wants("x", 0), "ClaimInvalid"),
        (wants("x", 1, "noSuchVariable"), "ClaimInvalid"),
        (wants("x", priority="high"), "ClaimInvalid"),
        (claim(request(class_name="gone"), name="x"), "ClassNotFound"),
        (wants("x") | {"metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, "Deleting"),
    ],
)
def test_every_refusal_has_a_reason(pending: dict[str, Any], reason: str) -> None:
    answers = solved(node_slice("n1", *"ab"), pending, wants("y"))

    assert answers["x"]["reason"] == reason
    assert answers["x"]["message"]
    assert answers["y"]["allocated"]


def test_a_class_that_is_wrong_concerns_those_who_name_it_only() -> None:
    pending = claim(request(class_name="broken"), name="x")

    answers = solved(node_slice("n1", *"ab"), device_class("broken", "1 +"), pending, wants("y"))

    assert (answers["x"]["reason"], answers["y"]["allocated"]) == ("ClassInvalid", True)


def test_what_the_api_server_fills_in_may_be_missing() -> None:
    bare = {**claim({"name": "r", "exactly": {"deviceClassName": "any"}}), "metadata": {"name": "x"}}

    assert solved(node_slice("n1", "a"), bare)["x"]["allocated"]


def test_objects_that_are_wrong_are_reported_and_the_rest_goes_on() -> None:
    documents = [
        ANY,
        node_slice("n1", "a"),
        {**slice_("odd"), "spec": {"driver": "gpu.io"}},
        {"apiVersion": "resource.k8s.io/v1alpha2", "kind": "ResourceClaim", "metadata": {"name": "old"}, "spec": {}},
        {"kind": "Pod", "metadata": {"name": "pod"}},
        "no object",
        wants("x"),
    ]

    answer = solve_manifests(documents)

    problems = {one.get("name", ""): (one["severity"], one.get("path"), one["message"]) for one in answer["problems"]}
    assert problems["odd"] == ("error", "spec.pool.name", "is missing: every object of this kind has it")
    assert problems["old"][1] == "apiVersion"
    assert problems["pod"][0] == "warning"
    assert "must be an object with apiVersion, kind and metadata, not a string ('no object')" in problems[""][2]
    assert {one["name"]: one["allocated"] for one in answer["claims"]} == {"old": False, "x": True}


def test_two_claims_of_one_name_are_both_invalid() -> None:
    answer = solve_manifests([ANY, node_slice("n1", "a"), wants("x"), wants("x")])

    assert [(one["name"], one["reason"]) for one in answer["claims"]] == [("x", "ClaimInvalid")]


def test_the_same_bytes_in_any_order() -> None:
    documents = [
        ANY,
        *(node_slice(f"n{i}", *"abc") for i in range(3)),
        *(wants(f"c{i}", 1 + i % 3) for i in range(5)),
    ]
    first = solve_manifests(documents)

    for seed in range(3):
        random.Random(seed).shuffle(documents)
        assert solve_manifests(documents) | {"seconds": 0} == first | {"seconds": 0}


def test_an_answer_that_the_check_refuses_is_never_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterChecker, "wrong", lambda *_: ["device given twice"])

    with pytest.raises(AnswerRefused, match="device given twice"):
        solved(node_slice("n1", "a"), wants("x"))


def test_blockers_of_each_claim_have_its_own_name() -> None:
    answers = solve_manifests([ANY, node_slice("n1", "a"), wants("x", 2), wants("y", 2)])["claims"]

    assert [[blocker["claim"] for blocker in one["blockers"]] for one in answers] == [["default/x"], ["default/y"]]


def test_a_member_that_leaves_takes_its_pin_with_it() -> None:
    answers = solved(
        node_slice("n1", *"abc"),
        node_slice("n2", *"de"),
        wants("x", group="g", node="n2"),
        wants("y", 2, group="g"),
        wants("z", group="g"),
    )

    assert [(b["kind"], b["name"]) for b in answers["y"]["blockers"]] == [("member", "x")]


def test_a_group_bound_to_two_nodes_names_all_who_bind_it() -> None:
    first = solved(node_slice("n1", *"ab"), wants("x"))["x"]["allocations"]
    held = [{**wants(name, group="g"), "status": {"allocation": first}} for name in ("x", "v")]
    for order in (held, held[::-1]):
        answers = solved(node_slice("n1", *"ab"), node_slice("n2", "c"), *order, wants("y", group="g", node="n2"))
        assert "n1 (v, x), n2 (y)" in answers["y"]["message"]


@pytest.mark.parametrize("group", [{}, {"group": "g"}])
def test_claims_that_request_nothing_are_satisfied_together(group: dict[str, str]) -> None:
    empty = [{**wants(name, **group), "spec": {}} for name in ("x", "y")]
    for others in ([], [wants("z")], [wants("z", 9)], [{**wants("z"), "spec": {}}]):
        answers = solved(node_slice("n1", *"ab"), *empty, *others)
        assert [answers[name]["allocated"] for name in ("x", "y")] == [True, True]
