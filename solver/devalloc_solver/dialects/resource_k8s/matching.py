"""Which devices ResourceClaims select, of any allocator: in use or not, with any taint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.dialects.resource_k8s.cluster_devices import ClusterDevices
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.fields import AllocationError
from devalloc_solver.dialects.resource_k8s.manifests import read_documents
from devalloc_solver.dialects.resource_k8s.pools import SliceBook
from devalloc_solver.dialects.resource_k8s.published_devices import DeviceUsage
from devalloc_solver.dialects.resource_k8s.selectors import SelectorJudge

Manifest = Mapping[str, Any]

MAX_SHAPES = 256
"""Specs of claims of which it is remembered what they select; when there are more, all are forgotten."""


class MatchCounts:
    """How many devices claims select, counted once for equal specs. Not thread-safe."""

    def __init__(self) -> None:
        self._objects: tuple[Manifest, ...] = ()
        self._counts: dict[str, Mapping[str, int]] = {}

    def look(self, objects: tuple[Manifest, ...]) -> None:
        """Slices, classes and Nodes as they are now; unchanged objects are the very same ones as before."""
        if len(objects) != len(self._objects) or not all(map(is_, objects, self._objects)):
            self._objects, self._counts = objects, {}

    def matching(self, claim: Manifest) -> Mapping[str, int]:
        """By driver."""
        shape = repr(claim["spec"].get("devices"))
        if shape not in self._counts:
            if len(self._counts) >= MAX_SHAPES:
                self._counts.clear()
            self._counts[shape] = count_matching_devices(claim, self._objects)
        return self._counts[shape]


def count_matching_devices(claim: Manifest, others: Iterable[Manifest]) -> dict[str, int]:
    """Count by driver the devices that some request of a claim selects.

    ``others``: slices, classes and Nodes. What cannot be read, and requests whose class is missing or whose expressions
    are wrong or too expensive, count for nothing.
    """
    bare = [_without_taints(one) if one.get("kind") == "ResourceSlice" else one for one in others]
    documents = read_documents([*bare, {**claim, "status": {}}], DEFAULT_GATES)
    if not documents.claims:
        return {}
    matching: set[int] = set()
    try:
        book = SliceBook(documents.slices, DEFAULT_GATES, documents.read)
        devices = ClusterDevices.of(book, documents.nodes, DeviceUsage(), DEFAULT_GATES)
    except AllocationError:
        return {}
    judge = devices.judge(SelectorJudge(DEFAULT_GATES), documents.classes)
    for subrequest in documents.claims[0].subrequests:
        if subrequest.class_name in documents.classes:
            try:
                matching |= {*judge.choose(documents.claims[0], subrequest).verdict.accepted}
            except (AllocationError, OutOfTime):
                continue
    return dict(Counter(devices.offers[index].pool.driver for index in sorted(matching)))


def _without_taints(content: Manifest) -> Manifest:
    spec = content["spec"]
    devices = [{name: value for name, value in each.items() if name != "taints"} for each in spec.get("devices") or ()]
    return {**content, "spec": {**spec, "devices": devices}} if devices else content
