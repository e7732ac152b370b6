"""The independent check over answers for a cluster: node by node, with no more of it than the node can see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc_solver.check.resource import Verdicts, check_results
from devalloc_solver.dra.documents import Intake, Key
from devalloc_solver.dra.objects import Node
from devalloc_solver.dra.usage import readable

Manifest = Mapping[str, Any]
PoolId = tuple[str, str]


class Checker:
    """Slices by the node that can see them, and who holds devices of which pool."""

    def __init__(
        self, slices: Sequence[Manifest], classes: Iterable[Manifest], nodes: Mapping[str, Node], gates: frozenset[str]
    ) -> None:
        self._classes, self._nodes, self._gates = list(classes), nodes, gates
        self._verdicts = Verdicts(gates)
        self._held: dict[PoolId, dict[Key, Manifest]] = defaultdict(dict)
        self._common: list[Manifest] = []
        """of pools that span nodes"""
        self._local: dict[str, list[Manifest]] = defaultdict(list)
        places: dict[PoolId, set[str | None]] = defaultdict(set)
        for one in slices:
            places[_pool(one)].add(one["spec"].get("nodeName") or None)
        for one in slices:
            where = places[_pool(one)]
            name = next(iter(where)) if len(where) == 1 else None
            (self._common if name is None else self._local[name]).append(one)

    def hold(self, key: Key, allocation: Manifest) -> None:
        """A claim has an allocation."""
        sound = readable(allocation)
        for pool in _pools_of(sound):
            self._held[pool][key] = {"status": {"allocation": sound}}

    def free(self, key: Key, allocation: Manifest) -> None:
        """A claim has it no more."""
        for pool in _pools_of(readable(allocation)):
            self._held[pool].pop(key, None)

    def wrong(self, node: str, answers: Sequence[tuple[Key, Manifest, Manifest]]) -> list[str]:
        """What is wrong with answers for claims on one node: (key, claim, AllocationResult) each, held or not yet."""
        keys = {key for key, _, _ in answers}
        seen = [*self._local.get(node, ()), *self._common]
        pools = {_pool(one) for one in seen}
        others = {k: claim for pool in pools for k, claim in self._held.get(pool, {}).items() if k not in keys}
        labels = dict(self._nodes[node].labels) if node in self._nodes else {}
        return check_results(
            [result for _, _, result in answers],
            {"metadata": {"name": node, "labels": labels}},
            [*(claim for _, claim, _ in answers), *others.values()],
            self._classes,
            seen,
            features=self._gates,
            verdicts=self._verdicts,
        )


def make_checker(intake: Intake, nodes: Mapping[str, Node], gates: frozenset[str]) -> Checker:
    """The check of a cluster with what its claims hold."""
    checker = Checker(intake.slices, intake.class_manifests.values(), nodes, gates)
    for claim in intake.claims:
        if claim.allocation is not None:
            checker.hold((claim.namespace, claim.name), claim.allocation)
    for refused in intake.refused:
        if refused.allocation is not None:
            checker.hold(refused.key, refused.allocation)
    return checker


def _pool(one: Manifest) -> PoolId:
    return one["spec"]["driver"], one["spec"]["pool"]["name"]


def _pools_of(allocation: Manifest) -> set[PoolId]:
    return {(one["driver"], one["pool"]) for one in allocation["devices"]["results"]}
