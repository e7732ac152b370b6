"""Fault points of machines: every command to QEMU that changes something, beside all that changes host and journal.

As `faults`, with the plugin's own rooms `machine` and `platform` in place of a stand-in: they start, speak to and end
machines of `forked_qemu`, real processes that hold VFIO nodes of the fake host open and outlive the plugin. Each call
is failed, and killed before and after its effect, and so are handing over nodes, spawning, cgroups and records.

After each point a fresh plugin recovers. What it finds must be sound (nothing plugged twice, nothing unbound while
plugged, nothing driverless, no node with a user who does not need it); asked again, all is as undisturbed; taken back,
all is as it was at first. Killed after a call it is taken back at once, in place of being asked again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast
from unittest.mock import patch

import pytest

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.sysfs import Tree
from devalloc_machines.qemu import adoption, attachment, confinement, launch, machine_files, settings, spawn
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.process import open_nodes, process
from devalloc_machines.qemu.qmp import Monitor, QmpMonitor, QmpRefused, SocketPeer
from devalloc_machines.qemu.records import MACHINES, PLUGS
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import machine_id
from devalloc_machines.service import operations as machine_operations
from devalloc_machines.service.operations import MachineOperations
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.binding.registry import Bindings, step_kinds
from devalloc_node.claims import ClaimLocks, Claims
from devalloc_node.claims.claim_files import FileKind, claim_spec
from devalloc_node.claims.cleanup import Reconciler, ReconcileReport
from devalloc_node.claims.steps import PrepareOptions
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, NodeError
from devalloc_node.host.boundary import Host
from devalloc_node.journal import open_journal
from devalloc_node.model.grant import ClaimRef, Grant, GrantedDevice
from devalloc_node.operations.claim_registry import ClaimRegistry
from tests.support import played_nodes, tiny_guest
from tests.support import qemu as qemu_monitor
from tests.support.deadlines import soon
from tests.support.fake_host import FakeHost
from tests.support.fault_gates import (
    OTHER,
    POWER,
    Ask,
    FaultGate,
    GatedHost,
    GatedJournal,
    GatedStore,
    PersistentOutside,
    reference,
)
from tests.support.fault_points import (
    BOOT,
    KIND,
    NODE,
    ONCE,
    FaultPoint,
    FaultPoints,
    PluginLife,
    Scenario,
    assert_same,
    claims_on,
)
from tests.support.forked_qemu import QemuForkServer, described_by_monitor, opened
from tests.support.images import Image
from tests.support.machines import IS_RELEASE_BEFORE, MIB, open_folder, virtual_machine
from tests.support.waiting import until

KEY = "default/m"
ASKING = ("query-", "qom-list", "qom-get", "qmp_", "human-", "closefd")
"""How commands to QEMU begin that change nothing: there is hardly ever a descriptor that waits to be closed."""
OF_MACHINES = ("qmp.", "spawn.", "cgroup.", "files.", "host.own", "journal.put", "journal.drop")
"""How calls begin that only machines make."""
FULL = "max 100000"
FILE_CALLS = {
    "devalloc_machines.qemu.machine_files": ("write_synced", "remove_folder"),
    "devalloc_machines.qemu.firmware": ("make_store", "tpm_plan"),
    "devalloc_machines.qemu.cloned_disks": ("_copy", "_finish", "_remove_file"),
}
"""Functions that change files of machines, by module. 0.1.0 has none of them."""
HOWS_OF_MACHINES = (*ONCE, POWER, OTHER)
BOOTED, SYNCED = "booted", "synced"
"""Files with the name of the host's boot, if it was rebooted, and with the inodes of all that the plugin has synced."""
IMPATIENT = (
    ("tests.support.machine_scenarios", "soon", partial(soon, 0.2)),
    (__name__, "soon", partial(soon, 0.2)),
    ("devalloc_machines.vms.steps", "WORK_SECONDS", 0.2),
    ("devalloc_machines.vms.steps", "FIRMWARE_SECONDS", 0.2),
    ("devalloc_machines.vms.machine_claims", "WORK_SECONDS", 0.2),
    ("devalloc_machines.vms.fencing", "WORK_SECONDS", 0.2),
)
"""What a plugin has in place of its patience that comes beside another one, which holds the locks."""
WITH_FILES = [(import_module(name), calls) for name, calls in FILE_CALLS.items() if find_spec(name)]


