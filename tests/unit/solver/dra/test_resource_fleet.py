"""A warm cluster: what was given is in use until it is released, and answers are those of the whole (settled L1)."""

from __future__ import annotations

import random
from copy import deepcopy
from typing import Any

import pytest

from devalloc.api.meta import COMPATIBILITY_GROUP, PRIORITY, UNAVAILABLE
from devalloc_solver import Fleet
from devalloc_solver.dialects.resource_k8s.claim_reader import ResourceClaimReader
from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from devalloc_solver.dra import solve_manifests
from tests.support import dra_builders as dra
from tests.support.dra_builders import ANY, counter_slice, device, request, slice_
from tests.support.sentences import at_length
from tests.unit.solver.dra.test_joint import node_slice, wants


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {PRIORITY: "7"}},
        {"annotations": {PRIORITY: "-7"}},
        {"annotations": {PRIORITY: "\u0667"}},
        {"annotations": {PRIORITY: "much"}},
        {"annotations": {PRIORITY: ""}},
        {"annotations": {PRIORITY: 7}},
        {"annotations": {PRIORITY: "1" * 19}},
        {"annotations": {PRIORITY: "7", "team": 1}},
        {"annotations": {PRIORITY: "7", 1: "team"}},
        {"annotations": "none"},
        {"namespace": "other"},
        {"namespace": 5},
        {"namespace": ""},
        {"name": ""},
        {"name": 7},
        {"uid": 7},
        {"creationTimestamp": "yesterday"},
        {"creationTimestamp": "2026-11-29T12:00:00Z"},
    ],
    ids=str,
)
def test_metadata_is_read_as_strictly_with_a_spec_that_was_read_before(metadata: dict[str, Any]) -> None:
    manifest = wants("c")
    manifest["metadata"] |= metadata
    warm, anew = (ResourceClaimReader(frozenset()) for _ in range(2))
    warm.read(wants("before"))
    first, again = (reader.read(deepcopy(manifest)) for reader in (anew, warm))
    assert repr(again) == repr(first)  # requests are equal only to themselves


def name_of(name: str) -> dict[str, Any]:
    return {"kind": "ResourceClaim", "metadata": {"name": name}}


def test_what_is_given_is_in_use_until_it_is_released() -> None:
    fleet = ResourceClaimFleet.from_manifests([ANY, node_slice("n1", *"ab")])

    assert fleet.allocate(wants("x", 2))["allocated"]
    refused = fleet.allocate(wants("y"))
    fleet.release("default", "x")

    assert refused["reason"] == "DevicesInUse"
    assert fleet.allocate(wants("y"))["node"] == "n1"
    assert not fleet.allocate(name_of("x"))["allocated"]


def test_a_claim_that_has_its_devices_is_answered_with_them() -> None:
    fleet = ResourceClaimFleet.from_manifests([ANY, node_slice("n1", "a")])

    first = fleet.allocate(wants("x"))

    assert fleet.allocate(wants("x"))["allocations"] == first["allocations"]
    assert fleet.allocate(name_of("x"))["allocations"] == first["allocations"]


def test_kept_claims_wait_until_they_are_asked_for_by_name() -> None:
    fleet = ResourceClaimFleet.from_manifests([ANY, node_slice("n1", "a"), wants("x")])

    assert fleet.allocate(wants("y"))["allocated"]
    assert not fleet.allocate(name_of("x"))["allocated"]
    with pytest.raises(KeyError, match="default/z"):
        fleet.allocate(name_of("z"))


def test_a_member_of_a_group_waits_for_the_group() -> None:
    fleet = ResourceClaimFleet.from_manifests([ANY, node_slice("n1", *"ab"), wants("y", group="g")])

    assert fleet.allocate(wants("x", group="g"))["reason"] == "GroupUnsatisfiable"
    answers = fleet.allocate_all([wants("x", group="g")])["claims"]

    assert [(one["name"], one["node"]) for one in answers] == [("x", "n1"), ("y", "n1")]
    assert fleet.allocate(wants("z"))["reason"] == "DevicesInUse"


def test_objects_come_change_and_go() -> None:
    fleet = ResourceClaimFleet.from_manifests([node_slice("n1", "a")])

    assert fleet.allocate(wants("x"))["reason"] == "ClassNotFound"
    assert fleet.update(ANY) == []
    assert fleet.allocate(wants("x"))["allocated"]
    fleet.update(node_slice("n1", *"ab", generation=2))
    assert fleet.allocate(wants("y"))["allocations"]["devices"]["results"][0]["device"] == "b"
    fleet.delete({"kind": "ResourceClaim", "metadata": {"name": "x"}})
    assert fleet.allocate(wants("z"))["allocated"]
    assert fleet.update({**ANY, "metadata": {"name": "odd"}, "spec": {"future": 1}})[0]["name"] == "odd"


@pytest.mark.parametrize("call", ["update", "delete"])
def test_an_object_needs_a_name(call: str) -> None:
    with pytest.raises(ValueError, match=r"kind, its metadata\.name"):
        getattr(ResourceClaimFleet.from_manifests([]), call)({"kind": "Node"})


