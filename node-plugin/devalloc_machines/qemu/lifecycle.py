"""Start, adopt, scale, stop and delete machines; each change is exclusive and recorded."""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.api.virtual_machine_migration import MigrationPlatform
from devalloc.inventory.capacity import HostCapacity
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.worker import repeat
from devalloc_machines.qemu import (
    adoption,
    allowed_paths,
    console,
    emulated_devices,
    firmware,
    hotplug,
    launch,
    machine_files,
    migration_blockers,
    pci,
    pci_layout,
    preflight,
    rates,
    registry,
    resources,
    user_ids,
)
from devalloc_machines.qemu.cpu_pinning import pin_vcpus
from devalloc_machines.qemu.exits import ExitHandler
from devalloc_machines.qemu.process import Process, open_nodes
from devalloc_machines.qemu.qmp import Connect, QmpMonitor, run_state
from devalloc_machines.qemu.records import (
    MACHINES,
    PLUGS,
    UNKNOWN_AMOUNTS,
    MachineRecord,
    restarts_of_next_run,
)
from devalloc_machines.qemu.registry import LOOK_SECONDS, SLEEPING, MachineRegistry, suppress_and_log
from devalloc_machines.qemu.resources import CapacityCheck, HostUses, without_object
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import (
    HOST_SANDBOX,
    NO_RATES,
    EmulatedDevice,
    MachineSandbox,
    MachineSpec,
    RateLimits,
    SandboxProvider,
    machine_id,
    spec_of,
)
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal import Journal
from devalloc_node.model.step import host_device_of

LOG = logging.getLogger(__name__)
RETRY_SECONDS = 60.0
"""Between tries to enforce a rate that the host refuses."""
_ADOPTING = "adopting"
"""The lock under which it is seen to that one process is one machine; those of machines end in a digest."""


