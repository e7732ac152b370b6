"""The claims that this node holds something for, and which of their devices are in which machines.

That is known from the journal alone: an attachment is a step of its claim, written down before the device is plugged
in. So unpreparing a claim takes its devices out first, and a crash leaves nothing that the next call or the next start
does not see.

Interfaces describe what this module and `NodeOperations` need of claims, machines and attachments.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.tracing import span
from devalloc_node.claims.journal_content import prepared_of
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.host.lock_folder import lock_purpose
from devalloc_node.journal import ClaimRecord, ClaimState, StepRecord
from devalloc_node.machine.console import LogName
from devalloc_node.machine.records import MachineView, PluggedDevice
from devalloc_node.machine.spec import EmulatedDevice, MachineSpec, RateLimits
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import ATTACHMENT, Prepared, Step


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

    def open_console(self, key: str) -> AbstractContextManager[socket.socket]:
        """A connection to the console of one that runs, for one caller at a time."""

    def log_file(self, key: str, log: LogName) -> Path:
        """The path of one of its logs, which may not exist."""

    def host_files(self, spec: MachineSpec) -> Hashable:
        """Something else as soon as a program, file or interface of the host changes that a machine needs to start."""

    def start(self, machine: VirtualMachine, deadline: Deadline, *, as_it_was: bool = False) -> None:
        """With its CPUs stopped. One that runs already as it is wanted stays as it is. ``as_it_was``: with the amounts
        that were last asked of it."""

    def lost(self, key: str) -> object | None:
        """What lives as the machine though nothing is known of it; None if nothing does."""

    def all_lost(self) -> Sequence[MachineView]:
        """Those that are lost, as far as it is known what they are called: with the reason ``MachineLost``."""

    def take_up(self, key: str, machine: VirtualMachine | None, run: str, deadline: Deadline) -> None:
        """Keep one that is lost again, if it is that run. Raises Denied (``MachineRuns``) if it is another."""

    def resume(self, key: str, deadline: Deadline) -> None: ...

    def pause(self, key: str, deadline: Deadline) -> None:
        """Stop the CPUs of one that runs until ``resume``."""

    def finish_start(self, key: str, deadline: Deadline) -> bool:
        """Whether one whose start was cut off has a guest: it counts as running then. False: its CPUs never ran. Raises
        NodeError if its devices get no addresses by the deadline, or if that is unknown."""

    def adopt(self, machine: VirtualMachine, deadline: Deadline) -> None: ...

    def stop(self, key: str, seconds: float | None, force: bool, deadline: Deadline) -> None:
        """Power it down; None: in its own time. ``force``: end it then. Raises Denied (``GuestRefused``)."""

    def finish(self, key: str, run: str, message: str, deadline: Deadline) -> bool:
        """End this run of it, whose guest reported that it has finished; False if it does not run."""

    def undo_start(self, key: str, deadline: Deadline) -> None:
        """End one whose start failed or was cut off, without asking its guest; it has failed then, and a restart policy
        holds for it."""

    def end_moving(self, key: str, deadline: Deadline) -> None:
        """End one that changes its node, on either side, and keep nothing of it; nothing to do for any other."""

    def forget(self, key: str, deadline: Deadline) -> None:
        """No longer in care: a stopped one is gone, an adopted one goes on."""

    def remove_remains(self, key: str, deadline: Deadline) -> None:
        """Remove what a deleted machine left of which nothing is known; nothing to do if one is known, or lives."""

    def scale(self, key: str, what: str, amount: int, deadline: Deadline) -> None:
        """``what``: vcpus, cpu (thousandths of a core, 0 for no bound) or memory (bytes)."""

    def limit_rates(self, key: str, wanted: RateLimits, deadline: Deadline) -> Sequence[str]:
        """Hold one that runs to these rates; what is not enforced, in sentences. Free if nothing changed."""

    def why_not_movable(self, key: str) -> str | None:
        """What keeps a machine on this node while it runs; empty: nothing. None: that is not known."""

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


UNDO_SECONDS = 10.0
"""What undoing gets when something failed, also if that used up all of the time."""


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that this node holds something for."""

    record: ClaimRecord
    steps: tuple[StepRecord, ...]
    plugs: tuple[PluggedDevice, ...]

    @property
    def prepared(self) -> Prepared | None:
        """What it is to its user, as long as it is prepared."""
        if self.record.state is not ClaimState.PREPARED or self.record.prepared is None:
            return None
        return prepared_of(self.record.ref, self.record.prepared)


