"""The objects of a cluster that matter for ResourceClaims, as the store has them, and as the solver sees them.

A pod is kept to nodes as far as nodes and the pod itself say so: what kube-scheduler would not accept anyway. What
depends on other pods does not count: room for CPU and memory, affinity between pods, spreading.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from devalloc.api.cordon import not_ready_reason
from devalloc.api.dedicated_pools import ALLOCATOR_KEY, is_dedicated
from devalloc.controller.reconcile.resource_claims.pending import (
    Key,
    PendingGroup,
    allocation_of,
    key_of,
    pending_document,
    pending_groups,
)
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.warm_solver import ObjectName
from devalloc.store.kubernetes.resources import ApiResource
from devalloc_solver.dialects.resource_k8s.decode import read_node_selector
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, selects

Object = dict[str, Any]

_API = "resource.k8s.io"
KIND = "ResourceClaim"
RESOURCES = (
    ApiResource(KIND, _API, "v1", "resourceclaims", True, True),
    ApiResource("ResourceSlice", _API, "v1", "resourceslices", False, False),
    ApiResource("DeviceClass", _API, "v1", "deviceclasses", False, False),
    ApiResource("DeviceTaintRule", _API, "v1", "devicetaintrules", False, False, is_optional=True),  # v1 since 1.37
    ApiResource("Node", "", "v1", "nodes", False, False),
    ApiResource("Pod", "", "v1", "pods", True, False, fields="spec.nodeName="),
)
WATCHED_KINDS = frozenset(resource.store_kind for resource in RESOURCES)
NODE_DOMAIN, NODE_ATTRIBUTE = "controller.devalloc.io", "node"
"""An attribute that only the solver sees: the number of the device's node."""

MAX_SELECTED_NODES = 1500
"""How many nodes an expression names at most (10 KiB): of more that suit a pod the first are tried."""
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
"""Taints that Kubernetes sets a moment after the Node says so."""
RESULT_FIELDS = ("driver", "pool", "device", "shareID", "consumedCapacity", "adminAccess")


@dataclass(frozen=True, slots=True)
class SolverRequest:
    """What the solver is asked for a want."""

    want: PendingGroup
    documents: tuple[Object, ...]
    expression: str | None
    """That keeps its claims to the nodes of its pods, if not all do."""
    misfit: str | None
    """Why there is nothing to ask: no node is left."""


class ClusterState:
    """Not thread-safe."""

    def __init__(self) -> None:
        self._objects: Mapping[str, list[Object]] = defaultdict(list)
        self._claims: dict[Key, Object] = {}
        self._numbers: dict[str, int] = {}
        """Of nodes, for as long as this process lives."""
        self._memo = Memo()

    def look(self, objects: Iterable[Object]) -> None:
        """All there is now, those of a kind in order; an unchanged object is the very same one as before."""
        by_kind: dict[str, list[Object]] = defaultdict(list)
        for content in objects:
            by_kind[content["kind"]].append(content)
        self._objects = by_kind
        self._claims = {key_of(claim): claim for claim in by_kind["ResourceClaim"]}
        self._memo.turn()

    @property
    def claims(self) -> Mapping[Key, Object]:
        return self._claims

    def wants(self) -> list[PendingGroup]:
        return pending_groups(self._objects["Pod"], self._claims)

    def documents(self) -> dict[ObjectName, Object]:
        """All that the solver is to know but claims that wait."""
        claims = filter(None, map(_allocated_document, self._claims.values()))
        return {_name(content): content for content in (*self._slices(), *self._objects["DeviceClass"], *claims)}

    def build_requests(
        self, wanted: Iterable[PendingGroup], avoided: Mapping[Key, frozenset[str]]
    ) -> list[SolverRequest]:
        """What the solver is asked for each. ``avoided``: nodes that claims are not to have for now."""
        nodes = {content["metadata"]["name"]: content for content in self._objects["Node"]}
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
                expression = node_expression(self._number(name) for name in sorted(left)[:MAX_SELECTED_NODES])
            group = "/".join(want.claims[0]) if len(want.claims) > 1 else None
            priority = max((pod["spec"].get("priority") or 0 for pod in want.pods), default=0)
            pending = (pending_document(self._claims[key], group, expression, priority) for key in want.claims)
            requests.append(SolverRequest(want, tuple(pending), expression, None))
        return requests

    def _ours(self) -> Iterator[Object]:
        return (content for content in self._objects["ResourceSlice"] if is_dedicated_slice(content))

    def _slices(self) -> Iterator[Object]:
        rules = sorted(self._objects["DeviceTaintRule"], key=lambda rule: str(rule["metadata"]["name"]))
        for content in self._ours():
            number = self._number(content["spec"]["nodeName"])
            yield self._memo.of("slice", content, partial(effective_slice, content, rules, number), rules)

    def _number(self, node: str) -> int:
        return self._numbers.setdefault(node, len(self._numbers))


