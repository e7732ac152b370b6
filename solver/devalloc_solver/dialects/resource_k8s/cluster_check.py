"""Run the independent check on answers for a cluster: node by node, with what that node can see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.device_records import read_records
from devalloc.api.meta import DEVICE_RECORDS
from devalloc_solver.check.resource_k8s import (
    PlainAnswers,
    PriorUsage,
    PublishedPools,
    SelectorResults,
    check_answers,
)
from devalloc_solver.check.resource_k8s.prior_allocations import Records, copy_allocation
from devalloc_solver.dialects.resource_k8s.manifests import ClusterInput, Key
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode

Manifest = Mapping[str, Any]
PoolId = tuple[str, str]


class ClusterChecker:
    """Slices by the node that can see them, and who holds devices. What a node sees is read when first asked for."""

    def __init__(self, gates: frozenset[str]) -> None:
        self.classes: Mapping[str, Manifest] = {}
        """DeviceClasses by name"""
        self._gates = gates
        self._verdicts = SelectorResults(gates)
        self._plain = PlainAnswers(self._verdicts, gates)
        self._labels: dict[str, Mapping[str, str]] = {}
        self._places: dict[PoolId, str | None] = {}
        """pool -> the one node of its slices; None when it spans nodes"""
        self._slices: dict[str | None, dict[PoolId, Sequence[Manifest]]] = defaultdict(dict)
        """node (None: pools that span nodes) -> pool -> its slices"""
        self._offers: dict[str, PublishedPools] = {}
        self._held = PriorUsage({}, ())
        self._allocations: dict[Key, tuple[Manifest, Records]] = {}

    # -- what there is -------------------------------------------------------------------------------------------------

    def set_pool(self, pool: PoolId, slices: Sequence[Manifest]) -> None:
        """These are the slices of a pool now, of all its generations."""
        nodes = {one["spec"].get("nodeName") or None for one in slices}
        places = {self._places.pop(pool)} if pool in self._places else set()
        for place in places:
            del self._slices[place][pool]
            if not self._slices[place]:
                del self._slices[place]
        if slices:
            place = self._places[pool] = nodes.pop() if len(nodes) == 1 else None
            self._slices[place][pool] = slices
            places.add(place)
        if None in places:
            self._offers.clear()
        for place in places:
            self._offers.pop(place or "", None)

    def set_node(self, name: str, labels: Mapping[str, str]) -> None:
        """A node has these labels now."""
        if labels:
            self._labels[name] = labels
        else:
            self._labels.pop(name, None)
        self._offers.pop(name, None)

    # -- who has it ----------------------------------------------------------------------------------------------------

    def hold(self, key: Key, allocation: Manifest, records: Records, *, is_own: bool = False) -> None:
        """A claim that has nothing yet has an allocation; ``records``: what it recorded of its devices. ``is_own``: it
        is an answer, which no other code changes."""
        self._allocations[key] = (allocation if is_own else copy_allocation(allocation)), records
        self._held.add(*self._allocations[key])

    def free(self, key: Key) -> None:
        """A claim has its allocation no more, if it had one."""
        held = self._allocations.pop(key, None)
        if held is not None:
            self._held.remove(*held)

    def wrong(
        self, node: str, answers: Sequence[tuple[Key, Manifest, Manifest]], ends: float | None = None
    ) -> list[str]:
        """What is wrong with answers for claims on one node: (key, claim, AllocationResult) each, held or not yet.

        Raises budget.OutOfTime where that is not known at the monotonic time ``ends``.
        """
        self._verdicts.ends = ends
        if len(answers) == 1:
            key, claim, result = answers[0]
            if key not in self._allocations and self._plain.is_right(
                claim, result, self._offer(node), self._held, self.classes
            ):
                return []
        own = [self._allocations[key] for key, _, _ in answers if key in self._allocations]
        for held in own:
            self._held.remove(*held)
        try:
            pairs = [(claim, result) for _, claim, result in answers]
            return check_answers(pairs, self._offer(node), self._held, self.classes, self._verdicts, self._gates)
        finally:
            for held in own:
                self._held.add(*held)

    def _offer(self, node: str) -> PublishedPools:
        offer = self._offers.get(node)
        if offer is None:
            pools = (*self._slices.get(node, {}).values(), *self._slices.get(None, {}).values())
            metadata = {"name": node, "labels": dict(self._labels.get(node, {}))}
            slices = [one for slices in pools for one in slices]
            offer = self._offers[node] = PublishedPools({"metadata": metadata}, slices, self._gates)
        return offer


def make_cluster_checker(
    problem_input: ClusterInput, nodes: Mapping[str, ClusterNode], gates: frozenset[str]
) -> ClusterChecker:
    """The check of a cluster with what its claims hold."""
    checker = ClusterChecker(gates)
    checker.classes = problem_input.class_manifests
    for name, node in nodes.items():
        checker.set_node(name, node.labels)
    for pool, slices in slices_by_pool(problem_input.slices).items():
        checker.set_pool(pool, slices)
    for claim in problem_input.claims:
        if claim.allocation is not None:
            checker.hold(claim.key, claim.allocation, read_records(claim.annotations.get(DEVICE_RECORDS)))
    for refused in problem_input.refused:
        if refused.allocation is not None:
            checker.hold(refused.key, refused.allocation, {})
    return checker


def slices_by_pool(slices: Iterable[Manifest]) -> dict[PoolId, list[Manifest]]:
    """Slices by driver and pool."""
    pools: dict[PoolId, list[Manifest]] = defaultdict(list)
    for one in slices:
        pools[one["spec"]["driver"], one["spec"]["pool"]["name"]].append(one)
    return pools
