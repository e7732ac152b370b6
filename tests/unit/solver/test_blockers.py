"""What is in the way of a claim is named by kind, with what to do about it; and it is all, and no more, than that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests, testing
from devalloc_solver.explain import feasibility, leaving
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion, Undecided
from devalloc_solver.explain.leaving import LeavingSearch
from devalloc_solver.place import SearchTimeout
from devalloc_solver.problem.allocations import Holding
from tests.support.manifests import Manifest, allocated, claim, config_reference, device, device_class, entry, pool

GPU = device_class("gpu", driver="gpu", deviceType="gpu")
UNAVAILABLE, GROUP = "devalloc.io/unavailable", "devalloc.io/compatibilityGroup"


def answer(name: str, *documents: Manifest) -> dict[str, Any]:
    refusal: dict[str, Any] = next(c for c in solve_manifests(documents)["claims"] if c["name"] == name)
    return refusal


def blockers(*documents: Manifest) -> list[dict[str, Any]]:
    """The blockers of the claim ``c``."""
    entries: list[dict[str, Any]] = answer("c", *documents)["blockers"]
    return entries


def gpus(count: int, node: str = "n1", **attributes: Any) -> Manifest:
    return pool(f"{node}-gpus", node, devices=[device(f"g{i}", attributes=attributes) for i in range(count)])


# -- kinds -----------------------------------------------------------------------------------------------------------


def test_a_blocker_shows_the_count_that_would_fit() -> None:
    assert blockers(GPU, gpus(3), gpus(4, "n2"), claim("c", {"deviceClass": "gpu", "requests": {"count": 9}})) == [
        {"kind": "amount", "request": "0", "resource": "count", "path": "spec.claims[0].requests.count"}
        | {"requested": "9", "most": "4"}
    ]


def test_a_blocker_shows_the_amount_that_would_fit_to_the_block() -> None:
    card = pool("card", devices=[device(f"g{i}", resources={"memory": "10Gi/4Gi"}) for i in range(2)])
    (blocker,) = blockers(GPU, card, claim("c", {"deviceClass": "gpu", "requests": {"memory": "17Gi"}}))
    assert (blocker["requested"], blocker["most"]) == ("17Gi", "16Gi")


def test_an_amount_that_no_device_shares_is_left_out_cold_and_warm() -> None:
    """The claim gets whole devices then; a request that can have shares keeps its amount."""
    card = pool("card", devices=[device("s0", resources={"cores": "4"}), device("s1", resources={"cores": "4"})])
    plain, shared = ({"deviceClass": "gpu", "requests": {name: "2"}} for name in ("memory", "cores"))
    wanted = claim("c", plain, shared)

    for refusal in (answer("c", GPU, card, wanted), Fleet.from_manifests([GPU, card]).allocate(wanted)):
        assert refusal["blockers"] == [
            {"kind": "amount", "request": "0", "resource": "memory", "path": "spec.claims[0].requests.memory"}
            | {"requested": "2", "whole": True}
        ]
        assert refusal["message"] == (
            "none of 2 devices offers shares of `memory`; remove spec.claims[0].requests.memory to get whole devices"
        )


def test_of_two_amounts_one_that_no_device_shares_leaves_the_other() -> None:
    card = pool("card", devices=[device("s0", resources={"cores": "4"})])
    (blocker,) = blockers(GPU, card, claim("c", {"deviceClass": "gpu", "requests": {"cores": "2", "memory": "2"}}))
    assert (blocker["resource"], blocker.keys() & {"most", "whole"}) == ("memory", set())


@pytest.mark.parametrize(
    ("requests", "also", "others"),
    [
        ([{"requests": {"cores": "2"}, "matchAttributes": ["numa"]}], {}, ["spec.claims[0].matchAttributes"]),
        ([{"requests": {"cores": "2"}, "constraints": "device.model == 'x'"}], {}, ["spec.claims[0].constraints"]),
        ([{"requests": {"cores": "2"}}], {"annotations": {"devalloc.io/node": "n9"}}, [None]),
        ([{"requests": {"cores": "2"}}, {"requests": {"count": 5}}], {}, ["spec.claims[1].requests.count"]),
        ([{"requests": {"cores": "2", "memory": "1"}}], {}, ["spec.claims[0].requests.memory"]),
        ([{"requests": {"cores": "2"}}, {"requests": {"memory": "1"}}], {}, ["spec.claims[1].requests.memory"]),
        ([{"requests": {"cores": "2", "count": 1}}], {}, []),
    ],
    ids=["attribute", "constraint", "node", "count", "amount", "amount of another request", "whole device"],
)
def test_an_amount_that_no_device_shares_is_left_out_beside_other_faults_cold_and_warm(
    requests: list[dict[str, Any]], also: dict[str, Any], others: list[str | None]
) -> None:
    """To leave out the amount alone does not help, and to leave out the whole request is more than what is needed."""
    card = pool("card", "n1", devices=[device("s0"), device("s1")])
    wanted = claim("c", *({"deviceClass": "gpu", **each} for each in requests), **also)
    for refusal in (answer("c", GPU, card, wanted), Fleet.from_manifests([GPU, card]).allocate(wanted)):
        paths = [each.get("path") for each in refusal["blockers"]]
        assert sorted(paths, key=str) == sorted(["spec.claims[0].requests.cores", *others], key=str)
        assert "cores" in refusal["message"].rpartition("; ")[2]


def test_a_cause_names_all_amounts_that_the_remedy_leaves_out() -> None:
    card = pool("card", devices=[device("s0"), device("s1")])
    for names, words in (("ab", "`a` or `b`"), ("abc", "`a`, `b` or `c`")):
        wanted = claim("c", {"deviceClass": "gpu", "requests": dict.fromkeys(names, "2")})
        message = answer("c", GPU, card, wanted)["message"]
        assert message.startswith(f"none of 2 devices offers shares of {words}; remove spec.claims[0].requests.a")


def test_two_amounts_of_one_request_are_reduced_together_cold_and_warm() -> None:
    """One edit keeps what another one has changed: either amount alone is too much."""
    card = pool("card", devices=[device("g0", resources={"memory": "40Gi/1Gi", "cores": "4"})])
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"memory": "41Gi", "cores": "5"}})

    for refusal in (answer("c", GPU, card, wanted), Fleet.from_manifests([GPU, card]).allocate(wanted)):
        named = [(blocker["kind"], blocker["resource"], blocker["most"]) for blocker in refusal["blockers"]]
        assert named == [("amount", "memory", "40Gi"), ("amount", "cores", "4")]


def test_of_requests_that_cannot_be_together_the_smallest_set_is_named() -> None:
    """Two pairs are on n1, and the third request is for n2 only: leaving it out does."""
    fleet = [gpus(2, "n1"), pool("n2-nics", "n2", "nic", devices=[device("x")])]
    wanted = claim("c", {"deviceClass": "gpu"}, {"deviceClass": "gpu"}, {"deviceClass": "nic"})
    assert blockers(GPU, device_class("nic", driver="nic"), *fleet, wanted) == [
        {"kind": "request", "request": "2", "path": "spec.claims[2]"}
    ]


def test_only_the_attribute_that_differs_is_named() -> None:
    fleet = pool("p", devices=[device(f"g{i}", attributes={"numa": i, "model": "a"}) for i in range(2)])
    detail = {"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["model", "numa"]}
    assert [(b["kind"], b["attribute"], b["path"]) for b in blockers(GPU, fleet, claim("c", detail))] == [
        ("matchAttribute", "numa", "spec.claims[0].matchAttributes")
    ]


def test_a_match_of_the_spec_has_its_own_path() -> None:
    fleet = pool("p", devices=[device(f"g{i}", attributes={"numa": i}) for i in range(2)])
    wanted = claim("c", {"deviceClass": "gpu"}, {"deviceClass": "gpu"}, match=["numa"])
    assert blockers(GPU, fleet, wanted) == [
        {"kind": "matchAttribute", "attribute": "numa", "path": "spec.matchAttributes"}
    ]


def test_a_pool_resource_is_named_with_its_pool_and_how_much_is_missing() -> None:
    """On card-b one unit less is missing than on card-a."""
    halves = [device(f"half{i}", requests={"memory": "24Gi"}) for i in range(2)]
    cards = [pool(f"card-{n}", f"n{n}", resources={"memory": f"{40 + n}Gi/1Gi"}, devices=halves) for n in (1,)]
    (blocker,) = blockers(GPU, *cards, claim("c", {"deviceClass": "gpu", "requests": {"count": 2}}))
    assert blocker == {"kind": "poolResource", "pool": "card-1", "node": "n1", "resource": "memory"} | {
        "capacity": "41Gi",
        "missing": "7Gi",
    }


def test_blockers_come_from_the_node_with_fewest_short_resources() -> None:
    both = [device(f"d{i}", requests={"a": 1, "b": 1}) for i in range(2)]
    fleet = [
        pool("short-of-two", "n1", resources={"a": 1, "b": 1}, devices=both),
        pool("short-of-one", "n2", resources={"a": 1, "b": 2}, devices=both),
    ]
    named = blockers(GPU, *fleet, claim("c", {"deviceClass": "gpu", "requests": {"count": 2}}))
    assert [(b["pool"], b["resource"], b["missing"]) for b in named] == [("short-of-one", "a", "1")]


def test_groups_that_do_not_go_together_are_named_by_pool() -> None:
    card = pool("card", devices=[device(f"v{i}", attributes={GROUP: f"{i}G"}) for i in range(2)])
    assert blockers(GPU, card, claim("c", {"deviceClass": "gpu", "requests": {"count": 2}})) == [
        {"kind": "compatibilityGroup", "pool": "card", "node": "n1"}
    ]


def test_a_device_that_is_withheld_is_named_with_why_and_only_as_many_as_are_needed() -> None:
    held_back = [device(f"g{i}", attributes={UNAVAILABLE: "unhealthy: too hot"}) for i in range(3)]
    fleet = pool("p", devices=[*held_back, device("g3")])
    named = blockers(GPU, fleet, claim("c", {"deviceClass": "gpu", "requests": {"count": 2}}))
    assert [(b["kind"], b["why"]) for b in named] == [("unavailable", "unhealthy: too hot")]


def test_what_a_pool_does_not_define_is_named() -> None:
    card = pool("card", devices=[device("g0", requests={"slots": 1})])
    (blocker,) = blockers(GPU, card, claim("c", {"deviceClass": "gpu"}))
    assert blocker["kind"] == "undefinedResource"
    assert (blocker["resource"], blocker["devices"]) == ("slots", ["g0"])


def test_the_pin_is_named_and_who_of_the_group_is_there_already() -> None:
    marks = {"devalloc.io/group": "vm"}
    first = allocated(claim("first", {"deviceClass": "gpu"}, annotations=marks), [entry("n1-gpus", "g0")], node="n1")
    other = claim("c", {"deviceClass": "gpu", "requests": {"count": 3}}, annotations=marks)
    assert blockers(GPU, gpus(2, "n1"), gpus(3, "n2"), first, other) == [
        {"kind": "node", "node": "n1", "boundBy": [{"namespace": "default", "name": "first"}]}
    ]


def test_the_members_are_named_whose_pin_it_is() -> None:
    marks = {"devalloc.io/group": "vm"}
    pinned = claim("b", {"deviceClass": "gpu"}, annotations={**marks, "devalloc.io/node": "n1"})
    other = claim("c", {"deviceClass": "gpu", "requests": {"count": 3}}, annotations=marks)
    refusal = answer("c", GPU, gpus(2, "n1"), gpus(4, "n2"), pinned, other)
    assert refusal["blockers"] == [{"kind": "node", "node": "n1", "pinned": [{"namespace": "default", "name": "b"}]}]
    assert "remove the annotation devalloc.io/node=n1 of claim default/b" in refusal["message"]


def test_nothing_is_named_of_a_request_that_is_to_be_left_out() -> None:
    """Its amount, which the other members' search had found, says no more."""
    marks = {"devalloc.io/group": "vm"}
    cards = device("x2", attributes={"kind": "gpu"}, resources={"vram": 5, "bw": 4})
    fleet = [
        pool("p0", None, attributes={"num": 0}, devices=[device("x0"), device("x1"), cards]),
        *(pool(f"p{n}", None, "other", devices=[device("x")]) for n in (1, 2)),
    ]
    many = {"constraints": "device.kind in ['gpu', 'nic']", "requests": {"count": 4}, "matchAttributes": ["num"]}
    either = {"oneOf": [{"requests": {"count": 2, "bw": 3}}, {"deviceType": "t1", "limits": {"vram": 8}}]}
    members = [
        claim("c", {}, many, annotations=marks),
        claim("d", either, {"oneOf": [{"requests": {"vram": 4}}, {}]}, annotations=marks),
    ]
    wanted = [{"kind": "request", "claim": "default/c", "request": "1", "path": "spec.claims[1]"}]
    assert [a["blockers"] for a in solve_manifests([*fleet, *members])["claims"]] == [wanted, wanted]


