"""Must show: a machine is of a user of its own, uses only what it was given, and a stranger's is not touched."""

from __future__ import annotations

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc_machines.qemu import confinement, hotplug, pci, preflight
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.confinement import QemuLimits, qemu_limits
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.process import open_nodes, process
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import Disk, EmulatedDevice, Nic, machine_id
from devalloc_node.errors import Denied, Failed
from devalloc_node.journal import open_journal
from tests.support import exceed_limits, tiny_guest
from tests.support.cli_shell import Shell
from tests.support.deadlines import soon
from tests.support.guest import Guest
from tests.support.images import Image
from tests.support.machines import (
    MIB,
    NoDeviceOwner,
    config,
    ended,
    plugin,
    running,
    short_folder,
    view,
    virtual_machine,
)
from tests.support.node_errors import raises
from tests.support.node_service import served
from tests.support.qemu import QUICK_BOOT, TCG, Machine, Monitor
from tests.support.vm_rounds import to_begin
from tests.support.waiting import until

KEY = "default/m"


def test_a_machine_of_its_own_user_reaches_its_disks_and_nothing_else(open_image: Image) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give machines users of their own")
    folder = open_image.folder
    disks = [
        {"path": str(folder / "disk"), "format": "raw"},
        {"path": str(folder / "read-only"), "format": "raw", "readOnly": True, "device": "nvme"},
    ]
    start = {
        "kernel": str(open_image.kernel),
        "initrd": str(open_image.initrd),
        "append": f"quiet console=ttyS0 {QUICK_BOOT}",
    }
    machine = virtual_machine("m", start={**start, "disks": disks}, nics=[{}], memory={"min": "256Mi", "max": "256Mi"})
    with short_folder() as place:
        settings = config(open_image, place, users=range(70000, 70010))
        with ended(settings), plugin(settings) as machines:
            machines.start(machine, soon())
            machines.resume(KEY, soon())
            seen = view(machines)
            status = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{seen.pid}/status").read_text().splitlines()
                if ":\t" in line
            )
            assert (status["Uid"], status["Gid"]) == ("\t".join(["70000"] * 4), "\t".join(["70000"] * 4))
            assert (status["Groups"].strip(), int(status["CapEff"], 16)) == ("", 0)
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
            home = settings.folder(machines.record_for(KEY).spec.id)
            root = Path(f"/proc/{seen.pid}/root")
            assert os.readlink(f"/proc/{seen.pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
            assert not {"root", "home", "var", "srv"} & {each.name for each in root.iterdir()} - set(
                open_image.folder.parts
            )
            assert not (root / "etc/passwd").exists()
            assert not (root / settings.state.relative_to("/")).exists()
            assert (root / "dev/null").exists()
            assert list((root / home.parent.relative_to("/")).iterdir()) == [root / home.relative_to("/")]
            assert bounds_of(seen.pid) == qemu_limits(machines.record_for(KEY).spec, "tcg")
            assert stat.S_IMODE(home.stat().st_mode) == 0o700
            assert {stat.S_IMODE((home / name).stat().st_mode) for name in ("qmp", "agent", "console")} == {0o600}

            guest = Guest(home / "agent")
            guest.check("echo written by the guest | dd of=/dev/vda conv=notrunc,fsync 2>&1")
            assert (folder / "disk").read_bytes().startswith(b"written by the guest")
            assert guest.check("head -c 17 /dev/nvme0n1") == "not to be changed"
            assert guest.run("echo x | dd of=/dev/nvme0n1 conv=fsync").status != 0
            assert (folder / "read-only").read_bytes().startswith(b"not to be changed")
            assert guest.check("cat /proc/cmdline").startswith("quiet console=ttyS0")

            # One that comes later, of which its user could open no byte, is its guest's until it leaves again.
            (folder / "later").write_bytes(b"only for root".ljust(MIB))
            (folder / "later").chmod(0o600)
            later = EmulatedDevice("later", Disk(str(folder / "later"), "raw"))
            machines.plug_in(KEY, later, soon())
            assert guest.until("head -c 13 /dev/vdb") == "only for root"
            assert open_nodes(seen.pid, [str(folder / "later")])
            machines.unplug(KEY, "later", soon())
            assert open_nodes(seen.pid, [str(folder / "later")]) == []

            # Its guest powers down while it is waited for.
            timer = threading.Timer(0.3, lambda: guest._socket.sendall(b"x cG93ZXJvZmYgLWY=\n"))
            timer.start()
            machines.stop(KEY, 60, False, soon())
            after = view(machines)
            assert (after.phase, after.reason) == ("Stopped", "StoppedOnRequest")
            guest.close()
            machines.start(machine, soon())
            assert machines.record_for(KEY).user == 70000, "its files are this user's"
            other = virtual_machine("other", start=start, memory={"min": "256Mi", "max": "256Mi"})
            machines.start(other, soon())
            assert machines.record_for("default/other").user == 70001
            for key in (KEY, "default/other"):
                machines.stop(key, None, False, soon())  # nothing ran in it yet, so that no guest is asked
                machines.forget(key, soon())


ASKS = (
    "ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 && ip route add default via 10.0.2.2; "
    "for _ in 1 2 3; do echo GET / | nc -w 3 ADDRESS && break; done"
)


class Listener:
    """A server that listens on the host's loopback only, as many do because that seems safe."""

    def __init__(self) -> None:
        self.door = socket.create_server(("127.0.0.1", 0))
        self.port = self.door.getsockname()[1]
        self.heard = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.door.accept()
                self.heard += 1
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\nloopback")


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_guest_reaches_its_host_only_where_the_admin_says_so(micro: Image, allowed: bool, later: bool) -> None:
    """With a card that it starts with, and one that is plugged in later. What is allowed proves that the guest asks."""
    with short_folder() as place:
        listener = Listener()
        settings = config(micro, place, user_net=allowed)
        with closing(listener.door), ended(settings), plugin(settings) as machines:
            nics: list[dict[str, Any]] = [] if later else [{}]
            machines.start(
                virtual_machine("m", micro, memory={"min": "256Mi", "max": "256Mi"}, nics=nics, pciSlots=1), soon()
            )
            machines.resume(KEY, soon())
            with closing(Guest(settings.folder(machines.record_for(KEY).spec.id) / "agent")) as guest:
                if later:
                    machines.plug_in(KEY, EmulatedDevice("lan", Nic()), soon())
                guest.until("[ -e /sys/class/net/eth0 ]")
                output = guest.run(ASKS.replace("ADDRESS", f"10.0.2.2 {listener.port}")).output
            assert (listener.heard > 0, "loopback" in output) == (allowed, allowed), output


def test_two_machines_never_write_one_disk_also_across_namespaces(open_image: Image) -> None:
    disk = {"path": str(open_image.folder / "disk"), "format": "raw"}
    start = {"kernel": str(open_image.kernel), "initrd": str(open_image.initrd), "disks": [disk]}
    small = {"memory": {"min": "256Mi", "max": "256Mi"}, "start": start}
    with short_folder() as place:
        before = config(open_image, place)
        with ended(before):
            with plugin(before) as machines:
                machines.start(virtual_machine("m", **small), soon())
                machines.resume(KEY, soon())
                other = virtual_machine("m", **small)
                other = other.model_copy(update={"metadata": other.metadata.model_copy(update={"namespace": "other"})})
                with raises(Denied, "DiskInUse"):
                    machines.start(other, soon())
            with plugin(config(open_image, place, folders=(AllowedFolder(open_image.folder),))) as machines:
                running(machines)  # its folders belong to namespaces from now on
                machines.stop(KEY, 0, True, soon())
                with raises(Denied, "PathNotAllowed", match=f"put it below {open_image.folder}/default"):
                    machines.start(virtual_machine("m", **small), soon())
            with plugin(before) as machines:  # with folders that all namespaces may use it starts as ever
                machines.start(virtual_machine("m", **small), soon())
                machines.stop(KEY, None, False, soon())


def bounds_of(pid: int) -> QemuLimits:
    """What the cgroups of a process let it have."""
    limits: dict[str, int] = {}
    root = Path("/sys/fs/cgroup")
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller, file in (
            ("memory", "memory.limit_in_bytes"),
            ("pids", "pids.max"),
            ("", "memory.max"),
            ("", "pids.max"),
        ):
            bound = root / controller / path.lstrip("/") / file
            if controller in controllers.split(",") and bound.exists():
                limits[file.partition(".")[0]] = int(bound.read_text())
    return QemuLimits(limits["memory"], limits["pids"])


def test_the_kernel_stops_a_process_beyond_its_bounds() -> None:
    """In the version of cgroups that this host has; in the second one also in test_sriov_bindings.py."""
    if os.geteuid() != 0:
        pytest.skip("only root can make cgroups")
    root, name = Path("/sys/fs/cgroup"), f"bounded-{os.getpid()}"
    procs, missing = confinement.set_bounds(root, name, QemuLimits(exceed_limits.MEMORY, exceed_limits.TASKS))
    try:
        assert missing == []
        words = [sys.executable, "-c", exceed_limits.PROGRAM]
        done = subprocess.run([*words, "memory", *map(str, procs)], timeout=60, check=False)
        assert done.returncode == -signal.SIGKILL
        answer = subprocess.run([*words, "tasks", *map(str, procs)], capture_output=True, timeout=60, check=True)
        assert int(answer.stdout) == exceed_limits.TASKS
    finally:
        for file in procs:
            until(lambda of=file: not of.read_text(), "all that were in it have ended")  # type: ignore[misc]
            file.parent.rmdir()


@pytest.mark.parametrize(
    ("start", "code"),
    [
        ({"kernel": "/etc/passwd"}, "PathNotAllowed"),
        ({"kernel": "FOLDER/outside"}, "PathNotAllowed"),
        ({"kernel": "FOLDER/no-such-kernel"}, "PathMissing"),
        ({"kernel": "KERNEL", "initrd": "/etc/shadow"}, "PathNotAllowed"),
        ({"disks": [{"path": "/dev/vda", "format": "raw"}]}, "PathNotAllowed"),
        ({"disks": [{"path": "FOLDER/outside", "format": "raw"}]}, "PathNotAllowed"),
        ({"disks": [{"path": "FOLDER/disk", "format": "qcow2"}]}, "DiskFormat"),
    ],
)
def test_what_a_machine_may_not_name_is_refused_and_nothing_is_left(
    open_image: Image, start: dict[str, Any], code: str
) -> None:
    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: named(each) for name, each in value.items()}
        if isinstance(value, list):
            return [named(each) for each in value]
        return value.replace("FOLDER", str(open_image.folder)).replace("KERNEL", str(open_image.kernel))

    with short_folder() as place:
        settings = config(open_image, place)
        with ended(settings), plugin(settings) as machines:
            with pytest.raises((Denied, Failed)) as error:
                machines.start(virtual_machine("m", start=named(start)), soon())
            assert error.value.code == code
            assert machines.list() == []
            assert not settings.run.exists()