class ClaimRegistry:
    """A claim is in a machine whole or not at all. Safe for threads."""

    def __init__(
        self,
        engine: ClaimEngine,
        attachments: AttachmentControl,
        *,
        uid_of: Callable[[str, str], str | None],
        exclusive: Callable[[str, Deadline, str], AbstractContextManager[None]],
        plan: Callable[[ClaimRef, Deadline], Sequence[Step]],
    ) -> None:
        """``uid_of``: of the claim that has a namespace and name now, None if there is none (raises Failed).
        ``exclusive``: a lock between threads and processes, by name, and what it is held for. ``plan``: what preparing
        a claim would do.
        """
        self.engine = engine
        self.journal = engine.journal
        self.exclusive = exclusive
        self.plan = plan
        self._attachments = attachments
        self._uid_of = uid_of

    def held(self, uid: str | None = None) -> list[HeldClaim]:
        """What this node holds, of all claims or of one. Raises Failed."""
        records = self.journal.claims() if uid is None else [record for record in [self.journal.claim(uid)] if record]
        return [self._held(record) for record in records]

    def plugs(self, key: str) -> list[PluggedDevice]:
        """The devices of claims in a machine."""
        owners = self.journal.owners(ATTACHMENT, f"{key}/")
        return [plug for uid in owners for held in self.held(uid) for plug in held.plugs if plug.machine == key]

    def plugs_of(self, ref: ClaimRef) -> list[PluggedDevice]:
        """The devices of a claim in machines."""
        return [plug for held in self.held(ref.uid) for plug in held.plugs]

    def named(self, ref: ClaimRef, *, prepared: bool) -> ClaimRef:
        """The claim with its UID. Without one: the claim that has the name, ``prepared`` ones before all others.

        Raises Denied ``ClaimNotFound``, ``ClaimAmbiguous``.
        """
        if ref.uid:
            return ref
        here = [r.ref for r in self.journal.claims() if (r.ref.namespace, r.ref.name) == (ref.namespace, ref.name)]
        if prepared and len(here) == 1:
            return here[0]
        if prepared and here:
            uids = ", ".join(one.uid for one in here)
            raise Denied("ClaimAmbiguous", f"several prepared claims have had the name {ref}; give the uid: {uids}")
        uid = self._uid_of(ref.namespace, ref.name)
        if uid is None:
            raise Denied("ClaimNotFound", f"claim {ref} not found")
        return ClaimRef(ref.namespace, ref.name, uid)

    def is_in(self, ref: ClaimRef, key: str) -> bool:
        """Whether all devices of a claim are in a machine that runs, as QEMU shows it. Raises NodeError.

        A step that was begun only may never have been taken, and a guest can let go of a device unasked.
        """
        for held in self.held(ref.uid):
            done = {step.device for step in held.steps if step.step.kind == ATTACHMENT and step.state == "done"}
            plugs = [plug for plug in held.plugs if plug.machine == key and plug.device in done]
            names = {device.name for device in held.prepared.devices} if held.prepared is not None else {""}
            return {plug.device for plug in plugs} >= names and all(map(self._attachments.is_in, plugs))
        return False

    def only_in(self, ref: ClaimRef, key: str) -> None:
        """Raises Denied (``ClaimAttached``) if another machine has any of the claim's devices."""
        elsewhere = {plug.machine for plug in self.plugs_of(ref)} - {key}
        if elsewhere:
            raise Denied(
                "ClaimAttached", f"claim {ref} is in machine {', '.join(sorted(elsewhere))}; detach it there first"
            )

    def plug(self, prepared: Prepared, key: str, due: Deadline, caller: str) -> None:
        """Put all devices of a claim into a machine, or none. Raises NodeError."""
        ref = prepared.ref
        with self.exclusive(f"attaching/{ref.uid}", due, lock_purpose(f"attach claim {ref} to machine {key}", caller)):
            self.only_in(ref, key)
            plugs = self.plugs_of(ref)
            before = {plug.step.target for plug in plugs}
            steps = self._attachments.attachments(key, prepared, due)
            try:
                with span("attach", [ref.uid], **{"devalloc.machine": key}):
                    for plug in plugs:
                        if not self._attachments.is_in(plug):  # the guest let it go unasked, or late
                            self.detach([plug], due, False, caller)
                    for device, step in steps:
                        self.engine.add(ref, step, due, device=device, caller=caller)
            except NodeError as error:
                problems = self._taken_out(ref, [step for _, step in steps if step.target not in before], caller)
                if not problems:
                    raise
                raise Failed(
                    error.code,
                    f"{error.message}. Unplugging the earlier devices failed too; the next attach, detach or "
                    f"unprepare does it: {'; '.join(problems)}",
                ) from error

    def detach(self, plugs: Iterable[PluggedDevice], due: Deadline, force: bool, caller: str) -> None:
        """Take devices out, the last first. Raises NodeError."""
        for plug in reversed(list(plugs)):
            self.engine.remove(plug.ref, ATTACHMENT, plug.step.target, due, force=force, caller=caller)

    def _taken_out(self, ref: ClaimRef, steps: Sequence[Step], caller: str) -> list[str]:
        """Undo attachments, the last first; what could not be."""
        due = Deadline.after(UNDO_SECONDS)
        out = partial(self.engine.remove, ref, ATTACHMENT, deadline=due, caller=caller)
        problems = [undo_problem(partial(out, step.target)) for step in reversed(steps)]
        return [problem for problem in problems if problem is not None]

    def _held(self, record: ClaimRecord) -> HeldClaim:
        steps = tuple(self.journal.steps(record.ref.uid))
        plugs = tuple(self._attachments.plug(step, record.ref) for step in steps if step.step.kind == ATTACHMENT)
        return HeldClaim(record, steps, plugs)


def undo_problem(undo: Callable[[], object]) -> str | None:
    """What went wrong with it; None if nothing did."""
    try:
        undo()
    except NodeError as error:
        return error.message
    return None