def test_the_member_is_named_for_which_there_is_no_room_beside_the_others() -> None:
    marks = {"devalloc.io/group": "vm"}
    members = [claim(n, {"deviceClass": "gpu", "requests": {"count": 2}}, annotations=marks) for n in ("c", "d")]
    refusal = answer("c", GPU, gpus(3), *members)
    assert refusal["reason"] == "GroupUnsatisfiable"
    assert refusal["blockers"] == [{"kind": "member", "namespace": "default", "name": "d"}]


def test_claims_are_named_besides_what_makes_it_impossible() -> None:
    """Nine of four never fit; of the four that would, two are taken."""
    held = allocated(
        claim("held", {"deviceClass": "gpu", "requests": {"count": 2}}),
        [entry("n1-gpus", "g0"), entry("n1-gpus", "g1")],
        node="n1",
    )
    refusal = answer("c", GPU, gpus(4), held, claim("c", {"deviceClass": "gpu", "requests": {"count": 9}}))
    assert refusal["reason"] == "NotEnoughDevices"
    assert [b["kind"] for b in refusal["blockers"]] == ["amount", "claim"]
    assert refusal["message"] == (
        "no node has 9 devices (at most 4); lower spec.claims[0].requests.count to 4, and delete claim default/held"
    )


# -- how final -------------------------------------------------------------------------------------------------------


