"""Read and write VirtualMachine objects: which node has them, and their status.

A node *takes* an object (it adds the finalizer ``devalloc.io/node`` and its own name) before it does anything for it,
and releases the object when nothing of it is left on the node. So a deleted object stays until its machine is gone,
and a machine that moves to another node starts there only after it ended here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from devalloc.api import meta, views
from devalloc.api.fencing import fenced_from, without_holder
from devalloc.api.host_pool_names import CPU
from devalloc.api.machine_location import LIVE_MIGRATABLE, NODE_CONDITIONS
from devalloc.api.machine_reservation import FITS, STARTABLE, missing_amounts, parse_nano, sum_memory_nano, sum_nano
from devalloc.api.machine_reservation import reserved_entries as reserved
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.api.virtual_machine import VirtualMachine, VirtualMachineSpec
from devalloc.store import Conflict, NotFound, Object, Store, StoreError
from devalloc_machines.qemu.pci import function_id
from devalloc_machines.qemu.records import MachineAmounts, MachineView
from devalloc_machines.vms.readiness import replaced_condition, with_readiness
from devalloc_node.errors import Failed, NodeError
from devalloc_node.model.step import PluggedDevice

BUSY_SECONDS = 5.0
"""The pause before what others hold is asked for again: there is no event when they release it."""
_BUSY = frozenset(
    {"Busy", "ClaimBusy", "CopyUnfinished", "DiskInUse", "LockUnavailable", "MachineBusy", "SharedBusy", "TapInUse"}
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is in the way of the object's wish; empty when nothing is."""

    reason: str = ""
    message: str = ""
    after: float | None = None
    """Seconds until it is worth trying again though nothing changed; None: as often as the loop likes."""
    at_rest: bool = False
    """Nothing of the machine runs, and it is not started again as things are."""
    is_unchanged: Callable[[], bool] | None = None
    """Whether what it waits for on the host, without an event, is as it was when it was tried; None: it waits for
    nothing like that. Does not raise, and may take its time."""
    refused: Mapping[str, Any] | None = None
    """The condition ``Startable`` of a machine that cannot start, and for which nothing is reserved because of that."""
    written: Mapping[str, Any] | None = None
    """This node's part of the status (``own_status``) after it was written; None: nothing was to be written."""


def retry_delay(error: NodeError) -> float | None:
    """As ``Outcome.after``."""
    return BUSY_SECONDS if error.code in _BUSY else None


KIND = "VirtualMachine"
IDENTITY = f"identity/{KIND}"
"""A setting of the journal: the identity of the store that the objects of this node's machines come from."""
_ATTEMPTS = 20
_MAX_WORDS = 2048
_PRESERVED = ("conditions", "runnerPod", "nodeName", "numaNode", "allocations", "migrationState", "movedClaims")
"""Parts of the status that others write."""
_RESERVED = ("numaNode", "allocations")
"""What the allocator has kept for a machine; this node gives it back when nothing of the machine runs."""


def key_of(obj: Object) -> str:
    """``namespace/name``"""
    return f"{namespace_of(obj)}/{obj['metadata']['name']}"


def namespace_of(obj: Object) -> str:
    return obj["metadata"].get("namespace") or "default"


def reference(key: str, uid: str) -> Object:
    """What is known of an object that is not there: how it is, or was, called."""
    namespace, _, name = key.partition("/")
    return {"kind": KIND, "metadata": {"namespace": namespace, "name": name, "uid": uid}}


def reserved_entries(obj: Object, node_name: str) -> list[Any]:
    """The entries of what this node reserves for it; empty if it reserves nothing."""
    return reserved(obj) if (obj.get("status") or {}).get("nodeName") == node_name else []


def is_admitted(obj: Object, node_name: str, spec: VirtualMachineSpec) -> bool:
    """Whether this node reserves for it what it needs."""
    entries = reserved_entries(obj, node_name)
    return bool(entries) and not missing_amounts(spec, entries) and not views.MachineView(obj).is_unsettled


def why_not_admitted(obj: Object) -> str:
    """What the allocator says of it."""
    conditions = (obj.get("status") or {}).get("conditions")
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, dict) and one.get("type") in ("Placed", FITS) and one.get("status") == "False":
            return str(one.get("message") or one.get("reason") or "no reason is given")
    answered = "reserved more for" if (obj.get("status") or {}).get("allocations") else "placed"
    return f"no controller has {answered} it yet: is `devalloc up`, or on a cluster the controller, running?"


