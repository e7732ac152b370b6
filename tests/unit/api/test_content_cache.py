"""A cache of content gives what reading gives, reads equal content once, and is bounded."""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.content_cache import ContentCache


def test_equal_content_is_read_once() -> None:
    cache = ContentCache[list[Any]]()
    first = cache.get({"a": [1]}, lambda content: [content])

    assert cache.get({"a": [1]}, lambda _: ["read again"]) is first


def test_content_that_is_equal_in_python_only_is_read_by_itself() -> None:
    cache = ContentCache[str]()
    values: list[Any] = [1, True, 1.0, "1", [1], {"1": 1}]

    assert [cache.get(value, repr) for value in values] == [*map(repr, values)]


def test_content_that_is_not_plain_is_read_each_time() -> None:
    cache = ContentCache[list[Any]]()
    content = {"a": object()}

    assert cache.get(content, lambda _: [1]) == [1]
    assert cache.get(content, lambda _: [2]) == [2]
    assert len(cache) == 0


def test_content_that_cannot_be_read_is_not_cached() -> None:
    cache = ContentCache[int]()
    with pytest.raises(ValueError, match="invalid literal"):
        cache.get("x", int)
    assert len(cache) == 0


def test_long_content_is_not_cached() -> None:
    cache = ContentCache[list[Any]](key_bytes=100)
    long = "x" * 100
    assert cache.get(long, lambda _: [1]) == [1]
    assert cache.get(long, lambda _: [2]) == [2]
    assert len(cache) == 0
    assert cache.get("x", lambda _: [3]) is cache.get("x", lambda _: [4])


def test_the_bytes_of_all_keys_are_bounded() -> None:
    cache = ContentCache[str](max_bytes=1_000)
    most = 0
    for number in range(100):
        cache.get(f"{number:0100}", str)
        most = max(most, len(cache))
    assert most == 9, "with the header of each"
    cache.clear()
    for number in range(9):
        cache.get(f"{number:0100}", str)
    assert len(cache) == 9, "a cleared cache has all its room"


def test_the_entries_are_bounded() -> None:
    cache = ContentCache[str](size=3)
    for number in range(20):
        assert cache.get(number, str) == str(number)
        assert len(cache) <= 3