def test_an_answer_says_how_final_its_reason_is() -> None:
    never = claim("never", {"deviceClass": "gpu", "requests": {"count": 9}})
    held = allocated(claim("held", {"deviceClass": "gpu"}), [entry("n1-gpus", "g0")], node="n1")
    now = claim("now", {"deviceClass": "gpu", "requests": {"count": 3}})
    marks = {"devalloc.io/priority": "5"}
    high = claim("high", {"deviceClass": "gpu", "requests": {"count": 2}}, annotations=marks)
    low = claim("low", {"deviceClass": "gpu", "requests": {"count": 2}})
    answers = solve_manifests([GPU, gpus(3), held, never, now, high, low])["claims"]
    verdicts = {each["name"]: each.get("verdict") for each in answers}
    assert verdicts["never"] == "impossible even on an empty fleet"
    assert verdicts["now"] == "impossible now"
    assert verdicts["low"] == "lost to higher priority"
    assert verdicts["high"] is None


# -- slips of the pen ------------------------------------------------------------------------------------------------


def slip(constraints: str, **attributes: Any) -> tuple[str, str | None]:
    """(message, what was meant) for a claim on 640 devices that have these attributes."""
    fleet = [gpus(8, f"n{n}", **attributes) for n in range(80)]
    refusal = answer("c", GPU, *fleet, claim("c", {"deviceClass": "gpu", "constraints": constraints}))
    (blocker,) = refusal["blockers"]
    return refusal["message"], blocker.get("didYouMean")


