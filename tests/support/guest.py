"""A shell in a test machine, over a serial port: commands go in, what they print and their exit status come out.

The guest's half is the script ``SERVER`` under busybox, the machine's half is ``Guest``. No network and no agent of the
hypervisor take part. A command is one line, ``MARK BASE64``, and the answer stands between ``MARK begin`` and
``MARK end STATUS``; whatever else the port says (the kernel, the announcement) is passed over.
"""

from __future__ import annotations

import base64
import secrets
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

SERVER = """\
# The shell on a serial port: $1 is its name, such as ttyS1.
stty -F /dev/$1 raw -echo 2>/dev/null
exec 3<>/dev/$1
# Said at once, for no reader is to wait for it, and again, for there may be no reader yet.
echo READY >&3
until read -t 1 -r mark text <&3; do echo READY >&3; done
while :; do
  if [ -n "$text" ]; then
    echo "$mark begin" >&3
    echo "$text" | base64 -d > /tmp/command.$1
    # Through a pipe, so that programs do not take the port for a terminal.
    { sh /tmp/command.$1; printf '\\n%s end %s\\n' "$mark" $?; } < /dev/null 2>&1 | cat >&3
  fi
  read -r mark text <&3 || exit
done
"""
PATIENCE = 300.0
"""Seconds for a command: an emulated CPU on a busy machine may take a hundred times as long as on a quiet one."""
LONGEST_COMMAND = 2800
"""Bytes: what the line discipline of a serial port holds as one line, less base64."""


class GuestGone(Exception):
    """The machine closed the port: it ended, or its QEMU did."""


class CommandResult(NamedTuple):
    """What a command did: its exit status (0 for success), and both of its streams."""

    status: int
    output: str


def moved_guest(port: Path) -> Guest:
    """The shell of a machine that came here. What is typed just then may be lost, as with a cable that is changed."""
    for patience in (5.0, 15.0, 45.0, PATIENCE):  # a guest that is busy may answer later than it is asked again
        guest = Guest(port, is_new=False)
        try:
            guest.check("true", seconds=patience)
            return guest
        except TimeoutError:
            guest.close()
    raise TimeoutError("the guest does not answer on its new node")


class Guest:
    """The shell of one machine. For one thread."""

    def __init__(
        self, port: Path, *, seconds: float = PATIENCE, alive: Callable[[], bool] = lambda: True, is_new: bool = True
    ) -> None:
        """Wait for the machine to make the socket, and for the shell in it. ``alive``: whether waiting makes sense.
        ``is_new``: its shell has not answered yet; one that has says nothing by itself.

        Raises GuestGone, or TimeoutError with the port's last words.
        """
        deadline = time.monotonic() + seconds
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.connect(str(port))
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if not alive():
                    raise GuestGone(f"the machine ended before it made {port}") from None
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no {port} within {seconds:.0f} s") from None
                time.sleep(0.02)
        self._left = b""
        if not is_new:
            return
        self._line_until("READY", deadline)
        # The shell's first `read` gives up each second, and what it has read of a line by then is lost. An empty line
        # has no part to lose, and ends that.
        self._socket.sendall(b"\n")

    def run(self, command: str, *, seconds: float = PATIENCE) -> CommandResult:
        """Run a command of sh in the guest. Raises GuestGone, or TimeoutError with what it had printed."""
        encoded = command.encode()
        if len(encoded) > LONGEST_COMMAND:
            raise ValueError(f"a command of {len(encoded)} bytes; at most {LONGEST_COMMAND}: put it into a file")
        mark, deadline = secrets.token_hex(6), time.monotonic() + seconds
        self._socket.sendall(f"{mark} {base64.b64encode(encoded).decode()}\n".encode())
        self._line_until(f"{mark} begin", deadline)
        lines: list[str] = []
        while not (line := self._line(deadline, lines)).startswith(f"{mark} end "):
            lines.append(line)
        if lines and not lines[-1]:
            lines.pop()
        return CommandResult(int(line.split()[2]), "\n".join(lines))

    def check(self, command: str, *, seconds: float = PATIENCE) -> str:
        """The output of a command that must succeed; AssertionError with all it said."""
        answer = self.run(command, seconds=seconds)
        assert answer.status == 0, f"in the guest, {command!r} ended with {answer.status}:\n{answer.output}"
        return answer.output

    def until(self, command: str, *, seconds: float = PATIENCE) -> str:
        """Run a command again and again until it succeeds; its output then. Raises TimeoutError with its last words."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self.run(command, seconds=max(1.0, deadline - time.monotonic()))
            if answer.status == 0:
                return answer.output
            if time.monotonic() > deadline:
                raise TimeoutError(f"in the guest, {command!r} has not succeeded in {seconds:.0f} s: {answer.output}")
            time.sleep(0.05)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Guest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line_until(self, wanted: str, deadline: float) -> None:
        seen: list[str] = []
        while (line := self._line(deadline, seen)) != wanted:
            seen.append(line)

    def _line(self, deadline: float, seen: list[str]) -> str:
        while b"\n" not in self._left:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                more = self._socket.recv(65536)
            except TimeoutError:
                output = "\n".join([*seen[-20:], self._left.decode(errors="replace")])
                raise TimeoutError(f"no answer of the guest in time; its last words:\n{output}") from None
            except ConnectionResetError:
                more = b""
            if not more:
                raise GuestGone("the machine closed its serial port; its last words:\n" + "\n".join(seen[-20:]))
            self._left += more
        line, _, self._left = self._left.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")
