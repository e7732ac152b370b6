"""The registry of this node's machines: what is recorded of each, its QMP connection, and its current state.

A machine is never a child of the plugin. The lock of its life file, which QEMU holds, shows that it lives; its
record in the journal and QEMU itself show what it is. So nothing here has to survive in memory.

QMP connections: one per machine, shared by its users, and open only while it is used.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.host.lock_folder import LockFolder
from devalloc_node.machine import adoption, emulated_devices, machine_files, paths, pci, resources, user_ids
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.process import Process, alive
from devalloc_node.machine.qmp import Connect, Monitor, QmpMonitor, malformed_as_failed
from devalloc_node.machine.records import MACHINES, MachineRecord, MachineRecords, content_of, record_of
from devalloc_node.machine.spec import EmulatedDevice, MachineSpec, NoSandboxes, SandboxProvider, machine_id
from devalloc_node.machine.status_cache import LOOK_SECONDS, MachineObservation, StatusCache, machine_view
from devalloc_node.machine.view import MachineAmounts, MachineView
from devalloc_node.model.step import Value


class QmpConnections:
    """Safe for threads."""

    def __init__(self, config: MachineConfig, connect: Connect) -> None:
        self._config = config
        self._connect = connect
        self._mutex = threading.Lock()
        self._open: dict[str, tuple[Monitor, int]] = {}
        """By the machine's key, with how many use it."""

    @contextmanager
    def to(self, record: MachineRecord) -> Iterator[Monitor]:
        """The machine's monitor. Inside, malformed answers raise Failed."""
        key = record.spec.key
        with self._mutex:
            monitor, uses = self._open.get(key, (None, 0))
            if monitor is None:
                monitor = self._connect(
                    key,
                    record.spec.adopt or str(self._config.folder(record.spec.id) / "qmp"),
                    command_seconds=self._config.command_seconds,
                    check=adoption.owner_check(key, user_ids.listener_uid(record), record.process),
                )
            self._open[key] = (monitor, uses + 1)
        try:
            with malformed_as_failed(key):
                yield monitor
        finally:
            with self._mutex:
                monitor, uses = self._open.pop(key)
                if uses > 1:
                    self._open[key] = (monitor, uses - 1)
            if uses == 1:
                monitor.close()


LOG = logging.getLogger(__name__)


