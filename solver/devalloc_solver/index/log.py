"""The classes of nodes whose first node has come forward, in order, for those that look at it now and then."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.index.states import NodeClass

KEPT = 50_000
"""Changes kept at least; who is further behind starts afresh."""

Change = tuple[int, int, int, NodeClass]
"""(number of the kind of node, of the class, rank of the node that came in front, the class)"""


class Log:
    """Changes, numbered from the first ever. Whoever has read them all knows for each class a rank that is not above
    that of its first node: a node that joins behind others changes nothing of this, and is left out."""

    def __init__(self) -> None:
        self.start = 0
        self._entries: list[Change] = []

    @property
    def end(self) -> int:
        return self.start + len(self._entries)

    def add(self, rank: int, node: NodeClass) -> None:
        self._entries.append((node.kind.index, node.index, rank, node))
        if len(self._entries) > 2 * KEPT:
            del self._entries[:KEPT]
            self.start += KEPT

    def since(self, position: int) -> Sequence[Change]:
        return self._entries[position - self.start :]

    def restart(self) -> None:
        """Everybody starts afresh."""
        self.start = self.end + 1
        self._entries.clear()


class Touched:
    """The nodes that have changed in any way, in order; see ``Log``."""

    def __init__(self) -> None:
        self.start = 0
        self._entries: list[str | None] = []

    @property
    def end(self) -> int:
        return self.start + len(self._entries)

    def add(self, node: str | None) -> None:
        self._entries.append(node)
        if len(self._entries) > 2 * KEPT:
            del self._entries[:KEPT]
            self.start += KEPT

    def since(self, position: int) -> Sequence[str | None]:
        return self._entries[position - self.start :]
