"""Claims of pods that kube-scheduler allocates: the nodes on which they could have devices.

devalloc allocates first, and its devices tie the pod to a node. On a node without devices for the pod's other claims,
kube-scheduler would send the claim back. So such nodes are left out, as far as can be computed in bounded time; on the
others kube-scheduler still sends it back.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any

from devalloc.controller.reconcile.resource_claims.pending import allocation_of
from devalloc_solver.dialects.resource_k8s.taint_rules import with_rule_taints
from devalloc_solver.dra import AllocationError, allocate

Object = dict[str, Any]

ROUND_SECONDS = 0.5
"""How long a round computes this; nodes that it does not come to are taken to suit."""
NODE_SECONDS = 0.1
"""The same for one node."""
MAX_VERDICTS = 20_000
"""Verdicts that are remembered; when there are more, all are forgotten."""


class OtherClaims:
    """Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = 0.0
        self._classes: Sequence[Object] = ()
        self._by_node: Mapping[str, Sequence[Object]] = {}
        """Slices of one node, with the taints of rules."""
        self._shared: Sequence[Object] = ()
        self._holders: Mapping[tuple[str, str], Sequence[Object]] = {}
        """Claims with devices, by driver and pool."""
        self._verdicts: dict[tuple[str, str], tuple[tuple[Object, ...], bool]] = {}
        """By what is asked for and node: all that was looked at, and whether it suits."""
        self._sources: tuple[Object, ...] = ()

    def look(
        self, slices: Sequence[Object], classes: Sequence[Object], claims: Iterable[Object], rules: Sequence[Object]
    ) -> None:
        """What there is in this round; ``slices``: those that devalloc does not allocate from."""
        self._ends = self._clock() + ROUND_SECONDS
        sources = (*slices, *rules)
        if len(sources) != len(self._sources) or not all(map(is_, sources, self._sources)):
            self._sources = sources
            by_node: dict[str, list[Object]] = defaultdict(list)
            ordered = sorted(rules, key=lambda rule: str(rule["metadata"]["name"]))
            for content in slices:
                by_node[content["spec"].get("nodeName") or ""].append(dict(with_rule_taints(content, ordered)))
            self._by_node, self._shared = by_node, by_node.pop("", [])
        self._classes = classes
        holders: dict[tuple[str, str], list[Object]] = defaultdict(list)
        for claim in claims:
            results = ((allocation_of(claim) or {}).get("devices") or {}).get("results") or ()
            for pool in {(each["driver"], each["pool"]) for each in results}:
                holders[pool].append(claim)
        self._holders = holders

    def suit(self, node: Object, pending: Sequence[Object]) -> bool:
        """Whether kube-scheduler could give all these claims devices on a node."""
        name = node["metadata"]["name"]
        slices = (*self._by_node.get(name, ()), *self._shared)
        pools = dict.fromkeys((each["spec"]["driver"], each["spec"]["pool"]["name"]) for each in slices)
        holders = tuple({id(claim): claim for pool in pools for claim in self._holders.get(pool, ())}.values())
        shape = repr([(one["spec"].get("devices"), one["metadata"]["namespace"]) for one in pending])
        looked_at = (node, *slices, *holders, *self._classes)
        before, verdict = self._verdicts.get((shape, name), ((), True))
        if len(before) == len(looked_at) and all(map(is_, before, looked_at)):
            return verdict
        if self._clock() >= self._ends:
            return True
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts.clear()
        try:
            given = allocate(node, [*pending, *holders], self._classes, slices, deadline=NODE_SECONDS)
            suits = given is not None
        except AllocationError as error:
            suits = error.exceeded is not None  # unknown; otherwise kube-scheduler cannot judge it, either
        self._verdicts[shape, name] = looked_at, suits
        return suits
