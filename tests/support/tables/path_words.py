"""Numbers and flags of a case by words of their paths, for tables that spell and nest names in several ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class PathWords:
    """The values of a case. A path is all names down to a value, without case: ``pod before.reserved``."""

    def __init__(self, content: dict[str, Any], shared: PathWords | None = None) -> None:
        """``shared``: where values are looked for that the case does not have."""
        self._values = {path: value for path, value in _leaves(content, "") if value is not None}
        self._shared = shared

    def each_without(self, one: str, other: str) -> list[PathWords]:
        """Where there are values of either word: those but the other's, for each of them. Else just all."""
        if not (self.has(one) and self.has(other)):
            return [self]
        return [self._without(other), self._without(one)]

    def _without(self, word: str) -> PathWords:
        rest = PathWords({}, None if self._shared is None else self._shared._without(word))
        rest._values = {path: value for path, value in self._values.items() if word not in path}
        return rest

    def has(self, *words: str, but: tuple[str, ...] = ()) -> bool:
        """Whether there is a value whose path has all these words and none of ``but``."""
        return bool(self._named(words, but)) or (self._shared is not None and self._shared.has(*words, but=but))

    def number(self, *words: str, but: tuple[str, ...] = (), otherwise: float | None = None) -> float:
        """The only number of these words; ``otherwise`` where there is none. Raises ValueError."""
        if otherwise is not None and not self.has(*words, but=but):
            return otherwise
        value = self._only(words, but)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{' '.join(words)} must be a number, not {value!r}")
        return value

    def flag(self, *words: str) -> bool:
        """The only flag of these words. Raises ValueError."""
        value = self._only(words, ())
        if not isinstance(value, bool):
            raise ValueError(f"{' '.join(words)} must be true or false, not {value!r}")
        return value

    def _only(self, words: tuple[str, ...], but: tuple[str, ...]) -> Any:
        names = self._named(words, but)
        if not names and self._shared is not None:
            return self._shared._only(words, but)
        if len(names) != 1:
            raise ValueError(f"one value must be called {' '.join(words)}, not {', '.join(names) or 'none'}")
        return self._values[names[0]]

    def _named(self, words: tuple[str, ...], but: tuple[str, ...]) -> list[str]:
        return [
            path
            for path in self._values
            if all(word in path for word in words) and not any(word in path for word in but)
        ]


def _leaves(content: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(content, dict):
        yield path, content
        return
    for name, value in content.items():
        yield from _leaves(value, f"{path}.{name}".lower())
