"""What is done for a machine in each situation: start it, attach its claims, scale it, stop it, remove it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from devalloc.api import views
from devalloc.api.machine_reservation import start_refusal
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.scaling.health import ScalingReport
from devalloc.store import Object, Store
from devalloc_machines.qemu.records import PAUSED_ON_REQUEST, STANDING, MachineView, State
from devalloc_machines.qemu.resources import requested_in_spec
from devalloc_machines.qemu.spec import locking_seconds, spec_of
from devalloc_machines.service.operations import FIRMWARE_SECONDS, MachineOperations
from devalloc_machines.vms import fencing, objects
from devalloc_machines.vms import machine_claims as claimed
from devalloc_machines.vms.guest_reports import GuestReports
from devalloc_machines.vms.machine_claims import CALLER, WORK_SECONDS, ClaimChanges, Claims
from devalloc_machines.vms.objects import Outcome, retry_delay
from devalloc_machines.vms.scaling import (
    SCALE_SECONDS,
    RunnerControl,
    amounts_of,
    guest_amounts,
    hold_to_rates,
    limit_to_spec,
    limited_to_permit,
    offer_cpu_control,
    scale_by_load,
    scale_to_spec,
)
from devalloc_machines.vms.situation import (
    Situation,
    Whose,
    foreign_pid,
    pending_changes,
    read_situation,
    request_situation,
    take_object,
)
from devalloc_machines.vms.start_refusals import (
    GIVEN_BACK,
    HOST_FILES,
    SOON_SECONDS,
    Needs,
    RestartBackoff,
    StartRefusals,
    start_refused,
)
from devalloc_machines.vms.status import (
    announce_amounts,
    finished_message,
    in_use,
    migratability,
    permit_by,
    readiness,
    status_of,
    status_of_scaling,
    write_ready,
    write_status,
)
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.model.grant import ClaimRef

if TYPE_CHECKING:
    from devalloc_machines.agent.agent_thread import AgentThread

log = logging.getLogger(__name__)

REMOVE_SECONDS = 90.0
"""For removing a machine whose object is gone."""
DISK_SECONDS = 0.3
"""After CPUs were let run again: what failed is repeated at once, and if that fails they stand still."""
_RUN = ("machineID", "pid")
"""Parts of the status that identify the run of a machine."""


@dataclass(frozen=True, slots=True)
class MachineControls:
    """Who acts on machines by what is outside of QEMU. None: nothing does."""

    scaling: AgentThread | None = None
    """Scales machines by the load of their guests."""
    runners: RunnerControl | None = None
    """Lets controllers decide on the CPU time of machines."""
    reports: GuestReports | None = None
    """Reads what guests report."""


LOOK_SECONDS = 10.0
"""The pause before such a machine that another caller changes is looked at again."""
_BUSY_SECONDS = 0.05
"""How long that caller is waited for: it sees to the machine."""
AGAIN = Outcome()
"""A step was done: look again. It is compared by identity."""
_MOST_STEPS = 8
"""Steps of a machine in a row; who changes it so often has it looked at later."""


class MachineReconciler:
    """Safe for threads that work on different machines."""

    def __init__(
        self,
        store: Store | None,
        operations: MachineOperations,
        *,
        clock: Callable[[], float] = time.monotonic,
        controls: MachineControls | None = None,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``store``: of the objects; None: it keeps machines of requests alone. Inside ``aside`` it waits for a guest,
        which may take an hour."""
        self._objects = store
        self._operations = operations
        self._backoff, self._refusals = RestartBackoff(clock), StartRefusals()
        controls = controls or MachineControls()
        self._scaling, self._runners, self._reports = controls.scaling, controls.runners, controls.reports
        self._aside = aside
        self._claims = ClaimChanges(operations)
        self._attached: dict[str, list[ClaimRef]] = {}
        """Claims that were attached to a machine of a request while it ran: a start that fails has forgotten their
        plugs."""
        self.device_changes = 0
        """How often devices of the host changed, were well again or there again."""

    @property
    def _store(self) -> Store:
        assert self._objects is not None, "the machine of a request has no object"
        return self._objects

    def scaling(self, key: str) -> ScalingReport | None:
        """The report about a machine that is scaled by its load; None for others."""
        return None if self._scaling is None else self._scaling.report(key)

    def guest_status(self, machine: MachineView | None) -> tuple[str | None, str] | None:
        """The status that the guest of a machine reports, and its message; None while it reports none."""
        if machine is None or self._reports is None:
            return None
        report = self._reports.report(machine.key, machine.id)
        return None if report is None else (report.status, report.message)

    def keep(self, obj: Object, claims_of: Callable[[Object], Claims], *, is_over: bool = False) -> Outcome | None:
        """Do what is to be done now, and write the status; None if the object does not belong to this node any more.

        It does the step of the machine's situation (``STEPS``) and looks again, until nothing is left to do or
        something is in the way. What the loop has heard of the object may be older than its arrival on this node, and
        would end its guest. ``is_over``: as of ``whose``. Raises NodeError, StoreError.
        """
        for _ in range(_MOST_STEPS):
            now = read_situation(self._store, self._operations, obj, claims_of, is_over=is_over)
            if now.whose is Whose.SERVICE:  # the object is gone, and a request has its name
                return None
            if now.whose is Whose.MOVING or now.vm is None or not now.vm.spec.running:
                self.leave(now.key)
            elif now.vm.spec.scaling is None and self._scaling is not None:
                self._scaling.drop(now.key)
            try:
                outcome = step_for(now.whose, now.state)(self, now)
            except NodeError as error:
                if now.whose in (Whose.MOVING, Whose.TAKEN, Whose.ORPHANED):  # its status is not this node's
                    raise
                outcome = self._written(now, Outcome(error.code, error.message, retry_delay(error)))
            if outcome is not AGAIN:
                return outcome
        raise Failed("MachineBusy", f"machine {objects.key_of(obj)} keeps changing; trying again")

    def keep_request(self, key: str) -> Outcome:
        """Do for a machine that was created through the service what is to be done now; what is in the way of its
        request. Raises NodeError."""
        for _ in range(_MOST_STEPS):
            now = request_situation(self._operations, key)
            if (outcome := step_for(now.whose, now.state)(self, now)) is not AGAIN:
                return outcome or Outcome()
        raise Failed("MachineBusy", f"machine {key} keeps changing; trying again")

    def pause(self, key: str) -> float:
        """Seconds until a machine of a request that could not be started is tried again."""
        return self._backoff.left(key)

    def leave_idle(self, obj: Object) -> None:
        """Let an object go that has no machine and no prepared claim on this node. Raises StoreError, NodeError."""
        names = {(objects.namespace_of(obj), name) for name in views.MachineView(obj).claim_names}
        held = ((one.record.ref.namespace, one.record.ref.name) for one in self._operations.claims.held())
        if self._operations.machines.get(objects.key_of(obj)) is not None or names.intersection(held):
            return
        if read_situation(self._store, self._operations, obj).state is State.ABSENT:  # else what runs may be it
            objects.release_object(self._store, obj, self._operations.node_name)

    # Steps. They return AGAIN, or what is in the way, or None for an object that is not this node's.

    def let_be(self, now: Situation) -> Outcome | None:
        """Do nothing: others care for it, or nothing is here."""
        return None

    def say_ready(self, now: Situation) -> Outcome | None:
        """Say whether one that moves is ready; the rest is its migration's. Raises NodeError."""
        if now.machine is not None and (ready := readiness(now.vm, now.machine, self._reports)) is not None:
            write_ready(self._store, now.obj, self._operations.node_name, now.machine.id, ready)
        return Outcome()

    def end_taken(self, now: Situation) -> Outcome | None:
        """End at once what was taken away from this node. Raises NodeError."""
        fencing.settle_machine(self._store, self._operations, now.obj)
        return AGAIN

    def remove(self, now: Situation) -> Outcome | None:
        """Remove a machine whose object is gone for good. Raises NodeError."""
        is_adopted = now.machine is not None and now.machine.adopted
        log.warning("removing machine %s (uid %s): its VirtualMachine was deleted", now.key, now.uid)
        self.leave(now.key)
        due = Deadline.after(REMOVE_SECONDS)
        with self._aside():
            self._operations.delete(now.key, None, due, owner=now.uid, force=not is_adopted, caller="reconcile")
        return None

    def await_room(self, now: Situation) -> Outcome | None:
        """Say what it waits for; its status is the allocator's until then."""
        return Outcome("NotPlaced", objects.why_not_admitted(now.obj))

    def await_holder(self, now: Situation) -> Outcome | None:
        """Say which node has the last word on its status."""
        return Outcome("MachineElsewhere", f"it is still on node {objects.holder_of(now.obj)}")

    def take(self, now: Situation) -> Outcome | None:
        """Take the object: only the run of one that this node holds is looked for. Raises Failed."""
        take_object(self._store, now.obj, self._operations.node_name)
        return AGAIN

    def take_up(self, now: Situation) -> Outcome | None:
        """Record its machine again after a journal was lost, or an older one restored: it runs without a record. Raises
        Denied (``MachineRuns``) if that is another run than the one in the object's status."""
        run = now.obj.get("status", {}).get("machineID", "")
        self._operations.machines.take_up(now.key, now.vm, run, Deadline.after(WORK_SECONDS))
        return AGAIN

    def refuse_foreign(self, now: Situation) -> Outcome | None:
        """Raise Denied (``MachineRuns``)."""
        pid = now.obj["status"]["pid"]
        raise Denied(
            "MachineRuns",
            f"machine {now.key} already runs as process {pid}, which a plugin with another state folder started; start "
            f"the plugin with that folder (--state), or shut the guest down or end that process (kill {pid})",
            retryable=True,
        )

    def refuse_name(self, now: Situation) -> Outcome | None:
        """Raise Denied (``MachineExists``)."""
        raise self._operations.name_taken(now.key)

    def say_invalid(self, now: Situation) -> Outcome | None:
        """Say why the object cannot be read."""
        return self._written(now, Outcome("MachineInvalid", now.problem))

    def start(self, now: Situation) -> Outcome | None:
        """Start a machine that does not run, or finish its start. Raises NodeError."""
        assert now.vm is not None
        self._claims.settle(now.obj, now.vm, now.claims)
        self.leave(now.key)
        obstacle = now.waits or self._over(now) or self._too_early(now, now.vm) or self._begin(now, now.vm)
        return AGAIN if obstacle is None else self._written(now, obstacle)

    def end_run(self, now: Situation) -> Outcome | None:
        """End a run, so that another one begins: it keeps its claims and its room. If the plugin is killed in between,
        it is started all the same. Raises NodeError."""
        self.leave(now.key)
        self._power_down(now)
        self._backoff.forget(now.key)
        return AGAIN

    def care(self, now: Situation) -> Outcome | None:
        """Bring a machine that runs nearer to its object. Raises NodeError."""
        key, vm, machine = now.key, now.vm, now.machine
        assert vm is not None
        assert machine is not None
        is_silent = machine.state is State.SILENT
        left = self._claims.settle(now.obj, vm, now.claims)
        message = finished_message(now.obj, machine.id) if vm.spec.guest_reports else None
        if message is not None and self._reports is not None:
            self._reports.restore(key, machine.id, message)
        if vm.spec.paused and machine.is_active:
            return self._written(now, self._pause(machine))
        if machine.reason == PAUSED_ON_REQUEST:
            self._operations.go_on(key, Deadline.after(SCALE_SECONDS), owner=machine.uid, caller=CALLER)
            machine = self._operations.machine(key)
        if self.scaling(key) is None:  # else its load says what it should have
            self._operations.want(key, requested_in_spec(spec_of(vm)))
        problems = [Outcome(machine.reason, machine.message)] if is_silent or machine.reason in STANDING else []
        problems += left
        if not is_silent:
            problems += self._claims.match(vm, now.refs, now.claims)
        problems += self._resize(now, vm, self._operations.machine(key))
        if now.is_unplaced and objects.reserved_entries(now.obj, self._operations.node_name):
            problems.append(_shortage(now.obj))
        problems += offer_cpu_control(self._runners, vm, self._operations.machine(key))
        problems += limit_to_spec(self._operations, vm, is_admitted=not now.is_unplaced)
        if machine.reason == "DiskFailed" and not machine.adopted:
            problems += self._go_on(machine)
        problems += [] if now.waits is None else [now.waits]
        problems += pending_changes(vm, machine)
        if not problems:
            return self._written(now, Outcome())
        message = "; ".join(dict.fromkeys(one.message for one in problems))
        return self._written(now, Outcome(problems[0].reason, message, problems[0].after))

    def rest(self, now: Situation) -> Outcome | None:
        """Stop it, and unprepare its claims. Raises NodeError."""
        if (machine := now.machine) is not None:
            # One that ended is noted as stopped, so that it may be started again when that is wanted.
            if machine.runs or (machine.reason != "StoppedOnRequest" and not machine.adopted):
                self._power_down(now, force=not machine.adopted)
            self._operations.give_back(now.key, Deadline.after(WORK_SECONDS), owner=machine.uid, caller=CALLER)
        self._free(now)
        return self._written(now, Outcome(at_rest=True))

    def undo(self, now: Situation) -> Outcome | None:
        """Remove everything of a machine that is deleted or belongs to another node now. If that fails, this node still
        holds the object. Raises NodeError."""
        key = now.key
        self.leave(key)
        if (machine := now.machine) is not None:
            patience = _patience(now)
            due = Deadline.after(WORK_SECONDS + patience)
            self._tell_stopping(now, machine)
            with self._aside():
                self._operations.delete(key, patience, due, owner=now.uid, force=not machine.adopted, caller=CALLER)
        elif now.is_held:
            self._operations.machines.remove_remains(key, Deadline.after(WORK_SECONDS))
        self._free(now)
        for memory in (self._backoff, self._refusals, self._claims):
            memory.forget(key)
        if now.whose is Whose.ELSEWHERE and now.is_held:
            self._tell(now, None, at_rest=True)  # the other node may not be there to tell
        objects.release_object(self._store, now.obj, self._operations.node_name)
        return None

    def leave_node(self, now: Situation) -> Outcome | None:
        """Stop a machine that was evicted, and unprepare its claims. Its UEFI variables and TPM stay, in case it comes
        back; they are removed when it is on another node. If that fails, this node still holds the object. Raises
        NodeError."""
        self.leave(now.key)
        over = None
        if (machine := now.machine) is not None and machine.uid == now.uid:
            over = self._over(now)
            if machine.runs or (over is None and machine.reason != "StoppedOnRequest"):
                self._power_down(now)
            self._operations.give_back(now.key, Deadline.after(WORK_SECONDS), owner=now.uid, caller=CALLER)
        self._free(now)
        if not now.is_held:
            return None
        rests = now.vm is not None and (over is not None or not now.vm.spec.running)
        ended = self._operations.machines.get(now.key) if rests else None  # one that is to run waits for another node
        self._tell(now, ended, ("", "") if ended is None else (ended.reason, ended.message), at_rest=True)
        objects.release_object(self._store, now.obj, self._operations.node_name)
        return None

    def begin_again(self, now: Situation) -> Outcome | None:
        """Start the machine of a request again if that is due, or finish its start. Raises NodeError."""
        key, vm, machine = now.key, now.vm, now.machine
        self.leave(key)
        if vm is None or machine is None or not machine.is_to_begin:
            self._attached.pop(key, None)
            self._backoff.forget(key)
            return Outcome()
        if left := self._backoff.left(key):
            return Outcome(after=left)
        machines, claims = self._operations.machines, self._operations.claims
        try:
            refs = [claims.named(ClaimRef(vm.namespace, name, ""), prepared=True) for name in vm.spec.claims]
            self._attached[key] = attached = claimed.attached_before(self._operations, key, self._attached.get(key, ()))
            refs = list(dict.fromkeys([*refs, *attached]))
            due = _start_deadline(now, vm, refs, machine.wanted.memory_bytes)
            self._operations.create(
                vm,
                refs,
                due,
                caller="restart policy",
                still=lambda: (seen := machines.get(key)) is not None and seen.is_to_begin,
                patience=_BUSY_SECONDS,
                as_it_was=True,
            )
        except NodeError as error:
            if error.code in ("NotWanted", "Busy"):  # who changes it sees to it, and says so
                return Outcome(after=LOOK_SECONDS)
            self._backoff.begun(key, is_hopeless=not error.retryable)
            if error.code == "DryRun":
                return Outcome(after=self._backoff.left(key))
            if not error.retryable and error.code.startswith("Claim"):  # gone for good: it is not waited for
                self._attached.pop(key, None)
            raise
        except Exception:  # a bug, which each change of the machine would meet again
            self._backoff.begun(key)
            raise
        self._backoff.begun(key)
        log.info("restarted machine %s", key)
        return AGAIN

    def care_for_request(self, now: Situation) -> Outcome | None:
        """Scale the machine of a request that runs, open its runner, and hold it to its rates. Raises NodeError."""
        vm, machine, problems = now.vm, now.machine, list[Outcome]()
        assert vm is not None
        assert machine is not None
        self._attached.pop(now.key, None)
        self._backoff.runs(now.key)
        if self._scaling is not None:
            problems += scale_by_load(self._scaling, self._operations, vm, machine)
        elif vm.spec.scaling is not None:
            why = "it was created to scale by load, but this node does not scale (--scaling)"
            problems.append(Outcome("ScalingOff", why))
        problems += offer_cpu_control(self._runners, vm, machine)
        if machine.rates.is_limited:
            problems += hold_to_rates(self._operations, machine, machine.rates)
        return problems[0] if problems else Outcome()

    def let_go(self, now: Situation) -> Outcome | None:
        """Stop scaling a machine that does not run now, or is gone."""
        self.leave(now.key)
        if now.machine is None:
            self._attached.pop(now.key, None)
            self._backoff.forget(now.key)
        return None

    # What steps consist of.

    def _begin(self, now: Situation, vm: VirtualMachine) -> Outcome | None:
        """Start a machine, or finish its start. Returns what is in the way if no room is reserved for it, if it is
        something of the host, which causes no event when it changes, or if its room is given back because of it. Raises
        NodeError."""
        key, generation = now.key, vm.metadata.generation
        needs = self._needs(vm, now.claims)
        if (refused := self._start_refused(now, needs)) is not None:
            return refused
        if not self._may_grow(now, vm):
            return Outcome("NotPlaced", objects.why_not_admitted(now.obj))
        begins = vm if self._scaling is None else limited_to_permit(vm, now.obj)
        try:
            self._operations.create(begins, now.refs, _start_deadline(now, begins, now.refs), caller=CALLER)
        except NodeError as error:
            gives_back = self._refusals.gives_back(key, generation, error, needs.current)
            outcome = Outcome(error.code, error.message, retry_delay(error), is_unchanged=needs.is_unchanged)
            if gives_back and objects.reserved_entries(now.obj, self._operations.node_name) and self._is_gone(key, vm):
                message = f"{error.message}; {GIVEN_BACK}"
                refused_by = start_refused(error, generation)
                return replace(outcome, message=message, after=SOON_SECONDS, at_rest=True, refused=refused_by)
            if error.code not in HOST_FILES:
                raise
            return outcome
        self._refusals.forget(key)
        self._backoff.begun(key, generation)
        return None

    def _over(self, now: Situation) -> Outcome | None:
        """Why a machine that ran is not started again."""
        vm, machine = now.vm, now.machine
        if vm is None or machine is None or vm.spec.restart_policy == "Always" or machine.adopted:
            return None
        if machine.state in (State.CUT_OFF, State.FAILED) or machine.reason in ("", "StoppedOnRequest"):
            return None
        return Outcome(machine.reason, machine.message, at_rest=True)

    def _too_early(self, now: Situation, vm: VirtualMachine) -> Outcome | None:
        """The pause before the next start of a machine that ends again and again; None if it may start."""
        machine = now.machine
        if (
            machine is None
            or now.state is State.CUT_OFF
            or not (left := self._backoff.left(now.key, vm.metadata.generation))
        ):
            return None
        why = machine.message or "it ended"
        return Outcome(machine.reason or "MachineEnded", f"{why}; it restarts in {left:.0f} s", left)

    def _start_refused(self, now: Situation, needs: Needs) -> Outcome | None:
        """Why a machine whose room was given back is not tried again yet; None if it may be, or if nothing was."""
        if not (condition := start_refusal(now.obj)):
            return None
        if not objects.reserved_entries(now.obj, self._operations.node_name) and not now.is_unplaced:
            return None  # this node does not publish what it has any more, and admits it
        if not (left := self._refusals.pause(now.key, condition, needs.current)):
            return None
        code, message = str(condition.get("reason")), f"{condition.get('message')}; {GIVEN_BACK}"
        return Outcome(code, message, left, is_unchanged=needs.is_unchanged, refused=condition)

    def _needs(self, vm: VirtualMachine, claims: Claims) -> Needs:
        machines, spec = self._operations.machines, spec_of(vm)
        devices = [repr(views.ClaimView(claims[name]).entries) for name in sorted(claims)]
        return Needs(lambda: machines.host_files(spec), (self.device_changes, *devices))

    def _is_gone(self, key: str, vm: VirtualMachine) -> bool:
        """Whether it is certain that nothing of it runs here."""
        machine = self._operations.machines.get(key)
        if vm.spec.adopt is not None or self._operations.machines.lost(key) is not None:
            return False
        return machine is None or not machine.runs

    def _may_grow(self, now: Situation, vm: VirtualMachine) -> bool:
        """Whether its node has room for what it is about to have; if so, that counts from now on. If this node reserves
        something for it, it must: as soon as the object asks for less, others get the rest."""
        node = self._operations.node_name
        if now.is_unplaced or not objects.reserved_entries(now.obj, node):
            return not now.is_unplaced
        return announce_amounts(self._store, now.obj, node, vm.spec, requested_in_spec(spec_of(vm)))

    def _power_down(self, now: Situation, *, force: bool = True) -> None:
        """Have its guest power down, within the time of its spec as it is now. Raises NodeError."""
        patience = _patience(now)
        due = Deadline.after(WORK_SECONDS + patience)
        if now.machine is not None:
            self._tell_stopping(now, now.machine)
        with self._aside():
            self._operations.stop(now.key, patience, due, owner=now.uid, force=force, caller=CALLER)

    def _free(self, now: Situation) -> None:
        """Unprepare claims of the object that are in no machine: a start may have ended before it attached them."""
        if now.is_held:
            claimed.unprepare_unplugged(self._operations, now.obj)

    def _pause(self, machine: MachineView) -> Outcome:
        """Have its CPUs stand still. Meanwhile nothing else of it changes. Raises NodeError."""
        self.leave(machine.key)
        if machine.state is not State.HALTED or machine.reason == "CpusStopped":
            self._operations.pause(machine.key, Deadline.after(SCALE_SECONDS), owner=machine.uid, caller=CALLER)
            machine = self._operations.machine(machine.key)
        return Outcome(machine.reason, machine.message)

    def _resize(self, now: Situation, vm: VirtualMachine, machine: MachineView) -> list[Outcome]:
        """Scale it to what its spec says, or to what its guest needs; why it does not have that yet."""
        if vm.spec.scaling is None or self._scaling is None:
            is_controlled = vm.spec.runner is not None and self._runners is not None
            may_grow = partial(self._may_grow, now, vm)
            problems, is_short = scale_to_spec(self._operations, vm, now.obj, may_grow, is_controlled=is_controlled)
            if is_short and not objects.reserved_entries(now.obj, self._operations.node_name):
                problems.append(_shortage(now.obj))
            if vm.spec.scaling is not None:
                why = "its spec asks for scaling by load, but this node does not scale (--scaling)"
                has = "it has what cpu and memory specify, within its permit"
                problems.append(Outcome("ScalingOff", f"{why}; {has}"))
            return problems
        if machine.is_active:
            return scale_by_load(self._scaling, self._operations, vm, machine, objects.runner_pod(now.obj))
        if machine.state is not State.SILENT:  # a QEMU that is silent for a moment is no other machine afterwards
            self.leave(machine.key)
        return []

    def leave(self, key: str) -> None:
        """Stop scaling it."""
        for others in (self._scaling, self._runners):
            if others is not None:
                others.drop(key)

    def _go_on(self, machine: MachineView) -> list[Outcome]:
        """Let its CPUs run after its disk failed. If the disk still fails, they stop again at once."""
        try:
            self._operations.go_on(machine.key, Deadline.after(SCALE_SECONDS), owner=machine.uid, caller=CALLER)
            with self._aside():  # one full file system stops many machines at once
                time.sleep(DISK_SECONDS)
        except NodeError as error:
            return [Outcome(error.code, error.message)]
        return []

    # Status.

    def _tell(
        self, now: Situation, machine: MachineView | None, why: tuple[str, str] = ("", ""), *, at_rest: bool = False
    ) -> None:
        """Write how a machine is that ends here. ``why``, as a code and a message; ``at_rest``: as of ``Outcome``."""
        status = status_of(now.vm, machine, self._operations.claims.plugs(now.key), *why)
        write_status(
            self._store, now.obj, status, ready=readiness(now.vm, machine, self._reports, why), at_rest=at_rest
        )

    def _tell_stopping(self, now: Situation, machine: MachineView) -> None:
        """Write that it stops, before its guest gets its time to power down. If that cannot be written, it stops all
        the same."""
        if machine.runs and not machine.adopted and now.is_held:
            is_cut_off = machine.state is State.CUT_OFF
            stopping = machine if is_cut_off else replace(machine, state=State.STOPPING, is_silent=False)
            with suppress(NodeError):
                self._tell(now, stopping)

    def _written(self, now: Situation, outcome: Outcome) -> Outcome:
        """Write its status; the outcome with what was written."""
        obj, vm, key, machines = now.obj, now.vm, now.key, self._operations.machines
        here = machines.get(key)
        machine = here if here is not None and here.uid == now.uid else None
        is_active = machine is not None and machine.is_active
        plugs = [] if machine is None else self._operations.claims.plugs(key)
        reason, message = outcome.reason, outcome.message
        if machine is not None and not reason and not is_active:
            reason, message = machine.reason, machine.message
        addresses = machines.guest_addresses(key) if plugs and is_active else {}
        status = status_of(vm, machine, plugs, reason, message, addresses)
        if (report := self.scaling(key)) is not None and self._scaling is not None:
            status |= status_of_scaling(amounts_of(report.wanted), guest_amounts(report))
            status.pop("permitted", None)  # the server of permits writes that
            who = self._scaling.settings
            if who.asks_pods and report.permitted is not None and machine is not None:  # another program's does not
                status["permitted"] = permit_by(who.url, amounts_of(report.permitted), machine.id)
        is_lost = machine is None and machines.lost(key) is not None
        is_foreign = foreign_pid(obj, vm, self._operations.node_name, here) is not None
        if is_foreign:  # also one that is lost: whatever an older record of it says, it runs
            status["phase"] = "Unknown"
        if is_lost or is_foreign:  # it is to be known again by what it was
            status |= {name: old[name] for old in [obj.get("status", {})] for name in _RUN if name in old}
        is_new = status["phase"] == "Paused" and (obj.get("status") or {}).get("phase") != "Paused"
        if is_new and reason != PAUSED_ON_REQUEST:
            log.warning("machine %s stands still: %s: %s", key, reason, message)
        is_alone = self._scaling is None and vm is not None and vm.spec.scaling is not None
        written = write_status(
            self._store,
            obj,
            status,
            at_rest=outcome.at_rest and (machine is None or not machine.runs),
            uses=in_use(machine) if is_alone and machine is not None and is_active else None,
            ready=readiness(vm, machine, self._reports, (status.get("reason", ""), status.get("message", ""))),
            movable=migratability(self._operations, now, machine),
            refused=outcome.refused,
        )
        return replace(outcome, written=written)


