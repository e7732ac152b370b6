"""One migration of a real machine between two plugins of this host, with a fault at any of its calls.

A *gate* is passed before and after each command to QEMU, each write to a journal, and each write to the store. The two
plugins are real: journals, QEMU, the loops of migrations and machines, and one SQLite store. They are driven in turns.
The test is the controller: it books the target. At the gate of a number one of these happens:

- ``kill``: the process that has both plugins ends, as by kill -9: nothing is cleaned up.
- ``fail``: the call at that gate fails, or loses its answer.
- ``kill-source``, ``kill-target``: each plugin is a process, and only that one ends; its gates alone count. The other
  one goes on, first alone, then beside the one that comes back.
- ``cut``: the connection between the two QEMUs ends, and there is no new one. Both live, and both plugins.
- ``silence``: it stays, but nothing that the source sends arrives any more.
"""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Protocol
from unittest.mock import patch

import devalloc_machines.part as machines_module
from devalloc.api import meta
from devalloc.api.views import MachineView, MigrationView
from devalloc.api.virtual_machine_migration import MigrationDestination
from devalloc.programs.node_parts import store_source
from devalloc.store import NotFound, Object, StoreError, Unavailable
from devalloc.store.sqlite import SQLiteStore
from devalloc_machines.part import MachineSettings, machines_of
from devalloc_machines.qemu import machine_files, migration
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.process import kill, wait
from devalloc_machines.qemu.qmp import Monitor, QmpMonitor, SocketPeer
from devalloc_machines.qemu.records import MACHINES
from devalloc_machines.qemu.settings import MachineConfig, MigrationSettings
from devalloc_machines.qemu.spec import machine_id
from devalloc_machines.vms import LoopExecution, LoopSettings, MigrationLoop, VirtualMachineLoop
from devalloc_node.binding.binding import BindingConfig
from devalloc_node.claims.cleanup import Reconciler
from devalloc_node.errors import NodeError, Unknown
from devalloc_node.journal import Journal
from devalloc_node.journal.sqlite import open_journal
from devalloc_node.node import open_node
from devalloc_node.operations.change_feed import ChangeNotifier
from tests.support import qemu, tiny_guest
from tests.support.fake_host import FakeHost, LocalHost, RemoteHost
from tests.support.faulty_proxy import FaultyProxy
from tests.support.vm_rounds import full_round
from tests.support.waiting import until

HERE = "127.0.0.1"
_STOPPED, _DONE, _BROKEN = 41, 42, 43
Fault = Literal["kill", "fail", "kill-source", "kill-target", "cut", "silence"]
Gate = Callable[[str], None]
SLOW_ENOUGH = 500_000
"""Bytes per second: so that some gates are passed while the memory is sent."""
TURNS_ALONE = 10
"""Of a plugin whose other side is dead."""


class Injected(Unknown):
    """A call whose answer is lost."""


class Killed(Exception):
    """A plugin ended at its gate, which the text names."""


class Network:
    """What lies between the source's QEMU and the port at which the target's listens."""

    def __init__(self) -> None:
        self._relays: list[FaultyProxy] = []
        self._fault: Literal["", "cut", "silence"] = ""

    def break_off(self, how: Literal["cut", "silence"]) -> None:
        """From now on."""
        self._fault = how
        for relay in self._relays:
            self._apply(relay)

    def _apply(self, relay: FaultyProxy) -> None:
        if self._fault == "cut":
            relay.cut(up=False)
        elif self._fault == "silence":
            relay.hold()

    @contextmanager
    def between_nodes(self) -> Iterator[None]:
        """The target says that it listens where a relay does."""
        receive = migration.receive

        def through(*arguments: Any, **options: Any) -> MigrationDestination:
            to = receive(*arguments, **options)
            self._relays.append(relay := FaultyProxy(to.port))
            self._apply(relay)
            return to.model_copy(update={"port": relay.port})

        with (
            patch.object(migration, "receive", through),
            patch.object(migration, "HANDSHAKE_SECONDS", 2.0),
            patch.object(migration, "STALL_SECONDS", 2.0),
        ):
            yield


class GatedMonitor(QmpMonitor):
    gate: Gate = staticmethod(lambda what: None)

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Any, fd: int | None = None
    ) -> Any:
        self.gate(f"before {command}")
        answer = super().execute(command, arguments, deadline=deadline, fd=fd)
        self.gate(f"after {command}")
        return answer


