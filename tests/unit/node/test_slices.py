"""ResourceSlices say of a pool what the pool says: the same devices exclude each other."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE, ObjectMeta
from devalloc.api.pool import Attribute, AttributeValue, Device, DevicePool, DevicePoolSpec, ResourceCapacity
from devalloc.api.quantity import Quantity
from devalloc.api.semver import SemVer
from devalloc_node.kube.names import label, label_value, object_name, text_value
from devalloc_node.kube.node_slices import _named
from devalloc_node.kube.slices import COMPATIBILITY_TAINT, Features, SlicePool, sliced
from devalloc_node.names import is_label, is_subdomain
from tests.support import cards
from tests.support.cards import Sriov
from tests.support.discovered import Found
from tests.support.fakesysfs import FakeSysfs
from tests.support.slices import beyond_limits, devices_of, fits

ALL_ON = Features(groups=True)


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


def texts(found: SlicePool) -> list[str]:
    return [problem.message for problem in found.problems]


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
    slices = sliced(drawn, Features()).slices
    assert beyond_limits(slices) == []
    chosen = [f"d{number}" for number in numbers if number < len(drawn.spec.devices)]
    found = Found([drawn], [], {d.name: d for d in drawn.spec.devices}, {d.name: drawn for d in drawn.spec.devices})
    assert fits(slices, chosen) == found.fits(*chosen)


def hosts(host: FakeSysfs, kind: str) -> None:
    match kind:
        case "nic":
            host.add(cards.nic("0000:41:00.0", sriov=Sriov(64, 128, 2), vfs=5))
        case "two ports":
            for port in range(2):
                host.add(cards.nic(f"0000:41:00.{port}", netdev=f"eth{port}", sriov=Sriov(40, 128, 2)))
        case "vgpu":
            host.add(cards.a2_vgpu_card("0000:08:00.0", vfs=4))
        case "gpu":
            host.add(cards.gpu("0000:81:00.0"))


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("kind", ["nic", "two ports", "vgpu", "gpu"])
def test_cards_are_told_whole(tmp_path: Path, kind: str, groups: bool) -> None:
    hosts(host := FakeSysfs(tmp_path), kind)
    found = Found.on(host.root)
    answer = sliced(found.pools[0], Features(groups=groups))
    assert texts(answer) == []
    assert beyond_limits(answer.slices) == []
    assert set(devices_of(answer.slices)) == set(found.devices)

    random = Random(kind)
    tainted = {d["name"] for d in devices_of(answer.slices).values() if "taints" in d}
    verdicts = set()
    for _ in range(200):
        chosen = random.sample(list(found.devices), min(random.choice([1, 2, 3, 16]), len(found.devices)))
        verdict = fits(answer.slices, chosen)
        verdicts.add(verdict)
        if verdict:
            assert found.fits(*chosen), "whatever Kubernetes allows the pool allows"
        elif found.fits(*chosen):  # a group that is closed, or plain VFs beside vGPUs of a group
            attributes = [found.attributes(name).get(COMPATIBILITY_GROUP) for name in chosen]
            assert tainted & set(chosen) or len(set(attributes)) > 1
    assert verdicts == ({True, False} if len(found.devices) > 1 else {True})


def test_what_cannot_run_short_is_no_counter() -> None:
    devices = [device("a", {"x": 1, "y": 1}), device("b", {"x": 1})]
    content = sliced(pool(devices, {"x": 1, "y": 1}), Features()).slices
    assert content[0] == {"sharedCounters": [{"name": "set-0", "counters": {"x": {"value": "1"}}}]}
    assert sliced(pool(devices, {"x": 2, "y": 1}), Features()).slices[0].keys() == {"devices"}


def test_a_device_that_draws_on_what_is_not_there_is_left_out() -> None:
    answer = sliced(pool([device("a", {"x": 1}), device("b")]), Features())
    assert set(devices_of(answer.slices)) == {"b"}
    assert texts(answer) == ["a: not published: draws on x, which the pool does not have"]


def test_more_resources_than_sets_can_tell_cost_only_the_devices_that_need_them() -> None:
    resources: dict[str, int | str] = {f"r{number}": 1 for number in range(74)}
    greedy = [device(f"greedy{first}", {f"r{number}": 1 for number in range(first, first + 64)}) for first in (0, 10)]
    others = [device(f"d{number}", {f"r{number}": 1}) for number in range(74)]
    answer = sliced(pool([*greedy, *others], resources), Features())
    assert beyond_limits(answer.slices) == []
    assert set(devices_of(answer.slices)) == {d.name for d in others} | {"greedy0"}
    assert "more than two sets of counters" in texts(answer)[0]


@pytest.mark.parametrize("name", ["i915-GVTg_V5_4", "d" * 64, "-d"])
def test_a_device_without_a_valid_name_is_left_out(name: str) -> None:
    answer = sliced(pool([device(name), device("b")]), Features())
    assert set(devices_of(answer.slices)) == {"b"}
    assert "DNS label" in texts(answer)[0]


def test_a_device_with_resources_of_its_own_is_left_out() -> None:
    shared = Device(name="a", resources=[ResourceCapacity(name="memory", capacity=Quantity.parse("1Gi"))])
    assert texts(sliced(pool([shared]), Features())) == [
        "a: not published: has resources of its own, which slices do not share yet"
    ]


# -- features that are off ---------------------------------------------------------------------------------------------


def test_without_counters_what_goes_together_is_offered(tmp_path: Path) -> None:
    host = FakeSysfs(tmp_path)
    host.add(cards.nic("0000:41:00.0", sriov=Sriov(4, 128, 2)))
    found = Found.on(host.root)
    answer = sliced(found.pools[0], Features(counters=False))
    assert sorted(devices_of(answer.slices)) == sorted(found.names(function="vf"))
    assert "DRAPartitionableDevices is off" in texts(answer)[0]


def test_without_counters_what_is_not_available_keeps_nothing_from_being_offered() -> None:
    """As a card that has VFs which were not made for a claim, and is not offered whole."""
    devices = [device("whole", {"parts": 1}, devalloc_io__unavailable="in use"), device("part", {"parts": 1, "own": 1})]
    answer = sliced(pool(devices, {"parts": 1, "own": 1}), Features(counters=False))
    assert set(devices_of(answer.slices)) == {"part"}


def test_without_taints_what_is_not_available_is_left_out() -> None:
    devices = [device("good"), device("bad", devalloc_io__unavailable="reserved: boot display")]
    answer = sliced(pool(devices), Features(taints=False))
    assert set(devices_of(answer.slices)) == {"good"}
    assert texts(answer) == [
        "bad: not published: is not available, which the cluster cannot tell: DRADeviceTaints is off"
    ]


# -- taints and groups -------------------------------------------------------------------------------------------------


def test_what_is_not_available_is_tainted_with_the_reason() -> None:
    reason = "in use: a vGPU that no claim holds; mounted at /srv"
    told = devices_of(sliced(pool([device("a", devalloc_io__unavailable=reason)]), Features()).slices)["a"]
    value = "in-use-a-vGPU-that-no-claim-holds-mounted-at-srv"
    assert told["taints"] == [{"key": UNAVAILABLE, "effect": "NoSchedule", "value": value}]
    assert told["attributes"][UNAVAILABLE] == {"string": reason}


def grouped() -> DevicePool:
    sizes = [("4Gi", 4), ("8Gi", 8), ("8Gi", 8), ("4Gi", 4), ("4Gi", 4)]
    devices = [
        device(f"d{number}", {"memory": amount}, devalloc_io__compatibilityGroup=group)
        for number, (group, amount) in enumerate(sizes)
    ]
    return pool(devices, {"memory": 16})


def test_groups_are_told_where_the_cluster_knows_them() -> None:
    slices = sliced(grouped(), ALL_ON).slices
    assert fits(slices, ["d0", "d3", "d4"])
    assert fits(slices, ["d1", "d2"])
    assert not fits(slices, ["d0", "d1"])


def test_elsewhere_the_larger_group_is_open_and_the_others_are_tainted() -> None:
    slices = sliced(grouped(), Features()).slices
    assert fits(slices, ["d0", "d3", "d4"])
    closed = {name: d["taints"] for name, d in devices_of(slices).items() if "taints" in d}
    assert set(closed) == {"d1", "d2"}
    assert closed["d1"] == [{"key": COMPATIBILITY_TAINT, "effect": "NoSchedule", "value": "4Gi"}]


# -- attributes --------------------------------------------------------------------------------------------------------


def test_attributes_keep_their_kind_and_quantities_are_capacity() -> None:
    told = device(
        "a", model="A2", numa=1, firmware=SemVer.parse("1.2.3"), framebuffer=Quantity.parse("16384Mi"),
    )  # fmt: skip
    found = devices_of(sliced(pool([told]), Features()).slices)["a"]
    assert found["attributes"] == {"model": {"string": "A2"}, "numa": {"int": 1}, "firmware": {"version": "1.2.3"}}
    assert found["capacity"] == {"framebuffer": {"value": "16Gi"}}


def test_attributes_that_the_api_does_not_take_are_left_out_and_said() -> None:
    odd = Device(
        name="a",
        attributes=[Attribute.of(name, "x") for name in ("has-dash", "b" * 33, "a/b/c", "UPPER.io/x", "fine")],
    )
    answer = sliced(pool([odd]), Features())
    assert set(devices_of(answer.slices)["a"]["attributes"]) == {"fine"}
    assert len(texts(answer)) == 4
    assert all(not problem.is_error for problem in answer.problems)


def test_at_most_32_attributes() -> None:
    many = Device(name="a", attributes=[Attribute.of(f"a{number}", number) for number in range(40)])
    answer = sliced(pool([many]), Features())
    assert beyond_limits(answer.slices) == []
    assert len(texts(answer)) == 8


def test_pool_attributes_are_the_devices_own_unless_they_say_otherwise() -> None:
    plain = pool([device("a"), device("b", vendor="other")])
    shared = plain.model_copy(
        update={"spec": plain.spec.model_copy(update={"attributes": [Attribute.of("vendor", "intel")]})}
    )
    found = devices_of(sliced(shared, Features()).slices)
    assert [found[name]["attributes"]["vendor"]["string"] for name in "ab"] == ["intel", "other"]


# -- names -------------------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=300))
@settings(deadline=None)
def test_names_and_values_always_fit(text: str) -> None:
    assert is_label(label(text))
    assert label(label(text)) == label(text)
    assert len(text_value(text).encode()) <= 64
    value = label_value(text)
    assert len(value) <= 63
    assert not value or (value[0].isalnum() and value[-1].isalnum())


def test_different_names_stay_different() -> None:
    names = ["i915-GVTg_V5_4", "i915-gvtg-v5-4", "i915-GVTg-V5_4", "x" * 64, "x" * 65, "_", "__"]
    assert len({label(name) for name in names}) == len(names)


def test_names_of_slices_have_room() -> None:
    long = object_name("n" * 200 + "." + "m" * 52, "devalloc.io", "000")
    assert is_subdomain(long)
    assert long.endswith("-000")
    assert object_name("node-a-0000-08-00", "devalloc.io", "001") == "node-a-0000-08-00-devalloc.io-001"


# -- set aside ---------------------------------------------------------------------------------------------------------


def test_devices_that_are_set_aside_say_so_and_keep_kube_scheduler_off() -> None:
    aside = _named(pool([device("a", devalloc_io__unavailable="in use"), device("b")]), frozenset(), aside=True)
    (content,) = sliced(aside, Features()).slices
    taints = {each["name"]: [taint["key"] for taint in each["taints"]] for each in content["devices"]}
    assert taints == {"a": ["devalloc.io/unavailable", "devalloc.io/allocator"], "b": ["devalloc.io/allocator"]}
    assert all(each["attributes"]["allocator"] == {"string": "devalloc"} for each in content["devices"])
    kept = sliced(aside, Features(taints=False))
    assert kept.slices == ({},)
    assert any("set aside" in problem.message for problem in kept.problems)


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
    assert _named(one, frozenset(held), aside=aside).metadata.name == name
