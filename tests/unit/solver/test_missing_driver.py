"""If no device of the class's driver exists, that alone is the reason, whatever else would have to change."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.meta import UNAVAILABLE
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dra import solve_manifests as solve_resource_claims
from devalloc_solver.testing import claim, device, device_class, pool
from devalloc_solver.testing import request as wants
from tests.support.dra_builders import ANY, Manifest, devices, request, slice_
from tests.support.dra_builders import claim as resource_claim
from tests.support.dra_builders import device_class as resource_class

RESERVED = {UNAVAILABLE: "reserved: default route"}
UPLINK = pool("uplink", node="vm", driver="nic.devalloc.io", devices=[device("nic-0", attributes=RESERVED)])
GPU = device_class("gpu", driver="gpu.devalloc.io")
TEXT = (
    "no device of driver gpu.devalloc.io exists (only of nic.devalloc.io); run `devalloc discover` on a host to see why"
)


def answers(*documents: Manifest, name: str = "c") -> list[Any]:
    """Solved once, and by a Fleet one by one and jointly."""
    rest = [one for one in documents if one["kind"] != "DeviceClaim"]
    wanted = [one for one in documents if one["kind"] == "DeviceClaim"]
    once = solve_manifests(documents)["claims"]
    jointly = Fleet.from_manifests(rest).allocate_all(wanted)["claims"]
    alone = [Fleet.from_manifests(rest).allocate(wanted[0])] if len(wanted) == 1 else []
    return [one for one in (*once, *jointly, *alone) if one["name"] == name]


@pytest.mark.parametrize("more", [{}, {"constraints": "device.numa == 0"}])
@pytest.mark.parametrize("count", [1, 2])
def test_the_missing_driver_is_the_whole_reason(count: int, more: dict[str, str]) -> None:
    for answer in answers(GPU, UPLINK, claim("c", wants("gpu", count, **more))):
        assert (answer["reason"], answer["message"]) == ("NoMatchingDevices", TEXT)
        assert answer["missingDrivers"] == ["gpu.devalloc.io"]


def test_a_withheld_device_of_the_driver_is_one() -> None:
    gpus = pool("gpus", node="vm", driver="gpu.devalloc.io", devices=[device("gpu-0", attributes=RESERVED)])

    for answer in answers(GPU, UPLINK, gpus, claim("c", wants("gpu", 1))):
        assert "missingDrivers" not in answer
        assert "device gpus/gpu-0 would do, but is reserved: default route" in answer["message"]


@pytest.mark.parametrize(
    "wanted", [wants("gpu", 2), wants("gpu", 1, constraints="device.kind == 'b'"), wants("gpu", 3)], ids=str
)
def test_no_advice_is_another_class_with_a_withheld_device_of_another_driver(wanted: Manifest) -> None:
    gpus = [device("gpu-0", attributes={**RESERVED, "kind": "a"})]
    nics = [device(f"nic-{n}", attributes={**RESERVED, "kind": "b"}) for n in range(3)]
    documents = [
        pool("gpus", node="vm", driver="gpu.devalloc.io", devices=gpus),
        pool("uplinks", node="vm", driver="nic.devalloc.io", devices=nics),
    ]

    for answer in answers(GPU, *documents, claim("c", wanted)):
        assert answer["reason"] is not None
        assert "uplinks" not in answer["message"]
        assert "uplinks" not in {blocker.get("pool") for blocker in answer["blockers"]}


@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_nor_is_it_in_a_claim_whose_classes_are_of_both_drivers(gpus: int) -> None:
    reserved_nics = [device(f"nic-{n}", attributes=RESERVED) for n in range(1, 4)]
    documents = [
        pool("gpus", node="vm", driver="gpu.devalloc.io", devices=[device("gpu-0", attributes=RESERVED)]),
        pool("nics", node="vm", driver="nic.devalloc.io", devices=[device("nic-0"), *reserved_nics]),
    ]
    wanted = claim("c", wants("gpu", gpus), wants("nic", 1))

    for answer in answers(GPU, device_class("nic", driver="nic.devalloc.io"), *documents, wanted):
        kinds = [blocker["kind"] for blocker in answer["blockers"]]
        assert "class" not in kinds or "unavailable" not in kinds
        assert not any(str(blocker.get("device")).startswith("nic") for blocker in answer["blockers"])


def test_a_class_stays_whose_withheld_device_would_do_beside_another_change() -> None:
    """The one of the first request is to change, and then the second one needs nothing but its device."""
    cards = [device("x", attributes={**RESERVED, "model": "x"}), device("y", attributes={"model": "y"})]
    only_x = device_class("nic", driver="nic.devalloc.io", constraints="device.model == 'x'")
    documents = [GPU, only_x, pool("nics", node="vm", driver="nic.devalloc.io", devices=cards)]

    for answer in answers(*documents, claim("c", wants("gpu", 1), wants("nic", 1))):
        named = [blocker.get("deviceClass", blocker.get("device")) for blocker in answer["blockers"]]
        assert named == ["gpu", "x"]


def test_a_pool_of_the_driver_that_is_left_out_is_named_with_its_error() -> None:
    twice = pool("gpus", node="vm", driver="gpu.devalloc.io", devices=[device("gpu-0"), device("gpu-0")])
    why = "DevicePool gpus is left out, spec.devices[1].name: is not unique: entry [0] already has 'gpu-0'"
    cause = {"code": "invalidPool", "drivers": ["gpu.devalloc.io"], "why": why}

    for answer in answers(GPU, UPLINK, twice, claim("c", wants("gpu", 1))):
        assert (answer["reason"], answer["causes"]) == ("NoMatchingDevices", [cause])
        start = "DevicePool gpus is left out, spec.devices[1].name: is not unique: entry [0] already has 'gpu-0'"
        assert answer["message"].startswith(start)
        assert answer["message"].endswith("; correct it")


def test_a_warm_fleet_knows_which_pools_are_left_out_now() -> None:
    twice = pool("gpus", node="vm", driver="gpu.devalloc.io", devices=[device("gpu-0"), device("gpu-0")])
    fleet, wanted = Fleet.from_manifests([GPU, UPLINK]), claim("c", wants("gpu", 1))

    assert fleet.allocate(wanted)["message"] == TEXT
    fleet.update(twice)
    assert "DevicePool gpus is left out" in str(fleet.allocate(wanted)["message"])
    fleet.delete(twice)
    assert fleet.allocate(wanted)["message"] == TEXT
    fleet.update({**twice, "spec": {**twice["spec"], "devices": [device("gpu-0")]}})
    assert fleet.allocate(wanted)["allocated"]


def test_a_driver_of_almost_the_same_name_is_proposed() -> None:
    class_with_typo = device_class("gpu", driver="nic.devaloc.io")

    for answer in answers(class_with_typo, UPLINK, claim("c", wants("gpu", 1))):
        assert answer["message"].endswith("(only of nic.devalloc.io); did you mean nic.devalloc.io?")


def test_a_class_of_any_driver_misses_none() -> None:
    for answer in answers(device_class("gpu", constraints="device.kind == 'gpu'"), UPLINK, claim("c", wants("gpu", 1))):
        assert "missingDrivers" not in answer


def test_a_group_names_the_member_that_misses_it() -> None:
    members = [claim("a", wants("nic", 1), group="g"), claim("b", wants("gpu", 1), group="g")]
    free = pool("nics", node="vm", driver="nic.devalloc.io", devices=[device("nic-1")])
    documents = [GPU, device_class("nic", driver="nic.devalloc.io"), free, *members]

    for answer in answers(*documents, name="a"):
        assert answer["message"] == f"claim default/b of group g: {TEXT.replace(' (only of nic.devalloc.io)', '')}"
    for answer in answers(*documents, name="b"):
        assert answer["message"] == TEXT


@pytest.mark.parametrize(
    ("slices", "why"),
    [
        (slice_("t", devices("gpu-0", "gpu-0"), driver="gpu.example.com", pool="q"), "invalid (two devices are named"),
        (slice_("t", devices("gpu-0"), driver="gpu.example.com", pool="q", count=2), "incomplete (1 of 2 slices of"),
    ],
    ids=["invalid", "incomplete"],
)
def test_a_pool_of_slices_that_does_not_count_is_named_with_its_error(slices: Manifest, why: str) -> None:
    documents = [
        resource_class("any", 'device.driver == "gpu.example.com"'),
        slice_("s", devices("nic-0"), driver="nic.example.com"),
        slices,
        resource_claim(request(count=1)),
    ]

    for answer in (
        solve_resource_claims(documents)["claims"][0],
        Fleet.from_manifests(documents[:3]).allocate(documents[3]),
    ):
        assert f"exists: pool q is {why}" in str(answer["message"])


def slice_with_capacity(amount: str, driver: str = "dra.example.com") -> Manifest:
    eth = {"name": "eth1", "capacity": {"bandwidth": {"value": amount}}}
    return slice_("a", [eth], driver=driver)


@pytest.mark.parametrize("selectors", [[], ['device.driver == "dra.example.com"']])
@pytest.mark.parametrize("others", [0, 1])
def test_a_slice_that_is_left_out_is_named_with_its_error(selectors: list[str], others: int) -> None:
    """As of a quantity in documentation: https://github.com/openshift/openshift-docs/pull/119614"""
    other = slice_("o", devices("x"), driver="other.example.com", nodeName="n2")
    documents = [
        resource_class("any", *selectors),
        *[other][:others],
        slice_with_capacity("6 GiB"),
        resource_claim(request(count=2 if others else 1)),
    ]
    fleet = Fleet.from_manifests(documents[:-1])
    answers = [solve_resource_claims(documents)["claims"][0], fleet.allocate(documents[-1])]
    for answer in answers:
        is_named = "ResourceSlice a is left out, spec.devices[0].capacity['bandwidth'].value: is not" in str(
            answer["message"]
        )
        assert is_named == (not others or bool(selectors))
        assert bool(answer.get("invalidPools")) == is_named

    fleet.update(slice_with_capacity("6Gi"))
    assert "left out" not in str(fleet.allocate(documents[-1])["message"])