class _GatedRecords:
    def __init__(self, records: Journal, gate: Gate) -> None:
        self._records, self._gate = records, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    def put(self, room: str, name: str, content: Mapping[str, Any]) -> None:
        self._gate(f"before record {content.get('state')}")
        self._records.put(room, name, content)
        self._gate(f"after record {content.get('state')}")

    def drop(self, room: str, name: str) -> None:
        self._gate("before drop")
        self._records.drop(room, name)
        self._gate("after drop")


class GatedStore:
    def __init__(self, store: SQLiteStore, gate: Gate) -> None:
        self._store, self._gate = store, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _passed(self, what: str) -> None:
        try:
            self._gate(what)
        except Injected as error:
            raise Unavailable(str(error)) from error

    def replace(self, obj: Object) -> Object:
        self._passed(f"before writing {obj['kind']}")
        written = self._store.replace(obj)
        self._passed(f"after writing {obj['kind']}")
        return written

    def commit_each(self, *arguments: Any) -> Any:
        self._passed("before the controller's commits")
        done = self._store.commit_each(*arguments)
        self._passed("after the controller's commits")
        return done

    def replace_status(self, obj: Object) -> Object:
        self._passed(f"before status of {obj['kind']}")
        written = self._store.replace_status(obj)
        self._passed(f"after status of {obj['kind']}")
        return written


class Plugin(Protocol):
    """Of a node, driven by hand."""

    def turn(self) -> bool:
        """Each loop once; whether the one of migrations has nothing to do."""
        ...


@dataclass
class MovingNode:
    """A plugin whose loops are driven by hand."""

    name: str
    machines: MachineLifecycle
    migrations: MigrationLoop
    objects: VirtualMachineLoop
    claims: Reconciler

    def turn(self) -> bool:
        """Each loop once; whether the one of migrations has nothing to do."""
        keys = []
        with suppress(NodeError, StoreError):
            keys = self.migrations.concerned()
            for key in keys:
                with suppress(NodeError, StoreError):
                    self.migrations.step(key)
        with suppress(NodeError, StoreError):
            full_round(self.objects)
        with suppress(NodeError, StoreError):  # as the daemon now and then
            self.claims.reconcile()
        return not keys


