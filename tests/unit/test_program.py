"""The life of a process: what ends when, and with which error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from devalloc.program import Control, Program, run


class Recorder:
    """Writes down in which order things begin and end."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def loop(self, name: str) -> Callable[[threading.Event], None]:
        def run(stop: threading.Event) -> None:
            self.seen.append(f"{name} begins")
            stop.wait()
            self.seen.append(f"{name} ends")

        return run

    def part(self) -> ExitStack:
        stack = ExitStack()
        stack.callback(self.seen.append, "part closed")
        return stack


def test_loops_end_before_their_endpoints_and_these_before_the_parts() -> None:
    seen, control = Recorder(), Control()
    control.stop()
    run(Program(parts=seen.part(), loops=[seen.loop("loop")], endpoints=[seen.loop("endpoint")]), control)
    assert [each for each in seen.seen if "begins" not in each] == ["loop ends", "endpoint ends", "part closed"]


@pytest.mark.parametrize("where", ["loops", "endpoints", "check", "rescan"])
def test_what_fails_ends_the_program_with_its_error(where: str) -> None:
    seen, control = Recorder(), Control()

    def fail(*_: Any) -> None:
        raise ValueError("broken")

    control.rescan()
    content: dict[str, Any] = {"loops": [seen.loop("other")]}
    content[where] = [fail, *content.get(where, ())] if where in ("loops", "endpoints") else fail
    with pytest.raises(ValueError, match="broken"):
        run(Program(parts=seen.part(), **content), control)
    assert seen.seen[-1] == "part closed"


def test_the_first_error_is_the_one_that_is_raised() -> None:
    control = Control()
    control.fail(ValueError("first"))
    control.fail(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        run(Program(loops=[]), control)


def test_parts_stay_open_for_what_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    seen, control, goes_on = Recorder(), Control(), threading.Event()
    control.stop()

    def stuck(stop: threading.Event) -> None:
        goes_on.wait(60)

    try:
        run(Program(parts=seen.part(), loops=[stuck], grace=(0.01, 0.0), unfinished="in the middle"), control)
        assert (seen.seen, caplog.messages) == ([], ["in the middle"])
        control.stop()
        run(Program(parts=seen.part(), loops=[stuck], grace=(0.01, 0.0)), control)
        assert seen.seen == ["part closed"], "where nothing needs them"
    finally:
        goes_on.set()


def test_after_some_errors_nothing_is_waited_for_or_closed() -> None:
    seen, control = Recorder(), Control()
    control.fail(KeyError("lease"))
    with pytest.raises(KeyError):
        run(Program(parts=seen.part(), loops=[seen.loop("loop")], at_once=(KeyError,), grace=(60.0, 60.0)), control)
    assert "part closed" not in seen.seen
    assert "loop ends" not in seen.seen


def test_signals_stop_it_and_have_it_look_again() -> None:
    control = Control()
    looks: list[str] = []

    def look(stop: threading.Event) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    def rescan() -> None:
        looks.append("again")
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with control.signals():
        run(Program(loops=[look], rescan=rescan), control)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "a second one ends the process at once"
    assert looks == ["again"]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_ends_what_does_not_run_yet_at_once() -> None:
    """What is put together may wait for a lock, or for a server that does not answer."""
    code = "import os, signal, time; from devalloc.program import Control\n"
    code += "with Control().signals(): os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == -signal.SIGTERM


def test_some_errors_end_it_at_once_while_it_stops_too() -> None:
    seen, control = Recorder(), Control()
    control.stop()

    def lose(stop: threading.Event) -> None:
        stop.wait()
        raise KeyError("lease")

    program = Program(parts=seen.part(), loops=[lose], endpoints=[seen.loop("site")], at_once=(KeyError,))
    with pytest.raises(KeyError):
        run(program, control)
    assert seen.seen == ["site begins"]


def test_an_endpoint_that_goes_on_is_no_unfinished_loop(caplog: pytest.LogCaptureFixture) -> None:
    seen, control, goes_on = Recorder(), Control(), threading.Event()
    control.stop()
    try:

        def stuck(stop: threading.Event) -> None:
            goes_on.wait(60)

        run(Program(parts=seen.part(), loops=[], endpoints=[stuck], grace=(0.0, 0.01), unfinished="a solve"), control)
        assert (seen.seen, caplog.messages) == ([], [])
    finally:
        goes_on.set()
