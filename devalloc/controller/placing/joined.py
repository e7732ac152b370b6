"""Which machines and claims are decided together, because one leads to the other."""

from __future__ import annotations


class Joined:
    """Sets that grow together."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str, str], set[tuple[str, str, str]]] = {}

    def join(self, one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
        mine, theirs = self._of.setdefault(one, {one}), self._of.setdefault(other, {other})
        if mine is not theirs:
            mine |= theirs
            for member in theirs:
                self._of[member] = mine

    def sets(self) -> list[list[tuple[str, str, str]]]:
        return sorted(sorted(members) for members in {id(found): found for found in self._of.values()}.values())
