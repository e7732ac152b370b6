"""Fake hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_sysfs import FakeSysfs


@pytest.fixture
def host(tmp_path: Path) -> FakeSysfs:
    """A host without cards."""
    return FakeSysfs(tmp_path)
