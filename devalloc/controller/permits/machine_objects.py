"""The objects that are machines: devalloc's VirtualMachines, and those of NeonVM if the controller reads them.

The rest of the permit server knows a machine only by its key and its ``VmState``.
"""

from __future__ import annotations

from collections.abc import Mapping

from devalloc.controller.permits import neon_vms, vm_state
from devalloc.controller.permits.vm_state import VmState
from devalloc.scaling.permits.ledger import NO_RESOURCES, MachineKey
from devalloc.scaling.resources import DEFAULT_COMPUTE_UNIT, Resources
from devalloc.store import Change, Object
from devalloc.store import Key as ObjectKey


def machine_key(obj: Object) -> MachineKey:
    """The key of a machine by its object. A name contains no slash, so NeonVM's never coincide with ours."""
    return key_of_object(ObjectKey.of(obj))


def key_of_object(key: ObjectKey) -> MachineKey:
    """The same by the key of its object."""
    name = f"{neon_vms.GROUP}/{key.name}" if key.kind == neon_vms.KIND else key.name
    return key.namespace or "default", name


def is_neon_key(key: MachineKey) -> bool:
    """Whether it is a machine of NeonVM."""
    return "/" in key[1]


def object_key(key: MachineKey) -> ObjectKey:
    """The key of a machine's object."""
    group, _, name = key[1].rpartition("/")
    return ObjectKey(neon_vms.KIND if group else vm_state.KIND, key[0], name)


def read_machine(obj: Object) -> VmState | None:
    """What counts of an object; None if nothing does."""
    return neon_vms.read_neon_vm(obj) if neon_vms.is_neon_vm(obj) else vm_state.read_vm(obj)


def permit_change(
    obj: Object,
    *,
    permit: Resources | None,
    previous: Resources = NO_RESOURCES,
    unit: Resources = DEFAULT_COMPUTE_UNIT,
    given_by: str,
    conditions: Mapping[str, tuple[bool, str, str]],
    now: str,
) -> Change:
    """What to write on an object. ``permit``: None takes the record of one away. ``unit``: the compute unit.

    ``conditions``: by type whether it is true, its reason and its message; NeonVM's machines get none. ``now``:
    RFC 3339.
    """
    if neon_vms.is_neon_vm(obj):
        return neon_vms.neon_permit_change(obj, permit=permit, previous=previous, unit=unit, given_by=given_by)
    return vm_state.permit_change(
        obj, permit=permit, previous=previous, given_by=given_by, conditions=conditions, now=now
    )