@dataclass(frozen=True)
class TwoPlugins:
    """Nodes that have one store and one folder of disks. ``folders``: each one's own, by name."""

    store: Path
    folders: Mapping[str, tuple[Path, MachineConfig]]
    key: str = "default/m"
    monitor: type[GatedMonitor] = GatedMonitor

    @contextmanager
    def node(
        self,
        name: str,
        gate: Gate = lambda what: None,
        *,
        migrations: MigrationSettings = MigrationSettings(HERE, timeout=600),  # noqa: B008
    ) -> Iterator[MovingNode]:
        """One of them, as it comes back after any end."""

        def connect(machine: str, path: str, *, command_seconds: float, check: Callable[[SocketPeer], None]) -> Monitor:
            monitor = self.monitor(machine, path, command_seconds=command_seconds, check=check)
            monitor.gate = gate  # type: ignore[method-assign]
            return monitor

        def lifecycle(config: MachineConfig, records: Journal, **other: Any) -> MachineLifecycle:
            gated: Any = _GatedRecords(records, gate)
            return MachineLifecycle(config, gated, connect=connect, **other)

        folder, machines = self.folders[name]
        host = self.host(name, gate)
        settings = MachineSettings(
            name,
            BindingConfig(name),
            root=host.root,
            state=folder / "plugin",
            machines=machines,
            cdi=folder / "cdi",
        )
        store: Any = GatedStore(SQLiteStore(self.store), gate)
        with (
            patch.object(machines_module, "MachineLifecycle", lifecycle),
            self.seams(gate),
            open_node(settings, host, store_source(store, name)) as node,
        ):
            part = machines_of(node)
            part.machines.recover()
            with suppress(NodeError):  # as the daemon, which does it again later
                node.reconciler.let_go(node.reconciler.recover())
            migrations = replace(migrations, sys=host.root / "sys")
            loop = MigrationLoop(store, part.operations, part.machines, ChangeNotifier(), migrations)
            objects = VirtualMachineLoop(
                store,
                part.operations,
                ChangeNotifier(),
                settings=LoopSettings(resync=0),
                execution=LoopExecution(spawn=lambda work: work()),
            )
            try:
                yield MovingNode(name, part.machines, loop, objects, node.reconciler)
            finally:
                part.machines.close()
                store.close()

    def host(self, name: str, gate: Gate) -> LocalHost | RemoteHost:
        """The host of a node, which has no devices: a new one each time."""
        host = FakeHost(Path(tempfile.mkdtemp(prefix="host-", dir=self.folders[name][0])) / "host")
        host.proc("sys/kernel/random/boot_id", "boot-1\n")
        return LocalHost(host)

    def seams(self, gate: Gate) -> AbstractContextManager[object]:
        """What else a plugin has in place of what is there, while it is opened."""
        return nullcontext()

    def is_counted(self, what: str) -> bool:
        """Whether something may happen at this gate."""
        return True

    def settle(self, gate: Gate, *nodes: Plugin) -> None:
        """Drive the nodes in turns until nothing is left to do."""
        settle(*nodes)

    def machine(self) -> Object:
        with closing(SQLiteStore(self.store)) as store:
            return store.get("VirtualMachine", *self.key.split("/"))

    def migration(self, name: str) -> MigrationView | None:
        with closing(SQLiteStore(self.store)) as store, suppress(NotFound):
            return MigrationView(store.get("VirtualMachineMigration", "default", name))
        return None

    def delete_migration(self, name: str) -> None:
        with closing(SQLiteStore(self.store)) as store:
            store.delete("VirtualMachineMigration", "default", name)

    def withdraw(self) -> None:
        """What the controller does when a migration is deleted."""
        with closing(SQLiteStore(self.store)) as store:
            machine = store.get("VirtualMachine", *self.key.split("/"))
            machine["status"].pop("migrationState", None)
            store.replace_status(machine)

    def is_moving(self, name: str) -> bool:
        """Whether the journal of a node has the migration."""
        with closing(open_journal(self.folders[name][0] / "plugin")) as journal:
            record = journal.record(MACHINES, self.key)
        return record is not None and record.get("migration") is not None

    def power_off(self, name: str) -> bool:
        """End QEMU on a node, as a reboot of its host does; whether there was one."""
        here = machine_files.process_of(machine_id(self.key), self.folders[name][1])
        if here is None:
            return False
        kill(here, signal.SIGKILL)
        assert wait(here, 60)
        return True

    def begin(self, manifest: Object, node: str) -> None:
        """Create the machine, and place it."""
        with closing(SQLiteStore(self.store)) as store:
            made = store.create(manifest)
            store.replace_status({**made, "status": {"nodeName": node}})

    def book(self, name: str, source: str, target: str) -> str:
        """What the controller does for a new migration; its UID."""
        with closing(SQLiteStore(self.store)) as store:
            made = store.create(
                {
                    "apiVersion": meta.DEVALLOC,
                    "kind": "VirtualMachineMigration",
                    "metadata": {"name": name, "namespace": "default"},
                    "spec": {"vmName": self.key.partition("/")[2]},
                }
            )
            uid = str(made["metadata"]["uid"])
            state = {"migrationName": name, "migrationUID": uid, "sourceNode": source, "targetNode": target}
            machine = store.get("VirtualMachine", *self.key.split("/"))
            store.replace_status({**machine, "status": {**machine["status"], "migrationState": state}})
            status = {"phase": "Scheduled", "sourceNode": source, "targetNode": target}
            store.replace_status({**made, "status": status})
        return uid

    def run_until(self, number: int, how: Fault, source: str, target: str) -> str:
        """Drive the nodes until nothing is left to do, with a fault at the gate ``number`` (from 0). The gate; empty if
        there are fewer."""
        if how in ("kill-source", "kill-target"):
            return self._run_apart(number, how == "kill-source", source, target)
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            status = _BROKEN
            try:
                status = self._run(number, how, writes, (source, target))
            except BaseException as error:
                os.write(writes, repr(error).encode())
            finally:
                os._exit(status)
        os.close(writes)
        with os.fdopen(reads, "rb") as pipe:
            words = pipe.read().decode()
        _, wait_status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(wait_status)
        assert code in (_STOPPED, _DONE), f"the migration failed by itself: {words}"
        return words

    def _run(self, number: int, how: Fault, writes: int, names: tuple[str, ...]) -> int:
        network = Network()

        def fault(what: str) -> None:
            os.write(writes, what.encode())
            if how == "cut" or how == "silence":
                network.break_off(how)
            elif how == "kill":
                os._exit(_STOPPED)
            else:
                raise Injected("Injected", f"no answer {what}")

        gate = self.gate_at(number, fault)
        with ExitStack() as stack:
            settings = MigrationSettings(HERE, timeout=600)
            if how in ("cut", "silence"):
                stack.enter_context(network.between_nodes())
                settings = replace(settings, bandwidth=SLOW_ENOUGH)
            nodes = [stack.enter_context(self.node(name, gate, migrations=settings)) for name in names]
            self.settle(gate, *nodes)
        return _DONE

    def gate_at(self, number: int | None, fault: Gate) -> Gate:
        """One that has the fault when it is passed for this time, from 0; None: never."""
        passed = 0

        def gate(what: str) -> None:
            nonlocal passed
            if self.is_counted(what):
                passed += 1
                if number is not None and passed == number + 1:
                    fault(what)

        return gate

    def _run_apart(self, number: int, is_source: bool, source: str, target: str) -> str:
        """``run_until`` with one plugin that ends."""
        numbers = (number, None) if is_source else (None, number)
        with PluginProcess(self, source, numbers[0]) as a, PluginProcess(self, target, numbers[1]) as b:
            try:
                self.settle(_no_fault, a, b)
                return ""
            except Killed as error:
                gate = str(error)
            ended, other = (a, b) if is_source else (b, a)
            for _ in range(TURNS_ALONE):
                other.turn()
            states = self.run_states(seconds=1)
            assert list(states.values()).count("running") <= 1, f"two owners after {gate}: {states}"
            with PluginProcess(self, ended.name, None) as back:
                self.settle(_no_fault, other, back)
        return gate

    def run_states(self, *, seconds: float = 120) -> dict[str, str]:
        """What QEMU on each node says of its CPUs; empty where there is none. No plugin is asked. ``seconds``: then it
        is empty, too, where a plugin has the monitor, or QEMU waits for the other side to shake hands."""
        return {name: _run_state(settings, self.key, seconds) for name, (_, settings) in self.folders.items()}

    def check_disk(self, name: str, disk: Path) -> int:
        """``tiny_guest.check_disk`` of the machine, which runs on a node, once it writes; the number that it is at."""
        with closing(qemu.Monitor(self.folders[name][1].folder(machine_id(self.key)) / "qmp")) as monitor:
            before = tiny_guest.written_number(monitor)
            until(lambda: tiny_guest.written_number(monitor) > before, "the guest goes on")
            return tiny_guest.check_disk(monitor, disk)

    def owner(self) -> str:
        """The node whose the machine is by the store's word."""
        view = MachineView(self.machine())
        return str(view.status["nodeName"])


