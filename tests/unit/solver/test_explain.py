"""The message of a refused claim names the true blocker, with numbers (S19)."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.cordon import apply_all_cordons
from devalloc.api.meta import CORDONED_NODE, UNAVAILABLE
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.explain import explainer
from devalloc_solver.explain.relaxations import RelaxationSet
from tests.support.manifests import allocated, claim, device, device_class, entry, pool

GPU = device_class("gpu", driver="gpu", deviceType="gpu")
MONITOR = device_class("monitor", driver="none", adminAccess=True)


def answer(name: str, *documents: dict[str, Any]) -> dict[str, Any]:
    """The answer to one claim."""
    refusal: dict[str, Any] = next(c for c in solve_manifests(documents)["claims"] if c["name"] == name)
    return refusal


def gpus(count: int, node: str = "n1", **attributes: Any) -> dict[str, Any]:
    devices = [device(f"g{i}", attributes={"numa": i % 2, **attributes}) for i in range(count)]
    return pool(f"{node}-gpus", node, devices=devices)


def test_the_sentence_names_the_holder_and_the_funnel_counts_every_step() -> None:
    nics = pool("n1-nics", driver="nic", devices=[device(f"d{i}") for i in range(8)])
    fleet = pool(
        "n1-gpus",
        devices=[device(f"g{i}", attributes={"model": "a" if i < 2 else "b", "numa": i % 2}) for i in range(4)],
    )
    holder = allocated(
        claim("train-1", {"deviceClass": "gpu", "requests": {"count": 1}}), [entry("n1-gpus", "g2")], node="n1"
    )
    wanted = claim("c", {"deviceClass": "gpu", "constraints": "device.model == 'b'", "requests": {"count": 2}})
    refusal = answer("c", GPU, nics, fleet, holder, wanted)
    assert refusal["reason"] == "DevicesInUse"
    assert refusal["message"] == "no node has 2 free devices (at most 1); delete claim default/train-1, or wait for it"
    assert refusal["verdict"] == "impossible now"
    (funnel,) = refusal["funnel"]
    steps = [(step["count"], step["what"]) for step in funnel["steps"]]
    assert steps == [(8, "are not of driver gpu"), (2, "fail device.model == 'b'")]
    assert funnel["usedBy"] == [{"namespace": "default", "name": "train-1", "count": 1}]
    assert refusal["blockers"] == [{"kind": "claim", "namespace": "default", "name": "train-1", "priority": 0}]


def test_a_match_that_fails_is_named_with_its_attribute() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 3}, "matchAttributes": ["numa"]})
    refusal = answer("c", GPU, gpus(4), wanted)
    assert refusal["reason"] == "MatchAttributesConflict"
    assert refusal["message"] == (
        "no node has 3 devices with the same `numa` (at most 2); remove `numa` from spec.claims[0].matchAttributes"
    )
    assert refusal["verdict"] == "impossible even on an empty fleet"
    (blocker,) = refusal["blockers"]
    assert (blocker["kind"], blocker["attribute"]) == ("matchAttribute", "numa")


def test_too_few_anywhere_is_not_blamed_on_the_match() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 5}, "matchAttributes": ["numa"]})
    refusal = answer("c", GPU, gpus(4), gpus(4, "n2"), wanted)
    assert refusal["reason"] == "NotEnoughDevices"


@pytest.mark.parametrize("constraints", ["device.model == 'x'", "device.model\n  == 'x'\n"], ids=["a line", "a block"])
def test_no_device_of_that_kind(constraints: str) -> None:
    wanted = claim("c", {"deviceClass": "gpu", "constraints": constraints})
    refusal = answer("c", GPU, gpus(2, model="y"), wanted)
    assert refusal["reason"] == "NoMatchingDevices"
    assert "both devices fail device.model == 'x'" in refusal["message"]


def test_a_missing_attribute_is_shown_as_the_example() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "constraints": "device.modle == 'y'"})
    refusal = answer("c", GPU, gpus(2, model="y"), wanted)
    (step,) = refusal["funnel"][0]["steps"]
    assert step["count"] == 2
    assert "modle" in step["example"]


@pytest.mark.parametrize(
    ("others", "spec", "of_class"),
    [
        ((), {"deviceClass": "new"}, "fail device.gen > 1 of class new"),
        ((device_class("newest", driver="gpu", deviceType="gpu", constraints="device.gen > 2"),), {"deviceType": "gpu"},
         "fail the constraints of all classes of type gpu"),
    ],
    ids=["one class", "several classes"],
)  # fmt: skip
def test_a_device_falls_at_the_first_rule_that_it_breaks_and_the_rules_stand_in_order(
    others: tuple[dict[str, Any], ...], spec: dict[str, Any], of_class: str
) -> None:
    """However many devices break each of them: here it is one more from rule to rule, and who breaks one breaks none
    before it."""
    good = {"gen": 2, "model": "b", "numa": 0}
    breaks: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("class", {"gen": 1, "model": "a", UNAVAILABLE: "busy"}, {"requests": {"lanes": 1}}),
        ("claim", {**good, "model": "a", UNAVAILABLE: "busy"}, {"requests": {"lanes": 1}}),
        ("undefined", {"gen": 2, "model": "b", UNAVAILABLE: "busy"}, {"requests": {"lanes": 1}}),
        ("unavailable", {"gen": 2, "model": "b", UNAVAILABLE: "busy"}, {}),
        ("match", {"gen": 2, "model": "b"}, {}),
    ]
    devices = [
        device(f"{name}-{i}", attributes=attributes, **more)
        for count, (name, attributes, more) in enumerate(breaks, start=2)
        for i in range(count)
    ]
    new = device_class("new", driver="gpu", deviceType="gpu", constraints="device.gen > 1")
    nic = pool("n1-nics", driver="nic", devices=[device("d0")])
    wanted = claim("c", {**spec, "constraints": "device.model == 'b'", "matchAttributes": ["numa"]})
    refusal = answer("c", new, *others, nic, pool("n1-gpus", devices=devices), wanted)
    steps = [(step["count"], step["what"]) for step in refusal["funnel"][0]["steps"]]
    assert steps[:6] == [
        (1, "are not of driver gpu"),
        (2, of_class),
        (3, "fail device.model == 'b'"),
        (4, "draw on a resource that is not defined"),
        (5, "are unavailable"),
        (6, "have no attribute numa"),
    ]


def test_a_pin_to_the_wrong_node() -> None:
    wanted = claim("c", {"deviceClass": "gpu"}, annotations={"devalloc.io/node": "n2"})
    other = pool("n2-nics", "n2", "nic", devices=[device("d0")])
    refusal = answer("c", GPU, gpus(1), other, wanted)
    assert refusal["reason"] == "NodeUnavailable"
    assert "bound to node n2" in refusal["message"]


def test_partitions_that_exclude_each_other() -> None:
    card = pool(
        "card",
        resources={"memory": "40Gi"},
        devices=[device(f"half{i}", requests={"memory": "24Gi"}) for i in range(2)],
    )
    refusal = answer("c", GPU, card, claim("c", {"deviceClass": "gpu", "requests": {"count": 2}}))
    assert refusal["reason"] == "PoolResourcesExhausted"


def test_too_little_capacity() -> None:
    card = pool("card", devices=[device("g0", resources={"memory": "40Gi/1Gi"})])
    refusal = answer("c", GPU, card, claim("c", {"deviceClass": "gpu", "requests": {"memory": "41Gi"}}))
    assert refusal["reason"] == "InsufficientCapacity"
    assert refusal["message"] == (
        "no node has 41Gi of memory on its devices (at most 40Gi); lower spec.claims[0].requests.memory to 40Gi"
    )
    assert [(b["kind"], b["requested"], b["most"]) for b in refusal["blockers"]] == [("amount", "41Gi", "40Gi")]


def test_losing_to_a_higher_priority_and_to_an_equal_have_different_reasons() -> None:
    high = claim("high", {"deviceClass": "gpu"}, annotations={"devalloc.io/priority": "5"})
    early = claim("early", {"deviceClass": "gpu"}, creationTimestamp="2026-01-01T00:00:00Z")
    late = claim("late", {"deviceClass": "gpu"}, creationTimestamp="2026-01-02T00:00:00Z")
    assert answer("late", GPU, gpus(1), early, late)["reason"] == "LostToCompetition"
    refusal = answer("late", GPU, gpus(1), high, late)
    assert refusal["reason"] == "LostToHigherPriority"
    assert refusal["blockers"] == [{"kind": "claim", "namespace": "default", "name": "high", "priority": 5}]


def test_the_smallest_set_of_blockers_is_named() -> None:
    one = allocated(
        claim("one", {"deviceClass": "gpu", "requests": {"count": 2}}),
        [entry("n1-gpus", "g0"), entry("n1-gpus", "g1")],
        node="n1",
    )
    others = [
        allocated(claim(f"small{i}", {"deviceClass": "gpu"}), [entry("n1-gpus", f"g{i}")], node="n1") for i in (2, 3)
    ]
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 2}})
    refusal = answer("c", GPU, gpus(4), one, *others, wanted)
    assert [b["name"] for b in refusal["blockers"]] == ["one"]


def test_held_shares_block_and_more_held_than_there_is_is_no_contradiction() -> None:
    card = pool("card", devices=[device("g0", resources={"memory": "4Gi/1Gi"})])
    request = {"deviceClass": "gpu", "requests": {"memory": "3Gi"}}
    held = [allocated(claim(f"h{i}", request), [entry("card", "g0", memory="3Gi")], node="n1") for i in range(2)]
    refusal = answer("c", GPU, card, *held, claim("c", request))
    assert refusal["reason"] == "DevicesInUse"
    assert [b["name"] for b in refusal["blockers"]] == ["h0", "h1"]


def test_a_group_names_the_member_that_fails() -> None:
    marks = {"devalloc.io/group": "vm"}
    fits = claim("fits", {"deviceClass": "gpu"}, annotations=marks)
    fails = claim("fails", {"deviceClass": "gpu", "requests": {"count": 9}}, annotations=marks)
    assert answer("fails", GPU, gpus(2), fits, fails)["reason"] == "NotEnoughDevices"
    refusal = answer("fits", GPU, gpus(2), fits, fails)
    assert refusal["reason"] == "GroupUnsatisfiable"
    assert "default/fails" in refusal["message"]


def test_devices_that_neither_match_nor_go_together_are_blamed_on_both() -> None:
    parts = [device(f"d{i}", attributes={"numa": i}, requests={"m": "1"}) for i in range(2)]
    card = pool("p", resources={"m": "1"}, devices=parts)
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["numa"]})
    refusal = answer("c", GPU, card, wanted)
    assert refusal["reason"] == "MatchAttributesConflict"
    assert "no node has 2 devices with the same `numa`" in refusal["message"]
    assert [(b["kind"], b.get("attribute"), b.get("missing")) for b in refusal["blockers"]] == [
        ("matchAttribute", "numa", None),
        ("poolResource", None, "1"),
    ]


def test_a_limit_that_no_device_keeps_is_named() -> None:
    fleet = pool("p", devices=[device("d", resources={"memory": "8Gi"})])
    refusal = answer("c", GPU, fleet, claim("c", {"deviceClass": "gpu", "limits": {"memory": "4Gi"}}))
    assert refusal["reason"] == "InsufficientCapacity"
    assert refusal["message"].endswith("; remove spec.claims[0].limits.memory")


def test_more_matching_devices_than_an_admin_claim_may_have_is_no_lack_of_devices() -> None:
    admin = device_class("admin", driver="gpu", adminAccess=True)
    refusal = answer("c", admin, gpus(2), claim("c", {"deviceClass": "admin", "limits": {"count": 1}}))
    assert refusal["reason"] == "InsufficientCapacity"
    assert refusal["message"].endswith("; remove spec.claims[0].limits.count to use several devices")


def test_equal_claims_have_equal_reasons_each_with_its_own_request() -> None:
    """Equal but for name and age: what is found out about one holds for the other; the priority makes a third one."""
    detail = {"deviceClass": "gpu", "requests": {"count": 2}}
    held = allocated(claim("held", {"deviceClass": "gpu"}), [entry("n1-gpus", "g0")], node="n1")
    waiting = [claim(name, detail) for name in ("a", "b")]
    urgent = claim("urgent", detail, annotations={"devalloc.io/priority": "5"})
    by_name = {c["name"]: c for c in solve_manifests([GPU, gpus(3), held, *waiting, urgent])["claims"]}
    assert by_name["urgent"]["allocated"]
    assert by_name["a"]["reason"] == by_name["b"]["reason"] == "LostToHigherPriority"
    assert by_name["a"]["message"] == by_name["b"]["message"]
    assert by_name["a"]["blockers"] == [{"kind": "claim", "namespace": "default", "name": "urgent", "priority": 5}]


def test_a_group_whose_members_would_each_fit_lost_as_a_whole_to_who_got_the_devices() -> None:
    marks = {"devalloc.io/group": "vm"}
    members = [claim(name, {"deviceClass": "gpu", "requests": {"count": 2}}, annotations=marks) for name in ("a", "b")]
    urgent = claim("urgent", {"deviceClass": "gpu"}, annotations={"devalloc.io/priority": "5"})
    for name in ("a", "b"):
        refusal = answer(name, GPU, gpus(4), urgent, *members)
        assert refusal["reason"] == "LostToHigherPriority"
        assert "all claims of group vm must fit on one node" in refusal["message"]
        assert [b["name"] for b in refusal["blockers"]] == ["urgent"]


def test_a_held_member_of_the_group_may_be_all_that_is_in_the_way() -> None:
    """It binds the others to its node, where two claims more would have to go."""
    vm = {"devalloc.io/group": "vm"}
    first = allocated(claim("first", {"deviceClass": "gpu"}, annotations=vm), [entry("n1-gpus", "g0")], node="n1")
    held = [
        allocated(claim(f"h{i}", {"deviceClass": "gpu"}), [entry("n1-gpus", f"g{i}")], node="n1") for i in range(1, 4)
    ]
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 2}}, annotations=vm)
    refusal = answer("c", GPU, gpus(4), gpus(2, node="n2"), first, *held, wanted)
    assert [b["name"] for b in refusal["blockers"]] == ["first"]
    taken = allocated(claim("t", {"deviceClass": "gpu"}), [entry("n2-gpus", "g0")], node="n2")
    refusal = answer("c", GPU, gpus(4), gpus(2, node="n2"), first, *held, taken, wanted)
    assert [b["name"] for b in refusal["blockers"]] == ["first", "h1"], "elsewhere it would be two as well"


def test_a_group_bound_to_two_nodes_names_all_who_bind_it() -> None:
    vm = {"devalloc.io/group": "vm"}
    held = [
        allocated(claim(f"h{i}", {"deviceClass": "gpu"}, annotations=vm), [entry("n1-gpus", f"g{i}")], node="n1")
        for i in range(2)
    ]
    wanted = claim("c", {"deviceClass": "gpu"}, annotations={**vm, "devalloc.io/node": "n2"})
    for order in (held, held[::-1]):
        refusal = answer("c", GPU, gpus(4), gpus(2, node="n2"), *order, wanted)
        assert refusal["reason"] == "GroupUnsatisfiable"
        assert "n1 (h0, h1), n2 (c)" in refusal["message"]


def test_a_member_that_leaves_takes_its_pin_with_it() -> None:
    vm = {"devalloc.io/group": "vm"}
    pinned = claim("a", {"deviceClass": "gpu"}, annotations={**vm, "devalloc.io/node": "n2"})
    two = claim("b", {"deviceClass": "gpu", "requests": {"count": 2}}, annotations=vm)
    one = claim("c", {"deviceClass": "gpu"}, annotations=vm)
    refusal = answer("b", GPU, gpus(3), gpus(2, node="n2"), pinned, two, one)
    assert [(b["kind"], b["name"]) for b in refusal["blockers"]] == [("member", "a")]


WOULD_DO = "node n1 would do, but is cordoned by root: new fan; soon"


def cordoned(documents: list[dict[str, Any]], *nodes: str) -> list[dict[str, Any]]:
    for one in documents:
        if one["kind"] == "DevicePool" and one["spec"].get("nodeName") in nodes:
            one["metadata"]["annotations"] = {CORDONED_NODE: "by root: new fan; soon"}
    return apply_all_cordons(documents)


def test_a_cordoned_node_is_one_blocker_and_the_other_nodes_that_would_do_are_listed() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 3}})
    fleet = [GPU, gpus(4), gpus(4, "n2"), gpus(2, "n3"), gpus(4, "n4"), wanted]
    refusal = answer("c", *cordoned(fleet, "n1", "n2", "n3", "n4"))
    assert refusal["reason"] == "NoMatchingDevices"
    assert refusal["message"] == f"{WOULD_DO}; run `devalloc uncordon node/n1`"
    assert refusal["verdict"] == "impossible now"
    why = "cordoned: node, by root: new fan; soon"
    assert refusal["blockers"] == [{"kind": "unavailable", "node": "n1", "why": why, "otherNodes": ["n2", "n4"]}]


def test_if_it_is_enough_to_uncordon_a_node_no_node_lacks_anything() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 3}})
    refusal = answer("c", *cordoned([GPU, gpus(4), gpus(2, "n2"), wanted], "n1"))
    assert refusal["reason"] == "NotEnoughDevices"
    assert "no node has" not in refusal["message"]
    assert refusal["message"] == f"{WOULD_DO}; run `devalloc uncordon node/n1`"
    assert refusal["verdict"] == "impossible now"


def test_a_group_that_fits_once_a_node_is_uncordoned_lacks_nothing_either() -> None:
    group = {"devalloc.io/group": "vm"}
    wanted = [claim(name, {"deviceClass": "gpu", "requests": {"count": 2}}, annotations=group) for name in "cd"]
    refusal = answer("c", *cordoned([GPU, gpus(4), gpus(2, "n2"), *wanted], "n1"))
    assert refusal["message"] == (
        "all claims of group vm must fit on one node; run `devalloc uncordon node/n1` (cordoned by root: new fan; soon)"
    )


def test_a_node_is_uncordoned_and_the_amount_is_the_most_that_fits_then() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 9}})
    refusal = answer("c", *cordoned([GPU, gpus(4), wanted], "n1"))
    assert refusal["verdict"] == "impossible even on an empty fleet"
    assert refusal["message"].endswith("; run `devalloc uncordon node/n1` and lower claims[0].requests.count to 4")


def test_a_claim_pinned_to_a_cordoned_node_waits_for_that_node() -> None:
    wanted = claim("c", {"deviceClass": "gpu"}, annotations={"devalloc.io/node": "n1"})
    refusal = answer("c", *cordoned([GPU, gpus(1), gpus(1, "n2"), wanted], "n1"))
    assert refusal["reason"] == "NodeUnavailable"
    assert [(one["kind"], one["node"]) for one in refusal["blockers"]] == [("unavailable", "n1")]
    assert refusal["verdict"] == "impossible now"


def test_if_claims_are_in_the_way_a_cordoned_node_that_has_room_is_named_too() -> None:
    holder = allocated(claim("holder", {"deviceClass": "gpu"}), [entry("n2-gpus", "g0")], node="n2")
    wanted = claim("c", {"deviceClass": "gpu"})
    refusal = answer("c", *cordoned([GPU, gpus(1), gpus(1, "n2"), holder, wanted], "n1"))
    assert refusal["reason"] == "DevicesInUse"
    assert refusal["message"].endswith("; delete claim default/holder or run `devalloc uncordon node/n1`")


def test_a_broken_device_of_a_cordoned_node_needs_more_than_an_uncordon() -> None:
    broken = pool("n1-gpus", devices=[device("g0", attributes={UNAVAILABLE: "unhealthy"})])
    refusal = answer("c", *cordoned([GPU, broken, claim("c", {"deviceClass": "gpu"})], "n1"))
    assert refusal["verdict"] == "impossible even on an empty fleet"
    assert [one.get("device") for one in refusal["blockers"]] == ["g0"]


@pytest.mark.parametrize("count", [1, 3, 9])
def test_a_warm_fleet_explains_a_cordon_in_the_same_words_and_lists_no_other_nodes(count: int) -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": count}})
    fleet = cordoned([GPU, *(gpus(4, f"n{number}") for number in range(6))], "n1", "n2", "n4")
    holders = [
        allocated(claim(f"of-{node}", {"deviceClass": "gpu", "requests": {"count": 4}}),
                  [entry(f"{node}-gpus", f"g{i}") for i in range(4)], node=node)
        for node in ("n0", "n3", "n5")
    ]  # fmt: skip
    cold = answer("c", *fleet, *holders, wanted)
    warm = Fleet.from_manifests([*fleet, *holders]).allocate(wanted)
    assert "run `devalloc uncordon node/n1`" in cold["message"] or count == 9
    assert (warm["reason"], warm["message"]) == (cold["reason"], cold["message"])
    assert warm["blockers"] == [{k: v for k, v in one.items() if k != "otherNodes"} for one in cold["blockers"]]


@pytest.mark.parametrize("counts", [[3] * 6, [1, 2] * 3, [4] * 2, [3] * 5 + [4]])
def test_equal_members_of_a_group_report_what_a_search_for_each_would_find(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    vm = {"devalloc.io/group": "vm"}
    members = [
        claim(f"c{number}", {"deviceClass": "gpu", "requests": {"count": count}}, annotations=vm)
        for number, count in enumerate(counts)
    ]
    searched: list[object] = []
    search = RelaxationSet.why_impossible
    monkeypatch.setattr(
        RelaxationSet, "why_impossible", lambda *args, **options: (searched.append(args), search(*args, **options))[1]
    )
    documents = [GPU, gpus(7), gpus(5, "n2"), *members]
    reported = solve_manifests(documents)["claims"]
    assert len(searched) == (1 if len({*counts}) == 1 else len(counts))
    monkeypatch.setattr(explainer, "ask_for_the_same", lambda unit: False)
    assert reported == solve_manifests(documents)["claims"]
    assert {one["reason"] for one in reported} == {"GroupUnsatisfiable"}


def test_a_claim_that_loses_its_only_request_binds_its_group_to_no_node() -> None:
    marks = {"devalloc.io/group": "g"}
    fits = claim("fits", {"deviceClass": "gpu"}, annotations=marks)
    lacking = {"deviceClass": "monitor"}  # of no device, and its class stays: it is what makes this admin access
    bound = claim("bound", lacking, annotations={**marks, "devalloc.io/node": "elsewhere"})
    for name in ("fits", "bound"):
        refusal = answer(name, GPU, MONITOR, gpus(2), fits, bound)
        assert [(each["kind"], each.get("claim")) for each in refusal["blockers"]] == [("request", "default/bound")]


@pytest.mark.parametrize(("count", "text"), [(1, "the only pool has no devices"), (2, "none of 2 pools has a device")])
def test_pools_without_devices_are_not_called_absent(count: int, text: str) -> None:
    empty = [pool(f"p{number}", "n0", "gpu", devices=[]) for number in range(count)]
    (answer,) = solve_manifests([device_class("gpu", driver="gpu"), *empty, claim("c", {"deviceClass": "gpu"})])[
        "claims"
    ]
    assert answer["message"] == f"{text}; see what their nodes lack: `devalloc check-host`"