def test_an_attribute_that_no_device_has_and_a_near_one_that_all_have() -> None:
    message, meant = slip("device.modle == 'L4'", model="L4", numa=0)
    assert "none of 640 devices has attribute `modle`; write model for modle in spec.claims[0].constraints" in message
    assert meant == "model"


@pytest.mark.parametrize(
    ("constraints", "attributes", "words", "meant"),
    [
        ("device['modle'] == 'L4'", {"model": "L4"}, "none of 640 devices has attribute `modle`", "model"),
        ("'modle' in device", {"model": "L4"}, "write model for modle", "model"),
        ("device.numa == 0 && device.Model == 'L4'", {"model": "L4", "numa": 0}, "write model for Model", "model"),
        ("device.model == 'A10O'", {"model": "A100"}, "none of 640 devices has `model` 'A10O'", "'A100'"),
        ("device.model in ['a100', 'B200']", {"model": "A100"}, "write 'A100' for 'a100'", "'A100'"),
        (
            "device.numa == '0'",
            {"numa": 0},
            "`numa` is a number on 640 devices, and is compared with the text '0'",
            "0",
        ),
        ("device.model == 100", {"model": "100"}, "write '100' for 100", "'100'"),
        ("device.bw >= '80GB'", {"bw": {"quantityValue": "100G"}}, "'80GB'", None),
        ("device.driver >= '550.54'", {"driver": {"semVerValue": "550.54.1"}}, "not a semantic version", None),
    ],
)
def test_slips(constraints: str, attributes: dict[str, Any], words: str, meant: str | None) -> None:
    message, suggestion = slip(constraints, **attributes)
    assert words in message
    assert suggestion == meant