class PluginProcess:
    """The plugin of a node as a process of its own, which takes a turn when it is asked. It ends by itself, as by
    kill -9, at the gate ``number`` of its own; None: at none."""

    def __init__(self, plugins: TwoPlugins, name: str, number: int | None) -> None:
        self.name = name
        own, child = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            status = _BROKEN
            own.close()
            try:
                with child.makefile("rw", newline="\n") as lines:
                    status = _serve_turns(plugins, name, number, lines)
            finally:
                os._exit(status)
        child.close()
        self._lines = own.makefile("rw", newline="\n")
        own.close()

    def turn(self) -> bool:
        """Each loop once; whether the one of migrations has nothing to do. Raises Killed."""
        with suppress(BrokenPipeError):  # it has ended since, and said where
            self._lines.write("turn\n")
            self._lines.flush()
        word, _, rest = self._lines.readline().strip().partition(" ")
        if word == "gate":
            raise Killed(rest)
        assert word in ("idle", "busy"), f"the plugin of node {self.name} failed by itself: {word} {rest}"
        return word == "idle"

    def __enter__(self) -> PluginProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(BrokenPipeError), self._lines as lines:
            lines.write("end\n")
        _, wait_status = os.waitpid(self._pid, 0)
        assert error is not None or os.waitstatus_to_exitcode(wait_status) in (_STOPPED, _DONE)


def _serve_turns(plugins: TwoPlugins, name: str, number: int | None, lines: IO[str]) -> int:
    """In the process of a plugin."""

    def say(what: str) -> None:
        lines.write(f"{what}\n")
        lines.flush()

    def end(what: str) -> None:
        say(f"gate {what}")
        os._exit(_STOPPED)

    try:
        with plugins.node(name, plugins.gate_at(number, end)) as node:
            while lines.readline() == "turn\n":
                say("idle" if node.turn() else "busy")
    except BaseException as error:
        say(f"failed {error!r}")
        raise
    return _DONE


def _no_fault(what: str) -> None:
    pass


def settle(*nodes: Plugin) -> None:
    """Drive the nodes in turns until no machine moves."""

    def is_over() -> bool:
        turns = [node.turn() for node in nodes]
        return all(turns)

    until(is_over, "the migration is over")


def _run_state(settings: MachineConfig, key: str, seconds: float) -> str:
    if machine_files.process_of(machine_id(key), settings) is None:
        return ""
    try:
        monitor = qemu.Monitor(settings.folder(machine_id(key)) / "qmp", seconds=seconds)
    except (OSError, TimeoutError):  # it is only being started, or ends just now
        return ""
    try:
        return str(monitor.execute("query-status", seconds=seconds)["status"])
    except OSError:
        return ""
    finally:
        monitor.close()
