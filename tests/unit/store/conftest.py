"""The stores that the conformance tests run over; another implementation joins by one more entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devalloc.store import Store
from devalloc.store.sqlite import SQLiteStore

STORES: dict[str, Callable[[Path], Store]] = {
    "sqlite": lambda folder: SQLiteStore(folder / "devalloc.db", deletions_kept=20),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store that remembers the last 20 deletions."""
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()
