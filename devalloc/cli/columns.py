"""What a table says of each kind of object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from devalloc.api import meta
from devalloc.cli.output import Cell, Styled

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``wide`` ones show with -o wide only."""

    header: str
    cell: Callable[[Object], Cell]
    wide: bool = False


def header_and_rows(
    kind: str, objects: Sequence[Object], *, wide: bool, namespaces: bool
) -> tuple[list[str], list[Any]]:
    """Headers and rows for objects of one kind."""
    columns = [column for column in _COLUMNS.get(kind, _OTHER) if wide or not column.wide]
    if namespaces:
        columns = [Column("NAMESPACE", lambda obj: obj["metadata"].get("namespace", "")), *columns]
    return [column.header for column in columns], [[_cell(column, obj) for column in columns] for obj in objects]


def _cell(column: Column, obj: Object) -> Cell:
    try:
        return column.cell(obj)
    except (AttributeError, KeyError, TypeError):
        return Styled("(unreadable)", "red")  # another program wrote something that the API does not have


def devices_text(entries: Sequence[Object] | Object, *, limit: int | None = 4) -> str:
    """Allocation entries, or those of an AllocationResult, as "pool/device (memory 3Gi)", at most ``limit`` of them.

    A pool is named once for its run.
    """
    if isinstance(entries, Mapping):
        entries = [_entry(one) for one in entries.get("devices", {}).get("results", [])]
    shown = entries if limit is None or len(entries) <= limit else entries[: limit - 1]
    texts, last = [], None
    for entry in shown:
        pool = entry["devicePoolName"]
        amounts = ", ".join(f"{amount['name']} {amount['allocation']}" for amount in entry.get("allocations", []))
        name = entry["deviceName"] if pool == last else f"{pool}/{entry['deviceName']}"
        texts.append(f"{name} ({amounts})" if amounts else name)
        last = pool
    if len(shown) < len(entries):
        texts.append(f"{len(entries) - len(shown)} more")
    return ", ".join(texts)


def _entry(result: Object) -> Object:
    """A device of an AllocationResult in the form of an allocation entry."""
    amounts = [{"name": name, "allocation": amount} for name, amount in result.get("consumedCapacity", {}).items()]
    pool = f"{result['driver']}/{result['pool']}"
    return {"devicePoolName": pool, "deviceName": result["device"], "allocations": amounts}


def attribute(device_or_spec: Object, name: str) -> str:
    """The value of an attribute as text, "" where there is none."""
    for entry in device_or_spec.get("attributes", []):
        if entry["name"] == name:
            return next(str(value) for key, value in entry.items() if key != "name")
    return ""


def age(obj: Object) -> str:
    """How old the object is: 42s, 5m, 3h, 12d."""
    created = obj["metadata"].get("creationTimestamp")
    return elapsed(meta.parse_time(created)) if created else ""


def elapsed(since: datetime) -> str:
    """How long ago a moment was, as ages are written."""
    seconds = int((datetime.now(UTC) - since).total_seconds())
    for unit, size, limit in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172800)):
        if seconds < limit:
            return f"{max(seconds, 0) // size}{unit}"
    return f"{seconds // 86400}d"


def claim_state(claim: Object) -> Cell:
    """Allocated, Prepared (its node has bound the devices), Pending, Releasing or Deleting."""
    if claim["metadata"].get("deletionTimestamp"):
        return Styled("Deleting", "yellow")
    if _annotation(claim, meta.RELEASE):
        return Styled("Releasing", "yellow")
    if meta.NODE_FINALIZER in claim["metadata"].get("finalizers", []):
        return Styled("Prepared", "green")
    if claim.get("status", {}).get("allocations"):
        return Styled("Allocated", "green")
    return Styled("Pending", "yellow")


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _annotation(obj: Object, name: str) -> str:
    return str(obj["metadata"].get("annotations", {}).get(name, ""))


def _devices_or_reason(claim: Object) -> str:
    entries = claim.get("status", {}).get("allocations", [])
    return devices_text(entries) if entries else _annotation(claim, meta.REASON)


def _wanted(claim: Object) -> str:
    """What a claim asks for: "4 gpu, 1 vf"."""
    return ", ".join(_detail(entry) for entry in claim.get("spec", {}).get("claims", []))


def _detail(detail: Object) -> str:
    if detail.get("oneOf"):
        return " or ".join(_detail(alternative) for alternative in detail["oneOf"])
    what = detail.get("deviceClass") or detail.get("deviceType") or "any device"
    requests = dict(detail.get("requests", {}))
    count = requests.pop("count", None)
    amounts = " ".join(f"{amount} {name}" for name, amount in requests.items())
    if amounts and count is None:
        return f"{amounts} of {what}"
    return f"{count or 1} {what}" + (f" with {amounts}" if amounts else "")


