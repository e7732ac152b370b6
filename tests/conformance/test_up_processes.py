"""The loops of ``devalloc up`` as a process: what signals do to them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from devalloc.store.sqlite import SQLiteStore
from tests.support.fleet_manifests import gpu_class
from tests.support.repository import REPO

SOURCES = os.pathsep.join(str(REPO / part) for part in ("", "solver", "node-plugin"))
RUNNER = """
import sys
from pathlib import Path
from devalloc.program import Control, run
from devalloc.programs.store_loops import StoreProgress, store_program
control = Control()
shown = StoreProgress(lambda done: print("round", flush=True))
with control.signals():
    run(store_program(Path(sys.argv[1]), None, progress=shown), control)
print("clean", flush=True)
"""


@contextmanager
def process(path: Path, script: str = RUNNER, ready: str = "round") -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "PYTHONPATH": f"{REPO}:{REPO / 'solver'}"}
    runner = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True, env=env)
    assert runner.stdout is not None
    try:
        assert runner.stdout.readline() == f"{ready}\n"
        yield runner
    finally:
        runner.kill()
        runner.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_it_cleanly(store: SQLiteStore, number: signal.Signals) -> None:
    with process(store.path) as runner:
        runner.send_signal(number)
        output, _ = runner.communicate(timeout=60)
        assert (runner.returncode, output) == (0, "clean\n")


def test_a_hangup_looks_again_and_ends_nothing(store: SQLiteStore) -> None:
    with process(store.path) as runner:
        runner.send_signal(signal.SIGHUP)
        store.create(gpu_class())
        assert runner.stdout is not None
        assert runner.stdout.readline() == "round\n"


def test_systemd_hears_when_it_serves_and_that_it_lives(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(120)
        command = [sys.executable, "-m", "devalloc", "up", "--store", str(tmp_path / "store" / "devalloc.db")]
        more = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000", "PYTHONPATH": SOURCES}
        with subprocess.Popen([*command, "--no-inventory"], env={**os.environ, **more}) as up:
            try:
                assert [systemd.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
                up.send_signal(signal.SIGTERM)
                assert up.wait(60) == 0
            finally:
                up.kill()
        messages = [systemd.recv(100)]
        while messages[-1] == b"WATCHDOG=1":
            messages.append(systemd.recv(100))
        assert messages[-1] == b"STOPPING=1"


STUCK = """
import sys, time
from pathlib import Path
from devalloc.program import Control, run
from devalloc.programs import store_loops as module
module.GRACE_SECONDS = 1000
def think(*arguments, **settings):
    print("thinking", flush=True)
    time.sleep(1000)
control = Control()
with control.signals():
    run(module.store_program(Path(sys.argv[1]), None, solve=think), control)
"""


def test_the_second_signal_ends_it_at_once(store: SQLiteStore) -> None:
    with process(store.path, STUCK, "thinking") as runner:
        runner.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            runner.wait(0.3)  # it waits for the solver that never comes back
        runner.send_signal(signal.SIGINT)
        assert runner.wait(60) == -signal.SIGINT
