"""What is to be known of a machine before a step is done for it: whose it is by its object, and what became of it.

The object says what is wanted and whose the machine is, the journal which run it is, and QEMU what that does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from devalloc.api import meta, views
from devalloc.api.decode import decode
from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.machine_reservation import start_refusal
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity import host_pool_name
from devalloc.store import NotFound, Object, Store
from devalloc_machines.qemu.process import qemu_uuid
from devalloc_machines.qemu.records import MachineView, State
from devalloc_machines.qemu.spec import spec_of
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import objects
from devalloc_machines.vms.machine_claims import Claims, ready_claims
from devalloc_machines.vms.objects import Outcome
from devalloc_node.claims.store_grants import moved_here
from devalloc_node.errors import NodeError
from devalloc_node.model.grant import ClaimRef

_MAX_LISTED = 5
"""Changes of a spec that a message names."""


class Whose(Enum):
    """Whose a machine is, seen from this node: the first that is true counts."""

    SERVICE = auto()
    """It was created through the service, and has no object."""
    MOVING = auto()
    """It is about to change its node: only its migration changes it, and knows whose it is."""
    GONE = auto()
    """Its object is gone, perhaps only for a while."""
    ORPHANED = auto()
    """Its object has been gone for the whole of the grace period (T16)."""
    TAKEN = auto()
    """It was taken away from this node, which was fenced, and what is left of it here is not ended."""
    EVICTED = auto()
    """Nothing of it may run here, but what it keeps here stays."""
    DELETED = auto()
    ELSEWHERE = auto()
    """Its object is on another node, or on none."""
    UNPLACED = auto()
    """It is to run here, and waits until this node reserves something for it."""
    AWAITED = auto()
    """It is to be here, and another node still holds it."""
    FREE = auto()
    """It is to be here, and no node holds it."""
    INVALID = auto()
    """This node holds it, and its object cannot be read."""
    OURS = auto()
    """This node holds it, and is to run it."""
    RESTARTING = auto()
    """This node holds it, and is to run it, but not in the run that it is in."""
    RESTING = auto()
    """This node holds it, and is not to run it."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A machine as it is now."""

    key: str
    obj: Object
    """As the store has it now; if it is gone, as it was last heard of."""
    vm: VirtualMachine | None
    """What the object says, with the NUMA node that it was placed on; None if it is invalid."""
    machine: MachineView | None
    """The object's own, or one whose record cannot be read."""
    whose: Whose
    state: State
    problem: str = ""
    """Why the object is invalid."""
    is_held: bool = False
    """This node holds it."""
    is_unplaced: bool = False
    """This node has to reserve more for it than it does."""
    claims: Claims = field(default_factory=dict)
    """Of one that is to run here;"""
    refs: Sequence[ClaimRef] = ()
    """those that are ready;"""
    waits: Outcome | None = None
    """and what it waits for, if others are not."""

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])


def whose(
    obj: Object | None,
    vm: VirtualMachine | None,
    node: str,
    here: MachineView | None,
    *,
    is_unplaced: bool = False,
    is_over: bool = False,
) -> Whose:
    """Determine whose a machine is. ``obj``: as the store has it now, None if it is gone; ``here``: what this node has
    under its name; ``is_unplaced``: whether this node has to reserve something for it and does not; ``is_over``: if its
    object is gone, whether the grace period is over."""
    if here is not None and here.is_moving:
        return Whose.MOVING
    if obj is None:
        if here is not None and not here.uid:
            return Whose.SERVICE
        return Whose.ORPHANED if is_over else Whose.GONE
    view, holder = views.MachineView(obj), objects.holder_of(obj)
    if objects.was_taken_away(obj, node):
        return Whose.TAKEN
    if view.is_deleting:
        return Whose.DELETED
    if objects.must_leave(obj, node):
        return Whose.EVICTED
    if view.node != node:
        return Whose.ELSEWHERE
    if holder is None:
        # One that an earlier run of the plugin refused waits for this node, which alone takes its refusal back.
        is_to_run = vm is not None and vm.spec.running and not start_refusal(obj)
        return Whose.UNPLACED if is_to_run and is_unplaced else Whose.FREE
    if holder != node:
        return Whose.AWAITED
    if view.annotation(meta.PREPARED_ON) != node:
        return Whose.FREE
    if vm is None:
        return Whose.INVALID
    if not vm.spec.running:
        return Whose.RESTING
    is_own = here is not None and here.uid == obj["metadata"]["uid"]
    return Whose.RESTARTING if is_own and here is not None and is_to_restart(vm, here) else Whose.OURS


