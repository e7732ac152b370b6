"""A cache of what was read from content, so that equal content is read once."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, Generic, TypeVar

MAX_ENTRIES = 4_096
MAX_KEY_BYTES = 16_384
"""Longer content is read each time. Parts that devices repeat are shorter, and so are the counters of a usual node."""
MAX_BYTES = 2_097_152
"""Maximum of all keys together. What was read from a key took up to 16 times its size, so a cache is below 40 MiB."""

T = TypeVar("T")


class ContentCache(Generic[T]):
    """Reads equal content once. For parts of content that a large fleet repeats many times, such as devices without
    their names.

    Bounded in entries and in bytes: long content is not cached, and a full cache is cleared. Users must not change what
    was read: it is shared.
    """

    def __init__(self, size: int = MAX_ENTRIES, *, key_bytes: int = MAX_KEY_BYTES, max_bytes: int = MAX_BYTES) -> None:
        """``size``: maximum number of entries. ``key_bytes``, ``max_bytes``: maximum size of one key, and of all."""
        self._size = size
        self._key_bytes = key_bytes
        self._max_bytes = max_bytes
        self._bytes = 0
        self._by_content: dict[bytes, T] = {}

    def __len__(self) -> int:
        return len(self._by_content)

    def clear(self) -> None:
        self._by_content.clear()
        self._bytes = 0

    def get(self, content: Any, read: Callable[[Any], T]) -> T:
        """What ``read`` makes of the content; not None. Raises what ``read`` raises."""
        try:
            key = marshal.dumps(content, 0)
        except ValueError:  # not plain content
            return read(content)
        value = self._by_content.get(key)
        if value is None:
            value = read(content)
            if len(key) > self._key_bytes:
                return value
            if len(self) >= self._size or self._bytes + len(key) > self._max_bytes:
                self.clear()
            self._by_content[key] = value
            self._bytes += len(key)
        return value
