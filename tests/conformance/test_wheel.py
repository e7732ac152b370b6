"""The wheel as a user installs it: it is built, installed into an empty environment, and used away from the repository.

Its dependencies are those that the tests run with: nothing is fetched.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from devalloc.version import VERSION
from tests.support.repository import REPO


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(REPO)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def devalloc(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed command."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "bin" / "python"),
        "install",
        "--quiet",
        "--no-compile",
    ]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    # Only the path: what is installed editable there is by a file that this does not read
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "devalloc"


def run(devalloc: Path, folder: Path, *words: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DEVALLOC"))}
    done = subprocess.run([devalloc, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"devalloc-{VERSION}.dist-info/METADATA").decode()
        names = set(archive.namelist())
    for field in ("Author", "Keywords", "License-Expression", "Project-URL", "Classifier", "Requires-Python"):
        assert re.search(rf"^{field}: \S", metadata, re.MULTILINE), field
    assert re.findall(r"\]\((?!https?://)[^)]*\)", metadata) == [], "links of a page that is shown elsewhere"
    assert {
        f"{package}/py.typed"
        for package in ("devalloc", "devalloc_solver", "devalloc_node", "devalloc_machines", "devalloc_neon")
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "tools/", "benchmarks/"))]


def test_it_is_the_installed_one_that_runs(devalloc: Path, tmp_path: Path) -> None:
    script = "import devalloc as a, devalloc_node as b, devalloc_solver as c; print(a.__file__, b.__file__, c.__file__)"
    done = subprocess.run(
        [devalloc.with_name("python"), "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    paths = done.stdout.split()
    assert [path for path in paths if not Path(path).is_relative_to(devalloc.parents[1])] == []


INSTALL = ("install", "--dry-run=client", "--image-prefix", "localhost/", "--resource-claims", "--adoption")


@pytest.mark.parametrize("words", [("demo",), ("crds",), ("solve", "-f", "fleet.yaml"), ("--version",), INSTALL])
def test_it_works_away_from_the_repository(devalloc: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    fleet = "\n---\n".join(path.read_text() for path in sorted((REPO / "examples" / "whole-gpu").glob("*.yaml")))
    (tmp_path / "fleet.yaml").write_text(fleet)
    assert run(devalloc, tmp_path, *words)
