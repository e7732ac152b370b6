"""What verbs that go on say: as it is, and only where there is something to say."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from devalloc.cli.command import CommandFailed, verb
from devalloc.cli.render.output import open_display
from devalloc.controller.pool_publisher import PublishResult
from devalloc.programs.store_loops import show_published


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_words_of_others_are_shown_as_they_are(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    out = stream()
    monkeypatch.setattr(sys, "stdout", out)
    with open_display() as display:
        display.say("QEMU: [/dev/vfio/15] is [bold]busy")
        display.state("[/]")
    assert "QEMU: [/dev/vfio/15] is [bold]busy" in out.getvalue()


def test_a_line_of_the_log_is_above_the_state_not_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is on stderr, the state on stdout, and on a terminal both are one line."""
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("COLUMNS", "80")
    log = logging.getLogger()
    log.handlers[:] = [logging.StreamHandler(sys.stderr)]
    with open_display() as display:
        display.state("claims 5 (3 allocated, 2 waiting)")
        log.warning("DeviceClaim default/bond lost [a device]")
    assert err.getvalue() == ""
    lines = [line for text in out.getvalue().splitlines() for line in text.split("\r")]
    assert [
        line for line in lines if line.endswith("DeviceClaim default/bond lost [a device]") and "claims 5" not in line
    ]
    log.warning("after the end")
    assert err.getvalue() == "after the end\n"


def test_a_log_in_a_file_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    log = logging.getLogger()
    log.handlers[:] = [logging.StreamHandler(sys.stderr)]
    with open_display():
        log.warning("late")
    assert err.getvalue() == "late\n"
    assert "late" not in out.getvalue()


EVIL = "busy\x1b[2J\x9b31m\r\nerror: all is well\x07"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_words_of_others_do_nothing_to_the_terminal(stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """They clear no screen, and begin no line of their own."""
    out = stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "dumb")
    with open_display() as display:
        display.say(EVIL)
    line = next(line for line in out.getvalue().splitlines() if "busy" in line)
    assert "all is well" in line
    assert "\x1b[2J" not in line
    assert "\x9b" not in line


def test_a_line_of_the_log_stays_one(caplog: pytest.LogCaptureFixture) -> None:
    """Else a guest, or a thief of another node's token, could write lines of its own into it."""

    @verb("watch")
    def watch() -> None:
        try:
            raise ValueError("no")
        except ValueError:
            logging.getLogger("devalloc.x").exception("machine %s", EVIL)
        raise CommandFailed(f"one\ntwo {EVIL[:8]}")

    done = CliRunner().invoke(watch, [])
    first, *trace, last = done.output.splitlines()
    assert first.endswith(r"ERROR machine busy\x1b[2J\x9b31m\r\nerror: all is well\x07")
    assert trace[0] == "Traceback (most recent call last):"
    assert last == r"error: one\ntwo busy\x1b[2J"


def test_a_log_in_json_has_nothing_else_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Log lines, what is said beside them, how things stand, and the error that it ends with: a pod has one log."""

    @verb("watch")
    def watch() -> None:
        with open_display() as display:
            display.say('pool "a" [b]')
            display.state("claims 1")
            display.state("claims 1")
            logging.getLogger("devalloc.x").warning("late: %s", 5)
            raise CommandFailed("the lease is lost")

    done = CliRunner().invoke(watch, ["--log-format", "json"])
    assert done.exit_code == 1
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert [(each["level"], each["message"]) for each in lines] == [
        ("info", 'pool "a" [b]'),
        ("info", "claims 1"),
        ("warning", "late: 5"),
        ("error", "the lease is lost"),
    ]
    assert all(each.keys() == {"time", "level", "logger", "message"} for each in lines)


def test_pools_that_are_as_they_were_are_nothing_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    with open_display() as display:
        show_published(display, PublishResult())
        show_published(display, PublishResult(updated=("node-a-0000-01-00",)))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["pools: updated node-a-0000-01-00"]
