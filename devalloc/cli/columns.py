"""What a table says of each kind of object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from devalloc.api import meta
from devalloc.api.inwords import (
    annotation,
    claim_state,
    devices_text,
    machine_amount,
    machine_node,
    machine_phase,
    pool_model,
    pool_numas,
    wanted,
)
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
    except (AttributeError, KeyError, TypeError, ValueError):
        return Styled("(unreadable)", "red")  # another program wrote something that the API does not have


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


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _devices_or_reason(claim: Object) -> str:
    entries = claim.get("status", {}).get("allocations", [])
    return devices_text(entries) if entries else annotation(claim, meta.REASON)


_STATES = {"Allocated": "green", "Prepared": "green"}
_PHASES = {"Running": "green", "Failed": "red", "Unknown": "red", "Stopped": ""}


def state_cell(claim: Object) -> Cell:
    """The state of a claim, with its colour."""
    state = claim_state(claim)
    return Styled(state, _STATES.get(state, "yellow"))


def phase_cell(machine: Object) -> Cell:
    """The phase of a machine, with its colour."""
    phase = machine_phase(machine)
    style = _PHASES.get(phase, "yellow")
    return Styled(phase, style) if style else phase


def _machine_devices(machine: Object) -> str:
    return str(len(machine.get("status", {}).get("devices", [])))


def _machine_status(machine: Object, name: str) -> str:
    return str(machine.get("status", {}).get(name, ""))


def _resources(pool: Object) -> str:
    return " ".join(f"{entry['name']}={entry['capacity']}" for entry in pool.get("spec", {}).get("resources", []))


_COLUMNS = {
    "DevicePool": (
        Column("NAME", _name),
        Column("NODE", lambda pool: pool["spec"].get("nodeName") or "(network)"),
        Column("DRIVER", lambda pool: pool["spec"]["driver"]),
        Column("MODEL", pool_model),
        Column("NUMA", pool_numas),
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
        Column("STATE", state_cell),
        Column("WANTS", wanted),
        Column("NODE", lambda claim: annotation(claim, meta.ALLOCATED_NODE)),
        Column("DEVICES, OR WHY NOT", _devices_or_reason),
        Column("GROUP", lambda claim: annotation(claim, meta.GROUP), wide=True),
        Column("PRIORITY", lambda claim: annotation(claim, meta.PRIORITY), wide=True),
        Column("AGE", age),
        Column("MESSAGE", lambda claim: annotation(claim, meta.MESSAGE), wide=True),
    ),
    "VirtualMachine": (
        Column("NAME", _name),
        Column("PHASE", phase_cell),
        Column("NODE", machine_node),
        Column("CPUS", lambda machine: machine_amount(machine, "cpus")),
        Column("MEMORY", lambda machine: machine_amount(machine, "memory")),
        Column("CLAIMS", lambda machine: ", ".join(machine["spec"].get("claims", []))),
        Column("DEVICES", _machine_devices),
        Column("REASON", lambda machine: _machine_status(machine, "reason")),
        Column("AGE", age),
        Column("PID", lambda machine: _machine_status(machine, "pid"), wide=True),
        Column("MESSAGE", lambda machine: _machine_status(machine, "message"), wide=True),
    ),
}


def _quota(quota: Object) -> str:
    """Of devices: how many are used of how many, by class."""
    hard = quota.get("spec", {}).get("hard", {})
    used = quota.get("status", {}).get("used", {})
    return ", ".join(
        f"{name.partition('.deviceclass.')[0]} {used.get(name, '?')}/{most}"
        for name, most in hard.items()
        if name.endswith("/devices")
    )


_COLUMNS["ResourceQuota"] = (
    Column("NAME", _name),
    Column("DEVICES, USED/HARD", _quota),
    Column("AGE", age),
)
_OTHER = (Column("NAME", _name), Column("AGE", age))
