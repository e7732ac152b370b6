"""The audit log: lines in a file that may be rotated, and whose loss costs no call."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from devalloc_node.journal.audit_log import audit, to_file


def events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_it_may_be_rotated_by_renaming(tmp_path: Path) -> None:
    path, old = tmp_path / "audit.log", tmp_path / "audit.log.1"
    with to_file(path):
        audit("first")
        path.rename(old)
        audit("second")
    assert (events(old), events(path)) == (["first"], ["second"])
    assert [each.stat().st_mode & 0o777 for each in (old, path)] == [0o600, 0o600]


def test_an_audit_log_that_cannot_be_written_is_reported_once_and_work_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    with to_file(folder / "audit.log"), caplog.at_level(logging.WARNING):
        shutil.rmtree(folder)
        audit("lost")
        audit("lost too")
        folder.mkdir()
        audit("kept")
    assert events(folder / "audit.log") == ["kept"]
    (message,) = caplog.messages
    assert str(folder / "audit.log") in message
    assert "No such file or directory" in message
    assert capsys.readouterr().err == "", "no traceback for each record"


def test_a_full_disk_is_reported_once(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    with to_file(Path("/dev/full")), caplog.at_level(logging.WARNING):
        audit("lost")
        audit("lost too")
    assert "No space left on device" in "".join(caplog.messages)
    assert len(caplog.messages) == 1
    assert capsys.readouterr().err == ""
