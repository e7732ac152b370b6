"""Change logs of the index: the node classes whose best node has changed, and the nodes that have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from devalloc_solver.fleet.pool_states import NodeClass

MIN_CHANGES_KEPT = 50_000
"""Changes kept at least; who is further behind starts afresh."""
SPARE_CLASSES = 1_000
"""Classes without nodes that are kept, beside as many as there are with nodes."""

T = TypeVar("T")
Change = tuple[int, int, int, NodeClass]
"""(number of the kind of node, of the class, rank of the node that came in front, the class)"""


class ChangeLog(Generic[T]):
    """Changes, numbered from the first ever; the oldest are forgotten."""

    def __init__(self) -> None:
        self.start = 0
        self._entries: list[T] = []

    @property
    def end(self) -> int:
        return self.start + len(self._entries)

    def add(self, change: T) -> None:
        self._entries.append(change)
        if len(self._entries) > 2 * MIN_CHANGES_KEPT:
            del self._entries[:MIN_CHANGES_KEPT]
            self.start += MIN_CHANGES_KEPT

    def since(self, position: int) -> Sequence[T]:
        return self._entries[position - self.start :]


NodeChangeLog = ChangeLog[str | None]
"""The nodes that have changed in any way, in order."""


class ClassChangeLog(ChangeLog[Change]):
    """The classes whose best node has changed. A reader of all changes knows for each class a rank that is not above
    that of its first node: a node that joins behind others changes nothing of this, and is left out."""

    def __init__(self) -> None:
        super().__init__()
        self._met: dict[int, NodeClass] = {}
        """those that a node has come to: all that have nodes, and some that had"""
        self._most = SPARE_CLASSES

    def enter(self, rank: int, node: NodeClass) -> None:
        """A node came in front of a class."""
        self.add((node.kind.index, node.index, rank, node))
        self._met[node.index] = node
        if len(self._met) > self._most:
            self._keep({number: each for number, each in self._met.items() if each.count})

    def classes(self, current: Mapping[int, NodeClass]) -> list[NodeClass]:
        """All that have nodes, of those that are ``current`` still: the first node to join a class is a change.

        Most classes there ever were have none: nodes pass through many. Their number is not what this costs.
        """
        self._keep({n: each for n, each in self._met.items() if each.count and current.get(n) is each})
        return list(self._met.values())

    def _keep(self, classes: dict[int, NodeClass]) -> None:
        self._met, self._most = classes, 2 * len(classes) + SPARE_CLASSES
