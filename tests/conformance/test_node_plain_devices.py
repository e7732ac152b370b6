"""Plain disks and network cards in a running machine: plugged in whole, known from QEMU alone, gone without a trace."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import struct
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu import allowed_paths, emulated_devices, lifecycle, spawn
from devalloc_machines.qemu.qmp import QmpMonitor
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import Disk, EmulatedDevice, Nic, own_mac
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, Unknown
from tests.support.deadlines import deadline_after, soon
from tests.support.examples import IS_FUZZ
from tests.support.fake_qmp import FakeQemu
from tests.support.node_errors import raises
from tests.support.waiting import until
from tests.unit.node.test_machine_adopted import KEY, adopting, config, machines

__all__ = ["config", "machines"]
MAC = "52:54:00:aa:00:01"


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images, and an interface that this process may open without any rights."""
    images = tmp_path / "images"
    images.mkdir()
    (images / "raw").write_bytes(b"a disk".ljust(4096))
    (images / "qcow2").write_bytes((b"QFI\xfb" + b"\0\0\0\3").ljust(4096, b"\0"))
    real = allowed_paths.checked_tap
    monkeypatch.setattr(allowed_paths, "checked_tap", lambda name, *rest: name if name == "tap0" else real(name, *rest))
    monkeypatch.setattr(spawn, "open_tap", lambda name: os.open(images / "tap", os.O_RDWR | os.O_CREAT))
    return images


def settings(images: Path) -> MachineConfig:
    return MachineConfig(folders=(AllowedFolder(images, "any"),), taps=("*",))


def raw(folder: Path, name: str = "data") -> EmulatedDevice:
    return EmulatedDevice(name, Disk(str(folder / "raw"), "raw"))


def qcow2(folder: Path) -> EmulatedDevice:
    return EmulatedDevice("a-disk-of-20-letters", Disk(str(folder / "qcow2"), "qcow2", True, "nvme"))


def card(name: str = "lan", interface: str | None = "tap0", mac: str | None = MAC) -> EmulatedDevice:
    return EmulatedDevice(name, Nic("virtio", interface, mac))


ALL = {
    "raw": raw,
    "qcow2": qcow2,
    "tap": lambda folder: card(),
    "user": lambda folder: EmulatedDevice("net", Nic("e1000e", None, MAC)),
}


def state(qemu: FakeQemu) -> tuple[object, ...]:
    """All that a plain device is in a QEMU."""
    sets = {number: [opaque for _, opaque, _ in fds] for number, fds in qemu.sets.items()}
    return dict(qemu.devices), dict(qemu.backends), sets, sorted(qemu.named)


def held(folder: Path) -> list[str]:
    """What this process, which is plugin and QEMU, has open of the host's."""
    links = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{name}"))
    return [link for link in links if link.startswith(str(folder))]


NOTHING = ({}, {}, {}, [])


@pytest.mark.parametrize("kind", ALL)
def test_the_next_plugin_recognises_a_plugged_device_and_unplugs_it_without_a_trace(
    kind: str, host: Path, qemu: FakeQemu, line: QmpMonitor
) -> None:
    device = ALL[kind](host)
    assert emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default") == device
    assert len(held(host)) == {"raw": 2, "qcow2": 2, "tap": 1, "user": 0}[kind], "only QEMU has them open"
    inside = state(qemu)
    commands = [command for command, _ in qemu.commands]
    assert commands[-1] == "device_add"
    assert emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default") == device, (
        "again is success"
    )
    assert state(qemu) == inside
    line.close()
    later = QmpMonitor(KEY, str(qemu.path))
    assert emulated_devices.plugged_emulated(later, soon()) == (device,)
    assert emulated_devices.unplug_emulated(later, KEY, device.name, soon())
    assert state(qemu) == NOTHING
    assert emulated_devices.plugged_emulated(later, soon()) == ()
    assert not emulated_devices.unplug_emulated(later, KEY, device.name, soon()), "there is none any more"
    later.close()
    assert held(host) == [], "neither side has the image or the interface open"


def test_a_disk_is_opened_here_as_it_was_said_to_be_and_by_its_name_the_guest_finds_it(
    host: Path, qemu: FakeQemu, line: QmpMonitor
) -> None:
    emulated_devices.plug_emulated(line, KEY, qcow2(host), settings(host), soon(), namespace="default")
    added = [arguments for command, arguments in qemu.commands if command == "blockdev-add"]
    assert [(a["driver"], a["read-only"]) for a in added] == [("file", True), ("qcow2", True)]
    assert (added[0]["filename"], added[1]["backing"]) == ("/dev/fdset/1001", None)
    (device,) = qemu.devices.values()
    assert (device["driver"], device["serial"]) == ("nvme", "a-disk-of-20-letters")


