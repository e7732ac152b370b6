"""The tests run with the versions of ``constraints.txt``, which the container images have too."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement

from deploy.images import wheels
from deploy.images.constraints import constrained
from deploy.images.contents import BUILD_LOCK, build_requirements


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def test_what_is_installed_is_what_the_constraints_say() -> None:
    """If not: make setup. Some packages are for certain versions of Python only, and not installed with others."""
    installed = {name: _installed(name) for name in constrained()}
    there = {name: each for name, each in installed.items() if each is not None}
    assert {name: constrained()[name].version for name in there} == there
    assert there.keys() >= {"pydantic", "protobuf", "grpcio", "grpcio-health-checking", "kubernetes", "ortools"}


def test_all_that_the_build_backend_needs_is_locked() -> None:
    """If not: python -m deploy.images lock."""
    (backend,) = map(Requirement, build_requirements())
    needed = [Requirement(line) for line in requires(backend.name) or []]
    assert {each.name for each in needed if not each.marker or each.marker.evaluate()} <= wheels.locked(
        BUILD_LOCK
    ).keys()
