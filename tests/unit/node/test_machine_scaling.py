"""Devices, CPUs and memory of a running machine, where the guest obeys, refuses, says nothing, or QEMU hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu import hotplug, memory, pci, vcpu
from devalloc_machines.qemu.qmp import Event, QmpMonitor, QmpRefused
from devalloc_machines.qemu.spec import AmountBounds, MachineSpec, memory_text
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError, Unknown
from devalloc_node.model.step import PreparedDevice
from tests.support.deadlines import deadline_after, soon
from tests.support.fake_qmp import FakeQemu
from tests.support.node_errors import raises
from tests.support.waiting import until

GIB = 1 << 30
MIB = 1 << 20
KEY = "default/m"


def of_dimms(size: int | None) -> MachineSpec:
    """A machine whose memory comes in DIMMs of this size; None: by virtio-mem."""
    cpus, amounts = AmountBounds(1000, 4000, 1000), AmountBounds(512 * MIB, 2 * GIB, GIB)
    return MachineSpec("default", "m", "uid", cpus, amounts, dimm_bytes=size)


def card(name: str = "card", functions: int = 1) -> pci.PciDevice:
    addresses = tuple(f"0000:41:00.{n}" for n in range(functions))
    return pci.passthrough_device(name, PreparedDevice((), "pool", "device", "vfio", addresses))


# Devices.


def test_a_guest_that_is_still_busy_with_the_slot_is_asked_again(qemu: FakeQemu, line: QmpMonitor) -> None:
    hotplug.plug_device(line, KEY, card(), soon())
    qemu.refuses["device_del"] = "Hot-unplug failed: guest is busy (power indicator blinking)"
    with raises(Denied, "GuestRefused", retryable=True, match="did not release"):
        hotplug.unplug_device(line, KEY, "card", soon(0.5))
    timer = threading.Timer(0.4, qemu.refuses.clear)
    timer.start()
    hotplug.unplug_device(line, KEY, "card", soon())
    assert qemu.devices == {}
    qemu.refuses["device_del"] = "Device does not support hot-unplug"
    hotplug.plug_device(line, KEY, card(), soon())
    with pytest.raises(QmpRefused, match="does not support"):
        hotplug.unplug_device(line, KEY, "card", soon())


@pytest.mark.parametrize("state", ["paused", "io-error", "suspended"])
def test_a_guest_whose_cpus_do_not_run_cannot_release_a_device_and_the_message_says_so(
    qemu: FakeQemu, line: QmpMonitor, state: str
) -> None:
    hotplug.plug_device(line, KEY, card(), soon())
    qemu.refuses["device_del"] = "Hot-unplug failed: guest is busy (power indicator blinking)"
    qemu.status = state
    why = rf"because its CPUs do not run \(QEMU reports '{state}'\); let them run, or stop the machine"
    with raises(Denied, "GuestRefused", retryable=True, match=why):
        hotplug.unplug_device(line, KEY, "card", soon(3.0))
    qemu.status = "running"
    with pytest.raises(Denied, match="its CPUs run; has it booted, and has it stopped using the device"):
        hotplug.unplug_device(line, KEY, "card", soon(3.0))


class Flooding:
    """The monitor of a machine whose guest keeps its device, and causes events without end."""

    def execute(self, command: str, arguments: object = None, *, deadline: Deadline, fd: int | None = None) -> Any:
        return [{"name": "card.f0", "type": "child<vfio-pci>"}] if command == "qom-list" else None

    @contextmanager
    def expect(self, *names: str) -> Iterator[Flooding]:
        self.left = 1000
        yield self

    def next(self, deadline: Deadline) -> Event:
        self.left -= 1
        assert self.left, "it goes on for ever"
        return {"event": "DEVICE_DELETED", "data": {"path": "/machine/peripheral/other"}}

    def close(self) -> None:
        pass


def test_events_of_other_devices_do_not_put_the_deadline_off() -> None:
    with raises(Denied, "GuestRefused"):
        hotplug.unplug_device(Flooding(), KEY, "card", Deadline.after(0))


def test_a_device_goes_to_the_first_free_port_and_is_done_when_qemu_shows_it(qemu: FakeQemu, line: QmpMonitor) -> None:
    assert hotplug.plug_device(line, KEY, card("a"), soon()) == "port0"
    assert hotplug.plug_device(line, KEY, card("b"), soon()) == "port1"
    assert qemu.devices["b.f0"]["host"] == "0000:41:00.0"
    assert hotplug.plug_device(line, KEY, card("b"), soon()) == "port1", "again is success, and nothing is done"
    assert len(qemu.commands) == 2


def test_a_card_of_several_functions_is_one_device_with_its_main_function_last(
    qemu: FakeQemu, line: QmpMonitor
) -> None:
    hotplug.plug_device(line, KEY, card(functions=3), soon())
    added = [(a["host"], a["addr"], a.get("multifunction")) for _, a in qemu.commands]
    assert added == [
        ("0000:41:00.2", "0x0.2", None),
        ("0000:41:00.1", "0x0.1", None),
        ("0000:41:00.0", "0x0", True),
    ]
    hotplug.unplug_device(line, KEY, "card", soon())
    assert qemu.devices == {}


def test_a_plug_that_was_cut_off_half_way_is_done_anew(qemu: FakeQemu, line: QmpMonitor) -> None:
    line.execute("device_add", {"driver": "vfio-pci", "id": "card.f1", "bus": "port2"}, deadline=soon())
    assert hotplug.plug_device(line, KEY, card(functions=2), soon()) == "port0"
    assert {name: device["bus"] for name, device in qemu.devices.items()} == {"card.f0": "port0", "card.f1": "port0"}


def test_what_qemu_refuses_leaves_nothing_behind(qemu: FakeQemu, line: QmpMonitor) -> None:
    bad = pci.PciDevice("x", ({"driver": "no-such-device"}, {"driver": "virtio-rng-pci"}))
    net = pci.QemuBackend(("netdev_add", {"type": "user", "id": "y-net"}), ("netdev_del", {"id": "y-net"}))
    bad_card = pci.PciDevice("y", ({"driver": "no-such-device"},), (net,))
    for device in (bad, bad_card):
        with pytest.raises(QmpRefused, match="not a valid device model"):
            hotplug.plug_device(line, KEY, device, soon())
    assert (qemu.devices, qemu.backends) == ({}, {})


def test_no_free_port_is_denied_before_anything_is_done(qemu: FakeQemu, line: QmpMonitor) -> None:
    for number in range(4):
        hotplug.plug_device(line, KEY, card(f"c{number}"), soon())
    calls_before = len(qemu.commands)
    with raises(Denied, "NoFreePciSlot", retryable=True):
        hotplug.plug_device(line, KEY, card("n"), soon())
    assert len(qemu.commands) == calls_before


def test_a_device_that_must_have_one_port_gets_no_other(qemu: FakeQemu, line: QmpMonitor) -> None:
    """Where it was before its machine moved here."""
    assert hotplug.plug_device(line, KEY, card("first"), soon(), hotplug.SlotNeeds(port="port2")) == "port2"
    for taken in ("port2", "port9"):
        with raises(Denied, "NoFreePciSlot", retryable=False, match=f"has no free root port {taken} for n"):
            hotplug.plug_device(line, KEY, card("n"), soon(), hotplug.SlotNeeds(port=taken))
    assert len(qemu.devices) == 1


def test_the_refusal_of_a_machine_without_ports_names_the_field(tmp_path: Path) -> None:
    qemu = FakeQemu(tmp_path / "q", ports=0)
    line = QmpMonitor(KEY, str(qemu.path))
    with pytest.raises(Denied, match="pciSlots") as denied:
        hotplug.plug_device(line, KEY, card(), soon())
    assert not denied.value.retryable
    line.close()
    qemu.close()


@pytest.mark.parametrize("native", [False, True])
def test_a_guest_that_says_nothing_keeps_the_device_and_a_second_try_may_succeed(
    qemu: FakeQemu, line: QmpMonitor, native: bool
) -> None:
    qemu.native, qemu.guest = native, "silent"
    hotplug.plug_device(line, KEY, card(), soon())
    with raises(Denied, "GuestRefused", retryable=True) as denied:
        hotplug.unplug_device(line, KEY, "card", deadline_after(lambda: qemu.leaving))
    assert KEY in str(denied.value)
    assert "card.f0" in qemu.devices
    # The second request is accepted (ACPI) or refused as under way (native): both wait for the same event.
    threading.Timer(0.1, qemu.let_go, ["card.f0"]).start()
    hotplug.unplug_device(line, KEY, "card", soon())
    assert qemu.devices == {}


def test_a_guest_that_refuses_is_believed_at_once(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.guest = "refuses"
    hotplug.plug_device(line, KEY, card(), soon())
    with raises(Denied, "GuestRefused", match="refuses"):
        hotplug.unplug_device(line, KEY, "card", soon(60))


def test_events_of_other_devices_and_of_children_are_not_taken_for_the_devices_own(
    qemu: FakeQemu, line: QmpMonitor
) -> None:
    qemu.guest = "silent"
    hotplug.plug_device(line, KEY, card("a"), soon())
    hotplug.plug_device(line, KEY, card("b"), soon())
    threading.Timer(0.05, qemu.let_go, ["b.f0"]).start()
    with pytest.raises(Denied):
        hotplug.unplug_device(line, KEY, "a", deadline_after(lambda: set(qemu.devices) == {"a.f0"}))
    assert set(qemu.devices) == {"a.f0"}


def test_a_device_whose_event_was_lost_is_seen_to_be_gone(qemu: FakeQemu, line: QmpMonitor) -> None:
    hotplug.plug_device(line, KEY, card(), soon())
    qemu.loses_events = True
    hotplug.unplug_device(line, KEY, "card", soon())
    assert qemu.devices == {}
    calls_before = len(qemu.commands)
    hotplug.unplug_device(line, KEY, "card", soon())
    assert "device_del" not in [command for command, _ in qemu.commands[calls_before:]], "what is gone is gone"


def test_a_line_that_breaks_under_anothers_question_does_not_end_the_wait_for_a_device(
    qemu: FakeQemu, line: QmpMonitor
) -> None:
    """QEMU does not answer while the memory of a machine is unlocked, and who looks at it waits for two seconds."""
    qemu.guest = "silent"
    hotplug.plug_device(line, KEY, card(), soon())

    def disturb() -> None:
        until(lambda: qemu.leaving, "the guest is asked")
        qemu.trouble["query-uuid"] = "garbage"
        with pytest.raises(Unknown):
            line.execute("query-uuid", deadline=soon())
        qemu.let_go("card.f0")

    disturber = threading.Thread(target=disturb)
    disturber.start()
    hotplug.unplug_device(line, KEY, "card", soon())
    disturber.join()
    assert qemu.devices == {}
    assert qemu.connections > 1, "it broke"


def test_a_qemu_that_hangs_is_unknown_whichever_way_it_goes(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.trouble["device_add"] = "hang"
    with pytest.raises(Unknown):
        hotplug.plug_device(line, KEY, card(), soon(0.4))
    qemu.trouble = {"device_del": "hang"}
    hotplug.plug_device(line, KEY, card(), soon())
    with pytest.raises(Unknown):
        hotplug.unplug_device(line, KEY, "card", soon(0.4))


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a,b=c", "1a", "a" * 70, "ä"])
def test_an_id_that_qemu_would_not_take_never_gets_there(name: str) -> None:
    with pytest.raises(Denied):
        card(name)


def test_ids_of_devices_of_claims_are_the_same_every_time_and_no_two_alike() -> None:
    ids = {pci.device_id("u", *words) for words in (("p", "d"), ("p", "e"), ("pd", ""), ("p", "d", "s"))}
    assert len(ids) == 4
    assert all(pci.checked_id(name) == name for name in ids)
    assert pci.device_id("u", "p", "d") in ids


def test_what_only_an_administrator_looks_at_cannot_be_plugged_in() -> None:
    with pytest.raises(Denied, match="none"):
        pci.passthrough_device("x", PreparedDevice((), "pool", "d", "none", ("0000:41:00.0",), admin=True))
    mdev = PreparedDevice((), "pool", "d", "mdev", sysfsdev="bus/mdev/devices/83b8f4f2")
    assert pci.passthrough_device("x", mdev).functions[0]["sysfsdev"] == "/sys/bus/mdev/devices/83b8f4f2"


# CPUs.


def test_cpus_come_lowest_slot_first_and_go_highest_first(qemu: FakeQemu, line: QmpMonitor) -> None:
    assert vcpu.scale(line, KEY, 3, soon()) == 3
    assert [a["core-id"] for _, a in qemu.commands] == [1, 2]
    assert vcpu.scale(line, KEY, 2, soon()) == 2
    assert sorted(qemu.cpus) == [0, 1]
    calls_before = len(qemu.commands)
    assert vcpu.scale(line, KEY, 2, soon()) == 2
    assert len(qemu.commands) == calls_before, "what is so already is not asked for"


def test_more_cpus_than_there_is_room_for_are_denied(qemu: FakeQemu, line: QmpMonitor) -> None:
    with raises(Denied, "CpuSlotsExhausted", match="room for 4"):
        vcpu.scale(line, KEY, 5, soon())


def test_a_cpu_that_was_built_in_cannot_leave(tmp_path: Path) -> None:
    qemu = FakeQemu(tmp_path / "q", cpus=2)
    line = QmpMonitor(KEY, str(qemu.path))
    with raises(Denied, "CpusBuiltIn"):
        vcpu.scale(line, KEY, 1, soon())
    line.close()
    qemu.close()


@pytest.mark.parametrize("guest", ["refuses", "silent"])
def test_the_refusal_of_a_guest_that_keeps_a_cpu_shows_how_many_there_are(
    qemu: FakeQemu, line: QmpMonitor, guest: str
) -> None:
    vcpu.scale(line, KEY, 4, soon())
    qemu.guest = guest  # type: ignore[assignment]
    with raises(Denied, "GuestRefused", retryable=True, match="it has 4 instead of 2"):
        vcpu.scale(line, KEY, 2, soon() if guest == "refuses" else deadline_after(lambda: qemu.leaving))


def test_a_qemu_that_hangs_while_cpus_come_is_unknown_and_the_next_try_goes_on(
    qemu: FakeQemu, line: QmpMonitor
) -> None:
    qemu.trouble["device_add"] = "hang"
    with pytest.raises(Unknown):
        vcpu.scale(line, KEY, 4, soon(0.4))
    qemu.trouble.clear()
    assert vcpu.scale(line, KEY, 4, soon()) == 4


# Memory.


def test_memory_follows_in_both_directions(qemu: FakeQemu, line: QmpMonitor) -> None:
    assert memory.scale(line, of_dimms(None), 2 * GIB, soon()) == 2 * GIB
    assert qemu.size == 2 * GIB - 512 * MIB
    assert memory.scale(line, of_dimms(None), 512 * MIB, soon()) == 512 * MIB
    assert memory.observe_memory(line, soon()) == memory.MemoryState(512 * MIB, 0)


def test_an_amount_between_two_blocks_becomes_the_next_more(qemu: FakeQemu, line: QmpMonitor) -> None:
    assert memory.scale(line, of_dimms(None), 600 * MIB + 1, soon()) == 602 * MIB


@pytest.mark.parametrize(("goal", "code"), [(3 * GIB, "MemoryRoomExhausted"), (256 * MIB, "MemoryBuiltIn")])
def test_amounts_that_cannot_be_are_denied_and_nothing_is_asked_of_the_guest(
    qemu: FakeQemu, line: QmpMonitor, goal: int, code: str
) -> None:
    with raises(Denied, code):
        memory.scale(line, of_dimms(None), goal, soon())
    assert qemu.commands == []


@pytest.mark.parametrize(("stuck", "goal"), [(1 * GIB, 512 * MIB), (1 * GIB + 64 * MIB, 2 * GIB + 256 * MIB)])
def test_a_guest_that_is_stuck_is_denied_at_the_size_that_it_has_and_asked_for_no_more(
    qemu: FakeQemu, line: QmpMonitor, stuck: int, goal: int
) -> None:
    start = 2 * GIB if goal < 2 * GIB else GIB
    memory.scale(line, of_dimms(None), start, soon())
    qemu.stuck_at = stuck
    with raises(Denied, "GuestRefused", retryable=True, match=memory_text(stuck)):
        memory.scale(line, of_dimms(None), goal, deadline_after(lambda: qemu.size == stuck))
    assert qemu.requested == qemu.size == stuck
    qemu.stuck_at = None
    assert memory.scale(line, of_dimms(None), goal, soon()) == goal


@pytest.mark.parametrize(("dimm", "room"), [(None, 2 * GIB), (512 * MIB, 0)])
def test_memory_that_others_plugged_in_counts_and_stays(tmp_path: Path, dimm: int | None, room: int) -> None:
    machine = FakeQemu(tmp_path / "adopted", room=room)
    line = QmpMonitor(KEY, str(machine.path))
    machine.backends["theirs"] = str(512 * MIB)
    machine.devices["dimm-of-theirs"] = {"driver": "pc-dimm", "memdev": "theirs"}
    assert memory.scale(line, of_dimms(dimm), GIB, soon()) == GIB
    assert machine.commands == [], "it has that already"
    assert memory.scale(line, of_dimms(dimm), GIB + 512 * MIB, soon()) == GIB + 512 * MIB
    assert memory.scale(line, of_dimms(dimm), GIB, soon()) == GIB
    with raises(Denied, "MemoryBuiltIn"):
        memory.scale(line, of_dimms(dimm), 768 * MIB, soon())
    line.close()
    machine.close()


@pytest.mark.parametrize("goal", [2 * GIB, 768 * MIB])
def test_a_machine_without_virtio_mem_keeps_its_memory_with_dimms_of_others(
    qemu: FakeQemu, line: QmpMonitor, goal: int
) -> None:
    qemu.room = 0
    qemu.backends["theirs"] = str(512 * MIB)
    qemu.devices["dimm-of-theirs"] = {"driver": "pc-dimm", "memdev": "theirs"}
    with raises(Denied, "MemoryRoomExhausted", match=r"its memory cannot change \(1Gi\);.*--slot-size"):
        memory.scale(line, of_dimms(None), goal, soon())
    assert qemu.commands == []


def test_dimms_come_and_go_with_their_memory_of_the_host(qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.room = 0
    for goal, dimms in ((GIB + 512 * MIB, 2), (512 * MIB, 0), (GIB, 1)):
        assert memory.scale(line, of_dimms(512 * MIB), goal, soon()) == goal
        assert len(qemu.backends) == len(qemu.devices) == dimms


def test_a_dimm_that_was_cut_off_half_way_is_taken_up_again(qemu: FakeQemu, line: QmpMonitor) -> None:
    backend = {"qom-type": "memory-backend-ram", "id": "dimm0-ram", "size": 512 * MIB}
    line.execute("object-add", backend, deadline=soon())
    qemu.room = 0
    assert memory.scale(line, of_dimms(512 * MIB), GIB, soon()) == GIB


@pytest.mark.parametrize("guest", ["refuses", "silent"])
def test_the_refusal_of_a_guest_that_keeps_a_dimm_shows_its_memory(
    qemu: FakeQemu, line: QmpMonitor, guest: str
) -> None:
    qemu.room = 0
    memory.scale(line, of_dimms(512 * MIB), GIB, soon())
    qemu.guest = guest  # type: ignore[assignment]
    deadline = soon() if guest == "refuses" else deadline_after(lambda: qemu.leaving)
    with raises(Denied, "GuestRefused", match="1Gi"):
        memory.scale(line, of_dimms(512 * MIB), 512 * MIB, deadline)
    assert set(qemu.backends) == {"dimm0-ram"}


# Every change, failed in every way (T18).


@pytest.mark.parametrize("trouble", ["hang", "die", "garbage"])
def test_whichever_command_fails_the_answer_is_no_success_and_a_second_try_ends_well(
    tmp_path: Path, trouble: str
) -> None:
    """All that a machine's life has, once; then again with each of its commands going wrong, and tried again."""

    def life(line: QmpMonitor, seconds: float = 20.0) -> None:
        hotplug.plug_device(line, KEY, card(functions=2), soon(seconds))
        vcpu.scale(line, KEY, 2, soon(seconds))
        memory.scale(line, of_dimms(None), GIB, soon(seconds))
        memory.scale(line, of_dimms(None), 512 * MIB, soon(seconds))
        vcpu.scale(line, KEY, 1, soon(seconds))
        hotplug.unplug_device(line, KEY, "card", soon(seconds))

    qemu = FakeQemu(tmp_path / "first")
    line = QmpMonitor(KEY, str(qemu.path))
    life(line)
    commands = list(dict.fromkeys(command for command, _ in qemu.commands))
    line.close()
    qemu.close()
    assert commands == ["device_add", "qom-set", "device_del"]
    for number, command in enumerate(commands):
        qemu = FakeQemu(tmp_path / str(number))
        line = QmpMonitor(KEY, str(qemu.path))
        qemu.trouble[command] = trouble  # type: ignore[assignment]
        with pytest.raises(NodeError) as error:
            life(line, 0.3 if trouble == "hang" else 20.0)
        assert error.value.retryable
        if trouble != "die":
            qemu.trouble.clear()
            life(line)
            assert (qemu.devices, qemu.size, len(qemu.cpus)) == ({}, 0, 1)
        line.close()
        qemu.close()
