"""The console and the logs of a machine, for people who look at them or type into it.

The console is the guest's first serial port. Its other end is the socket ``console`` in the machine's folder, to which
QEMU lets one program at a time. What the guest writes there is also in ``console.log``.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from devalloc_machines.qemu import user_ids
from devalloc_machines.qemu.machine_files import opened_log
from devalloc_machines.qemu.records import MachineRecord
from devalloc_machines.qemu.registry import LOOK_SECONDS, MachineRegistry
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.net.unix_sockets import ForeignListener, connect_to_user

LogName = Literal["console", "qemu", "qemu-previous"]
FILES: dict[LogName, str] = {"console": "console.log", "qemu": "qemu.log", "qemu-previous": "qemu.log.1"}
PAUSE_SECONDS = 0.02
"""Between reads of a console: QEMU sends each byte of a serial port alone."""
FOLLOW_SECONDS = 0.2
"""Between looks whether a log has grown."""
CHUNK = 64 << 10
MOST_SEARCHED = 64 << 20
"""Bytes at the end of a log in which its last lines are looked for: a guest that has taken its QEMU over can make it as
long as a file can be."""
MOST_WAITING = 1 << 20
"""Bytes of a guest that wait for a caller who does not take them, such as one whose connection hangs."""
_PROMPT_BYTES = 512
_IDLE_SECONDS = 0.5
"""How soon the end of a caller is noticed while a guest is silent."""
_CHARDEV = "console0"
_mutex = threading.Lock()
_open_here: set[tuple[Path, str]] = set()
"""The consoles that callers in this process have open or are opening, with the run of the machine. QEMU lets a second
one wait and says nothing."""


@contextmanager
def opened_console(machines: MachineRegistry, key: str) -> Iterator[socket.socket]:
    """A connection to the console of a machine that runs. What the caller does there no one else sees.

    Raises Denied: ``MachineNotFound``, ``MachineNotRunning``; ``NoConsole`` for one that was adopted; ``ConsoleInUse``.
    Raises Failed (``ConsoleUnreachable``), Unknown if QEMU does not answer.
    """
    record, _ = machines.running(key)
    _check_own(record)
    path = machines.config.folder(record.spec.id) / "console"
    with _alone((path, record.run), key):
        with machines.line(record) as monitor:
            listed = monitor.execute("query-chardev", deadline=Deadline.after(LOOK_SECONDS))
        named = [each for each in listed if each["label"] == _CHARDEV]
        if named and not str(named[0]["filename"]).startswith("disconnected:"):
            raise _in_use(key)
        try:
            connection = connect_to_user(path, user_ids.listener_uid(record))
        except (OSError, ForeignListener) as error:
            raise Failed("ConsoleUnreachable", f"cannot open the console of machine {key}: {error}") from error
        with connection:
            yield connection


@contextmanager
def _alone(console: tuple[Path, str], key: str) -> Iterator[None]:
    """Have a console to oneself in this process. Raises Denied (``ConsoleInUse``), at once."""
    with _mutex:
        if console in _open_here:
            raise _in_use(key)
        _open_here.add(console)
    try:
        yield
    finally:
        with _mutex:
            _open_here.discard(console)


def _in_use(key: str) -> Denied:
    return Denied(
        "ConsoleInUse",
        f"another program has the console of machine {key} open; end that one first, or follow the log "
        "(`devalloc logs -f`)",
    )


def relay(connection: socket.socket, typed: Iterable[bytes], is_active: Callable[[], bool]) -> Iterator[bytes]:
    """What a guest writes, until its QEMU ends or ``is_active`` says no. ``typed``: what goes to the guest. Both are
    read in threads of their own, which end with the caller: one that takes nothing holds up neither the guest nor what
    it types, and misses what is more than ``MOST_WAITING``."""
    threading.Thread(target=_send, args=(connection, typed, is_active), name="console", daemon=True).start()
    output = _Output()
    threading.Thread(target=output.read, args=(connection, is_active), name="console-output", daemon=True).start()
    try:
        while (received := output.take()) is not None:
            yield received
    finally:
        output.end()


class _Output:
    """What a guest has written and its caller has not taken yet. One thread reads it, another one takes it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._is_over = False

    def read(self, connection: socket.socket, is_active: Callable[[], bool]) -> None:
        """Until there is no more. A guest whose console is not read may stand still: its kernel waits for each byte."""
        with suppress(OSError, ValueError):  # QEMU or the caller has gone
            while not self._is_over and is_active():
                if not _is_ready(connection, select.POLLIN):
                    continue
                try:
                    received = connection.recv(CHUNK)
                except BlockingIOError:
                    continue
                if not received:
                    break
                self._put(received)
                time.sleep(PAUSE_SECONDS)
        self.end()

    def _put(self, received: bytes) -> None:
        with self._changed:
            self._waiting.append(received)
            self._size += len(received)
            while self._size > MOST_WAITING:
                oldest = self._waiting.popleft()
                self._size -= len(oldest)
                self._dropped += len(oldest)
            self._changed.notify()

    def take(self) -> bytes | None:
        """All that waits, as soon as anything does; None if there is no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over)
            if not self._waiting:
                return None
            note = f"\r\n[{self._dropped} bytes are only in the log: devalloc logs]\r\n" if self._dropped else ""
            taken = note.encode() + b"".join(self._waiting)
            self._waiting.clear()
            self._size = self._dropped = 0
            return taken

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()


def _send(connection: socket.socket, typed: Iterable[bytes], is_active: Callable[[], bool]) -> None:
    """A guest that does not read holds up its caller alone."""
    with suppress(Exception):  # the caller or QEMU has gone
        for data in typed:
            left = memoryview(data)
            while left and is_active():
                if _is_ready(connection, select.POLLOUT):
                    left = left[connection.send(left) :]


def _is_ready(connection: socket.socket, event: int) -> bool:
    poll = select.poll()  # the plugin has more descriptors than select takes
    poll.register(connection, event)
    return bool(poll.poll(_IDLE_SECONDS * 1000))


def prompt(path: Path) -> bytes:
    """What a guest wrote after its last line end, such as ``login: ``, by its log; empty if that is long."""
    with suppress(OSError), opened_log(path) as file:
        size = os.fstat(file).st_size
        end = os.pread(file, _PROMPT_BYTES, max(0, size - _PROMPT_BYTES))
        _, newline, rest = end.rpartition(b"\n")
        return rest if newline or size < _PROMPT_BYTES else b""
    return b""


def log_file(machines: MachineRegistry, key: str, log: LogName) -> Path:
    """The path of a log of a machine, which may not exist. Raises Denied: ``MachineNotFound``, ``NoConsole``."""
    record = machines.record_for(key)
    _check_own(record)
    return machines.config.folder(record.spec.id) / FILES[log]


def read_log(path: Path, key: str, *, lines: int, follow: bool, is_active: Callable[[], bool]) -> Iterator[bytes]:
    """The last ``lines`` (0: all) of a log; with ``follow`` also what is added, until ``is_active`` says no. A log that
    is emptied, or begun anew by the next run, is followed from its beginning. Raises Denied (``LogMissing``)."""
    is_first = True
    while True:
        try:
            with opened_log(path) as file:
                offset = _offset_of_lines(file, lines) if is_first and lines else 0
                is_first = False
                yield from _read_on(file, path, offset, follow, is_active)
        except OSError as error:
            if is_first and not follow:
                raise Denied("LogMissing", f"machine {key} has no {path.name}: {error.strerror}") from error
        if not follow or not is_active():
            return
        time.sleep(FOLLOW_SECONDS)


def _read_on(file: int, path: Path, offset: int, follow: bool, is_active: Callable[[], bool]) -> Iterator[bytes]:
    """What is in the file from ``offset`` on; with ``follow`` until another file has its name."""
    end = os.fstat(file).st_size
    while is_active():
        if chunk := os.pread(file, CHUNK if follow else min(CHUNK, max(0, end - offset)), offset):
            offset += len(chunk)
            yield chunk
            continue
        if not follow:
            return
        info = os.fstat(file)
        if info.st_size < offset:
            offset = 0
            continue
        with suppress(OSError):
            at_path = path.lstat()
            if not os.path.samestat(at_path, info):
                return
        time.sleep(FOLLOW_SECONDS)


def _offset_of_lines(file: int, lines: int) -> int:
    """Where the last ``lines`` lines begin, or the part that is searched for them. The last line may have no end."""
    size = os.fstat(file).st_size
    first = max(0, size - MOST_SEARCHED)
    missing = lines + (size > 0 and os.pread(file, 1, size - 1) == b"\n")
    end = size
    while end > first:
        begin = max(first, end - CHUNK)
        block = os.pread(file, end - begin, begin)
        position = len(block)
        while missing and (position := block.rfind(b"\n", 0, position)) >= 0:
            missing -= 1
        if not missing:
            return begin + position + 1
        end = begin
    return first


def _check_own(record: MachineRecord) -> None:
    if record.spec.adopt is not None:
        raise Denied(
            "NoConsole",
            f"machine {record.spec.key} was adopted: its console and logs belong to the program that started it",
        )
