"""Operations on machines and the claims in them, for the gRPC service and the VirtualMachine loop.

Every call here may be repeated and goes on where an earlier one ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from devalloc.api.virtual_machine import VirtualMachine
from devalloc.scaling.health import ScalingReport
from devalloc.tracing import span
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.guest_report import GuestReport
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.preflight import check_numa, check_slots, refuse_other_spec
from devalloc_machines.qemu.records import STANDING, MachineAmounts, MachineView, State
from devalloc_machines.qemu.spec import EmulatedDevice, RateLimits, spec_of
from devalloc_machines.service.attached_claims import AttachedClaims, undo_problem
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.host.lock_folder import lock_purpose
from devalloc_node.journal.audit_log import audit
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import PluggedDevice, Prepared
from devalloc_node.operations.change_feed import machine_change
from devalloc_node.operations.claim_registry import UNDO_SECONDS, ClaimRegistry

log = logging.getLogger(__name__)


def runs(machines: MachineLifecycle, key: str) -> bool:
    """Whether there is such a machine, and it runs. Raises NodeError."""
    machine = machines.get(key)
    return machine is not None and machine.runs


FIRMWARE_SECONDS = 60.0
"""What firmware and guest have to give the devices of a machine that starts their addresses."""
REST_SECONDS = 5.0
"""What is left for giving a machine's devices back, however long its guest takes to power down."""


