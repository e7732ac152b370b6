"""The state of each node: whether it gets anything new, answers, or is fenced, and what it holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from devalloc.api import meta
from devalloc.api.cordon import is_node, not_ready_reason, pool_node, unschedulable_nodes
from devalloc.api.fencing import fenced_nodes, is_lost
from devalloc.controller.reconcile.fenced import existing_nodes, holding_nodes
from devalloc.store import Object
from devalloc.usage.overview.model import NodeState, NodeStatus, short_annotation, shorten
from devalloc_solver.problem.ordering import natural_key


def node_statuses(
    documents: Iterable[Object], unserved: Mapping[str, str] = MappingProxyType({})
) -> tuple[NodeStatus, ...]:
    """The nodes among the documents, in natural order. Nodes of Kubernetes count only with documents of a cluster.
    ``unserved``: nodes whose plugin does not run, and that as a sentence."""
    documents = list(documents)
    nodes = {doc["metadata"]["name"]: doc for doc in documents if is_node(doc)}
    pools: Counter[str] = Counter()
    machines: Counter[str] = Counter()
    claims: Counter[str] = Counter()
    cordoned: dict[str, str] = {}
    for doc in documents:
        if doc["kind"] == "DevicePool" and (name := pool_node(doc)) is not None:
            pools[name] += 1
            cordoned[name] = cordoned.get(name) or short_annotation(doc, meta.CORDONED_NODE)
        (machines if doc["kind"] == "VirtualMachine" else claims).update(holding_nodes(doc))
    closed, fenced = unschedulable_nodes(documents), fenced_nodes(documents)

    def state(name: str) -> tuple[NodeState, str]:
        node = nodes.get(name)
        if name in fenced:
            return "Fenced", fenced[name]
        if nodes and node is None:
            return "Missing", "the cluster has no Node of this name"
        if node is not None and (why := not_ready_reason(node)) is not None:
            return ("Lost" if is_lost(node) else "NotReady"), why
        reasons = [*filter(None, [unserved.get(name), cordoned.get(name), closed.get(name)])]
        if name in unserved:
            return "NotServed", "; ".join(reasons)
        if reasons:
            return "Cordoned", "; ".join(reasons)
        return "Ready", ""

    result = []
    for name in sorted(existing_nodes(documents), key=natural_key):
        kind, reason = state(name)
        result.append(NodeStatus(shorten(name), kind, shorten(reason), pools[name], machines[name], claims[name]))
    return tuple(result)
