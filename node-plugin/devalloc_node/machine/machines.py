"""All machines of this node: started, adopted, scaled, stopped, and found again after a restart of the plugin.

A machine is never a child of the plugin. That it lives is told by the lock of its life file, which QEMU holds; what it
is, by its record in the journal and by QEMU itself. So nothing here has to survive in memory.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace

from devalloc.api.virtualmachine import VirtualMachine
from devalloc_node.audit import audit
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.machine import accel, adopt, amounts, launch, lost, paths, plain, users
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.deaths import Deaths
from devalloc_node.machine.lines import Lines
from devalloc_node.machine.lock import MachineLocks
from devalloc_node.machine.looks import LOOK_SECONDS, Look, Looks, ended, view
from devalloc_node.machine.monitor import Connect, Monitor, QmpMonitor
from devalloc_node.machine.process import Process, alive, holds
from devalloc_node.machine.records import MACHINES, MachineRecord, Records, content_of, record_of
from devalloc_node.machine.spec import PlainDevice, machine_id, whole_cpus
from devalloc_node.machine.translate import spec_of
from devalloc_node.machine.view import Amounts, Machine

LOG = logging.getLogger(__name__)
_SETTLE_SECONDS = 120.0
"""How long a change of a machine is waited for before it is noted that the machine ended."""
_ADOPTING = "adopting"
"""The lock under which it is seen to that one process is one machine; those of machines end in a digest."""


class Machines:
    """Safe for threads, and beside another instance on the same host. All calls raise NodeError."""

    def __init__(
        self,
        config: MachineConfig,
        records: Records,
        *,
        changed: Callable[[str], None] = lambda key: None,
        ended: Callable[[], None] = lambda: None,
        connect: Connect = QmpMonitor,
    ) -> None:
        """``changed`` is told the key of a machine that ended or was changed, from any thread; ``ended`` is called for
        each that ended though nobody asked for it."""
        self.config = config
        self.records = records
        self._changed = changed
        self._ended = ended
        self._connect = connect
        self._lines = Lines(config, connect)
        self._locks = MachineLocks(config.state)
        self._looks = Looks(self._observed)
        self._deaths = Deaths(self._died)

    def close(self) -> None:
        """Let go of everything but the machines."""
        self._deaths.close()

    # What there is.

    def recover(self) -> None:
        """Find the machines of an earlier run of the plugin: those that live are watched, the others are noted."""
        if self.config.dry_run:
            return
        known = self.records.records(MACHINES)
        for key in known:
            with suppress_and_log(key):
                self._settle(key)
        for found in launch.lives(self.config) - {machine_id(key) for key in known}:
            with suppress_and_log(found):
                if (process := launch.life(found, self.config)) is not None:
                    LOG.warning(
                        "machine %s (process %d) runs, and the journal does not know it; it is taken up where a "
                        "VirtualMachine of the store tells of this run; end it by hand where it is not wanted (kill "
                        "%d): until then no other machine of its name can be started",
                        found,
                        process.pid,
                        process.pid,
                    )

    def list(self) -> Sequence[Machine]:
        """All machines in care. Those that do not answer are told as unknown, and their times do not add up."""
        self._looks.ahead(self._living())
        return [machine for key in self.records.records(MACHINES) if (machine := self.get(key)) is not None]

    def _living(self) -> Iterator[MachineRecord]:
        for key, content in self.records.records(MACHINES).items():
            with suppress(NodeError):  # which ``get`` tells
                record = record_of(key, content)
                if self.process_of(record) is not None:
                    yield record

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
        except NodeError as error:
            return view(record, None, Look(problem=error), self.config)
        return view(record, process, self._looks.at(record) if process else Look(), self.config)

    def to_restart(self) -> Sequence[VirtualMachine]:
        """Machines that should run by their restart policy and do not: after a reboot, because they ended, or because
        their start was cut off (or is under way) before their CPUs ran."""
        found: list[VirtualMachine] = []
        if self.config.dry_run:
            return found
        for key, content in self.records.records(MACHINES).items():
            with suppress_and_log(key):
                record = record_of(key, content)
                spec = record.spec
                if record.state == "stopping" or spec.adopt or not spec.running or spec.restart != "Always":
                    continue
                if record.state == "starting" or (
                    record.reason not in ("StoppedOnRequest", "StopWanted") and self.process_of(record) is None
                ):
                    found.append(record.machine)
        return found

    def process_of(self, record: MachineRecord) -> Process | None:
        """The machine's QEMU; None where it has ended. Raises Unknown, Failed."""
        if record.spec.adopt is None:
            return launch.life(record.spec.id, self.config)
        if record.process is None or record.boot != adopt.boot_id() or not alive(record.process):
            return None
        return record.process

    def _others(self, key: str) -> Iterator[tuple[str, Process]]:
        """The other machines that live, and which processes they are."""
        for other, content in self.records.records(MACHINES).items():
            with suppress_and_log(other):
                if other != key and (process := self.process_of(record_of(other, content))) is not None:
                    yield other, process

    @contextmanager
    def _told_by(self, key: str) -> Iterator[None]:
        """Inside, of an image that is in use is told which other machine has it, where that is known."""
        try:
            yield
        except paths.InUse as error:
            for other, process in self._others(key):
                with suppress(NodeError):  # what it has open cannot be told, and the image is in use all the same
                    if holds(process.pid, [error.path]):
                        error = paths.InUse(error.path, f"machine {other}")
            raise error from None

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
            if (content := self.records.record(MACHINES, spec.key)) is not None:
                known = record_of(spec.key, content)
                if self.process_of(known) is not None:
                    if known.state == "starting":  # perhaps the plugin was killed in the middle of it
                        self._come_up(known, deadline)
                    return
                self._note_end(known)  # who watches for that may come later
            if (found := launch.life(spec.id, self.config)) is not None:  # a journal was lost, or an older one put back
                raise lost.refusal(spec.key, found)
            how = accel.chosen(self.config)
            began = False
            try:
                with self._locks.held(users.LOCK, deadline):
                    given = launch.Launch(str(uuid.uuid4()), users.free(spec.key, self.config, self.records), how)
                    with self._told_by(spec.key):
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

    def lost(self, key: str) -> Process | None:
        """The process of a machine that lives and has no record; None where there is none. Raises NodeError."""
        return None if self.records.record(MACHINES, key) is not None else launch.life(machine_id(key), self.config)

    def take_up(self, key: str, machine: VirtualMachine | None, run: str, deadline: Deadline) -> None:
        """Keep one that is ``lost`` again, as ``machine``, if it is the ``run`` that this was last seen as.

        Nothing to do where none is lost. Raises Denied (``MachineRuns``) where it is another run; Failed, Unknown.
        """
        if self.lost(key) is None:
            return
        with self.hold(key, deadline):
            if (process := self.lost(key)) is not None:
                if machine is None:
                    raise lost.refusal(key, process)
                self._put(lost.recognised(self, machine, run, process, deadline))
                self._deaths.watch(key, process)

    def resume(self, key: str, deadline: Deadline) -> None:
        """Let its CPUs run, and be wanted to. Nothing to do where that is so."""
        with self.hold(key, deadline):
            record, _ = self.running(key)
            with self.line(record) as monitor:
                if not monitor.execute("query-status", deadline=deadline)["running"]:
                    monitor.execute("cont", deadline=deadline)
                status = monitor.execute("query-status", deadline=deadline)["status"]
                if status != "running":
                    raise Failed("MachineNotRunning", f"machine {key} was told to run and is {status!r}")
            if record.state != "running" or record.reason:
                self._put(record.become("running"))

    def adopt(self, machine: VirtualMachine, deadline: Deadline) -> None:
        """Take a QEMU into care that runs already. Nothing of it is touched.

        Raises Denied: ``PathNotAllowed``, ``SocketNotOurs``, ``MemlockTooLow``, ``MachineExists``, ``OutOfBounds``.
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
            amounts.check_adopted(spec, found.amounts)
            with self._locks.held(_ADOPTING, deadline):
                for other, process in self._others(spec.key):
                    if process == found.process:
                        raise Denied(
                            "MachineExists",
                            f"the QEMU at {spec.adopt} (process {process.pid}) is machine {other} already; "
                            "delete that one first",
                        )
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
                except (Denied, Failed):  # it goes on
                    was_asked = patience > 0 and record.state != "starting"  # whose CPUs never ran is asked nothing
                    self._put(_asked_to_stop(record) if was_asked else record)
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
        ``memory`` (bytes); it is observed to be so when this returns. Raises NodeError.

        What is asked is on disk before the machine is changed: where it cannot be written nothing is changed."""
        with self.hold(key, deadline):
            record, process = self.running(key)
            with self.line(record) as monitor:
                record = amounts.asked(record, monitor, what, amount, deadline)
                self._put(record)
                try:
                    told = amounts.apply(record, self.config, monitor, process, what, amount, deadline)
                except Denied as error:
                    if error.code == "GuestRefused":  # no more is asked of it than what there is (T15)
                        self._put(replace(record, applied=amounts.kept(record, monitor, what)))
                    raise
            try:
                self._put(replace(record, applied=told))
            except NodeError as error:
                raise Failed(
                    error.code, f"machine {key} has been changed as asked, and that could not be noted: {error}"
                ) from error

    def plug_in(self, key: str, device: PlainDevice, deadline: Deadline) -> PlainDevice:
        """Plug in what has no hardware behind it, for as long as this QEMU runs (``plain.plug``). Raises NodeError."""
        with self.hold(key, deadline):
            record, _ = self.running(key)
            with self.line(record) as monitor, self._told_by(key):
                return plain.plug(monitor, key, device, self.config.folders, deadline, owner=record.spec.owner)

    def unplug(self, key: str, name: str, deadline: Deadline) -> bool:
        """Take it out again, as ``plain.unplug``; False where there is no such device. Raises NodeError."""
        with self.hold(key, deadline):
            record, _ = self.running(key)
            with self.line(record) as monitor:
                return plain.unplug(monitor, key, name, deadline)

    # Within this room.

    def line(self, record: MachineRecord) -> AbstractContextManager[Monitor]:
        """The machine's monitor, open as long as somebody uses it."""
        return self._lines.to(record)

    @contextmanager
    def hold(self, key: str, deadline: Deadline) -> Iterator[None]:
        """Be the only one who changes a machine. Raises Failed (``MachineBusy``), Denied (``DryRun``)."""
        if self.config.dry_run:
            raise Denied("DryRun", f"nothing is changed in a dry run: would change machine {key}")
        try:
            with self._locks.held(machine_id(key), deadline):
                yield
        finally:
            self._looks.forget(key)
            self._changed(key)

    def _observed(self, record: MachineRecord) -> tuple[Amounts, tuple[PlainDevice, ...]]:
        with self.line(record) as monitor:
            due = Deadline.after(LOOK_SECONDS)
            seen = amounts.observe(record, self.config, monitor, self.process_of(record), due)
            return seen, plain.plugged(monitor, due)

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
        amounts.limit_cpu(spec, self.config, process, spec.cpus.use, whole_cpus(spec.cpus.use))
        self._put(replace(record, applied=amounts.asked_of(spec)))
        self._deaths.watch(spec.key, process)

    def _lives(self, record: MachineRecord) -> Process:
        process = self.process_of(record)
        if process is None:
            words = launch.last_words(self.config, record.spec.id)
            raise Failed("MachineDidNotStart", f"machine {record.spec.key} ended as soon as it was started: {words}")
        return process

    def _end(self, record: MachineRecord, process: Process, seconds: float, force: bool, deadline: Deadline) -> None:
        never_ran = record.state == "starting"
        with self.line(record) as monitor:
            seconds = min(seconds, deadline.seconds)
            if not never_ran and not launch.power_down(monitor, process, seconds, deadline) and not force:
                raise Denied(
                    "GuestRefused",
                    f"machine {record.spec.key}: the guest has not powered down within {seconds:.0f} s; "
                    "when it does it stays stopped, and --force ends it now",
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

    def _settle(self, key: str, seconds: float = LOOK_SECONDS) -> None:
        """Note that a machine ended, or watch it."""
        with self.hold(key, Deadline.after(seconds)):
            content = self.records.record(MACHINES, key)
            if content is None:
                return
            record = record_of(key, content)
            process = self.process_of(record)
            if process is not None and record.spec.uid and lost.is_another(record, process):
                LOG.warning("what the journal knows of machine %s is of an earlier run, and is forgotten", key)
                self.records.drop(MACHINES, key)  # perhaps of another object, too: its own takes it up
            elif process is not None:
                # Whoever was stopping it is no more, and its guest goes on; or who started it came to the end of that.
                if record.state == "stopping":
                    self._put(_asked_to_stop(record))
                elif record.state == "starting" and self._has_run(record):
                    self._put(record.become("running"))
                elif record.state in ("stopped", "failed"):  # an older journal was put back: this is a later run of it
                    LOG.warning("machine %s runs, though the journal has it as %s: taken up", key, record.state)
                    self._put(lost.seen(self, record, Deadline.after(LOOK_SECONDS)))
                self._deaths.watch(key, process)
            else:
                self._note_end(record)

    def _note_end(self, record: MachineRecord) -> None:
        """Of one that does not live: that it ended, where that is not known yet; said where nobody asked for it."""
        if record.state in ("stopped", "failed"):
            return
        noted = ended(record, self.config)
        self._put(noted)
        self._gone(record)
        if noted.reason != "StoppedOnRequest":
            LOG.warning("machine %s: %s", record.spec.key, noted.message)
            audit("machine", machine=record.spec.key, done="ended", reason=noted.reason, message=noted.message)
            self._ended()

    def _has_run(self, record: MachineRecord) -> bool:
        """Whether its CPUs were let run. Where that cannot be told, the record counts."""
        with suppress_and_log(record.spec.key), self.line(record) as monitor:
            status = monitor.execute("query-status", deadline=Deadline.after(LOOK_SECONDS))["status"]
            return bool(status != lost.PAUSED)
        return False

    def _died(self, key: str) -> None:
        # A change of this machine may be under way and take its time to fail; the next death is not to wait for it.
        threading.Thread(target=self._settle_later, args=(key,), name=f"death of {key}", daemon=True).start()

    def _settle_later(self, key: str) -> None:
        with suppress_and_log(key):
            self._settle(key, _SETTLE_SECONDS)


def _asked_to_stop(record: MachineRecord) -> MachineRecord:
    why = "its guest was asked to power down, and goes on; when it ends it stays stopped, unless it is created anew"
    return record.become("running", "StopWanted", why)


def _refused_by_host(key: str, error: OSError) -> Failed:
    """A full disk, a folder that is not writable, a file that went away between two looks."""
    return Failed("MachineDidNotStart", f"machine {key} did not start: {error}")


@contextmanager
def suppress_and_log(key: str) -> Iterator[None]:
    """One bad machine must not hide the others."""
    try:
        yield
    except (NodeError, OSError) as error:
        LOG.warning("machine %s: %s", key, error)
