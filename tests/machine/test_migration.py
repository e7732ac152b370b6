"""Must show: a loaded machine moves between two plugins over TLS, keeps every write, and one node at a time owns it."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import pytest

from devalloc.api import meta
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.controller.reconcile.fenced import held_objects, take_away
from devalloc.inventory.pci import BarSizes
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.qemu import migration
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.migration_tls import make_identity
from devalloc_machines.qemu.pci import WindowReserve, list_root_ports
from devalloc_machines.qemu.process import process
from devalloc_machines.qemu.settings import MachineConfig, MigrationSettings
from devalloc_machines.qemu.spec import EmulatedDevice, Nic, machine_id
from devalloc_node.errors import Denied, Failed, Unknown
from tests.support import tiny_guest
from tests.support.deadlines import soon
from tests.support.guest import Guest, moved_guest
from tests.support.images import Image
from tests.support.machines import MIB, config, ended, open_folder, plugin, running, short_folder, view, virtual_machine
from tests.support.migration_kills import Fault, MovingNode, TwoPlugins, settle
from tests.support.qemu import MICRO_APPEND
from tests.support.vm_rounds import to_begin
from tests.support.waiting import until

KEY = "default/m"
UID = "7d3c2f3e-0000-4000-8000-00000000a001"
HERE = "127.0.0.1"
BLOCKS = 64
WRITER = f"""
i=0
while [ ! -e /tmp/enough ]; do
  i=$((i+1))
  printf '%-511s\\n' $i | dd of=/dev/vda bs=512 seek=$((i%{BLOCKS})) count=1 conv=notrunc,fsync 2>/dev/null
  echo $i > /tmp/next; mv /tmp/next /tmp/written
done
touch /tmp/stopped
"""
"""Writes numbers to the disk, one after the other, and notes in memory which one is on it."""
DIRTIER = "while [ ! -e /tmp/enough ]; do dd if=/dev/urandom of=/tmp/noise bs=64k count=16; sleep 0.3; done"


@dataclass(frozen=True)
class TwoNodes:
    """Two plugins on this host with nothing in common but a disk image."""

    first: MachineConfig
    second: MachineConfig
    disk: Path
    machine: VirtualMachine


@pytest.fixture
def qemu(request: pytest.FixtureRequest, open_image: Image) -> Image:
    """The one that both nodes have. Tests name the fixture of another one."""
    other = getattr(request, "param", None)
    return open_image if other is None else request.getfixturevalue(other)


@pytest.fixture
def nodes(open_image: Image, qemu: Image) -> Iterator[TwoNodes]:
    with short_folder() as folder, ExitStack() as stack:
        disk = folder / "images" / "disk"
        disk.parent.mkdir(mode=0o755)
        disk.write_bytes(bytes(1 * MIB))
        both = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            (folder / name).chmod(0o711)
            users = range(70000, 70010) if os.geteuid() == 0 and qemu is open_image else None
            settings = config(open_image, folder / name, users=users, binary=str(qemu.qemu))
            shared = replace(settings.folders[0], path=disk.parent)
            both.append(replace(settings, folders=(*settings.folders, shared)))
            stack.enter_context(ended(both[-1]))
        start = {"kernel": str(open_image.kernel), "initrd": str(open_image.initrd), "append": MICRO_APPEND}
        start["disks"] = [{"path": str(disk), "format": "raw"}]  # type: ignore[assignment]
        machine = virtual_machine(
            "m", start=start, memory={"min": "256Mi", "max": "512Mi"}, cpu={"min": "1", "max": "2"}, nics=[{}]
        )
        yield TwoNodes(both[0], both[1], disk, machine)


def started(nodes: TwoNodes, machines: MachineLifecycle) -> Guest:
    machines.start(nodes.machine, soon())
    machines.resume(KEY, soon())
    return Guest(nodes.first.folder(machine_id(KEY)) / "agent")


def move(source: MachineLifecycle, target: MachineLifecycle, nodes: TwoNodes, uid: str = UID) -> migration.Progress:
    """The whole of it, as far as the store's word."""
    offered = migration.offer(source, KEY, uid, soon())
    to = migration.receive(target, nodes.machine, uid, offered, HERE, soon())
    migration.send(source, KEY, uid, to, soon())
    return migration.await_sent(source, KEY, soon())