def why_not_begun(obj: Object, node_name: str) -> str:
    """Why a node has no machine of an object, as the end of a sentence."""
    view = views.MachineView(obj)
    if node_name not in (view.node, view.holder):
        where = f"is on node {view.node}" if view.node else "has no node yet"
        return f"not found on node {node_name}: it {where}"
    reason = ": ".join(filter(None, views.machine_reason(obj)))
    return f"has not started{': ' if reason else ''}{reason}"


def announce_amounts(
    store: Store, obj: Object, node_name: str, spec: VirtualMachineSpec, amounts: MachineAmounts
) -> bool:
    """Write what the machine is about to get, so that it counts from now on; raises Failed.

    False if nothing was written, because this node does not reserve as much for it any more as the spec asks for.
    """
    admitted = False

    def updated(now: Object) -> Object | None:
        nonlocal admitted
        admitted = is_admitted(now, node_name, spec)
        before = now.get("status") or {}
        status = {**before, "applied": _most(before.get("applied"), _amounts(amounts))}
        return {**now, "status": status} if admitted and status != before else now

    return update_with_retry(store, obj, updated, store.replace_status) is not None and admitted


def holder_of(obj: Object) -> str | None:
    """The node that holds it; None if no node does. If the name was removed, that of its spec."""
    return views.MachineView(obj).holder or None


def must_leave(obj: Object, node_name: str) -> bool:
    """Whether nothing of it may run on this node, but what it keeps there stays: it was evicted from here, or has left
    and waits for a node."""
    view = views.MachineView(obj)
    has_left = view.node is None and view.annotation(meta.LAST_NODE) == node_name
    return view.must_leave(node_name) or has_left


def release_object(store: Store, obj: Object, node_name: str) -> None:
    """Write that this node has nothing of the object any more. Raises Failed."""

    def free(now: Object) -> Object | None:
        return without_holder(now) if holder_of(now) == node_name else None

    update_with_retry(store, obj, free, store.replace)


def was_taken_away(obj: Mapping[str, Any], node_name: str) -> bool:
    """Whether the object was taken away from this node, which was fenced, and what is left of it here is not ended."""
    return node_name in fenced_from(obj)


def write_status(
    store: Store,
    obj: Object,
    status: Mapping[str, Any],
    *,
    at_rest: bool = False,
    uses: Mapping[str, str] | None = None,
    ready: Mapping[str, str] | None = None,
    movable: Mapping[str, Any] | None = None,
    refused: Mapping[str, Any] | None = None,
) -> Mapping[str, Any] | None:
    """Write the status of the machine, if it differs from what is there; this node's part of it then, or None if the
    object is gone. Raises Failed.

    ``at_rest``: nothing of it runs here, and is not about to; what is kept for it is given back with the same write.
    ``uses``: what it has, if no agent scales it that would give back the rest of its permit: that is done then.
    ``ready``, ``movable``: as ``readiness`` and ``migratability`` say. ``refused``: as of ``Outcome``.
    """
    generation = obj["metadata"].get("generation")

    def updated(now: Object) -> Object | None:
        before = now.get("status") or {}
        preserved = [name for name in _PRESERVED if name in before and not (at_rest and name in _RESERVED)]
        after = {**status, **{name: before[name] for name in preserved}}
        conditions = with_readiness(before, status.get("machineID", ""), ready, generation)
        conditions = replaced_condition(conditions, LIVE_MIGRATABLE, movable, generation)
        conditions = replaced_condition(conditions, STARTABLE, refused, generation)
        if conditions != list(views.as_mappings(before.get("conditions"))):
            after["conditions"] = conditions
        reported = after.get("permitted", {}).get("givenBy")  # by the agent, of another program's server
        if _is_permitted_run(before, status) and before["permitted"]["givenBy"] != reported:
            after["permitted"] = before["permitted"] if uses is None else _returned_permit(before["permitted"], uses)
        elif "permitted" in after and reported is None and "allocations" in after:
            after["permitted"] = _reserved_part(after["permitted"], reserved(now))
        return now if after == before else {**now, "status": after}

    stored = update_with_retry(store, obj, updated, store.replace_status)
    return None if stored is None else own_status(stored)


def own_status(obj: Object) -> dict[str, Any]:
    """The part of its status that only its node writes."""
    status = obj.get("status") or {}
    own = {name: value for name, value in status.items() if name not in (*_PRESERVED, "permitted")}
    conditions = [one for one in views.as_mappings(status.get("conditions")) if one.get("type") in NODE_CONDITIONS]
    return {**own, "conditions": conditions}


