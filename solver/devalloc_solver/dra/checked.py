"""The independent check over a whole answer: node by node, with no more of the cluster than the node can see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc_solver.check.resource import Verdicts, check_results
from devalloc_solver.dra.documents import Intake, Key
from devalloc_solver.dra.objects import Node

Manifest = Mapping[str, Any]
PoolId = tuple[str, str]


def wrong_answers(
    intake: Intake, nodes: Mapping[str, Node], gates: frozenset[str], answers: Sequence[tuple[Key, str, Manifest]]
) -> list[str]:
    """What the check finds in answers: (claim, node, AllocationResult) each."""
    slices = _Slices(intake.slices)
    held: dict[PoolId, dict[Key, Manifest]] = defaultdict(dict)
    allocated = [((c.namespace, c.name), c.allocation) for c in intake.claims if c.allocation is not None]
    allocated += [(refused.key, refused.allocation) for refused in intake.refused if refused.allocation is not None]
    for key, result in (*allocated, *((key, result) for key, _, result in answers)):
        for one in (result.get("devices") or {}).get("results") or ():
            held[one.get("driver"), one.get("pool")][key] = {"status": {"allocation": result}}
    by_node: dict[str, list[tuple[Key, Manifest]]] = defaultdict(list)
    for key, name, result in answers:
        by_node[name].append((key, result))
    verdicts = Verdicts(gates)
    found: list[str] = []
    for name, mine in sorted(by_node.items()):
        keys = {key for key, _ in mine}
        seen = slices.of(name)
        others = {key: claim for pool in _pools(seen) for key, claim in held[pool].items() if key not in keys}
        node = nodes.get(name, Node(name))
        found += check_results(
            [result for _, result in mine],
            {"metadata": {"name": name, "labels": dict(node.labels)}},
            [*(intake.manifests[key] for key, _ in mine), *others.values()],
            [*intake.class_manifests.values()],
            seen,
            features=gates,
            verdicts=verdicts,
        )
    return found


class _Slices:
    """Slices by the node that can see them; those of pools that span nodes are for all."""

    def __init__(self, slices: Iterable[Manifest]) -> None:
        places: dict[PoolId, set[str | None]] = defaultdict(set)
        for one in slices:
            places[_pool(one)].add(one["spec"].get("nodeName") or None)
        self._common: list[Manifest] = []
        self._local: dict[str, list[Manifest]] = defaultdict(list)
        for one in slices:
            where = places[_pool(one)]
            name = next(iter(where)) if len(where) == 1 else None
            (self._common if name is None else self._local[name]).append(one)

    def of(self, node: str) -> list[Manifest]:
        return [*self._local.get(node, ()), *self._common]


def _pool(one: Manifest) -> PoolId:
    return one["spec"]["driver"], one["spec"]["pool"]["name"]


def _pools(slices: Iterable[Manifest]) -> set[PoolId]:
    return {_pool(one) for one in slices}
