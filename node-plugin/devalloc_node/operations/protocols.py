"""Interfaces that `NodeOperations` and `ClaimRegistry` depend on: claims, machines and attachments."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_node.deadline import Deadline
from devalloc_node.journal import ClaimRecord, StepRecord
from devalloc_node.machine.records import MachineView, PluggedDevice
from devalloc_node.machine.spec import EmulatedDevice, MachineSpec
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.prepared import Prepared
from devalloc_node.model.step import Step


class ClaimRecords(Protocol):
    """The part of the journal that is used here. Raises Failed."""

    def claim(self, uid: str) -> ClaimRecord | None: ...

    def claims(self) -> Sequence[ClaimRecord]: ...

    def steps(self, owner: str) -> Sequence[StepRecord]: ...

    def owners(self, kind: str, targets: str) -> Sequence[str]: ...

    def setting(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...


class ClaimEngine(Protocol):
    """The engine. Safe for threads; all calls are idempotent and raise NodeError."""

    @property
    def journal(self) -> ClaimRecords: ...

    def prepare(
        self, ref: ClaimRef, deadline: Deadline | None = None, *, kind: str | None = None, caller: str = ""
    ) -> Prepared: ...

    def unprepare(
        self, ref: ClaimRef, deadline: Deadline | None = None, *, force: bool = False, caller: str = ""
    ) -> None: ...

    def add(
        self, ref: ClaimRef, step: Step, deadline: Deadline | None = None, *, device: str = "", caller: str = ""
    ) -> None: ...

    def remove(
        self,
        ref: ClaimRef,
        kind: str,
        target: str,
        deadline: Deadline | None = None,
        *,
        force: bool = False,
        caller: str = "",
    ) -> None: ...


class MachineControl(Protocol):
    """QEMU. Safe for threads; all calls are idempotent and raise NodeError."""

    def list(self) -> Sequence[MachineView]: ...

    def get(self, key: str) -> MachineView | None: ...

    def owner(self, key: str) -> str | None:
        """The UID of the object that a machine was made for, or empty; None: no machine is known by that key."""

    def owners(self) -> Mapping[str, str]:
        """As ``owner``, of all machines by their keys. Reads only the journal."""

    def is_as_seen(self, key: str) -> bool:
        """Whether a machine still runs as it did when ``get`` last saw it, for a fraction of what ``get`` costs. False
        also if that cannot be said."""

    def host_files(self, spec: MachineSpec) -> Hashable:
        """Something else as soon as a program, file or interface of the host changes that a machine needs to start."""

    def start(self, machine: VirtualMachine, deadline: Deadline, *, as_it_was: bool = False) -> None:
        """With its CPUs stopped. One that runs already as it is wanted stays as it is. ``as_it_was``: with the amounts
        that were last asked of it."""

    def lost(self, key: str) -> object | None:
        """What lives as the machine though nothing is known of it; None where nothing does."""

    def all_lost(self) -> Sequence[MachineView]:
        """Those that are lost, as far as it is known what they are called: with the reason ``MachineLost``."""

    def take_up(self, key: str, machine: VirtualMachine | None, run: str, deadline: Deadline) -> None:
        """Keep one that is lost again, if it is that run. Raises Denied (``MachineRuns``) where it is another."""

    def resume(self, key: str, deadline: Deadline) -> None: ...

    def finish_start(self, key: str, deadline: Deadline) -> bool:
        """Whether one whose start was cut off has a guest: it counts as running then. False: its CPUs never ran. Raises
        NodeError if its devices get no addresses by the deadline, or if that is unknown."""

    def adopt(self, machine: VirtualMachine, deadline: Deadline) -> None: ...

    def stop(self, key: str, seconds: float | None, force: bool, deadline: Deadline) -> None:
        """Power it down; None: in its own time. ``force``: end it then. Raises Denied (``GuestRefused``)."""

    def undo_start(self, key: str, deadline: Deadline) -> None:
        """End one whose start failed or was cut off, without asking its guest; it has failed then, and a restart policy
        holds for it."""

    def forget(self, key: str, deadline: Deadline) -> None:
        """No longer in care: a stopped one is gone, an adopted one goes on."""

    def scale(self, key: str, what: str, amount: int, deadline: Deadline) -> None:
        """``what``: vcpus, cpu (thousandths of a core, 0 for no bound) or memory (bytes)."""

    def guest_addresses(self, key: str) -> Mapping[str, str]:
        """Where its guest finds the devices plugged in, by the ids of devices; nothing if QEMU does not answer."""

    def plug_in(self, key: str, device: EmulatedDevice, deadline: Deadline) -> EmulatedDevice:
        """A disk or network card without hardware behind it, into a machine that runs; as it is there then."""

    def unplug(self, key: str, name: str, deadline: Deadline) -> bool:
        """Whether there was such a device. Raises Denied (``GuestRefused``)."""


class AttachmentControl(Protocol):
    """How devices get into machines."""

    def attachments(self, key: str, prepared: Prepared, deadline: Deadline) -> Sequence[tuple[str, Step]]:
        """A step for each device (``pool/device``) that puts it into the machine.

        Raises Denied, before anything is plugged in, when they do not fit.
        """

    def plug(self, record: StepRecord, ref: ClaimRef) -> PluggedDevice:
        """What an attachment step says."""

    def is_in(self, plug: PluggedDevice) -> bool:
        """Whether it is there, as QEMU shows it. Raises NodeError."""