def _start_deadline(
    now: Situation, vm: VirtualMachine, refs: Sequence[ClaimRef], memory: int | None = None
) -> Deadline:
    """Until when it may take to start a machine, or to finish its start. ``memory``: bytes; None: as its spec says."""
    spec = spec_of(vm)
    locked = locking_seconds(memory or spec.memory.use) if refs or spec.huge_page_bytes else 0.0
    # Its firmware gives devices addresses before it counts as running; one that was cut off in that is waited for
    # first, and perhaps started again.
    rounds = 2 if now.state is State.CUT_OFF else 1
    return Deadline.after(WORK_SECONDS + locked + (rounds * FIRMWARE_SECONDS if refs else 0.0))


def _patience(now: Situation) -> float:
    """Return the seconds that its guest gets to power down: 0 if this node does not hold it, as another one may run it
    by now, with the same disks."""
    if not now.is_held:
        return 0.0
    return float(now.vm.spec.powerdown_seconds) if now.vm is not None else 30.0


def _shortage(held: Object) -> Outcome:
    return Outcome("NoRoomToGrow", f"it keeps what it has: {objects.why_not_admitted(held)}")


Step = Callable[[MachineReconciler, Situation], Outcome | None]
"""What is done for a machine in one situation."""


def _rows(whose: Whose, step: Step, *states: State | None) -> dict[tuple[Whose, State | None], Step]:
    return {(whose, state): step for state in states}


