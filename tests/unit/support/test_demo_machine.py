"""`make demo-machine` on a slow host: it says what takes so long, and leaves what the emulated host has printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.waiting import until
from tools.demo_machine import Progress, kept_console


def test_a_step_that_takes_long_is_named_again(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []

    def is_named() -> bool:
        shown.extend(capsys.readouterr().err.splitlines())
        return sum(line.endswith("s: still: the host boots)") for line in shown) >= 2

    progress = Progress(seconds=0.05)
    with progress.steady():
        progress.say("the host boots")
        until(is_named, "the step is named again and again")
        progress.say("it answers")
    assert shown[0] == "  (0 s: the host boots)"
    assert "it answers)" in capsys.readouterr().err


def test_what_the_host_has_printed_outlives_it(tmp_path: Path) -> None:
    (tmp_path / "console").write_text("Kernel panic\n")
    words = kept_console(tmp_path)
    copy = Path(words.removeprefix("its console log is "))
    assert copy.read_text() == "Kernel panic\n"
    copy.unlink()
    assert kept_console(tmp_path / "none").startswith("its console log cannot be read: ")