@pytest.mark.parametrize("memory", [{"min": "32Ti", "max": "32Ti"}, {"min": "512Mi", "max": "8192Ti"}])
def test_more_memory_than_there_can_be_is_refused_before_qemu_is_asked(micro: Image, memory: dict[str, str]) -> None:
    with short_folder() as place:
        settings = config(micro, place)
        with ended(settings), plugin(settings) as machines:
            with raises(Denied, "MachineTooLarge", retryable=False):
                machines.start(virtual_machine("m", micro, memory=memory), soon())
            assert machines.list() == []
            assert not settings.run.exists()


def test_a_failed_start_reports_the_words_of_qemu_and_leaves_nothing(micro: Image) -> None:
    with short_folder() as place:
        settings = config(micro, place)
        with ended(settings), plugin(settings) as machines:
            with raises(Failed, "MachineDidNotStart", match="CPUs") as failed:
                machines.start(virtual_machine("m", micro, cpu={"min": "1", "max": "1000"}), soon())
            assert not failed.value.retryable, "this QEMU will never have as many"
            seen = view(machines)
            assert (seen.phase, seen.reason, seen.pid) == ("Failed", "MachineDidNotStart", 0)
            # Why it failed may pass, such as a lack of memory: a machine in care is tried again by its policy.
            assert [again.metadata.name for again in to_begin(machines)] == ["m"]
            machines.forget(KEY, soon())
            assert list(settings.run.iterdir()) == []


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[[bool], dict[str, Any]]:
    """What to start a guest with that is up at once and lets go of devices, or does not."""

    def start(ejects: bool) -> dict[str, Any]:
        return {"kernel": str(tiny_guest.write(tmp_path / f"kernel-{ejects}", ejects=ejects))}

    return start


