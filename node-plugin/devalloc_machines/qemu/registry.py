"""The registry of this node's machines: what is recorded of each, its QMP connection, and its current state.

A machine is never a child of the plugin. The lock of its life file, which QEMU holds, shows that it lives; its
record in the journal and QEMU itself show what it is. So nothing here has to survive in memory.

QMP connections: one per machine, shared by its users, and open only while it is used.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from uuid import UUID

from devalloc_machines.qemu import adoption, emulated_devices, firmware, launch, machine_files, pci, resources, user_ids
from devalloc_machines.qemu.process import Process, alive, qemu_uuid
from devalloc_machines.qemu.qmp import Connect, Monitor, QmpMonitor, malformed_as_failed, run_state
from devalloc_machines.qemu.records import (
    MACHINES,
    PAUSED_ON_REQUEST,
    MachineMigration,
    MachineObservation,
    MachineRecord,
    MachineView,
    RecordState,
    State,
    content_of,
    record_after_end,
    record_of,
    state_of,
)
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import (
    MachineSpec,
    SandboxProvider,
    machine_id,
)
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.host.lock_folder import LockFolder
from devalloc_node.journal import Journal
from devalloc_node.model.step import Value

LOOK_SECONDS = 2.0
"""What one look at a machine may take: it is answered from, and a hung QEMU must not hold up the others."""
_FRESH_SECONDS, _HUNG_SECONDS = 1.0, 10.0
"""How long a look counts; longer if QEMU did not answer."""
_SLACK_SECONDS = 0.5
"""For those that hang to be told as what they are."""
_TOGETHER = 32
"""Machines that are looked at at the same time."""


_TAPS = "taps"
"""The lock of TAP interfaces; those of machines end in a digest."""
_STOPPED = "paused"
"""QEMU's word for CPUs that a command stopped."""
SLEEPING = "suspended"
"""QEMU's word for a guest that has put itself to sleep. Its CPUs cannot be told to go on: it is to be woken."""


class StatusCache:
    """The last look at each machine. Safe for threads."""

    def __init__(self, observe: Callable[[MachineRecord], MachineObservation]) -> None:
        """``observe`` asks QEMU. Raises NodeError."""
        self._observe = observe
        self._mutex = threading.Lock()
        self._last: dict[str, MachineObservation] = {}
        self._under_way: dict[str, set[object]] = {}
        """Looks of which nothing was changed since they began."""

    def at(self, record: MachineRecord) -> MachineObservation:
        """What QEMU says, at most a second old."""
        last = self._at_last(record)
        return last if last.until > time.monotonic() else self._look(record, last)

    def ahead(self, records: Iterable[MachineRecord]) -> None:
        """Look at several at once, so that ``at`` has its answer: those that hang take the time of one, together."""
        now = time.monotonic()
        due = [(record, last) for record in records if (last := self._at_last(record)).until <= now]
        if len(due) < 2:
            return
        pool = ThreadPoolExecutor(min(_TOGETHER, len(due)), thread_name_prefix="look")
        try:
            futures = {pool.submit(self._look, record, last): (record, last) for record, last in due}
            late = wait(futures, timeout=LOOK_SECONDS + _SLACK_SECONDS).not_done
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for record, last in (futures[one] for one in late):
            silent = f"QEMU of machine {record.spec.key} did not answer in time; others hang too, or the host is busy"
            problem = Unknown("MonitorSilent", silent)
            with self._mutex:
                self._last[record.spec.key] = replace(last, until=time.monotonic() + _FRESH_SECONDS, problem=problem)

    def last(self, key: str) -> MachineObservation | None:
        """What was seen last, however long ago; None if nothing was since the machine was changed."""
        with self._mutex:
            return self._last.get(key)

    def _at_last(self, record: MachineRecord) -> MachineObservation:
        with self._mutex:
            return self._last.get(record.spec.key, MachineObservation())

    def _look(self, record: MachineRecord, before: MachineObservation) -> MachineObservation:
        now, this, key = time.monotonic(), object(), record.spec.key
        with self._mutex:
            self._under_way.setdefault(key, set()).add(this)
        try:
            look = replace(self._observe(record), until=now + _FRESH_SECONDS)
        except NodeError as problem:
            look = replace(before, until=now + _HUNG_SECONDS, problem=problem)
        with self._mutex:
            begun = self._under_way.get(key, set())
            if this in begun:
                self._last[key] = look
                begun.discard(this)
            if not begun:
                self._under_way.pop(key, None)
        return look

    def forget(self, key: str) -> None:
        """It was changed: what was seen before, or is just being looked at, may be of another run of it."""
        with self._mutex:
            self._last.pop(key, None)
            self._under_way.pop(key, None)