def test_several_at_once_do_not_get_each_others_files(host: Path, qemu: FakeQemu, line: QmpMonitor) -> None:
    every = [card(), card("lan-net", None), raw(host), qcow2(host)]
    for device in every:
        emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default")
    assert emulated_devices.plugged_emulated(line, soon()) == tuple(sorted(every, key=lambda device: device.id))
    assert emulated_devices.unplug_emulated(line, KEY, "lan", soon())
    assert len(qemu.devices) == 3
    for device in every[1:]:
        assert emulated_devices.unplug_emulated(line, KEY, device.name, soon())
    assert state(qemu) == NOTHING


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda host: EmulatedDevice("data", Disk(str(host / "qcow2"), "qcow2")), "qcow2"),
        (lambda host: EmulatedDevice("data", Disk(str(host / "raw"), "raw", True)), "read-only"),
        (lambda host: EmulatedDevice("data", Disk(str(host / "raw"), "raw", device="nvme")), "nvme"),
        (lambda host: card("data"), "TAP tap0"),
    ],
)
def test_another_device_of_the_same_name_is_refused(
    host: Path, qemu: FakeQemu, line: QmpMonitor, other: Any, words: str
) -> None:
    emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    before = state(qemu)
    with raises(Denied, "DeviceExists", match=words):
        emulated_devices.plug_emulated(line, KEY, other(host), settings(host), soon(), namespace="default")
    assert state(qemu) == before


def test_a_card_without_a_requested_address_has_the_machines_own(host: Path, qemu: FakeQemu, line: QmpMonitor) -> None:
    there = emulated_devices.plug_emulated(line, KEY, card(mac=None), settings(host), soon(), namespace="default")
    assert isinstance(there.what, Nic)
    assert there.what.mac is not None
    assert there.what.mac == own_mac(KEY, there.id) != own_mac("default/another", there.id)
    assert (
        emulated_devices.plug_emulated(line, KEY, card(mac=None), settings(host), soon(), namespace="default") == there
    )
    assert (
        emulated_devices.plug_emulated(
            line, KEY, card(mac=there.what.mac.upper()), settings(host), soon(), namespace="default"
        )
        == there
    )
    with pytest.raises(Denied):
        emulated_devices.plug_emulated(line, KEY, card(mac=MAC), settings(host), soon(), namespace="default")


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (Disk("/etc/passwd", "raw"), "PathNotAllowed"),
        (Disk("HOST/../raw", "raw"), "PathNotAllowed"),
        (Disk("HOST/none", "raw"), "PathMissing"),
        (Disk("HOST", "raw"), "PathNotFile"),
        (Disk("HOST/raw", "qcow2"), "DiskFormat"),
        (Disk("HOST/raw", "vmdk"), "DiskFormat"),  # type: ignore[arg-type]
        (Nic("virtio", "no-such-tap"), "TapMissing"),
        (Nic("virtio", "lo"), "TapMissing"),
    ],
)
def test_what_a_machine_may_not_be_started_with_is_not_plugged_in_either(
    host: Path, qemu: FakeQemu, line: QmpMonitor, what: Disk | Nic, code: str
) -> None:
    if isinstance(what, Disk):
        what = Disk(what.path.replace("HOST", str(host)), what.format)
    with raises(Denied, code):
        emulated_devices.plug_emulated(
            line, KEY, EmulatedDevice("x", what), settings(host), soon(), namespace="default"
        )
    assert qemu.commands == []


