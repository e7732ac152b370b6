"""What is wrong with other objects does not come before the answer about one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_shell import Shell, claim, devalloc, device_class, pool, text

__all__ = ["devalloc"]


@pytest.fixture
def with_losses(devalloc: Shell) -> Shell:
    """`other` and `train` lost their devices, because the card was replaced by a smaller one; `new` got none."""
    claims = [claim(name) for name in ("train", "other")]
    assert devalloc("apply", "-f", "-", stdin=text(pool(devices=2), device_class(), *claims)).code == 0
    devalloc.allocate()
    assert devalloc("apply", "-f", "-", stdin=text(pool(devices=0), claim("new"))).code == 0
    return devalloc


def test_of_other_claims_only_the_number_is_printed(with_losses: Shell) -> None:
    output = with_losses("explain", "new")
    assert output.err.splitlines() == ["2 warnings about other objects: devalloc solve"]


def test_the_losses_of_the_claim_are_in_its_explanation_and_not_printed_twice(with_losses: Shell) -> None:
    output = with_losses("explain", "train")
    assert output.err.splitlines() == ["1 warning about other objects: devalloc solve"]
    assert output.out.count("DeviceLost: device gpus/gpu-0 no longer exists") == 1


def test_a_solve_of_files_prints_what_is_wrong_with_them_alone(with_losses: Shell, tmp_path: Path) -> None:
    (tmp_path / "added.yaml").write_text(text(claim("added", count=2)))
    output = with_losses("solve", "-f", tmp_path / "added.yaml")
    assert output.err.splitlines() == ["2 warnings about other objects: devalloc solve"]
    (tmp_path / "added.yaml").write_text(text(claim("added", deviceClass="none"), claim("other")))
    lines = with_losses("solve", "-f", tmp_path / "added.yaml").err.splitlines()
    assert [line for line in lines if "DeviceClaim default/other" in line and "DeviceLost" in line]
    assert lines[-1] == "1 warning about other objects: devalloc solve"


def test_a_solve_of_the_store_prints_all(with_losses: Shell) -> None:
    lines = with_losses("solve").err.splitlines()
    assert len(lines) == 2
    assert all("DeviceLost" in line for line in lines)
