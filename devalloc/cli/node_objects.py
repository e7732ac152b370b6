"""The states of nodes as objects that ``devalloc get`` prints. Nothing stores them."""

from __future__ import annotations

from typing import Any

from devalloc.cli.command import BadInput
from devalloc.cli.served_store import served_view
from devalloc.cli.terminal import print_note
from devalloc.store import Store
from devalloc.store.errors import Forbidden
from devalloc.store.nodes import has_nodes

Object = dict[str, Any]

KIND = "NodeStatus"
_WORDS = ("node", "nodes")


def is_nodes(what: tuple[str, ...]) -> bool:
    """Whether ``nodes``, ``nodes NAME...`` or ``node/NAME...`` is meant."""
    return what[0].partition("/")[0].lower() in _WORDS


def node_names(what: tuple[str, ...]) -> list[str] | None:
    """The names in ``nodes NAME...`` or ``node/NAME...``; None for all nodes. Raises BadInput."""
    if "/" not in what[0]:
        names = list(what[1:])
        if any("/" in name for name in names):
            raise BadInput(f"use either nodes NAME... or node/NAME..., not both: {' '.join(what)}")
        return names or None
    pairs = [word.partition("/") for word in what]
    for word, (kind, _, name) in zip(what, pairs, strict=True):
        if kind.lower() not in _WORDS or not name:
            raise BadInput(f"invalid name {word}; beside other nodes use node/NAME")
    return [name for _, _, name in pairs]


def node_objects(store: Store) -> list[Object]:
    """One object for each node with pools, machines or claims, in natural order. Raises StoreError."""
    from devalloc.usage.overview import node_statuses

    served = served_view(store)
    unserved = served.unserved_nodes(store) if served is not None else {}
    documents = list(store.list(("DevicePool", "DeviceClaim", "VirtualMachine")).objects)
    if has_nodes(store):
        try:
            documents += store.list("Node").objects
        except Forbidden:
            print_note(
                "note: you may not list Nodes of Kubernetes: whether nodes are ready, lost or tainted is missing"
            )
    return [
        {
            "kind": KIND,
            "metadata": {"name": one.name},
            "status": {
                "state": one.state,
                "reason": one.reason,
                "pools": one.pools,
                "machines": one.machines,
                "claims": one.claims,
            },
        }
        for one in node_statuses(documents, unserved)
    ]