def complete(source: MachineLifecycle, target: MachineLifecycle, uid: str = UID) -> None:
    """After the store's word."""
    assert migration.take_over(target, KEY, uid, soon())
    migration.hand_over(source, KEY, uid, soon())


def test_a_loaded_machine_moves_there_and_back_and_loses_no_write(nodes: TwoNodes) -> None:
    with plugin(nodes.first) as first, plugin(nodes.second) as second:
        guest = started(nodes, first)
        before = running(first)
        first.scale(KEY, "memory", 384 * MIB, soon())
        first.scale(KEY, "vcpus", 2, soon())
        guest.check(f"({WRITER}) >/dev/null 2>&1 </dev/null & ({DIRTIER}) >/dev/null 2>&1 </dev/null &")
        guest.until("[ -e /tmp/written ]")
        sent = move(first, second, nodes)
        assert sent.downtime_seconds is not None
        assert sent.total > 384 * MIB

        # The CPUs of both stand still. Neither node does anything by itself, nor lets anyone do it.
        for machines, role in ((first, "Running"), (second, "Starting")):
            seen = view(machines)
            assert (seen.phase, seen.reason, seen.id) == (role, "MachineMigrates", before.id)
            assert to_begin(machines) == []
            for change in (
                lambda machines=machines: machines.resume(KEY, soon()),
                lambda machines=machines: machines.scale(KEY, "vcpus", 1, soon()),
                lambda machines=machines: machines.start(nodes.machine, soon()),
                lambda machines=machines: machines.stop(KEY, 0, True, soon()),
                lambda machines=machines: machines.forget(KEY, soon()),
            ):
                with pytest.raises(Denied, match="cannot be changed"):
                    change()
        complete(first, second)
        assert first.get(KEY) is None
        assert not list(nodes.first.run.iterdir())
        after = running(second)
        assert after.id == before.id, "its run goes on, and its permit with it"
        assert (after.observed.memory_bytes, after.observed.vcpus) == (384 * MIB, 2)
        assert process(before.pid) is None

        guest.close()
        guest = moved_guest(nodes.second.folder(machine_id(KEY)) / "agent")
        there = int(guest.check("cat /tmp/written"))
        guest.until(f"[ $(cat /tmp/written) -gt {there + 3} ]")
        second.scale(KEY, "memory", 256 * MIB, soon())

        # And back, to the node that it came from.
        move(second, first, nodes, "back")
        complete(second, first, "back")
        guest.close()
        guest = moved_guest(nodes.first.folder(machine_id(KEY)) / "agent")
        there = int(guest.check("cat /tmp/written"))
        guest.until(f"[ $(cat /tmp/written) -gt {there + 3} ]")
        guest.check("touch /tmp/enough")
        guest.until("[ -e /tmp/stopped ]")
        last = int(guest.check("cat /tmp/written"))
        guest.close()
        first.stop(KEY, 0, True, soon())
        on_disk = nodes.disk.read_bytes()
        blocks = {number % BLOCKS: number for number in range(max(1, last - BLOCKS + 1), last + 1)}
        read = {place: int(on_disk[512 * place : 512 * (place + 1)]) for place in blocks}
        assert read == blocks, "every write is there, and no older one came after it"


@pytest.fixture
def small(nodes: TwoNodes) -> TwoNodes:
    """The same with a machine that has no Linux: it is up at once, and moves in a moment."""
    kernel = tiny_guest.write(nodes.disk.parent / "kernel")
    start = {"kernel": str(kernel), "append": "tiny", "disks": [{"path": str(nodes.disk), "format": "raw"}]}
    amounts = {"memory": {"min": "64Mi", "max": "64Mi"}, "cpu": {"min": "1", "max": "1"}}
    return replace(nodes, machine=virtual_machine("m", start=start, pciSlots=1, **amounts))


WHOLE = os.environ.get("MIGRATION_FAULTS", "")
IS_WHOLE = bool(WHOLE)
"""Whether each gate is tried (``make migration-faults``), or each of so many, and not only a few."""
STEP = int(WHOLE) if WHOLE.isdecimal() else 1 if WHOLE else 47


MEANWHILE = ("nothing", "the migration is deleted", "the target reboots", "the source reboots")
"""What happens while both plugins are dead."""