@pytest.mark.parametrize("seed", range(4))
def test_one_by_one_is_what_the_whole_would_say_of_each(seed: int) -> None:
    """The fleet's state, written down as manifests, with one more claim: solve_manifests agrees with allocate."""
    rng = random.Random(seed)
    shared = [device(f"m{i}", {"numa": i % 2}, capacity={"m": "3"}, shared=True) for i in range(2)]
    slices = [
        node_slice(f"n{i}", content=[*shared, device("w0", {"numa": 0}), device("w1", {"numa": 1})]) for i in range(3)
    ]
    fleet = ResourceClaimFleet.from_manifests([ANY, *slices])
    state: dict[str, dict[str, Any]] = {}
    for number in range(14):
        name = f"c{number}"
        pending = wants(name, rng.choice([1, 1, 2]), rng.choice(["true", "device.allowMultipleAllocations"]))
        pending["spec"]["devices"]["requests"] += [request("more")] if rng.random() < 0.3 else []
        if state and rng.random() < 0.3:
            gone = rng.choice(sorted(state))
            fleet.release("default", gone)
            del state[gone]
        (whole,) = (
            one for one in solve_manifests([ANY, *slices, *state.values(), pending])["claims"] if one["name"] == name
        )

        answer = fleet.allocate(pending)

        assert answer["allocated"] == whole["allocated"]
        assert answer["reason"] == whole["reason"]
        if answer["allocated"]:
            state[name] = pending | {"status": {"allocation": answer["allocations"]}}


@pytest.mark.parametrize(("units", "drawing"), [("3", 1), ("1", 2)])
def test_a_device_that_some_nodes_do_not_see_counts_there_only_while_it_is_in_use(units: str, drawing: int) -> None:
    """Its counters reach every node, its slice one: elsewhere it matters to the counters, once a claim has it."""
    rng = random.Random(5)
    drawers = [device(f"d{number}", counters={"card": {"units": "1"}}) for number in range(drawing)]
    slices = [
        counter_slice("s0", {"card": {"units": units}}, pool="q", count=2, allNodes=True, driver="a.io"),
        slice_("s1", [*drawers, device("plain")], pool="q", count=2, driver="a.io"),
        slice_("s2", [device("e0"), device("e1")], pool="p", count=2, allNodes=True, driver="b.io"),
        slice_("s3", pool="p", count=2, nodeName="n2", driver="b.io"),
    ]
    state = [ANY, *slices]
    fleet = ResourceClaimFleet.from_manifests(state)
    held: dict[str, dict[str, Any]] = {}
    for number in range(60):
        if held and rng.random() < 0.4:
            gone = rng.choice([*held])
            fleet.release("default", gone)
            del held[gone]
            fleet.delete(name_of(gone))
        pending = wants(f"c{number}", rng.choice([1, 1, 2, 3]))
        answer = fleet.allocate(pending)
        whole = solve_manifests([*state, *held.values(), pending])["claims"]
        assert [answer] == [one for one in whole if one["name"] == pending["metadata"]["name"]]
        if answer["allocated"]:
            held[pending["metadata"]["name"]] = {**pending, "status": {"allocation": answer["allocations"]}}


TEXT_SELECTORS = [
    'device.attributes["gpu.example.com"].uuid.endsWith("-7")',
    'device.attributes["gpu.example.com"].uuid.contains("n2") || device.attributes["gpu.example.com"].uuid < "a"',
    'device.attributes["gpu.example.com"].uuid != "n0-3" && device.attributes["gpu.example.com"].model == "b"',
    'device.attributes["gpu.example.com"].uuid.endsWith("nowhere")',
    'device.attributes["gpu.example.com"].uuid.size() > 3',
]


@pytest.mark.parametrize("selector", TEXT_SELECTORS)
@pytest.mark.parametrize(
    "odd", [{}, {"uuid": {"int": 7}}, {"uuid": {"string": "x" * 2000}}, {"uuid": {"version": "1"}}]
)
def test_devices_that_selectors_of_texts_fail_on_are_reported(selector: str, odd: dict[str, Any]) -> None:
    """Whether the identifier is there, is another type, is long, or cannot be read."""
    slices = []
    for node in range(4):
        devices = [
            {"name": f"d{n}", "attributes": {"uuid": {"string": f"n{node}-{n}"}, "model": {"string": "ab"[n % 2]}}}
            for n in range(12)
        ]
        spec = {"driver": "gpu.example.com", "nodeName": f"n{node}", "devices": devices}
        spec["pool"] = {"name": f"n{node}", "generation": 1, "resourceSliceCount": 1}
        slices.append({**slice_(f"n{node}"), "spec": spec})
    slices[1]["spec"]["devices"][5]["attributes"] = odd
    exactly = {"deviceClassName": ANY["metadata"]["name"], "selectors": [{"cel": {"expression": selector}}]}
    pending = wants("x")
    pending["spec"] = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    fleet = ResourceClaimFleet.from_manifests([ANY, *slices])
    assert "gpu.example.com/uuid" in fleet._state.index.kinds.varied
    (whole,) = solve_manifests([ANY, *slices, pending])["claims"]
    assert fleet.allocate(pending) == whole


