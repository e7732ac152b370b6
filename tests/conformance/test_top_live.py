"""`devalloc top` on a terminal: what happens shows, until Ctrl-C."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from contextlib import closing
from pathlib import Path

from devalloc.store.sqlite import SQLiteStore
from tests.support.cli_shell import INTERRUPTED
from tests.support.fleet_manifests import fill, gpu_pool

PATIENCE = 90.0


def read_until(terminal: int, word: str, shown: str = "") -> str:
    """What the terminal got until a word is in it."""
    until = time.monotonic() + PATIENCE
    os.set_blocking(terminal, False)
    while word not in shown:
        assert time.monotonic() < until, f"never {word!r}: {shown[-2000:]}"
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except BlockingIOError:
            time.sleep(0.05)
    return shown


def test_q_ends_it_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "devalloc.db"
    with closing(SQLiteStore(path)) as store:
        fill(store, gpu_pool("a", 2, "n1"))
    terminal, end = pty.openpty()
    before = termios.tcgetattr(end)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
    command = [sys.executable, "-m", "devalloc.cli", "top", "--interval", "1h", "--store", str(path)]
    top = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True)
    try:
        read_until(terminal, "q quits")
        os.write(terminal, b"\r")
        read_until(terminal, "node n1")
        os.write(terminal, b"q")
        read_until(terminal, "\x1b[?1049l")
        assert top.wait(PATIENCE) == 0
        assert termios.tcgetattr(end) == before
    finally:
        top.kill()
        top.wait()
        os.close(terminal)
        os.close(end)


def test_it_is_drawn_anew_until_ctrl_c(tmp_path: Path) -> None:
    path = tmp_path / "devalloc.db"
    with closing(SQLiteStore(path)) as store:
        fill(store, gpu_pool("a", 2))
        terminal, end = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        command = [sys.executable, "-m", "devalloc.cli", "top", "--interval", "1s", "--store", str(path)]
        top = subprocess.Popen(command, stdin=end, stdout=end, stderr=end, env=environment, start_new_session=True)
        try:
            os.close(end)
            read_until(terminal, "1 card, 2 devices")
            fill(store, gpu_pool("b", 5))
            drawn = read_until(terminal, "2 cards, 7 devices")
            top.send_signal(signal.SIGINT)
            left = read_until(terminal, "\x1b[?1049l", drawn)
            assert top.wait(PATIENCE) in INTERRUPTED
            assert "Traceback" not in left
            assert re.search(r"\x1b\[\?25h", left), "the cursor is shown again"
        finally:
            top.kill()
            top.wait()
            os.close(terminal)
