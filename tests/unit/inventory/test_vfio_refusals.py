"""Devices that no machine can get are published with the reason, and refused before anything of the host changes.

Situations of k8s-device-plugin#2038 and kubevirt-gpu-device-plugin#105 (a GPU off the bus), of
intel-device-plugins-for-kubernetes#517 (models that vfio-pci refuses), sriov-fec-operator#32 (VF tokens), and spdk#480
and #1940 (drives behind VMD)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devalloc_node.errors import NodeError
from tests.support import pci_cards
from tests.support.binding_runner import BindingRunner, pool_of
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.pci_cards import Function, Sriov

QAT = Function(
    "0000:3d:00.0",
    0x8086,
    0x37C8,
    0x0B4000,
    native="c6xx",
    sriov=Sriov(16, offset=8, stride=1, vf_device=0x37C9, vf_driver="c6xxvf"),
)
QAT_VF, NIC_VF, GPU, DRIVE = "0000-3d-01-0", "0000-41-10-0", "0000-01-00-0", "10000-01-00-0"
ALLOWED = frozenset({"gpu", "vf", "storage", "accelerator"})


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def reason(host: FakeHost, device: str, **settings: Any) -> str | None:
    return DiscoveredPools.on(host.root, **settings).unavailable(device)


def refusal(host: FakeHost, device: str, of: str | None = None, **settings: Any) -> NodeError:
    """What the binding says, which leaves the host as it is."""
    before = host.snapshot()
    with pytest.raises(NodeError) as caught:
        BindingRunner.on(host, allowed=ALLOWED, **settings).prepare(device, pool_of(of or device))
    assert host.snapshot() == before
    return caught.value


def set_denylist(host: FakeHost, value: str) -> None:
    host.write("module/vfio_pci/parameters/disable_denylist", f"{value}\n")


def take_from_driver(host: FakeHost, address: str, driver: str | None) -> None:
    """Another driver gets a PF, or none, and its VFs stay."""
    folder = host.path(address)
    (host.sys / folder / "driver").unlink()
    host.functions[address].driver = driver
    if driver is not None:
        host.link(f"{folder}/driver", f"bus/pci/drivers/{driver}")


def test_a_gpu_that_fell_off_the_bus_is_not_offered(host: FakeHost) -> None:
    host.add(pci_cards.gpu())
    assert reason(host, GPU, max_vfs=0) is None
    function = host.functions["0000:01:00.0"]
    host.config(function.path, function.spec, gone=True)
    assert "unhealthy: 0000:01:00.0 does not respond" in str(reason(host, GPU, max_vfs=0))
    assert refusal(host, GPU).code == "DeviceGone"


def test_a_card_that_sleeps_is_not_asked(host: FakeHost) -> None:
    host.add(pci_cards.gpu())
    function = host.functions["0000:01:00.0"]
    host.config(function.path, function.spec, gone=True)  # as it would be read if nothing woke it
    host.write(host.path("0000:01:00.0", "power/runtime_status"), "suspended\n")
    assert reason(host, GPU, max_vfs=0) is None


@pytest.mark.parametrize("vfs", [0, 2])
def test_models_on_the_vfio_denylist_are_withheld_unless_it_is_disabled(host: FakeHost, vfs: int) -> None:
    host.add(Function(**{**QAT.__dict__, "vfs": vfs}))
    assert reason(host, QAT_VF) is None, "a kernel without such a list"
    set_denylist(host, "N")
    assert "vfio-pci may refuse QAT C62x" in str(reason(host, QAT_VF))
    assert "disable_denylist=1" in refusal(host, QAT_VF, of="0000-3d-00-0").message
    assert "vfio-pci may refuse QAT C62x" in str(reason(host, "0000-3d-00-0"))
    set_denylist(host, "Y")
    assert reason(host, QAT_VF) is None


def test_a_whole_card_of_a_model_that_vfio_refuses(host: FakeHost) -> None:
    host.add(QAT)
    set_denylist(host, "N")
    assert refusal(host, "0000-3d-00-0").code == "VfioRefused"


@pytest.mark.parametrize(
    ("driver", "words"), [("vfio-pci", "only to those who know a token"), (None, "has no driver, which its VFs need")]
)
def test_vfs_whose_pf_has_not_its_own_driver_are_withheld(host: FakeHost, driver: str | None, words: str) -> None:
    host.add(pci_cards.nic(vfs=2))
    assert reason(host, NIC_VF) is None
    take_from_driver(host, "0000:41:00.0", driver)
    assert words in str(reason(host, NIC_VF))
    error = refusal(host, NIC_VF, of="0000-41-00-0")
    assert (error.code, error.retryable) == ("DriverMissing", True)
    assert words in error.message


def move_behind_vmd(host: FakeHost) -> None:
    """The drive lies below the function that is the root of its bus."""
    host.add(Function("0000:64:00.5", 0x8086, 0x28C0, 0x010400, native="vmd"))
    old, new = host.sys / host.path("10000:01:00.0"), host.sys / host.path("0000:64:00.5", "pci10000:00/10000:01:00.0")
    new.parent.mkdir()
    shutil.move(old, new)
    link = host.sys / "bus/pci/devices/10000:01:00.0"
    link.unlink()
    link.symlink_to(new)


PLACES: dict[str, tuple[Callable[[FakeHost], None], bool]] = {
    "on a root bus": (lambda host: None, False),
    "behind VMD": (move_behind_vmd, True),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_drive_behind_vmd_cannot_be_passed_through(host: FakeHost, place: str) -> None:
    move, is_refused = PLACES[place]
    host.add(pci_cards.nvme("10000:01:00.0", ports=(), nvme=None, driver=None))
    move(host)
    shown = reason(host, DRIVE, erase_policy=True)
    assert ("behind 0000:64:00.5 (Intel VMD)" in str(shown)) is is_refused
    if is_refused:
        error = refusal(host, DRIVE, erase_policy=True)
        assert error.code == "VfioRefused"
        assert str(shown).endswith("which does its DMA; switch VMD off for its slot in the firmware")
        assert len(str(shown)) <= 120
