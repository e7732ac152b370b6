"""Table columns of each kind of object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.conditions import REPLICA_FAILURE, VALID, find_condition
from devalloc.api.views import (
    ClaimView,
    MigrationView,
    annotation_text,
    claim_state,
    format_devices,
    machine_amount,
    machine_node,
    machine_phase,
    machine_reason,
    pool_model,
    pool_numa_nodes,
    request_summary,
)
from devalloc.cli.render.cells import age_cell, ago, state_cell
from devalloc.cli.render.output import Cell, StyledText

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column; ``wide`` columns appear only with -o wide."""

    header: str
    cell: Callable[[Object], Cell]
    wide: bool = False


def header_and_rows(
    kind: str, objects: Sequence[Object], *, wide: bool, namespaces: bool
) -> tuple[list[str], list[Any]]:
    """Headers and rows for objects of one kind."""
    columns = [column for column in _COLUMNS.get(kind, _OTHER) if wide or not column.wide]
    if namespaces:
        columns = [TableColumn("NAMESPACE", lambda obj: obj["metadata"].get("namespace", "")), *columns]
    return [column.header for column in columns], [[_cell(column, obj) for column in columns] for obj in objects]


def _cell(column: TableColumn, obj: Object) -> Cell:
    try:
        return column.cell(obj)
    except (AttributeError, KeyError, TypeError, ValueError):
        return StyledText("(unreadable)", "red")  # another program wrote something that is not in the API


def _name(obj: Object) -> str:
    return str(obj["metadata"]["name"])


def _valid(cls: Object) -> Mapping[str, Any]:
    """The condition Valid of a class, which a cluster's controller writes; empty without."""
    return find_condition(cls.get("status", {}).get("conditions", ()), VALID)


def _devices_or_reason(claim: Object) -> str:
    entries = claim.get("status", {}).get("allocations", [])
    return format_devices(entries) if entries else ClaimView(claim).reason


def _resource_claim_node(claim: Object) -> str:
    from devalloc.controller.reconcile.resource_claims.pending import allocation_node, allocation_of

    return allocation_node(allocation_of(claim) or {}) or ""


def _result_or_reason(claim: Object) -> str:
    allocation = claim.get("status", {}).get("allocation")
    return format_devices(allocation) if allocation else ClaimView(claim).reason


def _machine_devices(machine: Object) -> str:
    return str(len(machine.get("status", {}).get("devices", [])))


def _machine_status(machine: Object, name: str) -> str:
    return str(machine.get("status", {}).get(name, ""))


def _resources(pool: Object) -> str:
    return " ".join(f"{entry['name']}={entry['capacity']}" for entry in pool.get("spec", {}).get("resources", []))


_COLUMNS = {
    "DevicePool": (
        TableColumn("NAME", _name),
        TableColumn("NODE", lambda pool: pool["spec"].get("nodeName") or "(network)"),
        TableColumn("DRIVER", lambda pool: pool["spec"]["driver"]),
        TableColumn("MODEL", pool_model),
        TableColumn("NUMA", pool_numa_nodes),
        TableColumn("DEVICES", lambda pool: str(len(pool["spec"].get("devices", [])))),
        TableColumn("AVAILABLE", lambda pool: str(pool.get("status", {}).get("availableDevices", ""))),
        TableColumn("RESOURCES", _resources, wide=True),
        TableColumn("AGE", age_cell),
    ),
    "DeviceClass": (
        TableColumn("NAME", _name),
        TableColumn("DRIVER", lambda cls: cls.get("spec", {}).get("driver", "")),
        TableColumn("TYPE", lambda cls: cls.get("spec", {}).get("deviceType", "")),
        TableColumn("CONSTRAINTS", lambda cls: cls.get("spec", {}).get("constraints", "")),
        TableColumn("ADMIN", lambda cls: "yes" if cls.get("spec", {}).get("adminAccess") else "", wide=True),
        TableColumn("VALID", lambda cls: _valid(cls).get("status", ""), wide=True),
        TableColumn("AGE", age_cell),
        TableColumn("MESSAGE", lambda cls: _valid(cls).get("message", ""), wide=True),
    ),
    "DeviceClaim": (
        TableColumn("NAME", _name),
        TableColumn("STATE", lambda claim: state_cell(claim_state(claim))),
        TableColumn("WANTS", request_summary),
        TableColumn("NODE", lambda claim: annotation_text(claim, meta.ALLOCATED_NODE)),
        TableColumn("DEVICES, OR WHY NOT", _devices_or_reason),
        TableColumn("GROUP", lambda claim: annotation_text(claim, meta.GROUP), wide=True),
        TableColumn("PRIORITY", lambda claim: annotation_text(claim, meta.PRIORITY), wide=True),
        TableColumn("AGE", age_cell),
        TableColumn("MESSAGE", lambda claim: ClaimView(claim).message, wide=True),
    ),
    "ResourceClaim": (
        TableColumn("NAME", _name),
        TableColumn("NODE", _resource_claim_node),
        TableColumn("DEVICES, OR WHY NOT", _result_or_reason),
        TableColumn("AGE", age_cell),
        TableColumn("MESSAGE", lambda claim: ClaimView(claim).message, wide=True),
    ),
    "VirtualMachine": (
        TableColumn("NAME", _name),
        TableColumn("PHASE", lambda machine: state_cell(machine_phase(machine))),
        TableColumn("NODE", machine_node),
        TableColumn("CPUS", lambda machine: machine_amount(machine, "cpus")),
        TableColumn("MEMORY", lambda machine: machine_amount(machine, "memory")),
        TableColumn("CLAIMS", lambda machine: ", ".join(machine["spec"].get("claims", []))),
        TableColumn("DEVICES", _machine_devices),
        TableColumn("REASON", lambda machine: machine_reason(machine)[0]),
        TableColumn("AGE", age_cell),
        TableColumn("UPTIME", lambda machine: ago(_machine_status(machine, "startTime")), wide=True),
        TableColumn("RESTARTS", lambda machine: _machine_status(machine, "restarts") or "0", wide=True),
        TableColumn("PID", lambda machine: _machine_status(machine, "pid"), wide=True),
        TableColumn("MESSAGE", lambda machine: machine_reason(machine)[1], wide=True),
    ),
}


