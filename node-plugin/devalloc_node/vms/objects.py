"""Reading and writing VirtualMachine objects: whose they are, and what is told on them.

A node *holds* an object, by the finalizer ``devalloc.io/node`` and its own name beside it, before it does anything for
it, and lets it go when nothing of it is left on the node. So an object that is deleted stays until its machine is gone,
and one that moves to another node is begun there only after it ended here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from devalloc.api import meta
from devalloc.api.hostpool import CPU, MEMORY
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.api.reservation import FITS, amount_of, lacking, nano_of, reserved
from devalloc.api.virtualmachine import VirtualMachine, VirtualMachineSpec
from devalloc.store import Conflict, NotFound, Object, Store, StoreError
from devalloc_node.errors import Failed
from devalloc_node.machine.view import Amounts, Machine, Plug

KIND = "VirtualMachine"
_ATTEMPTS = 20
_KEPT = ("conditions", "runnerPod", "nodeName", "numaNode", "allocations")
"""Parts of the status that others write."""
_RESERVED = ("numaNode", "allocations")
"""What the allocator has kept for a machine; this node gives it back when nothing of the machine runs."""


def key_of(obj: Object) -> str:
    """``namespace/name``"""
    return f"{namespace_of(obj)}/{obj['metadata']['name']}"


def namespace_of(obj: Object) -> str:
    return obj["metadata"].get("namespace") or "default"


def node_of(obj: Object) -> str | None:
    """The node that is to run it: the one its spec names, else the one that was chosen for it."""
    is_chosen = not is_unsettled(obj) or meta.NODE_FINALIZER in obj["metadata"].get("finalizers", [])
    for part in (obj.get("spec"), obj.get("status") if is_chosen else None):
        name = part.get("nodeName") if isinstance(part, dict) else None
        if isinstance(name, str) and name:
            return name
    return None


def is_unsettled(obj: Object) -> bool:
    """Whether what the allocator says of it may still be taken back: what belongs to it is not written yet."""
    return meta.TRANSACTION in obj["metadata"].get("annotations", {})


def kept_on(obj: Object, node_name: str) -> list[Any]:
    """The entries of what this node keeps for it; empty where it keeps nothing."""
    return reserved(obj) if (obj.get("status") or {}).get("nodeName") == node_name else []


def is_admitted(obj: Object, node_name: str, spec: VirtualMachineSpec) -> bool:
    """Whether this node keeps for it what it needs."""
    kept = kept_on(obj, node_name)
    return bool(kept) and not lacking(spec, kept) and not is_unsettled(obj)


def why_not_admitted(obj: Object) -> str:
    """What the allocator says of it."""
    conditions = (obj.get("status") or {}).get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, dict) and one.get("type") in ("Placed", FITS) and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "nobody says why")
    answered = "kept more for" if (obj.get("status") or {}).get("allocations") else "placed"
    return f"nobody has {answered} it yet: is `devalloc up`, or on a cluster the controller, running?"


def announce(store: Store, obj: Object, node_name: str, spec: VirtualMachineSpec, amounts: Amounts) -> bool:
    """Say what the machine is about to be told to have, so that it counts from now on; raises Failed.

    False where nothing was said, because this node does not keep as much for it any more as the spec asks for.
    """
    admitted = False

    def told(now: Object) -> Object | None:
        nonlocal admitted
        admitted = is_admitted(now, node_name, spec)
        before = now.get("status") or {}
        status = {**before, "applied": _most(before.get("applied"), _amounts(amounts))}
        return {**now, "status": status} if admitted and status != before else now

    return _written(store, obj, told, store.replace_status) is not None and admitted


def holder_of(obj: Object) -> str | None:
    """The node that holds it; None where none does. Where somebody took the name off, that of its spec."""
    metadata = obj["metadata"]
    if meta.NODE_FINALIZER not in metadata.get("finalizers", []):
        return None
    return metadata.get("annotations", {}).get(meta.PREPARED_ON) or node_of(obj)


def claim_names(obj: Object) -> list[str]:
    """What its spec says, also where the rest of it makes no sense."""
    spec = obj.get("spec")
    names = spec.get("claims") if isinstance(spec, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def is_deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def hold(store: Store, obj: Object, node_name: str) -> Object | None:
    """Make the object this node's; None where it is gone, another's, or being deleted. Raises Failed."""

    def held(now: Object) -> Object | None:
        metadata, holder = now["metadata"], holder_of(now)
        if holder == node_name == metadata.get("annotations", {}).get(meta.PREPARED_ON):
            return now
        if holder not in (None, node_name) or is_deleting(now) or node_of(now) != node_name:
            return None
        annotations = {**metadata.get("annotations", {}), meta.PREPARED_ON: node_name}
        others = [name for name in metadata.get("finalizers", []) if name != meta.NODE_FINALIZER]
        finalizers = [*others, meta.NODE_FINALIZER]
        return {**now, "metadata": {**metadata, "annotations": annotations, "finalizers": finalizers}}

    return _written(store, obj, held, store.replace)


def let_go(store: Store, obj: Object, node_name: str) -> None:
    """This node has nothing of the object any more. Raises Failed."""

    def free(now: Object) -> Object | None:
        if holder_of(now) != node_name:
            return None
        metadata = now["metadata"]
        left = [name for name in metadata["finalizers"] if name != meta.NODE_FINALIZER]
        annotations = {k: v for k, v in metadata.get("annotations", {}).items() if k != meta.PREPARED_ON}
        return {**now, "metadata": {**metadata, "annotations": annotations, "finalizers": left}}

    _written(store, obj, free, store.replace)


def tell(
    store: Store,
    obj: Object,
    status: Mapping[str, Any],
    *,
    at_rest: bool = False,
    uses: Mapping[str, str] | None = None,
) -> None:
    """Write what is known of the machine, where that is something else than what is there. Raises Failed.

    ``at_rest``: nothing of it runs here, and is not about to; what is kept for it is given back with the same write.
    ``uses``: what it has, where nobody scales it who would give the rest of its permit back: that is done then.
    """

    def told(now: Object) -> Object | None:
        before = now.get("status") or {}
        kept = [name for name in _KEPT if name in before and not (at_rest and name in _RESERVED)]
        after = {**status, **{name: before[name] for name in kept}}
        if _is_given(before, status):
            after["permitted"] = before["permitted"] if uses is None else _given_back(before["permitted"], uses)
        elif "permitted" in after and "allocations" in after:
            after["permitted"] = _kept_of(after["permitted"], reserved(now))
        return now if after == before else {**now, "status": after}

    _written(store, obj, told, store.replace_status)


def status_of(
    vm: VirtualMachine | None,
    machine: Machine | None,
    plugs: Iterable[Plug],
    reason: str,
    message: str,
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The status for an object; without what is not known. ``addresses``: where its guest finds its devices, by id."""
    status: dict[str, Any] = {"phase": "Pending" if machine is None or machine.is_paused else machine.phase}
    if vm is not None:
        wanted = {"cpus": str(vm.spec.cpu.wanted), "memory": str(vm.spec.memory.wanted)}
        # Where no server of permits says otherwise, nobody limits it but its own bounds.
        status |= {"wanted": wanted, "permitted": wanted}
    if machine is not None:
        if machine.runs:
            status |= {name: amounts for name, amounts in _told(machine) if amounts}
        status |= {"pid": machine.pid} if machine.pid else {}
        status |= {"machineID": machine.id} if machine.id else {}
    devices = [_device(plug, addresses.get(plug.id)) for plug in plugs] if machine is not None and machine.runs else []
    status |= {"devices": devices} if devices else {}
    status |= {"reason": reason[:253]} if reason else {}
    status |= {"message": message[:4096]} if message else {}
    return status


