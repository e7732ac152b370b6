"""The end of machines: watch QEMU processes, record the end of each, and ask all guests to power down.

Nothing is noted of guests that power down because their host does: the machines stay wanted, and come back with the
host as their restart policies say.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from devalloc_machines.qemu import adoption, hotplug, launch, machine_files, pci, rates, registry, resources
from devalloc_machines.qemu.cpu_pinning import pin_vcpus
from devalloc_machines.qemu.process import Process, exit_status, pidfd
from devalloc_machines.qemu.qmp import ANSWER_SECONDS
from devalloc_machines.qemu.records import (
    MACHINES,
    PLUGS,
    MachineRecord,
    how_it_ended,
    record_after_end,
    record_of,
    with_end,
)
from devalloc_machines.qemu.registry import LOOK_SECONDS, MachineRegistry, suppress_and_log
from devalloc_machines.qemu.spec import machine_id
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed, NodeError
from devalloc_node.journal.audit_log import audit

_MOST = 256
"""Machines that are waited for at the same time."""


def power_down_all(machines: MachineRegistry, deadline: Deadline) -> Mapping[str, str]:
    """What became of each machine that runs, by its key: "" if its guest has powered down, else why it has not.

    Each has as long as its own spec says. Adopted machines are left alone, and those whose CPUs do not run yet or that
    are another node's until they have moved.
    Raises Failed if the machines are not known.
    """
    outcomes: dict[str, str] = {}
    pending: list[tuple[MachineRecord, Process]] = []
    for key, content in machines.records.records(MACHINES).items():
        try:
            record = record_of(key, content)
            is_left_alone = record.spec.adopt is not None or record.state == "incoming"
            process = None if is_left_alone else machines.process_of(record)
        except NodeError as error:
            outcomes[key] = error.message
        else:
            if process is not None:
                pending.append((record, process))
    if not pending:
        return outcomes

    def ask(one: tuple[MachineRecord, Process]) -> str | None:
        record, process = one
        seconds = min(record.spec.powerdown_seconds, deadline.seconds)
        try:
            with machines.line(record) as monitor:
                if registry.is_paused(monitor, deadline.capped(ANSWER_SECONDS)):
                    return None
                registry.wake(monitor, record, deadline)
                if launch.power_down(monitor, process, seconds, deadline):
                    return ""
        except NodeError as error:  # its guest is not even asked, for example if its sockets are elsewhere
            return error.message
        return f"its guest did not power down within {seconds:.0f} s"

    with ThreadPoolExecutor(min(_MOST, len(pending))) as pool:
        keys = (record.spec.key for record, _ in pending)
        answers = zip(keys, pool.map(ask, pending), strict=True)
        return outcomes | {key: answer for key, answer in answers if answer is not None}


LOG = logging.getLogger(__name__)


class ExitWatcher:
    """Calls ``ended(name, fd)`` once for each process that was watched under that name and ended. ``fd``: its pidfd,
    which the callee closes unless it raises; None if it had ended before it was watched."""

    def __init__(self, ended: Callable[[str, int | None], None]) -> None:
        self._ended = ended
        self._mutex = threading.Lock()
        self._watched: dict[str, tuple[Process, int]] = {}
        self._names: dict[int, str] = {}
        self._poll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = threading.Thread(target=self._run, name="deaths", daemon=True)
        self._thread.start()

    def watch(self, name: str, process: Process) -> None:
        """Another process under the same name replaces the first. The end of one that has ended is reported at once."""
        with self._mutex:
            watched = self._watched.get(name)
            if watched is not None and watched[0] == process:
                return
            self._drop(name)
            if self._poll.closed:  # the plugin ends, and another one watches
                return
            fd = pidfd(process)
            if fd is not None:
                self._watched[name], self._names[fd] = (process, fd), name
                self._poll.register(fd, select.EPOLLIN)
                return
        self._tell(name, None)

    def watches(self, name: str) -> bool:
        """Whether the process that is watched under a name lives: its end is still to be told."""
        with self._mutex:
            return name in self._watched

    def leave(self, name: str) -> None:
        """Watch it no more."""
        with self._mutex:
            self._drop(name)

    def close(self) -> None:
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        with self._mutex:
            for name in list(self._watched):
                self._drop(name)
            self._poll.close()
            os.close(self._wake)

    def _drop(self, name: str) -> None:
        if name in self._watched:
            os.close(self._take(name))

    def _take(self, name: str) -> int:
        """Watch it no more; its descriptor."""
        _, fd = self._watched.pop(name)
        del self._names[fd]
        self._poll.unregister(fd)
        return fd

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._wake:
                    return
                with self._mutex:
                    name = self._names.get(fd)
                    if name is not None:
                        self._take(name)
                if name is not None:
                    self._tell(name, fd)

    def _tell(self, name: str, fd: int | None) -> None:
        try:
            self._ended(name, fd)
        except Exception:  # a failing callback must not end the watch over the other machines
            LOG.exception("reporting that %s ended", name)
            if fd is not None:
                os.close(fd)


ExitStatus = tuple[int | None, int | None]
"""Exit code and signal, as far as they are known."""
_AT_ONCE_SECONDS, _STATUS_SECONDS = 0.2, 5.0
"""How long a process that has ended may wait to be collected by its parent: until its end is noted, and after that."""
_SETTLE_SECONDS = 120.0
"""How long a change of a machine is waited for before it is noted that the machine ended."""


class ExitHandler:
    """Safe for threads."""

    def __init__(self, registry: MachineRegistry, ended: Callable[[], None]) -> None:
        """``record_after_end`` is called for each machine that ended without a request."""
        self._registry = registry
        self._ended = ended
        self.watcher = ExitWatcher(self._died)
        """Of the processes that are machines: the end of each is noted."""

    def close(self) -> None:
        """Watch none any more."""
        self.watcher.close()

    def recover(self) -> None:
        """Settle all that are known, and say which others live."""
        if self._registry.config.dry_run:
            return
        boot = adoption.boot_id()
        for target, plug in self._registry.records.records(PLUGS).items():
            if plug.get("boot", boot) != boot:  # the reboot has taken it out
                self._registry.records.drop(PLUGS, target)
        records = self._registry.records.records(MACHINES)
        for key in records:
            with suppress_and_log(key):
                self._settle(key)
        for stray in machine_files.machine_ids(self._registry.config) - {machine_id(key) for key in records}:
            with suppress_and_log(stray):
                if (process := machine_files.process_of(stray, self._registry.config)) is not None:
                    LOG.warning(
                        "machine %s (process %d) runs but is not in the journal. It is adopted if a VirtualMachine "
                        "in the store names this run. If you do not need it, end it by hand (kill %d): until then no "
                        "other machine of its name can be started",
                        stray,
                        process.pid,
                        process.pid,
                    )

    def settle(self) -> Collection[str]:
        """Settle those that are not as they are known: another plugin on this state folder has started them, or was
        busy with them when this one began, or was killed in the middle of it. Returns the keys of all machines."""
        records = self._registry.records.records(MACHINES)
        for key, content in records.items():
            with suppress(NodeError, OSError):  # said by ``recover``, and by who asks for it: this is done too often
                if content.get("state") == "running" and self.watcher.watches(key):
                    continue  # nearly all, nearly always: it is not even read
                if self._is_settled(record_of(key, content)):
                    continue
                with suppress_and_log(key):
                    try:
                        self._settle(key, 0.0)
                    except Failed as error:
                        if error.code != "MachineBusy":  # who is busy with it sees to it
                            raise
        return records.keys()

    def _is_settled(self, record: MachineRecord) -> bool:
        process = self._registry.process_of(record)
        if process is None:
            return record.state in ("stopped", "failed") and not record.tap_limits
        return record.state in ("running", "incoming") and self.watcher.watches(record.spec.key)

    def note_end(self, record: MachineRecord, status: ExitStatus = (None, None)) -> None:
        """Record that a machine ended, if that is not recorded yet; log it if no one requested it."""
        if record.state in ("stopped", "failed"):
            return
        noted = record_after_end(record, self._registry.config, status)
        self._registry.put(noted)
        self.gone(record)
        if noted.reason != "StoppedOnRequest":
            LOG.warning("machine %s: %s", record.spec.key, noted.message)
            audit("machine", machine=record.spec.key, done="ended", reason=noted.reason, message=noted.message)
            self._ended()

    def gone(self, record: MachineRecord) -> None:
        """Take away what one that has ended leaves on the host."""
        self.watcher.leave(record.spec.key)
        with suppress_and_log(record.spec.key):
            rates.remove_tap_limits(self._registry, record.spec.key)
        if record.spec.adopt is None:
            launch.clean(record.spec.id, self._registry.config)
        if record.spec.wants_sandbox:
            self._registry.homes.take_back(record.spec.key)

    def _settle(self, key: str, seconds: float = LOOK_SECONDS, status: ExitStatus = (None, None)) -> None:
        """Note that a machine ended, or watch it."""
        with self._registry.lock(key, Deadline.after(seconds), "record that it ended"):
            record = self._registry.find(key)
            if record is None:
                return
            process = self._registry.process_of(record)
            is_another = process is not None and registry.is_other_run(record, process)
            if is_another and record.spec.uid:
                LOG.warning("the journal's record of machine %s belongs to an earlier run and is deleted", key)
                self._registry.records.drop(MACHINES, key)  # perhaps of another object, too: its own takes it up
            elif process is not None:
                # The call that was stopping it is gone but its guest still runs; or the call that started it succeeded.
                if is_another or record.state in ("stopped", "failed"):  # an older journal was put back
                    LOG.warning("machine %s is a later run than the one in the journal: adopted", key)
                    due = Deadline.after(LOOK_SECONDS)
                    self._registry.put(registry.observe_run(self._registry, record, process, due))
                elif record.state == "stopping":
                    self._registry.put(record.asked_to_stop())
                elif record.state == "starting" and self._has_begun(record):
                    self._registry.put(replace(record, state="running"))
                self._pin(self._registry.record_for(key), process)
                self.watcher.watch(key, process)
            elif record.state in ("stopped", "failed"):
                self.gone(record)  # the one who noted that may have been killed before
            else:
                self.note_end(record, status)

    def _pin(self, record: MachineRecord, process: Process) -> None:
        """Bind its vCPUs to their CPUs: a plugin may have been killed when it had just added one."""
        key = record.spec.key
        if places := resources.vcpu_places(record):
            with suppress_and_log(key), self._registry.line(record) as monitor:
                pin_vcpus(monitor, key, process, places, Deadline.after(LOOK_SECONDS))

    def _has_begun(self, record: MachineRecord) -> bool:
        """Whether its CPUs run and the devices of its claims have addresses, as ``resume`` waits for. If one has none,
        the start was cut off before its end. If QEMU does not answer, the record counts."""
        key, deadline = record.spec.key, Deadline.after(LOOK_SECONDS)
        with suppress_and_log(key), self._registry.line(record) as monitor:
            if not registry.is_paused(monitor, deadline):
                there = [name for name in pci.present_devices(monitor, deadline) if hotplug.is_of_claim(name)]
                return hotplug.have_addresses(monitor, key, there, deadline)
        return False

    def _died(self, key: str, fd: int | None) -> None:
        # A change of this machine may be under way and take its time to fail; the next death is not to wait for it.
        threading.Thread(target=self._settle_later, args=(key, fd), name=f"death of {key}", daemon=True).start()

    def _settle_later(self, key: str, fd: int | None) -> None:
        run, status = "", (None, None) if fd is None else exit_status(fd, _AT_ONCE_SECONDS)
        try:
            with suppress_and_log(key):
                run = "" if (record := self._registry.find(key)) is None else record.run
                self._settle(key, _SETTLE_SECONDS, status)
            if fd is not None and status == (None, None):
                with suppress_and_log(key):
                    self._note_status(key, run, *exit_status(fd, _STATUS_SECONDS))
        finally:
            if fd is not None:
                os.close(fd)

    def _note_status(self, key: str, run: str, code: int | None, signal: int | None) -> None:
        """Add to the end of a run, if no one had asked for it, how its QEMU has ended. It may run again by now."""
        if code is None and signal is None:
            return
        with self._registry.lock(key, Deadline.after(_SETTLE_SECONDS), "record how it ended"):
            record = self._registry.find(key)
            if record is None or record.last_end is None or record.last_end.run != run:
                return
            end = replace(record.last_end, code=code, signal=signal)
            noted = with_end(record, end) if record.reason == "MachineEnded" else replace(record, last_end=end)
            self._registry.put(noted)
        LOG.warning("machine %s: QEMU ended%s", key, how_it_ended(end))
