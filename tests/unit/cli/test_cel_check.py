"""--cel-check of the verbs that ask the solver: what two evaluators judge differently is refused, or a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devalloc_solver.check import celpy_engine
from tests.support.cli_shell import Shell, text
from tests.support.manifests import claim, device, device_class, pool

FILES = text(
    device_class("gpu", driver="gpu"),
    pool("cards", "n", "gpu", attributes={"numa": 0}, devices=[device("d")]),
    claim("odd", {"deviceClass": "gpu", "constraints": "device.numa >= 0"}),
)


@pytest.fixture(autouse=True)
def _refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(celpy_engine.Expression, "holds", lambda *_: False)


@pytest.mark.parametrize("verb", ["solve", "explain", "capacity"])
def test_the_admin_chooses_what_becomes_of_a_disputed_claim(verb: str, devalloc: Shell) -> None:
    def shown(*options: str) -> Any:
        return devalloc(verb, "-f", "-", *options, stdin=FILES)

    assert "CheckFailed" in shown().out
    assert shown("--cel-check", "refuse").out == shown().out
    warned = shown("--cel-check", "warn")
    assert warned.code == 0
    assert "CheckFailed" not in warned.out


@pytest.mark.parametrize("choice", ["refuse", "warn"])
def test_a_snapshot_is_solved_again_with_that_choice(choice: str, devalloc: Shell, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    devalloc("snapshot", str(path), "-f", "-", "--cel-check", choice, stdin=FILES)
    assert ("CheckFailed" in path.read_text()) is (choice == "refuse")
    assert devalloc("replay", str(path)).code == 0


def test_a_snapshot_of_a_version_without_that_choice_is_solved_again(devalloc: Shell, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    devalloc("snapshot", str(path), "-f", "-", stdin=FILES)
    path.write_text(path.read_text().replace('"celCheck": "refuse"', '"other": 1'))
    assert devalloc("replay", str(path)).code == 0