@pytest.mark.parametrize("constraints", ["device.model == 'B200'", "device.vendor == 'x'", "device.numa == 7"])
def test_what_is_no_slip_is_not_called_one(constraints: str) -> None:
    message, meant = slip(constraints, model="L4", numa=0)
    assert "did you mean" not in message
    assert meant is None


def test_an_attribute_that_a_match_names_wrongly() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["nmua"]})
    refusal = answer("c", GPU, gpus(2, numa=0), wanted)
    assert (
        "none of 2 devices has attribute `nmua`; write numa for nmua in spec.claims[0].matchAttributes"
        in refusal["message"]
    )
    assert refusal["blockers"][0]["didYouMean"] == "numa"


def test_a_misspelt_attribute_of_the_class_is_named() -> None:
    broken = device_class("gpu", driver="gpu", constraints="device.modle == 'L4'")
    refusal = answer("c", broken, gpus(2, model="L4"), claim("c", {"deviceClass": "gpu"}))
    assert "none of 2 devices has attribute `modle`; did you mean `model`?" in refusal["message"]


def test_a_resource_of_another_name() -> None:
    card = pool("card", devices=[device("g0", resources={"memory": "8Gi"})])
    refusal = answer("c", GPU, card, claim("c", {"deviceClass": "gpu", "requests": {"memroy": "1Gi"}}))
    assert "no device has attribute `memroy`; did you mean `memory`?" in refusal["message"]


def test_classes_types_and_configs_that_do_not_exist_get_the_nearest_name() -> None:
    refusal = answer("c", GPU, gpus(1), claim("c", {"deviceClass": "gpus"}))
    assert refusal["message"] == "spec.claims[0].deviceClass: class 'gpus' does not exist; did you mean 'gpu'?"
    assert refusal["blockers"] == [
        {"kind": "class", "path": "spec.claims[0].deviceClass", "deviceClass": "gpus", "didYouMean": "gpu"}
    ]
    refusal = answer("c", GPU, gpus(1), claim("c", {"deviceType": "GPU"}))
    assert "no class has deviceType 'GPU'; write gpu for GPU in spec.claims[0].deviceType" in refusal["message"]
    refusal = answer("c", GPU, gpus(1), claim("c", {"deviceClass": "gpu", "configs": [config_reference("tuned")]}))
    assert (refusal["reason"], refusal["blockers"][0]["kind"]) == ("ConfigNotFound", "config")


# -- bounded work ----------------------------------------------------------------------------------------------------


def test_a_deadline_that_is_over_still_tells_what_counting_tells_and_says_that_it_is_cut_short() -> None:
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 9}})
    refusal = next(iter(solve_manifests([GPU, gpus(4), wanted], deadline=0.0)["claims"]))
    assert refusal["reason"] == "NotEnoughDevices"
    assert "no node has 9 devices (at most 4)" in refusal["message"]
    assert "time ran out before what to change was found" in refusal["message"]


def test_a_search_that_reaches_its_limit_is_not_said_to_lack_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def undecided(*_: object) -> bool:
        raise Undecided

    monkeypatch.setattr(FeasibilityChecker, "_look", undecided)
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 9}})
    for deadline in (None, 60.0):
        refusal = next(iter(solve_manifests([GPU, gpus(4), wanted], deadline=deadline)["claims"]))
        assert "the search ended before what to change was found" in refusal["message"]


