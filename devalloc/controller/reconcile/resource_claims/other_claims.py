"""Claims of pods that kube-scheduler allocates: the nodes on which they could have devices.

devalloc allocates first, and its devices tie the pod to a node. On a node without devices for the pod's other claims,
kube-scheduler would send the claim back. So such nodes are left out, as far as can be computed in bounded time; on the
others kube-scheduler still sends it back.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from devalloc.controller.reconcile.resource_claims.pending import allocation_of
from devalloc_solver.dialects.resource_k8s.taint_rules import with_rule_taints
from devalloc_solver.dra import AllocationError, allocate

Object = dict[str, Any]

ROUND_SECONDS = 0.5
"""How long a round computes this; nodes that it does not come to are taken to suit, or as in the last round."""
NODE_SECONDS = 0.1
"""The same for one node."""
MAX_VERDICTS = 20_000
"""Verdicts that are remembered; when there are more, all are forgotten."""
MAX_SHAPES = 1000
"""Sets of claims of which it is remembered where they found nothing; when there are more, all are forgotten."""


@dataclass(frozen=True, slots=True, eq=False)
class _NodeView:
    """All that decides about a node; the very same one as long as nothing of it changes."""

    node: Object
    slices: tuple[Object, ...]
    holders: tuple[Object, ...]
    classes: Sequence[Object]

    def is_same(self, other: _NodeView) -> bool:
        parts, others = self._parts(), other._parts()
        return len(parts) == len(others) and all(map(is_, parts, others))

    def _parts(self) -> tuple[Object, ...]:
        return (self.node, *self.slices, *self.holders, *self.classes)


@dataclass(slots=True)
class _Judged:
    """What is known of some claims in this round, by the names of nodes."""

    nodes: set[str] = field(default_factory=set)
    unsuited: set[str] = field(default_factory=set)


class OtherClaims:
    """Not thread-safe. Claims that ask for the same are judged once in a round."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = 0.0
        self._classes: Sequence[Object] = ()
        self._by_node: Mapping[str, Sequence[Object]] = {}
        """Slices of one node, with the taints of rules."""
        self._shared: Sequence[Object] = ()
        self._holders: Mapping[tuple[str, str], Sequence[Object]] = {}
        """Claims with devices, by driver and pool."""
        self._verdicts: dict[tuple[bytes, str], tuple[_NodeView, bool]] = {}
        """By what is asked for and node: what was looked at, and whether it suits."""
        self._judged: dict[bytes, _Judged] = {}
        """By what is asked for, in this round."""
        self._before: dict[bytes, _Judged] = {}
        """The same of the last round that had the time for it."""
        self._views: dict[str, _NodeView] = {}
        """Of this round, by node."""
        self._last_views: dict[str, _NodeView] = {}
        self._sources: tuple[Object, ...] = ()

    def look(
        self, slices: Sequence[Object], classes: Sequence[Object], claims: Iterable[Object], rules: Sequence[Object]
    ) -> None:
        """What there is in this round; ``slices``: those that devalloc does not allocate from."""
        self._ends = self._clock() + ROUND_SECONDS
        self._before |= self._judged
        if len(self._before) > MAX_SHAPES:
            self._before = self._judged
        self._judged, self._last_views, self._views = {}, self._views, {}
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

    def suiting(self, names: Collection[str], nodes: Mapping[str, Object], pending: Sequence[Object]) -> set[str]:
        """On which of the nodes of these names kube-scheduler could give all these claims devices."""
        wanted = [(one["spec"].get("devices"), one["metadata"]["namespace"]) for one in pending]
        shape = hashlib.sha256(repr(wanted).encode("utf-8", "surrogatepass")).digest()
        before = self._before.get(shape, _Judged())
        if shape not in self._judged and self._clock() >= self._ends:
            return {*names} - before.unsuited
        judged = self._judged.setdefault(shape, _Judged())
        for name in sorted({*names} - judged.nodes):
            suits = self._suits(name, nodes[name], shape, pending)
            if suits is None:
                judged.unsuited |= before.unsuited - judged.nodes
                break
            judged.nodes.add(name)
            if not suits:
                judged.unsuited.add(name)
        return {*names} - judged.unsuited

    def _suits(self, name: str, node: Object, shape: bytes, pending: Sequence[Object]) -> bool | None:
        """None if there is no time to find out."""
        view = self._view(name, node)
        before, verdict = self._verdicts.get((shape, name), (None, True))
        if before is view:
            return verdict
        if self._clock() >= self._ends:
            return None
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts.clear()
        try:
            given = allocate(node, [*pending, *view.holders], self._classes, view.slices, deadline=NODE_SECONDS)
            suits = given is not None
        except AllocationError as error:
            suits = error.exceeded is not None  # unknown; otherwise kube-scheduler cannot judge it, either
        self._verdicts[shape, name] = view, suits
        return suits

    def _view(self, name: str, node: Object) -> _NodeView:
        if (view := self._views.get(name)) is not None:
            return view
        slices = (*self._by_node.get(name, ()), *self._shared)
        pools = dict.fromkeys((each["spec"]["driver"], each["spec"]["pool"]["name"]) for each in slices)
        holders = tuple({id(claim): claim for pool in pools for claim in self._holders.get(pool, ())}.values())
        view = _NodeView(node, slices, holders, self._classes)
        if (before := self._last_views.get(name)) is not None and before.is_same(view):
            view = before
        self._views[name] = view
        return view
