"""VFs that do not exist are offered only where they can be made and are of use."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.device_kinds import DEVICE_KINDS
from devalloc.inventory.config import VfRefusal
from tests.support import pci_cards
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_sysfs import FakeSysfs
from tests.support.pci_cards import Function, Sriov

PF = "0000:4e:00.0"
WHOLE = "0000-4e-00-0"
USELESS = "withheld: a VF of an NVIDIA GPU is of no use without a vGPU type; claim a vGPU"


def card(vendor: int, device: int, class_code: int, driver: str, **changes: Any) -> Function:
    """A card with 4 possible VFs."""
    sriov = Sriov(4, offset=4, stride=1, vf_device=device, vf_driver=driver)
    return Function(PF, vendor, device, class_code, native=driver, sriov=sriov, **changes)


H100 = card(0x10DE, 0x2331, 0x030200, "nvidia")
L40S = card(0x10DE, 0x26B9, 0x030200, "nvidia")
MI300X = card(0x1002, 0x74A1, 0x120000, "amdgpu")
MI210 = card(0x1002, 0x740F, 0x038000, "amdgpu")
FLEX = card(0x8086, 0x56C0, 0x038000, "i915")
BATTLEMAGE = card(0x8086, 0xE211, 0x038000, "xe")
NVME = card(0x144D, 0xA824, 0x010802, "nvme")
MLX4 = card(0x15B3, 0x1007, 0x020000, "mlx4_core")
GAUDI = card(0x1DA3, 0x1020, 0x120000, "habanalabs")
QAT = card(0x8086, 0x4940, 0x0B4000, "4xxx")
CONNECTX = card(0x15B3, 0x101D, 0x020000, "mlx5_core")
ALL = frozenset(DEVICE_KINDS)


def states(host: FakeSysfs, **settings: Any) -> tuple[str | None, set[str | None]]:
    """Why the whole card, and why its VFs are not offered."""
    settings = {"allowed": ALL | {"vf", "vgpu"}, "erase_policy": True} | settings
    seen = DiscoveredPools.on(host.root, **settings)
    return seen.unavailable(WHOLE), {seen.unavailable(vf) for vf in seen.names(function="vf")}


@pytest.mark.parametrize("function", [H100, L40S], ids=["H100", "L40S"])
def test_vfs_of_nvidia_gpus_are_never_offered(host: FakeSysfs, function: Function) -> None:
    host.add(function)
    assert states(host) == (None, {USELESS})
    assert states(host, creatable_vfs=frozenset({"gpu"})) == (None, {USELESS})


@pytest.mark.parametrize(
    "function",
    [MI300X, MI210, FLEX, BATTLEMAGE, NVME, MLX4, GAUDI],
    ids=["MI300X", "MI210", "Flex", "Battlemage", "NVMe", "ConnectX-3", "Gaudi"],
)
def test_a_capability_alone_proves_nothing(host: FakeSysfs, function: Function) -> None:
    host.add(function)
    kind = str(DiscoveredPools.on(host.root).attributes(WHOLE)["kind"])
    whole, vfs = states(host)
    text = f"withheld: nothing shows that the driver {function.native} of {PF} can make VFs; "
    advice = f"if it can, allow it with --creatable-vfs {kind}, or make them"
    assert (whole, vfs) == (None, {text + advice})
    assert states(host, creatable_vfs=frozenset({kind})) == (None, {None})
    assert states(host, creatable_vfs=ALL - {kind}) == (whole, vfs)


@pytest.mark.parametrize(
    "function", [CONNECTX, QAT, card(0x1002, 0x74A1, 0x120000, "gim")], ids=["ConnectX", "QAT", "GIM"]
)
def test_drivers_that_make_them(host: FakeSysfs, function: Function) -> None:
    host.add(function)
    assert states(host) == (None, {None})


@pytest.mark.parametrize(
    ("driver", "proof", "content"),
    [
        ("i915", "{pf}/drm/card1/prelim_iov/pf/auto_provisioning", "1"),
        ("i915", "{pf}/drm/card1/iov/pf/gt/exec_quantum_ms", "0"),
        ("i915", "module/i915/parameters/max_vfs", "7"),
        ("xe", "{pf}/sriov_admin/pf/profile/exec_quantum_ms", "0"),
        ("xe", "module/xe/parameters/max_vfs", "4294967295"),
    ],
)
def test_intel_gpus_whose_driver_shares_them(host: FakeSysfs, driver: str, proof: str, content: str) -> None:
    host.add(card(0x8086, 0x56C0, 0x038000, driver, drm="card1"))
    host.write(proof.format(pf=host.path(PF)), content)
    assert states(host) == (None, {None})


def test_intel_gpus_whose_driver_parameter_forbids_vfs(host: FakeSysfs) -> None:
    host.add(BATTLEMAGE)
    host.write("module/xe/parameters/max_vfs", "0")
    assert None not in states(host)[1]


class TestRefused:
    """What the kernel did not make is not offered again until something is different."""

    REFUSAL = VfRefusal("mlx5_core", 4, "there is no room for them")

    def refused(self, host: FakeSysfs, **settings: Any) -> set[str | None]:
        return states(host, refused_vfs={WHOLE: self.REFUSAL}, **settings)[1]

    def test_the_vfs_are_withheld_and_the_card_is_not(self, host: FakeSysfs) -> None:
        host.add(CONNECTX)
        assert states(host, refused_vfs={WHOLE: self.REFUSAL}) == (None, {"withheld: there is no room for them"})

    def test_fewer_are_worth_a_try(self, host: FakeSysfs) -> None:
        host.add(CONNECTX)
        assert self.refused(host, max_vfs=3) == {None}
        assert self.refused(host, max_vfs=4) == {"withheld: there is no room for them"}

    def test_another_driver_is_worth_a_try(self, host: FakeSysfs) -> None:
        host.add(card(0x15B3, 0x101D, 0x020000, "ice"))
        assert self.refused(host) == {None}

    def test_vfs_that_exist_are_offered(self, host: FakeSysfs) -> None:
        host.add(card(0x15B3, 0x101D, 0x020000, "mlx5_core", vfs=2))
        assert self.refused(host) == {None}


class TestBootDisplay:
    """A GPU that the host shows its console on can have VFs: its driver stays."""

    def test_vfs_that_exist_are_offered_and_the_gpu_is_not(self, host: FakeSysfs) -> None:
        host.add(pci_cards.intel_gpu("0000:00:02.0", boot_vga=True, vfs=7))
        seen = DiscoveredPools.on(host.root)
        assert {seen.unavailable(vf) for vf in seen.names(function="vf")} == {None}
        assert "reserved: boot VGA" in str(seen.unavailable("0000-00-02-0"))

    def test_vfs_that_do_not_exist_need_a_proof(self, host: FakeSysfs) -> None:
        host.add(pci_cards.intel_gpu("0000:00:02.0", boot_vga=True))
        seen = DiscoveredPools.on(host.root)
        assert None not in {seen.unavailable(vf) for vf in seen.names(function="vf")}
        host.write("module/i915/parameters/max_vfs", "7")
        seen = DiscoveredPools.on(host.root)
        assert {seen.unavailable(vf) for vf in seen.names(function="vf")} == {None}

    def test_vfs_of_a_disk_that_the_host_needs_are_not_offered(self, host: FakeSysfs) -> None:
        host.add(card(0x144D, 0xA824, 0x010802, "nvme", nvme="nvme0", vfs=2))
        host.proc("mounts", "/dev/nvme0n1p1 / ext4 rw 0 0\n")
        host.write(f"{host.path(PF)}/nvme/nvme0/nvme0n1/dev", "259:0")
        host.write(f"{host.path(PF)}/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1")
        assert None not in states(host)[1]
