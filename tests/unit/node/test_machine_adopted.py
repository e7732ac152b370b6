"""Machines that run already: whose they are, what is plugged into them by steps of claims, and how that is undone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu import (
    adoption,
    hotplug,
    launch,
    lifecycle,
    machine_files,
    process,
    rates,
    registry,
    user_ids,
)
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.exits import power_down_all
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.qmp import QmpMonitor
from devalloc_machines.qemu.records import (
    MACHINES,
    PLUGS,
    MachineAmounts,
    MachineObservation,
    MachineRecord,
    MachineView,
    State,
    content_of,
    record_of,
)
from devalloc_machines.qemu.settings import AllowedFolder, MachineConfig
from devalloc_machines.qemu.spec import Disk, EmulatedDevice, spec_of
from devalloc_machines.service import replies
from devalloc_node.errors import Denied, Failed, Unknown
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import ForcibleKind, Prepared, PreparedDevice
from tests.support.deadlines import deadline_after, soon
from tests.support.fake_qmp import Error, FakeQemu
from tests.support.machines import (
    view,
    virtual_machine,
)
from tests.support.node_errors import raises
from tests.support.vm_rounds import to_begin
from tests.support.waiting import until

KEY = "default/m"
REF = ClaimRef("default", "c", "11111111-2222-3333-4444-555555555555")
MIB = 1 << 20


class MemoryRecords:
    """The records of a journal, without the disk."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Mapping[str, Any]] = {}

    def record(self, room: str, name: str) -> Mapping[str, Any] | None:
        return self.rows.get((room, name))

    def records(self, room: str) -> Mapping[str, Mapping[str, Any]]:
        return {name: row for (where, name), row in self.rows.items() if where == room}

    def put(self, room: str, name: str, content: Mapping[str, Any]) -> None:
        self.rows[room, name] = content

    def drop(self, room: str, name: str) -> None:
        self.rows.pop((room, name), None)