def test_a_guest_is_asked_to_power_down_and_what_it_holds_on_to_is_taken_by_force_only(
    micro: Image, tmp_path: Path, tiny: Callable[[bool], dict[str, Any]]
) -> None:
    small = {"memory": {"min": "64Mi", "max": "64Mi"}, "pciSlots": 2}
    with short_folder() as place:
        settings = config(micro, place, folders=(AllowedFolder(tmp_path, "any"),))
        with ended(settings), plugin(settings) as machines:
            kind = AttachmentKind(machines, NoDeviceOwner())

            def up(ejects: bool) -> int:
                machines.start(virtual_machine("m", start=tiny(ejects), **small), soon())
                with machines.line(machines.record_for(KEY)) as line:
                    hotplug.plug_device(line, KEY, pci.PciDevice("claim-1", ({"driver": "virtio-rng-pci"},)), soon())
                machines.resume(KEY, soon())
                log = settings.folder(machines.record_for(KEY).spec.id) / "console.log"
                until(lambda: log.read_bytes()[-1:] == b"K", "the guest is up")
                log.write_bytes(b"")
                seen = view(machines)
                return seen.pid

            up(True)
            kind.apply(f"{KEY}/claim-1", None, soon())
            machines.stop(KEY, None, False, soon())
            seen = view(machines)
            assert (seen.phase, seen.reason) == ("Stopped", "StoppedOnRequest")

            pid = up(False)
            with raises(Denied, "GuestRefused"):
                kind.apply(f"{KEY}/claim-1", None, soon(0.5))
            assert process(pid) is not None
            kind.force(f"{KEY}/claim-1", None, soon(8))
            assert process(pid) is None
            machines.forget(KEY, soon())


