"""Bring the claims of a machine into it, and out: those that it was given, has lost, or came along with it."""

from __future__ import annotations

from devalloc.api import views
from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu.spec import spec_of
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms.machine_claims import CALLER, WORK_SECONDS, Claims, is_no_longer_claimed, lost_claims
from devalloc_machines.vms.objects import Outcome
from devalloc_machines.vms.situation import Situation
from devalloc_node.claims.store_grants import moved_here
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.model.grant import ClaimRef


class ClaimChanges:
    """Safe for threads that work on different machines."""

    def __init__(self, operations: MachineOperations) -> None:
        self._operations = operations
        self._no_window: dict[tuple[str, str], tuple[tuple[str, frozenset[str]], Outcome]] = {}
        """Claims (key of the machine, UID of the claim) for which a machine had no window: in which run, and beside
        which other claims."""

    def forget(self, key: str) -> None:
        """Forget a machine: its next run is its first."""
        for each in list(self._no_window):  # other threads add theirs meanwhile
            if each[0] == key:
                self._no_window.pop(each, None)

    def settle(self, now: Situation, vm: VirtualMachine) -> list[Outcome]:
        """Take claims out that the machine has lost, and mark those that came along with it; what did not work."""
        moved = moved_here(now.obj, self._operations.node_name)
        lost = lost_claims(vm, moved, now.claims)
        left = self._take_out([ref for ref in lost if self._is_left_in(ref, vm)], now.key, vm.metadata.uid or "")
        moved_refs = [one.record.ref for moved_uid in moved for one in self._operations.claims.held(moved_uid)]
        return left + self._mark([ref for ref in moved_refs if ref not in lost], now.claims)

    def match(self, vm: VirtualMachine, refs: list[ClaimRef], claims: Claims) -> list[Outcome]:
        """Unplug the claims that left its spec, and plug in those that came; what did not work."""
        key, uid = "/".join(vm.key), vm.metadata.uid or ""
        plugged = dict.fromkeys(plug.ref for plug in self._operations.claims.plugs(key))
        gone = [ref for ref in plugged if is_no_longer_claimed(ref, vm, claims)]
        problems = self._take_out(gone, key, uid)
        for ref in refs:
            try:
                if not self._operations.attached.is_in(ref, key):
                    problems += self._attach(vm, ref)
            except NodeError as error:
                problems.append(Outcome(error.code, error.message))
        return problems

    def _take_out(self, refs: list[ClaimRef], key: str, uid: str) -> list[Outcome]:
        """Unplug claims from a machine if they are in it, and unprepare them; what did not work."""
        problems = []
        for ref in refs:
            try:
                due = Deadline.after(WORK_SECONDS)
                if self._operations.machines.get(key) is not None:
                    self._operations.detach(ref, key, due, owner=uid, caller=CALLER)
                self._operations.claims.unprepare(ref, due, caller=CALLER)
            except NodeError as error:
                problems.append(Outcome(error.code, error.message))
        return problems

    def _is_left_in(self, ref: ClaimRef, vm: VirtualMachine) -> bool:
        """Whether a claim that a machine has lost is prepared here for it: others may have one that left its spec."""
        if inside := {plug.machine for plug in self._operations.claims.plugs_of(ref)}:
            return inside == {"/".join(vm.key)}
        return ref.name in vm.spec.claims and bool(self._operations.claims.held(ref.uid))

    def _mark(self, refs: list[ClaimRef], claims: Claims) -> list[Outcome]:
        """Mark claims that came along with a machine, and have their devices of this node by now. Those that are being
        released, too: this node then unprepares them."""
        problems = []
        for ref in refs:
            claim = views.ClaimView(claims.get((ref.namespace, ref.name), {}))
            if claim.node == self._operations.node_name and not claim.is_held:
                try:
                    self._operations.claims.prepare(ref, Deadline.after(WORK_SECONDS), caller=CALLER)
                except NodeError as error:
                    problems.append(Outcome(error.code, error.message))
        return problems

    def _attach(self, vm: VirtualMachine, ref: ClaimRef) -> list[Outcome]:
        """Plug a claim in, unless this run of the machine had no window for it: its guest would see a device come and
        go again and again. Raises NodeError."""
        key, uid = "/".join(vm.key), vm.metadata.uid or ""
        others = frozenset(plug.ref.uid for plug in self._operations.claims.plugs(key))
        circumstances = (self._operations.machine(key).id, others)
        before, outcome = self._no_window.pop((key, ref.uid), (None, Outcome()))
        if before != circumstances:
            try:
                due = Deadline.after(WORK_SECONDS + spec_of(vm).locking_seconds)
                self._operations.attach(ref, key, due, owner=uid, caller=CALLER)
                return []
            except NodeError as error:
                if error.code != "NoPciWindow":
                    raise
                outcome = Outcome(error.code, error.message)
        self._no_window[key, ref.uid] = (circumstances, outcome)
        return [outcome]
