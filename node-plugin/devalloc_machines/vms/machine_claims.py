"""Claims of machines: which of them are ready on this node, which ones to unprepare, and which machines use them; and
the way of a claim into a machine and out: of one that it was given, has lost, or came along with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc.api import views
from devalloc.api.views import ClaimView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.store import Object, Store
from devalloc_machines.qemu.spec import spec_of
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import fencing, objects
from devalloc_machines.vms.objects import Outcome
from devalloc_node.claims import finalizers
from devalloc_node.claims.store_grants import KIND as CLAIM
from devalloc_node.claims.store_grants import claim_ref, moved_here
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.model.grant import ClaimRef
from devalloc_node.operations.claim_registry import HeldClaim

log = logging.getLogger(__name__)

CALLER = "virtualmachine"
WORK_SECONDS = 30.0
"""For one change, without the time that a guest has to power down."""
Claims = Mapping[tuple[str, str], Object]
"""DeviceClaims by namespace and name."""


@dataclass(frozen=True, slots=True)
class DueUnprepare:
    """A claim that this node has to unprepare."""

    ref: ClaimRef
    force: bool
    """Unprepare it even if it is in use, and end machines that do not release it."""
    why: str
    is_left: bool
    """Whether it was in a machine that was made for an object, and no VirtualMachine of this node names it any more."""
    taken_away: Object | None = None
    """The claim, if it was taken away from this node, which was fenced: the node confirms when it is unprepared."""

    @property
    def depends(self) -> Hashable:
        """What must change before another try is worth it sooner than the pause says."""
        return self.ref, self.force


def ready_claims(
    vm: VirtualMachine, claims: Claims, node_name: str, moved_here: Container[str] = ()
) -> tuple[list[ClaimRef], Outcome | None]:
    """Those of a machine's claims whose devices are on this node, and what the machine waits for. ``moved_here``: UIDs
    of claims that moved here with the machine, but still have the devices of its previous node in their status."""
    refs, waits = [], []
    for name in vm.spec.claims:
        claim = claims.get((vm.namespace, name))
        if claim is None:
            waits.append(Outcome("ClaimNotFound", f"claim {vm.namespace}/{name} does not exist"))
        elif claim["metadata"]["uid"] in moved_here and not ClaimView(claim).wants_release:
            refs.append(claim_ref(claim))
        elif (why := _not_ready(claim, node_name)) is not None:
            waits.append(why)
        else:
            refs.append(claim_ref(claim))
    if not waits:
        return refs, None
    return refs, Outcome(waits[0].reason, "; ".join(one.message for one in waits))


def attached_before(operations: MachineOperations, key: str, before: Iterable[ClaimRef]) -> list[ClaimRef]:
    """Find the claims that were in a machine when it ended, without those that were unprepared or put into another one
    since. ``before``: those that were, as far as a start that failed has forgotten their plugs."""
    uids = {ref.uid for ref in before}
    return [
        held.record.ref
        for held in operations.claims.held()
        if any(plug.machine == key for plug in held.plugs)
        or (held.record.ref.uid in uids and held.prepared is not None and not held.plugs)
    ]


def _not_ready(claim: Object, node_name: str) -> Outcome | None:
    ref = claim_ref(claim)
    if not ClaimView(claim).entries:
        return Outcome("ClaimNotAllocated", f"claim {ref} has no devices yet")
    if finalizers.is_group_pending(claim):
        return Outcome("ClaimNotAllocated", f"claim {ref} is being allocated together with others")
    if ClaimView(claim).wants_release:
        return Outcome("ClaimReleased", f"claim {ref} is being released")
    node = ClaimView(claim).node
    if node not in (None, node_name):
        return Outcome(
            "ClaimElsewhere", f"claim {ref} has devices of node {node}, and the machine is on node {node_name}"
        )
    if ClaimView(claim).is_deleting and not ClaimView(claim).is_held:
        return Outcome("ClaimBeingDeleted", f"claim {ref} is being deleted")
    return None


def is_no_longer_claimed(ref: ClaimRef, vm: VirtualMachine, claims: Claims) -> bool:
    """Whether the machine no longer names a claim whose devices are in it."""
    now = claims.get((ref.namespace, ref.name))
    if ref.namespace != vm.namespace or ref.name not in vm.spec.claims:
        return True
    # A claim that was deleted without its node's consent may come back: the claims' reconciler waits before it acts.
    return now is not None and now["metadata"]["uid"] != ref.uid


def lost_claims(vm: VirtualMachine, moved_here: Mapping[str, Object], claims: Claims) -> list[ClaimRef]:
    """Claims that moved here with a machine and that it has lost: they were deleted, or left its spec, before they got
    their devices here. The node that they came from had unprepared them by then, so that no node holds them any more.

    ``moved_here``: as of ``store_grants``.
    """
    lost = []
    for uid, entry in moved_here.items():
        name = str(entry.get("name"))
        claim = claims.get((vm.namespace, name))
        if name not in vm.spec.claims or claim is None or claim["metadata"]["uid"] != uid:
            lost.append(ClaimRef(vm.namespace, name, uid))
    return lost


def due_unprepares(
    claims: Iterable[Object],
    machines: Iterable[Object],
    held: Sequence[HeldClaim],
    node_name: str,
    is_owned: Callable[[str], object],
) -> list[DueUnprepare]:
    """The claims that this node has to unprepare now. ``is_owned``: whether a key is of a machine that was made for an
    object.

    These are: claims that the controller reclaims; claims that are being deleted and are in no machine; claims that
    were in such a machine, are in no machine now, and that no VirtualMachine of this node names (the plugin was
    killed before it unprepared them); and claims in no machine whose devices were released without this node. A user
    who detaches a claim from a machine that was not made for an object may want it for the next one: such a claim stays
    prepared.
    """
    here = {one.record.ref.uid: one for one in held}
    wanted = {
        (objects.namespace_of(vm), name)
        for vm in machines
        if views.MachineView(vm).node == node_name and not views.MachineView(vm).is_deleting
        for name in views.MachineView(vm).claim_names
    }
    to_unprepare = []
    for claim in claims:
        ref, users = claim_ref(claim), claim.get("status", {}).get("podNames", [])
        is_left = (ref.namespace, ref.name) not in wanted and any(map(is_owned, users))
        to_unprepare.append(_due_unprepare(claim, here.get(ref.uid), node_name, is_left))
    return [one for one in to_unprepare if one is not None]


def _due_unprepare(claim: Object, held: HeldClaim | None, node_name: str, is_left: bool) -> DueUnprepare | None:
    """Why this node has to unprepare a claim now; None if it does not. ``held``: what this node holds of it;
    ``is_left``: as of ``DueUnprepare``."""
    view, ref = ClaimView(claim), claim_ref(claim)
    is_inside = held is not None and bool(held.plugs)
    if any(finalizers.claims_of_node([claim], node_name)):
        if view.wants_release:
            return DueUnprepare(ref, True, "it is being reclaimed", is_left)
        if view.is_deleting and not is_inside:
            return DueUnprepare(ref, False, "it is being deleted, and no machine uses it", is_left)
        if held is not None and not is_inside and is_left:
            return DueUnprepare(ref, False, "its machine was deleted", is_left)
    if objects.was_taken_away(claim, node_name):
        why = "it was taken away from this node, which was fenced"
        return DueUnprepare(ref, True, why, is_left, taken_away=claim)
    if held is not None and not is_inside and not view.entries:
        return DueUnprepare(ref, False, "it no longer has devices", is_left)
    return None


def unprepare(store: Store, operations: MachineOperations, one: DueUnprepare) -> bool:
    """Unprepare a claim if that is still due for the claim as the store has it now: since the node heard of it, a
    machine may have arrived with it, or got it again. False if it must be tried again. Raises StoreError."""
    claim = objects.read_again(store, CLAIM, str(one.ref), one.ref.uid)
    if claim is not None:
        held = next(iter(operations.claims.held(one.ref.uid)), None)
        now = _due_unprepare(claim, held, operations.node_name, one.is_left)
        if now is None:
            return True
        one = now
    try:
        if one.taken_away is not None:
            fencing.settle_claim(store, operations, one.taken_away)
            return True
        ended = operations.claims.unprepare(one.ref, Deadline.after(WORK_SECONDS), force=one.force, caller=CALLER)
    except NodeError as error:
        log.warning("cannot unprepare claim %s (%s): %s", one.ref, one.why, error)
        return False
    for key in ended:
        log.warning("ended machine %s, because its guest did not release the devices of claim %s", key, one.ref)
    log.info("claim %s is unprepared: %s", one.ref, one.why)
    return True


def unprepare_unplugged(operations: MachineOperations, machine: Object) -> None:
    """Unprepare those claims of a VirtualMachine that are in no machine. Raises NodeError."""
    names = {(objects.namespace_of(machine), name) for name in views.MachineView(machine).claim_names}
    for held in operations.claims.held():
        ref = held.record.ref
        if (ref.namespace, ref.name) in names and not held.plugs:
            operations.claims.unprepare(ref, Deadline.after(WORK_SECONDS), caller=CALLER)


def write_users(store: Store, claims: Iterable[Object], held: Iterable[HeldClaim], node_name: str) -> None:
    """Write on the claims of this node which machines have their devices (``status.podNames``)."""
    users = {one.record.ref.uid: sorted({plug.machine for plug in one.plugs}) for one in held}
    for claim in claims:
        node = ClaimView(claim).node
        if node != node_name and ClaimView(claim).holder != node_name:
            continue
        ref = claim_ref(claim)
        now = users.get(ref.uid, [])
        if list(claim.get("status", {}).get("podNames", [])) != now:
            try:
                finalizers.set_users(store, ref, now)
            except Denied:
                continue  # it is gone, or another claim has its name
            except NodeError as error:
                log.warning("cannot write on claim %s which machines use it: %s", ref, error)


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

    def settle(self, obj: Object, vm: VirtualMachine, claims: Claims) -> list[Outcome]:
        """Take claims out that the machine has lost, and mark those that came along with it; what did not work."""
        moved = moved_here(obj, self._operations.node_name)
        lost = lost_claims(vm, moved, claims)
        key, uid = objects.key_of(obj), vm.metadata.uid or ""
        left = self._take_out([ref for ref in lost if self._is_left_in(ref, vm)], key, uid)
        moved_refs = [one.record.ref for moved_uid in moved for one in self._operations.claims.held(moved_uid)]
        return left + self._mark([ref for ref in moved_refs if ref not in lost], claims)

    def match(self, vm: VirtualMachine, refs: Sequence[ClaimRef], claims: Claims) -> list[Outcome]:
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
            claim = ClaimView(claims.get((ref.namespace, ref.name), {}))
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
