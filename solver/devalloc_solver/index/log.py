"""What has changed in the fleet, in order, for those that look at it now and then."""

from __future__ import annotations

from collections.abc import Sequence

from devalloc_solver.index.states import NodeClass, NodeRecord

KEPT = 50_000
"""Changes kept at least; who is further behind starts afresh."""


class Log:
    """Entries (number of a class, a node that joined it, the class), numbered from the first ever."""

    def __init__(self) -> None:
        self.start = 0
        self._entries: list[tuple[int, NodeRecord, NodeClass]] = []

    @property
    def end(self) -> int:
        return self.start + len(self._entries)

    def add(self, record: NodeRecord, node: NodeClass) -> None:
        self._entries.append((node.index, record, node))
        if len(self._entries) > 2 * KEPT:
            del self._entries[:KEPT]
            self.start += KEPT

    def since(self, position: int) -> Sequence[tuple[int, NodeRecord, NodeClass]]:
        return self._entries[position - self.start :]

    def restart(self) -> None:
        """Everybody starts afresh."""
        self.start = self.end + 1
        self._entries.clear()