class MachineRegistry:
    """Safe for threads, and beside another instance on the same host. All calls raise NodeError."""

    def __init__(
        self,
        config: MachineConfig,
        records: MachineRecords,
        *,
        changed: Callable[[str], None] = lambda key: None,
        connect: Connect = QmpMonitor,
        homes: SandboxProvider | None = None,
    ) -> None:
        """``changed`` gets the key of a machine that ended or was changed, from any thread. ``homes``: the provider
        of sandboxes; None: machines have none."""
        self.homes = homes or NoSandboxes()
        self.config = config
        self.records = records
        self._changed = changed
        self._lines = QmpConnections(config, connect)
        self._locks = LockFolder(config.state, reentrant=True)
        self._looks = StatusCache(self._observed)
        self._held: set[str] = set()
        self._busy: dict[str, str] = {}
        """What QEMU of a machine does just now and answers nothing meanwhile, in words."""

    # What there is.

    def list(self) -> Sequence[MachineView]:
        """All machines in care. Those that do not answer are reported as unknown, and their timeouts do not add up."""
        self._looks.ahead(record for record, _ in self.living())
        return [machine for key in self.records.records(MACHINES) if (machine := self.get(key)) is not None]

    def get(self, key: str) -> MachineView | None:
        """One machine as it is now, or as it was last seen where it does not answer; None where none is known."""
        content = self.records.record(MACHINES, key)
        if content is None:
            return None
        try:
            record = record_of(key, content)
        except Failed as error:
            return MachineView(key, "", "Unknown", reason=error.code, message=error.message)
        try:
            process = self.process_of(record)
        except NodeError as error:
            return machine_view(record, None, MachineObservation(problem=error), self.config)
        look = self._looks.at(record) if process else MachineObservation()
        busy = self._busy.get(key)
        if busy is not None and look.problem is not None and look.problem.code == "MonitorSilent":
            record, look = record.become(record.state, "MachineBusy", busy), replace(look, problem=None)
        return machine_view(record, process, look, self.config)

    def owner(self, key: str) -> str | None:
        """The UID of the object that a machine was made for, or empty; None: no machine is known by that key."""
        content = self.records.record(MACHINES, key)
        return None if content is None else _owner_of(content)

    def owners(self) -> Mapping[str, str]:
        """As ``owner``, of all machines by their keys."""
        return {key: _owner_of(content) for key, content in self.records.records(MACHINES).items()}

    def is_as_seen(self, key: str) -> bool:
        """Whether a machine lives and its CPUs do what they did when it was last looked at. One question to QEMU."""
        last = self._looks.last(key)
        if last is None or last.problem is not None:
            return False
        try:
            record, _ = self.running(key)
            with self.line(record) as monitor:
                status = monitor.execute("query-status", deadline=Deadline.after(LOOK_SECONDS))["status"]
                return bool(record.state == "running" and status == last.status)
        except NodeError:
            return False

    def host_files(self, spec: MachineSpec) -> Hashable:
        """Something else as soon as a program, file or interface of the host changes that a machine needs to start."""
        binary = shutil.which(self.config.binary) or self.config.binary
        files = [path for path in (spec.kernel, spec.initrd, *(disk.path for disk in spec.disks)) if path is not None]
        taps = [f"/sys/class/net/{nic.interface}" for nic in spec.nics if nic.interface is not None and not nic.warm]
        return paths.files_fingerprint((binary, *files, *taps))

    def guest_addresses(self, key: str) -> Mapping[str, str]:
        """Where its guest finds the devices plugged in, by the ids of devices; nothing where nobody answers."""
        content = self.records.record(MACHINES, key)
        if content is None:
            return {}
        try:
            with self.line(record_of(key, content)) as monitor:
                addresses = pci.guest_addresses(monitor, Deadline.after(LOOK_SECONDS))
        except NodeError:
            return {}
        first = pci.function_id("", 0)
        return {name.removesuffix(first): address for name, address in addresses.items() if name.endswith(first)}

    def to_restart(self) -> Sequence[VirtualMachine]:
        """Machines of no object that should run by their restart policy and do not: after a reboot, because they ended,
        or because their start was cut off (or is under way)."""
        to_start: list[VirtualMachine] = []
        if self.config.dry_run:
            return to_start
        for key, content in self.records.records(MACHINES).items():
            if _owner_of(content):  # who looks after its object looks after it
                continue
            with suppress_and_log(key):
                record = record_of(key, content)
                if record.spec.adopt or not record.spec.running:
                    continue
                # One that was not started to its end no policy forbids, and nobody else would end what waits there.
                if record.state == "starting" or (record.will_restart and self.process_of(record) is None):
                    to_start.append(record.machine)
        return to_start

    def process_of(self, record: MachineRecord) -> Process | None:
        """The machine's QEMU; None where it has ended. Raises Unknown, Failed."""
        if record.spec.adopt is None:
            return machine_files.process_of(record.spec.id, self.config)
        if record.process is None or record.boot != adoption.boot_id() or not alive(record.process):
            return None
        return record.process

    def living(self) -> Iterator[tuple[MachineRecord, Process]]:
        """Those that live, and which processes they are; without those of which that cannot be told (``get`` does)."""
        for key, content in self.records.records(MACHINES).items():
            with suppress(NodeError, OSError):
                record = record_of(key, content)
                if (process := self.process_of(record)) is not None:
                    yield record, process

    def find(self, key: str) -> MachineRecord | None:
        """Its record; None where none is known. Raises Failed."""
        content = self.records.record(MACHINES, key)
        return None if content is None else record_of(key, content)

    def record_for(self, key: str) -> MachineRecord:
        """Its record. Raises Denied (``MachineNotFound``), Failed."""
        record = self.find(key)
        if record is None:
            raise Denied("MachineNotFound", f"machine {key} not found on this node")
        return record

    def running(self, key: str) -> tuple[MachineRecord, Process]:
        """A machine that lives. Raises Denied (``MachineNotFound``, ``MachineNotRunning``)."""
        record = self.record_for(key)
        process = self.process_of(record)
        if process is None:
            raise Denied("MachineNotRunning", f"machine {key} does not run; start it first", retryable=True)
        return record, process

    def lives_in(self, key: str, run: str) -> bool:
        """Whether a home that was given to one run of a machine is its still: it lives, or is being started. Also where
        that cannot be told."""
        try:
            record = self.find(key)
        except NodeError:
            return True
        return record is not None and record.run == run and record.state not in ("stopped", "failed")

    def lost(self, key: str) -> Process | None:
        """The process of a machine that lives and has no record; None where there is none. Raises NodeError."""
        return (
            None
            if self.records.record(MACHINES, key) is not None
            else machine_files.process_of(machine_id(key), self.config)
        )

    # For those who change one.

    def line(self, record: MachineRecord) -> AbstractContextManager[Monitor]:
        """The machine's monitor, open as long as somebody uses it."""
        return self._lines.to(record)

    @contextmanager
    def hold(self, key: str, deadline: Deadline, work: str) -> Iterator[None]:
        """Be the only one who changes a machine. ``work``: the change, for those who wait for its end. Raises Failed
        (``MachineBusy``) when another change is still under way at the deadline, Denied (``DryRun``)."""
        if self.config.dry_run:
            raise Denied("DryRun", f"dry run: nothing was changed; would change machine {key}")
        with self._locks.held(f"{machine_id(key)}.lock", deadline, work, partial(_busy, f"machine {key}")):
            try:
                yield
            finally:
                self._held.add(key)
                self._looks.forget(key)
                self._changed(key)

    def take_held(self) -> Collection[str]:
        """The keys of machines that were held, and perhaps changed, since the last call. For one thread."""
        held = set()
        while self._held:  # others add to it meanwhile
            held.add(self._held.pop())
        return held

    @contextmanager
    def busy(self, key: str, what: str) -> Iterator[None]:
        """Inside, a machine whose QEMU does not answer is reported busy with ``what``. Only for the lock's holder."""
        self._busy[key] = what
        try:
            yield
        finally:
            del self._busy[key]

    def _among_all(self, name: str, deadline: Deadline, work: str) -> AbstractContextManager[None]:
        """The lock of that name, for what is decided with a view to all machines. Raises Failed (``MachineBusy``)."""
        return self._locks.held(f"{name}.lock", deadline, work, partial(_busy, "the list of machines"), brief=True)

    def put(self, record: MachineRecord) -> None:
        """Write its record down."""
        self.records.put(MACHINES, record.spec.key, content_of(record))

    def _observed(self, record: MachineRecord) -> tuple[MachineAmounts, tuple[EmulatedDevice, ...], str, int | None]:
        with self.line(record) as monitor:
            due = Deadline.after(LOOK_SECONDS)
            seen = resources.observe_resources(record, self.config, monitor, self.process_of(record), due)
            status = str(monitor.execute("query-status", deadline=due)["status"])
            return (
                seen,
                emulated_devices.plugged_emulated(monitor, due),
                status,
                resources.pending_memory_bytes(record, monitor, seen, due),
            )


def _busy(what: str, why: str) -> Failed:
    return Failed("MachineBusy", f"{what} is busy: {why}")


def _owner_of(content: Mapping[str, Value]) -> str:
    """From what is recorded, without reading all of it: this is asked often. Empty if it cannot be read."""
    manifest = content.get("manifest")
    metadata = manifest.get("metadata") if isinstance(manifest, dict) else None
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return uid if isinstance(uid, str) else ""


@contextmanager
def suppress_and_log(key: str) -> Iterator[None]:
    """One bad machine must not hide the others."""
    try:
        yield
    except (NodeError, OSError) as error:
        LOG.warning("machine %s: %s", key, error)