class MachineLifecycle(MachineRegistry):
    """The machines that are kept, for those who change them."""

    def __init__(
        self,
        config: MachineConfig,
        records: Journal,
        *,
        changed: Callable[[str], None] = lambda key: None,
        ended: Callable[[], None] = lambda: None,
        connect: Connect = QmpMonitor,
        host: HostCapacity | None = None,
        homes: SandboxProvider | None = None,
        uses: HostUses | None = None,
    ) -> None:
        """As ``MachineRegistry``; ``ended`` is called for each machine that ended without a request. ``host``: what all
        machines may have of it, with those of others among ``uses``; None: no limit."""
        super().__init__(config, records, changed, connect, homes)
        uses = uses or HostUses()
        self._room = None if host is None else CapacityCheck(host, records, uses)
        self._others = uses.others
        self._connect = connect
        self._refused_rates: dict[str, tuple[tuple[str, RateLimits] | None, float, tuple[str, ...]]] = {}
        """By key: in which run which rates were not all enforced, until when that counts, and why."""
        self._settling = ExitHandler(self, ended)

    def close(self) -> None:
        """Let go of everything but the machines."""
        self._settling.close()

    def recover(self) -> None:
        """Find the machines of an earlier run of the plugin: those that live are watched, the others are noted."""
        self._settling.recover()

    def settle(self) -> Collection[str]:
        """The same of those that another plugin on this state folder has started since, or was busy with then. Returns
        the keys of all machines."""
        return self._settling.settle()

    def open_console(self, key: str) -> AbstractContextManager[socket.socket]:
        """As ``console.opened_console``."""
        return console.opened_console(self, key)

    def log_file(self, key: str, log: console.LogName) -> Path:
        """As ``console.log_file``."""
        return console.log_file(self, key, log)

    # How it comes and goes.

    def start(self, machine: VirtualMachine, deadline: Deadline, *, as_it_was: bool = False) -> None:
        """Start it with its CPUs stopped, so that devices can be plugged in before its first instruction.

        ``as_it_was``: with the amounts that were last asked of it, and not those that its spec begins with. One that
        lives already stays as it is. If it fails, nothing of it is left. Raises Denied for what it may not name or
        cannot be, Failed (``MachineDidNotStart``), Unknown.
        """
        spec = spec_of(machine)
        with self.hold(spec.key, deadline, "start"):
            if (existing := self.find(spec.key)) is not None:
                if self.process_of(existing) is not None:
                    if existing.state == "starting":  # perhaps the plugin was killed in the middle of it
                        self.come_up(existing, deadline)
                    return
                self._settling.note_end(existing)  # who watches for that may come later
            if (survivor := machine_files.process_of(spec.id, self.config)) is not None:
                # A journal was lost, or an older one put back.
                raise registry.orphan_refusal(spec.key, survivor)
            requested = existing.requested if as_it_was and existing is not None else UNKNOWN_AMOUNTS
            limited = () if existing is None else existing.tap_limits
            record = MachineRecord(
                machine.to_manifest(),
                "starting",
                str(uuid.uuid4()),
                requested=requested,
                began=round(time.time(), 3),
                restarts=restarts_of_next_run(existing),
                last_end=None if existing is None else existing.last_end,
                tap_limits=limited,
                node_ports=pci_layout.ports_per_node(spec),
            )
            self.begin(record, preflight.choose_accelerator(self.config), deadline)

    def begin(
        self,
        record: MachineRecord,
        accel: Literal["kvm", "tcg"],
        deadline: Deadline,
        incoming: MigrationPlatform | None = None,
    ) -> None:
        """Write down a machine that does not live, and start its QEMU. Only for the holder of its lock. ``incoming``:
        it is to receive a machine that runs elsewhere as this. Raises as ``start``."""
        machine, began = record.machine, False
        spec = resources.spec_started_with(record.spec, resources.resources_at_start(record))
        try:
            with self._users_named(spec.key):  # an image that hangs delays no other machine
                code = ""
                if spec.firmware == "uefi":
                    code = firmware.code_digest(firmware.firmware_files(spec, self.config))
                record = replace(record, firmware=code)
                launch.check(spec, self.config, launch.LaunchOptions(record, accel, incoming))
            with self.admitted(machine, spec, deadline, "start"):
                user = user_ids.free_user(spec.key, self.config, self.records)
                tpm_user = None
                if spec.tpm:
                    tpm_user = user_ids.free_user(spec.key, self.config, self.records, "tpm_user", user)
                record = replace(record, user=user, tpm_user=tpm_user)
                if spec.pinned and not spec.wants_sandbox:
                    host = self.config.topology()
                    with self.homes.choosing_cpus() as in_setups:  # or a setup could be given the same ones
                        cpus = resources.free_cpus(spec, host, in_setups, resources.exclusive_cpus(self.records))
                        self.put(record := replace(record, cpus=tuple(cpus)))
                else:
                    self.put(record)
            began = True
            home = HOST_SANDBOX if not spec.wants_sandbox else self.homes.give(spec, record.run)
            if record.cpus:
                home = MachineSandbox(cpus=record.cpus)
            elif home.cpus:
                record = replace(record, cpus=home.cpus)
                self.put(record)
            given = launch.LaunchOptions(record, accel, incoming)
            launch.launch(spec, self.config, given, home, deadline.capped(deadline.seconds / 2))
            self.come_up(record, deadline)
        except (NodeError, OSError) as raised:
            # A full disk, a folder that is not writable, a file that went away between two looks.
            refused = Failed("MachineDidNotStart", f"machine {spec.key} did not start: {raised}")
            error = raised if isinstance(raised, NodeError) else refused
            if began and error.code != "MachineRuns":
                self._take_back(record, error)
            raise error from None

    @contextmanager
    def admitted(
        self, machine: VirtualMachine, spec: MachineSpec, deadline: Deadline, work: str = "admit"
    ) -> Iterator[None]:
        """Inside, there is capacity for one more machine, and no other one is admitted: record it there
        for ``others``. Raises Denied (``HostFull``), Failed."""
        if self._room is not None:
            self._room.count_stored(spec)
        with self._among_all(user_ids.LOCK, deadline, f"{work} {spec.key}"):
            if self._room is not None:
                self._room.check(machine, spec)
            yield

    def take_up(self, key: str, machine: VirtualMachine | None, run: str, deadline: Deadline) -> None:
        """Keep one of ``all_lost`` again, as ``machine``, if it is the ``run`` that this was last seen as.

        Nothing to do if none is lost. Raises Denied (``MachineRuns``) if it is another run; Failed, Unknown.
        """
        if self.lost(key) is None:
            return
        with self.hold(key, deadline, "take up"):
            if (process := self.lost(key)) is not None:
                launched = None if machine is None else launch.record_at_launch(machine, self.config)
                if launched is None or launched.run != run:
                    raise registry.orphan_refusal(key, process)
                self.put(registry.observe_run(self, launched, process, deadline))
                LOG.warning("adopted machine %s (process %d), which was not in the journal", key, process.pid)
                self._settling.watcher.watch(key, process)

    def resume(self, key: str, deadline: Deadline) -> None:
        """Let its CPUs run, and be wanted to. Nothing to do if that is so.

        One that starts counts as running when each device of its claims has its addresses. Raises Denied
        (``NoPciWindow``, ``GuestNotReady``) if one has not.
        """
        with self.hold(key, deadline, "resume"):
            record, _ = self.running(key)
            with self.line(record) as monitor:
                if not monitor.execute("query-status", deadline=deadline)["running"]:
                    if record.spec.numa_cells and registry.is_paused(monitor, deadline):
                        hotplug.power_slots(monitor, key, deadline)
                    monitor.execute("cont", deadline=deadline)
                status = run_state(monitor, deadline)
                if status not in ("running", SLEEPING):
                    raise Failed("MachineNotRunning", f"machine {key} was resumed but is {status!r}")
                if record.state == "starting":  # it runs once its firmware has given its devices addresses
                    there = [name for name in pci.present_devices(monitor, deadline) if hotplug.is_of_claim(name)]
                    hotplug.await_addresses(monitor, key, self._hosts_of(key, there), deadline)
            if record.state != "running" or record.reason:
                self.put(record.become("running"))

    def pause(self, key: str, deadline: Deadline) -> None:
        """Stop its CPUs until ``resume``. A start that is not complete is not interrupted. Raises NodeError."""
        with self.hold(key, deadline, "pause"):
            record, _ = self.running(key)
            if record.state != "running":
                raise Denied("MachineNotRunning", f"machine {key} is {record.state}")
            with self.line(record) as monitor:
                monitor.execute("stop", deadline=deadline)
            self.put(record.become("running", "PausedOnRequest", "its CPUs stand still, as its spec.paused says"))

    def finish_start(self, key: str, deadline: Deadline) -> bool:
        """Whether one whose start was cut off has a guest: it counts as running then. False if its CPUs never ran.

        Raises NodeError as ``resume`` does if its guest gives the devices of claims no addresses before the deadline,
        and if QEMU does not answer: there may be a guest then.
        """
        with self.hold(key, deadline, "finish the start"):
            if registry.never_ran(self, self.record_for(key), Deadline.after(LOOK_SECONDS)):
                return False
            self.resume(key, deadline)
            return True

    def adopt(self, machine: VirtualMachine, deadline: Deadline) -> None:
        """Take a QEMU into care that runs already. Nothing of it is touched.

        Raises Denied: ``PathNotAllowed``, ``SocketNotOurs``, ``MemlockTooLow``, ``MachineExists``, ``OutOfBounds``,
        ``SetupNotTaken``.
        """
        spec = spec_of(machine)
        with self.hold(spec.key, deadline, "adopt"):
            self.homes.check_lent(spec)
            adopted = adoption.examine(machine, self.config, self._connect, deadline)
            if (existing := self.find(spec.key)) is not None:
                lives = self.process_of(existing)
                if lives == adopted.process:
                    return
                if lives is not None:
                    raise Denied("MachineExists", f"machine {spec.key} already runs as another process, {lives.pid}")
            resources.check_adopted(spec, adopted.applied)
            if existing is not None:  # its record goes, and with it what is known of its limits
                self._settling.note_end(existing)
                self._remove_tap_limits(spec.key)
            with self._among_all(_ADOPTING, deadline, f"adopt {spec.key}"):
                for other, process in self.living():
                    if other.spec.key != spec.key and process == adopted.process:
                        raise Denied(
                            "MachineExists",
                            f"the QEMU at {spec.adopt} (process {process.pid}) is already machine {other.spec.key}; "
                            "delete that one first",
                        )
                self.put(adopted)
            if adopted.process is not None:
                self._settling.watcher.watch(spec.key, adopted.process)

    def stop(self, key: str, seconds: float | None, force: bool, deadline: Deadline) -> None:
        """Have its guest power down within ``seconds`` (None: as its spec says); with ``force`` end it then.

        One whose CPUs never ran is ended at once, if QEMU says so. Success if it does not run. Raises Denied
        (``GuestRefused``, retryable) if the guest goes on and there is no ``force``; Unknown.
        """
        with self.hold(key, deadline, "stop"):
            record = self.record_for(key)
            process = self.process_of(record)
            if process is not None:
                never_ran = registry.is_without_guest(self, record)
                patience = record.spec.powerdown_seconds if seconds is None else seconds
                patience = 0.0 if never_ran else min(patience, deadline.seconds)
                if not never_ran:
                    self.put(record.become("stopping"))
                try:
                    self._end(record, process, patience, force or never_ran, deadline)
                except (Denied, Failed):  # it goes on
                    # One that did not answer before may do so now: without a guest nothing was asked.
                    was_asked = patience > 0 and not registry.is_without_guest(self, record)
                    self.put(record.asked_to_stop() if was_asked else record)
                    raise
            self.put(record.become("stopped", "StoppedOnRequest", "it was stopped on request"))
            self._settling.gone(record)

    def finish(self, key: str, run: str, message: str, deadline: Deadline) -> bool:
        """End a run of a machine because its guest reported that it has finished: its guest powers down within the time
        of its spec, or it is ended then. Its restart policy decides what comes next. False, and nothing to do, if
        that run has ended, or is to be stopped. Raises NodeError.

        What is recorded meanwhile is as before: if the plugin is killed, a guest that powers down ends by itself.
        """
        with self.hold(key, deadline, "end it because its guest has finished"):
            record = self.find(key)
            process = None if record is None else self.process_of(record)
            if record is None or process is None or record.run != run or record.state != "running":
                return False
            self._end(record, process, min(record.spec.powerdown_seconds, deadline.seconds), True, deadline)
            text = "its guest reported that it has finished"
            ended = record.become("stopped", "GuestFinished", f"{text}: {message}" if message else text)
            if record.reason == "StopWanted":  # it had been asked to, and would be started again otherwise
                ended = record.become("stopped", "StoppedOnRequest", "it was stopped on request")
            self.put(ended)
            self._settling.gone(record)
        return True

    def undo_start(self, key: str, deadline: Deadline) -> None:
        """End one whose start failed, or was cut off and not finished. It has failed then, and stays wanted.

        Its guest is not asked: if its CPUs run at all, it lacks what it was to be started with.
        """
        with self.hold(key, deadline, "undo the start"):
            record = self.record_for(key)
            process = self.process_of(record)
            if process is None and record.state == "failed":
                return  # it says why already
            if process is not None:
                self._end(record, process, 0.0, True, deadline)
            self.put(record.become("failed", "StartUndone", "its start failed and was undone"))
            self._settling.gone(record)

    def forget(self, key: str, deadline: Deadline) -> None:
        """Keep it no more: a stopped one is gone then, an adopted one goes on. Raises Denied (``MachineRuns``)."""
        with self.hold(key, deadline, "forget"):
            record = self.find(key)
            if record is None:
                return
            if record.spec.adopt is None:
                if self.process_of(record) is not None:
                    raise Denied("MachineRuns", f"machine {key} runs; stop it first")
                self._remove_tap_limits(key)
                launch.forget(record.spec.id, self.config)
            elif record.wanted_rates.disk_io is not None and self.process_of(record) is not None:
                with suppress_and_log(key), self.line(record) as monitor:  # it goes on with all that it had before
                    rates.enforce(self, replace(record, rates=NO_RATES), monitor, deadline)
            self.records.drop(MACHINES, key)
            self._settling.watcher.leave(key)

    def remove_remains(self, key: str, deadline: Deadline) -> None:
        """Remove the variables, TPM, own disks and logs of a deleted machine that is not in the journal, so that no
        later machine of its name gets them. Nothing to do if one of that name is known, or lives, or if they are
        another machine's. Raises NodeError."""
        name = machine_id(key)
        there = (self.config.firmware(name), self.config.tpm(name), self.config.disks(name), self.config.seed(name))
        if self.records.record(MACHINES, key) is not None or not any(folder.exists() for folder in there):
            return
        if self.has_files_of_another(key):
            return
        with self.hold(key, deadline, "remove what is left of it"):
            if self.records.record(MACHINES, key) is None and self.lost(key) is None:
                launch.forget(name, self.config)

    def scale(self, key: str, what: str, amount: int, deadline: Deadline) -> None:
        """Change one amount: ``vcpus``, ``cpu`` (thousandths of a CPU whose time it gets, 0 for no bound) or
        ``memory`` (bytes); it is observed to be so when this returns. Raises NodeError.

        What is asked is on disk before the machine is changed: if it cannot be written, nothing is changed."""
        with self.hold(key, deadline, f"scale {what}"):
            record, process = self.running(key)
            with self.line(record) as monitor:
                was, record = record, resources.with_request(record, monitor, what, amount, deadline)
                before = was.requested
                self._put_asked(was, record, deadline)
                try:
                    applied = resources.apply_change(record, self.config, monitor, process, what, amount, deadline)
                except Denied as error:
                    # Ask for no more than there is (T15), and do not wait for what it can never have.
                    requested = record.requested if error.retryable else before
                    self.put(
                        replace(record, requested=requested, applied=resources.amounts_reached(record, monitor, what))
                    )
                    raise
            try:
                self.put(replace(record, applied=applied))
            except NodeError as error:
                raise Failed(
                    error.code,
                    f"machine {key} was changed as requested, but the change could not be recorded: {error}",
                ) from error

    def limit_rates(self, key: str, wanted: RateLimits, deadline: Deadline) -> tuple[str, ...]:
        """Hold a machine that runs to these rates; what is not enforced, in sentences. Does nothing if it is held to
        them; what failed is tried again after RETRY_SECONDS, or with other rates.

        Raises Denied (``HostFull``) if the host has no room for more; NodeError.
        """
        record, _ = self.running(key)
        if not rates.are_of_concern(record, wanted):
            return ()
        before, due, problems = self._refused_rates.get(key, (None, 0.0, ()))
        if before == (record.run, wanted) and time.monotonic() < due:
            return problems
        with self.line(record) as monitor:
            unmet = rates.unmet_rates(replace(record, rates=wanted), self.config, monitor, deadline)
        if not unmet and record.wanted_rates == wanted:
            self._refused_rates.pop(key, None)
            return unmet.problems
        with self.hold(key, deadline, "limit its rates"):
            record, _ = self.running(key)
            if record.wanted_rates != wanted:
                was, record = record, replace(record, rates=wanted)
                self._put_asked(was, record, deadline)
            try:
                with self.line(record) as monitor:
                    _, problems = rates.enforce(self, record, monitor, deadline)
            except Failed as error:  # also one whose QEMU says yes and does not do it is not asked again and again
                problems = (error.message,)
        if problems:
            self._refused_rates[key] = ((record.run, wanted), time.monotonic() + RETRY_SECONDS, problems)
        return problems

    @contextmanager
    def still(self, gone: Container[str], deadline: Deadline) -> Iterator[list[MachineUsage]]:
        """Inside, no machine begins or is asked to have more; with what those take that no VirtualMachine speaks for,
        among them those whose objects (UIDs) are ``gone``. Raises NodeError."""
        with self._among_all(user_ids.LOCK, deadline, "count the machines"):
            yield [*without_object(self.records, gone), *self._others()]

    def why_not_movable(self, key: str) -> str | None:
        """What keeps a machine that runs on this node while it runs; empty if nothing does, None if QEMU does not
        answer."""
        try:
            record, _ = self.running(key)
            with self.line(record) as monitor:
                return migration_blockers.why_not_movable(record, monitor, Deadline.after(LOOK_SECONDS)) or ""
        except NodeError:
            return None

    def plug_in(self, key: str, device: EmulatedDevice, deadline: Deadline) -> EmulatedDevice:
        """Plug in an emulated device, until this QEMU ends (``emulated_devices.plug_emulated``). Raises NodeError."""
        with self.hold(key, deadline, f"plug {device.name}"):
            record, _ = self.running(key)
            with self.line(record) as monitor, self._users_named(key):
                plugged = emulated_devices.plug_emulated(
                    monitor,
                    key,
                    device,
                    self.config,
                    deadline,
                    namespace=record.spec.namespace,
                    owner=record.spec.owner,
                    is_starting=registry.never_ran(self, record, deadline),
                )
                if record.wanted_rates.disk_io is not None:  # it shares the rate of the others
                    rates.enforce(self, record, monitor, deadline)
                return plugged

    def unplug(self, key: str, name: str, deadline: Deadline) -> bool:
        """Take it out again, as ``emulated_devices.unplug``; False if there is no such device. Raises NodeError."""
        with self.hold(key, deadline, f"unplug {name}"):
            record, _ = self.running(key)
            with self.line(record) as monitor:
                return emulated_devices.unplug_emulated(monitor, key, name, deadline)

    # Within.

    def _hosts_of(self, key: str, ids: Sequence[str]) -> dict[str, str]:
        """What of the host functions of claims' devices are, by their ids in QEMU."""
        plugs = {name: self.records.record(PLUGS, f"{key}/{name.rpartition('.f')[0]}") or {} for name in ids}
        return {name: host_device_of(plug.get("value") or {}) or name for name, plug in plugs.items()}

    def _put_asked(self, before: MachineRecord, record: MachineRecord, deadline: Deadline) -> None:
        """Note what is asked of one that runs, if there is room for that."""
        if self._room is None:
            self.put(record)
            return
        with self._among_all(user_ids.LOCK, deadline, f"scale {record.spec.key}"):
            self._room.check_more(before, record)
            self.put(record)

    @contextmanager
    def _users_named(self, key: str) -> Iterator[None]:
        """Inside, an error about an image in use names the machine that uses it, if that is known."""
        try:
            yield
        except allowed_paths.ImageInUse as error:
            for other, process in self.living():
                with suppress(NodeError):  # what it has open cannot be told, and the image is in use all the same
                    if open_nodes(process.pid, [error.path]):
                        itself = " itself" if other.spec.key == key else ""
                        error = allowed_paths.ImageInUse(error.path, f"machine {other.spec.key}{itself}")
            raise error from None

    def come_up(self, record: MachineRecord, deadline: Deadline) -> None:
        """The rest of starting, once there is a process: may be done again. Only for the holder of its lock."""
        spec, begins = record.spec, resources.resources_at_start(record)
        with self.line(record) as monitor:
            seconds = launch.seconds_to_answer(spec, self.config, begins.memory_bytes or 0)
            launch.await_monitor(spec, self.config, monitor, deadline.capped(seconds))
            if monitor.execute("query-uuid", deadline=deadline)["UUID"] != record.run:
                raise Denied("MachineRuns", f"another run of machine {spec.key} is already running")
        process = self._lives(record)
        if places := resources.vcpu_places(record):
            with self.line(record) as monitor:
                pin_vcpus(monitor, spec.key, process, places, deadline)
        resources.limit_cpu(spec, self.config, process, begins.cpu_milli or 0, begins.vcpus or 0)
        self.put(record := replace(record, applied=begins))
        if rates.are_of_concern(record, record.wanted_rates):
            try:
                with self.line(record) as monitor:
                    _, problems = rates.enforce(self, record, monitor, deadline)
            except Failed as error:  # it runs without a limit that cannot be enforced
                problems = (error.message,)
            for problem in problems:
                LOG.warning("machine %s: %s", spec.key, problem)
        self._settling.watcher.watch(spec.key, process)

    def remove(self, record: MachineRecord, deadline: Deadline) -> None:
        """End QEMU of a machine without asking its guest, and keep nothing of it. Only for the holder of its lock."""
        self.end_process(record, deadline)
        self._settling.gone(record)
        self._remove_tap_limits(record.spec.key)
        launch.forget(record.spec.id, self.config)
        self.records.drop(MACHINES, record.spec.key)

    def end_process(self, record: MachineRecord, deadline: Deadline) -> None:
        """End its QEMU, if it lives, without asking its guest. Only for the holder of its lock."""
        process = self.process_of(record)
        if process is not None:
            self.put(record.become("stopping"))
            self._end(record, process, 0.0, True, deadline)

    def end_moving(self, key: str, deadline: Deadline) -> None:
        """End one that changes its node, on either side, without asking its guest, and keep nothing of it. Only if the
        store says that another node may run it. Nothing to do if it does not change its node. Raises NodeError."""
        with self.lock(key, deadline, "end it"):
            record = self.find(key)
            if record is not None and record.migration is not None:
                self.remove(record, deadline)

    def _remove_tap_limits(self, key: str) -> None:
        if not rates.remove_tap_limits(self, key):
            raise Failed("LimitNotRemoved", f"machine {key}: the limits of its TAP interfaces remain; try again")

    def _lives(self, record: MachineRecord) -> Process:
        process = self.process_of(record)
        if process is None:
            words = machine_files.last_words(self.config, record.spec.id)
            raise Failed("MachineDidNotStart", f"machine {record.spec.key} ended as soon as it was started: {words}")
        return process

    def _end(self, record: MachineRecord, process: Process, seconds: float, force: bool, deadline: Deadline) -> None:
        with self.line(record) as monitor:
            if seconds:
                registry.wake(monitor, record, deadline)
            if not launch.power_down(monitor, process, seconds, deadline) and not force:
                why = f"the guest did not power down within {seconds:.0f} s; when it does, it stays stopped;"
                if not seconds:
                    why = "the guest was not asked to power down, because no time was left;"
                raise Denied("GuestRefused", f"machine {record.spec.key}: {why} --force ends it now")
            how = launch.end(monitor, record.spec.key, process)
        LOG.info("machine %s: %s", record.spec.key, how)

    def _take_back(self, record: MachineRecord, error: NodeError) -> None:
        """After a start that failed: end what there is of it and keep why."""
        try:
            process = machine_files.process_of(record.spec.id, self.config)
            if process is not None:
                with self.line(record) as monitor:
                    launch.end(monitor, record.spec.key, process)
        except NodeError as more:
            raise Failed(error.code, f"{error.message}. Ending it failed too: {more}") from error
        there = self.find(record.spec.key)  # with the TAP interfaces that were limited for it meanwhile
        record = record if there is None or there.run != record.run else there
        self.put(record.become("failed", error.code, error.message))
        self._settling.gone(record)


