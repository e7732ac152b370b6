"""The inventory and the bindings say the same of every device: what is offered can be had, what is not cannot.

They ask by different ways: discovery reads the whole host, a binding one card.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from devalloc.api.fields import is_label
from devalloc.device_kinds import ALLOWABLE, read_added_kinds
from devalloc.inventory.locate import DeviceGone, DeviceUnknown, locate
from devalloc.inventory.sysfs import Tree
from devalloc_node.errors import NodeError
from tests.support import pci_cards
from tests.support.binding_runner import NODE, BindingRunner, pool_of
from tests.support.discovery_view import DiscoveredPools
from tests.support.fake_host import FakeHost
from tests.support.pci_cards import Function, Sriov

EVERYTHING = {"allowed": ALLOWABLE, "erase_policy": True}


def idle(host: FakeHost) -> None:
    """A server with a card of every kind, all of it free."""
    few = Sriov(2, 4, 1, vf_device=0x25B6, vf_driver="nvidia")
    for card in (
        pci_cards.gpu(iommu_group=7),
        pci_cards.gpu_audio(iommu_group=7),
        pci_cards.amd_gpu(sriov=Sriov(2, offset=16, stride=1, vf_device=0x7410, vf_driver="amdgpu")),
        pci_cards.intel_gpu(sriov=Sriov(2, offset=1, stride=1, vf_device=0xA780, vf_driver="i915")),
        pci_cards.intel_gpu(
            "0000:0e:00.0", drm="card5", sriov=None, vgpu=pci_cards.Vgpu("mdev", 512, pci_cards.GVT_TYPES)
        ),
        pci_cards.nic(vfs=2),
        pci_cards.connectx(sriov=Sriov(2, offset=2, vf_device=0x101E, vf_driver="mlx5_core")),
        pci_cards.connectx("0000:61:00.1", netdev="ens1f1np1", infiniband="mlx5_1", sriov=Sriov(2, offset=17)),
        pci_cards.plain_nic(),
        pci_cards.nvme(),
        pci_cards.accelerator("10000:71:00.0"),
        pci_cards.bmc_vga(),
        pci_cards.a2_vgpu_card(sriov=few, vfs=2, vgpu=pci_cards.Vgpu("mdev", 16384, pci_cards.A2_TYPES[2:5])),
        pci_cards.l40s_vgpu_card(sriov=few, vfs=2, vgpu=pci_cards.Vgpu("vfio", 49152, pci_cards.L40S_TYPES[:3])),
        pci_cards.t4_vgpu_card(vgpu=pci_cards.Vgpu("mdev", 16384, pci_cards.T4_TYPES[4:6])),
    ):
        host.add(card)


def busy(host: FakeHost) -> None:
    """The same, and the host needs some of it, and others use some."""
    idle(host)
    host.default_route("eth0")
    host.enslave("ens1f1np1")
    host.mount("nvme0n1")
    host.write(f"{host.path('0000:00:02.0')}/boot_vga", "1")
    host.vgpu.create("0000:08:00.4", "nvidia-746", "6d2f8f4e-0000-4000-8000-000000000001")
    host.vgpu.set_type("0000:26:00.5", "1146")
    host.process(812, "python3", opens=("/dev/dri/card0",))
    host.set_numvfs("0000:03:00.0", 2)
    host.add(pci_cards.gpu("0000:0a:00.0", iommu_group=40, drm="card7"))
    host.add(pci_cards.accelerator("0000:0b:00.0", iommu_group=40))
    host.add(pci_cards.gpu("0000:0c:00.0", iommu_group=None, drm="card8"))


@pytest.mark.parametrize("server", [idle, busy])
def test_exactly_offered_devices_can_be_prepared(host: FakeHost, server: object) -> None:
    assert callable(server)
    server(host)
    discovered = DiscoveredPools.on(host.root, NODE, erase_policy=True)
    assert len(discovered.devices) > 40
    before = host.snapshot()
    for device, pool in discovered.homes.items():
        assert is_label(device), "files and slices cannot name it"
        offered = discovered.unavailable(device) is None
        refused = attempt(host, device, pool.metadata.name)
        # What others created is in use, and adopted on request only (T8); one more of it is made elsewhere (T2).
        in_use = discovered.unavailable(device) == "in use: a vGPU that no claim holds"
        foreign = in_use and not device.startswith("mdev-")
        assert offered or foreign or refused, f"{discovered.unavailable(device)}, but {device} can be had"
        assert not (offered and refused), f"{device} is offered, but {refused}"
    assert host.snapshot() == before


def attempt(host: FakeHost, device: str, pool: str) -> str | None:
    """Prepare a device and take it back; why it was refused, if it was."""
    hand = BindingRunner.on(host, **EVERYTHING)
    try:
        hand.prepare(device, pool)
    except NodeError as error:
        return f"{error.code}: {error}"
    hand.unprepare(device)
    return None


def test_no_device_is_found_in_another_cards_pool(host: FakeHost) -> None:
    idle(host)
    discovered = DiscoveredPools.on(host.root, NODE)
    pools = [pool.metadata.name for pool in discovered.pools]
    for device, home in discovered.homes.items():
        for pool in pools:
            if pool != home.metadata.name:
                with pytest.raises((DeviceUnknown, DeviceGone)):
                    locate(Tree(host.root), NODE, pool, device)


def without_rights(host: FakeHost) -> None:
    for descriptor in (host.root / "proc/1/fd").iterdir():
        descriptor.unlink()


GPU, NIC, DISK = "0000-01-00-0", "0000-61-00-0", "0000-42-00-0"
BLIND: dict[str, tuple[Callable[[FakeHost], None], tuple[str, ...], str]] = {
    "only its own container's processes": (
        FakeHost.blind,
        (GPU, NIC, DISK),
        "run it with the host's process namespace",
    ),
    "no process 1": (lambda host: host.end_process(1), (GPU, NIC, DISK), "hidepid"),
    "no descriptors of others": (without_rights, (GPU, NIC, DISK), "requires CAP_SYS_PTRACE"),
    "no routes": (lambda host: (host.root / "proc/net/route").unlink(), (NIC,), "/proc/net/route not found"),
    "no mounts": (lambda host: (host.root / "proc/mounts").unlink(), (DISK,), "/proc/mounts not found"),
}


@pytest.mark.parametrize(("change", "devices", "reason"), BLIND.values(), ids=BLIND)
def test_what_cannot_be_seen_withholds_what_it_concerns(
    host: FakeHost, change: Callable[[FakeHost], None], devices: tuple[str, ...], reason: str
) -> None:
    """Instead of offering devices whose claims are refused for ever."""
    for card in (pci_cards.gpu(), pci_cards.connectx(), pci_cards.nvme()):
        host.add(card)
    change(host)
    pools = DiscoveredPools.on(host.root, NODE, erase_policy=True)
    withheld = {device for device in (GPU, NIC, DISK) if reason in str(pools.unavailable(device))}
    refused = {device for device in (GPU, NIC, DISK) if reason in str(attempt(host, device, pool_of(device)))}
    assert withheld == refused == set(devices)
    assert all(str(pools.unavailable(device)).startswith("withheld: it cannot be seen who uses") for device in devices)
    assert all(pools.unavailable(device) is None for device in {GPU, NIC, DISK} - set(devices))


DMA = Function("0000:6a:01.0", 0x8086, 0x2021, 0x088000, native="ioatdma")


def packet_socket(host: FakeHost, protocol: str = "88f7") -> None:
    host.add(pci_cards.connectx())
    host.write(f"{host.path('0000:61:00.0')}/net/ens1f0np0/ifindex", "7\n")
    row = f"ffff8f5d4b3f2000 3      3    {protocol}   7     1 0      0      31337\n"
    host.proc("net/packet", f"sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n{row}")


def dma_channel(host: FakeHost) -> None:
    host.add(DMA)
    folder = f"{host.path(DMA.address)}/dma/dma0chan0"
    host.write(f"{folder}/in_use", "1\n")
    host.link(f"{folder}/subsystem", "class/dma")


def network_without_addresses(host: FakeHost, kind: int = 280, flags: str = "0x40081") -> None:
    host.add(pci_cards.connectx())
    for name, text in {"type": str(kind), "flags": flags}.items():
        host.write(f"{host.path('0000:61:00.0')}/net/ens1f0np0/{name}", f"{text}\n")


def packet_handler(host: FakeHost, row: str = "88ca ens1f0np0 tipc_l2_rcv_msg [tipc]") -> None:
    host.add(pci_cards.connectx())
    of_all = "0800          ip_rcv\n88f7          other_rcv [other]\n"
    host.proc("net/ptype", f"Type Device      Function\n{of_all}{row}\n")


def work_queue(host: FakeHost, **changes: str) -> None:
    host.add(replace(DMA, device=0x0CFE, native="idxd"))
    folder = f"{host.path(DMA.address)}/iax1/wq1.0"
    files = {"type": "kernel", "state": "enabled", "driver_name": "crypto", "clients": "0"} | changes
    for name, text in files.items():
        host.write(f"{folder}/{name}", f"{text}\n")
    host.link(f"{folder}/subsystem", "bus/dsa")


def used_work_queue(host: FakeHost) -> None:
    work_queue(host, driver_name="dmaengine", clients="2")


def display_of_nvidia(host: FakeHost, *nodes: str) -> None:
    for number, address in enumerate(("0000:01:00.0", "0000:02:00.0")):
        host.add(pci_cards.gpu(address, drm=f"card{number}"))
        host.proc(f"driver/nvidia/gpus/{address}/information", f"Device Minor: {number}\n")
    host.process(900, "kwin_wayland", ("/dev/nvidia-modeset", *nodes))


def nameless_gpu(host: FakeHost) -> None:
    host.add(pci_cards.gpu())
    host.proc("driver/nvidia/gpus/0000:01:00.0/information", "Model: Unknown\n")


USED: dict[str, tuple[Callable[[FakeHost], None], str, str]] = {
    "packet socket": (packet_socket, NIC, "a program speaks a link protocol on ens1f0np0"),
    "channel of a DMA engine": (dma_channel, "0000-6a-01-0", "the kernel uses its DMA channel dma0chan0"),
    "CAN, which has no addresses": (network_without_addresses, NIC, "carries CAN on ens1f0np0"),
    "TIPC": (packet_handler, NIC, r"the kernel speaks a link protocol on ens1f0np0 \(tipc_l2_rcv_msg\)"),
    "work queue of zswap": (work_queue, "0000-6a-01-0", "the kernel uses its work queue wq1.0"),
    "work queue with users": (used_work_queue, "0000-6a-01-0", "the kernel uses its work queue wq1.0"),
    "display of NVIDIA's driver": (display_of_nvidia, GPU, "in use: kwin_wayland 900"),
    "NVIDIA's driver names no node": (nameless_gpu, GPU, "does not name its device node"),
}


@pytest.mark.parametrize("protocol", ["0003", "0800", "88cc"])
def test_daemons_that_listen_on_every_interface_keep_none(host: FakeHost, protocol: str) -> None:
    """lldpd (all protocols), DHCP clients and the LLDP of systemd-networkd."""
    packet_socket(host, protocol)
    assert DiscoveredPools.on(host.root, NODE).unavailable(NIC) is None


@pytest.mark.parametrize(("use", "device", "reason"), USED.values(), ids=USED)
def test_a_use_that_no_open_node_shows_keeps_the_device(
    host: FakeHost, use: Callable[[FakeHost], None], device: str, reason: str
) -> None:
    use(host)
    kinds = read_added_kinds(["dma=0880"])
    assert re.search(reason, str(DiscoveredPools.on(host.root, NODE, device_kinds=kinds).unavailable(device)))
    hand = BindingRunner.on(host, allowed=frozenset({*ALLOWABLE, "dma"}), device_kinds=kinds)
    with pytest.raises(NodeError, match=reason):
        hand.prepare(device)


UNUSED: dict[str, Callable[[FakeHost], None]] = {
    "a CAN interface that is down": lambda host: network_without_addresses(host, flags="0x40080"),
    "a program that listens": lambda host: packet_handler(host, "ALL  ens1f0np0 packet_rcv [af_packet]"),
    "a program that listens with a ring": lambda host: packet_handler(host, "0003 ens1f0np0 tpacket_rcv"),
    "a work queue that waits for programs": lambda host: work_queue(host, type="user", driver_name="user"),
    "a work queue that is switched off": lambda host: work_queue(host, state="disabled"),
}


@pytest.mark.parametrize("set_up", UNUSED.values(), ids=UNUSED)
def test_what_only_looks_like_a_use_keeps_no_device(host: FakeHost, set_up: Callable[[FakeHost], None]) -> None:
    set_up(host)
    pools = DiscoveredPools.on(host.root, NODE, device_kinds=read_added_kinds(["dma=0880"]))
    (device,) = pools.names(function="whole")
    assert pools.unavailable(device) is None


@pytest.mark.parametrize("node", ["/dev/nvidia1", "/dev/dri/card1"])
def test_a_display_that_has_a_gpu_open_keeps_only_that_one(host: FakeHost, node: str) -> None:
    display_of_nvidia(host, node)
    pools = DiscoveredPools.on(host.root, NODE)
    assert (pools.unavailable(GPU), pools.unavailable("0000-02-00-0")) == (None, "in use: kwin_wayland 900")
    hand = BindingRunner.on(host)
    assert hand.prepare(GPU).functions == ("0000:01:00.0",)
    with pytest.raises(NodeError, match="is in use: kwin_wayland 900"):
        hand.prepare("0000-02-00-0")


APU = (
    Function("0000:c3:00.0", 0x1002, 0x1586, 0x038000, native="amdgpu", drm="card1"),
    Function("0000:c3:00.1", 0x1002, 0x1640, 0x040300, native="snd_hda_intel"),
    Function("0000:c3:00.2", 0x1022, 0x17E0, 0x108000, native="ccp"),
    Function("0000:c3:00.4", 0x1022, 0x158B, 0x0C0330, native="xhci_hcd"),
)


def test_parts_of_a_processor_beside_its_gpu_stay_with_the_host(host: FakeHost) -> None:
    """Its PSP and its USB controllers have groups of their own, and another vendor."""
    for function in APU:
        host.add(function)
    assert DiscoveredPools.on(host.root, NODE).unavailable("0000-c3-00-0") is None
    assert BindingRunner.on(host).prepare("0000-c3-00-0").functions == ("0000:c3:00.0", "0000:c3:00.1")
    assert [host.driver_of(function.address) for function in APU[2:]] == ["ccp", "xhci_hcd"]


def test_parts_of_a_processor_go_along_if_the_iommu_cannot_keep_them_apart(host: FakeHost) -> None:
    for function in APU:
        host.add(replace(function, iommu_group=9))
    assert BindingRunner.on(host).prepare("0000-c3-00-0").functions == tuple(each.address for each in APU)


def test_a_gpu_that_can_be_reset_only_with_other_parts_of_the_processor_has_no_reset(host: FakeHost) -> None:
    for function in APU:
        host.add(replace(function, files={"reset_method": "bus" if function == APU[0] else ""}))
    assert str(DiscoveredPools.on(host.root, NODE).unavailable("0000-c3-00-0")).startswith("no reset:")
    with pytest.raises(NodeError, match="so the next owner would get it as the last one left it"):
        BindingRunner.on(host).prepare("0000-c3-00-0")
