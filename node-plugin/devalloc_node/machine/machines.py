"""All machines of this node: started, adopted, scaled, stopped, and found again after a restart of the plugin.

A machine is never a child of the plugin. That it lives is told by the lock of its life file, which QEMU holds; what it
is, by its record in the journal and by QEMU itself. So nothing here has to survive in memory.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from devalloc.api.virtualmachine import VirtualMachine
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown
from devalloc_node.machine import accel, adopt, amounts, launch
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.deaths import Deaths
from devalloc_node.machine.lock import MachineLocks
from devalloc_node.machine.monitor import Monitor, Peer, QmpMonitor
from devalloc_node.machine.process import Process, alive
from devalloc_node.machine.records import MACHINES, MachineRecord, Records, content_of, record_of
from devalloc_node.machine.spec import machine_id
from devalloc_node.machine.translate import spec_of
from devalloc_node.machine.view import UNKNOWN, Amounts, Machine

LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0
"""What one look at a machine may take: it is answered from, and a hung QEMU must not hold up the others."""
_SETTLE_SECONDS = 120.0
"""How long a change of a machine is waited for before it is noted that the machine ended."""
_LOG_SECONDS = 5.0
"""How often it is looked whether a guest has filled a log."""
_USERS = "users"
"""The lock under which user ids are given; those of machines end in a digest."""
_FRESH_SECONDS, _HUNG_SECONDS = 1.0, 10.0
"""How long a look counts; longer where QEMU did not answer."""


class Connect(Protocol):
    """How a line to QEMU is made; tests make others."""

    def __call__(
        self, machine: str, path: str, *, command_seconds: float, check: Callable[[Peer], None]
    ) -> Monitor: ...


@dataclass(frozen=True, slots=True)
class _Look:
    at: float
    observed: Amounts = UNKNOWN
    problem: NodeError | None = None


class Machines:
    """Safe for threads, and beside another instance on the same host. All calls raise NodeError."""

    def __init__(
        self,
        config: MachineConfig,
        records: Records,
        *,
        changed: Callable[[str], None] = lambda key: None,
        connect: Connect = QmpMonitor,
    ) -> None:
        """``changed`` is told the key of a machine that ended or was changed, from any thread."""
        self.config = config
        self.records = records
        self._changed = changed
        self._connect = connect
        self._locks = MachineLocks(config.state)
        self._mutex = threading.Lock()
        self._lines: dict[str, tuple[Monitor, int]] = {}
        self._looks: dict[str, _Look] = {}
        self._deaths = Deaths(self._died)

    def close(self) -> None:
        """Let go of everything but the machines."""
        self._deaths.close()

    # What there is.

    def recover(self) -> None:
        """Find the machines of an earlier run of the plugin: those that live are watched, the others are noted."""
        for key in self.records.records(MACHINES):
            with suppress_and_log(key):
                self._settle(key)

    def keep_logs_short(self, stop: threading.Event) -> None:
        """Empty what guests have filled, now and then until ``stop``: a guest writes as much as it likes."""
        while not stop.wait(_LOG_SECONDS):
            with suppress_and_log("of this node"):
                for key in self.records.records(MACHINES):
                    launch.trim_logs(self.config, machine_id(key))

    def list(self) -> Sequence[Machine]:
        """All machines in care."""
        return [machine for key in self.records.records(MACHINES) if (machine := self.get(key)) is not None]

    def get(self, key: str) -> Machine | None:
        """One machine as it is now, or as it was last seen where it does not answer; None where none is known."""
        content = self.records.record(MACHINES, key)
        if content is None:
            return None
        try:
            record = record_of(key, content)
        except Failed as error:
            return Machine(key, "", "Unknown", reason=error.code, message=error.message)
        try:
            process = self.process_of(record)
        except Unknown as error:
            return self._view(record, None, _Look(0.0, problem=error))
        return self._view(record, process, self._look(record) if process else _Look(0.0))

    def to_restart(self) -> Sequence[VirtualMachine]:
        """Machines that should run by their restart policy and do not: after a reboot, or because they ended."""
        found = []
        for key, content in self.records.records(MACHINES).items():
            with suppress_and_log(key):
                record = record_of(key, content)
                spec = record.spec
                if record.state == "stopping" or spec.adopt or not spec.running or spec.restart != "Always":
                    continue
                if record.reason != "StoppedOnRequest" and self.process_of(record) is None:
                    found.append(record.machine)
        return found

    def process_of(self, record: MachineRecord) -> Process | None:
        """The machine's QEMU; None where it has ended. Raises Unknown."""
        if record.spec.adopt is None:
            return launch.life(record.spec.id, self.config)
        if record.process is None or record.boot != adopt.boot_id() or not alive(record.process):
            return None
        return record.process

    def known(self, key: str) -> MachineRecord:
        """Its record. Raises Denied (``MachineNotFound``), Failed."""
        content = self.records.record(MACHINES, key)
        if content is None:
            raise Denied("MachineNotFound", f"there is no machine {key} on this node")
        return record_of(key, content)

    def running(self, key: str) -> tuple[MachineRecord, Process]:
        """A machine that lives. Raises Denied (``MachineNotFound``, ``MachineNotRunning``)."""
        record = self.known(key)
        process = self.process_of(record)
        if process is None:
            raise Denied("MachineNotRunning", f"machine {key} does not run; start it first", retryable=True)
        return record, process

    # How it comes and goes.

    def start(self, machine: VirtualMachine, deadline: Deadline) -> None:
        """Start it with its CPUs stopped, so that devices can be plugged in before its first instruction.

        One that lives already stays as it is. Where it fails, nothing of it is left. Raises Denied for what it may not
        name or cannot be, Failed (``MachineDidNotStart``), Unknown.
        """
        spec = spec_of(machine)
        with self.hold(spec.key, deadline):
            content = self.records.record(MACHINES, spec.key)
            if content is not None and self.process_of(known := record_of(spec.key, content)) is not None:
                if known.state == "starting":  # perhaps the plugin was killed in the middle of it
                    self._come_up(known, deadline)
                return
            how = accel.chosen(self.config)
            began = False
            try:
                with self._locks.held(_USERS, deadline):  # until it is written down, another machine would get it too
                    given = launch.Launch(str(uuid.uuid4()), self._user(spec.key), how)
                    launch.check(spec, self.config, given)
                    record = MachineRecord(machine.to_manifest(), "starting", given.uuid, given.uid)
                    self._put(record)
                began = True
                launch.launch(spec, self.config, given)
                self._come_up(record, deadline)
            except (NodeError, OSError) as raised:
                error = raised if isinstance(raised, NodeError) else _refused_by_host(spec.key, raised)
                if began and error.code != "MachineRuns":
                    self._take_back(record, error)
                raise error from None

    def resume(self, key: str, deadline: Deadline) -> None:
        """Let its CPUs run. Nothing to do where they do."""
        with self.hold(key, deadline):
            record, _ = self.running(key)
            with self.line(record) as monitor:
                if not monitor.execute("query-status", deadline=deadline)["running"]:
                    monitor.execute("cont", deadline=deadline)
                status = monitor.execute("query-status", deadline=deadline)["status"]
                if status != "running":
                    raise Failed("MachineNotRunning", f"machine {key} was told to run and is {status!r}")
            if record.state != "running":
                self._put(record.become("running"))

    def adopt(self, machine: VirtualMachine, deadline: Deadline) -> None:
        """Take a QEMU into care that runs already. Nothing of it is touched.

        Raises Denied: ``PathNotAllowed``, ``SocketNotOurs``, ``MemlockTooLow``, ``MachineExists``.
        """
        spec = spec_of(machine)
        with self.hold(spec.key, deadline):
            found = adopt.examine(spec, self.config, self._connect, deadline)
            content = self.records.record(MACHINES, spec.key)
            if content is not None:
                known = record_of(spec.key, content)
                lives = self.process_of(known)
                if lives == found.process:
                    return
                if lives is not None:
                    raise Denied("MachineExists", f"machine {spec.key} is another process, {lives.pid}")
            self._put(
                MachineRecord(
                    machine.to_manifest(), "running", found.run, None, found.process, adopt.boot_id(), found.amounts
                )
            )
            self._deaths.watch(spec.key, found.process)

    def stop(self, key: str, seconds: float | None, force: bool, deadline: Deadline) -> None:
        """Have its guest power down within ``seconds`` (None: as its spec says); with ``force`` end it then.

        One whose CPUs never ran is ended at once. Success where it does not run. Raises Denied (``GuestRefused``,
        retryable) where the guest goes on and there is no ``force``; Unknown.
        """
        with self.hold(key, deadline):
            record = self.known(key)
            process = self.process_of(record)
            if process is not None:
                patience = record.spec.powerdown_seconds if seconds is None else seconds
                if record.state != "starting":
                    self._put(record.become("stopping"))
                try:
                    self._end(record, process, patience, force, deadline)
                except Denied:
                    self._put(record)
                    raise
            self._put(record.become("stopped", "StoppedOnRequest", "it was stopped on request"))
            self._gone(record)

    def undo_start(self, key: str, deadline: Deadline) -> None:
        """End one whose CPUs never ran: its start failed, or was cut off. It has failed then, and stays wanted."""
        with self.hold(key, deadline):
            record = self.known(key)
            process = self.process_of(record)
            if process is None and record.state == "failed":
                return  # it says why already
            if process is not None:
                self._end(record, process, 0.0, True, deadline)
            self._put(record.become("failed", "StartUndone", "its start did not succeed, and was undone"))
            self._gone(record)

    def forget(self, key: str, deadline: Deadline) -> None:
        """Keep it no more: a stopped one is gone then, an adopted one goes on. Raises Denied (``MachineRuns``)."""
        with self.hold(key, deadline):
            if self.records.record(MACHINES, key) is None:
                return
            record = self.known(key)
            if record.spec.adopt is None:
                if self.process_of(record) is not None:
                    raise Denied("MachineRuns", f"machine {key} runs; stop it first")
                launch.forget(record.spec.id, self.config)
            self.records.drop(MACHINES, key)
            self._deaths.leave(key)

    def scale(self, key: str, what: str, amount: int, deadline: Deadline) -> None:
        """Change one amount: ``vcpus``, ``cpu`` (thousandths of a CPU whose time it gets, 0 for no bound) or
        ``memory`` (bytes); it is observed to be so when this returns. Raises NodeError."""
        with self.hold(key, deadline):
            record, process = self.running(key)
            with self.line(record) as monitor:
                told = amounts.apply(record, self.config, monitor, process, what, amount, deadline)
            self._put(replace(record, applied=told))

    # Within this room.

    @contextmanager
    def line(self, record: MachineRecord) -> Iterator[Monitor]:
        """The machine's monitor, open as long as somebody uses it."""
        key = record.spec.key
        with self._mutex:
            monitor, users = self._lines.get(key, (None, 0))
            if monitor is None:
                monitor = self._connect(
                    key,
                    record.spec.adopt or str(self.config.folder(record.spec.id) / "qmp"),
                    command_seconds=self.config.command_seconds,
                    check=adopt.owner_check(key, {_listener_of(record)}),
                )
            self._lines[key] = (monitor, users + 1)
        try:
            yield monitor
        finally:
            with self._mutex:
                monitor, users = self._lines.pop(key)
                if users > 1:
                    self._lines[key] = (monitor, users - 1)
            if users == 1:
                monitor.close()

    @contextmanager
    def hold(self, key: str, deadline: Deadline) -> Iterator[None]:
        """Be the only one who changes a machine. Raises Failed (``MachineBusy``)."""
        try:
            with self._locks.held(machine_id(key), deadline):
                yield
        finally:
            with self._mutex:
                self._looks.pop(key, None)
            self._changed(key)

    def _put(self, record: MachineRecord) -> None:
        self.records.put(MACHINES, record.spec.key, content_of(record))

    def _come_up(self, record: MachineRecord, deadline: Deadline) -> None:
        """The rest of starting, once there is a process: may be done again."""
        spec = record.spec
        with self.line(record) as monitor:
            launch.await_monitor(spec, self.config, monitor, deadline.capped(self.config.start_seconds))
            if monitor.execute("query-uuid", deadline=deadline)["UUID"] != record.run:
                raise Denied("MachineRuns", f"another run of machine {spec.key} lives already")
        process = self._lives(record)
        amounts.limit_cpu(spec, self.config, process, spec.cpus.use)
        self._put(replace(record, applied=amounts.asked_of(spec)))
        self._deaths.watch(spec.key, process)

    def _lives(self, record: MachineRecord) -> Process:
        process = self.process_of(record)
        if process is None:
            words = launch.last_words(self.config, record.spec.id)
            raise Failed("MachineDidNotStart", f"machine {record.spec.key} ended as soon as it was started: {words}")
        return process

    def _user(self, key: str) -> int | None:
        """A user id that no other machine has; the same for the same machine, whose files are that user's."""
        if self.config.users is None or adopt.own_user() != 0:
            return None
        taken = {}
        for other, content in self.records.records(MACHINES).items():
            taken[content.get("user")] = other
            if other == key and content.get("user") in self.config.users:
                return int(content["user"])
        for user in self.config.users:
            if user not in taken:
                return user
        raise Denied("NoFreeUser", f"all {len(self.config.users)} user ids for machines are taken", retryable=True)

    def _end(self, record: MachineRecord, process: Process, seconds: float, force: bool, deadline: Deadline) -> None:
        never_ran = record.state == "starting"
        with self.line(record) as monitor:
            if not never_ran and not launch.power_down(monitor, process, seconds, deadline) and not force:
                raise Denied(
                    "GuestRefused",
                    f"machine {record.spec.key}: the guest has not powered down within {seconds:.0f} s; "
                    "--force ends it all the same",
                    retryable=True,
                )
            how = launch.end(monitor, record.spec.key, process)
        LOG.info("machine %s: %s", record.spec.key, how)

    def _take_back(self, record: MachineRecord, error: NodeError) -> None:
        """After a start that failed: end what there is of it and keep why."""
        try:
            process = launch.life(record.spec.id, self.config)
            if process is not None:
                with self.line(record) as monitor:
                    launch.end(monitor, record.spec.key, process)
        except NodeError as more:
            raise Failed(error.code, f"{error.message}. Ending what there is of it failed too: {more}") from error
        self._put(record.become("failed", error.code, error.message))
        self._gone(record)

    def _gone(self, record: MachineRecord) -> None:
        self._deaths.leave(record.spec.key)
        if record.spec.adopt is None:
            launch.clean(record.spec.id, self.config)

    def _settle(self, key: str, seconds: float = _LOOK_SECONDS) -> None:
        """Note that a machine ended, or watch it."""
        with self.hold(key, Deadline.after(seconds)):
            content = self.records.record(MACHINES, key)
            if content is None:
                return
            record = record_of(key, content)
            process = self.process_of(record)
            if process is not None:
                if record.state == "stopping":  # whoever was stopping it is no more, and its guest goes on
                    self._put(record.become("running"))
                self._deaths.watch(key, process)
            elif record.state not in ("stopped", "failed"):
                self._put(self._ended(record))
                self._gone(record)

    def _ended(self, record: MachineRecord) -> MachineRecord:
        """What is to be noted of a machine that was known to live and does not."""
        words = launch.last_words(self.config, record.spec.id)
        if record.state == "starting":  # its CPUs never ran, so that no policy forbids to start it again
            return record.become("failed", "MachineDidNotStart", f"it was not started to the end: {words}".rstrip(": "))
        asked = record.state == "stopping"
        code, text = ("StoppedOnRequest", "it was stopped on request") if asked else ("MachineEnded", "it ended")
        return record.become("stopped", code, f"{text}: {words}" if words else text)

    def _died(self, key: str) -> None:
        # A change of this machine may be under way and take its time to fail; the next death is not to wait for it.
        threading.Thread(target=self._settle_later, args=(key,), name=f"death of {key}", daemon=True).start()

    def _settle_later(self, key: str) -> None:
        with suppress_and_log(key):
            self._settle(key, _SETTLE_SECONDS)

    def _look(self, record: MachineRecord) -> _Look:
        """What QEMU says, at most a second old."""
        key, now = record.spec.key, time.monotonic()
        with self._mutex:
            last = self._looks.get(key)
        if last is not None and now - last.at < (_FRESH_SECONDS if last.problem is None else _HUNG_SECONDS):
            return last
        try:
            with self.line(record) as monitor:
                deadline = Deadline.after(_LOOK_SECONDS)
                look = _Look(now, amounts.observe(record, self.config, monitor, self.process_of(record), deadline))
        except NodeError as error:
            look = _Look(now, last.observed if last else UNKNOWN, error)
        with self._mutex:
            self._looks[key] = look
        return look

    def _view(self, record: MachineRecord, process: Process | None, look: _Look) -> Machine:
        if process is None and look.problem is None and record.state in ("running", "stopping"):
            record = self._ended(record)  # which is noted soon
        phases = {"starting": "Starting", "running": "Running", "stopping": "Stopping", "failed": "Failed"}
        phase, reason, message = phases.get(record.state, "Stopped"), record.reason, record.message
        if look.problem is not None:
            phase, reason, message = "Unknown", look.problem.code, look.problem.message
        elif process is None and phase != "Failed":
            phase = "Stopped"
        spec = record.spec
        return Machine(
            key=spec.key,
            uid=spec.uid,
            phase=phase,
            wanted=amounts.asked_of(spec),
            applied=record.applied,
            observed=look.observed,
            reason=reason,
            message=message,
            pid=process.pid if process else 0,
            id=record.run,
            qmp_socket=spec.adopt or str(self.config.folder(spec.id) / "qmp"),
            adopted=spec.adopt is not None,
            started=spec,
            is_paused=process is not None and record.state == "starting",
        )


def _listener_of(record: MachineRecord) -> int:
    """Whose process listens on the machine's socket. Where that is a user of its own no other will do, for it can put
    a link there, that leads to another QEMU of ours."""
    return adopt.own_user() if record.user is None or record.spec.adopt is not None else record.user


def _refused_by_host(key: str, error: OSError) -> Failed:
    """A full disk, a folder that is not writable, a file that went away between two looks."""
    return Failed("MachineDidNotStart", f"machine {key} did not start: {error}")


@contextmanager
def suppress_and_log(key: str) -> Iterator[None]:
    """One bad machine must not hide the others."""
    try:
        yield
    except NodeError as error:
        LOG.warning("machine %s: %s", key, error)