def write_ready(store: Store, obj: Object, node_name: str, run: str, ready: Mapping[str, str]) -> None:
    """Write that condition alone, as ``readiness`` says it of this run, as long as this node holds the machine. Raises
    Failed."""

    def updated(now: Object) -> Object | None:
        before = now.get("status") or {}
        if holder_of(now) != node_name or before.get("machineID") != run:
            return None
        conditions = with_readiness(before, run, ready, obj["metadata"].get("generation"))
        is_same = conditions == list(views.as_mappings(before.get("conditions")))
        return now if is_same else {**now, "status": {**before, "conditions": conditions}}

    update_with_retry(store, obj, updated, store.replace_status)


def status_of(
    vm: VirtualMachine | None,
    machine: MachineView | None,
    plugs: Iterable[PluggedDevice],
    reason: str,
    message: str,
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The status for an object; without what is not known. ``addresses``: where its guest finds its devices, by id."""
    status: dict[str, Any] = {"phase": "Pending" if machine is None or machine.is_paused else machine.shown_phase}
    if vm is not None:
        wanted = {"cpus": str(vm.spec.cpu.wanted), "memory": str(vm.spec.memory.wanted)}
        # Unless a permit server says otherwise, only its own bounds limit it.
        status |= {"wanted": wanted, "permitted": wanted}
    if machine is not None:
        if machine.runs and machine.started is not None and (cells := machine.started.numa_cells):
            status["numaNodes"] = [
                {"hostNode": cell.host_node, **_amounts(MachineAmounts(cell.cpus, None, cell.memory))} for cell in cells
            ]
        if machine.runs:
            status |= {name: amounts for name, amounts in _reported_amounts(machine) if amounts}
        status |= {"pid": machine.pid} if machine.pid else {}
        status |= {"machineID": machine.id} if machine.id else {}
        status |= _history(machine)
        status |= {"networkAddress": machine.network_address} if machine.network_address else {}
    devices = (
        [_device(plug, addresses.get(function_id(plug.name, 0))) for plug in plugs]
        if machine is not None and machine.runs
        else []
    )
    status |= {"devices": devices} if devices else {}
    status |= {"reason": reason[:253]} if reason else {}
    status |= {"message": message[:4096]} if message else {}
    return status


def _history(machine: MachineView) -> dict[str, Any]:
    """When its run began, how often it was started again, and how it last ended."""
    history: dict[str, Any] = {}
    if machine.began is not None:
        history["startTime"] = _rfc3339(machine.began)
    if machine.restarts:
        history["restarts"] = machine.restarts
    if (end := machine.last_end) is not None:
        parts = {"exitCode": end.code, "signal": end.signal, "message": end.words[:_MAX_WORDS] or None}
        present = {name: value for name, value in parts.items() if value is not None}
        history["lastEnd"] = {"time": _rfc3339(end.at), **present}
    return history


def _rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def status_of_scaling(wanted: MachineAmounts, guest: MachineAmounts | None) -> dict[str, Any]:
    """What differs in the status of a machine that is scaled by its load. ``guest``: what its guest says it has."""
    status = {"wanted": _amounts(wanted)}
    return status if guest is None else status | {"guestObserved": _amounts(guest)}


def permit_by(server: str, amounts: MachineAmounts, run: str) -> dict[str, str]:
    """``status.permitted`` of a machine whose agent asks another program's permit server, which is at this URL."""
    return {**_amounts(amounts), "givenBy": server, "machineID": run}


def runner_pod(obj: Object) -> str:
    """The name of the pod that its status names as its runner, in its own namespace; empty without one."""
    pod = (obj.get("status") or {}).get("runnerPod")
    return pod if isinstance(pod, str) and "/" not in pod else ""


def permitted_on(store: Store, node_name: str) -> dict[str, MachineAmounts]:
    """What a server of permits has given to machines of a node, by their keys. Raises Failed."""
    try:
        listed = store.list([KIND]).objects
    except StoreError as error:
        raise Failed("StoreUnavailable", f"cannot read the permits of machines: {error}") from error
    permitted = {}
    for obj in listed:
        status = obj.get("status") or {}
        if _is_permitted_run(status, status) and node_name in (holder_of(obj), views.MachineView(obj).node):
            permit, kept_amounts = status["permitted"], status["permitted"].get("kept")
            both = [permit, kept_amounts] if isinstance(kept_amounts, dict) else [permit]
            cpus, memory = (max(parse_nano(amounts.get(name)) for amounts in both) for name in ("cpus", "memory"))
            permitted[key_of(obj)] = MachineAmounts(-(-cpus * 1000 // NANO), None, -(-memory // NANO))
    return permitted


def permit_of(obj: Object, run: str) -> MachineAmounts | None:
    """What a permit server has given to this run of the machine; None if none has."""
    status = obj.get("status") or {}
    if not _is_permitted_run(status, {"machineID": run}):
        return None
    cpus, memory = (parse_nano(status["permitted"].get(name)) for name in ("cpus", "memory"))
    return MachineAmounts(cpus * 1000 // NANO, None, memory // NANO)


def in_use(machine: MachineView) -> dict[str, str]:
    """What it has, or what QEMU was asked to give it: the larger of each amount that is known."""
    return _most(_amounts(machine.observed), _amounts(machine.applied.usable))


def _returned_permit(permit: Mapping[str, Any], uses: Mapping[str, str]) -> dict[str, Any]:
    """The permit without what is not in use."""
    given = {name: permit[name] for name in permit if name != "kept"}
    return given | {name: min(text, str(given.get(name, text)), key=parse_nano) for name, text in uses.items()}


def _is_permitted_run(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a server of permits has given one to this run of the machine: it alone changes it."""
    permit = before.get("permitted")
    if not isinstance(permit, dict) or not permit.get("givenBy"):
        return False
    return permit.get("machineID", "") in ("", now.get("machineID", ""))


def _reported_amounts(machine: MachineView) -> list[tuple[str, dict[str, str]]]:
    return [("applied", _amounts(machine.applied.usable)), ("observed", _amounts(machine.observed))]


def _amounts(of: MachineAmounts) -> dict[str, str]:
    amounts = {}
    if of.cpu_milli is not None:
        amounts["cpus"] = str(Quantity(of.cpu_milli * (NANO // 1000)))
    elif of.vcpus is not None:
        amounts["cpus"] = str(of.vcpus)
    if of.memory_bytes is not None:
        amounts["memory"] = str(Quantity(of.memory_bytes * NANO, Format.BINARY_SI))
    return amounts


def _most(before: object, amounts: Mapping[str, str]) -> dict[str, str]:
    """The larger of each."""
    previous = before if isinstance(before, dict) else {}
    return {name: max(text, str(previous.get(name, text)), key=parse_nano) for name, text in amounts.items()}


def _reserved_part(amounts: Mapping[str, str], entries: Sequence[Any]) -> dict[str, str]:
    """As much of the amounts as is kept for it."""
    limits = {"cpus": Quantity(sum_nano(entries, CPU)), "memory": Quantity(sum_memory_nano(entries), Format.BINARY_SI)}
    return {name: min(text, str(limits[name]), key=parse_nano) for name, text in amounts.items()}


def _device(plug: PluggedDevice, address: str | None) -> dict[str, str]:
    pool, _, device = plug.device.rpartition("/")
    entry = {"claim": plug.ref.name, "pool": pool, "device": device, "id": function_id(plug.name, 0)}
    return entry if address is None else entry | {"address": address}


def read_again(store: Store, kind: str, key: str, uid: str | None = None) -> Object | None:
    """An object as the store has it now, by its ``namespace/name``; None if it is gone, or if an object with another
    UID has its name. ``uid``: None accepts any. Raises StoreError."""
    namespace, _, name = key.partition("/")
    try:
        now = store.get(kind, namespace, name)
    except NotFound:
        return None
    return now if uid in (None, now["metadata"]["uid"]) else None


def update_with_retry(
    store: Store, obj: Object, change: Callable[[Object], Object | None], write: Callable[[Object], Object]
) -> Object | None:
    """Change the object as the store has it now, again if another writer came in between. None if it is gone, if
    another object has its name, or if ``change`` returns None. Raises Failed."""
    key = key_of(obj)
    try:
        for _ in range(_ATTEMPTS):
            try:
                now = store.get(obj["kind"], namespace_of(obj), obj["metadata"]["name"])
                if now["metadata"]["uid"] != obj["metadata"]["uid"]:
                    return None
                after = change(now)
                return after if after is None or after is now else write(after)
            except NotFound:
                return None
            except Conflict:
                continue
    except StoreError as error:
        raise Failed("StoreUnavailable", f"cannot read or write {obj['kind']} {key}: {error}") from error
    raise Failed("StoreUnavailable", f"{obj['kind']} {key} keeps changing; trying again")
