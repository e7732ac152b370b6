"""`make test` runs on a fresh machine; `make test-all` and `.ci/run` leave no tier out."""

from __future__ import annotations

import os
import re
import subprocess

from tests.support.builds import BUILDS
from tests.support.repository import REPO

TIERS = {"unit", "conformance", "machine", "cluster"}


def planned(*words: str) -> str:
    """What make would run."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "CI"))}
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", *words],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def tiers(plan: str) -> list[str]:
    lines = [line for line in plan.splitlines() if "-m pytest" in line]
    return [tier for line in lines for tier in re.findall(r"tests/(\w+)", line.partition("-m pytest")[2])]


def builds(plan: str) -> list[str]:
    return [name for line in re.findall(r"tests\.support\.builds (.*?) \|\|", plan) for name in line.split()]


def test_the_tests_of_a_fresh_machine_build_nothing() -> None:
    plan = planned("test")
    assert tiers(plan) == ["unit", "conformance"]
    assert builds(plan) == []


def test_all_tests_are_of_all_tiers_after_all_builds() -> None:
    plan = planned("test-all")
    assert sorted(tiers(plan)) == sorted(TIERS)
    assert sorted(builds(plan)) == sorted(BUILDS)


def test_what_tests_would_skip_for_is_built_first_if_a_skip_is_a_failure() -> None:
    plan = planned("test", "CI=true")
    assert builds(plan) == ["upstream", "selectors", "browser"]
    assert plan.index("tests.support.builds") < plan.index("pytest tests/unit tests/conformance")


def test_the_check_before_a_merge_runs_each_tier_once() -> None:
    (words,) = re.findall(r"^step make (test .*?)(?: *#.*)?$", (REPO / ".ci" / "run").read_text(), re.MULTILINE)
    plan = planned(*words.split(), "CI=true")
    assert sorted(tiers(plan)) == sorted(TIERS)
    assert sorted(builds(plan)) == sorted(BUILDS)
