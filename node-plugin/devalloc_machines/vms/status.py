"""The status of a machine, as its node writes it into its object.

Its conditions are ``Ready``, whether it runs and, with ``guestReports``, its guest says that it is ready, and
``LiveMigratable``, whether a machine that runs could move to another node now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from devalloc.api import views
from devalloc.api.conditions import READY, find_condition, with_condition, without_conditions
from devalloc.api.host_pool_names import CPU
from devalloc.api.machine_location import LIVE_MIGRATABLE, NODE_CONDITIONS
from devalloc.api.machine_reservation import STARTABLE, parse_nano, sum_memory_nano, sum_nano
from devalloc.api.machine_reservation import reserved_entries as reserved
from devalloc.api.quantity import NANO, Format, Quantity
from devalloc.api.serving import served_conditions
from devalloc.api.virtual_machine import VirtualMachine, VirtualMachineSpec
from devalloc.store import Object, Store, StoreError
from devalloc_machines.qemu.pci import function_id
from devalloc_machines.qemu.records import MachineAmounts, MachineView, State
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms.guest_reports import GuestReports
from devalloc_machines.vms.objects import KIND, holder_of, is_admitted, key_of, update_with_retry
from devalloc_machines.vms.situation import Situation, pending_changes
from devalloc_node.errors import Failed
from devalloc_node.model.step import PluggedDevice

_MAX_WORDS = 2048
_PRESERVED = ("conditions", "runnerPod", "nodeName", "numaNode", "allocations", "migrationState", "movedClaims")
"""Parts of the status that others write."""
_RESERVED = ("numaNode", "allocations")
"""What the allocator has kept for a machine; this node gives it back when nothing of the machine runs."""
NOT_REPORTED = "GuestNotReported"
NOT_RUNNING = "MachineNotRunning"
_MAX_MESSAGE = 4096
_OF_STATUS = {
    "ready": ("True", "GuestReady", "its guest reports that it is ready"),
    "not-ready": ("False", "GuestUnready", "its guest reports that it is not ready"),
    "finished": ("False", "GuestFinished", "its guest reports that it has finished"),
}


def readiness(
    vm: VirtualMachine | None,
    machine: MachineView | None,
    reports: GuestReports | None,
    why: tuple[str, str] = ("", ""),
) -> Mapping[str, str] | None:
    """Status, reason and message of the condition; None for a machine that is stopped on request and whose guest
    does not report, and for one that cannot be read. ``why``: the code and message of why it does not run."""
    if vm is None:
        return None
    if not vm.spec.guest_reports:
        return _readiness_by_phase(vm, machine, why)
    if machine is None or not machine.runs:
        return _condition("False", NOT_RUNNING, "it does not run")
    report = None if reports is None else reports.report(machine.key, machine.id)
    if report is None or report.status is None:
        return _condition("False", NOT_REPORTED, "its guest has reported nothing yet")
    status, reason, text = _OF_STATUS[report.status]
    return _condition(status, reason, f"{text}: {report.message}" if report.message else text)


def _readiness_by_phase(
    vm: VirtualMachine, machine: MachineView | None, why: tuple[str, str]
) -> Mapping[str, str] | None:
    if machine is not None and machine.is_active and not machine.stands_still:
        return _condition("True", "MachineRunning", "it runs")
    if not (vm.spec.running or (machine is not None and machine.runs)):
        return None
    own = ("", "") if machine is None else (machine.reason, machine.message)
    reason, message = why if why[0] else own
    return _condition("False", reason or NOT_RUNNING, message or "it does not run")


def migratability(
    operations: MachineOperations, now: Situation, machine: MachineView | None
) -> Mapping[str, Any] | None:
    """Status, reason and message of LiveMigratable, or as it was, if it is not known what keeps the machine here; None
    for one that does not run."""
    if machine is None or not machine.runs or machine.state is State.STOPPING:
        return None
    obstacle = operations.machines.why_not_movable(machine.key) if machine.is_active else None
    if obstacle is None:
        return views.MachineView(now.obj).condition(LIVE_MIGRATABLE) or None
    # The other node would start it with the changes of its spec that wait for a restart.
    pending = [] if now.vm is None else pending_changes(now.vm, machine)
    if why := obstacle or "; ".join(one.message for one in pending):
        return _condition("False", "MachineNotMovable", why[:_MAX_MESSAGE], LIVE_MIGRATABLE)
    return _condition("True", "Movable", "it can move to another node", LIVE_MIGRATABLE)


def _condition(status: str, reason: str, message: str, kind: str = READY) -> Mapping[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def finished_message(obj: Object, run: str) -> str | None:
    """With which message the guest of that run has finished, as the object says; None if it does not say so."""
    status = views.as_mapping(obj.get("status"))
    ready = find_condition(served_conditions(status.get("conditions")), READY)
    if not run or status.get("machineID") != run or ready.get("reason") != "GuestFinished":
        return None
    return str(ready.get("message") or "").removeprefix(_OF_STATUS["finished"][2]).removeprefix(": ")


def with_readiness(
    before: Mapping[str, Any],
    run: str,
    ready: Mapping[str, str] | None,
    generation: object = None,
) -> list[Any]:
    """The conditions of a status with this one in place of its own; ``run``: of the machine now.

    A guest that has reported nothing to this plugin may have done so to the one before it: what was written about the
    same run stays. What the controller wrote while no plugin ran here goes.
    """
    conditions = served_conditions(list(views.as_mappings(before.get("conditions"))))
    old = find_condition(conditions, READY)
    is_of_run = before.get("machineID") == run and old and old.get("reason") != NOT_RUNNING
    if is_of_run and ready is not None and ready["reason"] == NOT_REPORTED:
        return conditions
    return replaced_condition(conditions, READY, ready, generation)


def replaced_condition(
    conditions: list[Any],
    name: str,
    new: Mapping[str, Any] | None,
    generation: object = None,
    now: datetime | None = None,
) -> list[Any]:
    """Conditions with a new one of its type, or (None) without."""
    if new is None:
        return without_conditions(conditions, [name])
    at = (now or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return with_condition(conditions, name, (new["status"], new["reason"], new["message"]), at, generation)


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
    status: dict[str, Any] = {
        "phase": "Pending" if machine is None or machine.state is State.CUT_OFF else machine.shown_phase
    }
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


def in_use(machine: MachineView) -> dict[str, str]:
    """What it has, or what QEMU was asked to give it: the larger of each amount that is known."""
    return _most(_amounts(machine.observed), _amounts(machine.applied.usable))


def _returned_permit(permit: Mapping[str, Any], uses: Mapping[str, str]) -> dict[str, Any]:
    """The permit without what is not in use."""
    given = {name: permit[name] for name in permit if name != "kept"}
    return given | {name: min(text, str(given.get(name, text)), key=parse_nano) for name, text in uses.items()}


def _reported_amounts(machine: MachineView) -> list[tuple[str, dict[str, str]]]:
    return [("applied", _amounts(machine.applied.usable)), ("observed", _amounts(machine.observed))]


def _reserved_part(amounts: Mapping[str, str], entries: Sequence[Any]) -> dict[str, str]:
    """As much of the amounts as is kept for it."""
    limits = {"cpus": Quantity(sum_nano(entries, CPU)), "memory": Quantity(sum_memory_nano(entries), Format.BINARY_SI)}
    return {name: min(text, str(limits[name]), key=parse_nano) for name, text in amounts.items()}


def _device(plug: PluggedDevice, address: str | None) -> dict[str, str]:
    pool, _, device = plug.device.rpartition("/")
    entry = {"claim": plug.ref.name, "pool": pool, "device": device, "id": function_id(plug.name, 0)}
    return entry if address is None else entry | {"address": address}


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


def _is_permitted_run(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a server of permits has given one to this run of the machine: it alone changes it."""
    permit = before.get("permitted")
    if not isinstance(permit, dict) or not permit.get("givenBy"):
        return False
    return permit.get("machineID", "") in ("", now.get("machineID", ""))


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