def _replica_status(name: str) -> Callable[[Object], Cell]:
    return lambda replica_set: str((replica_set.get("status") or {}).get(name, 0))


def _replica_problem(replica_set: Object) -> str:
    conditions = (replica_set.get("status") or {}).get("conditions")
    return str(find_condition(conditions, REPLICA_FAILURE).get("message", ""))


_COLUMNS["VirtualMachineReplicaSet"] = (
    TableColumn("NAME", _name),
    TableColumn("DESIRED", lambda replica_set: str(replica_set["spec"].get("replicas", 1))),
    TableColumn("CURRENT", _replica_status("replicas")),
    TableColumn("READY", _replica_status("readyReplicas")),
    TableColumn("AGE", age_cell),
    TableColumn("MESSAGE", _replica_problem),
)


def _migration_status(migration: Object, name: str) -> str:
    return str(migration.get("status", {}).get(name, ""))


_COLUMNS["VirtualMachineMigration"] = (
    TableColumn("NAME", _name),
    TableColumn("MACHINE", lambda migration: migration["spec"]["vmName"]),
    TableColumn("PHASE", lambda migration: state_cell(MigrationView(migration).phase)),
    TableColumn("FROM", lambda migration: _migration_status(migration, "sourceNode")),
    TableColumn(
        "TO", lambda migration: _migration_status(migration, "targetNode") or migration["spec"].get("targetNode", "")
    ),
    TableColumn("REASON", lambda migration: _migration_status(migration, "reason")),
    TableColumn("AGE", age_cell),
    TableColumn("MESSAGE", lambda migration: _migration_status(migration, "message"), wide=True),
)


def _quota(quota: Object) -> str:
    """Devices used of the quota, by class."""
    hard = quota.get("spec", {}).get("hard", {})
    used = quota.get("status", {}).get("used", {})
    return ", ".join(
        f"{name.partition('.deviceclass.')[0]} {used.get(name, '?')}/{most}"
        for name, most in hard.items()
        if name.endswith("/devices")
    )


_COLUMNS["ResourceQuota"] = (
    TableColumn("NAME", _name),
    TableColumn("DEVICES, USED/HARD", _quota),
    TableColumn("AGE", age_cell),
)


def _node_count(name: str) -> Callable[[Object], Cell]:
    return lambda node: str(node["status"][name])


_COLUMNS["NodeStatus"] = (
    TableColumn("NAME", _name),
    TableColumn("STATE", lambda node: state_cell(node["status"]["state"])),
    TableColumn("POOLS", _node_count("pools")),
    TableColumn("MACHINES", _node_count("machines")),
    TableColumn("CLAIMS", _node_count("claims")),
    TableColumn("REASON", lambda node: str(node["status"]["reason"])),
)
_OTHER = (TableColumn("NAME", _name), TableColumn("AGE", age_cell))
