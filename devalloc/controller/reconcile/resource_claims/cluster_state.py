"""The objects of a cluster that matter for ResourceClaims, as watches report them, and as the solver sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api.dedicated_pools import is_dedicated
from devalloc.controller.reconcile.resource_claims import slices
from devalloc.controller.reconcile.resource_claims.node_affinity import can_run_on, scheduling_key
from devalloc.controller.reconcile.resource_claims.pending import (
    Key,
    PendingGroup,
    allocation_of,
    key_of,
    pending_document,
    pending_groups,
)
from devalloc.controller.reconcile.resource_claims.warm_solver import ObjectName
from devalloc.store import Event, EventType

Object = dict[str, Any]

MAX_SELECTED_NODES = 1500
"""How many nodes an expression names at most (10 KiB): of more that suit a pod the first are tried."""
RESULT_FIELDS = ("driver", "pool", "device", "shareID", "consumedCapacity", "adminAccess")


@dataclass(frozen=True, slots=True)
class SolverRequest:
    """What the solver is asked for a want."""

    want: PendingGroup
    documents: tuple[Object, ...]
    expression: str | None
    """That keeps its claims to the nodes of its pods, where not all do."""
    misfit: str | None
    """Why there is nothing to ask: no node is left."""


class ClusterState:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[ObjectName, Object]] = defaultdict(dict)
        self._numbers: dict[str, int] = {}
        """Of nodes, for as long as this process lives."""
        self._prepared: dict[ObjectName, tuple[Object, Object]] = {}
        """Slices as they were told, and as the solver has them, under the rules that hold now."""
        self._rules_changed = False

    def tell(self, events: Iterable[Event]) -> None:
        """What happened, in order."""
        for event in events:
            content = event.object
            metadata = content["metadata"]
            name = content["kind"], metadata.get("namespace", ""), metadata["name"]
            if event.type is EventType.DELETED:
                self._objects[content["kind"]].pop(name, None)
            else:
                self._objects[content["kind"]][name] = content
            self._rules_changed = self._rules_changed or content["kind"] == "DeviceTaintRule"

    def clear(self) -> None:
        """Forget all objects: the watches deliver them again."""
        self._objects.clear()
        self._prepared.clear()

    def claims(self) -> dict[Key, Object]:
        return {key_of(claim): claim for claim in self._objects["ResourceClaim"].values()}

    def wants(self) -> list[PendingGroup]:
        return pending_groups(self._objects["Pod"].values(), self.claims())

    def documents(self) -> dict[ObjectName, Object]:
        """All that the solver is to know but claims that wait."""
        if self._rules_changed:
            self._prepared.clear()
            self._rules_changed = False
        documents = dict(self._slices())
        documents.update(self._objects["DeviceClass"])
        for name, claim in self._objects["ResourceClaim"].items():
            if (held := _allocated_document(claim)) is not None:
                documents[name] = held
        return documents

    def build_requests(
        self, wanted: Iterable[PendingGroup], avoided: Mapping[Key, frozenset[str]]
    ) -> list[SolverRequest]:
        """What the solver is asked for each. ``avoided``: nodes that claims are not to have for now."""
        claims = self.claims()
        nodes = {name[2]: content for name, content in self._objects["Node"].items()}
        offering = {content["spec"]["nodeName"] for content in self._ours()}
        there = {name: nodes[name] for name in sorted(offering & nodes.keys())}
        suitable: dict[str, frozenset[str]] = {}
        """Nodes by what a pod says of them: most pods say the same."""

        def suiting(pod: Object) -> frozenset[str]:
            pod_wishes = repr(scheduling_key(pod))
            if pod_wishes not in suitable:
                suitable[pod_wishes] = frozenset(name for name, node in there.items() if can_run_on(pod, node))
            return suitable[pod_wishes]

        requests = []
        for want in wanted:
            left = frozenset(there).intersection(*(suiting(pod) for pod in want.pods))
            left = left if want.nodes is None else left & want.nodes
            left = left.difference(*(avoided.get(key, frozenset()) for key in want.claims))
            if there and not left:
                requests.append(SolverRequest(want, (), None, _misfit(want, len(there))))
                continue
            expression = None
            if left != offering:
                expression = slices.node_expression(self._number(name) for name in sorted(left)[:MAX_SELECTED_NODES])
            group = "/".join(want.claims[0]) if len(want.claims) > 1 else None
            priority = max((pod["spec"].get("priority") or 0 for pod in want.pods), default=0)
            pending = (pending_document(claims[key], group, expression, priority) for key in want.claims)
            requests.append(SolverRequest(want, tuple(pending), expression, None))
        return requests

    def _ours(self) -> Iterator[Object]:
        return (content for content in self._objects["ResourceSlice"].values() if slices.is_dedicated_slice(content))

    def _slices(self) -> Iterator[tuple[ObjectName, Object]]:
        rules = sorted(self._objects["DeviceTaintRule"].values(), key=lambda rule: str(rule["metadata"]["name"]))
        prepared = {}
        for content in self._ours():
            name = "ResourceSlice", "", content["metadata"]["name"]
            before = self._prepared.get(name)
            if before is None or before[0] is not content:
                before = content, slices.effective_slice(content, rules, self._number(content["spec"]["nodeName"]))
            prepared[name] = before
            yield name, before[1]
        self._prepared = prepared

    def _number(self, node: str) -> int:
        return self._numbers.setdefault(node, len(self._numbers))


def _misfit(want: PendingGroup, nodes: int) -> str:
    names = ", ".join(pod["metadata"]["name"] for pod in want.pods[:3])
    message = (
        f"none of {nodes} node{'s' if nodes > 1 else ''} with devices that are set aside suits pod {names}: see its "
    )
    message += "node selector, affinity and tolerations, and whether nodes are cordoned or not ready"
    return (
        message
        if want.nodes is None
        else f"{message}; its claims are bound to {', '.join(sorted(want.nodes)) or 'several'}"
    )


def _allocated_document(claim: Object) -> Object | None:
    """A claim that holds devices which are set aside, as far as that goes; None for any other."""
    held = allocation_of(claim)
    results = ((held or {}).get("devices") or {}).get("results") or []
    ours = [
        {k: v for k, v in each.items() if k in (*RESULT_FIELDS, "request")}
        for each in results
        if is_dedicated(each["pool"])
    ]
    if not ours:
        return None
    metadata = {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
    fields = {name: claim[name] for name in ("apiVersion", "kind", "spec")}
    return {**fields, "metadata": metadata, "status": {"allocation": {"devices": {"results": ours}}}}
