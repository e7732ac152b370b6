"""Whether a plugin serves the node that a machine is for, as a condition on the machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from devalloc.api.cordon import is_node, pool_node
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.vm_scheduling import machines
from devalloc.controller.reconcile.vm_scheduling.decision import (
    PLACED,
    condition_of,
    condition_units,
    remove_condition_change,
)
from devalloc.store import Key, Object

SERVED = "Served"
"""Condition of a machine: False while no plugin on its node runs machines. It is not there otherwise."""
NODE_NOT_FOUND, NODE_NOT_SERVED = "NodeNotFound", "NodeNotServed"
_LABEL = "devalloc.io/publish"
_PUBLISH_VALUES = ("pools", "host")
"""Values of the label with which a node has a plugin that runs machines."""
_ADVICE = "label it devalloc.io/publish=host, and run the plugin as a service of that host"
_HELD_ADVICE = (
    "; its status dates from when the node was served. To remove it: serve the node again, or, only if nothing of "
    "it runs there any more, remove its finalizer devalloc.io/node"
)


def node_service_units(documents: Collection[Object], taken: Collection[Key], now: str) -> list[WriteUnit]:
    """What is to be written on machines whose nodes nobody serves, or served again. ``taken``: objects that are written
    otherwise. Nothing where no Node is read: without a cluster there are none."""
    nodes = {doc["metadata"]["name"]: doc for doc in documents if is_node(doc)}
    if not nodes:
        return []
    publishing = {pool_node(doc) for doc in documents if doc.get("kind") == "DevicePool"}
    units: list[WriteUnit] = []
    for machine in machines.virtual_machines_in(documents):
        if Key.of(machine) in taken:
            continue
        named = machines.running_node(machine)
        why = _not_served_reason(named, nodes, publishing) if named else None
        before = condition_of(machine, SERVED)
        if why is not None:
            reason, message = why
            holder = machines.holding_node(machine)
            speaks = holder is None and condition_of(machine, PLACED).get("status") != "False"
            units += condition_units(
                machine, reason, message + (_HELD_ADVICE if holder else ""), now, SERVED, speaks=speaks
            )
        elif before:
            units.append(WriteUnit((remove_condition_change(machine, SERVED),), granted=False))
    return units


def _not_served_reason(name: str, nodes: Mapping[str, Any], publishing: Iterable[str | None]) -> tuple[str, str] | None:
    if name not in nodes:
        return NODE_NOT_FOUND, f"there is no Node {name} in this cluster"
    label = (nodes[name]["metadata"].get("labels") or {}).get(_LABEL)
    if label == "none" or (label not in _PUBLISH_VALUES and name not in publishing):
        problem = f"is labelled {_LABEL}={label}" if label else "publishes no DevicePools"
        return NODE_NOT_SERVED, f"node {name} {problem}, so no plugin there runs machines; to run one: {_ADVICE}"
    return None