@pytest.mark.parametrize("how", [how for how in get_args(Fault) if IS_WHOLE or how != "silence"])
def test_a_fault_anywhere_leaves_one_owner_that_the_store_names(small: TwoNodes, tmp_path: Path, how: Fault) -> None:
    check_faults(small, tmp_path, how)


@pytest.mark.parametrize("how", ["kill", *(["fail"] if IS_WHOLE else [])])
def test_a_fault_anywhere_leaves_one_tpm(small: TwoNodes, platform: Image, tmp_path: Path, how: Fault) -> None:
    first, second = (
        replace(one, swtpm=str(platform.folder / "swtpm"), folders=(*one.folders, open_folder(platform.folder)))
        for one in (small.first, small.second)
    )
    manifest = small.machine.to_manifest()
    start = {**manifest["spec"]["start"], "tpm": True}
    machine = VirtualMachine.model_validate({**manifest, "spec": {**manifest["spec"], "start": start}})
    check_faults(replace(small, first=first, second=second, machine=machine), tmp_path, how)


def check_faults(small: TwoNodes, tmp_path: Path, how: Fault) -> None:
    """Have the machine move again and again, with a fault at one gate after the other. Its guest writes."""
    tiny_guest.write(small.disk.parent / "kernel", writes=True)
    with_tpm = small.machine.spec.start is not None and small.machine.spec.start.tpm
    folders = {"a": (small.first.state.parent, small.first), "b": (small.second.state.parent, small.second)}
    plugins = TwoPlugins(tmp_path / "store.db", folders)
    manifest = small.machine.to_manifest()
    plugins.begin({**manifest, "spec": {**manifest["spec"], "nodeName": None}}, "a")
    with plugins.node("a") as first:
        until(lambda: first.turn() and plugins.machine()["status"].get("phase") == "Running", "it runs")
    run = plugins.machine()["status"]["machineID"]
    number, source, gates, moved, written = 0, "a", [""], 0, plugins.check_disk("a", small.disk)
    while gates[-1] or len(gates) == 1:
        target = "b" if source == "a" else "a"
        plugins.book(name := f"{how}-{number}", source, target)
        gates.append(gate := plugins.run_until(number, how, source, target))
        before = plugins.run_states()
        meanwhile = MEANWHILE[len(gates) % 4] if how == "kill" and gate else MEANWHILE[0]
        where = f"{how} {number}, {gate}, {meanwhile}"
        assert list(before.values()).count("running") <= 1, f"two owners after {where}: {before}"
        if how != "kill":  # its plugins went on, so it is over already
            owner = plugins.owner()
            assert before == {name: "running" if name == owner else "" for name in folders}, where
        if meanwhile == MEANWHILE[1]:
            plugins.delete_migration(name)
            if not any(map(plugins.is_moving, folders)):  # the controller withdraws what neither node has begun
                plugins.withdraw()
        off = {MEANWHILE[2]: target, MEANWHILE[3]: source}.get(meanwhile, "")
        is_lost = bool(off) and plugins.power_off(off) and off == plugins.owner()
        with plugins.node(source) as a, plugins.node(target) as b:
            settle(b, a)
            owner = plugins.owner()
            lives, gone = (b, a) if owner == target else (a, b)
            await_run(plugins, (b, a), lives, is_new=is_lost, before=run)
            assert plugins.run_states() == {lives.name: "running", gone.name: ""}, where
            assert gone.machines.get(KEY) is None, where
            lives.machines.scale(KEY, "cpu", 0, soon())  # it may be changed again
        assert written < (written := plugins.check_disk(owner, small.disk)), f"its guest went back after {where}"
        obj = plugins.machine()
        if (seen := plugins.migration(name)) is not None:
            assert seen.phase == ("Succeeded" if owner == target else "Failed"), where
        assert "migrationState" not in obj["status"], where
        assert obj["metadata"]["annotations"][meta.PREPARED_ON] == owner, where
        assert not [*small.first.run.glob("*/tls"), *small.second.run.glob("*/tls")], f"keys are left by {where}"
        has_tpm = {name: bool([*folder.glob("**/*.permall")]) for name, (folder, _) in folders.items()}
        assert has_tpm == {name: with_tpm and name == owner for name in folders}, where
        moved, source, run = moved + (owner == target), owner, obj["status"]["machineID"]
        number += STEP
    print(f"{how}: {len(gates) - 1} tries, {moved} moved: {gates}")
    assert moved, "none has moved"
    assert len(gates) > (60 if how in ("kill-source", "kill-target") else 150) // STEP