def test_guests_of_a_host_that_shuts_down_power_down_and_come_back_with_it(
    micro: Image, tmp_path: Path, tiny: Callable[[bool], dict[str, Any]]
) -> None:
    small = {"memory": {"min": "64Mi", "max": "64Mi"}, "start": tiny(True)}
    with short_folder() as place:
        home = place / "node"
        settings = config(micro, place, folders=(AllowedFolder(tmp_path, "any"),), state=home / "machines")
        words = ("vm", "power-down", "--state", home, "--machine-dir", settings.run, "--socket", place / "node.sock")
        devalloc = Shell(tmp_path / "store.db")
        with (
            ended(settings),
            closing(open_journal(home)) as journal,
            closing(MachineLifecycle(settings, journal)) as machines,
        ):
            for name in ("waits", "m", "n"):
                machines.start(virtual_machine(name, **small), soon())
            for name in ("m", "n"):
                machines.resume(f"default/{name}", soon())
                log = settings.folder(machine_id(f"default/{name}")) / "console.log"
                until(lambda log=log: log.read_bytes()[-1:] == b"K", "the guest is up")  # type: ignore[misc]
            with served(place):
                refused = devalloc(*words)
            assert (refused.code, refused.out) == (1, "")
            assert "stop it first" in refused.err
            done = devalloc(*words)
            assert (done.code, done.out) == (0, "default/m powered down\ndefault/n powered down\n")
            phases = {machine.key: machine.phase for machine in machines.list()}
            assert phases == {"default/m": "Stopped", "default/n": "Stopped", "default/waits": "Starting"}
            assert sorted(machine.metadata.name for machine in to_begin(machines)) == ["m", "n", "waits"]


