"""The nodes on which a pod may run, by its node selector, required affinity and tolerations."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from devalloc.api.cordon import not_ready_reason
from devalloc.controller.reconcile.snapshot import Memo
from devalloc_solver.dialects.resource_k8s.decode import read_node_selector
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, NodeSelector, selects

Object = dict[str, Any]

ROUND_SECONDS = 0.5
"""How long a round judges pods; the others are left to the next one."""
MAX_TEXT = 65_536
"""Bytes of what a pod says of nodes; one that says more may run nowhere."""
MAX_REMEMBERED = 10_000
"""Different such texts of which the nodes are remembered; when there are more, all are forgotten."""
_UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
_NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
"""Taints that Kubernetes sets a moment after the Node says so."""


class SuitableNodes:
    """Not thread-safe. What pods say of nodes is judged once, as long as these do not change."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._memo = Memo()
        self._facts: dict[str, tuple[Any, ...]] = {}
        self._nodes: dict[bytes, frozenset[str]] = {}
        """By what a pod says: most pods say the same."""

    def look(self, nodes: Mapping[str, Object]) -> object:
        """See which nodes there are; the very same result as before as long as nothing that counts of them changes."""
        facts = {name: _facts(node) for name, node in nodes.items()}
        if facts != self._facts or len(self._nodes) > MAX_REMEMBERED:
            self._facts, self._nodes = facts, {}
        return self._facts

    def of(self, pods: Iterable[Object], nodes: Mapping[str, Object]) -> dict[int, frozenset[str]]:
        """The nodes of each pod, by the id of the pod; those are missing for which there was no time. Pods that say
        least of nodes go first."""
        ends = self._clock() + ROUND_SECONDS
        self.look(nodes)
        suitable = {}
        self._memo.turn()
        texts = [(*self._memo.of("text", pod, partial(_text_of, pod)), pod) for pod in pods]
        for length, place, pod in sorted(texts, key=lambda each: each[0]):
            if (cached := self._nodes.get(place)) is None:
                if self._clock() >= ends:
                    continue
                cached = self._nodes[place] = _suitable_nodes(pod, self._facts) if length <= MAX_TEXT else frozenset()
            suitable[id(pod)] = cached
        return suitable


def _suitable_nodes(pod: Object, facts: Mapping[str, tuple[Any, ...]]) -> frozenset[str]:
    selector, required, tolerations = _wishes(pod)
    read: NodeSelector | None = None
    if required is not None:
        try:
            read = read_node_selector(required)
        except FieldError:
            return frozenset()
    return frozenset(
        name
        for name, (labels, taints) in facts.items()
        if all(labels.get(key) == value for key, value in (selector or {}).items())
        and (read is None or selects(read, ClusterNode(name, labels)))
        and all(taint.get("effect") == "PreferNoSchedule" or _tolerated(taint, tolerations) for taint in taints)
    )


def _facts(node: Object) -> tuple[Any, ...]:
    """All that counts of a node: its labels and taints."""
    spec = node.get("spec") or {}
    taints = [*(spec.get("taints") or ())]
    taints += [_UNSCHEDULABLE] if spec.get("unschedulable") else []
    taints += [_NOT_READY] if not_ready_reason(dict(node)) is not None else []
    return node["metadata"].get("labels") or {}, taints


def _wishes(pod: Object) -> tuple[Any, ...]:
    """All that counts of a pod."""
    spec = pod.get("spec") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    return (
        spec.get("nodeSelector"),
        affinity.get("requiredDuringSchedulingIgnoredDuringExecution"),
        [{k: v for k, v in each.items() if k != "tolerationSeconds"} for each in spec.get("tolerations") or ()],
    )


def _text_of(pod: Object) -> tuple[int, bytes]:
    """How long what a pod says of nodes is, and its digest."""
    text = repr(_wishes(pod)).encode("utf-8", "surrogatepass")
    return len(text), hashlib.sha256(text).digest()


def _tolerated(taint: Object, tolerations: Sequence[Object]) -> bool:
    return any(
        one.get("effect") in (None, "", taint.get("effect"))
        and (not one.get("key") or one["key"] == taint.get("key"))
        and (
            one.get("operator") == "Exists" or (bool(one.get("key")) and one.get("value", "") == taint.get("value", ""))
        )
        for one in tolerations
    )
