"""Rules of ``make lint`` that no file is excepted from. Ruff and import-linter check the rest."""

from __future__ import annotations

import subprocess
import tomllib
from typing import Any

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
    assert contract["ancestors"] == ["devalloc", "devalloc_solver", "devalloc_node"]
    assert "ignore_imports" not in contract
