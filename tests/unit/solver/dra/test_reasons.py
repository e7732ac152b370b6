"""The message of a ResourceClaim that got nothing: numbers, names, what blocks it, and typos (S19)."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import combinations
from typing import Any

import pytest

from devalloc_solver import Fleet
from devalloc_solver.dialects.resource_k8s import call_explainer
from devalloc_solver.dialects.resource_k8s import explainer as resource_explainer
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.typos import nearest_name
from devalloc_solver.dra import AllocationError, explain, solve_manifests
from tests.support.dra_builders import ANY, claim, counter_slice, device, device_class, devices, request, slice_
from tests.support.sentences import at_length

Content = dict[str, Any]
GPU = device_class("gpu", "device.attributes['gpu.io'].kind == 'gpu'")


def pool(node: str, content: list[Content], **spec: Any) -> Content:
    return slice_(f"s-{node}", content, pool=node, nodeName=node, **spec)


def wants(name: str, *requests: Content, match: str | None = None, **marks: str) -> Content:
    return claim(*requests, name=name, match=match, marks=marks)


def solved(*documents: Content) -> dict[str, Content]:
    return {one["name"]: one for one in solve_manifests([ANY, GPU, *documents])["claims"]}


# -- who is in the way ---------------------------------------------------------------------------------------------


def test_the_message_of_a_loser_names_the_owners_and_whose_release_would_do() -> None:
    answer = solved(
        pool("n1", devices(*"abc")),
        wants("low", request("r", 2)),
        wants("small", request("r", 1), priority="5"),
        wants("high", request("r", 2), priority="7"),
    )["low"]

    assert answer["reason"] == "LostToHigherPriority"
    assert answer["blockers"] == [{"kind": "claim", "namespace": "default", "name": "high", "priority": 7}]
    assert answer["message"] == (
        "no node has a free device for request r; claims of priority 7 come before this one of 0; "
        "delete claim default/high"
    )
    (funnel,) = answer["funnel"]
    assert [(one["name"], one["count"]) for one in funnel["usedBy"]] == [("high", 2), ("small", 1)]


def test_a_claim_that_is_being_deleted_is_waited_for() -> None:
    cards, waiting = pool("n1", devices(*"ab")), wants("waits", request("r", 2))
    stored = [
        {**held, "status": {"allocation": solved(cards, held)[held["metadata"]["name"]]["allocations"]}}
        for held in (wants("leaves", request("r", 2)),)
    ]
    metadata = {**stored[0]["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["f"]}
    leaving = {**stored[0], "metadata": metadata}

    refusal = solved(cards, leaving, waiting)["waits"]
    assert refusal["message"].endswith("; wait for claim default/leaves")
    fleet = Fleet.from_manifests([ANY, GPU, cards, *stored])
    assert fleet.allocate(waiting)["message"].endswith("; delete claim default/leaves, or wait for it")
    fleet.update(leaving)
    assert fleet.allocate(waiting) == refusal


def test_the_funnel_of_a_loser_calls_no_device_free_that_another_claim_of_the_batch_got() -> None:
    (funnel,) = solved(
        pool("n1", devices(*"abc")), wants("low", request("r", 2)), wants("high", request("r", 2), priority="7")
    )["low"]["funnel"]

    assert (funnel["matching"], funnel["inUse"], funnel["free"]) == (3, 2, 1)


def test_devices_that_others_use_are_free_for_admin_access() -> None:
    held = claim(request(), name="held")
    held["status"] = {"allocation": {"devices": {"results": [{"driver": "gpu.io", "pool": "n1", "device": "a"}]}}}

    answer = solved(pool("n1", devices(*"ab")), held, wants("x", request("r", 3, adminAccess=True)))["x"]

    (funnel,) = answer["funnel"]
    assert (funnel["matching"], funnel["inUse"], funnel["free"]) == (2, 0, 2)
    assert "at most 2" in answer["message"]


def test_a_warm_fleet_names_the_allocated_claim_that_holds_the_devices() -> None:
    fleet = Fleet.from_manifests([ANY, pool("n1", devices(*"ab"))])
    assert fleet.allocate(wants("first", request("r", 2)))["allocated"]

    answer = fleet.allocate(wants("second", request("r", 1)))

    assert (answer["reason"], [b["name"] for b in answer["blockers"]]) == ("DevicesInUse", ["first"])
    fleet.release("default", "first")
    assert fleet.allocate(wants("second", request("r", 1)))["allocated"]


def test_equal_losers_have_the_same_blockers_and_each_blocker_has_devices() -> None:
    documents = [pool(f"n{i}", devices(*"ab")) for i in range(3)]
    documents += [wants(f"c{i}", request("r", 2)) for i in range(8)]
    answers = solved(*documents)

    lost = [one for one in answers.values() if not one["allocated"]]
    assert len(lost) == 5
    assert len({str(one["blockers"]) for one in lost}) == 1
    assert answers[lost[0]["blockers"][0]["name"]]["allocated"]


# -- what is in the way is true ------------------------------------------------------------------------------------

HALVES = [device(f"h{i}", counters={"s": {"m": "6"}}) for i in range(2)]
PAIR = [device("a", {"numa": 0, "kind": "nic"}), device("b", {"numa": 1, "kind": "nic"})]
CASES: dict[str, tuple[list[str], list[Content]]] = {
    "count": (["amount"], [pool("n1", devices(*"ab")), pool("n2", devices(*"abc")), wants("x", request("r", 5))]),
    "pin": (["node"], [pool("n1", devices("a")), pool("n2", devices(*"ab")), wants("x", request("r", 2), node="n1")]),
    "match": (["constraint"], [pool("n1", PAIR), wants("x", request("r", 2), match="gpu.io/numa")]),
    "selector": (["selector"], [pool("n1", PAIR), wants("x", request("r", 1, "device.driver == 'other.io'"))]),
    "class": (["class"], [pool("n1", PAIR), wants("x", request("r", 1, class_name="gpu"))]),
    "both": (
        ["selector", "class"],
        [pool("n1", PAIR), wants("x", request("r", 1, "device.driver == 'other.io'", class_name="gpu"))],
    ),
    "capacity": (
        ["capacity"],
        [
            pool("n1", [device("a", capacity={"memory": "10"})]),
            wants("x", request("r", 1, amounts={"memory": "11"})),
        ],
    ),
    "requests": (["request"], [pool("n1", devices(*"ab")), wants("x", *(request(name, 1) for name in "rst"))]),
    "member": (
        ["member"],
        [pool("n1", devices("a")), wants("x", request(), group="g"), wants("y", request(), group="g")],
    ),
    "a member that fits no node": (
        ["amount"],
        [pool("n1", devices(*"abc")), wants("x", request("r", 5), group="g"), wants("y", request(), group="g")],
    ),
    "counter": (
        ["counter"],
        [
            counter_slice("c", {"s": {"m": "10"}}, pool="n1", nodeName="n1", count=2),
            pool("n1", HALVES, count=2),
            wants("x", request("r", 2)),
        ],
    ),
    "a counter that two nodes see": (
        ["counter"],
        [
            counter_slice("c", {"s": {"m": "5"}}, allNodes=True, count=2),
            *(slice_(f"s-{n}", HALVES[:1], nodeName=n, count=2) for n in ("n1", "n2")),
            wants("x", request()),
        ],
    ),
    "a counter of a node that sees its pool last": (
        ["counter"],
        [
            counter_slice("c", {"s": {"m": "5"}}, allNodes=True, count=2),
            slice_("s-n1", devices("a"), nodeName="n1", count=2),
            slice_("s-n2", [*devices("a"), *HALVES[1:]], nodeName="n2", count=2),
            wants("x", request("r", 2)),
        ],
    ),
    "mixed": (
        ["amount", "claim"],
        [pool("n1", devices(*"ab")), wants("y", request("r", 2), priority="3"), wants("x", request("r", 3))],
    ),
}


@pytest.mark.parametrize(("kinds", "documents"), CASES.values(), ids=CASES)
def test_without_its_blockers_a_claim_fits_and_with_any_one_of_them_it_does_not(
    kinds: list[str], documents: list[Content]
) -> None:
    blockers = solved(*documents)["x"]["blockers"]

    assert [blocker["kind"] for blocker in blockers] == kinds
    assert fits(documents, blockers)
    for part in (some for size in range(len(blockers)) for some in combinations(blockers, size)):
        assert not fits(documents, part)


# -- the reason is the first relaxation with which it would fit ----------------------------------------------------

PLAIN = "!('kind' in device.attributes['gpu.io'])"


def test_more_devices_than_there_are_is_no_matter_of_their_counters() -> None:
    many = [device(name, counters={"s": {"m": "1"}}) for name in "ab"]
    counters = counter_slice("c", {"s": {"m": "6"}}, pool="n1", nodeName="n1", count=2)
    documents = [pool("n1", many, count=2), counters]

    answer = solved(*documents, wants("x", request("r", 3)))["x"]

    assert answer["reason"] == "NotEnoughDevices"
    assert [blocker["kind"] for blocker in answer["blockers"]] == ["amount"]


def test_a_claim_loses_to_a_higher_priority_only_if_a_claim_of_it_is_in_the_way() -> None:
    answers = solved(
        pool("n1", devices("a")),
        pool("n2", devices("g", kind="gpu")),
        wants("gpu", request("r", 1, class_name="gpu"), priority="7"),
        wants("first", request("r", 1, PLAIN)),
        wants("second", request("r", 1, PLAIN)),
    )

    assert answers["gpu"]["allocated"]
    assert answers["first"]["allocated"]
    assert answers["second"]["reason"] == "LostToCompetition"
    assert [blocker["name"] for blocker in answers["second"]["blockers"]] == ["first"]


@pytest.mark.parametrize("name", ["count", "pin", "match"])
def test_beyond_the_bound_on_searches_the_reason_is_the_same_without_blockers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, documents = CASES[name]
    full = solved(*documents)["x"]
    monkeypatch.setattr(resource_explainer, "MAX_FINDINGS", 0)

    brief = solved(*documents)["x"]

    assert brief["reason"] == full["reason"]
    assert full["blockers"]
    assert not brief["blockers"]
    assert brief["funnel"] == full["funnel"]


@pytest.mark.parametrize("counts", [(3, 3), (3, 1), (2, 1), (1, 1, 1), (2, 2, 2), (1, 3, 2)])
def test_what_is_in_the_way_of_a_member_is_never_the_member_itself(counts: tuple[int, ...]) -> None:
    named = dict(zip("xyz", counts, strict=False))
    documents = [pool("n1", devices(*"ab"))]
    documents += [wants(name, request("r", count), group="g") for name, count in named.items()]

    for name, answer in solved(*documents).items():
        blockers = answer["blockers"]
        assert blockers
        assert {"kind": "member", "namespace": "default", "name": name} not in blockers
        for part in (some for size in range(len(blockers) + 1) for some in combinations(blockers, size)):
            left = named | {one["claim"].partition("/")[2]: int(one["most"]) for one in part if one["kind"] == "amount"}
            gone = {one["name"] for one in part if one["kind"] == "member"}
            gone |= {one["claim"].partition("/")[2] for one in part if one["kind"] == "request"}
            members = [wants(n, request("r", left[n]), group="g") for n in left if n not in gone]
            fits = all(one["allocated"] for one in solved(documents[0], *members).values())
            assert fits == (len(part) == len(blockers))


def fits(documents: list[Content], blockers: Any) -> bool:
    """Whether claim x, or what is left of its group, is allocated once these are taken away by hand."""
    changed, classes = deepcopy(documents), deepcopy([ANY, GPU])
    claims = {one["metadata"]["name"]: one for one in changed if one["kind"] == "ResourceClaim"}
    spec = claims["x"]["spec"]["devices"]
    for blocker in blockers:
        ask = next(walk(spec["requests"]))
        match blocker["kind"]:
            case "claim" | "member":
                changed.remove(claims[blocker["name"]])
            case "amount":
                ask["count"] = int(blocker["most"])
            case "node":
                del claims["x"]["metadata"]["annotations"]["devalloc.io/node"]
            case "constraint":
                del spec["constraints"]
            case "selector":
                del ask["selectors"]
            case "class":
                classes[1]["spec"] = {}
            case "capacity":
                del ask["capacity"]["requests"][blocker["capacity"]]
            case "request":
                spec["requests"] = [one for one in spec["requests"] if one["name"] != blocker["request"]]
            case "counter":
                counters = changed[0]["spec"]["sharedCounters"][0]["counters"]
                counters[blocker["counter"]]["value"] = blocker["needed"]
    answers = {one["name"]: one for one in solve_manifests([*classes, *changed])["claims"]}
    return answers.get("x", answers.get("y", {})).get("allocated", False)


def walk(requests: list[Content]) -> Iterator[Content]:
    return (one["exactly"] for one in requests)


# -- groups --------------------------------------------------------------------------------------------------------


def test_a_member_that_nothing_matches_has_its_own_reason_and_the_others_name_it() -> None:
    answers = solved(pool("n1", PAIR), wants("x", request("r", 1, NO), group="g"), wants("y", request(), group="g"))

    assert {name: one["reason"] for name, one in answers.items()} == {
        "x": "NoMatchingDevices",
        "y": "GroupUnsatisfiable",
    }
    assert "both devices fail a selector of the request (device.driver == 'no'); relax" in answers["x"]["message"]
    assert answers["y"]["message"] == (
        "claim default/x: both devices fail a selector (device.driver == 'no'); "
        "relax requests[0].selectors of claim default/x"
    )
    assert [one["kind"] for one in answers["x"]["blockers"]] == ["selector"]
    assert answers["x"]["blockers"] == answers["y"]["blockers"]


def test_members_that_fit_alone_and_not_together_name_each_other() -> None:
    answers = solved(
        pool("n1", devices(*"ab")), wants("x", request("r", 2), group="g"), wants("y", request(), group="g")
    )

    assert {one["reason"] for one in answers.values()} == {"GroupUnsatisfiable"}
    assert [answers[name]["blockers"][0]["name"] for name in "xy"] == ["y", "x"]
    assert "all claims of group g must fit on one node" in answers["x"]["message"]


def test_what_a_member_needs_alone_may_not_be_enough_for_its_group() -> None:
    apart = wants("x", request("r", 2), match="gpu.io/numa", group="g")
    answers = solved(pool("n1", PAIR), apart, wants("y", request(), group="g"))

    assert {name: one["reason"] for name, one in answers.items()} == {
        "x": "MatchAttributesConflict",
        "y": "GroupUnsatisfiable",
    }
    assert [(one["kind"], one["most"]) for one in answers["x"]["blockers"]] == [("amount", "1")]


SHARED = pool(
    "n1",
    [
        {"name": name, "allowMultipleAllocations": True, "capacity": {"m": {"value": "74"}, "k": {"value": "8"}}}
        for name in "ab"
    ],
)


def takes(name: str, count: int, **amounts: str) -> Content:
    return request(name, count, capacity={"requests": amounts})


@pytest.mark.parametrize("marks", [{}, {"group": "g"}])
def test_a_claim_whose_amounts_are_too_much_has_the_same_code_alone_and_in_a_group(marks: dict[str, str]) -> None:
    others = [wants("y", request(), **marks)] if marks else []
    answers = solved(SHARED, wants("x", *(takes(name, 1, m="60") for name in "abc"), **marks), *others)

    assert "for 3 requests together" in answers["x"]["message"]
    assert answers["x"]["reason"] == "InsufficientCapacity"


def test_two_capacities_and_the_count_of_one_request_are_edited_together_cold_and_warm() -> None:
    """One edit keeps what another one has changed: each of the three alone is too much."""
    wanted = wants("x", takes("r", 3, m="80", k="9"))

    for refusal in (solved(SHARED, wanted)["x"], Fleet.from_manifests([ANY, GPU, SHARED]).allocate(wanted)):
        named = [(one["kind"], one.get("capacity"), one.get("most")) for one in refusal["blockers"]]
        assert named == [("capacity", "m", None), ("capacity", "k", None), ("amount", None, "2")]


def test_a_claim_in_the_way_of_a_group_is_in_the_way_of_each_member() -> None:
    pending = [wants("high", request(), priority="7"), *(wants(name, request(), group="g") for name in "xy")]
    answers = solved(pool("n1", devices(*"ab")), *pending)

    for name in "xy":
        assert answers[name]["reason"] == "LostToHigherPriority"
        assert [one["name"] for one in answers[name]["blockers"]] == ["high"]


def allocated(name: str, node: str, device_name: str, **marks: str) -> Content:
    """A claim that holds a device of a node."""
    pending = wants(name, request(), **marks)
    answer = solved(pool(node, devices(device_name)), pending)[name]
    return pending | {"status": {"allocation": answer["allocations"]}}


def test_a_group_is_bound_by_the_member_that_holds_devices_and_not_by_a_pin() -> None:
    pools = pool("n1", devices(*"abc")), pool("n2", devices(*"ab"))
    answer = solved(*pools, allocated("x", "n2", "a", group="g"), wants("y", request("r", 3), group="g"))["y"]

    bound_by = [{"namespace": "default", "name": "x"}]
    assert answer["reason"] == "NodeUnavailable"
    assert answer["blockers"] == [{"kind": "node", "node": "n2", "boundBy": bound_by}]
    assert "delete claim default/x, which holds the group on node n2" in answer["message"]


def test_the_release_of_the_member_that_binds_a_group_may_be_enough() -> None:
    pools = pool("n1", devices(*"abc")), pool("n2", devices(*"abc"))
    held = [allocated("x", "n2", "a", group="g"), allocated("h", "n2", "b")]
    answer = solved(*pools, *held, wants("y", request("r", 3), group="g"))["y"]

    assert answer["reason"] == "DevicesInUse"
    assert [one["name"] for one in answer["blockers"]] == ["x"]


@pytest.mark.parametrize("agreeing", ["ab", "bc", "ac"])
def test_a_request_is_as_good_to_leave_out_as_another_only_if_the_same_constraints_bind_it(agreeing: str) -> None:
    """Of two devices that differ, two requests that must agree cannot be had, whichever is written first."""
    bound = {"requests": [*agreeing], "matchAttribute": "gpu.io/numa"}
    wanted = claim(*(request(name) for name in "abc"), name="x", constraints=[bound])
    answer = solved(pool("n1", [device("d", {"numa": 0}), device("e", {"numa": 1})]), wanted)["x"]

    (blocker,) = answer["blockers"]
    assert (blocker["kind"], blocker["request"] in agreeing) == ("request", True)


# -- numbers -------------------------------------------------------------------------------------------------------


def test_the_sentence_has_the_numbers_of_the_best_node() -> None:
    answer = solved(pool("n1", devices("a")), pool("n2", devices(*"abc")), wants("x", request("r", 9)))["x"]

    assert "no node has 9 devices for request r (at most 3)" in answer["message"]
    assert answer["message"].endswith("; lower spec.devices.requests[0].exactly.count to 3")


def test_a_match_that_fails_says_how_many_agree() -> None:
    content = [device(name, {"numa": index % 2}) for index, name in enumerate("abc")] + [device("d")]
    answer = solved(pool("n1", content), wants("x", request("r", 3), match="gpu.io/numa"))["x"]

    assert "no node has 3 devices with the same `gpu.io/numa`" in answer["message"]
    assert "(at most 2; 1 of 4 have no `gpu.io/numa`)" in answer["message"]


def test_a_message_about_withheld_devices_has_an_example() -> None:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    answer = solved(pool("n1", [device("a", taints=[taint])]), wants("x", request()))["x"]

    assert "the only device has a taint that is not tolerated (maintenance:NoSchedule)" in answer["message"]


def test_where_a_taint_keeps_the_devices_back_no_rule_that_chooses_them_is_blamed() -> None:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    tainted = device("a", {"kind": "gpu"}, taints=[taint])
    fleet = pool("n1", [tainted, device("b", {"kind": "nic"})])
    is_gpu = "device.attributes['gpu.io'].kind == 'gpu'"

    by_class = solved(fleet, wants("x", request(class_name="gpu")))["x"]
    by_selector = solved(fleet, wants("x", request("r", 1, is_gpu)))["x"]

    for answer in (by_class, by_selector):
        assert (answer["reason"], answer["blockers"]) == ("NoMatchingDevices", [])
        assert "has a taint that is not tolerated (maintenance:NoSchedule)" in answer["message"]
        assert "it fits without" not in answer["message"]


def test_where_no_change_of_the_claim_helps_the_message_begins_with_the_last_rule() -> None:
    tainted = device("z", {"kind": "gpu"}, taints=[{"key": "maintenance", "effect": "NoSchedule"}])
    documents = [pool("n1", [*(device(name, {"kind": "nic"}) for name in "bcd"), tainted]), GPU]
    wanted = wants("x", request(class_name="gpu"))

    answers = [solved(*documents[:1], wanted)["x"], Fleet.from_manifests(documents).allocate(wanted)]

    words = "1 of 4 devices has a taint that is not tolerated (maintenance:NoSchedule), 3 are not of class gpu"
    assert [one["message"] for one in answers] == [f"{words}; tolerate the taint"] * 2


def test_the_rules_of_a_funnel_are_in_the_order_in_which_they_are_judged() -> None:
    fleet = pool("n1", [device("a", {"kind": "gpu"}, capacity={"memory": "1"}), device("b", {"kind": "nic"})])
    wanted = wants("x", request(class_name="gpu", amounts={"memory": "2"}))

    for answer in (solved(fleet, wanted)["x"], Fleet.from_manifests([GPU, fleet]).allocate(wanted)):
        assert [step["code"] for step in answer["funnel"][0]["steps"]] == ["classSelector", "capacity"]


def test_where_no_device_matches_beside_tainted_ones_the_rule_is_in_the_way() -> None:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    fleet = pool("n1", [device("a", {"kind": "nic"}, taints=[taint]), device("b", {"kind": "nic"})])

    answer = solved(fleet, wants("x", request(class_name="gpu")))["x"]

    assert answer["blockers"] == [{"kind": "class", "deviceClassName": "gpu"}]


# -- slips ---------------------------------------------------------------------------------------------------------

NO = "device.driver == 'no'"
CARD = [device("a", {"model": "A100", "numa": 0}, capacity={"memory": "10"})]


@pytest.mark.parametrize(
    ("pending", "message"),
    [
        (
            wants("x", request("r", 1, "device.attributes['gpu.io'].modle == 'A100'")),
            "no device has attribute `gpu.io/modle`; did you mean `gpu.io/model`?",
        ),
        (
            wants("x", request("r", 1, "device.attributes['gup.io'].model == 'A100'")),
            "no device has attribute `gup.io/model`; did you mean `gpu.io/model`?",
        ),
        (
            wants("x", request("r", 1, "device.attributes['gpu.io'].model == 'A10O'")),
            "no device has `gpu.io/model` 'A10O'; did you mean 'A100'?",
        ),
        (
            wants("x", request("r", 1, "device.driver == 'd' || !(device.attributes['gpu.io'].model == 'A10O')", NO)),
            "no device has `gpu.io/model` 'A10O'; did you mean 'A100'?",
        ),
        (
            wants("x", request("r", 1, "cel.bind(gpu, device.attributes['gpu.io'], gpu.modle == 'A100')")),
            "no device has attribute `gpu.io/modle`; did you mean `gpu.io/model`?",
        ),
        (
            wants("x", request("r", 1), match="gpu.io/nuam"),
            "no device has attribute `gpu.io/nuam`; did you mean `gpu.io/numa`?",
        ),
        (
            wants("x", request("r", 1, amounts={"memroy": "1"})),
            "no device has capacity `memroy`; did you mean `memory`?",
        ),
    ],
    ids=["attribute", "domain", "value", "value in an alternative", "bound to a variable", "match", "capacity"],
)
def test_a_misspelt_attribute_is_named(pending: Content, message: str) -> None:
    assert message in solved(pool("n1", CARD), pending)["x"]["message"]


@pytest.mark.parametrize(("requested", "written"), [("gpu.io/memory", "memory"), ("memory", "gpu.io/memory")])
def test_a_request_names_a_capacity_with_the_domain_only_if_its_devices_do(requested: str, written: str) -> None:
    answer = solved(
        pool("n1", [device("a", capacity={written: "10", "cores": "4"})]), wants("x", request(amounts={requested: "1"}))
    )["x"]

    assert f"no device has capacity `{requested}`; did you mean `{written}`?" in answer["message"]


def test_a_class_that_is_not_there_while_a_near_one_is() -> None:
    answer = solved(pool("n1", CARD), wants("x", request("r", 1, class_name="gpus")))["x"]

    assert answer["message"].endswith("class 'gpus' does not exist; did you mean 'gpu'?")
    with pytest.raises(AllocationError, match=r"class gpus: it does not exist; .*; did you mean 'gpu'\?"):
        explain("n1", [claim(request("r", 1, class_name="gpus"))], [ANY, GPU], [slice_("s", CARD)])


def test_explain_has_the_same_numbers_and_slips() -> None:
    pending = claim(request("r", 1, "device.attributes['gpu.io'].modle == 'A100'"))
    answer = explain("n1", [pending], [ANY], [slice_("s", CARD)])

    words = "no device matches; no device has attribute `gpu.io/modle`; did you mean `gpu.io/model`?"
    assert answer["message"] == words
    (funnel,) = answer["claims"][0]["requests"]
    assert [(step["count"], step["what"]) for step in funnel["steps"]] == [(1, "cause an error in a selector")]
    assert [one["kind"] for one in answer["blockers"]] == ["selector"]


def test_explain_counts_what_is_free() -> None:
    held = {"devices": [{"driver": "gpu.io", "pool": "p", "device": "a"}]}
    content = [slice_("s", devices(*"ab"))]
    message = explain("n1", [claim(request("r", 5))], [ANY], content, allocated=held)["message"]

    assert "node n1 does not have 5 free devices" in message


def test_what_is_there_is_no_slip() -> None:
    pending = wants("x", request("r", 2, "device.attributes['gpu.io'].model == 'A100'"))

    assert "did you mean" not in solved(pool("n1", CARD), pending)["x"]["message"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("d.io/modle", "d.io/model"), ("d.oi/model", "d.io/model"), ("d.io/xyz", None), ("zzz.net/qqq", None)],
)
def test_names_are_near_within_their_domain_or_in_one_that_is_near(name: str, near: str | None) -> None:
    assert nearest_name(name, ["d.io/model", "d.io/numa", "other.net/model"]) == near


def test_the_order_of_slices_does_not_matter_to_what_is_in_the_way() -> None:
    pools = [slice_(f"s-{pool}", devices("d0"), pool=pool, nodeName="n2") for pool in ("p", "q")]

    first, second = (explain("n1", [claim(request())], [ANY], order) for order in (pools, pools[::-1]))

    assert first == second
    assert first["blockers"] == [{"kind": "node", "node": "n1", "driver": "gpu.io", "pool": "p"}]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "device.attributes['gpu.io'].numa == '0'",
            "type int on 1 device, and is compared with the string '0'; write 0 without",
        ),
        (
            "device.attributes['gpu.io'].model == 3",
            "type string on 1 device, and is compared with the int 3; write '3' in quotes",
        ),
        (
            "device.attributes['gpu.io'].ready == 'true'",
            "type bool on 1 device, and is compared with the string 'true'; write true",
        ),
    ],
)
def test_a_value_of_another_type_is_named(expression: str, message: str) -> None:
    card = [device("a", {"numa": 0, "model": "A100", "ready": True})]

    assert message in solved(pool("n1", card), wants("x", request("r", 1, expression)))["x"]["message"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"selector": []},
            "exactly.selector is not a known field of resource.k8s.io/v1: did you mean selectors?",
        ),
        (
            {"futureField": 1},
            "exactly.futureField is not a known field of resource.k8s.io/v1: the solver cannot know what it means",
        ),
        (
            {"selectors": [{"cel": {"expression": "device.attribute['gpu.io'].a"}}]},
            "'attribute'; did you mean 'attributes'?",
        ),
    ],
)
def test_a_misspelt_field_is_named(fields: Content, message: str) -> None:
    answer = solved(pool("n1", CARD), wants("x", request("r", 1, **fields)))["x"]

    assert (answer["reason"], message in at_length(answer)) == ("ClaimInvalid", True)


@pytest.mark.parametrize(
    ("name", "is_valid"), [("pcieRoot", False), ("/x", False), ("gpu.io/", False), ("gpu.io/model", True)]
)
def test_constraints_want_qualified_names_as_the_api_server_does(name: str, is_valid: bool) -> None:
    for field in ("matchAttribute", "distinctAttribute"):
        pending = wants("x", request("r", 1))
        pending["spec"]["devices"]["constraints"] = [{field: name}]
        answer = solved(pool("n1", CARD), pending)["x"]

        assert (answer["reason"] == "ClaimInvalid") is not is_valid
        assert is_valid or f"constraints[0].{field} {name!r} is not a qualified name" in answer["message"]


def test_what_is_proposed_comes_in_one_order() -> None:
    """Of sets, whose order is another one in each process."""
    items = [{"driver": "gpu.io", "pool": "p", "device": f"d{n}"} for n in (7, 3, 9, 1, 5, 8, 2)]
    source = call_explainer.ChangedCall("n1", (), (), (), {"devices": items}, frozenset())
    features = [one.entry["feature"] for one in call_explainer.switch_on_features(source)]
    assert features == sorted(DEFAULT_GATES)
    holders = [entry["device"] for entry, _ in call_explainer.list_holders((), {"devices": items})]
    assert holders == sorted(item["device"] for item in items)