def test_a_search_that_foresees_that_its_time_is_too_short_lacks_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends at once, long before its deadline."""

    def out_of_time(*_: object, **__: object) -> bool:
        raise SearchTimeout("the search will be out of time")

    monkeypatch.setattr(feasibility, "fits_on", out_of_time)
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 9}})
    refusal = next(iter(solve_manifests([GPU, gpus(4), wanted], deadline=60.0)["claims"]))
    assert "time ran out before what to change was found" in refusal["message"]


def test_of_claims_that_ask_for_the_same_on_many_nodes_a_smallest_set_is_named_however_many_hold_devices() -> None:
    """300 nodes, each full: two claims of four in the way, but for one node with one claim of eight."""
    holders = []
    for n in range(300):
        sizes = [8] if n == 217 else [4, 4]
        for k, size in enumerate(sizes):
            entries = [entry(f"n{n}-gpus", f"g{4 * k + i}") for i in range(size)]
            detail = {"deviceClass": "gpu", "requests": {"count": size}}
            holders.append(allocated(claim(f"h{n}-{k}", detail), entries, node=f"n{n}"))
    fleet = [gpus(8, f"n{n}") for n in range(300)]
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 8}})
    refusal = answer("c", GPU, *fleet, *holders, wanted)
    assert [b["name"] for b in refusal["blockers"]] == ["h217-0"]
    assert "notSmallest" not in refusal.get("caveats", ())


def test_all_users_of_a_shared_device_block_a_claim_for_the_whole_device() -> None:
    card = pool("card", devices=[device("g0", resources={"memory": "8Gi/1Gi"})])
    held = [
        allocated(
            claim(name, {"deviceClass": "gpu", "requests": {"memory": amount}}),
            [entry("card", "g0", memory=amount)],
            node="n1",
        )
        for name, amount in (("a", "1Gi"), ("b", "2Gi"))
    ]
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 1, "memory": "4Gi"}})
    assert [b["name"] for b in blockers(GPU, card, *held, wanted)] == ["a", "b"]


@pytest.mark.parametrize(
    "marks",
    [
        {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["devalloc.io/node"]},
        {"annotations": {"devalloc.io/release": "asked"}},
    ],
)
def test_a_claim_that_is_leaving_is_waited_for(marks: dict[str, Any]) -> None:
    pools = pool("n1-gpus", "n1", devices=[device("g0"), device("g1")])
    stays, leaves = (
        allocated(claim(name, {"deviceClass": "gpu"}), [entry("n1-gpus", card)], node="n1")
        for name, card in (("a", "g0"), ("b", "g1"))
    )
    notes = leaves["metadata"].get("annotations", {}) | marks.get("annotations", {})
    leaves = {**leaves, "metadata": {**leaves["metadata"], **marks, "annotations": notes}}
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 2}})
    refusal = answer("c", GPU, pools, stays, leaves, wanted)
    assert [each.get("leaving") for each in refusal["blockers"]] == [None, True]
    assert refusal["message"].endswith("; delete claim default/a and wait for claim default/b")

    fleet = Fleet.from_manifests([GPU, pools, stays, {**leaves, "metadata": {"name": "b"}}])
    assert fleet.allocate(wanted)["message"].endswith("; delete claims default/a and default/b, or wait for them")
    fleet.update(leaves)
    assert fleet.allocate(wanted) == refusal


def test_the_sentence_stays_short_and_the_blockers_are_complete() -> None:
    holders = [
        allocated(claim(f"h{i}", {"deviceClass": "gpu"}), [entry("n1-gpus", f"g{i}")], node="n1") for i in range(9)
    ]
    refusal = answer("c", GPU, gpus(9), *holders, claim("c", {"deviceClass": "gpu", "requests": {"count": 9}}))
    assert len(refusal["blockers"]) == 9
    assert "delete claims default/h0, default/h1 and 7 more" in refusal["message"]


def test_a_type_of_admin_classes_only_is_no_slip_and_leads_nowhere() -> None:
    monitor = device_class("monitor", driver="gpu", deviceType="watched", adminAccess=True)
    refusal = answer("c", monitor, gpus(1), claim("c", {"deviceType": "watched"}))["message"]
    assert (
        "deviceType watched leaves out class monitor, as it gives admin access; write deviceClass: monitor" in refusal
    )
    assert (
        "deviceType watched leaves out class monitor, as it gives admin access; write deviceClass: monitor" in refusal
    )
    assert "did you mean" not in refusal


@pytest.mark.parametrize(
    ("detail", "slip"),
    [
        ({"requests": {"Count": 2}}, "none of 2 devices has attribute `Count`; did you mean `count`?"),
        ({"requests": {"count": 3}, "limits": {"memmory": 1}}, "none of 2 devices has attribute `memmory`"),
    ],
)
def test_the_names_of_amounts_are_looked_at(detail: Manifest, slip: str) -> None:
    card = pool("card", devices=[device(f"g{i}", resources={"memory": 8}) for i in range(2)])
    assert slip in answer("c", GPU, card, claim("c", {"deviceClass": "gpu", **detail}))["message"]


# -- the fewest claims -----------------------------------------------------------------------------------------------


def _desktop_card(number: int) -> Manifest:
    """A card of 16Gi with eight seats of 2Gi or two of 8Gi, never both kinds at once."""
    sizes = {"2Q": ("2Gi", 8), "8Q": ("8Gi", 2)}
    seats = [
        device(
            f"{profile.lower()}-{i}",
            attributes={"profile": profile, GROUP: profile},
            requests={"framebuffer": memory},
        )
        for profile, (memory, count) in sizes.items()
        for i in range(count)
    ]
    return pool(f"card-{number}", f"n{number // 2}", resources={"framebuffer": "16Gi/1Gi"}, devices=seats)


def test_a_single_claim_is_named_where_its_release_alone_does() -> None:
    """Three cards have desktops, the fourth has two seats of 8Gi: one seat must go, or all desktops of a card."""
    seat = {name: {"deviceClass": "gpu", "constraints": f"device.profile == '{name}'"} for name in ("2Q", "8Q")}
    cards = [_desktop_card(number) for number in range(4)]
    desks = [claim(f"desk-{i:02}", seat["2Q"]) for i in range(20)]
    seats = [claim(f"cad-{i}", seat["8Q"]) for i in range(1, 4)]
    answers = solve_manifests([GPU, *cards, *desks, *seats])["claims"]
    (refused,) = [c for c in answers if not c["allocated"]]
    assert refused["name"] == "cad-3"
    (blocker,) = refused["blockers"]
    assert blocker["kind"] == "claim"
    assert blocker["name"] in ("cad-1", "cad-2")
    assert "notSmallest" not in refused.get("caveats", ())


def test_single_claims_of_every_node_come_before_sets_of_one_node() -> None:
    """The first node has many holders of which one alone does not do; on the second a single release does."""
    crowded = pool(
        "small", "n0", resources={"memory": "20Gi/1Gi"},
        devices=[
            *(device(f"s{i:02}", attributes={"size": "s"}, requests={"memory": "1Gi"}) for i in range(20)),
            device("big", attributes={"size": "big"}, requests={"memory": "20Gi"}),
        ],
    )  # fmt: skip
    roomy = pool("last", "n9", devices=[device("big", attributes={"size": "big"})])
    small = {"deviceClass": "gpu", "constraints": "device.size == 's'"}
    holders = [allocated(claim(f"a{i:02}", small), [entry("small", f"s{i:02}")], node="n0") for i in range(20)]
    big = {"deviceClass": "gpu", "constraints": "device.size == 'big'"}
    last = allocated(claim("z", big), [entry("last", "big")], node="n9")
    named = blockers(GPU, crowded, roomy, *holders, last, claim("c", big))
    assert [(b["kind"], b["name"]) for b in named] == [("claim", "z")]


def test_releases_that_leave_too_few_devices_for_all_requests_together_are_not_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For each request alone the release of any claim would do; for both only that of the large one."""
    probed: list[str] = []
    fits = LeavingSearch._fits

    def noted(
        self: LeavingSearch,
        question: FeasibilityQuestion,
        finder: FeasibilityChecker,
        node: str | None,
        gone: Sequence[Holding],
    ) -> bool:
        probed.extend(holding.owner[1] for holding in gone)
        return fits(self, question, finder, node, gone)

    monkeypatch.setattr(LeavingSearch, "_fits", noted)
    held = [
        allocated(
            claim(name, {"deviceClass": "gpu", "requests": {"count": len(numbers)}}),
            [entry("n1-gpus", f"g{number}") for number in numbers],
            node="n1",
        )
        for name, numbers in (("a", [0]), ("b", [1]), ("large", [2, 3, 4]))
    ]
    pair = {"deviceClass": "gpu", "requests": {"count": 2}}
    named = blockers(GPU, gpus(6), *held, claim("c", pair, pair))
    assert [(blocker["kind"], blocker["name"]) for blocker in named] == [("claim", "large")]
    assert probed == ["large"]


