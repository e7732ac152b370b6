"""What is recorded of a machine, so that a later plugin finds it again, also of its end: by whose request, or else how
its QEMU ended. And machines as other packages see them."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from devalloc.api.meta import parse_time
from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu.machine_files import last_words
from devalloc_machines.qemu.process import Process
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import CPU, NO_RATES, EmulatedDevice, MachineSpec, Nic, NumaCell, RateLimits, spec_of
from devalloc_node.errors import Failed, NodeError


@dataclass(frozen=True, slots=True)
class MachineAmounts:
    """None: not known."""

    cpu_milli: int | None = None
    """Thousandths of a CPU whose time it may use: its vCPUs, or less."""
    vcpus: int | None = None
    memory_bytes: int | None = None

    @property
    def usable(self) -> MachineAmounts:
        """With no more CPU time than its vCPUs can use: a bound that is above that brings nothing."""
        if self.cpu_milli is None or self.vcpus is None:
            return self
        return replace(self, cpu_milli=min(self.cpu_milli, self.vcpus * CPU))


UNKNOWN_AMOUNTS = MachineAmounts()
PAUSED_ON_REQUEST = "PausedOnRequest"
"""The reason of a machine that runs and whose CPUs stand still because its object wants that."""

STANDING = ("CpusStopped", "DiskFailed")
"""Reasons of machines that run and whose CPUs do not, though they should."""
IDLE_REASONS = (*STANDING, PAUSED_ON_REQUEST)


class State(Enum):
    """What became of a machine, by its record, its process and QEMU (``state_of``)."""

    ABSENT = auto()
    """Nothing is known of it, and nothing of it lives."""
    LOST = auto()
    """It lives, and has no record."""
    FOREIGN = auto()
    """By its object it lives, as a run that a plugin with another state folder has started."""
    OTHER = auto()
    """Nothing is known of it, and another machine of this node has its name."""
    UNREADABLE = auto()
    """Its record cannot be read."""
    STARTING = auto()
    """Its start is under way or was cut off, and it does not live."""
    CUT_OFF = auto()
    """It lives, and its start has not come to its end, as far as is known: its CPUs do not run yet, or, if the plugin
    was killed meanwhile, its guest may still be giving its devices addresses."""
    INCOMING = auto()
    """It waits for a machine of another node, or has it."""
    RUNNING = auto()
    HALTED = auto()
    """It runs, but its CPUs do not: it was paused, sleeps, or its disk failed."""
    SILENT = auto()
    """QEMU does not answer, or it cannot be told whether it lives."""
    STOPPING = auto()
    ENDED = auto()
    """It does not live any more, which is not noted yet."""
    STOPPED = auto()
    FAILED = auto()


_PHASES = {
    State.STARTING: "Stopped",
    State.CUT_OFF: "Starting",
    State.INCOMING: "Starting",
    State.RUNNING: "Running",
    State.HALTED: "Running",
    State.STOPPING: "Stopping",
    State.ENDED: "Stopped",
    State.STOPPED: "Stopped",
    State.FAILED: "Failed",
}
LIVING = frozenset(State) - {State.ABSENT, State.OTHER, State.STARTING, State.ENDED, State.STOPPED, State.FAILED}
"""States in which its QEMU may hold devices."""


@dataclass(frozen=True, slots=True)
class MachineView:
    """A machine in care, as it was last seen."""

    key: str
    """``namespace/name``"""
    uid: str
    """Of the VirtualMachine object in the store; empty: it was made through the service."""
    state: State
    wanted: MachineAmounts = UNKNOWN_AMOUNTS
    applied: MachineAmounts = UNKNOWN_AMOUNTS
    """What QEMU was last told."""
    observed: MachineAmounts = UNKNOWN_AMOUNTS
    """What QEMU says there is (T15)."""
    reason: str = ""
    message: str = ""
    pid: int = 0
    id: str = ""
    """Names this run of it."""
    qmp_socket: str = ""
    adopted: bool = False
    started: MachineSpec | None = None
    """What it was started as, if that can be read: amounts change while it runs, the rest with its next start."""
    created_as: VirtualMachine | None = None
    """The object, or the request, that it was started from."""
    is_silent: bool = False
    """QEMU does not answer."""
    is_moving: bool = False
    """It is about to change its node; until then nothing else changes it."""
    plain: tuple[EmulatedDevice, ...] = ()
    """What was plugged in beside the devices of claims, as QEMU shows it."""
    rates: RateLimits = NO_RATES
    """What it is limited to."""
    began: float | None = None
    restarts: int = 0
    last_end: MachineEnd | None = None
    network_address: str = ""
    """Of its guest, on its warm card; empty: none is known."""

    @property
    def taps(self) -> tuple[str, ...]:
        """The TAP interfaces that its network cards are on, in the network that it lives in."""
        nics = [*(() if self.started is None else self.started.nics)]
        nics += [each.what for each in self.plain if isinstance(each.what, Nic)]
        return tuple(nic.interface for nic in nics if nic.interface is not None)

    @property
    def phase(self) -> str:
        """As VirtualMachine.status: ``Starting``, ``Running``, ``Stopping``, ``Stopped``, ``Failed``, ``Unknown``."""
        return "Unknown" if self.is_silent else _PHASES.get(self.state, "Unknown")

    @property
    def shown_phase(self) -> str:
        """As for people: ``Paused`` if it runs and its CPUs stand still."""
        return "Paused" if self.stands_still else self.phase

    @property
    def stands_still(self) -> bool:
        """Whether it runs, and its CPUs do not."""
        return self.state is State.HALTED and self.reason in IDLE_REASONS

    @property
    def is_active(self) -> bool:
        """Whether it runs, has begun, and QEMU answers."""
        return self.state in (State.RUNNING, State.HALTED)

    @property
    def runs(self) -> bool:
        """Whether its QEMU may hold devices."""
        return self.state in LIVING

    @property
    def is_to_begin(self) -> bool:
        """Whether a machine that was created through the service is to be started, or its start finished: by its
        policy, or because its start was cut off (or is under way). No policy forbids ending that, and nothing else
        would end it."""
        vm = self.created_as
        if self.uid or vm is None or self.adopted or self.is_moving or not vm.spec.running:
            return False
        if self.state in (State.STARTING, State.CUT_OFF):
            return self.reason != "StopWanted"
        return (
            self.state in (State.ENDED, State.STOPPED, State.FAILED)
            and vm.spec.restart_policy == "Always"
            and self.reason not in ("StoppedOnRequest", "StopWanted")
        )


MACHINES = "machine"
"""The room of the journal's records that holds machines, by key."""
PLUGS = "plug"
"""The room that holds what is plugged in, by the target of its step."""

