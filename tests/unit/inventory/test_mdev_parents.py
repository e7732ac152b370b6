"""Mediated devices whose parent is not a PCI function: published, located, and left out with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from devalloc.api.meta import UNAVAILABLE
from devalloc.api.pool import DevicePool
from devalloc.device_kinds import ALLOWABLE
from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc.inventory.discover import discover
from devalloc.inventory.locate import DeviceGone, DeviceUnknown, locate
from devalloc.inventory.mdev_parents import MdevParentDevice
from devalloc.inventory.sysfs import Tree
from tests.support import pci_cards
from tests.support.fake_host import FakeHost

NODE, POOL = "node-a", "node-a-mdev-mtty"
UUID = "5b0f3f4e-8d0c-4e43-9d0e-6f1d1a1d7c55"
ALLOWED = InventoryConfig(allowed=frozenset(ALLOWABLE))


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.vgpu.add_parent("mtty", pci_cards.MTTY)
    return host


def pool(host: FakeHost, config: InventoryConfig = ALLOWED) -> DevicePool:
    (only,) = discover(host.root, node_name=NODE, config=config).pools
    return only


def reasons(host: FakeHost, config: InventoryConfig = ALLOWED) -> dict[str, str]:
    spec = pool(host, config).spec
    shared = {each.name: each.value for each in spec.attributes}
    attributes = {each.name: shared | {a.name: a.value for a in each.attributes} for each in spec.devices}
    return {name: str(of.get(UNAVAILABLE, "")) for name, of in attributes.items()}


def test_a_parent_has_a_pool_with_a_device_for_each_instance_of_each_type(host: FakeHost) -> None:
    spec = pool(host).spec
    assert (pool(host).metadata.name, spec.node_name, spec.driver) == (POOL, NODE, "mdev.devalloc.io")
    assert {each.name: each.value for each in spec.attributes} == {
        "kind": "mdev",
        "function": "mdev",
        "state": "creatable",
        "mdevParent": "mtty",
    }
    first = next(each for each in spec.devices if each.name == "mtty-mtty-2")
    assert {each.name: each.value for each in first.attributes} == {
        "profile": "Dual port serial",
        "profileID": "mtty-2",
        "devalloc.io/compatibilityGroup": "mtty-2",
    }
    assert len(spec.devices) == 24 + 12
    assert {each.name: str(each.capacity) for each in spec.resources} == {
        "instances-mtty-1": "24",
        "instances-mtty-2": "12",
    }
    assert set(reasons(host).values()) == {""}


def test_it_is_withheld_where_the_admin_does_not_allow_it(host: FakeHost) -> None:
    (reason,) = set(reasons(host, InventoryConfig(allowed=frozenset({"gpu"}))).values())
    assert reason == "withheld: mdev is not allowed on this node (gpu is)"
    assert discover(host.root, node_name=NODE, config=InventoryConfig(kinds=frozenset({"gpu"}))).pools == []


def test_types_that_are_no_pci_devices_to_a_machine_are_not_published(host: FakeHost) -> None:
    host.vgpu.add_parent("matrix", pci_cards.MTTY, device_api="vfio-ap")
    assert pool(host).metadata.name == POOL


def test_one_that_others_made_is_published_and_can_be_adopted(host: FakeHost) -> None:
    host.vgpu.create("mtty", "mtty-1", UUID)
    name = f"mdev-{UUID}"
    assert reasons(host)[name] == "in use: a vGPU that no claim holds"
    adopted = InventoryConfig(allowed=frozenset(ALLOWABLE), adopt=frozenset({name}))
    assert reasons(host, adopted)[name] == ""
    host.process(4711, opens=(f"/dev/vfio/{host.vgpu._groups[UUID]}",))
    assert reasons(host, adopted)[name] == "in use: qemu-system-x86 4711"
    located = locate(Tree(host.root), NODE, POOL, name)
    assert isinstance(located, MdevParentDevice)
    assert (located.profile_id, located.uuid) == ("mtty-1", UUID)


def test_what_a_claim_has_keeps_its_name_and_is_withheld_by_it(host: FakeHost) -> None:
    host.vgpu.create("mtty", "mtty-2", UUID)
    records = DeviceRecords(
        prepared={"mtty-mtty-2-3": frozenset({f"mdev-{UUID}"})}, withheld={"mtty-mtty-2": "reset failed: stuck"}
    )
    answer = reasons(host, InventoryConfig(allowed=frozenset(ALLOWABLE), records=records))
    assert f"mdev-{UUID}" not in answer
    assert (answer["mtty-mtty-2-3"], answer["mtty-mtty-2"]) == ("", "reset failed: stuck")


@pytest.mark.parametrize(
    ("device", "profile"), [("mtty-mtty-1", "mtty-1"), ("mtty-mtty-1-7", "mtty-1"), ("mtty-mtty-2-1", "mtty-2")]
)
def test_every_published_name_is_located(host: FakeHost, device: str, profile: str) -> None:
    located = locate(Tree(host.root), NODE, POOL, device)
    assert isinstance(located, MdevParentDevice)
    assert (located.parent.name, located.profile_id, located.uuid) == ("mtty", profile, None)


@pytest.mark.parametrize(
    ("pool", "device", "error"),
    [
        (POOL, "mtty-mtty-3", DeviceUnknown),
        (POOL, "mtty-1", DeviceUnknown),
        (POOL, f"mdev-{UUID}", DeviceGone),
        (POOL, "../../x", DeviceUnknown),
        ("node-a-mdev-other", "other-mtty-1", DeviceGone),
        ("node-b-mdev-mtty", "mtty-mtty-1", DeviceUnknown),
        ("node-a-mdev-0000-08-00", "0000-08-00-0", DeviceUnknown),
    ],
)
def test_an_unknown_device_has_another_error_than_a_vanished_one(
    host: FakeHost, pool: str, device: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        locate(Tree(host.root), NODE, pool, device)


def test_of_two_names_that_are_one_label_the_second_is_left_out_with_the_reason(host: FakeHost) -> None:
    host.vgpu.add_parent("m_t", pci_cards.MTTY)
    host.vgpu.add_parent("m-t", pci_cards.MTTY)
    answer = discover(host.root, node_name=NODE, config=ALLOWED)
    assert [each.metadata.name for each in answer.pools] == ["node-a-mdev-m-t", POOL]
    assert ["'m_t' makes no pool name of its own" in str(problem) for problem in answer.problems] == [True]