def read_situation(
    store: Store,
    operations: MachineOperations,
    obj: Object,
    claims_of: Callable[[Object], Claims] = lambda obj: {},
    *,
    is_over: bool = False,
) -> Situation:
    """Read the situation of a machine, by its object as it was last heard of, which may be older than its arrival on
    this node; ``claims_of`` an object; ``is_over``: as of ``whose``. Raises StoreError, NodeError."""
    key, uid, node = objects.key_of(obj), obj["metadata"]["uid"], operations.node_name
    here = operations.machines.get(key)
    now = objects.read_again(store, objects.KIND, key, uid)  # only now: it is written before its machine ceases to move
    last = obj if now is None else now
    decoded = decode(last)
    vm = with_numa_node(decoded.object, last) if isinstance(decoded.object, VirtualMachine) else None
    holder = None if now is None else objects.holder_of(now)
    machine = here if here is not None and (here.uid == uid or here.state is State.UNREADABLE) else None
    state = machine.state if machine is not None else State.ABSENT if here is None else State.OTHER
    if holder == node and now is not None:
        if here is None and _may_be_lost(operations, key):
            state = State.LOST
        elif foreign_pid(now, vm, node, here) is not None:
            state = State.FOREIGN
    is_unplaced = now is not None and vm is not None and holder is None and is_unreserved(store, node, now, vm)
    of = whose(now, vm, node, here, is_unplaced=is_unplaced, is_over=is_over)
    seen = Situation(key, last, vm, machine, of, state, str(decoded.error or "it is unreadable"), holder == node)
    if of is not Whose.OURS or vm is None:
        return seen
    claims = claims_of(last)
    refs, waits = ready_claims(vm, claims, node, moved_here(last, node))
    return replace(seen, is_unplaced=is_unreserved(store, node, last, vm), claims=claims, refs=refs, waits=waits)


def request_situation(operations: MachineOperations, key: str) -> Situation:
    """Read the situation of a machine that was created through the service: the request is its object. Another one, or
    none, may have its name by now. Raises NodeError."""
    here = operations.machines.get(key)
    vm, state = (None, State.ABSENT) if here is None else (here.created_as, here.state)
    return Situation(key, objects.reference(key, ""), vm, here, whose(None, vm, operations.node_name, here), state)


def _may_be_lost(operations: MachineOperations, key: str) -> bool:
    """Whether a machine lives that has no record, also if that cannot be told."""
    try:
        return operations.machines.lost(key) is not None
    except NodeError:
        return True


def take_object(store: Store, obj: Object, node: str) -> Object | None:
    """Make an object this node's that no node holds; None if it is gone or not to be taken by now. Raises Failed."""

    def taken(now: Object) -> Object | None:
        if whose(now, None, node, None) is not Whose.FREE:
            return None
        metadata = now["metadata"]
        annotations = {**metadata.get("annotations", {}), meta.PREPARED_ON: node}
        others = [name for name in metadata.get("finalizers", []) if name != meta.NODE_FINALIZER]
        finalizers = [*others, meta.NODE_FINALIZER]
        return {**now, "metadata": {**metadata, "annotations": annotations, "finalizers": finalizers}}

    return objects.update_with_retry(store, obj, taken, store.replace)