RecordState = Literal["starting", "running", "stopping", "stopped", "failed", "incoming"]
"""``incoming``: QEMU waits for a machine of another node, or has it; it is that node's until it is taken over."""


@dataclass(frozen=True, slots=True)
class MachineMigration:
    """A machine that is about to change its node. As long as this is recorded, only its migration changes the machine:
    whether it lives on here or there is the store's word, which a plugin that was killed meanwhile has not heard."""

    uid: str
    """Of the migration."""
    role: Literal["source", "target"]
    certificate: str = ""
    """That of the authority by which the other side knows this one (PEM)."""


@dataclass(frozen=True, slots=True)
class MachineEnd:
    """An end that no one asked for."""

    at: float
    """Seconds since the epoch."""
    run: str
    """The run that ended; empty: one of another node."""
    words: str = ""
    """The last lines of QEMU."""
    code: int | None = None
    """Its exit code, and"""
    signal: int | None = None
    """the signal that ended it, as far as the kernel tells."""


@dataclass(frozen=True)
class MachineRecord:
    """Written before QEMU is started (``starting``), and whenever it is known to be in another state."""

    manifest: Mapping[str, Any]
    """The VirtualMachine object."""
    state: RecordState
    run: str
    """The UUID of this run, which QEMU knows too."""
    user: int | None = None
    """What QEMU runs as; None: the plugin's own user."""
    process: Process | None = None
    """Of an adopted machine; of others their life file tells."""
    boot: str = ""
    """The host's boot id in which ``process`` was seen."""
    applied: MachineAmounts = UNKNOWN_AMOUNTS
    requested: Annotated[MachineAmounts, Field(alias="asked")] = UNKNOWN_AMOUNTS
    """What was requested since it was started, or before, if it was restarted as it was (``resources_at_start``);
    recorded before QEMU is asked, so it may not be reached yet."""
    rates: RateLimits | None = None
    """What it is limited to since that was changed while it runs; None: what its spec says."""
    tap_limits: tuple[tuple[str, str], ...] = ()
    """TAP interfaces that may be limited for it: the file of their network namespace (empty: the host's) and the name.
    Written before one is limited, until its limit was removed."""
    cpus_left: bool | None = False
    """Whether a vCPU has left it since it was started, or was about to, and it is emulated. None: it was adopted or
    taken up, and what was done to it before is not known here."""
    cpus: tuple[int, ...] = ()
    """Of the host, that its vCPUs are pinned to, by their slots."""
    numa_cells: tuple[NumaCell, ...] | None = None
    """NUMA nodes that the guest of this run has; None: those of its manifest."""
    node_ports: int = 0
    """Root ports on the expander bus of each of these nodes; 0: it was started without such buses."""
    firmware: str = ""
    """The digest of the code of its UEFI firmware, as it was when this run began; empty: it has none, or that is not
    known."""
    reason: str = ""
    message: str = ""
    migration: MachineMigration | None = None
    tpm_user: int | None = None
    """What its TPM runs as; None: the plugin's own user, or it has no TPM."""
    began: float | None = None
    """When this run began, in seconds since the epoch; None: not known."""
    restarts: int = 0
    """How often it was started again here after an end that no one had asked for."""
    last_end: MachineEnd | None = None

    @cached_property
    def machine(self) -> VirtualMachine:
        return VirtualMachine.model_validate(dict(self.manifest))

    @cached_property
    def spec(self) -> MachineSpec:
        spec = spec_of(self.machine)
        return spec if self.numa_cells is None else replace(spec, numa_cells=self.numa_cells)

    @property
    def is_incoming(self) -> bool:
        """Whether it waits here for a machine of another node."""
        return self.state == "incoming" and self.migration is not None and self.migration.role == "target"

    def become(self, state: RecordState, reason: str = "", message: str = "") -> MachineRecord:
        return replace(self, state=state, reason=reason, message=message)

    @property
    def wanted_rates(self) -> RateLimits:
        """What it is to be limited to."""
        return self.spec.rates if self.rates is None else self.rates

    def asked_to_stop(self) -> MachineRecord:
        """Its guest was asked to power down, and goes on. A start that is not complete stays so: the devices of its
        claims may have no addresses yet."""
        why = (
            "its guest was asked to power down but still runs; when it ends, it stays stopped unless you create it "
            "again"
        )
        return self.become("starting" if self.state == "starting" else "running", "StopWanted", why)