def test_two_slices_of_one_name_are_named() -> None:
    documents = [ANY, *(slice_("s", devices(n)) for n in "ab"), resource_claim(request(count=1))]
    for answer in (
        solve_resource_claims(documents)["claims"][0],
        Fleet.from_manifests(documents[:-1]).allocate(documents[-1]),
    ):
        assert "ResourceSlice s is left out, metadata.name: is the name of two objects" in str(answer["message"])


def test_if_the_only_pool_is_left_out_it_is_named_whatever_the_class_says() -> None:
    """As of a driver's version in four parts: https://github.com/ROCm/gpu-operator/issues/609"""
    version = {"driverVersion": {"semVerValue": "6.19.14.31400000"}}
    broken = pool("gpus", node="vm", driver="gpu.devalloc.io", devices=[device("gpu-0")])
    broken["spec"]["devices"][0]["attributes"] = [{"name": name, **value} for name, value in version.items()]

    for given in (device_class("gpu"), GPU):
        for answer in answers(given, broken, claim("c", wants("gpu", 1))):
            assert answer["message"].startswith(
                "DevicePool gpus is left out, spec.devices[0].attributes[0].semVerValue: is not a semantic version"
            )
            assert "semVerValue: is not a semantic version" in answer["causes"][0]["why"]
            assert len(answer["invalidPools"]) == 1


