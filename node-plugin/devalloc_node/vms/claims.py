"""DeviceClaims of machines: whose devices are here; which this node holds and should not, or not for ever; and who uses
those that it holds."""

from __future__ import annotations

import logging
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from devalloc.api import meta
from devalloc.api.virtualmachine import VirtualMachine
from devalloc.store import NotFound, Object, Store
from devalloc_node import marks
from devalloc_node.claims.store_grants import claim_ref
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.grant import ClaimRef
from devalloc_node.held import Held
from devalloc_node.platform import Platform
from devalloc_node.vms import objects
from devalloc_node.vms.outcome import Outcome

log = logging.getLogger(__name__)

CALLER = "virtualmachine"
WORK_SECONDS = 30.0
Claims = Mapping[tuple[str, str], Object]
"""DeviceClaims by namespace and name."""


@dataclass(frozen=True, slots=True)
class Due:
    """A claim to be unprepared."""

    ref: ClaimRef
    force: bool
    """Whoever uses it: machines that do not let go are ended."""
    why: str
    unless_allocated: bool = False
    """Not if it holds devices by now: it was prepared after the claims were listed."""

    @property
    def depends(self) -> Hashable:
        """What must change for it to be worth another try before its time."""
        return self.ref, self.force


def ready(vm: VirtualMachine, claims: Claims, node_name: str) -> tuple[list[ClaimRef], Outcome | None]:
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
    if not claim.get("status", {}).get("allocations"):
        return Outcome("ClaimNotAllocated", f"claim {ref} holds no devices yet")
    if marks.is_unsettled(claim):
        return Outcome("ClaimNotAllocated", f"claim {ref} is just being allocated, with others")
    if marks.is_wanted_back(claim):
        return Outcome("ClaimReleased", f"claim {ref} is being released")
    node = claim["metadata"].get("annotations", {}).get(meta.ALLOCATED_NODE)
    if node not in (None, node_name):
        return Outcome("ClaimElsewhere", f"claim {ref} holds devices of node {node}")
    if objects.is_deleting(claim) and not marks.is_marked(claim):
        return Outcome("ClaimBeingDeleted", f"claim {ref} is being deleted")
    return None


def has_left(ref: ClaimRef, vm: VirtualMachine, claims: Claims) -> bool:
    """Whether a claim whose devices are in the machine is not meant to be there any more."""
    now = claims.get((ref.namespace, ref.name))
    if ref.namespace != vm.namespace or ref.name not in vm.spec.claims:
        return True
    # One that is gone without its node's leave may be there again: reconcile waits before it takes that for granted.
    return now is not None and now["metadata"]["uid"] != ref.uid


def due(
    claims: Iterable[Object], machines: Iterable[Object], held: Sequence[Held], node_name: str, kept: Container[str]
) -> list[Due]:
    """The claims of this node that are to be unprepared now. ``kept``: keys of machines that were made for objects.

    Those that are wanted back; those that are being deleted and in no machine; and those that were in a machine of
    ``kept``, are in none, and that no VirtualMachine of this node names any more: the plugin was killed before it gave
    them back. (Who detaches a claim from a machine of their own making may want it for the next.) So are those in no
    machine that hold nothing any more: somebody took their devices from them without asking this node.
    """
    here = {one.record.ref.uid: one for one in held}
    wanted = {
        (objects.namespace_of(vm), name)
        for vm in machines
        if objects.node_of(vm) == node_name and not objects.is_deleting(vm)
        for name in objects.claim_names(vm)
    }
    claims, found = list(claims), []
    for claim in claims:
        ref = claim_ref(claim)
        if ref.uid in here and not here[ref.uid].plugs and not claim.get("status", {}).get("allocations"):
            found.append(Due(ref, False, "it holds nothing any more", unless_allocated=True))
    for claim in marks.marked(claims, node_name):
        ref = claim_ref(claim)
        inside = ref.uid in here and bool(here[ref.uid].plugs)
        was_kept = any(user in kept for user in claim.get("status", {}).get("podNames", []))
        if marks.is_wanted_back(claim):
            found.append(Due(ref, True, "it is wanted back"))
        elif objects.is_deleting(claim) and not inside:
            found.append(Due(ref, False, "it is being deleted, and in no machine"))
        elif ref.uid in here and not inside and was_kept and (ref.namespace, ref.name) not in wanted:
            found.append(Due(ref, False, "its machine is gone"))
    return found


def unprepare(store: Store, platform: Platform, one: Due) -> bool:
    """Do it; False where it is to be tried again. Raises StoreError."""
    if one.unless_allocated and _is_allocated(store, one.ref):
        return True
    try:
        ended = platform.unprepare(one.ref, Deadline.after(WORK_SECONDS), force=one.force, caller=CALLER)
    except NodeError as error:
        log.warning("claim %s cannot be unprepared (%s): %s", one.ref, one.why, error)
        return False
    for key in ended:
        log.warning("machine %s was ended, for its guest did not let the devices of claim %s go", key, one.ref)
    log.info("claim %s is unprepared: %s", one.ref, one.why)
    return True


def _is_allocated(store: Store, ref: ClaimRef) -> bool:
    try:
        claim = store.get("DeviceClaim", ref.namespace, ref.name)
    except NotFound:
        return False
    return bool(claim["metadata"]["uid"] == ref.uid and claim.get("status", {}).get("allocations"))


def tell_users(store: Store, claims: Iterable[Object], held: Iterable[Held], node_name: str) -> None:
    """Write on the claims of this node which machines their devices are in (``status.podNames``)."""
    users = {one.record.ref.uid: sorted({plug.machine for plug in one.plugs}) for one in held}
    for claim in claims:
        node = claim["metadata"].get("annotations", {}).get(meta.ALLOCATED_NODE)
        if node != node_name and marks.prepared_on(claim) != node_name:
            continue
        ref = claim_ref(claim)
        now = users.get(ref.uid, [])
        if list(claim.get("status", {}).get("podNames", [])) != now:
            try:
                marks.set_users(store, ref, now)
            except Denied:
                continue  # it is gone, or another claim has its name
            except NodeError as error:
                log.warning("could not say on claim %s who uses it: %s", ref, error)