SLOW = MigrationSettings(HERE, bandwidth=20_000)


def deleted(plugins: TwoPlugins, target: MovingNode) -> None:
    plugins.delete_migration("move")


def to_stop(plugins: TwoPlugins, target: MovingNode) -> None:
    with closing(SQLiteStore(plugins.store)) as store:
        obj = store.get("VirtualMachine", "default", "m")
        store.replace({**obj, "spec": {**obj["spec"], "running": False}})


def pinned_to_its_source(plugins: TwoPlugins, target: MovingNode) -> None:
    """Handed over, it would belong to neither node."""
    with closing(SQLiteStore(plugins.store)) as store:
        obj = store.get("VirtualMachine", "default", "m")
        store.replace({**obj, "spec": {**obj["spec"], "nodeName": "a"}})


def without_target(plugins: TwoPlugins, target: MovingNode) -> None:
    assert plugins.power_off(target.name)


@pytest.mark.parametrize(
    ("meanwhile", "reason"),
    [
        (deleted, ""),
        (to_stop, "MigrationWithdrawn"),
        (pinned_to_its_source, "MigrationWithdrawn"),
        (without_target, "MigrationFailed"),
    ],
)
def test_a_machine_whose_migration_is_withdrawn_stays(
    small: TwoNodes, tmp_path: Path, meanwhile: Callable[[TwoPlugins, MovingNode], None], reason: str
) -> None:
    """In the middle of its move, with both plugins alive."""
    folders = {"a": (small.first.state.parent, small.first), "b": (small.second.state.parent, small.second)}
    plugins = TwoPlugins(tmp_path / "store.db", folders)
    manifest = small.machine.to_manifest()
    plugins.begin({**manifest, "spec": {**manifest["spec"], "nodeName": None, "powerdownSeconds": 0}}, "a")
    with plugins.node("a", migrations=SLOW) as a, plugins.node("b") as b:
        until(lambda: a.turn() and plugins.machine()["status"].get("phase") == "Running", "it runs")
        run = plugins.machine()["status"]["machineID"]
        plugins.book("move", "a", "b")
        stop, source = threading.Event(), threading.Thread(target=lambda: a.migrations.run(stop))
        source.start()
        try:
            until(lambda: b.turn() or moved_bytes(plugins) > 10_000, "a part of it is sent")
            meanwhile(plugins, b)
            until(lambda: "migrationState" not in plugins.machine()["status"], "it is withdrawn")
            settle(b)
            until(lambda: not a.machines.moving(), "its source has cancelled it")
        finally:
            stop.set()
            source.join()
        if reason:
            assert (seen := plugins.migration("move")) is not None
            assert (seen.phase, seen.status["reason"]) == ("Failed", reason)
        if meanwhile is to_stop:
            until(lambda: a.turn() and plugins.machine()["status"].get("phase") == "Stopped", "it stops")
            assert plugins.run_states() == {"a": "", "b": ""}
        else:
            assert running(a.machines).id == run
            assert plugins.run_states() == {"a": "running", "b": ""}


def test_a_machine_whose_target_is_fenced_before_it_took_it_goes_on_at_its_source(
    small: TwoNodes, tmp_path: Path
) -> None:
    """All of it was sent, and the store says that it is the target's."""
    folders = {"a": (small.first.state.parent, small.first), "b": (small.second.state.parent, small.second)}
    plugins = TwoPlugins(tmp_path / "store.db", folders)
    manifest = small.machine.to_manifest()
    plugins.begin({**manifest, "spec": {**manifest["spec"], "nodeName": None}}, "a")
    with plugins.node("a") as a, plugins.node("b") as b:
        until(lambda: a.turn() and plugins.machine()["status"].get("phase") == "Running", "it runs")
        run = plugins.machine()["status"]["machineID"]
        plugins.book("move", "a", "b")
        stop, source = threading.Event(), threading.Thread(target=lambda: a.migrations.run(stop))
        source.start()
        try:
            until(lambda: b.turn() or _phase(plugins) in ("TargetReady", "Running"), "the target waits for it")
            until(lambda: plugins.owner() == "b", "it is handed over")
            assert "running" not in plugins.run_states().values()
            with closing(SQLiteStore(plugins.store)) as store:
                assert take_away(store, held_objects(store, "b"), "b", "by ada")
            until(lambda: not a.machines.moving() and _phase(plugins) == "Failed", "its source has it again")
        finally:
            stop.set()
            source.join()
        assert (running(a.machines).id, plugins.owner()) == (run, "a")
        assert plugins.run_states()["a"] == "running"
        settle(b)  # its host was on after all
        assert plugins.run_states() == {"a": "running", "b": ""}
        assert plugins.machine()["metadata"]["annotations"][meta.PREPARED_ON] == "a"


