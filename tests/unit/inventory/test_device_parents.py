"""A kind of devices that are no PCI functions is a row of ``DEVICE_KINDS`` and a module, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.meta import UNAVAILABLE
from devalloc.api.pool import DevicePool
from devalloc.device_kinds import DEVICE_KINDS, DeviceKind
from devalloc.inventory import watch
from devalloc.inventory.config import DeviceRecords, InventoryConfig
from devalloc.inventory.device_parents import DeviceParent, ParentDevice
from devalloc.inventory.discover import discover
from devalloc.inventory.locate import DeviceGone, DeviceUnknown, locate
from devalloc.inventory.pools import DeviceDraft
from devalloc.inventory.sysfs import Tree
from devalloc.inventory.unavailability import UnavailabilityReasons
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.binding.registry import Bindings
from devalloc_node.errors import Denied
from devalloc_node.model.grant import GrantedDevice
from tests.support.fake_host import FakeHost, LocalHost
from tests.support.node_errors import raises

NODE, POOL = "node-a", "node-a-fpga-region0"


class FpgaRegion(DeviceParent):
    """A region whose device is itself."""

    def devices(self, obstacles: UnavailabilityReasons) -> tuple[Sequence[DeviceDraft], Mapping[str, int]]:
        draft = DeviceDraft(self.label, {"kind": self.kind.name, "function": "region", "state": "exists"})
        draft.mark_unavailable(obstacles.allowance(self.kind.name))
        return [draft], {}

    def locate(self, device: str) -> ParentDevice:
        if device != self.label:
            raise DeviceUnknown(f"{self.name} is no {device}")
        return ParentDevice(self)


FPGA = DeviceKind(
    "fpga",
    "FPGA regions",
    {},
    "regions of FPGAs",
    "yes",
    sysfs_class="fpga_region",
    parents=f"{__name__}:{FpgaRegion.__name__}",
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setitem(DEVICE_KINDS, FPGA.name, FPGA)
    host = FakeHost(tmp_path)
    for name in ("region0", "region1"):
        (host.root / "sys/class/fpga_region" / name).mkdir(parents=True)
    return host


def pools(host: FakeHost, **config: Any) -> dict[str, DevicePool]:
    published = discover(
        host.root, node_name=NODE, config=InventoryConfig(kinds=frozenset({FPGA.name}), **config)
    ).pools
    return {pool.metadata.name: pool for pool in published}


def reason(pool: DevicePool) -> str:
    (device,) = pool.spec.devices
    return next((str(each.value) for each in device.attributes if each.name == UNAVAILABLE), "")


def test_each_member_of_the_class_has_a_pool_of_the_kind(host: FakeHost) -> None:
    published = pools(host)
    assert {name: pool.spec.driver for name, pool in published.items()} == {
        POOL: "fpga.devalloc.io",
        "node-a-fpga-region1": "fpga.devalloc.io",
    }
    assert {reason(pool) for pool in published.values()} == {""}
    assert discover(host.root, node_name=NODE, config=InventoryConfig(kinds=frozenset({"gpu"}))).pools == []


def test_what_the_admin_does_not_allow_or_is_withheld_is_published_with_the_reason(host: FakeHost) -> None:
    withheld = DeviceRecords(withheld={"region0": "unhealthy: it is hot"})
    published = pools(host, allowed=frozenset({"gpu"}), records=withheld)
    assert [reason(pool) for pool in published.values()] == [
        "withheld: fpga is not allowed on this node (gpu is); unhealthy: it is hot",
        "withheld: fpga is not allowed on this node (gpu is)",
    ]


def test_of_members_whose_names_are_alike_the_first_counts(host: FakeHost) -> None:
    (host.root / "sys/class/fpga_region/REGION0").mkdir()
    published = discover(host.root, node_name=NODE, config=InventoryConfig(kinds=frozenset({FPGA.name})))
    assert len(published.pools) == 2
    assert "makes no pool name of its own" in str(published.problems[0])


def test_its_devices_are_located(host: FakeHost) -> None:
    located = locate(Tree(host.root), NODE, POOL, "region0")
    assert isinstance(located, ParentDevice)
    assert located.parent.name == "region0"


@pytest.mark.parametrize(
    ("pool", "device", "error"),
    [
        (POOL, "region1", DeviceUnknown),
        ("node-a-fpga-region7", "region7", DeviceGone),
        ("node-b-fpga-region0", "region0", DeviceUnknown),
    ],
)
def test_what_is_not_there_is_not_located(host: FakeHost, pool: str, device: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        locate(Tree(host.root), NODE, pool, device)


def test_without_a_binding_of_its_own_it_is_refused(host: FakeHost) -> None:
    bindings = Bindings(LocalHost(host), BindingConfig(node_name=NODE))
    with raises(Denied, "DeviceUnknown"):
        bindings.choose(GrantedDevice(requests=(), pool=POOL, device="region0"))


def test_events_of_its_class_are_heard(host: FakeHost) -> None:
    assert FPGA.sysfs_class in watch.subsystems()
    assert {"mdev_bus", "pci"} <= {*watch.subsystems()}
