"""The workflows of the hosting service, which cannot run here: what they use is pinned, and what they run is there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.repository import REPO

FOLDER = REPO / ".github" / "workflows"
WORKFLOWS = {path.name: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yml"))}


def jobs(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from WORKFLOWS[name]["jobs"].items()


def steps(name: str) -> Iterator[dict[str, Any]]:
    for _, job in jobs(name):
        yield from job["steps"]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (REPO / "Makefile").read_text(), re.MULTILINE))


def test_there_is_one_for_changes_one_for_each_night_one_for_releases_and_one_for_documents() -> None:
    assert {*WORKFLOWS} == {"ci.yml", "nightly.yml", "release.yml", "docs.yml"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_each_action_is_pinned_by_its_digest_with_its_version_beside_it(name: str) -> None:
    lines = [line for line in (FOLDER / name).read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.search(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_an_action_has_one_version_in_all_of_them() -> None:
    used = {step["uses"] for name in WORKFLOWS for step in steps(name) if "uses" in step}
    assert len({reference.partition("@")[0] for reference in used}) == len(used)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_job_has_no_more_rights_than_it_names_and_ends(name: str) -> None:
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    for job, content in jobs(name):
        assert content["timeout-minutes"] <= 120, job
        for step in content["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, job


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_they_run_is_in_the_repository(name: str) -> None:
    for step in steps(name):
        script = step.get("run", "")
        for target in re.findall(
            r"\bmake ([a-z][a-z-]*[a-z])(?![\w-])", script.replace("nightly-${{ matrix.what }}", "")
        ):
            assert target in targets(), script
        for path in re.findall(r"(?:^|\s)((?:\.ci|deploy)/[\w./-]+)", script):
            assert (REPO / path).is_file(), script


def test_each_night_runs_what_make_has_for_the_night() -> None:
    (job,) = WORKFLOWS["nightly.yml"]["jobs"].values()
    assert {f"nightly-{what}" for what in job["strategy"]["matrix"]["what"]} == {
        target for target in targets() if target.startswith("nightly-")
    }


def test_each_night_draws_more_where_a_change_draws_few() -> None:
    """Modules that look at a few random instances, or a few steps, unless `make fuzz` asks for more."""
    makefile = (REPO / "Makefile").read_text()
    (listed,) = re.findall(r"^SEARCHED := ((?:.*\\\n)*.*)$", makefile, re.MULTILINE)
    searched = {f"test_{name}" for name in listed.replace("\\", "").split()}
    reading = {
        path.name
        for path in (REPO / "tests" / "conformance").glob("test_*.py")
        if "from tests.support.examples import" in path.read_text()
    }
    assert reading == searched
    (examples,) = re.findall(r"^FUZZ_EXAMPLES \?= (\d+)$", makefile, re.MULTILINE)
    assert int(examples) >= 250, "what the module with the most draws by itself"


def test_a_night_can_be_repeated_by_its_seed() -> None:
    """Also the property tests, which draw a seed of their own for each turn."""
    done = subprocess.run(
        ["make", "--dry-run", "fuzz", "SEED=20261129"], cwd=REPO, capture_output=True, text=True, check=True
    )
    seeds = re.findall(r"--seed (\S+)|\bRANDOM=(\d+);", done.stdout)
    assert {first or second for first, second in seeds} == {"20261129"}
    assert len(seeds) == 4, "three programs, and the loop of property tests"


def test_no_script_takes_text_that_a_stranger_can_choose() -> None:
    """An expression in a script is text of it: the title of a change could be a command."""
    allowed = re.compile(r"\$\{\{ matrix\.\w+ \}\}")
    for name in WORKFLOWS:
        for step in steps(name):
            assert "${{" not in allowed.sub("", step.get("run", "")), step
