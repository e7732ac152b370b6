"""Nodes that are equal for a claim and any relaxation of it: while nothing is allocated, one stands for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from devalloc.api.meta import COMPATIBILITY_GROUP, ONLY_CLASS, UNAVAILABLE
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

Node = str | None


@dataclass(slots=True)
class EqualNodes:
    """Compares the nodes of one fleet, by the attributes that matter."""

    snapshot: Snapshot
    _static: list[int] | None = None
    """device -> a number for all but its attributes"""
    _looks: dict[frozenset[str], dict[Node, object]] = field(default_factory=dict)

    def one_of_each(self, nodes: Iterable[Node], names: frozenset[str], touched: frozenset[Node]) -> list[Node]:
        """The nodes without those that look like an earlier one.

        ``names`` are the attributes that anything reads; ``touched`` nodes are not what the fleet says they are.
        """
        looks = self._looks_by(names)
        seen: set[object] = set()
        distinct = []
        for node in nodes:
            look = node if node in touched else looks.get(node)
            if look not in seen:
                seen.add(look)
                distinct.append(node)
        return distinct

    def _looks_by(self, names: frozenset[str]) -> dict[Node, object]:
        if names not in self._looks:
            static = self._static_numbers()
            order = sorted({*names, UNAVAILABLE, ONLY_CLASS, COMPATIBILITY_GROUP})
            numbers: dict[object, int] = {}

            def number(device: Device) -> int:
                values = tuple((type(v), v) if v is not None else None for v in map(device.attributes.get, order))
                return numbers.setdefault((static[device.index], values), len(numbers))

            def look(pool: Pool) -> object:
                limits = tuple((name, r.block, r.blocks) for name, r in sorted(pool.resources.items()))
                return pool.driver, limits, tuple(sorted(map(number, pool.devices)))

            by_node = self.snapshot.pools_by_node
            self._looks[names] = {node: tuple(map(look, pools)) for node, pools in by_node.items() if node is not None}
        return self._looks[names]

    def _static_numbers(self) -> list[int]:
        if self._static is None:
            numbers: dict[object, int] = defaultdict(lambda: len(numbers))
            self._static = [
                numbers[
                    device.draws,
                    device.undefined,
                    device.shareable,
                    tuple((name, r.block, r.blocks) for name, r in sorted(device.resources.items())),
                ]
                for device in self.snapshot.devices
            ]
        return self._static