def test_an_image_or_tap_of_others_is_refused_as_in_use(
    host: Path, qemu: FakeQemu, line: QmpMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(name: str) -> int:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(spawn, "open_tap", busy)
    qemu.refuses["device_add"] = 'Failed to get "write" lock'  # another process was quicker
    for device, code in ((card(), "TapInUse"), (raw(host), "DiskInUse")):
        with raises(Denied, code, retryable=True):
            emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default")
    assert state(qemu) == NOTHING


@pytest.mark.parametrize(
    ("locked", "refused"),
    [
        ({100, 101, 201}, {True, False}),  # a disk that is written to
        ({100, 201}, {True}),  # one that is read only
        ({100}, set()),
        ({100, 101, 200, 201, 202, 203}, {True, False}),
    ],
)
def test_images_are_shared_as_qemus_locks_have_it_before_qemu_is_asked(
    host: Path, qemu: FakeQemu, line: QmpMonitor, locked: set[int], refused: set[bool]
) -> None:
    with (host / "raw").open("rb") as other:
        for byte in locked:
            lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, byte, 1, 0)
            fcntl.fcntl(other, fcntl.F_OFD_SETLK, lock)
        for writable in (True, False):
            disk = EmulatedDevice("x", Disk(str(host / "raw"), "raw", read_only=not writable))
            if writable in refused:
                with raises(Denied, "DiskInUse", retryable=True):
                    emulated_devices.plug_emulated(line, KEY, disk, settings(host), soon(), namespace="default")
                assert qemu.commands == [("closefd", {"fdname": "plug-tap"})] * len(qemu.commands)
            else:
                emulated_devices.plug_emulated(line, KEY, disk, settings(host), soon(), namespace="default")
                emulated_devices.unplug_emulated(line, KEY, "x", soon())
        assert len(held(host)) == 1, "only that other one"


def test_an_image_that_was_moved_after_it_was_checked_is_not_opened(
    host: Path, qemu: FakeQemu, line: QmpMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = allowed_paths.disk_image

    def swapped(disk: Disk, *rest: Any) -> Path:
        real = checked(disk, *rest)
        real.unlink()
        real.symlink_to("/etc/passwd")
        return real

    monkeypatch.setattr(allowed_paths, "disk_image", swapped)
    with pytest.raises(Failed, match="cannot open"):
        emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    assert state(qemu) == NOTHING


@pytest.mark.parametrize("guest", ["refuses", "silent"])
def test_a_device_that_the_guest_keeps_stays_whole_until_it_lets_go(
    host: Path, qemu: FakeQemu, line: QmpMonitor, guest: str
) -> None:
    emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    inside = state(qemu)
    qemu.guest = guest  # type: ignore[assignment]
    with raises(Denied, "GuestRefused", retryable=True):
        emulated_devices.unplug_emulated(
            line, KEY, "data", soon() if guest == "refuses" else deadline_after(lambda: qemu.leaving)
        )
    assert state(qemu) == inside
    threading.Timer(0.05, qemu.let_go, ["plug-data.f0"]).start()
    qemu.guest = "silent"
    assert emulated_devices.unplug_emulated(line, KEY, "data", soon())
    assert state(qemu) == NOTHING


def test_an_image_that_qemu_does_not_close_is_not_free(host: Path, qemu: FakeQemu, line: QmpMonitor) -> None:
    emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    qemu.refuses["blockdev-del"] = "Node plug-data.disk is in use"
    for _ in range(2):
        with raises(Unknown, "DeviceHeld"):
            emulated_devices.unplug_emulated(line, KEY, "data", deadline_after(lambda: not qemu.devices))
    with pytest.raises(Unknown):
        emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    del qemu.refuses["blockdev-del"]
    assert emulated_devices.unplug_emulated(line, KEY, "data", soon())
    assert state(qemu) == NOTHING


# Every change, failed in every way (T18).

ADDS = ("add-fd", "blockdev-add", "getfd", "netdev_add", "device_add")


class Killed(BaseException):
    """As kill -9: nothing of the plugin is done after it."""


class Dying(QmpMonitor):
    """A plugin that is killed before or after one of its commands."""

    def __init__(self, qemu: FakeQemu, number: int, when: str) -> None:
        super().__init__(KEY, str(qemu.path))
        self.number, self.when, self.commands = number, when, 0

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Deadline, fd: int | None = None
    ) -> Any:
        is_it = False
        if not command.startswith(("query-", "qom-", "human-")):
            is_it = self.commands == self.number
            self.commands += 1
        if is_it and self.when == "before":
            raise Killed
        try:
            return super().execute(command, arguments, deadline=deadline, fd=fd)
        finally:
            if is_it:
                raise Killed


