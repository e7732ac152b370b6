"""ResourceSlices say of a pool what the pool says: the same devices exclude each other."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.fields import is_label, is_subdomain_name
from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.pool import Attribute, AttributeValue, Device, DevicePool, DevicePoolSpec, ResourceCapacity
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_node.kube.publisher import PoolNames
from devalloc_node.kube.slices import (
    COMPATIBILITY_TAINT,
    SliceFeatures,
    SlicePool,
    dns_label,
    label_value,
    object_name,
    slices_of_pool,
    text_value,
)
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Sriov
from tests.support.slice_rules import beyond_limits, devices_of, fits

ALL_ON = SliceFeatures(groups=True)


def pool(devices: list[Device], resources: dict[str, int | str] | None = None, **blocks: int | str) -> DevicePool:
    capacities = [
        ResourceCapacity(
            name=name,
            capacity=Quantity.parse(amount),
            block_size=Quantity.parse(blocks[name]) if name in blocks else None,
        )
        for name, amount in (resources or {}).items()
    ]
    spec = DevicePoolSpec(node_name="node-a", driver="gpu.devalloc.io", resources=capacities, devices=devices)
    return DevicePool(metadata=ObjectMeta(name="node-a-0000-08-00"), spec=spec)


def device(name: str, requests: dict[str, int | str] | None = None, **attributes: AttributeValue) -> Device:
    return Device(
        name=name,
        requests={key: Quantity.parse(amount) for key, amount in (requests or {}).items()},
        attributes=[Attribute.of(key.replace("__", "/").replace("_io", ".io"), v) for key, v in attributes.items()],
    )


def texts(slice_pool: SlicePool) -> list[str]:
    return [problem.message for problem in slice_pool.problems]


# -- exclusion ---------------------------------------------------------------------------------------------------------


@st.composite
def _pools(draw: st.DrawFn) -> DevicePool:
    """Small pools with resources in blocks, which devices draw on in any way."""
    count = draw(st.integers(0, 5))
    amounts = st.integers(0, 6)
    resources: dict[str, int | str] = {f"r{number}": draw(amounts) for number in range(count)}
    blocks: dict[str, int | str] = {name: draw(st.sampled_from([1, 2, 3])) for name in resources}
    devices = []
    for number in range(draw(st.integers(1, 6))):
        names = draw(st.sets(st.sampled_from(sorted(resources)))) if resources else set()
        devices.append(device(f"d{number}", {name: draw(amounts) for name in names}))
    return pool(devices, resources, **blocks)


@given(_pools(), st.sets(st.integers(0, 5)))
@settings(deadline=None)
def test_devices_go_together_as_in_the_pool(drawn: DevicePool, numbers: set[int]) -> None:
    slices = slices_of_pool(drawn, SliceFeatures()).slices
    assert beyond_limits(slices) == []
    chosen = [f"d{number}" for number in numbers if number < len(drawn.spec.devices)]
    discovered = DiscoveredPools(
        [drawn], [], {d.name: d for d in drawn.spec.devices}, {d.name: drawn for d in drawn.spec.devices}
    )
    assert fits(slices, chosen) == discovered.fits(*chosen)


def hosts(host: FakeSysfs, kind: str) -> None:
    match kind:
        case "nic":
            host.add(pci_cards.nic("0000:41:00.0", sriov=Sriov(64, 128, 2), vfs=5))
        case "two ports":
            for port in range(2):
                host.add(pci_cards.nic(f"0000:41:00.{port}", netdev=f"eth{port}", sriov=Sriov(40, 128, 2)))
        case "vgpu":
            host.add(pci_cards.a2_vgpu_card("0000:08:00.0", vfs=4))
        case "gpu":
            host.add(pci_cards.gpu("0000:81:00.0"))


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("kind", ["nic", "two ports", "vgpu", "gpu"])
def test_slices_describe_cards_completely(tmp_path: Path, kind: str, groups: bool) -> None:
    hosts(host := FakeSysfs(tmp_path), kind)
    discovered = DiscoveredPools.on(host.root)
    answer = slices_of_pool(discovered.pools[0], SliceFeatures(groups=groups))
    assert texts(answer) == []
    assert beyond_limits(answer.slices) == []
    assert set(devices_of(answer.slices)) == set(discovered.devices)

    random = Random(kind)
    tainted = {d["name"] for d in devices_of(answer.slices).values() if "taints" in d}
    verdicts = set()
    for _ in range(200):
        chosen = random.sample(list(discovered.devices), min(random.choice([1, 2, 3, 16]), len(discovered.devices)))
        verdict = fits(answer.slices, chosen)
        verdicts.add(verdict)
        if verdict:
            assert discovered.fits(*chosen), "whatever Kubernetes allows the pool allows"
        elif discovered.fits(*chosen):  # a group that is closed, or plain VFs beside vGPUs of a group
            attributes = [discovered.attributes(name).get(COMPATIBILITY_GROUP) for name in chosen]
            assert tainted & set(chosen) or len(set(attributes)) > 1
    assert verdicts == ({True, False} if len(discovered.devices) > 1 else {True})


def test_what_cannot_run_short_is_no_counter() -> None:
    devices = [device("a", {"x": 1, "y": 1}), device("b", {"x": 1})]
    content = slices_of_pool(pool(devices, {"x": 1, "y": 1}), SliceFeatures()).slices
    assert content[0] == {"sharedCounters": [{"name": "set-0", "counters": {"x": {"value": "1"}}}]}
    assert slices_of_pool(pool(devices, {"x": 2, "y": 1}), SliceFeatures()).slices[0].keys() == {"devices"}


def test_a_device_that_draws_on_what_is_not_there_is_left_out() -> None:
    answer = slices_of_pool(pool([device("a", {"x": 1}), device("b")]), SliceFeatures())
    assert set(devices_of(answer.slices)) == {"b"}
    assert texts(answer) == ["a: not published: draws on x, which the pool does not have"]


def test_more_resources_than_sets_can_tell_cost_only_the_devices_that_need_them() -> None:
    resources: dict[str, int | str] = {f"r{number}": 1 for number in range(74)}
    greedy = [device(f"greedy{first}", {f"r{number}": 1 for number in range(first, first + 64)}) for first in (0, 10)]
    others = [device(f"d{number}", {f"r{number}": 1}) for number in range(74)]
    answer = slices_of_pool(pool([*greedy, *others], resources), SliceFeatures())
    assert beyond_limits(answer.slices) == []
    assert set(devices_of(answer.slices)) == {d.name for d in others} | {"greedy0"}
    assert "more than two counter sets" in texts(answer)[0]


@pytest.mark.parametrize("name", ["i915-GVTg_V5_4", "d" * 64, "-d"])
def test_a_device_without_a_valid_name_is_left_out(name: str) -> None:
    answer = slices_of_pool(pool([device(name), device("b")]), SliceFeatures())
    assert set(devices_of(answer.slices)) == {"b"}
    assert "DNS label" in texts(answer)[0]


def test_a_device_with_resources_of_its_own_is_left_out() -> None:
    shared = Device(name="a", resources=[ResourceCapacity(name="memory", capacity=Quantity.parse("1Gi"))])
    assert texts(slices_of_pool(pool([shared]), SliceFeatures())) == [
        "a: not published: has resources of its own, which slices cannot share yet"
    ]


# -- features that are off ---------------------------------------------------------------------------------------------


def test_without_counters_what_goes_together_is_offered(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(pci_cards.nic("0000:41:00.0", sriov=Sriov(4, 128, 2)))
    discovered = DiscoveredPools.on(host.root)
    answer = slices_of_pool(discovered.pools[0], SliceFeatures(counters=False))
    assert sorted(devices_of(answer.slices)) == sorted(discovered.names(function="vf"))
    assert "DRAPartitionableDevices is off" in texts(answer)[0]


def test_without_counters_what_is_not_available_keeps_nothing_from_being_offered() -> None:
    """As a card that has VFs which were not made for a claim, and is not offered whole."""
    devices = [device("whole", {"parts": 1}, devalloc_io__unavailable="in use"), device("part", {"parts": 1, "own": 1})]
    answer = slices_of_pool(pool(devices, {"parts": 1, "own": 1}), SliceFeatures(counters=False))
    assert set(devices_of(answer.slices)) == {"part"}


def test_without_counters_what_takes_least_of_what_it_takes_most_is_offered_first() -> None:
    lopsided = device("a", {"slices": 1, "copies": 9})
    even = [device(name, {"slices": 5, "copies": 5}) for name in ("b", "c")]
    described = slices_of_pool(pool([lopsided, *even], {"slices": 10, "copies": 10}), SliceFeatures(counters=False))
    assert set(devices_of(described.slices)) == {"b", "c"}


def test_without_taints_what_is_not_available_is_left_out() -> None:
    devices = [device("good"), device("bad", devalloc_io__unavailable="reserved: boot display")]
    answer = slices_of_pool(pool(devices), SliceFeatures(taints=False))
    assert set(devices_of(answer.slices)) == {"good"}
    assert texts(answer) == [
        "bad: not published: is not available, which the cluster cannot express: DRADeviceTaints is off"
    ]


# -- taints and groups -------------------------------------------------------------------------------------------------


def test_what_is_not_available_is_tainted_with_the_reason() -> None:
    reason = "in use: a vGPU that no claim holds; mounted at /srv"
    published = devices_of(
        slices_of_pool(pool([device("a", devalloc_io__unavailable=reason)]), SliceFeatures()).slices
    )["a"]
    value = "in-use-a-vGPU-that-no-claim-holds-mounted-at-srv"
    assert published["taints"] == [{"key": UNAVAILABLE, "effect": "NoSchedule", "value": value}]
    assert published["attributes"][UNAVAILABLE] == {"string": reason}


def grouped() -> DevicePool:
    sizes = [("4Gi", 4), ("8Gi", 8), ("8Gi", 8), ("4Gi", 4), ("4Gi", 4)]
    devices = [
        device(f"d{number}", {"memory": amount}, devalloc_io__compatibilityGroup=group)
        for number, (group, amount) in enumerate(sizes)
    ]
    return pool(devices, {"memory": 16})


def test_slices_have_groups_if_the_cluster_supports_them() -> None:
    slices = slices_of_pool(grouped(), ALL_ON).slices
    assert fits(slices, ["d0", "d3", "d4"])
    assert fits(slices, ["d1", "d2"])
    assert not fits(slices, ["d0", "d1"])


def test_elsewhere_the_larger_group_is_open_and_the_others_are_tainted() -> None:
    slices = slices_of_pool(grouped(), SliceFeatures()).slices
    assert fits(slices, ["d0", "d3", "d4"])
    closed = {name: d["taints"] for name, d in devices_of(slices).items() if "taints" in d}
    assert set(closed) == {"d1", "d2"}
    assert closed["d1"] == [{"key": COMPATIBILITY_TAINT, "effect": "NoSchedule", "value": "4Gi"}]


# -- attributes --------------------------------------------------------------------------------------------------------


def test_attributes_keep_their_kind_and_quantities_are_capacity() -> None:
    source = device(
        "a", model="A2", numa=1, firmware=SemVer.parse("1.2.3"), framebuffer=Quantity.parse("16384Mi"),
    )  # fmt: skip
    published = devices_of(slices_of_pool(pool([source]), SliceFeatures()).slices)["a"]
    assert published["attributes"] == {"model": {"string": "A2"}, "numa": {"int": 1}, "firmware": {"version": "1.2.3"}}
    assert published["capacity"] == {"framebuffer": {"value": "16Gi"}}


def test_attributes_that_the_api_does_not_take_are_left_out_and_said() -> None:
    odd = Device(
        name="a",
        attributes=[Attribute.of(name, "x") for name in ("has-dash", "b" * 33, "a/b/c", "UPPER.io/x", "fine")],
    )
    answer = slices_of_pool(pool([odd]), SliceFeatures())
    assert set(devices_of(answer.slices)["a"]["attributes"]) == {"fine"}
    assert len(texts(answer)) == 4
    assert all(not problem.is_error for problem in answer.problems)


def test_at_most_32_attributes() -> None:
    many = Device(name="a", attributes=[Attribute.of(f"a{number}", number) for number in range(40)])
    answer = slices_of_pool(pool([many]), SliceFeatures())
    assert beyond_limits(answer.slices) == []
    assert len(texts(answer)) == 8


def test_pool_attributes_are_the_devices_own_unless_they_say_otherwise() -> None:
    plain = pool([device("a"), device("b", vendor="other")])
    shared = plain.model_copy(
        update={"spec": plain.spec.model_copy(update={"attributes": [Attribute.of("vendor", "intel")]})}
    )
    published = devices_of(slices_of_pool(shared, SliceFeatures()).slices)
    assert [published[name]["attributes"]["vendor"]["string"] for name in "ab"] == ["intel", "other"]


# -- names -------------------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=300))
@settings(deadline=None)
def test_names_and_values_always_fit(text: str) -> None:
    assert is_label(dns_label(text))
    assert dns_label(dns_label(text)) == dns_label(text)
    assert len(text_value(text).encode()) <= 64
    value = label_value(text)
    assert len(value) <= 63
    assert not value or (value[0].isalnum() and value[-1].isalnum())


def test_different_names_stay_different() -> None:
    names = ["i915-GVTg_V5_4", "i915-gvtg-v5-4", "i915-GVTg-V5_4", "x" * 64, "x" * 65, "_", "__"]
    assert len({dns_label(name) for name in names}) == len(names)


def test_names_of_slices_have_room() -> None:
    long = object_name("n" * 200 + "." + "m" * 52, "devalloc.io", "000")
    assert is_subdomain_name(long)
    assert long.endswith("-000")
    assert object_name("node-a-0000-08-00", "devalloc.io", "001") == "node-a-0000-08-00-devalloc.io-001"


# -- set aside ---------------------------------------------------------------------------------------------------------


def test_devices_that_are_set_aside_say_so_and_keep_kube_scheduler_off() -> None:
    given = pool([device("a", devalloc_io__unavailable="in use"), device("b")])
    (aside,) = PoolNames(aside=True).named([given])
    (content,) = slices_of_pool(aside, SliceFeatures()).slices
    taints = {each["name"]: [taint["key"] for taint in each["taints"]] for each in content["devices"]}
    assert taints == {"a": ["devalloc.io/unavailable", "devalloc.io/allocator"], "b": ["devalloc.io/allocator"]}
    assert all(each["attributes"]["allocator"] == {"string": "devalloc"} for each in content["devices"])
    untainted = slices_of_pool(aside, SliceFeatures(taints=False))
    assert untainted.slices == ({},)
    assert any("set aside" in problem.message for problem in untainted.problems)


@pytest.mark.parametrize(
    ("held", "aside", "name"),
    [
        ([], False, "p"),
        ([], True, "p.devalloc"),
        (["p"], True, "p"),
        (["p.devalloc"], False, "p.devalloc"),
        (["p.devalloc"], True, "p.devalloc"),
        (["q"], True, "p.devalloc"),
    ],
)
def test_a_pool_changes_hands_when_it_is_free(held: list[str], aside: bool, name: str) -> None:
    one = pool([device("a")])
    one = one.model_copy(update={"metadata": one.metadata.model_copy(update={"name": "p"})})
    (published,) = PoolNames(aside, lambda: held).named([one])
    assert published.metadata.name == name