@dataclass(frozen=True)
class MachineScenario(Scenario):
    """What is done with a machine, and what takes it back; both are asked again after a fault."""

    claims: tuple[tuple[GrantedDevice, ...], ...] = ()
    """The devices of each claim; their UIDs are ``0``, ``1`` …"""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Of the machine, beside what all of them have."""
    append: str = ""
    """Of the kernel's command line: what the guest is like."""
    start: Mapping[str, Any] = field(default_factory=dict)
    """How the machine starts, beside its kernel."""
    adopted: bool = False
    """Whether another caller has started the machine."""
    has_object: bool = False
    """Whether it is a VirtualMachine with DeviceClaims, which the plugin's loop serves."""
    on_two_nodes: bool = False
    """Whether its CPUs and memory come from two NUMA nodes of its host."""
    before: Callable[[MachinePlugin], object] = lambda plugin: None
    there: Callable[[MachinePlugin], object] = lambda plugin: None
    back: Callable[[MachinePlugin], object] = lambda plugin: None


@dataclass(frozen=True)
class MachinePlugin(PluginLife):
    """One life of a plugin that has machines."""

    operations: MachineOperations
    machines: MachineLifecycle
    machine: VirtualMachine
    refs: tuple[ClaimRef, ...]
    reboot: Callable[[], None]
    """Have the host reboot, and the plugin begin anew there."""
    object: Any = None
    """Of a scenario that has one, a ``MachineObject``."""

    def recover(self) -> ReconcileReport:
        """As the daemon does it."""
        self.machines.recover()
        return super().recover()

    def prepare(self, uid: str) -> Any:
        self.scenario.there(self)  # type: ignore[attr-defined]
        return sorted(
            (plug.ref.uid, plug.device, plug.host, plug.step.target) for plug in self.operations.claims.plugs(KEY)
        )

    def unprepare(self, uid: str) -> None:
        self.scenario.back(self)  # type: ignore[attr-defined]


class HostWithMachines(FakeHost):
    """A host on which machines run."""

    def __init__(self, root: Path, folder: Path) -> None:
        super().__init__(root)
        self.folder = folder
        self.broken: list[str] = []
        """What no plugin may ever do, and one did."""
        self._seen: dict[int, tuple[str, ...]] = {}

    def look(self) -> None:
        """See what the machines have open now."""
        now = {}
        for life in self.folder.glob("*/*.life"):
            words = life.read_text().split()
            running = process(int(words[0])) if len(words) == 2 else None
            if running is not None and running.started == int(words[1]):
                now[running.pid] = opened(running.pid, self.root)
        for pid in self._seen.keys() - now.keys():
            self.end_process(pid)
        for pid, nodes in now.items():
            if self._seen.get(pid) != nodes:
                self.process(pid, opens=nodes)
        self._seen = now

    def _write(self, path: str, text: str, deadline: Deadline) -> None:
        self.look()
        if self._holds_up(path, text):
            self.broken.append(f"{text.strip()!r} was written to {path} while a machine has the device")
            raise OSError(16, "Device or resource busy")
        super()._write(path, text, deadline)

    def _own(self, node: str, uid: int, gid: int) -> None:
        super()._own(node, uid, gid)
        os.chown(self.root / node[1:], uid, gid)
        if uid == os.geteuid():
            del self.owners[node]


@dataclass
class MachineOutside(PersistentOutside):
    forge: Any = None
    """What runs QEMU: a ``QemuForkServer``, or ``QemuProcesses``."""
    power_off: Callable[[], None] = lambda: None
    other_acts: Callable[[str], None] = lambda act: None

    def answer(self, where: str, method: str, *arguments: Any) -> Any:
        assert isinstance(self.host, HostWithMachines)
        assert self.forge is not None
        match where, method:
            case "qemu", "spawn":
                return self.forge.run(arguments[0])
            case "qemu", "look":
                self.host.look()
                return None
            case "power", "off":
                return self.power_off()
            case "plugin", "other":
                return self.other_acts(arguments[0])
            case _:
                return super().answer(where, method, *arguments)