@dataclass(frozen=True, slots=True)
class MachineObservation:
    """What was seen."""

    until: float = 0.0
    """How long it counts, on the monotonic clock."""
    observed: MachineAmounts = UNKNOWN_AMOUNTS
    plain: tuple[EmulatedDevice, ...] = ()
    status: str = "running"
    """QEMU's word for what its CPUs do."""
    requested_memory: int | None = None
    """Bytes that QEMU was told to have, if its word counts more than what is noted."""
    problem: NodeError | None = None


def state_of(record: MachineRecord | None, process: Process | None, look: MachineObservation) -> State:
    """Determine what became of a machine by its record, which can be read if there is one. ``process``: its QEMU;
    ``look``: what that was seen to do."""
    if record is None:
        return State.ABSENT if process is None else State.LOST
    if process is not None and record.state == "starting":
        return State.CUT_OFF  # whether it answers or not: to finish the start finds that out
    if look.problem is not None:
        return State.SILENT
    if process is None:
        return _WITHOUT_PROCESS.get(record.state, State.ENDED)
    if record.state == "running" and look.status != "running":
        return State.HALTED
    return _WITH_PROCESS[record.state]


_WITHOUT_PROCESS = {"starting": State.STARTING, "stopped": State.STOPPED, "failed": State.FAILED}
_WITH_PROCESS = {
    "incoming": State.INCOMING,
    "running": State.RUNNING,
    "stopping": State.STOPPING,
    "stopped": State.STOPPED,  # an older journal was put back, which is noticed soon
    "failed": State.FAILED,
}


