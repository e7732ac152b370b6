"""Whether anybody serves the node that a machine is for: said on the machine, which else nobody would."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from devalloc.api.cordon import is_node, node_of
from devalloc.controller.decision import Unit
from devalloc.controller.placing import machines
from devalloc.controller.placing.decide import PLACED, condition_of, told, without_condition
from devalloc.store import Key, Object

SERVED = "Served"
"""Condition of a machine: False while no plugin on its node runs machines. It is not there otherwise."""
NODE_NOT_FOUND, NODE_NOT_SERVED = "NodeNotFound", "NodeNotServed"
_LABEL = "devalloc.io/publish"
_MACHINES = ("pools", "host")
"""Values of the label with which a node has a plugin that runs machines."""
_ADVICE = "label it devalloc.io/publish=host, and run the plugin as a service of that host"
_HELD = (
    "; what it says of itself is of when it was served. If it is to go: serve the node again, or, only if nothing of "
    "it runs there any more, take its finalizer devalloc.io/node off"
)


def served_units(documents: Collection[Object], taken: Collection[Key], now: str) -> list[Unit]:
    """What is to be written on machines whose nodes nobody serves, or served again. ``taken``: objects that are written
    otherwise. Nothing where no Node is read: without a cluster there are none."""
    nodes = {doc["metadata"]["name"]: doc for doc in documents if is_node(doc)}
    if not nodes:
        return []
    publishing = {node_of(doc) for doc in documents if doc.get("kind") == "DevicePool"}
    units: list[Unit] = []
    for machine in machines.machines_among(documents):
        if Key.of(machine) in taken:
            continue
        named = machines.running_on(machine)
        why = _why(named, nodes, publishing) if named else None
        before = condition_of(machine, SERVED)
        if why is not None:
            reason, message = why
            holder = machines.holder_of(machine)
            speaks = holder is None and condition_of(machine, PLACED).get("status") != "False"
            units += told(machine, reason, message + (_HELD if holder else ""), now, SERVED, speaks=speaks)
        elif before:
            units.append(Unit((without_condition(machine, SERVED),), granted=False))
    return units


def _why(name: str, nodes: Mapping[str, Any], publishing: Iterable[str | None]) -> tuple[str, str] | None:
    if name not in nodes:
        return NODE_NOT_FOUND, f"there is no Node {name} in this cluster"
    label = (nodes[name]["metadata"].get("labels") or {}).get(_LABEL)
    if label == "none" or (label not in _MACHINES and name not in publishing):
        told = f"is labelled {_LABEL}={label}" if label else "publishes no DevicePools"
        return NODE_NOT_SERVED, f"node {name} {told}, so no plugin there runs machines; to have one: {_ADVICE}"
    return None