_PHASES = {"Running": "green", "Failed": "red", "Unknown": "red", "Stopped": ""}


def machine_node(machine: Object) -> str:
    """The node of its spec, else the one that it was placed on."""
    return str(machine["spec"].get("nodeName") or machine.get("status", {}).get("nodeName") or "")


def machine_phase(machine: Object) -> Cell:
    """Its phase; Pending while no node has said anything of it."""
    phase = str(machine.get("status", {}).get("phase", "Pending"))
    style = _PHASES.get(phase, "yellow")
    return Styled(phase, style) if style else phase


def _amount(machine: Object, name: str) -> str:
    """What it has of what it is to have: "2/4"."""
    bounds = machine["spec"]["cpu" if name == "cpus" else name]
    wanted = str(bounds.get("use", bounds["min"]))
    observed = machine.get("status", {}).get("observed", {}).get(name)
    return wanted if observed is None or str(observed) == wanted else f"{observed}/{wanted}"


def _machine_devices(machine: Object) -> str:
    return str(len(machine.get("status", {}).get("devices", [])))


def _machine_status(machine: Object, name: str) -> str:
    return str(machine.get("status", {}).get(name, ""))


def _model(pool: Object) -> str:
    """The card's model: its virtual functions, which come later, often have another."""
    spec = pool.get("spec", {})
    models = [attribute(spec, "model"), *(attribute(device, "model") for device in spec.get("devices", []))]
    return next((model for model in models if model), "")


def _numas(pool: Object) -> str:
    spec = pool.get("spec", {})
    values = [attribute(spec, "numa"), *(attribute(device, "numa") for device in spec.get("devices", []))]
    return ",".join(dict.fromkeys(value for value in values if value))


def _resources(pool: Object) -> str:
    return " ".join(f"{entry['name']}={entry['capacity']}" for entry in pool.get("spec", {}).get("resources", []))


_COLUMNS = {
    "DevicePool": (
        Column("NAME", _name),
        Column("NODE", lambda pool: pool["spec"].get("nodeName") or "(network)"),
        Column("DRIVER", lambda pool: pool["spec"]["driver"]),
        Column("MODEL", _model),
        Column("NUMA", _numas),
        Column("DEVICES", lambda pool: str(len(pool["spec"].get("devices", [])))),
        Column("AVAILABLE", lambda pool: str(pool.get("status", {}).get("availableDevices", ""))),
        Column("RESOURCES", _resources, wide=True),
        Column("AGE", age),
    ),
    "DeviceClass": (
        Column("NAME", _name),
        Column("DRIVER", lambda cls: cls.get("spec", {}).get("driver", "")),
        Column("TYPE", lambda cls: cls.get("spec", {}).get("deviceType", "")),
        Column("CONSTRAINTS", lambda cls: cls.get("spec", {}).get("constraints", "")),
        Column("ADMIN", lambda cls: "yes" if cls.get("spec", {}).get("adminAccess") else "", wide=True),
        Column("AGE", age),
    ),
    "DeviceClaim": (
        Column("NAME", _name),
        Column("STATE", claim_state),
        Column("WANTS", _wanted),
        Column("NODE", lambda claim: _annotation(claim, meta.ALLOCATED_NODE)),
        Column("DEVICES, OR WHY NOT", _devices_or_reason),
        Column("GROUP", lambda claim: _annotation(claim, meta.GROUP), wide=True),
        Column("PRIORITY", lambda claim: _annotation(claim, meta.PRIORITY), wide=True),
        Column("AGE", age),
        Column("MESSAGE", lambda claim: _annotation(claim, meta.MESSAGE), wide=True),
    ),
    "VirtualMachine": (
        Column("NAME", _name),
        Column("PHASE", machine_phase),
        Column("NODE", machine_node),
        Column("CPUS", lambda machine: _amount(machine, "cpus")),
        Column("MEMORY", lambda machine: _amount(machine, "memory")),
        Column("CLAIMS", lambda machine: ", ".join(machine["spec"].get("claims", []))),
        Column("DEVICES", _machine_devices),
        Column("REASON", lambda machine: _machine_status(machine, "reason")),
        Column("AGE", age),
        Column("PID", lambda machine: _machine_status(machine, "pid"), wide=True),
        Column("MESSAGE", lambda machine: _machine_status(machine, "message"), wide=True),
    ),
}
_OTHER = (Column("NAME", _name), Column("AGE", age))