def status_of_scaling(wanted: Amounts, guest: Amounts | None) -> dict[str, Any]:
    """What differs in the status of a machine that is scaled by its load. ``guest``: what its guest says it has."""
    told = {"wanted": _amounts(wanted)}
    return told if guest is None else told | {"guestObserved": _amounts(guest)}


def permitted_on(store: Store, node_name: str) -> dict[str, Amounts]:
    """What a server of permits has given to machines of a node, by their keys. Raises Failed."""
    try:
        listed = store.list([KIND]).objects
    except StoreError as error:
        raise Failed("StoreUnavailable", f"what machines are permitted cannot be read: {error}") from error
    found = {}
    for obj in listed:
        status = obj.get("status") or {}
        if _is_given(status, status) and node_name in (holder_of(obj), node_of(obj)):
            permit, kept = status["permitted"], status["permitted"].get("kept")
            both = [permit, kept] if isinstance(kept, dict) else [permit]
            cpus, memory = (max(nano_of(amounts.get(name)) for amounts in both) for name in ("cpus", "memory"))
            found[key_of(obj)] = Amounts(-(-cpus * 1000 // NANO), None, -(-memory // NANO))
    return found


def permit_of(obj: Object, run: str) -> Amounts | None:
    """What a server of permits has given to this run of the machine; None where none has."""
    status = obj.get("status") or {}
    if not _is_given(status, {"machineID": run}):
        return None
    cpus, memory = (nano_of(status["permitted"].get(name)) for name in ("cpus", "memory"))
    return Amounts(cpus * 1000 // NANO, None, memory // NANO)


def in_use(machine: Machine) -> dict[str, str]:
    """What it has or was told to have, where both can be told."""
    return _most(_amounts(machine.observed), _amounts(machine.applied.usable))


def _given_back(permit: Mapping[str, Any], uses: Mapping[str, str]) -> dict[str, Any]:
    """The permit without what is not in use."""
    given = {name: permit[name] for name in permit if name != "kept"}
    return given | {name: min(text, str(given.get(name, text)), key=nano_of) for name, text in uses.items()}


def _is_given(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a server of permits has given one to this run of the machine: it alone changes it."""
    permit = before.get("permitted")
    if not isinstance(permit, dict) or not permit.get("givenBy"):
        return False
    return permit.get("machineID", "") in ("", now.get("machineID", ""))


def _told(machine: Machine) -> list[tuple[str, dict[str, str]]]:
    return [("applied", _amounts(machine.applied.usable)), ("observed", _amounts(machine.observed))]


def _amounts(of: Amounts) -> dict[str, str]:
    told = {}
    if of.cpu_milli is not None:
        told["cpus"] = str(Quantity(of.cpu_milli * (NANO // 1000)))
    elif of.vcpus is not None:
        told["cpus"] = str(of.vcpus)
    if of.memory_bytes is not None:
        told["memory"] = str(Quantity(of.memory_bytes * NANO, Format.BINARY_SI))
    return told


def _most(before: object, amounts: Mapping[str, str]) -> dict[str, str]:
    """The larger of each."""
    told = before if isinstance(before, dict) else {}
    return {name: max(text, str(told.get(name, text)), key=nano_of) for name, text in amounts.items()}


def _kept_of(amounts: Mapping[str, str], entries: Sequence[Any]) -> dict[str, str]:
    """As much of the amounts as is kept for it."""
    kept = {"cpus": Quantity(amount_of(entries, CPU)), "memory": Quantity(amount_of(entries, MEMORY), Format.BINARY_SI)}
    return {name: min(text, str(kept[name]), key=nano_of) for name, text in amounts.items()}


def _device(plug: Plug, address: str | None) -> dict[str, str]:
    pool, _, device = plug.device.rpartition("/")
    told = {"claim": plug.ref.name, "pool": pool, "device": device, "id": plug.id}
    return told if address is None else told | {"address": address}


def _written(
    store: Store, obj: Object, change: Callable[[Object], Object | None], write: Callable[[Object], Object]
) -> Object | None:
    """Change the object as it is now, until nobody else writes in between; None where there is nothing to change."""
    key = key_of(obj)
    try:
        for _ in range(_ATTEMPTS):
            try:
                now = store.get(KIND, namespace_of(obj), obj["metadata"]["name"])
                if now["metadata"]["uid"] != obj["metadata"]["uid"]:
                    return None
                after = change(now)
                return after if after is None or after is now else write(after)
            except NotFound:
                return None
            except Conflict:
                continue
    except StoreError as error:
        raise Failed("StoreUnavailable", f"VirtualMachine {key} cannot be read or written: {error}") from error
    raise Failed("StoreUnavailable", f"VirtualMachine {key} keeps changing; it is tried again")