def with_history(record: MachineRecord, machine: VirtualMachine) -> MachineRecord:
    """With what the object's status says of this run and of the ends before it, as the node wrote it that had it."""
    status = machine.status
    if status is None or status.machine_id != record.run:
        return record
    began, last_end = _seconds(status.start_time), None
    if (end := status.last_end) is not None and (at := _seconds(end.time)) is not None:
        last_end = MachineEnd(at, "", end.message, end.exit_code, end.signal)
    return replace(record, began=began, restarts=status.restarts or 0, last_end=last_end)


def _seconds(time: str) -> float | None:
    """Seconds since the epoch; None if the text is not a time."""
    try:
        return parse_time(time).timestamp()
    except (ValueError, OverflowError):
        return None


def record_after_end(
    record: MachineRecord, config: MachineConfig, status: tuple[int | None, int | None] = (None, None)
) -> MachineRecord:
    """What is to be noted of a machine that was running and does not live. ``status``: as of ``exit_status``."""
    words = last_words(config, record.spec.id)
    on_request = record.state == "stopping" or record.reason == "StopWanted"
    if record.state == "incoming":
        return record.become("failed", "MigrationFailed", f"it ended before it was taken over: {words}".rstrip(": "))
    if record.state == "starting" and not on_request:  # not to its end, so that no policy forbids to start it again
        return record.become("failed", "MachineDidNotStart", f"its start was not completed: {words}".rstrip(": "))
    if on_request:
        text = "it was stopped on request"
        return record.become("stopped", "StoppedOnRequest", f"{text}: {words}" if words else text)
    end = MachineEnd(round(time.time(), 3), record.run, words, *status)
    return with_end(replace(record, state="stopped"), end)


def with_end(record: MachineRecord, end: MachineEnd) -> MachineRecord:
    """Of a machine that has ended without a request: how."""
    text = f"it ended{how_it_ended(end)}"
    text = f"{text}: {end.words}" if end.words else text
    return replace(record.become(record.state, "MachineEnded", text), last_end=end)


def how_it_ended(end: MachineEnd) -> str:
    """As the end of a sentence; empty if it is not known."""
    if end.signal is not None:
        has_name = end.signal in set(signal.Signals)
        return f", killed by signal {end.signal}{f' ({signal.Signals(end.signal).name})' if has_name else ''}"
    return "" if end.code is None else f" with exit code {end.code}"


def restarts_of_next_run(existing: MachineRecord | None) -> int:
    """How often a machine that is started now was started again after an end that no one had asked for."""
    if existing is None:
        return 0
    return existing.restarts + (existing.last_end is not None and existing.last_end.run == existing.run)


_ROW = TypeAdapter(MachineRecord)


def content_of(record: MachineRecord) -> dict[str, Any]:
    """As JSON. Members are only ever added; a reader ignores those it does not know."""
    content: dict[str, Any] = _ROW.dump_python(record, mode="json", by_alias=True)
    # What was chosen for it says which NUMA nodes it is on; an earlier version refuses what else is new in its status.
    status = content["manifest"].pop("status", None) or {}
    if chosen := {name: status[name] for name in ("nodeName", "allocations") if status.get(name)}:
        content["manifest"]["status"] = chosen
    return content


def record_of(key: str, content: Mapping[str, Any]) -> MachineRecord:
    """Raises Failed (``RecordUnreadable``): such a machine is left alone, and said."""
    try:
        record = _ROW.validate_python({"numa_cells": (), **content})  # an earlier version gave a guest none
        if record.spec.key != key:
            raise ValueError(f"it belongs to {record.spec.key}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Failed("RecordUnreadable", f"cannot read the record of machine {key}: {error}") from None
    return record