_ENDED = State.STARTING, State.CUT_OFF, State.ENDED, State.STOPPED, State.FAILED
"""States of a machine that is to be started, or whose start is to be finished."""
_LIVING = State.INCOMING, State.RUNNING, State.HALTED, State.SILENT, State.STOPPING
STEPS: Mapping[tuple[Whose, State | None], Step] = {
    **_rows(Whose.SERVICE, MachineReconciler.begin_again, *_ENDED),
    **_rows(Whose.SERVICE, MachineReconciler.care_for_request, State.RUNNING, State.HALTED),
    **_rows(Whose.SERVICE, MachineReconciler.let_be, State.SILENT, State.UNREADABLE),
    (Whose.SERVICE, None): MachineReconciler.let_go,
    (Whose.MOVING, None): MachineReconciler.say_ready,
    (Whose.GONE, State.ABSENT): MachineReconciler.let_go,
    (Whose.GONE, None): MachineReconciler.let_be,
    (Whose.ORPHANED, State.ABSENT): MachineReconciler.let_go,
    **_rows(Whose.ORPHANED, MachineReconciler.let_be, State.OTHER, State.UNREADABLE),
    (Whose.ORPHANED, None): MachineReconciler.remove,
    (Whose.TAKEN, None): MachineReconciler.end_taken,
    **{
        (whose, state): step
        for whose in (Whose.EVICTED, Whose.DELETED, Whose.ELSEWHERE, Whose.INVALID, Whose.OURS, Whose.RESTING)
        for state, step in (
            (State.LOST, MachineReconciler.take_up),
            (State.FOREIGN, MachineReconciler.refuse_foreign),
        )
    },
    (Whose.EVICTED, None): MachineReconciler.leave_node,
    (Whose.DELETED, None): MachineReconciler.undo,
    (Whose.ELSEWHERE, None): MachineReconciler.undo,
    (Whose.UNPLACED, None): MachineReconciler.await_room,
    (Whose.AWAITED, None): MachineReconciler.await_holder,
    (Whose.FREE, None): MachineReconciler.take,
    (Whose.INVALID, None): MachineReconciler.say_invalid,
    **_rows(Whose.RESTING, MachineReconciler.refuse_name, State.OTHER, State.UNREADABLE),
    (Whose.RESTING, None): MachineReconciler.rest,
    (Whose.RESTARTING, None): MachineReconciler.end_run,
    **_rows(Whose.OURS, MachineReconciler.refuse_name, State.OTHER, State.UNREADABLE),
    (Whose.OURS, State.ABSENT): MachineReconciler.start,
    **_rows(Whose.OURS, MachineReconciler.start, *_ENDED),
    **_rows(Whose.OURS, MachineReconciler.care, *_LIVING),
}
"""The step of each situation; None: of each state that has no row of its own."""


def step_for(whose: Whose, state: State) -> Step:
    """Return the step of a situation."""
    return STEPS[whose, state] if (whose, state) in STEPS else STEPS[whose, None]
