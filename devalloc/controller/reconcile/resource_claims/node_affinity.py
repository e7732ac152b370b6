"""On which nodes a pod may run, as far as nodes and the pod itself say so: what kube-scheduler would not accept anyway.

Not looked at is what depends on other pods: room for CPU and memory, affinity between pods, spreading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from devalloc.api.cordon import not_ready_reason
from devalloc_solver.dialects.resource_k8s.fields import FieldError, Fields
from devalloc_solver.dialects.resource_k8s.node_selectors import read_selector, selects
from devalloc_solver.dialects.resource_k8s.objects import ClusterNode

Object = Mapping[str, Any]

_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
"""Taints that Kubernetes sets a moment after the Node says so."""


def can_run_on(pod: Object, node: Object) -> bool:
    """Whether the pod may run on the node, by selector, required affinity and taints."""
    spec, labels = pod.get("spec") or {}, node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        try:
            if not selects(read_selector(Fields(required, "")), ClusterNode(node["metadata"]["name"], labels)):
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
