"""The tests run with the versions of ``constraints.txt``, which the container images have too."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from deploy.images.constraints import constrained


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
