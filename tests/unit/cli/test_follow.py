"""How verbs wait: they look, and again after each change, until the time is up."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from devalloc.cli.follow import follow
from devalloc.store import Key
from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import claim

HOUR = 3600.0
KINDS = ("DeviceClaim",)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with closing(SQLiteStore(tmp_path / "store.db")) as opened:
        yield opened


def test_a_wait_ends_when_the_look_says_so(store: SQLiteStore) -> None:
    assert follow(store, KINDS, lambda: None, HOUR)


def test_without_time_there_is_one_look(store: SQLiteStore) -> None:
    looks: list[int] = []

    def look() -> float:
        looks.append(1)
        return math.inf

    assert not follow(store, KINDS, look, 0.0)
    assert looks == [1]


def test_a_change_during_a_look_is_seen_by_the_next(store: SQLiteStore) -> None:
    """Also if the look has read the object before: the wait would else be an hour."""

    def look() -> float | None:
        if any(Key.of(obj).name == "train" for obj in store.list(KINDS).objects):
            return None
        store.create(claim("train"))
        return math.inf

    assert follow(store, KINDS, look, HOUR)


def test_it_looks_again_though_nothing_changes(store: SQLiteStore) -> None:
    pauses: list[float | None] = [0.0, 0.01, None]
    assert follow(store, KINDS, lambda: pauses.pop(0), HOUR)
    assert pauses == []


def test_many_changes_cost_one_look(store: SQLiteStore) -> None:
    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        for number in range(20) if looks == 1 else ():
            store.create(claim(f"claim-{number}"))
        return math.inf

    assert not follow(store, KINDS, look, 1.0)
    assert looks <= 3, "the first, one after the changes, and one at the end"