class MachineOperations:
    """Safe for threads."""

    def __init__(
        self,
        claims: ClaimRegistry,
        machines: MachineLifecycle,
        attachments: AttachmentKind,
        *,
        node_name: str,
        changed: Callable[..., None] = lambda *changed: None,
    ) -> None:
        """``changed`` is called with what changed, after every change: ``ChangeNotifier.beat``."""
        self.node_name = node_name
        self.machines = machines
        self.claims = claims
        self.attached = AttachedClaims(claims, attachments)
        self._engine = claims.engine
        self._wanted: dict[str, MachineAmounts] = {}
        """What the objects of machines that run want of them, by key."""
        self._changed = changed
        self.report: Callable[[str], ScalingReport | None] = lambda key: None
        """The progress of a machine that is scaled by its load; set by the component that scales machines."""
        self.guest_report: Callable[[str, str], GuestReport | None] = lambda key, run: None
        """What the guest of that run of a machine last reported; set by the component that reads it."""
        self.offers: frozenset[str] = frozenset()
        """What is done for machines of the service whose specs ask for it: ``scaling``, ``runner``."""
        self.service_problem: Callable[[str], tuple[str, str] | None] = lambda key: None
        """Why a machine of the service is not scaled as it was created, as a code and a sentence."""
        self.why_not_here: Callable[[str], str] = lambda key: ""
        """Why a machine of an object has not begun on this node, as the end of a sentence; empty if there is no such
        object. Set by the component that runs machines of objects."""
        self.without_object: frozenset[str] = frozenset()
        """UIDs of objects that are not in the store though there are machines of them: who asks may change those."""

    # Claims in machines.

    def attach(
        self, ref: ClaimRef, key: str, due: Deadline, *, owner: str = "", caller: str = ""
    ) -> list[PluggedDevice]:
        """Put all devices of a claim into a machine that runs, or none; prepares it if need be. Raises NodeError."""
        with self._changing(key, due, f"attach claim {ref}", caller), self.claims.notifying(ref):
            self._started(key, owner)
            self.attached.only_in(ref, key)
            was_held = self.claims.journal.claim(ref.uid) is not None
            try:
                self.attached.plug(self._prepared(ref, due, caller), key, due, caller)
            except NodeError as error:
                if was_held or (problem := undo_problem(lambda: self._unprepare_unused(ref, caller))) is None:
                    raise
                raise Failed(error.code, f"{error.message}. Unpreparing the claim again: {problem}") from error
        return [plug for plug in self.claims.plugs_of(ref) if plug.machine == key]

    def detach(
        self, ref: ClaimRef, key: str, due: Deadline, *, owner: str = "", force: bool = False, caller: str = ""
    ) -> bool | None:
        """Take a claim's devices out of a machine; whether the machine was ended for it. None: it had none of them."""
        with self._changing(key, due, f"detach claim {ref}", caller), self.claims.notifying(ref):
            self._owned(key, owner)
            ran = runs(self.machines, key)
            plugs = [plug for plug in self.claims.plugs_of(ref) if plug.machine == key]
            self.attached.detach(plugs, due, force, caller)
            return force and ran and not runs(self.machines, key) if plugs else None

    # Machines.

    def machine(self, key: str) -> MachineView:
        """Raises Denied ``MachineNotFound``, ``MachineLost``."""
        machine = self.machines.get(key)
        if machine is None:
            self._refuse_lost(key)
            why = self.why_not_here(key) or f"not found on node {self.node_name}"
            raise Denied("MachineNotFound", f"machine {key} {why}")
        return self._with_wanted(machine)

    def seen(self, key: str) -> MachineView:
        """As ``machine``, but also for an orphan that lives: the error reports it as such."""
        if self.machines.get(key) is None:
            for lost in self.machines.all_lost():
                if lost.key == key:
                    return lost
        return self.machine(key)

    def all_machines(self) -> list[MachineView]:
        """All machines in care, and those that are lost."""
        return [*(self._with_wanted(machine) for machine in self.machines.list()), *self.machines.all_lost()]

    def _refuse_lost(self, key: str) -> None:
        """No caller may believe that it is gone."""
        if self.machines.lost(key) is not None:
            raise Denied(
                "MachineLost",
                f"machine {key} lives but is not in the journal, so the plugin cannot change it; shut its guest "
                "down, or end its process (`devalloc vm get -o wide` shows which)",
            )

    def check_offered(self, machine: VirtualMachine) -> None:
        """Before the service creates a machine: whether the node does what its spec asks for beside running it. Raises
        Denied (``ScalingOff``, ``RunnerOff``)."""
        key = "/".join(machine.key)
        if machine.spec.scaling is not None and "scaling" not in self.offers:
            why = f"machine {key} is to scale by load, but this node does not scale; start its plugin with --scaling"
            raise Denied("ScalingOff", why)
        if machine.spec.runner is not None and "runner" not in self.offers:
            why = f"machine {key} is to have a runner, but this node has none; start its plugin with --runner-network"
            raise Denied("RunnerOff", why)

    def want(self, key: str, amounts: MachineAmounts) -> None:
        """Say what a machine's object wants of it, before it is known whether it can be had."""
        self._wanted[key] = amounts

    def create(
        self,
        machine: VirtualMachine,
        refs: Sequence[ClaimRef],
        due: Deadline,
        *,
        caller: str = "",
        still: Callable[[], bool] = lambda: True,
        patience: float = float("inf"),
        as_it_was: bool = False,
    ) -> MachineView:
        """Start a machine (or adopt it) with all devices of its claims, or leave nothing of it.

        It is started with its CPUs stopped and runs only once every device is in it. Called again after a crash, it
        goes on; a guest that runs and whose devices get no addresses then is ended, and started again, if it has no
        room for them or has had FIRMWARE_SECONDS; else it is kept, and the error says why. ``still``: asked
        once no other call can change the machine; ``patience``: seconds that others who change it are waited for;
        ``as_it_was``: it is started with the amounts that were last asked of it, as its policy has it. Raises
        NodeError, ``NotWanted`` if not still, ``Busy`` if patience ends.
        """
        key = "/".join(machine.key)
        is_adopted = machine.spec.adopt is not None
        with self._changing(key, due, "start", caller, patience):
            if not still():
                raise Denied("NotWanted", f"machine {key} was started, stopped or deleted meanwhile")
            there = self.machines.get(key)
            if there is not None:
                self._owned(key, machine.metadata.uid or "")
                if there.state is State.CUT_OFF and self._finished(key, due):
                    there = self.machine(key)
            begins = there is None or not there.runs or there.state is State.CUT_OFF
            if there is not None and not begins:
                refuse_other_spec(there, machine)
                self._limit(key, spec_of(machine).rates, due)
                if there.reason == "StopWanted" or (there.reason in STANDING and not is_adopted):
                    self.machines.resume(key, due)
            if not begins and all(self.attached.is_in(ref, key) for ref in refs):
                return self.machine(key)
            for ref in refs:
                self.attached.only_in(ref, key)
            before = {record.ref.uid for record in self.claims.journal.claims()}
            try:
                if begins:
                    self._wanted.pop(key, None)  # of its last run
                    self._clear(key, there, due, caller)
                prepared = [self._prepared(ref, due, caller) for ref in refs]
                # Until its guest has given addresses to the devices.
                started = [ref.uid for ref in refs] if begins else []
                with span("adopt machine" if is_adopted else "start machine", started, **{"devalloc.machine": key}):
                    if begins:
                        check_slots(machine, prepared)
                        check_numa(machine, prepared)
                        if is_adopted:
                            self.machines.adopt(machine, due)
                        else:
                            self.machines.start(machine, due, as_it_was=as_it_was)
                    for one in prepared:
                        self.attached.plug(one, key, due, caller)
                    if begins and not is_adopted:
                        self.machines.resume(key, due)
                _audit_machine("adopted" if is_adopted else "started", key, caller, claims=[str(ref) for ref in refs])
            except NodeError as error:
                new = [ref for ref in refs if ref.uid not in before]
                problems = self._undo_create(key, new, begins, is_adopted, caller, keep=there is not None)
                if not problems:
                    raise
                raise Failed(error.code, f"{error.message}. Undoing it: {'; '.join(problems)}") from error
        return self.machine(key)

    def stop(
        self,
        key: str,
        seconds: float | None,
        due: Deadline,
        *,
        owner: str = "",
        force: bool = False,
        caller: str = "",
    ) -> MachineView:
        """Power a machine down; ``force``: end it after ``seconds``. Raises NodeError."""
        with self._changing(key, due, "stop", caller):
            machine = self._owned(key, owner)
            if machine.adopted and not force:
                raise Denied(
                    "MachineAdopted",
                    f"machine {key} was adopted: the one who started it must stop it; --force ends it anyway",
                )
            if machine.runs or machine.reason != "StoppedOnRequest":  # one that ended or failed would be started again
                self.machines.stop(key, seconds, force, due)
                _audit_machine("stopped", key, caller, forced=force or None)
        return self.machine(key)

    def finish(self, key: str, run: str, message: str, due: Deadline) -> None:
        """End a run of a machine because its guest reported that it has finished; its restart policy decides what comes
        next. Raises NodeError."""
        with self._changing(key, due, "end", "guest"):
            if self.machines.finish(key, run, message, due):
                _audit_machine("ended", key, "guest", reason="GuestFinished", message=message)

    def end_moving(self, key: str, due: Deadline, *, owner: str = "", caller: str = "") -> None:
        """End a machine that changes its node, on either side, and keep nothing of it; nothing to do for any other.
        Raises NodeError."""
        with self._changing(key, due, "end", caller):
            self._owned(key, owner)
            self.machines.end_moving(key, due)
            _audit_machine("stopped", key, caller, forced=True)

    def delete(
        self,
        key: str,
        seconds: float | None,
        due: Deadline,
        *,
        owner: str = "",
        force: bool = False,
        caller: str = "",
    ) -> bool:
        """Stop it, give back what its claims hold, forget it. An adopted one only loses its devices. Raises NodeError.

        False if there is no such machine.
        """
        with self._changing(key, due, "delete", caller):
            if self.machines.get(key) is None:
                self._refuse_lost(key)
                return False
            machine = self._owned(key, owner)
            if machine.runs and not machine.adopted:
                self.machines.stop(key, seconds, force, due.before(REST_SECONDS))
            self._give_back(key, due, force, caller)
            if machine.adopted:  # it goes on, and its plugged devices would be forgotten here
                self._unplug_all(machine, due, force, caller)
            self.machines.forget(key, due)
            self._wanted.pop(key, None)
            _audit_machine("deleted", key, caller, forced=force or None)
        return True

    def give_back(self, key: str, due: Deadline, *, owner: str = "", caller: str = "") -> None:
        """Unprepare the claims of a machine that does not run; it stays known. Raises NodeError."""
        with self._changing(key, due, "give its devices back", caller):
            if self._owned(key, owner).runs:
                raise Denied("MachineRuns", f"machine {key} runs; stop it first")
            self._give_back(key, due, False, caller)

    def scale(
        self, key: str, what: str, amount: int, due: Deadline, *, owner: str = "", caller: str = "", share: float = 1.0
    ) -> None:
        """Change one amount: ``vcpus``, ``cpu`` (thousandths of a core, 0: no bound) or ``memory`` (bytes).

        ``share``: of the time that is left once other changes of the machine have ended. Raises NodeError."""
        with self._changing(key, due, f"scale {what}", caller):
            self._started(key, owner)
            self.machines.scale(key, what, amount, due.capped(due.seconds * share))
            _audit_machine("scaled", key, caller, **{what: amount})

    def limit_rates(self, key: str, wanted: RateLimits, due: Deadline, *, owner: str = "") -> Sequence[str]:
        """Hold a machine that runs to these rates; what is not enforced, in sentences. Raises NodeError."""
        self._started(key, owner)
        return self.machines.limit_rates(key, wanted, due)

    def plug(self, key: str, device: EmulatedDevice, due: Deadline, *, caller: str = "") -> EmulatedDevice:
        """Plug in a disk or network card of no claim, until it is unplugged or the machine's QEMU ends."""
        with self._changing(key, due, f"plug {device.name}", caller):
            self._started(key, "")
            there = self.machines.plug_in(key, device, due)
            _audit_machine("plugged", key, caller, device=device.name, host=there.what.host)
        return there

    def unplug(self, key: str, name: str, due: Deadline, *, caller: str = "") -> bool:
        """Take it out again; False if the machine has none of that name. Raises NodeError."""
        with self._changing(key, due, f"unplug {name}", caller):
            machine = self._owned(key, "")
            removed = machine.runs and self.machines.unplug(key, name, due)
            if removed:
                _audit_machine("unplugged", key, caller, device=name)
        return removed

    def go_on(self, key: str, due: Deadline, *, owner: str = "", caller: str = "") -> None:
        """Let the CPUs of a machine run again that stand still. Raises NodeError."""
        with self._changing(key, due, "resume", caller):
            self._started(key, owner)
            self.machines.resume(key, due)
            _audit_machine("resumed", key, caller)

    def pause(self, key: str, due: Deadline, *, owner: str = "", caller: str = "") -> None:
        """Let the CPUs of a machine that runs stand still. Raises NodeError."""
        with self._changing(key, due, "pause", caller):
            self._started(key, owner)
            self.machines.pause(key, due)
            _audit_machine("paused", key, caller)

    # Within.

    def _started(self, key: str, owner: str) -> MachineView:
        """The machine, if it runs and the caller may change it. Raises Denied."""
        machine = self._owned(key, owner)
        if not machine.runs:
            raise Denied("MachineNotRunning", f"machine {key} is {machine.phase.lower()}; start it first")
        return machine

    def _with_wanted(self, machine: MachineView) -> MachineView:
        """With what its object wants of it now, and not when it was started."""
        if not machine.runs:
            return machine
        if not machine.uid and not machine.reason and (problem := self.service_problem(machine.key)) is not None:
            machine = replace(machine, reason=problem[0], message=problem[1])
        return replace(machine, wanted=self._wanted.get(machine.key, machine.wanted))

    def _limit(self, key: str, wanted: RateLimits, due: Deadline) -> None:
        for problem in self.machines.limit_rates(key, wanted, due):
            log.warning("machine %s: %s", key, problem)

    def _owned(self, key: str, owner: str) -> MachineView:
        """The machine, if the caller may change it: through the service what it made, the loop its objects'."""
        machine = self.machine(key)
        if machine.uid == owner or (not owner and machine.uid in self.without_object):
            return machine
        if machine.uid and not owner:
            raise Denied(
                "MachineOfStore",
                f"machine {key} follows its VirtualMachine object in the store; use `devalloc stop`, `start`, "
                f"`restart`, `scale` or `delete` with vm/{key.partition('/')[2]}, or change it with `devalloc apply`",
            )
        raise self.name_taken(key)

    def name_taken(self, key: str) -> Denied:
        """Return why nothing is done for an object: another machine of this node has its name."""
        return Denied(
            "MachineExists",
            f"another machine on node {self.node_name} has the name {key}; delete that one first "
            f"(`devalloc vm delete {key}`)",
        )

    def _finished(self, key: str, due: Deadline) -> bool:
        """Whether a machine whose start was cut off runs now. False: it is to be ended, and started again. Raises
        NodeError if its guest may still come up: it is kept, however little time the caller has."""
        # What is left is for starting it again.
        is_full, patience = due.seconds >= FIRMWARE_SECONDS, max(FIRMWARE_SECONDS, due.seconds / 2)
        try:
            return self.machines.finish_start(key, due.capped(patience))
        except Denied as error:
            if error.code != "NoPciWindow" and not (error.code == "GuestNotReady" and is_full):
                raise
            log.warning("machine %s runs, but its interrupted start cannot be completed: %s", key, error)
            return False

    def _clear(self, key: str, there: MachineView | None, due: Deadline, caller: str) -> None:
        """Before a machine begins: end what a start that was cut off left, and forget the plugs of its last run."""
        if there is not None and there.state is State.CUT_OFF:
            self.machines.undo_start(key, due)
        self.attached.detach(self.claims.plugs(key), due, False, caller)

    def _give_back(self, key: str, due: Deadline, force: bool, caller: str) -> None:
        plugs = self.claims.plugs(key)
        self.attached.detach(plugs, due, force, caller)
        for ref in dict.fromkeys(plug.ref for plug in plugs):
            self._engine.unprepare(ref, due, force=force, caller=caller)

    def _unplug_all(self, machine: MachineView, due: Deadline, force: bool, caller: str) -> None:
        """Take plain devices out; with ``force`` what its guest keeps stays in it, which harms no other machine."""
        for device in machine.plain if machine.runs else ():
            try:
                self.machines.unplug(machine.key, device.name, due.capped(due.seconds / 2) if force else due)
                _audit_machine("unplugged", machine.key, caller, device=device.name)
            except NodeError as error:
                if not force:
                    raise
                log.warning("left in machine %s: %s", machine.key, error)

    def _unprepare_unused(self, ref: ClaimRef, caller: str) -> None:
        """After an attach that failed and for which the claim was prepared: nothing else would unprepare it."""
        if not self.claims.plugs_of(ref):
            self._engine.unprepare(ref, Deadline.after(UNDO_SECONDS), caller=caller)

    def _undo_create(
        self, key: str, refs: Sequence[ClaimRef], began: bool, adopted: bool, caller: str, *, keep: bool
    ) -> list[str]:
        """Take back a start that failed; what could not be. ``keep``: it was known before and stays so."""
        due = Deadline.after(UNDO_SECONDS)
        problems = []

        def tried(undo: Callable[[], object]) -> None:
            if (problem := undo_problem(undo)) is not None:
                problems.append(problem)

        if began and not adopted and self.machines.get(key) is not None:
            tried(lambda: self.machines.undo_start(key, due))
        for ref in refs:
            tried(partial(self._engine.unprepare, ref, due, caller=caller))
        if began and not problems and self.machines.get(key) is not None:
            tried(lambda: self.attached.detach(self.claims.plugs(key), due, False, caller))
            if not keep:
                tried(lambda: self.machines.forget(key, due))
        return problems

    def _prepared(self, ref: ClaimRef, due: Deadline, caller: str) -> Prepared:
        return self._engine.prepare(ref, due, kind=self.claims.kind, caller=caller)

    @contextmanager
    def _changing(
        self, key: str, due: Deadline, work: str, caller: str, patience: float = float("inf")
    ) -> Iterator[None]:
        """Change a machine exclusively, and notify watchers. Waits for other changes until ``due``. If they have not
        ended then, raises Failed ``Busy``, with the change in progress, and notifies no one."""
        with self.claims.exclusive(f"machine/{key}", due.capped(patience), lock_purpose(work, caller)):
            if due.passed:  # what is begun now could only be told as unknown
                raise Failed(
                    "DeadlineExceeded", f"no time was left to change machine {key} after waiting for earlier calls"
                )
            try:
                yield
            finally:
                self._changed(machine_change(key))


def _audit_machine(what: str, key: str, caller: str, **more: object) -> None:
    """For the audit log: what was done to a machine, for whom."""
    audit("machine", machine=key, done=what, caller=caller, **more)