def test_classes_of_kubernetes_name_drivers_in_their_selectors() -> None:
    documents = [
        resource_class("any", 'device.driver == "gpu.example.com" && device.allowMultipleAllocations == false'),
        slice_("s", devices("nic-0"), driver="nic.example.com"),
        resource_claim(request(count=2)),
    ]

    for answer in (
        solve_resource_claims(documents)["claims"][0],
        Fleet.from_manifests(documents[:2]).allocate(documents[2]),
    ):
        assert answer["message"] == (
            "no device of driver gpu.example.com exists (only of nic.example.com); publish one, or name another class"
        )
        assert answer["missingDrivers"] == ["gpu.example.com"]


def of_class_with(selector: str) -> Any:
    """The answer to a claim for two devices of a class with that selector; there is one, of nic.example.com."""
    nic = slice_("s", devices("nic-0"), driver="nic.example.com")
    return solve_resource_claims([resource_class("any", selector), nic, resource_claim(request(count=2))])["claims"][0]


@pytest.mark.parametrize(
    "selector",
    [
        '!(device.driver == "gpu.example.com")',
        '(device.driver == "gpu.example.com") == false',
        '["gpu.example.com"].exists(one, !(device.driver == one))',
        'device.allowMultipleAllocations == false && \'device.driver == "gpu.example.com"\' != ""',
    ],
)
def test_a_selector_that_mentions_a_driver_need_not_demand_it(selector: str) -> None:
    answer = of_class_with(selector)

    assert "missingDrivers" not in answer
    assert "no node has 2 devices for request r (at most 1)" in answer["message"]


@pytest.mark.parametrize(
    "selector",
    [
        'device.driver in ["a.example.com", "b.example.com"]',
        'device.driver == "a.example.com" || "b.example.com" == device.driver',
    ],
)
def test_a_selector_may_demand_one_of_several_drivers(selector: str) -> None:
    answer = of_class_with(selector)

    assert answer["missingDrivers"] == ["a.example.com", "b.example.com"]


def test_pools_that_share_a_name_on_one_node_are_named() -> None:
    first, second = (
        pool("gpus", node="vm", driver="gpu.devalloc.io", devices=[device(f"gpu-{number}")]) for number in range(2)
    )
    why = "DevicePool gpus is left out, metadata.name: another pool of its node has that name"
    text = f"no valid pool exists: {why}; correct it"

    for answer in answers(GPU, UPLINK, first, second, claim("c", wants("gpu", 1))):
        assert text in answer["message"]
        assert answer["invalidPools"] == [why]


def test_a_warm_fleet_knows_which_pools_share_a_name_now() -> None:
    at_node = pool("gpus", node="vm", driver="gpu.devalloc.io", devices=[device("gpu-0")])
    everywhere = pool("gpus", node=None, driver="gpu.devalloc.io", devices=[device("gpu-1")])
    fleet, wanted = Fleet.from_manifests([GPU, UPLINK, at_node, everywhere]), claim("c", wants("gpu", 1))

    assert "another pool of its node has that name" in str(fleet.allocate(wanted)["message"])
    fleet.delete(everywhere)
    assert fleet.allocate(wanted)["message"] == TEXT
    fleet.update(at_node)
    assert fleet.allocate(wanted)["allocated"]