# -- bounds of the search ----------------------------------------------------------------------------------------------


def bound_group(noise: int, size: int) -> list[dict[str, Any]]:
    """``y`` wants devices that agree on ``k``. Three members of its group hold x on its node, and others ``noise``
    there; two claims, zz-a and zz-b, hold what y needs."""
    devices: list[dict[str, Any]] = []
    held: dict[str, list[str]] = {}

    def add(value: str, owner: str) -> None:
        name = f"d{len(devices)}"
        devices.append(testing.device(name, attributes={"k": value}))
        held.setdefault(owner, []).append(name)

    for number in range(noise):
        add(f"n{number}", f"c{number:02d}")
    for owner in ("zz-a", "zz-b"):
        for _ in range(size):
            add("z", owner)
    for number in range(2 * size):
        add("w", f"zzz-{number}")
    for number in range(3):
        add("x", f"x{number}")
    elsewhere = [testing.device(f"q{number}", attributes={"k": "q"}) for number in range(2 * size)]
    claims = [
        testing.allocated(
            testing.claim(owner, testing.request("gpu", len(names)), group="g" if owner[0] == "x" else None),
            [testing.entry("p1", name) for name in names],
            node="n1",
        )
        for owner, names in held.items()
    ]
    waiting = testing.claim("y", {**testing.request("gpu", 2 * size), "matchAttributes": ["k"]}, group="g")
    return [
        testing.device_class("gpu", driver="gpu"),
        testing.pool("p1", "n1", devices=devices),
        testing.pool("p2", "n2", devices=elsewhere),
        *claims,
        waiting,
    ]


