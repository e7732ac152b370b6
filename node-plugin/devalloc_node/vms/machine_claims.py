"""The claims of machines: which are ready on this node, which must be unprepared, and which machines use them."""

from __future__ import annotations

import logging
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc.api import views
from devalloc.api.views import ClaimView
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.store import NotFound, Object, Store
from devalloc_node.claims import finalizers
from devalloc_node.claims.store_grants import claim_ref
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.model.grant import ClaimRef
from devalloc_node.operations.claim_registry import HeldClaim
from devalloc_node.operations.node_operations import NodeOperations
from devalloc_node.vms import objects
from devalloc_node.vms.objects import Outcome

log = logging.getLogger(__name__)

CALLER = "virtualmachine"
WORK_SECONDS = 30.0
Claims = Mapping[tuple[str, str], Object]
"""DeviceClaims by namespace and name."""


@dataclass(frozen=True, slots=True)
class DueUnprepare:
    """A claim to be unprepared."""

    ref: ClaimRef
    force: bool
    """Even if it is in use: machines that do not release it are ended."""
    why: str
    unless_allocated: bool = False
    """Not if it holds devices by now: it was prepared after the claims were listed."""

    @property
    def depends(self) -> Hashable:
        """What must change for it to be worth another try before its time."""
        return self.ref, self.force


def ready_claims(vm: VirtualMachine, claims: Claims, node_name: str) -> tuple[list[ClaimRef], Outcome | None]:
    """Those of a machine's claims whose devices are on this node, and what is waited for."""
    refs, waits = [], []
    for name in vm.spec.claims:
        claim = claims.get((vm.namespace, name))
        if claim is None:
            waits.append(Outcome("ClaimNotFound", f"claim {vm.namespace}/{name} does not exist"))
        elif (why := _not_ready(claim, node_name)) is not None:
            waits.append(why)
        else:
            refs.append(claim_ref(claim))
    if not waits:
        return refs, None
    return refs, Outcome(waits[0].reason, "; ".join(one.message for one in waits))


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
    """Whether a claim whose devices are in the machine is not meant to be there any more."""
    now = claims.get((ref.namespace, ref.name))
    if ref.namespace != vm.namespace or ref.name not in vm.spec.claims:
        return True
    # One that is gone without its node's leave may be there again: reconcile waits before it takes that for granted.
    return now is not None and now["metadata"]["uid"] != ref.uid


def due_unprepares(
    claims: Iterable[Object],
    machines: Iterable[Object],
    held: Sequence[HeldClaim],
    node_name: str,
    owned: Container[str],
) -> list[DueUnprepare]:
    """The claims of this node that are to be unprepared now. ``owned``: keys of machines that were made for objects.

    Those that are wanted back; those that are being deleted and in no machine; and those that were in a machine of
    ``owned``, are in none, and that no VirtualMachine of this node names any more: the plugin was killed before it gave
    them back. (Who detaches a claim from a machine of their own making may want it for the next.) So are those in no
    machine that hold nothing any more: their devices were released without this node.
    """
    here = {one.record.ref.uid: one for one in held}
    wanted = {
        (objects.namespace_of(vm), name)
        for vm in machines
        if views.MachineView(vm).node == node_name and not views.MachineView(vm).is_deleting
        for name in views.MachineView(vm).claim_names
    }
    claims, to_unprepare = list(claims), []
    for claim in claims:
        ref = claim_ref(claim)
        if ref.uid in here and not here[ref.uid].plugs and not ClaimView(claim).entries:
            to_unprepare.append(DueUnprepare(ref, False, "it no longer has devices", unless_allocated=True))
    for claim in finalizers.claims_of_node(claims, node_name):
        ref = claim_ref(claim)
        inside = ref.uid in here and bool(here[ref.uid].plugs)
        was_kept = any(user in owned for user in claim.get("status", {}).get("podNames", []))
        if ClaimView(claim).wants_release:
            to_unprepare.append(DueUnprepare(ref, True, "it is being reclaimed"))
        elif ClaimView(claim).is_deleting and not inside:
            to_unprepare.append(DueUnprepare(ref, False, "it is being deleted, and no machine uses it"))
        elif ref.uid in here and not inside and was_kept and (ref.namespace, ref.name) not in wanted:
            to_unprepare.append(DueUnprepare(ref, False, "its machine was deleted"))
    return to_unprepare


def unprepare(store: Store, operations: NodeOperations, one: DueUnprepare) -> bool:
    """Do it; False where it is to be tried again. Raises StoreError."""
    if one.unless_allocated and _is_allocated(store, one.ref):
        return True
    try:
        ended = operations.unprepare(one.ref, Deadline.after(WORK_SECONDS), force=one.force, caller=CALLER)
    except NodeError as error:
        log.warning("cannot unprepare claim %s (%s): %s", one.ref, one.why, error)
        return False
    for key in ended:
        log.warning("ended machine %s, because its guest did not release the devices of claim %s", key, one.ref)
    log.info("claim %s is unprepared: %s", one.ref, one.why)
    return True


def _is_allocated(store: Store, ref: ClaimRef) -> bool:
    try:
        claim = store.get("DeviceClaim", ref.namespace, ref.name)
    except NotFound:
        return False
    return bool(claim["metadata"]["uid"] == ref.uid and ClaimView(claim).entries)


def write_users(store: Store, claims: Iterable[Object], held: Iterable[HeldClaim], node_name: str) -> None:
    """Write on the claims of this node which machines their devices are in (``status.podNames``)."""
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