@pytest.mark.parametrize("name", [COMPATIBILITY_GROUP, UNAVAILABLE])
@pytest.mark.parametrize(
    ("constraint", "given"),
    [(None, 2), ("matchAttribute", 0), ("distinctAttribute", 2)],
    ids=["none", "match", "distinct"],
)
def test_attributes_that_mean_something_in_a_device_pool_are_plain_ones_in_a_slice(
    name: str, constraint: str | None, given: int
) -> None:
    slices = [slice_("s", [device("a", {name: "1"}), device("b", {name: "2"})], nodeName="n")]
    documents = [dra.node("n"), ANY, *slices]
    constraints = {} if constraint is None else {"constraints": [{"requests": ["r"], constraint: name}]}
    domain, short = name.split("/")
    both = request("r", 2, f'device.attributes["{domain}"].{short} in ["1", "2"]')
    wanted = dra.claim(both, **constraints)
    (cold,) = solve_manifests([*documents, wanted])["claims"]
    assert len(cold["allocations"]["devices"]["results"] if cold["allocated"] else ()) == given
    assert Fleet.from_manifests(documents).allocate(wanted) == cold
    assert Fleet.from_manifests(documents).allocate_all([wanted])["claims"] == [cold]


def test_who_is_in_the_way_may_hold_devices_of_the_network_as_well() -> None:
    documents = [
        dra.device_class("gpu", "device.driver == 'g'"),
        dra.device_class("net", "device.driver == 'net'"),
        dra.slice_("x", dra.devices("x0", "x1"), driver="net", pool="x", allNodes=True),
        *(dra.slice_(f"g{n}", dra.devices("d0", "d1"), driver="g", pool=f"g{n}", nodeName=f"n{n}") for n in range(3)),
        *(dra.node(f"n{n}") for n in range(3)),
    ]
    fleet, held = Fleet.from_manifests(documents), []
    fleet.allocate_all([])
    for n in range(3):
        more = [dra.request("b", 1, class_name="net")] if n < 2 else []
        wanted = dra.claim(dra.request("a", 2, class_name="gpu"), *more, name=f"h{n}")
        held.append({**wanted, "status": {"allocation": fleet.allocate(wanted)["allocations"]}})
    new = dra.claim(dra.request("r", 1, class_name="gpu"), name="new")
    cold = next(each for each in solve_manifests([*documents, *held, new])["claims"] if each["name"] == "new")
    assert fleet.allocate(new) == cold
    assert next(each for each in fleet.allocate_all([new])["claims"] if each["name"] == "new") == cold


def test_a_slice_that_is_left_out_is_named_beside_other_devices_of_its_driver() -> None:
    """Too few devices may be too few because of it."""
    bad = dra.slice_("bad", [dra.device("x0", capacity={"m": "6 GiB"})], driver="x", pool="q", nodeName="n1")
    documents = [dra.device_class("x", "device.driver == 'x'"), dra.device_class("g", "device.driver == 'g'"), bad]
    documents += [dra.slice_(f"s{one}", dra.devices("d"), driver=one, pool=one, nodeName="n1") for one in "xg"]
    documents.append(dra.node("n1"))
    for name, is_named in (("x", True), ("g", False)):
        wanted = dra.claim(dra.request("r", 2, class_name=name), name="a")
        (cold,) = solve_manifests([*documents, wanted])["claims"]
        assert Fleet.from_manifests(documents).allocate(wanted) == cold
        assert ("ResourceSlice bad is left out, spec.devices[0].capacity" in at_length(cold)) is is_named
        assert cold["message"].startswith("no node has 2 devices for request r (at most 1); lower")


@pytest.mark.parametrize("where", [{"nodeName": "n1"}, {"allNodes": True}], ids=["of a node", "of all nodes"])
def test_a_slice_that_is_left_out_is_named_as_long_as_it_is_there(where: dict[str, Any]) -> None:
    bad = dra.slice_("bad", dra.devices("x0"), driver="x", pool="x", nodeName="n1")
    bad["spec"]["devices"].append({"name": "x0", "attributes": {"a": {"int": "no"}}})
    documents = [dra.device_class("x", "device.driver == 'x'"), dra.slice_("s", dra.devices("d0"), driver="g", **where)]
    documents.append(dra.node("n1"))
    wanted, fleet = dra.claim(dra.request("r", 1, class_name="x"), name="a"), Fleet.from_manifests(documents)
    for is_there in (False, True, False):
        if is_there:
            fleet.update(bad)
        elif fleet.problems:
            fleet.delete(bad)
        (cold,) = solve_manifests([*documents, *([bad] if is_there else []), wanted])["claims"]
        assert fleet.allocate(wanted) == cold