def _why_paused(record: MachineRecord, status: str) -> tuple[str, str]:
    """Why the CPUs of a machine that runs do nothing."""
    how = f"`devalloc resume vm/{record.machine.metadata.name}`" if record.spec.uid else "create the machine again"
    code, why = "CpusStopped", f"QEMU reports {status[:50]!r}; to let them run: {how}"
    if status == SLEEPING:
        why = "its guest sleeps until it is woken (QEMU's system_wakeup)"
    if status == "io-error":
        code, why = (
            "DiskFailed",
            (
                "the host could not write or read a disk of it (is its file system full?); "
                + ("it continues by itself" if record.spec.uid else "create it again to continue")
            ),
        )
    return code, f"its CPUs are paused: {why}"


def _migrates(migration: MachineMigration | None) -> str:
    if migration is None:
        return ""
    where = "to another node" if migration.role == "source" else "to this node"
    return f"it moves {where} (migration {migration.uid})"


def machine_view(
    record: MachineRecord, process: Process | None, look: MachineObservation, config: MachineConfig
) -> MachineView:
    """A machine as other rooms see it."""
    state = state_of(record, process, look)
    if state is State.ENDED and record.state != "incoming":
        record = record_after_end(record, config)  # which is noted soon
    reason, message = record.reason, record.message
    if look.problem is not None:
        reason, message = look.problem.code, look.problem.message
    elif process is not None and record.migration is not None:
        reason, message = "MachineMigrates", _migrates(record.migration)
    elif state is State.HALTED and not (look.status == _STOPPED and reason == PAUSED_ON_REQUEST):
        reason, message = _why_paused(record, look.status)
    spec = record.spec
    view = MachineView(
        key=spec.key,
        uid=spec.uid,
        state=state,
        applied=record.applied
        if look.requested_memory is None
        else replace(record.applied, memory_bytes=look.requested_memory),
        observed=look.observed,
        reason=reason,
        message=message,
        pid=process.pid if process else 0,
        id=record.run,
        qmp_socket=spec.adopt or str(config.folder(spec.id) / "qmp"),
        adopted=spec.adopt is not None,
        started=spec,
        created_as=record.machine,
        is_silent=look.problem is not None,
        is_moving=record.migration is not None,
        plain=look.plain if process is not None else (),
        rates=record.wanted_rates,
        began=record.began if process is not None else None,
        restarts=record.restarts,
        last_end=record.last_end,
    )
    if process is not None:
        return replace(view, wanted=resources.wanted_while_running(record))
    # What it is started with, or else who creates it again has it started with.
    at_start = resources.resources_at_start(record) if view.is_to_begin else resources.requested_in_spec(spec)
    return replace(view, wanted=at_start)


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
        records: Journal,
        changed: Callable[[str], None] = lambda key: None,
        connect: Connect = QmpMonitor,
        homes: SandboxProvider | None = None,
    ) -> None:
        """``changed`` gets the key of a machine that ended or was changed, from any thread. ``homes``: the provider
        of sandboxes; None: machines have none."""
        self.homes = homes or SandboxProvider()
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
        """One machine as it is now, or as it was last seen if it does not answer; None if none is known."""
        content = self.records.record(MACHINES, key)
        if content is None:
            return None
        try:
            record = record_of(key, content)
        except Failed as error:
            return MachineView(key, "", State.UNREADABLE, reason=error.code, message=error.message)
        try:
            process = self.process_of(record)
        except NodeError as error:
            return machine_view(record, None, MachineObservation(problem=error), self.config)
        look = self._looks.at(record) if process else MachineObservation()
        busy = self._busy.get(key)
        if busy is not None and look.problem is not None and look.problem.code == "MonitorSilent":
            record, look = record.become(record.state, "MachineBusy", busy), replace(look, problem=None)
        view = machine_view(record, process, look, self.config)
        if process is not None and record.spec.wants_sandbox:
            network = self.homes.network(key, record.run)
            return view if network is None else replace(view, network_address=network.address)
        return view

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
                status = run_state(monitor, Deadline.after(LOOK_SECONDS))
                return bool(record.state == "running" and status == last.status)
        except NodeError:
            return False

    def forget_look(self, key: str) -> None:
        """What was seen of a machine may be so no longer."""
        self._looks.forget(key)

    def host_files(self, spec: MachineSpec) -> Hashable:
        """Something else as soon as a program, file or interface of the host changes that a machine needs to start."""
        binary = shutil.which(self.config.binary) or self.config.binary
        files = [path for path in (spec.kernel, spec.initrd, *(disk.path for disk in spec.disks)) if path is not None]
        taps = [f"/sys/class/net/{nic.interface}" for nic in spec.nics if nic.interface is not None and not nic.warm]
        files += [binary, *taps, *firmware.files_on_host(spec, self.config)]
        return tuple(map(machine_files.file_state, files))

    def guest_addresses(self, key: str) -> Mapping[str, str]:
        """Where its guest finds the devices plugged in, by the ids of devices; nothing if QEMU does not answer."""
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

    def moving(self) -> Mapping[str, str]:
        """The UIDs of the migrations of machines that are about to change their node, by their keys."""
        moves = {key: content.get("migration") for key, content in self.records.records(MACHINES).items()}
        return {key: str(move.get("uid", "")) for key, move in moves.items() if isinstance(move, Mapping)}

    def process_of(self, record: MachineRecord) -> Process | None:
        """The machine's QEMU; None if it has ended. Raises Unknown, Failed."""
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
        """Its record; None if none is known. Raises Failed."""
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
            raise Denied("MachineNotRunning", f"machine {key} does not run; start it first")
        return record, process

    def lives_in(self, key: str, run: str) -> bool:
        """Whether a home that was given to one run of a machine is its still: it lives, or is being started. Also if
        that cannot be told."""
        try:
            record = self.find(key)
        except NodeError:
            return True
        return record is not None and record.run == run and record.state not in ("stopped", "failed")

    def lost(self, key: str) -> Process | None:
        """The process of a machine that lives and has no record; None if there is none. Raises NodeError."""
        return (
            None
            if self.records.record(MACHINES, key) is not None
            else machine_files.process_of(machine_id(key), self.config)
        )

    def all_lost(self) -> Sequence[MachineView]:
        """Those that live and have no record, as far as that and what they are called is known: with their process and
        what can be done. Raises NodeError."""
        lost = list[MachineView]()
        recorded = {machine_id(key) for key in self.records.records(MACHINES)}
        for lives in machine_files.machine_ids(self.config) - recorded:
            process, key = None, None
            with suppress(NodeError, OSError, ValueError):  # one that cannot be told of must not hide the others
                process = machine_files.process_of(lives, self.config)
                key = launch.read_plan(lives, self.config).get("key")
            if process is not None and isinstance(key, str) and machine_id(key) == lives:
                why = (
                    f"it lives as process {process.pid} but is not in the journal: a VirtualMachine that names this "
                    f"run adopts it; else shut its guest down, or end that process (kill {process.pid})"
                )
                socket = str(self.config.folder(lives) / "qmp")
                view = MachineView(key, "", State.LOST, pid=process.pid, reason="MachineLost", message=why)
                lost.append(replace(view, qmp_socket=socket))
        return lost

    def has_files_of_another(self, key: str) -> bool:
        """Whether a machine that is not recorded would get the folders of one that is. Names of files have 48 bits of a
        digest of the key, and a patient tenant can search for a name that has the same. Raises Failed."""
        if self.records.record(MACHINES, key) is not None:
            return False
        return any(machine_id(other) == machine_id(key) for other in self.records.records(MACHINES))

    # For those who change one.

    def line(self, record: MachineRecord) -> AbstractContextManager[Monitor]:
        """The machine's monitor, open as long as a caller uses it."""
        return self._lines.to(record)

    @contextmanager
    def hold(self, key: str, deadline: Deadline, work: str) -> Iterator[None]:
        """Be the only one who changes a machine. ``work``: the change, for those who wait for its end. Raises Failed
        (``MachineBusy``) when another change is still under way at the deadline, Denied (``DryRun``;
        ``MachineMigrates``, retryable, for one that changes its node)."""
        with self.lock(key, deadline, work):
            content = self.records.record(MACHINES, key)
            if content is not None and content.get("migration") is not None:
                migrates = _migrates(record_of(key, content).migration)
                raise Denied(
                    "MachineMigrates",
                    f"cannot {work}: machine {key} cannot be changed while {migrates}; wait until it has moved, or "
                    "cancel the migration",
                )
            yield

    @contextmanager
    def lock(self, key: str, deadline: Deadline, work: str) -> Iterator[None]:
        """As ``hold``, for what is to be done also while the machine changes its node. Raises Denied
        (``MachineExists``) if its files would be those of another machine."""
        if self.config.dry_run:
            raise Denied("DryRun", f"dry run: nothing was changed; would change machine {key}")
        with self._locks.held(f"{machine_id(key)}.lock", deadline, work, partial(_busy, f"machine {key}")):
            if self.has_files_of_another(key):
                raise Denied(
                    "MachineExists",
                    f"the files of machine {key} on this node would be those of another machine: give it another name",
                )
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

    def tap_lock(self, deadline: Deadline) -> AbstractContextManager[None]:
        """The lock under which limits of TAP interfaces change. Raises Failed (``MachineBusy``)."""
        return self._among_all(_TAPS, deadline, "limit a TAP interface")

    def put(self, record: MachineRecord) -> None:
        """Write its record down."""
        self.records.put(MACHINES, record.spec.key, content_of(record))

    def _observed(self, record: MachineRecord) -> MachineObservation:
        with self.line(record) as monitor:
            due = Deadline.after(LOOK_SECONDS)
            seen = resources.observe_resources(record, self.config, monitor, self.process_of(record), due)
            status = run_state(monitor, due)
            plain = emulated_devices.plugged_emulated(monitor, due)
            pending = resources.pending_memory_bytes(record, monitor, seen, due)
            return MachineObservation(observed=seen, plain=plain, status=status, requested_memory=pending)


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


