"""Processes of this host: whether one still is the one that was known, what it holds, and when it ends."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal as signals
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devalloc_node.errors import Failed

_PROC = Path("/proc")
_LOCKED = re.compile(r"^Max locked memory +(\S+)", re.MULTILINE)
_CAPABILITIES = re.compile(r"^CapEff:\s*([0-9a-f]+)", re.MULTILINE)
_CAP_IPC_LOCK = 14


@dataclass(frozen=True, slots=True)
class Process:
    """A process for as long as the host runs: numbers are used again, a number with its start is not."""

    pid: int
    started: int
    """In clock ticks since the host was started."""


def process(pid: int) -> Process | None:
    """The process that has the number now; None if none has, or if it has ended and waits to be collected.

    Raises Failed if that cannot be told: of a machine that only seems to have ended devices would be taken.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError as error:
        raise _unreadable(pid, error) from None
    # The name stands in parentheses and may itself have any character.
    words = text.rpartition(b")")[2].split()
    if len(words) < 20 or words[0] in (b"Z", b"X"):
        return None
    return Process(pid, int(words[19]))


def alive(target: Process) -> bool:
    """Raises Failed."""
    return process(target.pid) == target


def pidfd(target: Process) -> int | None:
    """A descriptor that becomes readable when the process ends; None if it has ended. The caller closes it.

    Raises Failed.
    """
    try:
        fd = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return None
    except OSError as error:
        raise _unreadable(target.pid, error) from None
    lives = False
    try:
        lives = alive(target)
    finally:
        if not lives:
            os.close(fd)
    return fd if lives else None


_GET_INFO = 0xC040FF0B
"""PIDFD_GET_INFO of <linux/pidfd.h>, with the first size of its structure: 64 bytes."""
_INFO_EXIT = 1 << 3
_EXIT_CODE = 60
"""Where the structure has the status, as of wait(2)."""
_POLL_SECONDS = 0.02


def exit_status(fd: int, seconds: float) -> tuple[int | None, int | None]:
    """Exit code and signal of a process that has ended, by its ``pidfd``; None for what is not known. Linux tells it to
    others than the parent from version 6.15 on, once the parent has collected the process: that is waited for."""
    until = time.monotonic() + seconds
    while True:
        content = bytearray(64)
        struct.pack_into("Q", content, 0, _INFO_EXIT)
        try:
            fcntl.ioctl(fd, _GET_INFO, content)
        except OSError:
            return None, None
        if struct.unpack_from("Q", content)[0] & _INFO_EXIT:
            (status,) = struct.unpack_from("i", content, _EXIT_CODE)
            is_signal = os.WIFSIGNALED(status)
            return (None, os.WTERMSIG(status)) if is_signal else (os.WEXITSTATUS(status), None)
        if time.monotonic() >= until:
            return None, None
        time.sleep(_POLL_SECONDS)


def _unreadable(pid: int, error: OSError) -> Failed:
    return Failed("HostUnreadable", f"cannot check whether process {pid} lives: {error.strerror or error}")


def wait(target: Process, seconds: float) -> bool:
    """Whether it ended within ``seconds``. Raises Failed."""
    fd = pidfd(target)
    if fd is None:
        return True
    try:
        ended = select.poll()  # select itself knows no descriptors above 1023
        ended.register(fd, select.POLLIN)
        return bool(ended.poll(max(0.0, seconds) * 1000))
    finally:
        os.close(fd)


def kill(target: Process, signal: int) -> None:
    """Send a signal to exactly this process; nothing happens if it has ended. Raises Failed."""
    fd = pidfd(target)
    if fd is not None:
        try:
            with suppress(ProcessLookupError):
                signals.pidfd_send_signal(fd, signal)
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What a process has used so far."""

    started: int
    """As of ``Process``."""
    cpu_seconds: float
    resident_bytes: int


def usage(pid: int, proc: Path = _PROC) -> ProcessUsage | None:
    """None when it is gone or may not be read."""
    try:
        words = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        ticks, started, pages = int(words[11]) + int(words[12]), int(words[19]), int(words[21])
    except (OSError, ValueError, IndexError):
        return None
    return ProcessUsage(started, ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


@dataclass(frozen=True, slots=True)
class NetworkTraffic:
    """Bytes that the host took from an interface (``received``), and put on it (``sent``), since it was made."""

    received: int
    sent: int


def traffic(pid: int, interfaces: Collection[str], proc: Path = _PROC) -> dict[str, NetworkTraffic]:
    """Of the interfaces that there are in the network that a process lives in; of none if it is gone."""
    try:
        lines = (proc / str(pid) / "net" / "dev").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    by_interface = {}
    for line in lines:
        name, colon, rest = line.strip().partition(":")
        numbers = rest.split()
        if colon and name in interfaces and len(numbers) >= 9:
            with suppress(ValueError):
                by_interface[name] = NetworkTraffic(int(numbers[0]), int(numbers[8]))
    return by_interface


def memlock(pid: int) -> int | None:
    """Bytes that a process may lock; None if there is no limit (or it has the capability that lifts it).

    Raises OSError if the process is gone.
    """
    status = (_PROC / str(pid) / "status").read_text()
    if (match := _CAPABILITIES.search(status)) and int(match[1], 16) >> _CAP_IPC_LOCK & 1:
        return None
    return memlock_of((_PROC / str(pid) / "limits").read_text())


def memlock_of(limits: str) -> int | None:
    """The soft limit that /proc/<pid>/limits tells; None for unlimited."""
    match = _LOCKED.search(limits)
    if match is None:
        return 0  # not told: assume the worst
    return None if match[1] == "unlimited" else int(match[1])


def open_nodes(pid: int, nodes: Collection[str]) -> list[str]:
    """Which of these device nodes the process has open; none if it is gone. Raises Failed."""
    folder = _PROC / str(pid) / "fd"
    opened = set()
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, ProcessLookupError):
        return []
    except OSError as error:
        raise Failed(
            "HostUnreadable", f"cannot read which files process {pid} has open: {error.strerror or error}"
        ) from None
    for name in names:
        with suppress(FileNotFoundError):
            opened.add(os.readlink(folder / name).removesuffix(" (deleted)"))
    return sorted(opened & set(nodes))


def qemu_uuid(pid: int) -> str | None:
    """What a QEMU was started with as ``-uuid``; None if it has none, or that cannot be seen."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    return words[words.index(b"-uuid") + 1].decode(errors="replace") if b"-uuid" in words[:-1] else None


def with_removed_file(file: Path, words: bytes) -> Process | None:
    """The process that has a file open which is not there any more, and these ``words`` on its command line; None if
    there is none. Raises Failed."""
    removed = f"{os.path.realpath(file.parent)}/{file.name} (deleted)"
    for name in filter(str.isdecimal, os.listdir(_PROC)):
        with suppress(OSError):
            if words not in (_PROC / name / "cmdline").read_bytes():
                continue
            for entry in os.scandir(_PROC / name / "fd"):
                with suppress(FileNotFoundError):  # it closes others meanwhile
                    if os.readlink(entry.path) == removed:
                        return process(int(name))
    return None
