"""The devices of a cluster as its nodes see them, and what of it lasts from one call to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_

from devalloc.api.problems import Problem
from devalloc_solver.dialects.resource_k8s.candidates import RequestJudge
from devalloc_solver.dialects.resource_k8s.claims import ResourceDeviceClass
from devalloc_solver.dialects.resource_k8s.device_properties import DeviceReader, make_snapshot
from devalloc_solver.dialects.resource_k8s.manifests import ClusterInput
from devalloc_solver.dialects.resource_k8s.pools import ClusterView, PoolId, SliceBook, view_cluster
from devalloc_solver.dialects.resource_k8s.published_devices import (
    DevicesInUse,
    DeviceUsage,
    PublishedDevice,
    duplicate_problems,
    list_published_devices,
    recorded_use,
)
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, ResourceSlice
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.problem.snapshot import Snapshot

MAX_VERDICTS = 64
"""Requests of which it is remembered what they may take; when there are more, all are forgotten."""


@dataclass(slots=True, eq=False)
class ClusterDevices:
    """The devices of slices, as long as these, the nodes, and what is in use beyond that are as they were."""

    gates: frozenset[str]
    book: SliceBook
    seen: ClusterView
    offers: list[PublishedDevice]
    is_of_usage: bool
    """whether other devices would be there, or draw other amounts, if something else were in use: some draw on counters
    where no node reaches them, or draw more than is published"""
    counted: frozenset[PoolId]
    """pools with counters"""
    are_compared: bool
    """whether claims compare attributes"""
    used: DevicesInUse = field(init=False)
    duplicates: tuple[Problem, ...] = field(init=False)
    """what to say of devices that are published more than once"""
    snapshot: Snapshot = field(init=False)

    def __post_init__(self) -> None:
        self.used = DevicesInUse(self.offers)
        self.duplicates = tuple(duplicate_problems(self.offers))
        self.snapshot = make_snapshot(self.offers, self.seen.nodes, DeviceReader(self.gates, self.are_compared))

    @classmethod
    def of(
        cls, book: SliceBook, seen: ClusterView, usage: DeviceUsage, gates: frozenset[str], *, are_compared: bool = True
    ) -> ClusterDevices:
        """``seen``: all pools of the book, or what one node sees. ``usage``: what is in use."""
        recorded = recorded_use(usage, book, (view.pool for view in seen.views))
        offers = list_published_devices(seen.views, None, gates, recorded)
        is_of_usage = any(not offer.nodes or offer.drawn is not None for offer in offers)
        if is_of_usage:
            offers = list_published_devices(seen.views, usage, gates, recorded)
        counted = frozenset(view.pool.id for view in seen.views if view.pool.counters)
        return cls(gates, book, seen, offers, is_of_usage, counted, are_compared)

    def judge(
        self,
        selectors: Judge,
        classes: Mapping[str, ResourceDeviceClass],
        usage: DeviceUsage | None = None,
    ) -> RequestJudge:
        """One that judges them, in use or not; or, with ``usage``, only those that are not in use."""
        broken = frozenset(self.seen.broken)
        return RequestJudge(self.gates, self.snapshot.devices, usage or DeviceUsage(), selectors, classes, broken)


@dataclass(slots=True)
class ClusterCache:
    """The devices of the last call and their judge. Slices are compared by the identity of what was read of them,
    which never changes; their manifests may."""

    _slices: Sequence[ResourceSlice] = field(default=(), init=False)
    _nodes: Mapping[str, ClusterNode] = field(default_factory=dict, init=False)
    _devices: ClusterDevices | None = field(default=None, init=False)
    _judge: RequestJudge | None = field(default=None, init=False)

    def take(
        self, problem_input: ClusterInput, gates: frozenset[str], usage: DeviceUsage
    ) -> tuple[ClusterDevices, RequestJudge]:
        """The devices of an input while this is in use, and who judges them."""
        slices = [problem_input.read[id(content)] for content in problem_input.slices]
        devices, judge = self._devices, self._judge
        is_same = len(slices) == len(self._slices) and all(map(is_, slices, self._slices))
        if (
            devices is None
            or not is_same
            or self._nodes != problem_input.nodes
            or devices.is_of_usage
            or devices.used.lacks_record(usage, devices.counted)
        ):
            book = SliceBook(problem_input.slices, gates, problem_input.read)
            devices = self._devices = ClusterDevices.of(book, view_cluster(book, problem_input.nodes), usage, gates)
            self._slices, self._nodes = slices, problem_input.nodes
        selectors = Judge(selector_language(gates)) if judge is None else judge.selectors
        is_forgotten = selectors.forget_exhausting()
        if judge is not None and judge.devices is not devices.snapshot.devices:
            selectors.forget_cuts()
        if (
            judge is None
            or judge.devices is not devices.snapshot.devices
            or is_forgotten
            or judge.size > MAX_VERDICTS
            or not judge.has_classes(problem_input.classes)
        ):
            judge = self._judge = devices.judge(selectors, problem_input.classes)
        return devices, judge