def _phase(plugins: TwoPlugins) -> str:
    seen = plugins.migration("move")
    return "" if seen is None else seen.phase


def moved_bytes(plugins: TwoPlugins) -> int:
    seen = plugins.migration("move")
    return 0 if seen is None else int((seen.status.get("progress") or {}).get("transferred", 0))


def test_a_node_receives_no_machines_unless_its_admin_says_where(small: TwoNodes, tmp_path: Path) -> None:
    folders = {"a": (small.first.state.parent, small.first), "b": (small.second.state.parent, small.second)}
    plugins = TwoPlugins(tmp_path / "store.db", folders)
    manifest = small.machine.to_manifest()
    plugins.begin({**manifest, "spec": {**manifest["spec"], "nodeName": None}}, "a")
    with plugins.node("a") as a, plugins.node("b", migrations=MigrationSettings()) as b:
        until(lambda: a.turn() and plugins.machine()["status"].get("phase") == "Running", "it runs")
        plugins.book("move", "a", "b")
        settle(a, b)
        assert (seen := plugins.migration("move")) is not None
        assert (seen.phase, seen.status["reason"]) == ("Failed", "MigrationOff")
        assert "--migration-address" in seen.status["message"]
        assert running(a.machines).reason == ""
        assert "migrationState" not in plugins.machine()["status"]


def await_run(
    plugins: TwoPlugins, nodes: tuple[MovingNode, MovingNode], lives: MovingNode, *, is_new: bool, before: str
) -> None:
    """Drive the nodes until the machine runs on one of them, and the store says so: the same run, or another one."""

    def is_up() -> bool:
        idle = [node.turn() for node in nodes]
        here, status = lives.machines.get(KEY), plugins.machine()["status"]
        runs = here is not None and here.phase == status.get("phase") == "Running"
        return all(idle) and runs and here.id == status["machineID"] and (here.id != before) == is_new

    until(is_up, "it runs", context=lambda: (plugins.machine(), lives.machines.get(KEY)))


