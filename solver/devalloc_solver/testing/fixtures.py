"""Fixtures for pytest. Load them in a conftest.py: ``pytest_plugins = ["devalloc_solver.testing.fixtures"]``.

They are not loaded by themselves, because every run of pytest where devalloc is installed would pay for that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from devalloc_solver.fleet.fleet import Fleet
from devalloc_solver.testing import Manifest, check_manifests


@pytest.fixture
def devalloc_fleet() -> Callable[..., Fleet]:
    """Makes a Fleet of manifests. Raises ValueError if one of them is invalid, or cannot be used."""

    def make(*manifests: Manifest, placement: str = "pack") -> Fleet:
        check_manifests(*manifests)
        fleet = Fleet.from_manifests(manifests, placement=placement)
        if fleet.problems:
            raise ValueError("\n".join(problem["message"] for problem in fleet.problems))
        return fleet

    return make
