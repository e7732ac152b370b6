"""Two owners of a device, and more in use than there is: a problem that names the device and the claims, always."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests, testing
from tests.support.fleet_manifests import gpu_claim, gpu_class, gpu_pool
from tests.support.resource_manifests import counters, device, resource_claim, slice_of

Object = dict[str, Any]


def holder(name: str, *devices: str, namespace: str = "default", memory: str = "", **annotations: str) -> Object:
    """A DeviceClaim that holds devices, each as pool/device: whole, or so much memory of it."""
    claim = gpu_claim(name, len(devices), namespace, **{"allocated-node": "n", **annotations})
    part = {"allocations": [{"name": "memory", "allocation": memory}]} if memory else {}
    claim["status"] = {
        "allocations": [
            {"devicePoolName": pool, "deviceName": one, **part} for pool, one in (each.split("/") for each in devices)
        ]
    }
    return claim


def shared_pool() -> Object:
    pool = gpu_pool("p", 0)
    pool["spec"]["devices"] = [{"name": "d0", "resources": [{"name": "memory", "capacity": "4Gi"}]}]
    return pool


def partitioned_pool() -> Object:
    pool = gpu_pool("p", 0)
    pool["spec"]["resources"] = [{"name": "slices", "capacity": "4"}]
    pool["spec"]["devices"] = [{"name": f"d{i}", "requests": {"slices": "3"}} for i in range(2)]
    return pool


def shared_slice() -> Object:
    one = device("d0") | {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "4Gi"}}}
    return slice_of("p", "n", [one])


def share(name: str, memory: str, **more: Any) -> Object:
    return resource_claim(name, "p/d0", shareID=f"share-{name}", consumedCapacity={"memory": memory}, **more)


def partitions() -> list[Object]:
    parts = [device(f"d{i}", draws={"slices": "3"}) for i in range(2)]
    return [slice_of("p", "n", sharedCounters=[counters(slices="4")], of=2, name="s"), slice_of("p", "n", parts, of=2)]


ALARMS = {
    "two owners": ([gpu_pool(), holder("a", "p/d0"), holder("b", "p/d0")], "device p/d0 has several owners"),
    "an owner and a share": (
        [shared_pool(), holder("a", "p/d0"), holder("b", "p/d0", memory="1Gi")],
        "device p/d0 has several owners",
    ),
    "shares": (
        [shared_pool(), holder("a", "p/d0", memory="3Gi"), holder("b", "p/d0", memory="2Gi")],
        "hold more memory of device p/d0 than it has",
    ),
    "resources of a pool": (
        [partitioned_pool(), holder("a", "p/d0"), holder("b", "p/d1")],
        "hold more slices than the pool of devices",
    ),
    "two owners, by ResourceClaims": (
        [slice_of("p", "n", [device("d0")]), resource_claim("a", "p/d0"), resource_claim("b", "p/d0")],
        "device devalloc.io/p/d0 has several owners",
    ),
    "an owner and a share, by ResourceClaims": (
        [shared_slice(), resource_claim("a", "p/d0"), share("b", "1Gi")],
        "device devalloc.io/p/d0 has several owners",
    ),
    "shares of what cannot be shared, by ResourceClaims": (
        [slice_of("p", "n", [device("d0")]), share("a", "1Gi"), share("b", "1Gi")],
        "device devalloc.io/p/d0 has several owners",
    ),
    "a device that is gone, by ResourceClaims": (
        [slice_of("p", "n", [device("d1")]), resource_claim("a", "p/d0"), resource_claim("b", "p/d0")],
        "device devalloc.io/p/d0 has several owners",
    ),
    "shares, by ResourceClaims": ([shared_slice(), share("a", "3Gi"), share("b", "2Gi")], "hold more memory of device"),
    "counters, by ResourceClaims": (
        [*partitions(), resource_claim("a", "p/d0"), resource_claim("b", "p/d1")],
        "hold more set-0/slices than the pool of devices",
    ),
}
QUIET = {
    "two devices": [gpu_pool(), holder("a", "p/d0"), holder("b", "p/d1")],
    "shares that fit": [shared_pool(), holder("a", "p/d0", memory="2Gi"), holder("b", "p/d0", memory="2Gi")],
    "two devices, by ResourceClaims": [
        slice_of("p", "n", [device("d0"), device("d1")]),
        resource_claim("a", "p/d0"),
        resource_claim("b", "p/d1"),
    ],
    "shares that fit, by ResourceClaims": [shared_slice(), share("a", "2Gi"), share("b", "2Gi")],
    "admin access, by ResourceClaims": [
        slice_of("p", "n", [device("d0")]),
        resource_claim("a", "p/d0"),
        resource_claim("b", "p/d0", adminAccess=True),
    ],
    "shares of a device that is gone, by ResourceClaims": [
        slice_of("p", "n", [device("d1")]),
        share("a", "2Gi"),
        share("b", "2Gi"),
    ],
}


def alarms(problems: list[Object]) -> dict[str, str]:
    """By the claim that they are of."""
    words = ("several owners", "hold more")
    return {each["name"]: each["message"] for each in problems if any(word in each["message"] for word in words)}


@pytest.mark.parametrize(("documents", "message"), ALARMS.values(), ids=ALARMS)
def test_what_cannot_be_held_together_is_a_problem_of_every_holder(documents: list[Object], message: str) -> None:
    answers = [solve_manifests(documents), Fleet.from_manifests(documents).allocate_all([])]
    for answer in answers:
        by_name = alarms(answer["problems"])
        assert by_name.keys() == {"a", "b"}
        for text in by_name.values():
            assert message in text
            assert "default/a and default/b" in text
        assert all(claim["allocated"] for claim in answer["claims"]), "no claim loses anything"


@pytest.mark.parametrize("documents", QUIET.values(), ids=QUIET)
def test_what_can_be_held_together_is_no_alarm(documents: list[Object]) -> None:
    assert alarms(solve_manifests(documents)["problems"]) == {}


def test_admin_access_does_not_own() -> None:
    watcher = holder("b", "p/d0")
    watcher["spec"]["claims"][0]["deviceClass"] = "admin"
    documents = [gpu_pool(), gpu_class(), gpu_class("admin", adminAccess=True), holder("a", "p/d0"), watcher]
    assert alarms(solve_manifests(documents)["problems"]) == {}


def test_a_claim_that_may_hold_another_device_is_no_alarm() -> None:
    """Pools of one name on two nodes, and a claim that does not say its node."""
    second = gpu_pool("p", node="m")
    unclear = holder("b", "p/d0")
    del unclear["metadata"]["annotations"]
    answer = solve_manifests([gpu_pool(), second, holder("a", "p/d0"), unclear])
    assert alarms(answer["problems"]) == {}
    assert any("does not name its node" in each["message"] for each in answer["problems"])


def test_a_device_with_two_owners_goes_to_no_third() -> None:
    documents = [gpu_pool(devices=1), gpu_class(), holder("a", "p/d0"), holder("b", "p/d0"), gpu_claim("c")]
    answers = {each["name"]: each["allocated"] for each in solve_manifests(documents)["claims"]}
    assert answers == {"a": True, "b": True, "c": False}


def test_a_message_names_no_more_claims_than_people_read() -> None:
    owners = [holder(f"c{i}", "p/d0") for i in range(20)]
    by_name = alarms(solve_manifests([gpu_pool(), *owners])["problems"])
    assert len(by_name) == 20
    assert "and 12 more" in by_name["c0"]


def test_a_device_that_counts_for_more_than_it_is_published_with_is_named_once() -> None:
    record = '{"gpus": {"gpu-0": {"draws": {"slices": "5"}, "counters": "0"}}}'
    held = holder("held", "gpus/gpu-0", **{"device-records": record})
    gpus = testing.pool(
        "gpus", node="n", resources={"slices": 4}, devices=[testing.device("gpu-0", requests={"slices": 1})]
    )

    (problem,) = solve_manifests([gpu_class(), gpus, held])["problems"]
    assert problem["message"].startswith("claim default/held holds more slices than the pool of device gpus/gpu-0 has")


def test_devices_are_named_in_the_order_of_claims_not_of_documents() -> None:
    owners = [resource_claim(name, f"p/{one}") for name, one in (("a", "d1"), ("b", "d0"))]
    messages = {
        one["message"]
        for order in (owners, owners[::-1])
        for one in solve_manifests([*partitions(), *order])["problems"]
    }

    assert len(messages) == 1
