"""What is held now: devices by claims of both dialects, CPUs and memory by machines. Malformed parts are left out."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.host_pool_names import CPU
from devalloc.api.machine_reservation import booked_entries, parse_nano, sum_memory_nano, sum_nano
from devalloc.api.moved_claims import claim_users, moved_claims_among
from devalloc.api.quantity import NANO
from devalloc.api.views import ClaimKey, ClaimView, MachineKey, MachineView, ObjectView, as_mapping, as_mappings
from devalloc.store import Object

KINDS = ("DeviceClaim", "VirtualMachine")
OPTIONAL_KINDS = ("ResourceClaim",)
"""Kinds that an embedded store or a cluster may lack."""
MAX_USERS = 3
"""Users of a claim that are named; the rest is counted."""
_RUNNING = ("Starting", "Running", "Paused", "Stopping", "Unknown")
_ALLOCATED = "Allocated"
"""The condition of a DeviceClaim on a cluster whose time is that of the allocation."""


@dataclass(frozen=True, slots=True, order=True)
class UsageKey:
    """By what is counted."""

    kind: str
    """``DeviceClaim``, ``ResourceClaim``, or ``VirtualMachine`` for CPUs and memory."""
    namespace: str
    machine: str
    """The machine or pod that uses the claim; several with commas between them; empty if none does."""
    device_class: str
    device: str
    """``pool/device``, with the driver before it for a ResourceClaim; empty for CPUs and memory."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What is held, unchanged, for a time."""

    id: str
    """The same for as long as nothing of it changes."""
    base: str
    """The same also if another machine uses it, or a machine has other amounts."""
    key: UsageKey
    since: int | None
    """When it began, in milliseconds since 1970, if an object says so."""
    is_share: bool = False
    """Others may hold parts of the same device."""
    cpu: int = 0
    """Thousandths of a CPU."""
    memory: int = 0
    """Bytes."""


def holdings_of(objects: Iterable[Object]) -> dict[str, Holding]:
    """All that is held, by id."""
    by_kind: dict[str, list[Object]] = defaultdict(list)
    for obj in objects:
        by_kind[obj["kind"]].append(obj)
    machines = by_kind["VirtualMachine"]
    users = claim_users(machines)
    moved = moved_claims_among([*by_kind["DeviceClaim"], *machines])  # of the same id as when the claim has them
    held = (
        *(each for claim in (*by_kind["DeviceClaim"], *moved) for each in _of_device_claim(claim, users)),
        *(each for claim in by_kind["ResourceClaim"] for each in _of_resource_claim(claim)),
        *(each for machine in machines for each in _of_machine(machine)),
    )
    return {each.id: each for each in held}


def _of_device_claim(claim: Object, users: Mapping[ClaimKey, list[MachineKey]]) -> Iterator[Holding]:
    view = ClaimView(claim)
    if view.is_unsettled and not view.is_held:
        return  # it may still be taken back
    entries = as_mappings(view.entries)
    classes = _classes(claim, len(entries))
    admin = _json(claim, meta.ADMIN_CLASSES)
    admins = frozenset(each for each in admin if isinstance(each, str)) if isinstance(admin, list) else frozenset()
    named = view.status.get("podNames")
    machine = _names([*named] if isinstance(named, list) and named else [name for _, name in users.get(view.key, ())])
    since = next((_milliseconds(each.get("lastTransitionTime")) for each in _conditions(claim)), None)
    for number, (entry, device_class) in enumerate(zip(entries, classes, strict=True)):
        pool, device = entry.get("devicePoolName"), entry.get("deviceName")
        if not isinstance(pool, str) or not isinstance(device, str) or device_class in admins:
            continue
        key = UsageKey("DeviceClaim", view.key[0], machine, device_class, f"{pool}/{device}")
        yield Holding(_id(claim, number, key), _base(claim, number, key), key, since, bool(entry.get("allocations")))


def _conditions(claim: Object) -> list[dict[str, Any]]:
    conditions = as_mappings(ObjectView(claim).status.get("conditions"))
    return [each for each in conditions if each.get("type") == _ALLOCATED and each.get("status") == "True"]


