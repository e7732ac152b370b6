"""Command lines of devalloc in a test host that has this checkout (``sriov_host``), each in a process of its own.

The host's half is tests/machine/inside/commands.py.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from tests.support.guest import CommandResult, Guest

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
        number = next(self._numbers)
        name = f"{self._folder}/{number}"
        self.guest.check(f"{_writing(f'{name}.run', line.encode())}; echo {number} > {self._folder}/asked")
        return f"{name}.out"

    def kill(self, output: str) -> None:
        """kill -9 one that was started, and wait for its end."""
        self.guest.check(f"kill -9 $(cat {output.removesuffix('.out')}.pid)")
        self.finish(output)

    def finish(self, output: str, seconds: float = 2 * LONG) -> CommandResult:
        """Wait for the end of one that was started; what it said in all."""
        name = output.removesuffix(".out")
        waiting = f"mkfifo {name}.end; [ -e {name}.rc ] || read -r nothing < {name}.end; rm {name}.end"
        return self.guest.run(f"{waiting}; cat {name}.out; exit $(cat {name}.rc)", seconds=seconds)

    def run(self, line: str, seconds: float = 2 * LONG) -> CommandResult:
        """Run one to its end."""
        return self.finish(self.start(line), seconds)

    def check(self, line: str) -> str:
        """What one says that must succeed; AssertionError with all of it."""
        answer = self.run(line)
        assert answer.status == 0, f"{line!r} ended with {answer.status}:\n{answer.output}"
        return answer.output

    def put(self, path: str, content: bytes) -> None:
        """Write a small file."""
        self.guest.check(_writing(path, content))

    def snapshot(self) -> dict[str, Any]:
        """The state of the host's devices, as far as preparing a claim may change it."""
        return dict(json.loads(self.check(str(INSIDE / "snapshot.py"))))

    def watching(self, path: str, log: str, words: str) -> Callable[[], float]:
        """Look from now on when ``path`` appears or goes, and when a later line of a log matches ``words``.

        The returned function waits for both; seconds between them, by the host's clock.
        """
        output = self.start(f"{INSIDE / 'delay.py'} {path} {log} {words}")
        self.guest.until(f"grep -q watching {output}", seconds=LONG)

        def seconds() -> float:
            answer = self.finish(output)
            assert answer.status == 0, answer.output
            return float(answer.output.split()[-1])

        return seconds


def _writing(path: str, content: bytes) -> str:
    """The command that writes a small file."""
    return f"echo {base64.b64encode(content).decode()} | base64 -d > {path}"