LOG_SECONDS = 10.0
"""How often it is looked whether a guest has filled a log: a guest writes as much as it likes."""
TIDY_SECONDS = 300.0
"""How often QEMU is looked at for what no device stands on any more, of machines that were changed since the last look,
or have devices that their guests may let go."""
TIDY_ALL_SECONDS = 3600.0
"""The same of all machines: another plugin on this state folder may have been cut off."""


def run_maintenance(machines: MachineLifecycle, stop: threading.Event) -> None:
    """Until ``stop``: empty the logs that guests have filled, settle machines that others have changed, and take away
    what calls that were cut off, and devices that guests let go by themselves, have left in QEMU."""
    if machines.config.dry_run:
        return
    tidied, all_tidied = float("-inf"), float("-inf")
    untidy: set[str] = set()
    """Keys of machines that may have something to take away."""

    def look() -> None:
        nonlocal tidied, all_tidied
        now, keys = time.monotonic(), machines.settle()
        untidy.update(machines.take_held())
        if now >= all_tidied + TIDY_ALL_SECONDS:
            untidy.update(keys)
            all_tidied = now
        is_due = now >= tidied + TIDY_SECONDS
        tidied = now if is_due else tidied
        for key in keys:
            machine_files.trim(machines.config, machine_id(key))
            if is_due and key in untidy:
                with suppress_and_log(key):
                    if _is_tidy(machines, key):
                        untidy.discard(key)
        untidy.intersection_update(keys)

    # What is done unasked must not end what was asked for.
    repeat(stop, look, LOG_SECONDS, "cannot maintain the machines", delay=LOG_SECONDS)


def _is_tidy(machines: MachineRegistry, key: str) -> bool:
    """Take away what no device stands on; whether none is there that could leave something before a next change.

    Looks before it locks, so that no caller waits for a machine that is tidy.
    """
    due = Deadline.after(LOOK_SECONDS)
    record = machines.record_for(key)
    if record.state != "running" or record.migration is not None or machines.process_of(record) is None:
        return False
    with machines.line(record) as monitor:
        if emulated_devices.has_leftovers(seen := emulated_devices.observe_emulated(monitor, due)):
            with machines.hold(key, due, "tidy up"):
                emulated_devices.remove_leftovers(monitor, due)
        return emulated_devices.is_empty(seen)
