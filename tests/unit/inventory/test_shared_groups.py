"""Devices of several slots in one IOMMU group as one device, if the admin wants that (T5)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from devalloc_node.errors import Denied
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.node_errors import raises
from tests.support.pci_cards import Function

FIRST, SECOND = "0000-17-00-0", "0000-18-00-0"
ALL = ("0000:17:00.0", "0000:17:00.1", "0000:18:00.0", "0000:18:00.1")
BOUND: dict[str, Any] = {"bind_shared_groups": True}
SATA = Function("0000:19:00.0", 0x8086, 0xA382, 0x010601, native="ahci", iommu_group=30)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Two GPUs with their audio functions behind a port that does not keep them apart."""
    host = FakeHost(tmp_path)
    for bus, card in (("17", "card0"), ("18", "card1")):
        host.add(pci_cards.gpu(f"0000:{bus}:00.0", iommu_group=30, drm=card))
        host.add(pci_cards.gpu_audio(f"0000:{bus}:00.1", iommu_group=30))
    return host


def reasons(host: FakeHost, **settings: Any) -> tuple[str | None, str | None]:
    seen = DiscoveredPools.on(host.root, **{**BOUND, **settings})
    return seen.unavailable(FIRST), seen.unavailable(SECOND)


def test_the_first_device_takes_the_others_along(host: FakeHost) -> None:
    before = host.snapshot()
    assert reasons(host) == (None, "IOMMU group 30 goes with 0000:17:00.0")
    seen = DiscoveredPools.on(host.root, **BOUND)
    assert (seen.attributes(FIRST)["groupDevices"], seen.attributes(SECOND).get("groupDevices")) == (2, None)
    hand = BindingRunner.on(host, **BOUND)
    assert hand.prepare(FIRST).functions == ALL
    assert {host.driver_of(function) for function in ALL} == {"vfio-pci"}
    hand.unprepare(FIRST)
    assert host.snapshot() == before


def test_another_claim_gets_none_of_them(host: FakeHost) -> None:
    hand = BindingRunner.on(host, **BOUND)
    hand.prepare(FIRST)
    with pytest.raises(AssertionError, match="would hold what others hold"):
        hand.prepare(SECOND, owner="uid-2")


def test_the_second_device_alone_is_refused(host: FakeHost) -> None:
    before = host.snapshot()
    with pytest.raises(Denied, match=r"goes with 0000:17:00\.0") as refused:
        BindingRunner.on(host, **BOUND).prepare(SECOND)
    assert (refused.value.code, host.snapshot()) == ("GroupShared", before)


def test_without_the_option_each_stands_in_the_way_of_the_other(host: FakeHost) -> None:
    assert all("is shared with" in str(why) for why in reasons(host, bind_shared_groups=False))


@pytest.mark.parametrize("node", ["/dev/dri/card1", "/dev/snd/pcmC1D3p"])
def test_a_user_of_one_function_keeps_all_of_the_group(host: FakeHost, node: str) -> None:
    if "snd" in node:
        host.write(f"{host.path('0000:18:00.1')}/sound/card1/pcmC1D3p/dev", "116:19")
        host.write(f"{host.path('0000:18:00.1')}/sound/card1/pcmC1D3p/uevent", "DEVNAME=snd/pcmC1D3p")
    host.process(812, "python3", opens=(node,))
    function = "0000:18:00.1" if "snd" in node else "0000:18:00.0"
    assert reasons(host)[0] == f"in use: python3 812 ({function})"
    with raises(Denied, "DeviceInUse"):
        BindingRunner.on(host, **BOUND).prepare(FIRST)


def test_what_the_host_needs_of_one_of_them_keeps_all(host: FakeHost) -> None:
    host.write(f"{host.path('0000:18:00.0')}/boot_vga", "1")
    assert reasons(host)[0] == "reserved: boot VGA (0000:18:00.0)"
    with raises(Denied, "DeviceReserved"):
        BindingRunner.on(host, **BOUND).prepare(FIRST)


@pytest.mark.parametrize(
    "peer",
    [
        SATA,
        pci_cards.nvme("0000:19:00.0", iommu_group=30),
        pci_cards.connectx("0000:19:00.0", iommu_group=30),
        Function("0000:19:00.0", 0x10DE, 0x22A3, 0x068000, native="nvidia-nvswitch", iommu_group=30),
    ],
    ids=["SATA", "NVMe", "NIC with VFs", "NVSwitch"],
)
def test_a_device_that_may_not_be_taken_keeps_all_with_its_driver(host: FakeHost, peer: Function) -> None:
    host.add(peer)
    allowed = frozenset({"gpu", "vf", "vgpu", "nic", "storage"})
    first, second = reasons(host, allowed=allowed)
    why = f"0000:19:00.0 of its IOMMU group 30 has the driver {peer.native} and cannot go along"
    assert first == second == f"in use: {why}; bind it to vfio-pci, unless the host needs it"
    with pytest.raises(Denied, match=re.escape(why)):
        BindingRunner.on(host, allowed=allowed, **BOUND).prepare(FIRST)
    assert host.driver_of("0000:19:00.0") == peer.native


def test_a_nic_whose_card_has_a_drive_as_well_keeps_all_with_its_driver(host: FakeHost) -> None:
    """Such as a DPU that emulates an NVMe drive: no one erases that for a claim that did not ask for it."""
    host.add(pci_cards.plain_nic("0000:19:00.0", iommu_group=30))
    host.add(pci_cards.nvme("0000:19:00.1", iommu_group=30))
    first, second = reasons(host, allowed=frozenset({"gpu", "nic", "storage"}))
    assert first == second
    assert "0000:19:00.0 of its IOMMU group 30 has the driver" in str(first)


def test_a_kind_that_the_node_does_not_allow_is_not_taken_along(host: FakeHost) -> None:
    host.add(pci_cards.plain_nic("0000:19:00.0", iommu_group=30))
    assert reasons(host, allowed=frozenset({"gpu"}))[0] is not None
    assert reasons(host, allowed=frozenset({"gpu", "nic"}))[0] is None
    hand = BindingRunner.on(host, allowed=frozenset({"gpu", "nic"}), **BOUND)
    assert hand.prepare(FIRST).functions == (*ALL, "0000:19:00.0")


@pytest.mark.parametrize("driver", ["pci-stub", None])
def test_a_device_whose_driver_leaves_the_group_alone_may_stay(host: FakeHost, driver: str | None) -> None:
    """`pci-stub.ids=` of the kernel's command line is how many admins keep a device from the host."""
    stub = Function("0000:06:00.0", 0x1B73, 0x1100, 0x0C0330, native="xhci_hcd", driver=driver, iommu_group=31)
    host.add(pci_cards.gpu("0000:05:00.0", iommu_group=31, drm="card5"))
    host.add(stub)
    assert DiscoveredPools.on(host.root, allow_shared_groups=True).unavailable("0000-05-00-0") is None
    hand = BindingRunner.on(host, allow_shared_groups=True)
    assert hand.prepare("0000-05-00-0").functions == ("0000:05:00.0",)
    assert host.driver_of("0000:06:00.0") == driver
