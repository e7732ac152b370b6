"""Rules of ``make lint`` that no file is excepted from. Ruff and import-linter check the rest."""

from __future__ import annotations

import subprocess
import tomllib
from typing import Any

import pytest

from tools.words import ROOT

TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
TOO_MANY_PARAMETERS = "PLR" + "0913"


def test_no_function_may_have_more_than_eight_parameters() -> None:
    lint: dict[str, Any] = TOOLS["ruff"]["lint"]
    assert TOO_MANY_PARAMETERS in lint["select"]
    assert lint["pylint"]["max-args"] == 8
    excepted = [path for path, rules in lint["per-file-ignores"].items() if TOO_MANY_PARAMETERS in rules]
    assert excepted == []


def test_no_line_turns_the_limit_of_parameters_off() -> None:
    listed = subprocess.run(
        ["git", "grep", "-l", TOO_MANY_PARAMETERS, "--", "*.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert listed.stdout.split() == []


def test_no_import_may_close_a_circle() -> None:
    (contract,) = [each for each in TOOLS["importlinter"]["contracts"] if each["type"] == "acyclic_siblings"]
    assert contract["ancestors"] == [
        "devalloc",
        "devalloc_solver",
        "devalloc_node",
        "devalloc_machines",
        "devalloc_neon",
    ]
    assert "ignore_imports" not in contract


LEFT_TO_CUT = {
    "cellar: objects and facts know nothing above": 0,
    "devices know no machines": 0,
    "warm setups are a part: only programs name them": 0,
    "the controller knows no machines: what scales and moves them stands on it": 0,
    "pages and usage are parts: nothing that allocates knows them": 0,
    "decisions on permits do no I/O and know no NeonVM": 0,
    "one queue: nothing else paces, watches or tries again": 9,
}
"""How many imports each contract between the rooms still makes an exception of. These numbers only go down."""


@pytest.mark.parametrize(("contract", "most"), LEFT_TO_CUT.items())
def test_no_room_may_get_another_exception(contract: str, most: int) -> None:
    (rules,) = [each for each in TOOLS["importlinter"]["contracts"] if each["name"] == contract]
    exceptions = rules.get("ignore_imports", [])
    assert len(exceptions) <= most
    assert not any("*" in each for each in exceptions), "one line, one import"
