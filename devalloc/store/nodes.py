"""What a store says about one node: its Node, its pools, and who states that it is off.

The controller and the node itself ask the same, so that they agree on which nodes are fenced.
"""

from __future__ import annotations

from devalloc.api.cordon import pool_node
from devalloc.api.fencing import fence_statements
from devalloc.store.errors import NotFound, Object
from devalloc.store.protocol import Store


def has_nodes(store: Store) -> bool:
    """Whether it is a cluster's store, whose Nodes count. What an embedded store has as Nodes counts for nothing."""
    from devalloc.store.kubernetes import KubernetesStore

    return isinstance(store, KubernetesStore)


def node_object(store: Store, node: str) -> list[Object]:
    """The Node of this name, of a cluster; empty without one. Raises StoreError."""
    if not has_nodes(store):
        return []
    try:
        return [store.get("Node", None, node)]
    except NotFound:
        return []


def pools_of(store: Store, node: str) -> list[Object]:
    """The pools of a node. Raises StoreError."""
    return [pool for pool in store.list("DevicePool").objects if pool_node(pool) == node]


def fence_statement(store: Store, node: str) -> str | None:
    """Who states that the node is off; None if no one does. Raises StoreError."""
    return fence_statements([*node_object(store, node), *pools_of(store, node)]).get(node)