def _user_of(tree: Tree, nodes: Collection[str]) -> str | None:
    """Who has one of the nodes open, as the version that runs here sees it."""
    try:
        from devalloc.inventory.class_devices import DeviceNode
        from devalloc.inventory.open_nodes import open_device_nodes
    except ModuleNotFoundError:  # the release before
        users = import_module("devalloc.inventory.sysfs").open_device_nodes(tree.proc, set(nodes), ())
        return next(iter(users.values()), None)
    opened = open_device_nodes(tree.proc, {DeviceNode(node, None) for node in nodes}) if tree.proc else {}
    return next((str(processes[0]) for processes in opened.values()), None)


class QemuProcesses:
    """Real ones, in place of ``QemuForkServer``. ``folder``: with the life files of all there are."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, plan: str) -> tuple[int, bytes]:
        words = [sys.executable, "-I", str(spawn.__file__), plan, "--detach"]
        done = subprocess.run(words, capture_output=True, start_new_session=True)
        return done.returncode, done.stderr

    def children(self) -> list[int]:
        lives = [life.read_text().split() for life in self._folder.glob("*.life")]
        processes = [process(int(words[0])) for words in lives if len(words) == 2]
        return [one.pid for one in processes if one is not None]

    def close(self) -> None:
        for pid in self.children():
            os.kill(pid, signal.SIGKILL)


class MachineFaults(FaultPoints):
    """A scenario with machines, and all its fault points. To be closed."""

    scenario: MachineScenario
    outside: MachineOutside

    def __init__(self, scenario: MachineScenario, folder: Path, qemu: Image | None = None) -> None:
        """``qemu``: has the one to use; None: stand-ins. A scenario for a real one has no devices."""
        folder, self.qemu = folder.resolve(), qemu
        folder.chmod(0o711)  # machines run as users of their own
        (folder / "images").mkdir()
        (folder / "images/kernel").touch()
        (folder / "images/disk").touch()
        for image in ("system", "data"):
            (folder / "images" / image).write_bytes(f"{image} of a machine".encode().ljust(1 << 16, b"."))
        for image in ("CODE", "VARS"):
            (folder / "images" / image).write_text(f"{image} of a flash chip")
        ours = folder / "cgroup" / confinement.OURS
        ours.mkdir(parents=True)
        for each in (ours, ours.parent):
            (each / "cgroup.controllers").write_text("cpu\n")
            (each / "cgroup.subtree_control").write_text("cpu\n")
        self.scenario, self.folder, self.uid = scenario, folder, ""
        self._begun = time.time()
        if qemu is not None:
            tiny_guest.write(folder / "images/kernel")
        self.forge: Any = QemuForkServer(folder / "host") if qemu is None else QemuProcesses(folder / "machines")
        self.nodes = pytest.MonkeyPatch()
        try:
            if scenario.on_two_nodes:
                played_nodes.play(folder, self.nodes)
            self.outside = MachineOutside(
                HostWithMachines(folder / "host", folder),
                forge=self.forge,
                power_off=self.power_off,
                other_acts=self.other_acts,
            )
            scenario.build(self.outside.host)
            self.bound = {name for name, each in self.outside.host.functions.items() if each.driver is not None}
            for number, devices in enumerate(scenario.claims):
                ref = reference(str(number))
                self.outside.grants[ref.uid] = Grant(ref, KIND, devices)
            if scenario.adopted:
                self._started_by_others()
            if scenario.has_object:
                _objects().create_claims(folder, scenario.claims)
            with self.life() as plugin:
                plugin.recover()
                scenario.before(plugin)
                if scenario.has_object:
                    scenario.there(plugin)
                    scenario.back(plugin)
            self.initial = self.state()
            with self.life() as plugin:
                self.answer = plugin.prepare("")
            self.prepared = self.state()
            assert self.prepared != self.initial
            with self.life() as plugin:
                plugin.unprepare("")
            assert_same(self.state(), self.initial, "after an undisturbed run")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.nodes.undo()
        self.forge.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def check(self, point: FaultPoint) -> None:
        """Killed after a call it is given up, before the next, where it has come as far, asked again."""
        self._happen(point)
        again = point.how != "after"
        self._recover(point, str(point) if again else f"{point}, given up", again)

    def points(self, hows: Collection[str] = HOWS_OF_MACHINES) -> list[FaultPoint]:
        # After a power cut there would be no machine to adopt.
        is_adopted = self.scenario.adopted or self.scenario.name == "object-journal-lost"
        return super().points([how for how in hows if how != POWER or not is_adopted])

    def _run(self, act: str, gate: FaultGate) -> tuple[list[str] | None, str | None]:
        self._begun = time.time()
        (self.folder / SYNCED).unlink(missing_ok=True)
        calls, error = super()._run(act, gate)
        if calls is None and gate.how == POWER:
            self.power_off()
        return calls, error

    def power_off(self) -> None:
        """The power fails, and the host boots again. What was not synced since the last act began is empty; each write
        to the journal and the store is synced when it returns."""
        host = self.outside.host
        for pid in self.forge.children():
            os.kill(pid, signal.SIGKILL)
        until(lambda: not self.forge.children(), "all machines have ended")
        synced = set((self.folder / SYNCED).read_text().split()) if (self.folder / SYNCED).exists() else ()
        for path in (self.folder / "machines").rglob("*"):
            info = path.lstat()
            if path.is_file() and info.st_mtime >= self._begun and str(info.st_ino) not in synced:
                os.truncate(path, 0)
        groups = self.folder / "cgroup" / confinement.OURS
        for folder in (self.folder / "run", *(each for each in groups.iterdir() if each.is_dir())):
            shutil.rmtree(folder, ignore_errors=True)
        remaining = self.folder / "remaining"
        if (files := host.root / "files").exists():
            files.rename(remaining)
        shutil.rmtree(host.root)
        self.outside.host = HostWithMachines(host.root, self.folder)
        self.scenario.build(self.outside.host)
        if remaining.exists():
            remaining.rename(files)
        (self.folder / BOOTED).write_text(f"boot-{1 + int(_boot(self.folder).rpartition('-')[2])}")

    def other_acts(self, act: str) -> None:
        """Another plugin on the same state folder does the same, and waits for no one."""
        with self.life() as other, ExitStack() as stack:
            for module, name, seconds in IMPATIENT:
                stack.enter_context(patch.object(import_module(module), name, seconds))
            with suppress(NodeError):
                other.machines.settle()
                if other.object is not None:
                    other.object.round()
                elif act == "prepare":
                    other.prepare("")
                else:
                    other.unprepare("")

    def _started_by_others(self) -> None:
        folder = self.folder / "theirs"
        folder.mkdir()
        words = ["qemu", "-uuid", str(uuid.uuid4()), "-smp", "cpus=1,maxcpus=4", "-m", "size=536870912B"]
        words += ["-append", ""] + ["-device", '{"driver":"pcie-root-port"}'] * 4
        plan = {"argv": words, "life": str(folder / "m.life"), "folder": str(folder), "uid": None, "groups": []}
        plan |= {"memlock": 1 << 40, "cgroups": [], "files": {}, "taps": {}}
        (folder / "plan").write_text(json.dumps(plan))
        assert self.forge.run(str(folder / "plan")) == (0, b"")

    def _recover(self, point: FaultPoint, when: str, again: bool = True) -> None:
        with self.life() as plugin:
            report = plugin.recover()
        assert not report.stuck, f"{when}: {report.stuck}"
        self.sound(f"{when}: recovered")
        if point.how == POWER:
            with self.life() as plugin:
                self.scenario.before(plugin)
        if point.act == "prepare" and again:
            with self.life() as plugin:
                assert plugin.prepare("") == self.answer, f"{when}: another answer"
            self._assert_same(self.prepared, f"{when}: asked again", point)
        with self.life() as plugin:
            plugin.unprepare("")
        self._assert_same(self.initial, f"{when}: taken back", point)
        self.sound(f"{when}: taken back")

    def _assert_same(self, wanted: dict[str, Any], when: str, point: FaultPoint) -> None:
        """The same, but for logs of a run that was cut off, or of one before the power failed: they are in memory."""
        state = self.state()
        if point.how == POWER or self.scenario.has_object:
            state, wanted = ({**one, "files": [*filter(_outlives_power, one["files"])]} for one in (state, wanted))
        assert_same(state, wanted, when)

    def sound(self, when: str) -> None:
        """What must be so at any time without work."""
        host = self.outside.host
        assert isinstance(host, HostWithMachines)
        assert not host.broken, f"{when}: {host.broken}"
        for name in self.bound & host.functions.keys():
            assert host.functions[name].driver is not None, f"{when}: {name} has no driver"
        state = self.state()
        needed = {node for content in state["plugs"].values() for node in content["value"]["nodes"]}
        assert host.owners.keys() <= needed, f"{when}: {host.owners} are not given back"
        inside = [machine["qemu"].get("devices", {}) for machine in state["machines"].values()]
        plugged = [device for devices in inside for device in devices.values() if device is not None]
        assert len(plugged) == len(set(plugged)), f"{when}: plugged twice: {plugged}"
        claimed = {step[1].target for steps in state["journal"]["steps"].values() for step in steps}
        for key, machine in state["machines"].items():
            for name in machine["qemu"].get("devices", {}):
                if name.startswith("claim-"):
                    target = f"{key}/{name.rpartition('.f')[0]}"
                    assert target in claimed, f"{when}: no claim knows of {target}"

    def state(self) -> dict[str, Any]:
        with closing(open_journal(self.folder / "state")) as journal:
            records = journal.records(MACHINES)
            plugs = {
                name: {part: value for part, value in content.items() if part != "boot"}
                for name, content in journal.records(PLUGS).items()
            }
        machines = {}
        for key, content in records.items():
            name = machine_id(key)
            path = self.folder / "theirs/qmp" if self.scenario.adopted else self.config().folder(name) / "qmp"
            machine: Any = {}
            with suppress(OSError):
                if self.qemu is None:
                    machine = described_by_monitor(Path(path))
                elif machine_files.process_of(name, self.config()) is not None:
                    machine = _described_by_qemu(Path(path))
            share = self.folder / "cgroup" / confinement.OURS / self.config().group(name) / "cpu.max"
            machines[key] = {
                **{part: content[part] for part in ("state", "user", "reason")},
                "applied": content["applied"] if machine else None,  # a run that was cut off has none
                "qemu": machine,
                "share": share.read_text() if machine and share.exists() else FULL,
            }
        self.outside.host.look()  # type: ignore[attr-defined]
        objects = _objects().shown(self.folder) if self.scenario.has_object else {}
        below = [self.folder / "run", self.folder / "machines"]
        files = sorted(str(p.relative_to(self.folder)) for f in below for p in f.rglob("*") if p.suffix != ".lock")
        return {**super().state(), "machines": machines, "plugs": plugs, "files": files, "objects": objects}

    def config(self) -> MachineConfig:
        return MachineConfig(
            state=self.folder / "machines",
            run=self.folder / "run",
            binary="/bin/true" if self.qemu is None else str(self.qemu.qemu),  # see `forked_qemu`
            folders=(open_folder(self.folder / "images"),),
            socket_folders=(open_folder(self.folder / "theirs"),),
            accel="tcg",
            cgroups=self.folder / "cgroup",
            systemd=False,
            # With its host's devices.
            **({"visible": (self.folder,)} if self.qemu is None and hasattr(MachineConfig, "visible") else {}),
            **self._platform(),
        )

    def _platform(self) -> dict[str, Any]:
        if IS_RELEASE_BEFORE:
            return {}
        files = settings.FirmwareFiles(self.folder / "images/CODE", self.folder / "images/VARS")
        return {"uefi": files, "swtpm": "/bin/true"}

    @contextmanager
    def life(self, ask: Ask | None = None, gate: FaultGate | None = None) -> Iterator[MachinePlugin]:  # type: ignore[override]
        scenario, wanted, me = self.scenario, gate or FaultGate(), threading.get_ident()
        ask = ask or self.outside.answer

        def passed(call: str, act: Callable[[], Any], failure: Exception) -> Any:
            if threading.get_ident() != me:  # another thread noticed the end of a machine: not of this request
                return act()
            ask("qemu", "look")
            return wanted(call, act, failure)

        host: Host = GatedHost(self.outside.host.root, ask, passed)  # type: ignore[arg-type]
        config = BindingConfig(NODE, allowed=scenario.kinds, max_vfs=scenario.max_vfs)
        cdi = str(self.outside.host.root / "files/cdi")
        spec: dict[str, Any] = {"start": None, "adopt": {"qmpSocket": str(self.folder / "theirs/qmp")}}
        if not scenario.adopted:
            start = {"kernel": str(self.folder / "images/kernel"), "append": scenario.append, **scenario.start}
            disks = [{**disk, "path": str(self.folder / disk["path"])} for disk in scenario.start.get("disks", ())]
            start |= {"disks": disks} if disks else {}
            spec = {"start": start, "pciSlots": 4, "powerdownSeconds": 20, **scenario.spec}
        names = [f"claim-{number}" for number in range(len(scenario.claims))]
        vm = virtual_machine("m", **spec, claims=names, **({"nodeName": None} if scenario.has_object else {}))
        vm = played_nodes.placed(vm) if scenario.on_two_nodes else vm
        with ExitStack() as stack:
            for where, name, what in host_seams(host.tree().root, self.folder, ask, passed):  # type: ignore[attr-defined]
                stack.enter_context(patch.object(where, name, what))
            opened_journal = stack.enter_context(closing(open_journal(self.folder / "state")))
            journal: Any = GatedJournal(opened_journal, passed)  # type: ignore[arg-type]
            machines = MachineLifecycle(self.config(), journal, connect=connecting(passed))
            stack.callback(_ended)
            stack.callback(machines.close)
            attachments = AttachmentKind(machines, host)
            store: Any = GatedStore(ask, passed)  # type: ignore[arg-type]
            uid_of: Callable[[str, str], str] = lambda namespace, name: name.removeprefix("claim-")  # noqa: E731
            served = None
            if scenario.has_object:
                served = _objects().MachineObject(self.folder, vm, passed, scenario.claims, NODE)
                stack.callback(served.close)
                store, uid_of = served.grants, served.uid_of
            claims = claims_on(
                {
                    "choose": Bindings(host, config).choose,
                    "in_use": lambda device: _user_of(host.tree(), device.nodes),
                },
                journal,
                ClaimLocks(self.folder / "state/locks"),
                {KIND: store},
                {**step_kinds(host), "file": FileKind(host), "attachment": attachments},
                options=PrepareOptions(),
                render={KIND: [lambda grant, devices: claim_spec(grant.ref, devices, driver="d.example", folder=cdi)]},
            )
            operations = _operations(claims, machines, attachments, uid_of)
            reconciler = Reconciler(claims, boot_id=lambda: _boot(self.folder))
            refs = tuple(ClaimRef("default", name, uid_of("default", name)) for name in names)
            if served is not None:
                served.serve(operations)

            def reboot() -> None:
                ask("power", "off")
                plugin.recover()

            plugin = MachinePlugin(claims, reconciler, scenario, operations, machines, vm, refs, reboot, served)
            yield plugin


def _described_by_qemu(path: Path) -> Any:
    with closing(qemu_monitor.Monitor(path)) as monitor:
        cpus = monitor.execute("query-cpus-fast")
        return {"status": monitor.execute("query-status")["status"], "cpus": len(cpus)}


def _boot(folder: Path) -> str:
    """What the boot of the host is called."""
    return (folder / BOOTED).read_text() if (folder / BOOTED).exists() else BOOT


def _outlives_power(file: str) -> bool:
    return not file.startswith("run/") or (not file.endswith(".log") and len(Path(file).parts) > 2)


def _ended() -> None:
    """Wait for those who note the end of machines."""
    for thread in threading.enumerate():
        if thread.name.startswith("death of "):
            thread.join()


Passed = Callable[[str, Callable[[], Any], Exception], Any]


def connecting(passed: Passed) -> Callable[..., Monitor]:
    """Lines to QEMU whose commands pass the gate, where they change something."""

    class GatedMonitor(QmpMonitor):
        def execute(
            self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Deadline, fd: int | None = None
        ) -> Any:
            def act() -> Any:
                return super(GatedMonitor, self).execute(command, arguments, deadline=deadline, fd=fd)

            if command.startswith(ASKING):
                return act()
            refused = QmpRefused(self._machine, command, "GenericError", "it was made to fail")
            shown = " ".join(str(value) for value in list((arguments or {}).values())[:2])
            return passed(f"qmp.{command} {shown}", act, refused)

    def connect(machine: str, path: str, *, command_seconds: float, check: Callable[[SocketPeer], None]) -> Monitor:
        return GatedMonitor(machine, path, command_seconds=command_seconds, check=check)

    return connect


def host_seams(root: Path, folder: Path, ask: Ask, passed: Passed) -> list[tuple[Any, str, Any]]:
    """Where the rooms of machines touch this host: as (module, name, what is there instead)."""
    groups = folder / "cgroup" / confinement.OURS

    def run(words: list[str], **options: Any) -> Any:
        failure = OSError(11, "Resource temporarily unavailable")
        status, stderr = passed("spawn.machine", lambda: ask("qemu", "spawn", words[3]), failure)
        return SimpleNamespace(returncode=status, stderr=stderr)

    def write(path: Path, text: str) -> None:
        passed(f"cgroup.write {path.name} {text}", lambda: path.write_text(text), OSError(22, "Invalid argument"))

    def make(cgroups: Path, name: str, real: Any = confinement.make_group) -> Any:
        def act() -> Any:
            made = real(cgroups, name)
            for file, text in (("cgroup.procs", ""), ("cpu.max", FULL)):  # the kernel's
                if not (made.folder / file).exists():
                    (made.folder / file).write_text(text)
            return made

        if (groups / name).exists():
            return act()
        return passed(f"cgroup.make {name}", act, Failed("CgroupUnavailable", "no cgroup can be made"))

    def remove(made: confinement.CpuGroup) -> None:
        def act() -> None:
            for file in made.folder.iterdir():
                file.unlink()
            made.folder.rmdir()

        with suppress(OSError):
            passed("cgroup.remove", act, OSError(16, "Device or resource busy"))

    def group_of(cgroups: Path, pid: int) -> confinement.CpuGroup | None:
        for each in groups.iterdir():
            if each.is_dir() and (each / "cgroup.procs").read_text().split() == [str(pid)]:
                return confinement.CpuGroup(2, each)
        return None

    def gated(firmware: Any, name: str) -> Any:
        real = getattr(firmware, name)

        def act(*arguments: Any) -> Any:
            return passed(f"files.{name}", lambda: real(*arguments), OSError(28, "No space left on device"))

        return act

    def near(node: str) -> str:
        return f"{root}{node}"

    def held(pid: int, nodes: Any) -> list[str]:
        return [node for node in nodes if open_nodes(pid, [near(node)])]

    def fsync(fd: int, real: Callable[[int], None] = os.fsync) -> None:
        real(fd)
        with (folder / SYNCED).open("a") as synced:
            synced.write(f"{os.fstat(fd).st_ino}\n")

    def boot_id(real: Callable[[], str] = adoption.boot_id) -> str:
        return real() if _boot(folder) == BOOT else _boot(folder)

    files = SimpleNamespace(
        stat=lambda node: os.stat(near(node)), path=SimpleNamespace(exists=lambda node: os.path.exists(near(node)))
    )
    stand_in = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    return [
        (launch, "subprocess", stand_in),
        *(
            (module, name, gated(module, name))
            for module, names in WITH_FILES
            for name in names
            if hasattr(module, name)
        ),
        (confinement, "_write", write),
        (confinement, "make_group", make),
        (confinement, "remove", remove),
        (confinement, "group_of", group_of),
        (os, "fsync", fsync),
        (adoption, "boot_id", boot_id),
        (attachment, "os", files),
        (attachment, "open_nodes", held),
        # The limit of locked memory is this host's, which only some may raise. It changes nothing.
        (adoption, "check_memlock", lambda *arguments: None),
    ]


def amounts(plugin: MachinePlugin, vcpus: int, milli: int, mebibytes: int) -> None:
    """Scale the machine."""
    for what, amount in (("vcpus", vcpus), ("cpu", milli), ("memory", mebibytes * MIB)):
        plugin.operations.scale(KEY, what, amount, soon())


def _operations(
    claims: Claims, machines: MachineLifecycle, attachments: AttachmentKind, uid_of: Callable[[str, str], str]
) -> MachineOperations:
    given: dict[str, Any] = {
        "uid_of": uid_of,
        "exclusive": claims.locks.named,
        "plan": lambda ref, due: (),
    }
    if not hasattr(machine_operations, "runs"):  # 0.1.0 has all of it in two objects
        old: Any = MachineOperations
        return old(cast(Any, ClaimRegistry)(claims, attachments, **given), machines, node_name=NODE, kind=KIND)
    held = ClaimRegistry(claims, **given, kind=KIND, lives=lambda key: machine_operations.runs(machines, key))
    return MachineOperations(held, machines, attachments, node_name=NODE)


def _objects() -> Any:
    """The module of objects, which uses more of devalloc than 0.1.0 has."""
    return import_module("tests.support.machine_objects")


def unprepare(operations: MachineOperations, ref: ClaimRef) -> None:
    """A claim, out of machines first."""
    holder: Any = operations.claims if hasattr(operations.claims, "unprepare") else operations  # 0.1.0
    holder.unprepare(ref, soon())