def _name(content: Object) -> ObjectName:
    return content["kind"], content["metadata"].get("namespace", ""), content["metadata"]["name"]


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
    ours = dedicated_results(claim)
    if not ours:
        return None
    metadata = {key: claim["metadata"][key] for key in ("namespace", "name", "uid")}
    fields = {name: claim[name] for name in ("apiVersion", "kind", "spec")}
    return {**fields, "metadata": metadata, "status": {"allocation": {"devices": {"results": ours}}}}


def dedicated_results(claim: Object) -> list[dict[str, Any]]:
    """The devices of dedicated pools that a claim has, as its status records them."""
    results = ((allocation_of(claim) or {}).get("devices") or {}).get("results") or []
    return [
        {k: v for k, v in each.items() if k in (*RESULT_FIELDS, "request")}
        for each in results
        if is_dedicated(each["pool"])
    ]


def is_dedicated_slice(content: Mapping[str, Any]) -> bool:
    """Whether a slice is of a pool that is set aside, and of one node."""
    spec = content["spec"]
    return is_dedicated(spec["pool"]["name"]) and bool(spec.get("nodeName"))


def effective_slice(content: Object, rules: Iterable[Mapping[str, Any]], number: int) -> Object:
    """A slice without the taint that keeps others off, with those of rules, and its node's number on each device."""
    spec = content["spec"]
    matching = [rule["spec"] for rule in rules if _rule_matches(rule["spec"].get("deviceSelector"), spec)]
    if "devices" not in spec:
        return content
    devices = [_effective_device(device, matching, number) for device in spec["devices"]]
    return {**content, "spec": {**spec, "devices": devices}}


def _effective_device(device: Object, rules: Sequence[Mapping[str, Any]], number: int) -> Object:
    taints = [taint for taint in device.get("taints") or () if taint.get("key") != ALLOCATOR_KEY]
    taints += (rule["taint"] for rule in rules if _matches_name(rule["deviceSelector"].get("device"), device["name"]))
    attributes = {**(device.get("attributes") or {}), f"{NODE_DOMAIN}/{NODE_ATTRIBUTE}": {"int": number}}
    rest = {name: value for name, value in device.items() if name != "taints"}
    return {**rest, "attributes": attributes} | ({"taints": taints} if taints else {})


def _rule_matches(selector: Mapping[str, Any] | None, spec: Mapping[str, Any]) -> bool:
    """A rule without a selector is for no device, one with an empty selector for all."""
    if selector is None:
        return False
    return _matches_name(selector.get("driver"), spec["driver"]) and _matches_name(
        selector.get("pool"), spec["pool"]["name"]
    )


def _matches_name(value: str | None, name: str) -> bool:
    return value is None or value == name


def node_expression(numbers: Iterable[int]) -> str:
    """The expression that holds for the devices of these nodes."""
    node_list = ", ".join(str(number) for number in sorted(numbers))
    return f'device.attributes["{NODE_DOMAIN}"].{NODE_ATTRIBUTE} in [{node_list}]'


def can_run_on(pod: Object, node: Object) -> bool:
    """Whether the pod may run on the node, by selector, required affinity and taints."""
    spec, labels = pod.get("spec") or {}, node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        try:
            if not selects(read_node_selector(required), ClusterNode(node["metadata"]["name"], labels)):
                return False
        except FieldError:
            return False
    node_spec = node.get("spec") or {}
    taints = [*(node_spec.get("taints") or ())]
    taints += [_UNSCHEDULABLE] if node_spec.get("unschedulable") else []
    taints += [_NOT_READY] if not_ready_reason(dict(node)) is not None else []
    tolerations = spec.get("tolerations") or ()
    return all(taint.get("effect") == "PreferNoSchedule" or _tolerated(taint, tolerations) for taint in taints)


def scheduling_key(pod: Object) -> tuple[Any, ...]:
    """All that ``can_run_on`` looks at of a pod."""
    spec = pod.get("spec") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return (
        spec.get("nodeSelector"),
        affinity.get("requiredDuringSchedulingIgnoredDuringExecution"),
        [{k: v for k, v in each.items() if k != "tolerationSeconds"} for each in spec.get("tolerations") or ()],
    )


def _tolerated(taint: Object, tolerations: Sequence[Object]) -> bool:
    return any(
        one.get("effect") in (None, "", taint.get("effect"))
        and (not one.get("key") or one["key"] == taint.get("key"))
        and (
            one.get("operator") == "Exists" or (bool(one.get("key")) and one.get("value", "") == taint.get("value", ""))
        )
        for one in tolerations
    )
