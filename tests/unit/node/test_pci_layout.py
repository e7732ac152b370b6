"""Where the PCI devices of a machine lie: buses of NUMA nodes, their ports and windows; which port a device gets."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devalloc.inventory.pci import NO_BARS, BarSizes
from devalloc_machines.qemu import hotplug, pci, pci_layout
from devalloc_machines.qemu.command_line import StartContext, qemu_arguments
from devalloc_machines.qemu.hotplug import SlotNeeds
from devalloc_machines.qemu.pci import port_reserves, uefi_aperture
from devalloc_machines.qemu.qmp import QmpMonitor
from devalloc_machines.qemu.records import MachineRecord, content_of, record_of
from devalloc_machines.qemu.spec import MIB, AmountBounds, Disk, MachineSpec, Nic, NumaCell
from devalloc_node.errors import Denied, Unknown
from tests.support.deadlines import deadline_after, soon
from tests.support.fake_qmp import FakeQemu
from tests.support.machines import virtual_machine
from tests.support.node_errors import raises

GIB = 1 << 30
KEY = "default/m"


def spec_on(nodes: int, **more: Any) -> MachineSpec:
    """A machine on so many NUMA nodes of its host, from the last one on."""
    cells = tuple(NumaCell(node, 1000, GIB) for node in reversed(range(nodes)))
    cpus, memory = AmountBounds(1000 * nodes, 2000 * nodes, 1000 * nodes), AmountBounds(GIB, 2 * GIB, GIB)
    made = MachineSpec("default", "m", "uid", cpus, memory, kernel="/k", pci_slots=4, numa_cells=cells)
    return replace(made, **more)


def devices_of(spec: MachineSpec, node_ports: int) -> list[dict[str, Any]]:
    words = qemu_arguments(spec, StartContext("qemu", "tcg", "uuid", node_ports=node_ports))
    return [json.loads(word) for before, word in pairwise(words) if before == "-device"]


def test_each_guest_node_has_a_bus_with_as_many_ports_as_the_machine_has_slots() -> None:
    spec = spec_on(2)
    ports = pci_layout.ports_per_node(spec)
    assert ports == 4
    devices = {device["id"]: device for device in devices_of(spec, ports)}
    buses = {name: device for name, device in devices.items() if device["driver"] == "pxb-pcie"}
    assert {name: (bus["bus"], bus["numa_node"]) for name, bus in buses.items()} == {
        "node0": ("pcie.0", 0),
        "node1": ("pcie.0", 1),
    }
    on = Counter(device["bus"] for device in devices.values() if device["driver"] == "pcie-root-port")
    assert on == {"pcie.0": 4, "node0": 4, "node1": 4}
    assert devices["node1-port3"]["addr"] == "0x03"


def test_one_guest_node_or_no_slots_and_machines_of_earlier_versions_have_no_such_buses() -> None:
    assert pci_layout.ports_per_node(spec_on(0)) == pci_layout.ports_per_node(spec_on(2, pci_slots=0)) == 0
    assert pci_layout.ports_per_node(spec_on(16, pci_slots=64)) == 9, "as the guide says"
    drivers = Counter(device["driver"] for device in devices_of(spec_on(2), 0))
    assert (drivers["pxb-pcie"], drivers["pcie-root-port"]) == (0, 4)


@given(
    nodes=st.integers(0, 40),
    slots=st.integers(0, 64),
    disks=st.integers(0, 16),
    nics=st.integers(0, 8),
    dimms=st.booleans(),
)
def test_nothing_of_a_machine_has_the_place_of_another_and_each_bus_has_numbers_for_its_ports(
    nodes: int, slots: int, disks: int, nics: int, dimms: bool
) -> None:
    nodes = 0 if nodes == 1 else nodes
    memory = AmountBounds(40 * GIB, 80 * GIB, 40 * GIB)
    more = {"memory": memory, "dimm_bytes": GIB if dimms else None, "pci_slots": slots}
    spec = spec_on(nodes, disks=(Disk("/d", "raw"),) * disks, nics=(Nic(),) * nics, **more)
    if not nodes:
        spec = replace(spec, cpus=AmountBounds(1000, 1000, 1000))
    ports = pci_layout.ports_per_node(spec)
    devices = [device for device in devices_of(spec, ports) if "addr" in device]
    places = {(device["bus"], *_place(device["addr"])): device for device in devices}
    assert len(places) == len(devices)
    assert all(1 <= slot <= 30 for bus, slot, _ in places if bus == "pcie.0")
    for bus, slot, function in places:  # a guest looks at other functions only if the first one says that there are any
        assert not function or places[bus, slot, 0]["multifunction"]
    root_ports = [device for device in devices if device["driver"] == "pcie-root-port"]
    assert len({port["chassis"] for port in root_ports}) == len(root_ports)
    assert all(0 < port["chassis"] < 256 for port in root_ports)
    first = {"pcie.0": 0, **{each["id"]: each["bus_nr"] for each in devices if each["driver"] == "pxb-pcie"}}
    needed = {bus: 1 + sum(port["bus"] == bus for port in root_ports) for bus in first}
    in_order = sorted(first, key=lambda bus: first[bus])
    ends = [*(first[bus] for bus in in_order[1:]), 256]
    assert all(first[bus] + needed[bus] <= end for bus, end in zip(in_order, ends, strict=True))


def _place(addr: str) -> tuple[int, int]:
    slot, _, function = addr.partition(".")
    return int(slot, 16), int(function or "0")


def test_devices_share_numbers_on_the_root_bus_only_where_there_are_too_few() -> None:
    disks = (Disk("/d", "raw"),) * 16
    few = devices_of(replace(spec_on(0), cpus=AmountBounds(1000, 1000, 1000), disks=disks), 0)
    assert [device["addr"] for device in few if device["driver"] == "virtio-blk-pci"] == [
        f"{number:#04x}" for number in range(2, 18)
    ], "after the memory device, each with a number of its own, as ever"
    many = spec_on(8, disks=disks, nics=(Nic(),) * 8)
    shared = devices_of(many, pci_layout.ports_per_node(many))
    assert [device["addr"] for device in shared if device["driver"] == "virtio-mem-pci"] == [
        f"0x01.{function}" for function in range(8)
    ]
    with pytest.raises(Denied, match=r"252 disks, .* 4 PCI slots and 2 NUMA nodes: that is 34 devices .* room for 30"):
        devices_of(spec_on(2, disks=(Disk("/d", "raw"),) * 250), 4)


GPU = BarSizes(16 * GIB, 17 * MIB)


def reserves_of(spec: MachineSpec, devices: BarSizes, bits: int | None) -> dict[str, tuple[bool, bool]]:
    """Which ports have a window above and below 4 GiB."""
    ports = pci_layout.ports_per_node(spec)
    reserves = port_reserves(spec, devices, bits, ports)
    places = pci_layout.port_places(spec, ports)
    pairs = zip(places, reserves, strict=True)
    return {port.id: (bool(reserve.prefetchable), bool(reserve.memory)) for port, reserve in pairs}


def test_ports_of_numa_nodes_get_scarce_windows_first() -> None:
    assert set(reserves_of(spec_on(2), GPU, 46).values()) == {(True, True)}
    scarce = reserves_of(spec_on(2), BarSizes(128 * GIB, 0), 40)  # three windows of 256 GiB
    assert {name for name, (wide, _) in scarce.items() if wide} == {"node0-port0", "node1-port0", "port0"}
    low = reserves_of(spec_on(2, pci_slots=12), GPU, 46)
    assert sum(below for _, below in low.values()) == 512 // 34
    assert {name for name, (_, below) in low.items() if below} == {
        *(f"node{node}-port{number}" for node in (0, 1) for number in range(5)),
        *(f"port{number}" for number in range(5)),
    }


def test_a_machine_that_fits_without_buses_of_nodes_fits_with_them() -> None:
    spec = spec_on(2, pci_slots=3, pci_window=256 * GIB)
    assert sum(bool(each.prefetchable) for each in port_reserves(spec, NO_BARS, 40, 3)) == 3
    with pytest.raises(Denied, match="3 PCI slots"):
        port_reserves(replace(spec, pci_window=512 * GIB), NO_BARS, 40, 3)


@pytest.mark.parametrize("bits", [40, 42, 46, 52])
@pytest.mark.parametrize("size", [MIB, 256 * MIB, 16 * GIB, 24 * GIB, 256 * GIB])
@pytest.mark.parametrize("devices", [MIB, 16 * GIB])
def test_the_aperture_has_room_for_the_windows_of_each_root_bus_one_after_the_other(
    bits: int, size: int, devices: int
) -> None:
    """By OVMF's own rule: what a root bus needs lies together, at a multiple of its largest window."""
    spec = spec_on(3, firmware="uefi", pci_window=2 * size)
    ports = pci_layout.ports_per_node(spec)
    largest = BarSizes(devices)
    try:
        reserves = port_reserves(spec, largest, bits, ports)
    except Denied:
        assert bits < 46
        return
    aperture = uefi_aperture(spec, reserves, largest, bits, ports) or 32 * GIB
    start = place = -(-16 * GIB // (1 << (aperture.bit_length() - 1))) * (1 << (aperture.bit_length() - 1))
    for bus in ("pcie.0", "node0", "node1", "node2"):
        windows = [
            1 << (max(reserve.prefetchable, 2 * MIB) - 1).bit_length()
            for port, reserve in zip(pci_layout.port_places(spec, ports), reserves, strict=True)
            if port.bus == bus
        ]
        place = -(-place // max(windows)) * max(windows) + sum(windows) + (1 << 20)  # and something small
    assert place <= start + aperture <= 1 << bits


# Which port a device gets.


@pytest.fixture
def on_two_nodes(qemu: FakeQemu) -> FakeQemu:
    qemu.expanders = {"node0": 0, "node1": 1}
    qemu.ports = ["port0", "port1", *(f"node{node}-port{number}" for node in (0, 1) for number in (0, 1))]
    return qemu


def plug(line: QmpMonitor, name: str, **needs: Any) -> str:
    return hotplug.plug_device(line, KEY, pci.PciDevice(name, ({"driver": "x"},)), soon(), SlotNeeds(**needs))


def test_a_device_goes_to_the_bus_of_its_node_and_one_of_no_node_to_the_root_bus(
    on_two_nodes: FakeQemu, line: QmpMonitor
) -> None:
    assert [plug(line, f"a{number}", node=1) for number in (0, 1)] == ["node1-port0", "node1-port1"]
    assert plug(line, "b", node=0) == "node0-port0"
    assert plug(line, "c") == "port0"
    assert plug(line, "d", size=None) == "port1", "also one of unknown size"
    nodes = {port.name: port.node for port in pci.list_root_ports(line, soon())}
    assert nodes == {
        "port0": None, "port1": None, "node0-port0": 0, "node0-port1": 0, "node1-port0": 1, "node1-port1": 1,
    }  # fmt: skip


def test_a_machine_that_runs_without_such_buses_gets_its_devices_as_ever(
    qemu: FakeQemu, line: QmpMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert [plug(line, "a", node=1), plug(line, "b", node=0)] == ["port0", "port1"]
    assert caplog.text == ""
    content = content_of(MachineRecord(virtual_machine("m").to_manifest(), "running", "run", node_ports=4))
    assert record_of(KEY, content).node_ports == 4
    del content["node_ports"]
    assert record_of(KEY, content).node_ports == 0


def test_a_machine_gets_as_many_devices_as_it_has_slots_wherever_its_ports_are(
    on_two_nodes: FakeQemu, line: QmpMonitor
) -> None:
    spec = spec_on(2, pci_slots=2)

    def free() -> list[int]:
        ports = pci.list_root_ports(line, soon())
        return [hotplug.free_slots(ports, each) for each in (spec, replace(spec, numa_cells=(), pci_slots=0))]

    assert free() == [2, 6], "the second one was adopted, and has the ports that it has"
    plug(line, "a", node=0)
    assert free() == [1, 5]
    plug(line, "b", node=0)
    assert free() == [0, 4]


def test_a_card_with_prefetchable_memory_of_32_bits_starts_only_in_a_slot_without_a_window_of_64_bits(
    qemu: FakeQemu, line: QmpMonitor
) -> None:
    qemu.ports, qemu.windows = ["port0", "port1"], {"port0": 64 * GIB}
    old = BarSizes(0, 16 * MIB, 16 * MIB)
    assert plug(line, "a", size=old, is_cold=True) == "port1"
    with raises(Denied, "NoPciWindow", match=r"prefetchable memory of 32 bits.*pciWindow to 1Mi"):
        plug(line, "b", size=old, is_cold=True)
    assert plug(line, "b", size=old) == "port0", "a guest that runs puts it elsewhere"


def test_a_small_device_leaves_the_last_slot_without_a_window_to_such_a_card(qemu: FakeQemu, line: QmpMonitor) -> None:
    """Whatever the order of a machine's claims."""
    qemu.ports, qemu.windows = ["port0", "port1", "port2"], {"port0": 64 * GIB, "port1": 64 * GIB}
    old, small = BarSizes(0, 16 * MIB, 16 * MIB), BarSizes(16384, 0)
    assert plug(line, "nic", size=small, is_cold=True, spares_plain=True) == "port0"
    assert plug(line, "old", size=old, is_cold=True, spares_plain=True) == "port2"
    assert plug(line, "nic2", size=small, is_cold=True, spares_plain=True) == "port1"


def test_the_last_free_slot_is_for_any_device(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.ports, qemu.windows = ["port0"], {}
    assert plug(line, "nic", size=BarSizes(16384, 0), is_cold=True, spares_plain=True) == "port0"


def test_a_device_whose_node_has_no_slot_for_it_goes_elsewhere_and_the_log_says_why(
    on_two_nodes: FakeQemu, line: QmpMonitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    on_two_nodes.windows = {"port1": 64 * GIB, "node0-port0": 64 * GIB}
    large = {"size": BarSizes(16 * GIB), "node": 1}
    assert plug(line, "a", **large) == "port1"
    assert "a is on NUMA node 1 of the guest, but goes into port1, which is on the root bus" in caplog.text
    assert plug(line, "b", **large) == "node0-port0"
    assert "goes into node0-port0, which is on node 0: no free slot" in caplog.text
    assert plug(line, "c", node=1) == "node1-port0", "a small one needs no window"
    assert plug(line, "d", **large) == "node1-port1", "with no window at all, it is refused or not by the guest"
    caplog.clear()
    assert plug(line, "e", node=0) == "node0-port1"
    assert caplog.text == ""


def test_before_the_firmware_runs_a_device_needs_no_window_below_4_gib(
    on_two_nodes: FakeQemu, line: QmpMonitor
) -> None:
    size = BarSizes(0, 17 * MIB)
    assert plug(line, "a", size=size, node=1, is_cold=True) == "node1-port0"
    assert plug(line, "b", size=BarSizes(16 * GIB), node=1, is_cold=True) == "node1-port1", "as none has a window"


class Reset:
    """A monitor that counts resets, and reports them or not."""

    def __init__(self, line: QmpMonitor, *, reports: bool = True) -> None:
        self._line, self._reports, self.resets = line, reports, 0

    def execute(self, command: str, arguments: Any = None, **more: Any) -> Any:
        if command == "system_reset":
            self.resets += 1
            return {}
        return self._line.execute(command, arguments, **more)

    def expect(self, *names: str) -> Any:
        assert names == ("RESET",)
        assert not self.resets, "its event could come before anyone listens"
        return self

    def __enter__(self) -> Reset:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def next(self, deadline: Any) -> Any:
        return {"event": "RESET"} if self._reports else None


def test_only_devices_on_buses_of_nodes_make_the_machine_be_reset_before_it_begins(
    on_two_nodes: FakeQemu, line: QmpMonitor
) -> None:
    monitor: Any = Reset(line)
    plug(line, "a")
    hotplug.power_slots(monitor, KEY, soon())
    assert monitor.resets == 0
    plug(line, "b", node=1)
    hotplug.power_slots(monitor, KEY, soon())
    assert monitor.resets == 1
    silent: Any = Reset(line, reports=False)
    with pytest.raises(Unknown, match="does not report"):
        hotplug.power_slots(silent, KEY, deadline_after(lambda: silent.resets))
