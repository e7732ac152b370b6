"""What hangs together: parts of a set whose members have links in common, such as a counter that both draw on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

Member = TypeVar("Member", bound=Hashable)


class LinkedParts(Generic[Member]):
    """The finest parts in which no link, and no pair that was joined, leads from one to another."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._parent = {member: member for member in members}
        self._first: dict[Hashable, Member] = {}
        """By link the first member that has it."""

    def link(self, member: Member, links: Iterable[Hashable]) -> None:
        """Join a member with all others that have one of these links."""
        for link in links:
            self._join(member, self._first.setdefault(link, member))

    def join(self, members: Sequence[Member]) -> None:
        """Put members into one part."""
        for member in members[1:]:
            self._join(member, members[0])

    def parts(self) -> list[list[Member]]:
        """The parts in the order of their first members, and members in their order."""
        parts: dict[Member, list[Member]] = {}
        for member in self._parent:
            parts.setdefault(self._root(member), []).append(member)
        return list(parts.values())

    def _join(self, one: Member, other: Member) -> None:
        self._parent[self._root(one)] = self._root(other)

    def _root(self, member: Member) -> Member:
        parent = self._parent
        while (above := parent[member]) != member:
            parent[member] = member = parent[above]
        return member
