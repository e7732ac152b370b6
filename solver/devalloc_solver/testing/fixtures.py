"""Fixtures for pytest. Load them in a conftest.py: ``pytest_plugins = ["devalloc_solver.testing.fixtures"]``.

They are not loaded by themselves, because every run of pytest where devalloc is installed would pay for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from devalloc_solver.public.fleet import Fleet
from devalloc_solver.testing import Manifest, check_manifests, flatten


@pytest.fixture
def devalloc_fleet() -> Callable[..., Fleet]:
    """Makes a Fleet of manifests, or of lists of them. Raises ValueError if one is invalid, or cannot be used."""

    def make(*manifests: Manifest | Sequence[Manifest], placement: str = "pack") -> Fleet:
        __tracebackhide__ = True
        check_manifests(*manifests)
        fleet = Fleet.from_manifests(flatten(manifests), placement=placement)
        if fleet.problems:
            raise ValueError("\n".join(problem["message"] for problem in fleet.problems))
        return fleet

    return make
