"""Rules that hold for the unit tier."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_tree import memory_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """An empty folder in memory where the machine has that. pytest's own is on disk, and is looked for among all that
    other tests have: with thousands of tests that make thousands of files, a tenth of the tier."""
    with memory_folder() as name:
        yield Path(name)
