"""With CI=true a skip is a failure in every tier, except those that tests/conftest.py names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ALLOWED_SKIPS
from tests.support.repository import REPO

TESTS = """
import pytest


@pytest.fixture
def machine():
    pytest.skip("no machine")


def test_in_its_body():
    pytest.skip("no reason")


@pytest.mark.skipif(True, reason="not root")
def test_by_a_mark():
    pass


def test_by_a_fixture(machine):
    pass


@pytest.mark.xfail
def test_that_must_fail():
    assert False


@pytest.mark.parametrize("case", [1])
def test_that_runs(case):
    pass
"""


def run(file: Path, content: str, ci: str) -> tuple[str, dict[str, int]]:
    """What is printed, and how many tests ended how."""
    file.write_text(content)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    words += ["-c", str(REPO / "pyproject.toml"), "--rootdir", str(REPO), str(file)]
    environment = {**os.environ, "CI": ci}
    done = subprocess.run(words, cwd=REPO, env=environment, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    return done.stdout, {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}


def test_a_skip_is_a_failure_only_with_ci(tmp_path: Path) -> None:
    file = tmp_path / "test_skipping.py"
    assert run(file, TESTS, "")[1] == {"passed": 1, "skipped": 3, "xfailed": 1}
    printed, counts = run(file, TESTS, "true")
    assert counts == {"passed": 1, "failed": 1, "errors": 2, "xfailed": 1}, "a skip by a mark or a fixture is an error"
    for reason in ("no machine", "no reason", "not root"):
        assert re.search(f"skipped although CI=true: .*{reason}", printed)


def test_a_module_that_skips_itself_is_a_failure_only_with_ci(tmp_path: Path) -> None:
    file, content = tmp_path / "test_skipping.py", "import pytest\npytest.importorskip('no_such_module')\n"
    assert run(file, content, "")[1] == {"skipped": 1}
    assert run(file, content, "true")[1] == {"error": 1}


def test_cases_that_are_missing_are_an_error(tmp_path: Path) -> None:
    content = "import pytest\n\n@pytest.mark.parametrize('case', [])\ndef test_all(case):\n    pass\n"
    printed, counts = run(tmp_path / "test_empty.py", content, "")
    assert counts == {"error": 1}
    assert "Empty parameter set" in printed


@pytest.mark.parametrize("name", ALLOWED_SKIPS)
def test_a_skip_that_is_allowed_is_of_a_test_that_exists(name: str) -> None:
    path, _, test = name.partition("::")
    assert f"def {test.split('::')[-1]}(" in (REPO / path).read_text()
