"""`make test-all` lists what it is going to build, and shows how far it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import builds
from tests.support.builds import BUILDS
from tests.support.repository import REPO


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(builds, "cache_folder", lambda: tmp_path)
    return tmp_path


def made(cache: Path, name: str) -> None:
    for pattern in BUILDS[name].results:
        path = cache / pattern.replace("*", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_on_a_new_machine_all_is_announced_with_time_download_and_disk(capsys: pytest.CaptureFixture[str]) -> None:
    assert builds.main([]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(BUILDS)
    assert f"about {sum(build.minutes for build in BUILDS.values())} min" in first
    for line in (first, *lines):
        assert "to download" in line
        assert "on disk" in line


def test_what_is_built_is_not_announced(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(cache, "machines")
    builds.main([])
    assert BUILDS["machines"].title not in capsys.readouterr().out
    for name in BUILDS:
        made(cache, name)
    builds.main([])
    assert capsys.readouterr().out == "Everything that the tests build once is there.\n"


@pytest.mark.parametrize("name", BUILDS)
def test_a_build_that_lacks_one_of_its_results_is_announced(name: str, cache: Path) -> None:
    made(cache, name)
    assert BUILDS[name].is_built(cache)
    (cache / BUILDS[name].results[-1].replace("*", "x")).unlink()
    assert not BUILDS[name].is_built(cache)


def test_a_build_that_fails_says_so(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILDS, "browser", replace(BUILDS["browser"], module="tests.support.no_such_module"))
    assert builds.main(["browser"]) == 1
    assert "could not be built" in capfd.readouterr().out


def test_an_unknown_build_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert builds.main(["brwoser"]) == 2
    assert "unknown build 'brwoser'" in capsys.readouterr().err


def test_make_builds_all_of_them() -> None:
    makefile = (REPO / "Makefile").read_text()
    built = {name for line in makefile.splitlines() if "tests.support.builds" in line for name in line.split()}
    assert built >= {*BUILDS}