class Owners:
    """Who owns which node, without the rights that changing it needs."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, int, int]] = []

    def own(self, node: str, uid: int, gid: int) -> None:
        self.changes.append((node, uid, gid))


@pytest.fixture
def config(tmp_path: Path) -> MachineConfig:
    return MachineConfig(
        state=tmp_path / "state",
        run=tmp_path / "run",
        socket_folders=(AllowedFolder(tmp_path, "any"),),
        accel="tcg",
        users=None,
        command_seconds=2.0,
    )


@pytest.fixture
def machines(config: MachineConfig) -> Iterator[MachineLifecycle]:
    made = MachineLifecycle(config, MemoryRecords())
    yield made
    made.close()


@pytest.fixture
def kind(machines: MachineLifecycle, monkeypatch: pytest.MonkeyPatch) -> AttachmentKind:
    """Of a plugin whose machines, which are this very process, may lock all memory they like."""
    monkeypatch.setattr(process, "memlock", lambda pid: None)
    monkeypatch.setattr(adoption, "memlock", lambda pid: None)
    return AttachmentKind(machines, Owners())


def adopting(path: Path, **spec: Any) -> VirtualMachine:
    return virtual_machine("m", start=None, adopt={"qmpSocket": str(path)}, **spec)


def prepared(*nodes: str, functions: int = 1) -> Prepared:
    addresses = tuple(f"0000:41:00.{n}" for n in range(functions))
    return Prepared(REF, (PreparedDevice((), "pool", "gpu", "vfio", addresses, nodes=nodes),))


# Whose it is.


def test_an_adopted_machine_is_observed_and_nothing_of_it_is_touched(
    machines: MachineLifecycle, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    machines.adopt(adopting(qemu.path), soon())  # again is success
    seen = view(machines)
    assert (seen.phase, seen.adopted, seen.pid) == ("Running", True, os.getpid())
    assert (seen.observed.vcpus, seen.observed.memory_bytes) == (1, 512 * MIB)
    assert qemu.commands == []
    machines.forget(KEY, soon())
    assert machines.get(KEY) is None
    assert qemu.commands == []


def test_a_machine_that_ended_leaves_no_limit_to_the_one_that_is_adopted_under_its_name(
    machines: MachineLifecycle, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlimited: list[str] = []
    monkeypatch.setattr(rates.traffic, "set_rates", lambda namespace, tap, rate: unlimited.append(tap))
    before = MachineRecord(virtual_machine("m").to_manifest(), "running", "an earlier run", tap_limits=(("", "tap1"),))
    machines.put(before)
    machines.adopt(adopting(qemu.path), soon())
    assert (unlimited, machines.record_for(KEY).tap_limits) == (["tap1"], ())


def test_an_adopted_machine_that_is_deleted_goes_on_without_the_rate_of_its_disks(
    machines: MachineLifecycle, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk: dict[str, Any] = {"bps": 0}

    def throttle(arguments: dict[str, Any]) -> Any:
        disk.pop("group", None)
        disk.update({name: arguments[name] for name in ("bps", "group") if name in arguments})
        return {}

    monkeypatch.setattr(qemu, "_do_query_block", lambda _: [{"qdev": "/disk", "inserted": disk}], raising=False)
    monkeypatch.setattr(qemu, "_do_block_set_io_throttle", throttle, raising=False)
    machine = adopting(qemu.path, diskIO="20M")
    machines.adopt(machine, soon())
    with monkeypatch.context() as lies:
        lies.setattr(qemu, "_do_block_set_io_throttle", lambda _: {})
        lied = machines.limit_rates(KEY, spec_of(machine).rates, soon())
        assert "QEMU accepted the rate of disks /disk, but does not have it" in lied[0]
        qemu.commands.clear()
        assert machines.limit_rates(KEY, spec_of(machine).rates, soon()) == lied
        assert qemu.commands == [], "it is asked again after a while, and not at once"
    machines._refused_rates.clear()
    assert machines.limit_rates(KEY, spec_of(machine).rates, soon()) == ()
    assert disk == {"bps": 20_000_000, "group": rates.GROUP}
    machines.forget(KEY, soon())
    assert (disk, machines.get(KEY)) == ({"bps": 0}, None)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"memory": {"min": "1Gi", "max": "2Gi"}}, "has 512Mi of memory, .* are 1Gi to 2Gi of memory"),
        ({"cpu": {"min": "2", "max": "4"}}, "has 1 vCPUs, .* are 2 to 4 vCPUs"),
    ],
)
def test_a_machine_outside_its_bounds_is_not_adopted(
    machines: MachineLifecycle, qemu: FakeQemu, bounds: dict[str, Any], words: str
) -> None:
    with pytest.raises(Denied, match=words) as denied:
        machines.adopt(adopting(qemu.path, **bounds), soon())
    assert (denied.value.code, machines.list()) == ("OutOfBounds", [])


def test_the_refusal_of_a_disk_in_use_names_the_other_machine(
    config: MachineConfig, qemu: FakeQemu, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"content".ljust(MIB))
    machines = MachineLifecycle(
        replace(config, binary="true", folders=(AllowedFolder(tmp_path, "any"),)), MemoryRecords()
    )
    start = virtual_machine("n", start={"disks": [{"path": str(image), "format": "raw"}]})
    with image.open("rb") as other:
        fcntl.fcntl(other, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 201, 1, 0))
        for by in ("another machine, or by a tool of QEMU", f"machine {KEY}"):
            with raises(Denied, "DiskInUse", match=f"disk {image} is in use by {by}$"):
                machines.start(start, soon())
            machines.adopt(adopting(qemu.path), soon())  # which is this very process, and has the image open
        with pytest.raises(Denied, match=f"is in use by machine {KEY} itself$"):
            machines.plug_in(KEY, EmulatedDevice("again", Disk(str(image), "raw")), soon())
    machines.close()


def test_one_machine_has_one_name(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    machines.adopt(adopting(qemu.path), soon())
    again = virtual_machine("n", start=None, adopt={"qmpSocket": str(qemu.path)})
    with raises(Denied, "MachineExists") as denied:
        machines.adopt(again, soon())
    assert KEY in denied.value.message
    machines.forget(KEY, soon())
    machines.adopt(again, soon())
    assert [machine.key for machine in machines.list()] == ["default/n"]


def test_a_socket_outside_the_allowed_folders_is_refused(
    machines: MachineLifecycle, qemu: FakeQemu, tmp_path: Path, config: MachineConfig
) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "link").symlink_to(qemu.path)
    strict = MachineLifecycle(replace(config, socket_folders=(AllowedFolder(inside, "any"),)), MemoryRecords())
    for path in (qemu.path, inside / "link"):
        with raises(Denied, "PathNotAllowed"):
            strict.adopt(adopting(path), soon())
    strict.close()
    (tmp_path / "file").touch()
    with pytest.raises(Denied, match="not a socket"):
        machines.adopt(adopting(tmp_path / "file"), soon())
    assert qemu.connections == 0


def test_a_strangers_socket_is_refused_also_where_the_file_was_given_to_us(
    machines: MachineLifecycle, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a process of another user")
    path = Path(f"/tmp/dvm-stranger-{os.getpid()}")
    script = (
        "import os,socket,sys,time;os.setgid(65534);os.setuid(65534);"
        "s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1]);s.listen();time.sleep(60)"
    )
    stranger = subprocess.Popen([sys.executable, "-I", "-c", script, str(path)])
    allowed = MachineLifecycle(
        replace(machines.config, socket_folders=(AllowedFolder(Path("/tmp"), "any"),)), MemoryRecords()
    )
    try:
        until(path.exists, "it listens")
        time.sleep(0.05)
        with raises(Denied, "SocketNotOurs", match="65534"):
            allowed.adopt(adopting(path), soon())
        os.chown(path, 0, 0)
        with raises(Denied, "SocketNotOurs", match="process of user 65534"):
            allowed.adopt(adopting(path), soon())
    finally:
        stranger.send_signal(signal.SIGKILL)
        stranger.wait()
        path.unlink(missing_ok=True)
        allowed.close()


@contextmanager
def handed_over(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A QEMU of its own process on a socket at which we listened first, as libvirt does."""
    script = (
        "import socket,sys,time;from pathlib import Path;from tests.support.fake_qmp import FakeQemu;"
        "FakeQemu(Path(), listener=socket.socket(fileno=int(sys.argv[1])));print('ready', flush=True);time.sleep(600)"
    )
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        started = subprocess.Popen(
            [sys.executable, "-c", script, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    with started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "ready\n"
            yield started
        finally:
            started.kill()


def test_the_machine_is_who_answers_and_not_who_made_its_socket(machines: MachineLifecycle, tmp_path: Path) -> None:
    with handed_over(tmp_path / "given") as other:
        machines.adopt(adopting(tmp_path / "given"), soon())
        seen = view(machines)
        assert seen.pid == other.pid, "or ending it would end the process that keeps machines on this host"
        other.kill()
        until(lambda: (machines.get(KEY) or seen).phase == "Stopped", "its end is noticed")


def test_another_machine_at_the_same_socket_gets_no_command(
    machines: MachineLifecycle, qemu: FakeQemu, tmp_path: Path
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    with handed_over(tmp_path / "other") as other:
        (tmp_path / "other").rename(qemu.path)
        with machines.line(machines.record_for(KEY)) as monitor, raises(Denied, "SocketNotOurs", match=str(other.pid)):
            monitor.execute("quit", deadline=soon())
        assert other.poll() is None


def test_a_machine_that_may_lock_too_little_is_refused_before_anything_is_touched(
    machines: MachineLifecycle, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption, "memlock", lambda pid: 8 * MIB)
    with raises(Denied, "MemlockTooLow", match=r"8Mi.*3072Mi"):
        machines.adopt(adopting(qemu.path, claims=["c"]), soon())
    machines.adopt(adopting(qemu.path), soon())  # without devices it locks nothing
    kind = AttachmentKind(machines, Owners())
    with pytest.raises(Denied):
        kind.attachments(KEY, prepared(), soon())
    with pytest.raises(Denied):
        kind.apply(f"{KEY}/claim-1", {"functions": ["0000:41:00.0"], "nodes": []}, soon())
    assert qemu.commands == []


def test_a_machine_that_does_not_answer_is_not_adopted(
    machines: MachineLifecycle, qemu: FakeQemu, tmp_path: Path
) -> None:
    qemu.trouble["greeting"] = "hang"
    with pytest.raises(Unknown):
        machines.adopt(adopting(qemu.path), soon(0.4))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "dead"))
    server.close()
    with pytest.raises(Failed):
        machines.adopt(adopting(tmp_path / "dead"), soon())
    assert machines.list() == []


def test_amounts_outside_the_spec_and_shares_of_a_shared_cgroup_are_denied(
    machines: MachineLifecycle, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    for what, amount, words in (
        ("vcpus", 5, "was started with the bounds 1 to 4 vCPUs and cannot have 5;"),
        ("vcpus", 0, "cannot have 0;"),
        ("memory", 3 << 30, "was started with the bounds 512Mi to 2Gi of memory and cannot have 3Gi;"),
        ("memory", 1, "cannot have 1 bytes;"),
        ("cpu", 4500, "was started with the bounds 1 to 4 CPUs and cannot have 4500m;"),
        ("wheels", 4, "no 'wheels'"),
    ):
        with pytest.raises(Denied, match=words):
            machines.scale(KEY, what, amount, soon())
    assert qemu.commands == []
    for vcpus, thousandths in ((1, 1500), (3, 1000)):
        machines.scale(KEY, "vcpus", vcpus, soon())
        with raises(Denied, "CgroupShared"):
            machines.scale(KEY, "cpu", thousandths, soon())
    machines.scale(KEY, "memory", 1 << 30, soon())
    seen = view(machines)
    assert (seen.observed.vcpus, seen.observed.memory_bytes) == (3, 1 << 30)
    assert (seen.applied.vcpus, seen.applied.memory_bytes) == (3, 1 << 30)
    assert seen.applied.cpu_milli == seen.observed.cpu_milli == 3000, "whole vCPUs are their own bound"


def test_a_machine_is_changed_only_once_it_is_noted_what_was_asked(
    machines: MachineLifecycle, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    put, room = machines.records.put, 0

    def full(*record: Any) -> None:
        nonlocal room
        if not room:
            raise Failed("JournalFull", "no space left")
        room -= 1
        put(*record)

    monkeypatch.setattr(machines.records, "put", full)
    for what, amount in (("vcpus", 2), ("memory", 1 << 30)):
        with pytest.raises(Failed) as failed:
            machines.scale(KEY, what, amount, soon())
        assert (failed.value.code, qemu.commands) == ("JournalFull", []), "the machine is as it was"
    room = 1  # for what is asked, and then the disk is full
    with pytest.raises(Failed, match="was changed as requested"):
        machines.scale(KEY, "vcpus", 2, soon())
    seen = view(machines)
    assert (seen.wanted.vcpus, seen.applied.vcpus, seen.observed.vcpus) == (2, 1, 2)
    monkeypatch.undo()
    machines.scale(KEY, "vcpus", 2, soon())
    seen = view(machines)
    assert seen.applied.vcpus == 2, "asked again it is noted"


def test_cpus_of_an_emulated_machine_do_not_leave_where_its_qemu_would_crash(
    machines: MachineLifecycle, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    qemu.kvm = False

    def denied(vcpus: int) -> str:
        calls_before = len(qemu.commands)
        with pytest.raises(Denied) as denied:
            machines.scale(KEY, "vcpus", vcpus, soon())
        assert (denied.value.code, len(qemu.commands)) == ("CpusEmulated", calls_before), "QEMU is not even asked"
        return denied.value.message

    machines.scale(KEY, "vcpus", 3, soon())
    assert "QEMU 7.2 crashes" in denied(2)
    machines.scale(KEY, "vcpus", 4, soon())  # more is fine
    qemu.version["major"] = 10
    machines.scale(KEY, "vcpus", 2, soon())
    assert "vCPUs may have been unplugged" in denied(3)
    machines.scale(KEY, "vcpus", 1, soon())
    machines.forget(KEY, soon())
    machines.adopt(adopting(qemu.path), soon())
    assert "vCPUs may have been unplugged" in denied(2), "its QEMU tells who knows nothing of that"
    qemu.kvm = True
    machines.scale(KEY, "vcpus", 2, soon())


def test_an_emulated_machine_that_no_cpu_has_left_is_given_more_after_it_was_adopted_again(
    machines: MachineLifecycle, qemu: FakeQemu
) -> None:
    qemu.kvm, qemu.version["major"] = False, 10
    for vcpus in (2, 3):
        machines.adopt(adopting(qemu.path), soon())
        machines.scale(KEY, "vcpus", vcpus, soon())
        machines.forget(KEY, soon())
    assert sorted(qemu.cpus) == [0, 1, 2]


def test_cpus_leave_an_emulated_machine_whose_qemu_cannot_keep_that(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    qemu.kvm, qemu.version["major"] = False, 10
    machines.adopt(adopting(qemu.path), soon())
    machines.scale(KEY, "vcpus", 3, soon())
    qemu.refuses["object-add"] = "'secret' is not a valid object type"
    machines.scale(KEY, "vcpus", 2, soon())
    with pytest.raises(Denied, match="vCPUs may have been unplugged"):
        machines.scale(KEY, "vcpus", 3, soon())


def test_a_refusal_of_the_guest_leaves_the_amounts_it_reached(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    machines.adopt(adopting(qemu.path), soon())
    qemu.stuck_at = 256 * MIB
    with pytest.raises(Denied):
        machines.scale(KEY, "memory", 1 << 30, deadline_after(lambda: qemu.requested))
    machines.scale(KEY, "vcpus", 3, soon())
    qemu.guest = "refuses"
    with pytest.raises(Denied):
        machines.scale(KEY, "vcpus", 2, soon())
    seen = view(machines)
    assert qemu.requested == 256 * MIB
    assert (seen.applied.memory_bytes, seen.applied.vcpus) == (768 * MIB, 3)


def test_a_request_to_the_guest_counts_though_the_plugin_ended_before_the_record(
    machines: MachineLifecycle, qemu: FakeQemu, config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it is about to take would be given back, and permitted to another machine."""
    machines.adopt(adopting(qemu.path), soon())
    qemu.stuck_at = 256 * MIB

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("devalloc_machines.qemu.memory._stop_asking", killed)
        with pytest.raises(KeyboardInterrupt):
            machines.scale(KEY, "memory", 1 << 30, deadline_after(lambda: qemu.requested))
    assert (qemu.requested, qemu.size) == (512 * MIB, 256 * MIB)
    with contextlib.closing(MachineLifecycle(config, machines.records)) as after:
        after.recover()
        seen = view(after)
        assert (seen.observed.memory_bytes, seen.applied.memory_bytes) == (768 * MIB, 1 << 30)
        qemu.stuck_at = None
        after.scale(KEY, "memory", 1 << 30, soon())
        seen = view(after)
        assert seen.observed.memory_bytes == seen.applied.memory_bytes == 1 << 30
        calls_before = len(qemu.commands)
        monkeypatch.setattr(qemu, "_do_query_memory_devices", killed)  # what is settled is not asked for again
        again = view(after)
        assert (again.reason, len(qemu.commands)) == ("", calls_before)


def test_a_record_that_cannot_be_read_hides_no_other_machine(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    machines.adopt(adopting(qemu.path), soon())
    machines.records.put(MACHINES, "default/bad", {"manifest": {"kind": "Nonsense"}, "state": "running", "run": ""})
    machines.recover()
    phases = {machine.key: (machine.phase, machine.reason) for machine in machines.list()}
    assert phases == {KEY: ("Running", ""), "default/bad": ("Unknown", "RecordUnreadable")}
    assert to_begin(machines) == []
    with pytest.raises(Failed):
        machines.start(virtual_machine("bad"), soon())


def test_a_qemu_that_talks_nonsense_hides_no_other_machine(
    machines: MachineLifecycle, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    monkeypatch.setattr(qemu, "_do_query_hotpluggable_cpus", lambda a: [{"props": 7}])
    machines._looks.forget(KEY)
    (seen,) = machines.list()
    assert (seen.phase, seen.reason) == ("Unknown", "MonitorUnreadable")


def test_nonsense_of_a_qemu_is_its_own_failure_and_no_bug(
    machines: MachineLifecycle, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, Any] = {
        "query_uuid": {},
        "query_hotpluggable_cpus": [{"props": 7}],
        "query_memory_size_summary": [],
    }
    for command, answer in answers.items():
        with monkeypatch.context() as only:
            only.setattr(qemu, f"_do_{command}", lambda a, answer=answer: answer)
            with raises(Failed, "MonitorUnreadable"):
                machines.adopt(adopting(qemu.path), soon())
    machines.adopt(adopting(qemu.path), soon())
    monkeypatch.setattr(qemu, "_do_query_hotpluggable_cpus", lambda a: [{"props": 7}])
    with raises(Failed, "MonitorUnreadable"):
        machines.scale(KEY, "vcpus", 2, soon())


def test_junk_from_one_qemu_hides_no_other_machine(
    machines: MachineLifecycle, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no message of ours can carry would end the whole list."""

    def refuse(a: object) -> None:
        raise Error("\ud800" + "x" * 3_000_000)

    lies: list[tuple[str, Callable[[object], Any]]] = [
        ("query_memory_size_summary", lambda a: {"base-memory": 1 << 70}),
        ("query_memory_size_summary", lambda a: {"base-memory": -5}),
        ("query_hotpluggable_cpus", lambda a: [{"props": {}, "vcpus-count": 1 << 40, "qom-path": "x"}]),
        ("query_hotpluggable_cpus", refuse),
    ]
    machines.adopt(adopting(qemu.path), soon())
    for command, answer in lies:
        with monkeypatch.context() as only:
            only.setattr(qemu, f"_do_{command}", answer)
            machines._looks.forget(KEY)
            (seen,) = machines.list()
            reply = replies.machine(seen, [])
            assert (seen.phase, len(reply.message) < 500) == ("Unknown", True)
    qemu.devices["plug-x.f0"] = {"driver": "nvme", "bus": "port0"}
    for path, driver in (("/a\ud800", "raw"), ("/" + "a" * 5000, "raw"), ("/a", "\ud800"), ("/a", 7)):
        node = {"node-name": "plug-x.disk", "drv": driver, "ro": False}
        fds = {"fdset-id": 1001, "fds": [{"fd": 3, "opaque": f"plug-x {path}"}]}
        with monkeypatch.context() as only:
            only.setattr(qemu, "_do_query_named_block_nodes", lambda a, node=node: [node])
            only.setattr(qemu, "_do_query_fdsets", lambda a, fds=fds: [fds])
            machines._looks.forget(KEY)
            (seen,) = machines.list()
            replies.machine(seen, [])
            assert seen.reason == "MonitorUnreadable"
    machines.forget(KEY, soon())
    qemu.uuid = "\ud800"
    with pytest.raises(Failed, match="unreadable answer"):
        machines.adopt(adopting(qemu.path), soon())


def test_machines_that_hang_do_not_add_up_and_hide_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def observe(record: MachineRecord) -> MachineObservation:
        if record.spec.name == "well":
            return MachineObservation(observed=MachineAmounts(1000, 1, 512 * MIB))
        assert answered.wait(60), "it was waited for"
        raise Unknown("MonitorSilent", "no answer")

    monkeypatch.setattr(registry, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(registry, "_SLACK_SECONDS", 0.05)
    names = ["well", *(f"hangs-{n}" for n in range(40))]
    records = [MachineRecord(virtual_machine(name).to_manifest(), "running", "run") for name in names]
    answered, seen = threading.Event(), registry.StatusCache(observe)
    seen.ahead(records)
    answered.set()
    codes = {look.problem.code for record in records[1:] if (look := seen.at(record)).problem is not None}
    assert codes == {"MonitorSilent"}
    until(lambda: seen.at(records[0]).observed.vcpus == 1, "what the one that is well says")


def test_a_look_during_a_change_is_not_shown_afterwards() -> None:
    """Else one that is deleted and created anew is said not to answer, because its last run did not."""
    record = MachineRecord(virtual_machine("web").to_manifest(), "running", "run")

    def observe(record: MachineRecord) -> MachineObservation:
        if not seen_first:
            seen_first.append(record)
            seen.forget(record.spec.key)  # it was ended, and begun again
            raise Failed("MonitorUnreachable", "the port is closed")
        return MachineObservation(observed=MachineAmounts(1000, 1, 64 * MIB))

    seen_first: list[MachineRecord] = []
    seen = registry.StatusCache(observe)
    assert seen.at(record).problem is not None
    assert (seen.at(record).problem, seen.at(record).observed.vcpus) == (None, 1)


def test_an_adopted_machine_is_its_process_however_its_uuid_was_written(tmp_path: Path) -> None:
    run = "ABCDEF00-0000-4000-8000-000000000001"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "-uuid", run]) as running:
        identity = process.process(running.pid)
        assert identity is not None
        manifest = adopting(tmp_path / "qmp").to_manifest()
        record = MachineRecord(manifest, "running", run.lower(), None, identity, adoption.boot_id())
        assert not registry.is_other_run(record, identity)
        running.kill()


def test_what_another_plugin_does_with_machines_is_taken_up(
    machines: MachineLifecycle, qemu: FakeQemu, config: MachineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """In a rolling update two share a state folder, and the one that stays was there first."""
    with contextlib.closing(MachineLifecycle(config, machines.records)) as new:
        new.recover()
        machines.adopt(adopting(qemu.path), soon())
        record, _ = new.running(KEY)
        assert not new._settling.watcher.watches(KEY)
        new.settle()
        assert new._settling.watcher.watches(KEY), "that it ends is noticed"
        with machines.hold(KEY, soon(), "scale memory"):
            machines.put(record.become("stopping"))
            new.settle()
            assert new.record_for(KEY).state == "stopping", "who stops it sees to it"
        new.settle()  # the other one was killed
        assert (new.record_for(KEY).state, new.record_for(KEY).reason) == ("running", "StopWanted")
        machines.put(MachineRecord(virtual_machine("gone").to_manifest(), "running", "a run that is over"))
        new.settle()
        assert new.record_for("default/gone").state == "stopped"
    assert "MachineBusy" not in caplog.text
    assert "in progress" not in caplog.text


def test_a_stop_that_was_cut_off_leaves_a_machine_that_runs(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    machines.adopt(adopting(qemu.path), soon())
    content = dict(machines.records.record(MACHINES, KEY) or {})
    machines.records.put(MACHINES, KEY, {**content, "state": "stopping"})
    machines.recover()
    seen = view(machines)
    assert (seen.phase, seen.reason) == ("Running", "StopWanted")


def test_a_guest_that_powers_down_too_late_is_not_started_again(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    machines.adopt(adopting(qemu.path), soon())

    def refused(seconds: float) -> str:
        with pytest.raises(Denied) as denied:
            machines.stop(KEY, seconds, False, soon())
        seen = view(machines)
        assert (denied.value.code, seen.phase) == ("GuestRefused", "Running")
        return seen.reason

    assert refused(0) == "", "its guest was not even asked"
    assert refused(0.01) == "StopWanted"
    machines.resume(KEY, soon())
    assert machines.record_for(KEY).reason == "", "it is wanted again"
    assert refused(0.01) == "StopWanted"
    content = dict(machines.records.record(MACHINES, KEY) or {})
    manifest = virtual_machine("m").to_manifest()
    machines.records.put(MACHINES, KEY, {**content, "manifest": manifest, "process": None})
    assert to_begin(machines) == []
    machines.recover()
    seen = view(machines)
    assert (seen.phase, seen.reason) == ("Stopped", "StoppedOnRequest")
    assert to_begin(machines) == []


def test_after_a_reboot_the_number_of_a_process_means_nothing(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    machines.adopt(adopting(qemu.path), soon())
    content = dict(machines.records.record(MACHINES, KEY) or {})
    machines.records.put(MACHINES, KEY, {**content, "boot": "another"})
    seen = view(machines)
    assert seen.phase == "Stopped"


# Machines of its own.


def test_machines_that_are_started_at_once_have_users_of_their_own(
    config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def check(*_: object) -> None:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.3)

    def refuse(*_: object) -> None:
        raise Failed("MachineDidNotStart", "there is no QEMU here")

    monkeypatch.setattr(launch, "check", check)
    monkeypatch.setattr(launch, "launch", refuse)
    monkeypatch.setattr(adoption, "own_user", lambda: 0)
    machines = MachineLifecycle(replace(config, users=range(70000, 70010)), MemoryRecords())

    def start(name: str) -> None:
        with suppress(Failed):
            machines.start(virtual_machine(name), soon())

    threads = [threading.Thread(target=start, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(content["user"] for content in machines.records.records(MACHINES).values()) == [70000, 70001]
    machines.close()


def put(machines: MachineLifecycle, **content: object) -> MachineRecord:
    """A machine that was started, as the journal has it."""
    record = MachineRecord(virtual_machine("m").to_manifest(), "running", "some-run")
    machines.records.put(MACHINES, KEY, {**content_of(record), **content})
    return record_of(KEY, machines.records.record(MACHINES, KEY) or {})


def test_a_link_that_a_machine_put_in_its_place_leads_to_no_other_machine(
    machines: MachineLifecycle, config: MachineConfig, qemu: FakeQemu
) -> None:
    record = put(machines, user=70001)
    folder = config.folder(record.spec.id)
    folder.mkdir(parents=True)
    (folder / "qmp").symlink_to(qemu.path)
    with machines.line(record) as monitor, raises(Denied, "SocketNotOurs"):
        monitor.execute("quit", deadline=soon())
    assert qemu.commands == []


def test_a_machine_that_ended_a_moment_ago_has_ended(machines: MachineLifecycle) -> None:
    put(machines)
    seen = view(machines)
    assert (seen.phase, seen.reason) == ("Stopped", "MachineEnded"), "a machine that never restarts must not"


def test_a_machine_with_a_removed_life_file_lives(
    machines: MachineLifecycle, config: MachineConfig, tmp_path: Path
) -> None:
    """Else a second QEMU of it is started, beside the one that has its devices."""
    record = put(machines)
    life = config.life(record.spec.id)
    life.parent.mkdir(parents=True, exist_ok=True)
    code = f"import os, time; os.open({str(life)!r}, os.O_RDONLY | os.O_CREAT); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, f"guest={record.spec.id},x"], stdout=subprocess.PIPE) as qemu:
        assert qemu.stdout is not None
        qemu.stdout.readline()
        life.unlink()
        living = machine_files.process_of(record.spec.id, config)
        assert living is not None
        assert living.pid == qemu.pid
        assert machine_files.process_of("another", config) is None
        qemu.kill()
    assert machine_files.process_of(record.spec.id, config) is None


def test_it_lives_also_where_it_closes_another_file_while_it_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    life, readlink = tmp_path / "m.life", os.readlink
    code = f"import os, time; os.open({str(life)!r}, os.O_CREAT); print(flush=True); time.sleep(60)"

    def closing(path: str, **options: object) -> str:
        if (target := readlink(path)) == os.devnull:
            raise FileNotFoundError(path)
        return target

    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as qemu:
        assert qemu.stdout is not None
        qemu.stdout.readline()
        life.unlink()
        monkeypatch.setattr(os, "readlink", closing)
        living = process.with_removed_file(life, code.encode())
        qemu.kill()
    assert living is not None
    assert living.pid == qemu.pid


def test_an_unreadable_lost_machine_hides_no_other(machines: MachineLifecycle, config: MachineConfig) -> None:
    put(machines)
    config.life("stray").parent.mkdir(parents=True, exist_ok=True)
    config.life("stray").symlink_to("elsewhere")
    assert machines.all_lost() == []


def test_a_record_that_cannot_be_read_is_not_said_each_time_that_machines_are_settled(
    machines: MachineLifecycle, caplog: pytest.LogCaptureFixture
) -> None:
    machines.records.put(MACHINES, KEY, {"strange": True})
    machines.put(MachineRecord(virtual_machine("gone").to_manifest(), "running", "a run that is over"))
    machines.settle()
    assert machines.record_for("default/gone").state == "stopped"
    assert KEY not in caplog.text


def test_a_start_that_was_cut_off_by_a_power_cut_has_failed(machines: MachineLifecycle) -> None:
    put(machines, state="starting")
    machines.recover()
    seen = view(machines)
    assert (seen.phase, seen.reason) == ("Failed", "MachineDidNotStart")


@pytest.fixture
def cut_off(
    machines: MachineLifecycle, config: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[MachineRecord, FakeQemu]]:
    """A machine that lives, and whose start the journal does not know to have ended: the plugin was killed."""
    record = put(machines, state="starting")
    folder = config.folder(record.spec.id)
    folder.mkdir(parents=True)
    this = process.process(os.getpid())
    monkeypatch.setattr(machine_files, "process_of", lambda machine, config: this)
    qemu = FakeQemu(folder / "qmp")
    yield record, qemu
    qemu.close()


@pytest.mark.parametrize(
    ("status", "phase"), [("running", "Running"), ("paused", "Running"), ("prelaunch", "Starting")]
)
def test_a_guest_that_runs_is_not_taken_for_one_that_never_ran_because_the_plugin_was_killed(
    machines: MachineLifecycle, cut_off: tuple[MachineRecord, FakeQemu], status: str, phase: str
) -> None:
    cut_off[1].status = status
    machines.recover()
    seen = view(machines)
    assert (seen.phase, seen.state is State.CUT_OFF) == (phase, phase == "Starting")


@pytest.mark.parametrize(("window", "phase"), [(1 << 34, "Running"), (1 << 20, "Starting")])
def test_a_guest_whose_device_has_no_address_has_not_started_though_its_cpus_run(
    machines: MachineLifecycle, cut_off: tuple[MachineRecord, FakeQemu], window: int, phase: str
) -> None:
    """It is started again, and that start says ``NoPciWindow``, if it is so."""
    _, qemu = cut_off
    qemu.devices["claim-1.f0"] = {"id": "claim-1.f0", "driver": "vfio-pci", "bus": "port0", "host": "0000:41:00.0"}
    qemu.bar_sizes["0000:41:00.0"] = 1 << 34
    qemu.windows["port0"] = window
    machines.recover()
    seen = view(machines)
    assert seen.phase == phase


@pytest.mark.parametrize(("status", "powerdowns"), [("running", 1), ("prelaunch", 0)])
def test_a_guest_whose_cpus_run_is_asked_to_power_down_though_its_start_was_cut_off(
    machines: MachineLifecycle,
    cut_off: tuple[MachineRecord, FakeQemu],
    monkeypatch: pytest.MonkeyPatch,
    status: str,
    powerdowns: int,
) -> None:
    _, qemu = cut_off
    qemu.status = status
    monkeypatch.setattr(launch, "wait", lambda *_: True)
    assert power_down_all(machines, soon()) == ({KEY: ""} if powerdowns else {})
    monkeypatch.setattr(launch, "end", lambda *_: "it was ended")
    machines.stop(KEY, 5.0, True, soon())
    assert [command for command, _ in qemu.commands].count("system_powerdown") == 2 * powerdowns


@pytest.mark.parametrize("seconds", [0.3, 0])
def test_a_guest_whose_start_was_cut_off_stays_stopped_once_it_was_asked(
    machines: MachineLifecycle,
    cut_off: tuple[MachineRecord, FakeQemu],
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
) -> None:
    _, qemu = cut_off
    monkeypatch.setattr(launch, "wait", lambda *_: False)
    with pytest.raises(Denied) as denied:
        machines.stop(KEY, seconds, False, soon())
    was_asked = "system_powerdown" in [command for command, _ in qemu.commands]
    assert (denied.value.code, was_asked) == ("GuestRefused", bool(seconds))
    assert ("when it does, it stays stopped" in denied.value.message) == was_asked
    monkeypatch.setattr(machine_files, "process_of", lambda machine, config: None)  # its guest powers down later
    machines.recover()
    assert bool(to_begin(machines)) != was_asked


@pytest.fixture
def finished(
    machines: MachineLifecycle, cut_off: tuple[MachineRecord, FakeQemu], monkeypatch: pytest.MonkeyPatch
) -> FakeQemu:
    """A machine that runs, whose QEMU ends when its guest powers down."""
    put(machines)

    def ended(monitor: object, machine: str, process: object) -> str:
        monkeypatch.setattr(machine_files, "process_of", lambda machine, config: None)
        return "ended"

    monkeypatch.setattr(launch, "wait", lambda *_: True)
    monkeypatch.setattr(launch, "end", ended)
    return cut_off[1]


@pytest.mark.parametrize("powers_down", [True, False])
def test_a_machine_whose_guest_has_finished_ends_and_its_policy_starts_it_again(
    machines: MachineLifecycle, finished: FakeQemu, monkeypatch: pytest.MonkeyPatch, powers_down: bool
) -> None:
    monkeypatch.setattr(launch, "wait", lambda *_: powers_down)
    manifest = virtual_machine("m").to_manifest()
    put(machines, manifest={**manifest, "spec": {**manifest["spec"], "powerdownSeconds": 1}})
    assert machines.finish(KEY, "some-run", "42 pages", soon())
    assert "system_powerdown" in [command for command, _ in finished.commands], "its guest gets its time"
    seen = view(machines)
    assert (seen.phase, seen.reason) == ("Stopped", "GuestFinished")
    assert seen.message == "its guest reported that it has finished: 42 pages"
    assert [machine.metadata.name for machine in to_begin(machines)] == ["m"]
    machines.recover()
    assert machines.record_for(KEY).reason == "GuestFinished"


def test_what_is_not_the_run_that_finished_goes_on(machines: MachineLifecycle, finished: FakeQemu) -> None:
    assert not machines.finish(KEY, "another-run", "", soon())
    put(machines, state="starting")
    assert not machines.finish(KEY, "some-run", "", soon())
    assert not machines.finish("default/none", "some-run", "", soon())
    assert "system_powerdown" not in [command for command, _ in finished.commands]


def test_a_machine_that_is_to_stop_stays_stopped_though_its_guest_has_finished(
    machines: MachineLifecycle, finished: FakeQemu
) -> None:
    put(machines, reason="StopWanted")
    machines.finish(KEY, "some-run", "", soon())
    assert machines.record_for(KEY).reason == "StoppedOnRequest"
    assert to_begin(machines) == []


def test_leftovers_in_its_folder_do_not_hinder_a_start(machines: MachineLifecycle, config: MachineConfig) -> None:
    folder = config.folder(put(machines).spec.id)
    (folder / "qmp" / "deep").mkdir(parents=True)
    machines.recover()
    assert list(folder.iterdir()) == []
    machines.forget(KEY, soon())
    assert machines.list() == []


def test_a_failed_restart_is_tried_again_until_the_machine_is_stopped(machines: MachineLifecycle) -> None:
    put(machines, state="starting")
    machines.undo_start(KEY, soon())
    assert [machine.metadata.name for machine in to_begin(machines)] == ["m"]
    machines.stop(KEY, None, False, soon())
    assert to_begin(machines) == []


def test_logs_stay_short_without_a_look_at_the_machine(config: MachineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LOG_SECONDS", 0.01)
    machines, stop = MachineLifecycle(replace(config, log_bytes=10), MemoryRecords()), threading.Event()
    log = config.folder(put(machines).spec.id) / "console.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"a guest that writes and writes")
    troubles = [ZeroDivisionError(), Failed("JournalUnavailable", "no space left")]  # a bug, and a full disk
    settle = machines.settle

    def settled() -> Collection[str]:
        if troubles:
            raise troubles.pop()
        return settle()

    monkeypatch.setattr(machines, "settle", settled)
    thread = threading.Thread(target=lifecycle.run_maintenance, args=(machines, stop))
    thread.start()
    until(lambda: not log.read_bytes(), "the log is emptied", 10)
    stop.set()
    thread.join()
    machines.close()


# Devices of claims.


def test_a_claims_device_is_plugged_in_and_taken_out_by_steps(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    ((device, step),) = kind.attachments(KEY, prepared(functions=2), soon())
    assert (device, step.kind, step.before) == ("pool/gpu", "attachment", None)
    assert isinstance(kind, ForcibleKind)
    assert kind.read(step.target) is None
    kind.apply(step.target, step.after, soon())
    kind.apply(step.target, step.after, soon())
    assert kind.read(step.target) == step.after
    assert [each["host"] for each in qemu.devices.values()] == ["0000:41:00.1", "0000:41:00.0"]
    kind.apply(step.target, None, soon())
    kind.apply(step.target, None, soon())
    assert (qemu.devices, kind.read(step.target)) == ({}, None)
    assert machines.records.records(PLUGS) == {}


def test_devices_that_do_not_fit_are_refused_before_the_first_is_plugged_in(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    five = tuple(PreparedDevice((), "pool", f"d{n}", "vfio", (f"0000:4{n}:00.0",)) for n in range(5))
    with raises(Denied, "NoFreePciSlot", retryable=True, match=r"5 devices.*4 free"):
        kind.attachments(KEY, Prepared(REF, five), soon())
    steps = kind.attachments(KEY, Prepared(REF, five[:4]), soon())
    for _, step in steps:
        kind.apply(step.target, step.after, soon())
    again = kind.attachments(KEY, Prepared(REF, five[:4]), soon())
    assert again == steps, "what is plugged in already needs no slot"


def test_in_a_dry_run_machines_are_seen_and_none_is_changed(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared(), soon())
    kind.apply(step.target, step.after, soon())
    before, commands = dict(machines.records.records(MACHINES)), list(qemu.commands)
    dry = MachineLifecycle(replace(machines.config, dry_run=True), machines.records)
    dry.recover()
    seen = dry.get(KEY)
    assert seen is not None
    assert seen.phase == "Running"
    for change in (
        lambda: dry.start(virtual_machine("n"), soon()),
        lambda: dry.adopt(adopting(qemu.path), soon()),
        lambda: dry.resume(KEY, soon()),
        lambda: dry.stop(KEY, 0, True, soon()),
        lambda: dry.undo_start(KEY, soon()),
        lambda: dry.forget(KEY, soon()),
        lambda: dry.scale(KEY, "vcpus", 2, soon()),
        lambda: AttachmentKind(dry, Owners()).apply(step.target, None, soon()),
        lambda: AttachmentKind(dry, Owners()).force(step.target, None, soon()),
    ):
        with raises(Denied, "DryRun"):
            change()
    dry.close()
    assert (machines.records.records(MACHINES), qemu.commands) == (before, commands)


def test_a_device_that_the_guest_keeps_keeps_its_step(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared(), soon())
    kind.apply(step.target, step.after, soon())
    qemu.guest = "silent"
    with raises(Denied, "GuestRefused", retryable=True, match=KEY):
        kind.apply(step.target, None, deadline_after(lambda: qemu.leaving))
    assert kind.read(step.target) == step.after


def test_force_ends_no_machine_that_was_not_even_asked(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared(), soon())
    kind.apply(step.target, step.after, soon())
    ended: list[str] = []
    monkeypatch.setattr(machines, "stop", lambda key, *_: ended.append(key))
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with machines.hold(KEY, soon(), "scale memory"):
            held.set()
            over.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(60)
    with pytest.raises(Failed) as busy:
        kind.force(step.target, None, soon(0.1))
    over.set()
    other.join()
    assert (busy.value.code, ended) == ("MachineBusy", [])
    qemu.guest = "refuses"
    with pytest.raises(Denied):  # as it goes on here
        kind.force(step.target, None, soon())
    assert ended == [KEY]


def test_a_device_whose_node_qemu_still_holds_is_not_free(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu, tmp_path: Path
) -> None:
    """Unbinding it now would block in the kernel."""
    node = tmp_path / "vfio-15"
    node.touch()
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared(str(node)), soon())
    kind.apply(step.target, step.after, soon())
    with node.open("rb"), raises(Unknown, "DeviceHeld", match="vfio-15"):  # the fake is this process
        kind.apply(step.target, None, deadline_after(lambda: not qemu.devices))
    kind.apply(step.target, None, soon())


def test_a_hung_machine_is_unknown_and_one_that_is_gone_holds_nothing(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared(), soon())
    kind.apply(step.target, step.after, soon())
    qemu.trouble["device_del"] = "hang"
    with pytest.raises(Unknown):
        kind.apply(step.target, None, soon(0.4))
    assert machines.records.record(PLUGS, step.target) is not None
    content = dict(machines.records.record(MACHINES, KEY) or {})
    machines.records.put(MACHINES, KEY, {**content, "boot": "another"})  # as after a reboot
    kind.apply(step.target, None, soon())
    assert machines.records.records(PLUGS) == {}


def test_a_machine_whose_memory_is_being_locked_is_busy_and_not_hung(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared(), soon())
    monkeypatch.setattr(registry, "LOOK_SECONDS", 0.1)
    seen: list[MachineView] = []

    def look() -> None:
        machines._looks.forget(KEY)
        qemu.trouble = {"query-hotpluggable-cpus": "hang"}
        observed = view(machines)
        seen.append(observed)
        qemu.trouble = {}

    plug = hotplug.plug_device

    def slow(*arguments: Any, **named: Any) -> str:
        look()
        return plug(*arguments, **named)

    monkeypatch.setattr(hotplug, "plug_device", slow)
    kind.apply(step.target, step.after, soon())
    look()
    during, after = seen
    assert (during.phase, during.reason, during.runs) == ("Running", "MachineBusy", True)
    assert "locks all memory" in during.message
    assert (after.phase, after.reason) == ("Unknown", "MonitorSilent"), "once that is over, it hangs"


def test_a_vanished_device_node_is_refused_before_a_command_to_qemu(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu
) -> None:
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared("/dev/vfio/no-such-group"), soon())
    with raises(Denied, "DeviceGone"):
        kind.apply(step.target, step.after, soon())
    assert qemu.commands == []


def test_nodes_go_to_the_machines_user_and_back_to_whose_they_were(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_ids, "listener_uid", lambda record: os.getuid())  # the fake QEMU is no process of its user
    node = tmp_path / "vfio-15"
    node.touch()
    before = node.stat()
    machines.adopt(adopting(qemu.path), soon())
    content = dict(machines.records.record(MACHINES, KEY) or {})
    machines.records.put(MACHINES, KEY, {**content, "user": 70001})
    ((_, step),) = kind.attachments(KEY, prepared(str(node)), soon())
    owners = Owners()
    kind = AttachmentKind(machines, owners)
    kind.apply(step.target, step.after, soon())
    kind.apply(step.target, step.after, soon())
    kind.apply(step.target, None, soon())
    node_name = str(node)
    assert owners.changes == [
        (node_name, 70001, 70001),
        (node_name, 70001, 70001),
        (node_name, before.st_uid, before.st_gid),
    ]


def test_nodes_that_a_device_had_before_a_reboot_are_others_now(
    machines: MachineLifecycle, kind: AttachmentKind, qemu: FakeQemu, tmp_path: Path
) -> None:
    """The numbers of IOMMU groups are given anew, and the first device's of then may be the second's of now."""
    first, second = tmp_path / "vfio-15", tmp_path / "vfio-16"
    first.touch()
    second.touch()
    machines.adopt(adopting(qemu.path), soon())
    ((_, step),) = kind.attachments(KEY, prepared(str(second)), soon())
    before = {"value": {}, "owners": {str(first): [7, 7], str(second): [7, 7]}, "boot": "another"}
    machines.records.put(PLUGS, step.target, before)
    owners = Owners()
    kind = AttachmentKind(machines, owners)
    with first.open():  # by another device in the same machine
        kind.apply(step.target, step.after, soon())
        kind.apply(step.target, None, soon())
    assert owners.changes == [(str(second), os.getuid(), os.getgid())]


def test_a_row_has_no_status_of_its_object_which_another_version_may_not_know() -> None:
    machine = virtual_machine("m").to_manifest()
    with_status = {**machine, "status": {"phase": "Running", "restarts": 1}}
    assert content_of(MachineRecord(with_status, "running", "a run"))["manifest"] == machine
    assert "status" in with_status


def test_what_a_reboot_has_taken_out_of_machines_is_forgotten(machines: MachineLifecycle) -> None:
    boots = {"default/m/claim-1": adoption.boot_id(), "default/m/claim-2": "another", "default/m/claim-3": None}
    for target, boot in boots.items():
        machines.records.put(PLUGS, target, {"value": {}, "owners": {}, **({"boot": boot} if boot else {})})
    machines.recover()
    assert sorted(machines.records.records(PLUGS)) == ["default/m/claim-1", "default/m/claim-3"]


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_plugin_that_was_killed_when_it_had_noted_an_end_leaves_nothing_of_the_machine(
    machines: MachineLifecycle, config: MachineConfig, state: str
) -> None:
    record = put(machines, state=state)
    folder = config.folder(record.spec.id)
    for one in (folder, config.state):
        one.mkdir(parents=True, exist_ok=True)
    left = [config.plan(record.spec.id), folder / "qmp"]
    for file in left:
        file.touch()
    machines.recover()
    assert not any(file.exists() for file in left)


def test_a_step_on_a_machine_that_is_not_there(kind: AttachmentKind) -> None:
    with raises(Denied, "MachineNotFound"):
        kind.apply("default/none/claim-1", {"functions": ["0000:41:00.0"], "nodes": []}, soon())
    kind.apply("default/none/claim-1", None, soon())  # it holds nothing, so that undoing is done


def test_what_was_refused_for_good_is_not_shown_as_wanted(machines: MachineLifecycle, qemu: FakeQemu) -> None:
    machines.adopt(adopting(qemu.path), soon())
    machines.scale(KEY, "vcpus", 2, soon())
    qemu.refuses["device_add"] = "no more"
    with pytest.raises(Denied, match="no more"):
        machines.scale(KEY, "vcpus", 4, soon())
    seen = view(machines)
    assert (seen.wanted.vcpus, seen.applied.vcpus, seen.observed.vcpus) == (2, 2, 2)
    qemu.guest = "refuses"  # which it may do no more another time
    with pytest.raises(Denied, match="guest"):
        machines.scale(KEY, "vcpus", 1, soon())
    seen = view(machines)
    assert (seen.wanted.vcpus, seen.applied.vcpus, seen.observed.vcpus) == (1, 2, 2)


def test_a_guest_that_cannot_be_asked_to_power_down_is_not_said_to_have_refused(
    machines: MachineLifecycle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its sockets are looked for in another folder than the plugin's."""
    put(machines)
    monkeypatch.setattr(machine_files, "process_of", lambda *_: process.process(os.getpid()))
    assert "no QEMU of machine default/m listens on" in power_down_all(machines, soon())[KEY]


def test_a_guest_that_was_too_busy_booting_to_hear_is_asked_again_to_power_down(
    qemu: FakeQemu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_ASK_SECONDS", 0.05)
    line = QmpMonitor(KEY, str(qemu.path))
    with subprocess.Popen(["sleep", "600"]) as guest, contextlib.closing(line), ThreadPoolExecutor(1) as other:
        try:
            sleeping = process.process(guest.pid)
            assert sleeping is not None
            assert not launch.power_down(line, sleeping, 0.0, soon())
            ended = other.submit(launch.power_down, line, sleeping, 60.0, soon())
            until(lambda: len(qemu.commands) > 3, "the guest is asked again and again")
        finally:
            guest.kill()
        assert ended.result()
        assert {command for command, _ in qemu.commands} == {"system_powerdown"}