def _classes(claim: Object, count: int) -> list[str]:
    """The class that each entry was allocated through; empty if none is named or known."""
    labels = _json(claim, meta.ALLOCATION_DETAILS)
    recorded = _json(claim, meta.ALLOCATED_SPEC)
    spec = recorded if isinstance(recorded, dict) else as_mapping(claim.get("spec"))
    details = as_mappings(spec.get("claims"))
    if not isinstance(labels, list) or len(labels) != count:
        labels = ["0"] * count if len(details) == 1 and not details[0].get("oneOf") else [""] * count
    return [_class_of(details, label) for label in labels]


def _class_of(details: list[dict[str, Any]], label: object) -> str:
    index, _, alternative = label.partition(".") if isinstance(label, str) else ("", "", "")
    try:
        detail = details[int(index)]
        chosen = as_mappings(detail.get("oneOf"))[int(alternative)] if alternative else detail
    except (ValueError, IndexError):
        return ""
    name = chosen.get("deviceClass") or chosen.get("deviceType")
    return name if isinstance(name, str) else ""


def _of_resource_claim(claim: Object) -> Iterator[Holding]:
    view = ObjectView(claim)
    allocation = as_mapping(view.status.get("allocation"))
    results = as_mappings(as_mapping(allocation.get("devices")).get("results"))
    requests = as_mappings(as_mapping(view.spec.get("devices")).get("requests"))
    pods = [each.get("name") for each in as_mappings(view.status.get("reservedFor"))]
    since = _milliseconds(allocation.get("allocationTimestamp"))
    for number, result in enumerate(results):
        pool, device = result.get("pool"), result.get("device")
        if not isinstance(pool, str) or not isinstance(device, str) or result.get("adminAccess") is True:
            continue
        device_class = _requested_class(requests, result.get("request"))
        driver = result.get("driver")  # pools of different drivers may have the same name
        name = f"{driver}/{pool}/{device}" if isinstance(driver, str) else f"{pool}/{device}"
        key = UsageKey("ResourceClaim", view.key[0], _names(pods), device_class, name)
        yield Holding(_id(claim, number, key), _base(claim, number, key), key, since, bool(result.get("shareID")))


def _requested_class(requests: list[dict[str, Any]], name: object) -> str:
    first, _, second = name.partition("/") if isinstance(name, str) else ("", "", "")
    request = next((each for each in requests if each.get("name") == first), {})
    if second:
        request = next((each for each in as_mappings(request.get("firstAvailable")) if each.get("name") == second), {})
    else:
        request = as_mapping(request.get("exactly"))
    device_class = request.get("deviceClassName")
    return device_class if isinstance(device_class, str) else ""


def _of_machine(machine: Object) -> Iterator[Holding]:
    view = ObjectView(machine)
    if view.status.get("phase") not in _RUNNING:
        return
    amounts = as_mapping(view.status.get("observed")) or as_mapping(view.status.get("applied"))
    cpu, memory = parse_nano(amounts.get("cpus")) * 1000 // NANO, parse_nano(amounts.get("memory")) // NANO
    if cpu <= 0 and memory <= 0:
        return
    key = UsageKey("VirtualMachine", view.key[0], view.key[1], "", "")
    run = view.status.get("machineID", "")
    base = f"{_base(machine, 0, key)} {run}"
    yield Holding(f"{base} {cpu} {memory}", base, key, None, cpu=max(0, cpu), memory=max(0, memory))
    if booked := booked_entries(machine):  # what it has on the node to which it is moving
        base = f"{_base(machine, 1, key)} {MachineView(machine).migration_state.get('migrationUID', '')}"
        cpu, memory = sum_nano(booked, CPU) * 1000 // NANO, sum_memory_nano(booked) // NANO
        yield Holding(f"{base} {cpu} {memory}", base, key, None, cpu=max(0, cpu), memory=max(0, memory))


def _names(names: Iterable[object]) -> str:
    texts = sorted(name for name in names if isinstance(name, str))
    more = len(texts) - MAX_USERS
    return ",".join(texts[:MAX_USERS]) + (f",+{more}" if more > 0 else "")


def _id(obj: Object, number: int, key: UsageKey) -> str:
    return f"{_base(obj, number, key)} {key.machine} {key.device_class}"


def _base(obj: Object, number: int, key: UsageKey) -> str:
    return f"{obj['metadata'].get('uid', '')} {number} {key.device}"


def _json(claim: Object, annotation: str) -> Any:
    try:
        return json.loads(ObjectView(claim).annotation(annotation) or "null")
    except (ValueError, RecursionError):
        return None


def _milliseconds(text: object) -> int | None:
    try:
        return round(meta.parse_time(text).timestamp() * 1000) if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None