def test_an_unprobed_disk_cannot_even_be_written_down() -> None:
    with pytest.raises(ValueError, match="format"):
        virtual_machine("m", start={"disks": [{"path": "/d"}]})


def test_a_running_machine_is_adopted_changed_and_let_go_again(machine: Machine, micro: Image, tmp_path: Path) -> None:
    adopted = virtual_machine("m", start=None, adopt={"qmpSocket": str(machine.plugin_monitor)})
    with short_folder() as place:
        strict = config(micro, place, socket_folders=(AllowedFolder(place, "any"),))
        with plugin(strict) as machines, raises(Denied, "PathNotAllowed"):
            machines.adopt(adopted, soon())
        settings = replace(
            strict, socket_folders=(AllowedFolder(tmp_path, "any"),), folders=(AllowedFolder(tmp_path, "any"),)
        )
        guest = machine.guest
        with plugin(settings) as machines:
            machines.adopt(adopted, soon())
            seen = running(machines)
            assert (seen.pid, seen.adopted) == (machine.process.pid, True)
            machines.scale(KEY, "vcpus", 2, soon())
            guest.until("[ $(cat /sys/devices/system/cpu/online) = 0-1 ]")
            machines.scale(KEY, "memory", 768 * MIB, soon())
            guest.until("[ $(awk '/MemTotal/ {print $2}' /proc/meminfo) -gt 600000 ]")
            disk = EmulatedDevice("d", Disk(str(tmp_path / "image"), "raw", device="nvme"))
            (tmp_path / "image").write_bytes(b"a disk that came later".ljust(MIB))
            machines.plug_in(KEY, disk, soon())
            assert guest.until("head -c 22 /dev/nvme0n1") == "a disk that came later"
        with plugin(settings) as machines:  # restarted
            again = view(machines)
            assert (again.pid, again.observed.vcpus, again.plain) == (machine.process.pid, 2, (disk,))
            machines.unplug(KEY, "d", soon())
            guest.until("[ ! -e /dev/nvme0n1 ]")
            machines.forget(KEY, soon())
            assert machines.list() == []
        assert guest.check("echo it goes on") == "it goes on"


def test_a_machine_that_may_lock_too_little_is_refused_before_anything_is_touched(micro: Image) -> None:
    """As root QEMU may lock what it likes, unless it has not got the capability."""
    with short_folder() as place:
        words = [str(micro.qemu), *TCG, "-display", "none", "-nodefaults", "-S", "-m", "64"]
        words += ["-qmp", f"unix:{place}/qmp,server=on,wait=off", "-qmp", f"unix:{place}/own,server=on,wait=off"]
        script = (
            "import ctypes,os,resource,sys;resource.setrlimit(resource.RLIMIT_MEMLOCK,(65536,65536));"
            "ctypes.CDLL(None).prctl(24,14,0,0,0);os.execv(sys.argv[1],sys.argv[1:])"
        )
        assert resource.RLIMIT_MEMLOCK
        qemu = subprocess.Popen([sys.executable, "-I", "-c", script, *words])
        try:
            Monitor(place / "own").close()
            settings: MachineConfig = config(micro, place)
            with plugin(settings) as machines:
                machine = virtual_machine("m", start=None, adopt={"qmpSocket": str(place / "qmp")}, claims=["gpu"])
                with raises(Denied, "MemlockTooLow", match="lock 0Mi"):
                    machines.adopt(machine, soon())
                assert machines.list() == []
        finally:
            qemu.kill()
            qemu.wait()


def test_a_guest_boots_with_emulation_and_the_test_of_kvm_can_tell(micro: Image) -> None:
    assert preflight.why_no_boot(str(micro.qemu), "tcg", 60.0) == ""
    assert preflight.why_no_boot(str(micro.qemu), "no-such-accelerator", 60.0)
