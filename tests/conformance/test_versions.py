"""The tests run with the versions of ``constraints.txt``, which the container images have too."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from deploy.images import bom, wheels
from deploy.images.constraints import constrained
from deploy.images.contents import BUILD_LOCK, build_requirements, contents

IMAGES = contents().images


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def test_installed_versions_are_those_of_the_constraints() -> None:
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


SHIPPABLE = {
    *(
        "0BSD",
        "3-Clause BSD License",
        "Apache 2.0",
        "Apache-2.0",
        "Apache License 2.0",
        "BSD License",
        "BSD-2-Clause",
        "BSD-3-Clause",
    ),
    *("CC0-1.0", "ISC", "LGPL-2.0-or-later", "LGPL-2.1-or-later", "MIT", "MIT License", "MIT-0", "MPL-2.0", "PSF-2.0"),
    *("Zlib",),
}
"""Licences under which a package may be shipped, unchanged, beside code of Apache-2.0."""


@pytest.mark.parametrize("image", IMAGES)
def test_each_wheel_has_a_licence_that_allows_to_ship_it(image: str, tmp_path: Path) -> None:
    """By the metadata of the same versions, installed here."""
    for name in wheels.locked(IMAGES[image].lock):
        metadata = distribution(name).read_text("METADATA") or ""
        folder = tmp_path / f"{name}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(metadata)
    for component in bom.wheel_components(tmp_path):
        (entry,) = component.get("licenses") or [None]
        assert entry is not None, f"{component['name']} has no licence: name it in deploy/images/bom.py"
        text = entry["license"]["name"]
        choices = [{*choice.split(" AND ")} for choice in text.split(" OR ")]
        assert any(choice <= SHIPPABLE for choice in choices), (component["name"], text)
