"""The state of the server as JSON, for people who look for what is wrong."""

from __future__ import annotations

from typing import Any

from devalloc.controller.permits.ledgers import PermitLedgers
from devalloc.scaling.permits.ledger import MachineAccount, NodeLedger
from devalloc.scaling.permits.pressure import is_under_pressure, next_to_migrate
from devalloc.scaling.resources import Resources
from devalloc.scaling.wire_amounts import MAX_BYTES, MAX_CPU, bytes_to_json, cpu_to_json


def dump_ledgers(book: PermitLedgers) -> dict[str, Any]:
    """All ledgers."""
    return {
        "compat": book.settings.era.value,
        "nodes": {name: _node(name, node, book) for name, node in sorted(book.nodes.items())},
    }


def _node(name: str, node: NodeLedger, book: PermitLedgers) -> dict[str, Any]:
    first = next_to_migrate(node)
    return {
        **{of: _amounts(getattr(node, of)) for of in _SUMS},
        "tooFull": is_under_pressure(node),
        "firstToLeave": None if first is None else "/".join(first),
        "machines": {"/".join(key): _machine(machine) for key, machine in sorted(node.machines.items())},
    }


_SUMS = ("total", "watermark", "counted", "free", "buffer", "pressure", "accounted")


def _machine(machine: MachineAccount) -> dict[str, Any]:
    return {
        "permit": None if machine.permit is None else _amounts(machine.permit),
        **{
            name: _amounts(getattr(machine, of))
            for name, of in (
                ("min", "least"),
                ("max", "most"),
                ("reserved", "reserved"),
                ("use", "use"),
                ("kept", "previous"),
                ("buffer", "buffer"),
                ("pressure", "pressure"),
                ("overhead", "overhead"),
            )
        },
        "scaled": machine.scaled,
        "movable": machine.movable,
        "migrating": machine.migrating,
        "load": machine.load,
    }


def _amounts(of: Resources) -> dict[str, Any]:
    # A sum of what strangers ask for need not fit.
    return {"cpu": cpu_to_json(min(of.cpu, MAX_CPU)), "memory": bytes_to_json(min(of.memory, MAX_BYTES))}
