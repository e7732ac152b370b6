"""The fake host behind the plugin's boundary: what processes hold is not let go, and it outlives its callers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Unknown
from tests.support import pci_cards
from tests.support.deadlines import soon
from tests.support.fake_host import FRESH, FakeHost, LocalHost, RemoteHost, serving

PF = "0000:41:00.0"
GPU = "0000:01:00.0"
UNBIND = "bus/pci/drivers/vfio-pci/unbind"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def on_vfio(host: FakeHost) -> str:
    """A GPU on vfio-pci; its device node."""
    host.add(pci_cards.gpu(driver=None))
    host.set_override(GPU, "vfio-pci")
    host.probe(GPU)
    return f"/dev/vfio/{host.functions[GPU].group}"


def test_unbinding_what_a_process_holds_waits_for_it(host: FakeHost) -> None:
    node = on_vfio(host)
    host.process(4711, opens=(node,))
    writer = threading.Thread(target=LocalHost(host).write, args=(UNBIND, GPU, Deadline.after(60)))
    writer.start()
    writer.join(0.05)
    assert (writer.is_alive(), host.driver_of(GPU)) == (True, "vfio-pci")
    host.end_process(4711)
    writer.join()
    assert host.driver_of(GPU) is None


def test_a_write_that_was_given_up_still_happens_when_the_process_ends(host: FakeHost) -> None:
    host.process(4711, opens=(on_vfio(host),))
    with pytest.raises(Unknown):
        LocalHost(host).write(UNBIND, GPU, Deadline.after(0))
    assert host.driver_of(GPU) == "vfio-pci"
    host.end_process(4711)
    assert host.driver_of(GPU) is None


def test_settings_of_vfs_last_as_long_as_the_vfs(host: FakeHost) -> None:
    host.add(pci_cards.nic(PF, vfs=2))
    LocalHost(host).set_vf("eth0", 1, {"mac": "52:54:00:00:00:01", "vlan": 7})
    assert LocalHost(host).vf_settings("eth0", 1) == FRESH | {"mac": "52:54:00:00:00:01", "vlan": 7}
    assert LocalHost(host).vf_settings("eth0", 0) == FRESH
    host.set_numvfs(PF, 0)
    host.set_numvfs(PF, 2)
    assert LocalHost(host).vf_settings("eth0", 1) == FRESH


@pytest.mark.parametrize(
    ("index", "settings"),
    [
        (2, {"vlan": 1}),  # there are two
        (0, {"mac": "01:00:00:00:00:00"}),  # of a group
        (0, {"maxTxRate": 2000}),  # of 1000
    ],
)
def test_settings_that_kernels_refuse(host: FakeHost, index: int, settings: dict[str, object]) -> None:
    host.add(pci_cards.nic(PF, vfs=2))
    with pytest.raises(OSError, match="Invalid"):
        LocalHost(host).set_vf("eth0", index, settings)


def test_a_host_that_is_put_back_equals_itself(host: FakeHost) -> None:
    host.add(pci_cards.nic(PF))
    host.add(pci_cards.a2_vgpu_card(vfs=2))
    before = host.snapshot()
    host.set_numvfs(PF, 3)
    vgpu = "6d2f8f4e-0000-4000-8000-000000000001"
    host.vgpu.create("0000:08:00.4", "nvidia-746", vgpu)
    LocalHost(host).put_file(f"{host.root}/files/claims/a/b.json", b"{}")
    assert host.snapshot() != before
    LocalHost(host).remove_file(f"{host.root}/files/claims/a/b.json")
    host.vgpu.remove(vgpu)
    host.set_numvfs(PF, 0)
    assert host.snapshot() == before


def test_it_serves_other_processes_and_survives_them(host: FakeHost) -> None:
    host.add(pci_cards.nic(PF))
    with serving(host) as address:

        def child() -> None:
            there = RemoteHost(host.root, address)
            there.write(f"bus/pci/devices/{PF}/sriov_numvfs", "2", soon())
            there.set_vf("eth0", 0, {"vlan": 9})
            with pytest.raises(OSError, match="busy"):
                there.write(f"bus/pci/devices/{PF}/sriov_numvfs", "5", soon())
            os.kill(os.getpid(), signal.SIGKILL)

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert RemoteHost(host.root, address).vf_settings("eth0", 0)["vlan"] == 9
        assert len(host.functions[PF].vfs) == 2