def is_unreserved(store: Store, node: str, obj: Object, vm: VirtualMachine) -> bool:
    """Whether a machine must wait until this node reserves something for it. A node that does not publish its capacity
    for machines admits every machine placed on it. Raises StoreError."""
    if objects.is_admitted(obj, node, vm.spec):
        return False
    try:
        pool = store.get("DevicePool", None, host_pool_name(node))
    except NotFound:
        return False
    return node_of_host_pool(pool) == node


def foreign_pid(obj: Object, vm: VirtualMachine | None, node: str, here: MachineView | None) -> int | None:
    """Find the process that runs a machine by its status, if no record of this plugin is of that run: a plugin with
    another state folder has served this node before, or does so now. An adopted one is adopted again instead."""
    status = obj.get("status") or {}
    run, pid = status.get("machineID"), status.get("pid")
    if not run or not isinstance(pid, int) or objects.holder_of(obj) != node:
        return None
    is_ours = here is not None and (here.runs or here.id == run)
    if is_ours or (vm is not None and vm.spec.adopt is not None):
        return None
    return pid if qemu_uuid(pid) == run else None


def is_to_restart(vm: VirtualMachine, machine: MachineView) -> bool:
    """Whether the run of a machine is to be ended and another one begun: it was started with another request for that,
    or with none."""
    request = vm.metadata.annotations.get(meta.RESTART)
    if request is None or machine.created_as is None or machine.adopted:
        return False
    if not machine.runs or machine.state is State.CUT_OFF:
        return False
    return request != machine.created_as.metadata.annotations.get(meta.RESTART)


def with_numa_node(vm: VirtualMachine, held: Object) -> VirtualMachine:
    """With its memory from the NUMA node that it was placed on."""
    start, numa = vm.spec.start, (held.get("status") or {}).get("numaNode")
    if start is None or start.numa_node is not None or not isinstance(numa, int):
        return vm
    spec = vm.spec.model_copy(update={"start": start.model_copy(update={"numa_node": numa})})
    return vm.model_copy(update={"spec": spec})


def pending_changes(vm: VirtualMachine, machine: MachineView) -> list[Outcome]:
    """What of the spec cannot change while the machine runs, and has."""
    now, then = spec_of(vm), machine.started
    if then is None or not machine.runs:
        return []
    pairs = {
        "start.kernel": (now.kernel, then.kernel),
        "start.initrd": (now.initrd, then.initrd),
        "start.append": (now.append, then.append),
        "start.disks": (now.disks, then.disks),
        "start.cloudInit": (now.cloud_init, then.cloud_init),
        "start.iommu": (now.iommu, then.iommu),
        "start.firmware": ((now.firmware, now.secure_boot), (then.firmware, then.secure_boot)),
        "start.tpm": (now.tpm, then.tpm),
        "start.numaNode": (now.numa_node, then.numa_node),
        "start.pinned": (now.pinned, then.pinned),
        "start.pciWindow": (now.pci_window, then.pci_window),
        "guestReports": (now.guest_reports, then.guest_reports),
        "adopt": (now.adopt, then.adopt),
        "nics": (now.nics, then.nics),
        "cpu.min": (now.cpus.least, then.cpus.least),
        "cpu.max": (now.cpus.most, then.cpus.most),
        "memory.min": (now.memory.least, then.memory.least),
        "memory.max": (now.memory.most, then.memory.most),
        "memory.slotSize": (now.dimm_bytes, then.dimm_bytes),
        "memory.hugePages": (now.huge_page_bytes, then.huge_page_bytes),
        # If the spec does not say how many, there are spare ones, whatever claims come and go.
        "pciSlots": (then.pci_slots if vm.spec.pci_slots is None else vm.spec.pci_slots, then.pci_slots),
    }
    changed = [name for name, (wanted, has) in pairs.items() if wanted != has]
    if not changed:
        return []
    listed = ", ".join(changed[:_MAX_LISTED]) + (
        f" and {len(changed) - _MAX_LISTED} more" * (len(changed) > _MAX_LISTED)
    )
    advice = f"devalloc restart vm/{vm.metadata.name}"
    return [Outcome("RestartNeeded", f"changes of {listed} in its spec apply at its next start: {advice}")]