PAUSED = "prelaunch"
"""What QEMU says of itself until its CPUs are let run for the first time."""


def is_paused(monitor: Monitor, deadline: Deadline) -> bool:
    """Whether QEMU waits to let its CPUs run for the first time. Raises NodeError."""
    return run_state(monitor, deadline) == PAUSED


def wake(monitor: Monitor, record: MachineRecord, deadline: Deadline) -> None:
    """Let the CPUs of a machine run that was paused on request: its guest is to power down. A QEMU that does not answer
    is ended anyway."""
    if record.reason == PAUSED_ON_REQUEST:
        with suppress(NodeError):
            monitor.execute("cont", deadline=deadline.capped(LOOK_SECONDS))


def never_ran(machines: MachineRegistry, record: MachineRecord, due: Deadline) -> bool:
    """Whether a machine that lives has no guest yet: QEMU waits to let its CPUs run for the first time.

    A record that says ``starting`` does not decide that alone: the plugin may have been killed after it let them run.
    Raises NodeError if QEMU does not answer by ``due``. Who would end the machine gives it LOOK_SECONDS, whatever its
    caller has left: a QEMU that is slow is not one without a guest.
    """
    if record.state != "starting":
        return False
    with machines.line(record) as monitor:
        return is_paused(monitor, due)


