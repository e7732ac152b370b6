"""Which devices ResourceClaims select, of any allocator: in use or not, with any taint."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from operator import is_
from typing import Any

from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge
from devalloc_solver.dialects.resource_k8s.cluster_devices import MAX_VERDICTS, ClusterCache, ClusterDevices
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.fields import AllocationError
from devalloc_solver.dialects.resource_k8s.manifests import ClusterInput, read_documents
from devalloc_solver.dialects.resource_k8s.published_devices import DeviceUsage, published_device

Manifest = Mapping[str, Any]

MAX_SHAPES = 10_000
"""Specs of claims of which it is remembered what they select; when there are more, all are forgotten."""


class MatchCounts:
    """How many devices claims select, counted once for equal specs. Not thread-safe."""

    def __init__(self, seconds: float | None = None) -> None:
        """``seconds``: how long it counts between two calls of ``look``, beside reading what changed; None: as long as
        it takes."""
        self._seconds = seconds
        self._spent = 0.0
        self._objects: tuple[Manifest, ...] = ()
        self._bare: dict[int, tuple[Manifest, Manifest]] = {}
        """Slices and the same without taints, by the id of the slice."""
        self._input = ClusterInput()
        self._cache = ClusterCache()
        self._taken: tuple[ClusterDevices, RequestJudge] | None = None
        """The devices of these objects, and who judges them; None: they are not read yet, or cannot be."""
        self._is_read = False
        self._counts: dict[bytes, Mapping[str, int]] = {}
        self._before: dict[bytes, Mapping[str, int]] = {}
        """What was counted before the objects changed."""
        self.is_behind = False
        """There was no time for some counts since the last ``look``: they are those of before, or 0."""

    def look(self, objects: tuple[Manifest, ...]) -> None:
        """Slices, classes and Nodes as they are now; unchanged objects are the very same ones as before."""
        self._spent, self.is_behind = 0.0, False
        if len(objects) == len(self._objects) and all(map(is_, objects, self._objects)):
            return
        self._objects, self._taken, self._is_read = objects, None, False
        self._before |= self._counts
        if len(self._before) > MAX_SHAPES:
            self._before = self._counts
        self._counts = {}

    def matching(self, claim: Manifest) -> Mapping[str, int]:
        """Count by driver the devices that some request of a claim selects.

        What cannot be read, and requests whose class is missing or whose expressions are wrong or too expensive, count
        for nothing.
        """
        shape = hashlib.sha256(repr(claim["spec"].get("devices")).encode("utf-8", "surrogatepass")).digest()
        if (counted := self._counts.get(shape)) is not None:
            return counted
        if not self._is_read:
            self._read()
        began = time.monotonic()
        until = None if self._seconds is None else began + self._seconds - self._spent
        try:
            if until is not None and until <= began:
                raise OutOfTime
            counted = self._count(claim, until)
        except OutOfTime:
            self.is_behind = True
            return self._before.get(shape, {})
        finally:
            self._spent += time.monotonic() - began
        if len(self._counts) >= MAX_SHAPES:
            self._counts.clear()
        self._counts[shape] = counted
        return counted

    def _count(self, claim: Manifest, until: float | None) -> dict[str, int]:
        """Raises OutOfTime."""
        claims = read_documents([{**claim, "status": {}}], DEFAULT_GATES).claims
        if self._taken is None or not claims:
            return {}
        if self._taken[1].size > MAX_VERDICTS:
            self._take()
        _, judge = self._taken
        judge.selectors.allowance.begin(until, is_quick=True)
        matching: set[int] = set()
        for subrequest in claims[0].subrequests:
            if subrequest.class_name in self._input.classes:
                with suppress(AllocationError):
                    matching |= {*judge.choose(claims[0], subrequest).verdict.accepted}
        return dict(Counter(published_device(judge.devices[index]).pool.driver for index in sorted(matching)))

    def _read(self) -> None:
        """Read what has changed of the objects."""
        before, self._bare = self._bare, {}
        others: list[Manifest] = []
        for one in self._objects:
            if one.get("kind") != "ResourceSlice":
                others.append(one)
                continue
            pair = before.get(id(one))
            self._bare[id(one)] = pair if pair is not None and pair[0] is one else (one, _without_taints(one))
        slices = [bare for _, bare in self._bare.values()]
        read = {id(bare): self._input.read[id(bare)] for bare in slices if id(bare) in self._input.read}
        checked = {each: self._input.checked[each] for each in read.values() if each in self._input.checked}
        self._input, self._is_read = read_documents([*slices, *others], DEFAULT_GATES, read, checked), True
        with suppress(AllocationError):
            self._take()

    def _take(self) -> None:
        self._taken = self._cache.take(self._input, DEFAULT_GATES, DeviceUsage())


def _without_taints(content: Manifest) -> Manifest:
    spec = content["spec"]
    devices = [{name: value for name, value in each.items() if name != "taints"} for each in spec.get("devices") or ()]
    return {**content, "spec": {**spec, "devices": devices}} if devices else content