def test_a_set_of_the_members_that_bind_a_group_is_not_called_smallest_if_the_search_on_the_node_was_cut_short() -> (
    None
):
    answer = solve_manifests(bound_group(20, 4))
    y = next(claim for claim in answer["claims"] if claim["name"] == "y")
    names = [blocker["name"] for blocker in y["blockers"]]
    assert names == ["x0", "x1", "x2"]
    assert y["caveats"] == ["notSmallest"], "zz-a and zz-b do"


def test_the_search_for_another_node_of_a_group_has_its_own_budget() -> None:
    answer = solve_manifests(bound_group(40, 4))
    y = next(claim for claim in answer["claims"] if claim["name"] == "y")
    assert len(y["blockers"]) == 3


def network_claims(nodes: int, claims: int) -> list[dict[str, Any]]:
    """Nodes whose two devices are held, and claims that hold devices of the network; a claim for two waits."""
    documents = [testing.device_class("gpu", driver="gpu")]
    for node in range(nodes):
        documents.append(testing.pool(f"p{node}", f"n{node}", devices=[testing.device(f"d{i}") for i in range(2)]))
        for number in range(2):
            holder = testing.claim(f"h{node}-{number}", testing.request("gpu", 1))
            documents.append(testing.allocated(holder, [testing.entry(f"p{node}", f"d{number}")], node=f"n{node}"))
    network = [testing.device(f"e{number}") for number in range(claims)]
    documents.append(testing.pool("net", None, devices=network))
    for number in range(claims):
        holder = testing.claim(f"w{number}", testing.request("gpu", 1))
        documents.append(testing.allocated(holder, [testing.entry("net", f"e{number}")]))
    return [*documents, testing.claim("y", testing.request("gpu", 1), testing.request("gpu", 1))]


def test_holders_that_count_on_every_node_do_not_multiply_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    may_be_met = leaving._WholeNeeds.may_be_met

    def count(self: leaving._WholeNeeds, node: str | None, gone: Holding) -> bool:
        looked.append(gone)
        return may_be_met(self, node, gone)

    monkeypatch.setattr(leaving._WholeNeeds, "may_be_met", count)
    monkeypatch.setattr(leaving, "MAX_HOLDERS", 500)
    answer = solve_manifests(network_claims(50, 60))
    y = next(claim for claim in answer["claims"] if claim["name"] == "y")
    assert len(looked) <= 500
    assert y["blockers"]
    assert y["caveats"] == ["notSmallest"]


def test_a_group_that_does_not_fit_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[tuple[str, ...]] = []
    fits = FeasibilityChecker.fits

    def record(self: FeasibilityChecker, question: FeasibilityQuestion) -> bool:
        if not question.held:
            questions.append(tuple(demand.key[1] for demand in question.unit.demands))
        return fits(self, question)

    monkeypatch.setattr(FeasibilityChecker, "fits", record)
    documents = [
        testing.device_class("gpu", driver="gpu"),
        *(testing.pool(f"p{n}", f"n{n}", devices=[testing.device(f"d{i}") for i in range(3)]) for n in range(2)),
        testing.allocated(testing.claim("h", testing.request("gpu", 1)), [testing.entry("p0", "d0")], node="n0"),
        *(testing.claim(name, testing.request("gpu", 2), group="g") for name in "ab"),
    ]
    solve_manifests(documents)
    assert questions.count(("a", "b")) == 1