def is_without_guest(machines: MachineRegistry, record: MachineRecord) -> bool:
    """As ``never_ran``. If QEMU does not answer, there may be a guest."""
    with suppress(NodeError):
        return never_ran(machines, record, Deadline.after(LOOK_SECONDS))
    return False


def is_other_run(record: MachineRecord, process: Process) -> bool:
    """Whether a process that is the machine by its life file was started as another run than the record's. Not if
    that cannot be seen; an adopted one is known by its process, and may write its UUID as it likes."""
    if record.spec.adopt is not None:
        return False
    return qemu_uuid(process.pid) not in (None, record.run)


def orphan_refusal(name: str, process: Process) -> Denied:
    """The message about one that cannot be identified."""
    return Denied(
        "MachineRuns",
        f"machine {name} already runs as process {process.pid} but is not in the journal; shut its guest down or end "
        f"that process first (kill {process.pid})",
        retryable=True,
    )


def observe_run(machines: MachineRegistry, record: MachineRecord, process: Process, due: Deadline) -> MachineRecord:
    """The record of a machine that lives as ``process``, with what QEMU says: which run it is, and whether its CPUs
    ever ran. Raises Denied (``MachineRuns``) if nothing tells how that run was started, NodeError."""
    with machines.line(record) as monitor:
        run = str(UUID(monitor.execute("query-uuid", deadline=due)["UUID"]))
        state: RecordState = "starting" if is_paused(monitor, due) else "running"
    if run == record.run or record.spec.adopt is not None:
        return record.become(state)
    launched = launch.record_at_launch(record.machine, machines.config)
    if launched is None or launched.run != run:
        raise orphan_refusal(record.spec.key, process)
    # TAP interfaces may still be limited for the run before.
    limits = dict.fromkeys((*record.tap_limits, *launched.tap_limits))
    return replace(launched.become(state), tap_limits=tuple(limits))