def is_closed(line: socket.socket) -> bool:
    """Whether the other side ends a connection without a word."""
    try:
        return line.recv(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True


@pytest.mark.parametrize("qemu", [None, "sriov"], indirect=True, ids=["qemu-7.2", "qemu-10"])
def test_a_stranger_at_the_port_gets_nothing_and_stops_nothing(small: TwoNodes) -> None:
    with plugin(small.first) as first, plugin(small.second) as second:
        first.start(small.machine, soon())
        first.resume(KEY, soon())
        offered = migration.offer(first, KEY, UID, soon())
        to = migration.receive(second, small.machine, UID, offered, HERE, soon())
        assert migration.receive(second, small.machine, UID, offered, HERE, soon()) == to, (
            "asked again, it says the same"
        )

        # One without TLS, then one whose certificate is of another authority than the source published.
        with socket.create_connection((HERE, to.port), timeout=20) as line:
            line.sendall(b"QEVM" + bytes(4096))
            assert is_closed(line)
        stranger = make_identity("client")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        own = small.disk.parent / "stranger.pem"
        own.write_text(stranger.certificate + stranger.key)
        context.load_cert_chain(own)
        with socket.create_connection((HERE, to.port), timeout=20) as line, context.wrap_socket(line) as inside:
            assert is_closed(inside)  # with TLS 1.3 the client hears of the refusal only now
        assert running(first).id == offered.run
        seen = view(second)
        assert seen.phase == "Starting"

        # The target of another authority: the source refuses it, and the machine goes on where it is.
        wrong = to.model_copy(update={"certificate": make_identity("server").authority})
        migration.send(first, KEY, UID, wrong, soon())
        with pytest.raises(Failed, match="did not move"):
            migration.await_sent(first, KEY, soon())
        migration.cancel(first, KEY, UID, soon())
        assert running(first).reason == ""
        migration.discard(second, KEY, UID, soon())

        move(first, second, small, "again")
        complete(first, second, "again")
        assert running(second).id == offered.run


def set_speed(machines: MachineLifecycle, bytes_per_second: int) -> None:
    """How fast QEMU sends."""
    with machines.line(machines.record_for(KEY)) as monitor:
        monitor.execute("migrate-set-parameters", {"max-bandwidth": bytes_per_second}, deadline=soon())


def test_what_the_target_has_not_loaded_is_not_sent(small: TwoNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is silent when all is on its way: in sockets, but not in its memory."""
    monkeypatch.setattr(migration, "STALL_SECONDS", 2.0)
    with plugin(small.first) as first, plugin(small.second) as second:
        first.start(small.machine, soon())
        first.resume(KEY, soon())
        offered = migration.offer(first, KEY, UID, soon())
        to = migration.receive(second, small.machine, UID, offered, HERE, soon())
        target = view(second)
        set_speed(first, 20_000)
        migration.send(first, KEY, UID, to, soon())
        until(lambda: migration.progress(first, KEY, soon()).sent > 30_000, "a part of it is sent")
        os.kill(target.pid, signal.SIGSTOP)
        set_speed(first, 1 << 30)
        with pytest.raises(Failed, match="has stood still for 2 s"):
            migration.await_sent(first, KEY, soon())
        migration.cancel(first, KEY, UID, soon())
        assert running(first).id == offered.run
        os.kill(target.pid, signal.SIGCONT)
        migration.discard(second, KEY, UID, soon())


def test_a_migration_that_is_cancelled_or_cut_leaves_the_machine_where_it_is(
    small: TwoNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with plugin(small.first) as first, plugin(small.second) as second:
        first.start(small.machine, soon())
        first.resume(KEY, soon())
        run = running(first).id

        def goes_on() -> None:
            migration.cancel(first, KEY, UID, soon())
            migration.cancel(first, KEY, UID, soon())  # its answer may have been lost
            seen = running(first)
            assert (seen.id, seen.reason) == (run, "")
            migration.discard(second, KEY, UID, soon())
            migration.discard(second, KEY, UID, soon())
            assert second.get(KEY) is None

        # The target is silent from the beginning: its QEMU hangs, or waits for what another connection never says, such
        # as one of a source that was killed. Nothing arrives, and no time is waited for but the caller's.
        monkeypatch.setattr(migration, "HANDSHAKE_SECONDS", 1.0)
        for has_another in (False, True):
            offered = migration.offer(first, KEY, UID, soon())
            to = migration.receive(second, small.machine, UID, offered, HERE, soon())
            target = view(second)
            with ExitStack() as stack:
                if has_another:
                    stack.enter_context(socket.create_connection((HERE, to.port), timeout=20))
                else:
                    os.kill(target.pid, signal.SIGSTOP)
                with pytest.raises(Failed, match="the target of machine default/m does not answer"):
                    migration.send(first, KEY, UID, to, soon())
                goes_on()
        monkeypatch.undo()

        # The network is slow: it is cancelled in the middle, and then the target ends in the middle.
        set_speed(first, 20_000)
        for is_cut in (False, True):
            offered = migration.offer(first, KEY, UID, soon())
            to = migration.receive(second, small.machine, UID, offered, HERE, soon())
            target = view(second)
            migration.send(first, KEY, UID, to, soon())
            until(lambda: migration.progress(first, KEY, soon()).sent > 30_000, "a part of it is sent")
            migration.send(first, KEY, UID, to, soon())  # the answer of the first one was lost
            with pytest.raises(Unknown, match="has not moved in time: "):
                migration.await_sent(first, KEY, soon(0.1))
            if is_cut:
                os.kill(target.pid, signal.SIGKILL)
                until(lambda: second.record_for(KEY).state == "failed", "its end is noticed")
                assert to_begin(second) == [], "what never was this node's is not started here"
                with pytest.raises(Failed, match="did not move"):
                    migration.await_sent(first, KEY, soon())
            goes_on()
        set_speed(first, 1 << 30)

        # The target is gone before anything is sent, or when it has everything.
        offered = migration.offer(first, KEY, UID, soon())
        to = migration.receive(second, small.machine, UID, offered, HERE, soon())
        migration.discard(second, KEY, UID, soon())
        with pytest.raises(Failed, match="cannot reach the target"):
            migration.send(first, KEY, UID, to, soon())
        with pytest.raises(Failed, match="is lost: cancel it"):
            migration.send(first, KEY, UID, to, soon())
        goes_on()
        move(first, second, small)
        goes_on()

        # It ends after the store's word: the target's machine may start again from its disks, and only there.
        move(first, second, small)
        target = view(second)
        os.kill(target.pid, signal.SIGKILL)
        until(lambda: process(target.pid) is None, "it is gone")
        assert not migration.take_over(second, KEY, UID, soon())
        assert [machine.key for machine in to_begin(second)] == [("default", "m")]
        assert to_begin(first) == []
        second.start(small.machine, soon())
        second.resume(KEY, soon())
        assert running(second).id != run
        with pytest.raises(Denied, match="lock"):  # who errs about the store's word meets the lock of the disk
            migration.cancel(first, KEY, UID, soon())
        migration.hand_over(first, KEY, UID, soon())


def reserves_of(machines: MachineLifecycle) -> list[WindowReserve]:
    """What QEMU reserves for each root port."""
    with machines.line(machines.record_for(KEY)) as monitor:
        return [port.reserve for port in list_root_ports(monitor, soon())]


def test_the_target_has_the_windows_of_the_source_whatever_devices_it_has(small: TwoNodes) -> None:
    with_gpu = replace(small.first, devices=lambda: BarSizes(prefetchable=4 << 30, other=16 << 20))
    with plugin(with_gpu) as first, plugin(small.second) as second:
        first.start(small.machine, soon())
        first.resume(KEY, soon())
        windows = reserves_of(first)
        assert windows[0].prefetchable >= 4 << 30
        move(first, second, small)
        assert reserves_of(second) == windows
        complete(first, second)
        assert reserves_of(second) == windows

        # Back again: the source has no such device, and the windows stay.
        move(second, first, small, "back")
        complete(second, first, "back")
        assert reserves_of(first) == windows


def test_a_machine_that_cannot_move_is_refused_with_the_reason(small: TwoNodes) -> None:
    with plugin(small.first) as first, plugin(small.second) as second:
        first.start(small.machine, soon())
        with pytest.raises(Denied, match="its guest does not run"):
            migration.offer(first, KEY, UID, soon())
        first.resume(KEY, soon())
        first.plug_in(KEY, EmulatedDevice("n", Nic()), soon())
        with pytest.raises(Denied, match=r"plugged in while it ran \(n\)"):
            migration.offer(first, KEY, UID, soon())
        first.unplug(KEY, "n", soon())
        offered = migration.offer(first, KEY, UID, soon())
        with pytest.raises(Denied, match="is not the target of migration"):
            migration.take_over(first, KEY, UID, soon())
        with pytest.raises(Denied, match="is not the source of migration other"):
            migration.cancel(first, KEY, "other", soon())

        # Another file under the same path is not its disk: nothing starts that would write to it.
        away = small.disk.rename(small.disk.with_name("away"))
        small.disk.write_bytes(bytes(1 * MIB))
        with pytest.raises(Denied, match="not proven to be the same file"):
            migration.receive(second, small.machine, UID, offered, HERE, soon())
        away.replace(small.disk)
        wrong = offered.model_copy(update={"amounts": offered.amounts.model_copy(update={"memory_bytes": 1 << 40})})
        with pytest.raises(Denied, match="offers another memory"):
            migration.receive(second, small.machine, UID, wrong, HERE, soon())
        with pytest.raises(Denied, match="not an address"):
            migration.receive(second, small.machine, UID, offered, "127.0.0.1:1,x", soon())
        assert second.get(KEY) is None
        assert not list(small.second.run.glob("*"))
        migration.cancel(first, KEY, UID, soon())
