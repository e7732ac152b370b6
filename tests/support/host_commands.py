"""Command lines of devalloc in a test host that has this checkout (``sriov_host``), each in a process of its own.

The host's half is tests/machine/inside/commands.py.
"""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import PurePosixPath
from typing import Any

from tests.support.guest import Answer, Guest

LONG = 300.0
"""Seconds after which something in the host is taken to hang: it is emulated, on a machine that is busy."""
INSIDE = PurePosixPath("/project/tests/machine/inside")


class HostCommands:
    """For one thread."""

    def __init__(self, guest: Guest, folder: str = "/run/commands") -> None:
        """Starts the host's half, and waits for it."""
        self.guest = guest
        self._folder = folder
        self._numbers = itertools.count()
        guest.check(
            f"mkdir -p {folder}; python3 {INSIDE / 'commands.py'} {folder} > {folder}/log 2>&1 & echo $! > /run/pid"
        )
        ended = f"kill -0 $(cat /run/pid) || {{ cat {folder}/log; exit 1; }}"
        guest.check(f"until [ -e {folder}/ready ]; do {ended}; sleep 0.1; done", seconds=LONG)

    def start(self, line: str) -> str:
        """Start one that goes on; the path of the file with what it says."""
        name = f"{self._folder}/{next(self._numbers)}"
        self.put(f"{name}.new", line.encode())
        self.guest.check(f"mv {name}.new {name}.run")
        return f"{name}.out"

    def run(self, line: str) -> Answer:
        """Run one to its end."""
        name = self.start(line).removesuffix(".out")
        waiting = f"until [ -e {name}.rc ]; do sleep 0.05; done; cat {name}.out; exit $(cat {name}.rc)"
        return self.guest.run(waiting, seconds=LONG)

    def check(self, line: str) -> str:
        """What one says that must succeed; AssertionError with all of it."""
        answer = self.run(line)
        assert answer.status == 0, f"{line!r} ended with {answer.status}:\n{answer.output}"
        return answer.output

    def put(self, path: str, content: bytes) -> None:
        """Write a small file."""
        self.guest.check(f"echo {base64.b64encode(content).decode()} | base64 -d > {path}")

    def snapshot(self) -> dict[str, Any]:
        """The state of the host's devices, as far as preparing a claim may change it."""
        return dict(json.loads(self.check(str(INSIDE / "snapshot.py"))))


def seconds_until_said(guest: Guest, happened: str, log: str, words: str) -> float:
    """By the host's clock, from when a test of its shell became true until a line of a log matches ``words``."""
    clock = "read now rest < /proc/uptime"
    script = (
        f"until {happened}; do sleep 0.02; done; {clock}; begin=$now; "
        f"until grep -q '{words}' {log}; do sleep 0.02; done; {clock}; echo $begin $now"
    )
    begin, end = guest.check(script, seconds=LONG).split()
    return float(end) - float(begin)