@pytest.mark.parametrize("kind", ["raw", "tap"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_command_it_is_plugged_in_whole_by_the_next_try_or_nothing_is_left(
    host: Path, qemu: FakeQemu, kind: str, when: str
) -> None:
    device = ALL[kind](host)
    later = QmpMonitor(KEY, str(qemu.path))

    def life(monitor: QmpMonitor) -> None:
        emulated_devices.plug_emulated(monitor, KEY, device, settings(host), soon(), namespace="default")
        emulated_devices.unplug_emulated(monitor, KEY, device.name, soon())

    whole = Dying(qemu, -1, when)
    emulated_devices.plug_emulated(whole, KEY, device, settings(host), soon(), namespace="default")
    undisturbed = state(qemu)
    emulated_devices.unplug_emulated(whole, KEY, device.name, soon())
    whole.close()
    for number in range(0, whole.commands, 1 if IS_FUZZ else 2):
        for again in (True, False):
            dying = Dying(qemu, number, when)
            with pytest.raises(Killed):
                life(dying)
            dying.close()
            if again:
                emulated_devices.plug_emulated(later, KEY, device, settings(host), soon(), namespace="default")
                assert state(qemu) == undisturbed, f"killed {when} command {number}, and asked again"
                emulated_devices.unplug_emulated(later, KEY, device.name, soon())
            else:
                emulated_devices.remove_leftovers(later, soon())
                is_there = bool(qemu.devices)
                assert state(qemu) == (undisturbed if is_there else NOTHING), f"killed {when} command {number}"
                assert emulated_devices.unplug_emulated(later, KEY, device.name, soon()) == is_there
            assert state(qemu) == NOTHING
            later.close()
    assert whole.commands >= 7


@pytest.mark.parametrize("kind", ["raw", "tap"])
def test_whichever_command_is_refused_nothing_is_left_and_the_next_try_ends_well(
    host: Path, qemu: FakeQemu, line: QmpMonitor, kind: str
) -> None:
    device = ALL[kind](host)
    emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default")
    emulated_devices.unplug_emulated(line, KEY, device.name, soon())
    commands = dict.fromkeys(command for command, _ in qemu.commands if command in ADDS)
    assert len(commands) >= 3
    for command in commands:
        qemu.refuses[command] = "it was made to fail"
        with pytest.raises(Denied, match="made to fail"):
            emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default")
        assert state(qemu) == NOTHING, command
        qemu.refuses.clear()
        emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default")
        emulated_devices.unplug_emulated(line, KEY, device.name, soon())
        assert (state(qemu), held(host)) == (NOTHING, []), command


def test_a_qemu_that_hangs_is_unknown_and_the_next_try_ends_well(host: Path, qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.trouble["blockdev-add"] = "hang"
    with pytest.raises(Unknown):
        emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(0.4), namespace="default")
    assert len(held(host)) == 1, "what QEMU was given before"
    qemu.trouble.clear()
    emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    emulated_devices.unplug_emulated(line, KEY, "data", soon())
    assert state(qemu) == NOTHING


# In the guest.


@pytest.mark.parametrize("kind", ALL)
def test_what_the_guest_has_no_window_for_is_taken_out_again_and_said(
    kind: str, host: Path, qemu: FakeQemu, line: QmpMonitor
) -> None:
    device = ALL[kind](host)
    qemu.bar_sizes[f"plug-{device.name}.f0"] = 16 << 30
    changes = r"pciWindow to 32Gi .* or list it in spec\.(start\.disks|nics)"
    with raises(Denied, "NoPciWindow", retryable=False, match=rf"BAR 1 \(16Gi, 64-bit prefetchable\) .*{changes}"):
        emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default")
    assert (state(qemu), emulated_devices.plugged_emulated(line, soon())) == (NOTHING, ())
    del qemu.bar_sizes[f"plug-{device.name}.f0"]
    assert emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default") == device


def test_what_the_guest_gives_no_addresses_until_the_deadline_is_taken_out_again(
    host: Path, qemu: FakeQemu, line: QmpMonitor
) -> None:
    qemu.gives_addresses = False
    with raises(Denied, "GuestNotReady", retryable=True, match=r"disk .* got no addresses within"):
        emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(3), namespace="default")
    assert state(qemu) == NOTHING


def test_an_undo_that_the_guest_refuses_reports_the_device_as_plugged_in(
    host: Path, qemu: FakeQemu, line: QmpMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for the answers of QEMU on a busy host: only the guest must use it up.
    monkeypatch.setattr(emulated_devices, "UNDO_SECONDS", 2.0)
    qemu.gives_addresses, qemu.guest = False, "silent"
    with pytest.raises(Failed, match=r"it is still plugged in, .* did not release plug-data"):
        emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(3), namespace="default")
    assert emulated_devices.plugged_emulated(line, soon()) == (raw(host),)


def test_nothing_is_plugged_into_a_machine_whose_cpus_stand_still(host: Path, qemu: FakeQemu, line: QmpMonitor) -> None:
    qemu.status = "paused"
    with pytest.raises(Denied, match="'paused'") as denied:
        emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    assert (denied.value.code, state(qemu)) == ("GuestNotReady", NOTHING)


def test_a_device_plugged_in_before_the_first_run_waits_for_no_guest(
    host: Path, qemu: FakeQemu, line: QmpMonitor
) -> None:
    qemu.status = "prelaunch"
    device = raw(host)
    assert (
        emulated_devices.plug_emulated(line, KEY, device, settings(host), soon(), namespace="default", is_starting=True)
        == device
    )


# In the care of a plugin.


def test_what_a_guest_let_go_by_itself_is_cleared_away_without_being_asked(
    host: Path, qemu: FakeQemu, machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "LOG_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "TIDY_SECONDS", 0.01)
    machines.config = replace(machines.config, folders=(AllowedFolder(host, "any"),))
    machines.adopt(adopting(qemu.path), soon())
    for device in (raw(host), card()):
        machines.plug_in(KEY, device, soon())
    seen = machines.get(KEY)
    assert (seen.plain, seen.taps) == ((raw(host), card()), ("tap0",))
    stop = threading.Event()
    thread = threading.Thread(target=lifecycle.run_maintenance, args=(machines, stop))
    thread.start()
    qemu.let_go("plug-data.f0")
    until(lambda: "plug-data.disk" not in qemu.backends and not qemu.sets, "nothing of the disk is left", 10)
    stop.set()
    thread.join()
    assert set(qemu.backends) == {"plug-lan.net.tap0"}, "and nothing else was touched"
    assert machines.get(KEY).plain == (card(),)


def test_only_machines_that_were_changed_are_asked_what_devices_have_left(
    host: Path, qemu: FakeQemu, machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "LOG_SECONDS", 0.01)
    monkeypatch.setattr(lifecycle, "TIDY_SECONDS", 0.01)
    machines.adopt(adopting(qemu.path), soon())
    looks: list[str] = []
    rounds = itertools.count()
    look, settle = emulated_devices.observe_emulated, machines.settle
    monkeypatch.setattr(emulated_devices, "observe_emulated", lambda *of: (looks.append("look"), look(*of))[1])
    monkeypatch.setattr(machines, "settle", lambda: (next(rounds), settle())[1])
    stop = threading.Event()
    thread = threading.Thread(target=lifecycle.run_maintenance, args=(machines, stop))
    thread.start()
    try:
        until(lambda: looks, "it is looked at once", 10)
        after = next(rounds) + 5
        until(lambda: next(rounds) > after, "some rounds are over", 10)
        assert looks == ["look"]
        machines.resume(KEY, soon())
        until(lambda: len(looks) == 2, "it was changed", 10)
    finally:
        stop.set()
        thread.join()


def test_devices_that_others_plugged_in_are_not_ours_whatever_their_names(
    host: Path, qemu: FakeQemu, line: QmpMonitor
) -> None:
    def others() -> None:
        node = {"driver": "null-co", "node-name": "plug-x.disk", "read-only": False}
        line.execute("blockdev-add", node, deadline=soon())
        line.execute("netdev_add", {"type": "user", "id": "lan"}, deadline=soon())
        for name, more in (("plug-x.f0", {}), ("plug-UP.f0", {}), ("disk.f0", {}), ("plug-n.f0", {"netdev": "lan"})):
            driver = "virtio-net-pci" if more else "virtio-rng-pci"
            bus = f"port{len(qemu.devices)}"
            line.execute("device_add", {"driver": driver, "id": name, "bus": bus, **more}, deadline=soon())

    others()
    before = state(qemu)
    assert emulated_devices.plugged_emulated(line, soon()) == ()
    assert not emulated_devices.has_leftovers(emulated_devices.observe_emulated(line, soon()))
    emulated_devices.remove_leftovers(line, soon())
    for name in ("x", "n"):
        assert not emulated_devices.unplug_emulated(line, KEY, name, soon())
        with pytest.raises(Denied, match="another program"):
            emulated_devices.plug_emulated(line, KEY, raw(host, name), settings(host), soon(), namespace="default")
    assert state(qemu) == before
    with pytest.raises(Denied, match="4 root ports are in use"):
        emulated_devices.plug_emulated(line, KEY, raw(host), settings(host), soon(), namespace="default")
    assert state(qemu) == before
