"""`make test-lowest` tries each library that devalloc runs with, by tests that exist."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement

from tests.support.repository import REPO
from tools.lowest_tests import paths, paths_by_library

DEVELOPERS = {"all", "test", "dev"}
TABLE = paths_by_library()


def libraries() -> set[str]:
    """Of the packages that a user installs."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = [extra for name, extra in project["optional-dependencies"].items() if name not in DEVELOPERS]
    texts = [*project["dependencies"], *(text for extra in extras for text in extra)]
    return {Requirement(text).name.lower() for text in texts} - {"devalloc"}


def test_each_library_has_tests_that_its_lowest_version_can_break() -> None:
    assert {name for table in TABLE.values() for name in table} == libraries()
    assert all(names for table in TABLE.values() for names in table.values())


@pytest.mark.parametrize("environment", TABLE)
def test_the_tests_exist(environment: str) -> None:
    assert [path for path in paths(environment) if not (REPO / path).exists()] == []


def test_a_file_is_not_listed_beside_its_folder() -> None:
    assert "tests/unit/api" in paths("base")
    assert not [path for path in paths("base") if path.startswith("tests/unit/api/")]
