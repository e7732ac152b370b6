"""A QMP client for threads: commands with deadlines, and events that are not missed.

QEMU talks to one client of its monitor at a time; the others wait unanswered. So the line is opened by the first
command and given back with ``close``: a plugin that kept it would lock out its successor in a rolling update.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from qemu.qmp import EventListener, ExecuteError, QMPClient, QMPError

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError, Unknown

Event = Mapping[str, Any]
"""As QEMU sends it: ``{"event", "data", "timestamp"}``."""
T = TypeVar("T")

MAX_MESSAGE = 4 << 20
"""Bytes of one message of QEMU; the longest real ones (query-qmp-schema) have 0.2 MB."""
MAX_EVENTS = 1000
"""Events that wait to be read; a guest can cause some of them as often as it likes."""
GREETING_SECONDS = 5.0
ANSWER_SECONDS = 5.0
"""For one question while waiting: at the deadline it is still to be told how far it came."""
_SLOW = frozenset({"device_add", "object-add"})
"""Commands that may take as long as there is time: with the first device VFIO locks all of a machine's memory, and a
DIMM in huge pages is cleared, which QEMU waits for; a second for each few GiB."""
_CREDENTIALS = struct.Struct("3i")
"""Process, user, group."""
_QUEUE_SECONDS = 0.02
"""Between tries to get into the queue of those who wait for the monitor."""

LOG = logging.getLogger(__name__)
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)  # it logs as errors what is raised as well


class QmpRefused(Denied):
    """QEMU understood the command and said no."""

    def __init__(self, machine: str, command: str, kind: str, reason: str) -> None:
        super().__init__("QemuRefused", f"QEMU of machine {machine} refuses {command}: {reason}")
        self.kind = kind
        """QEMU's class of errors: ``GenericError``, ``DeviceNotFound`` …"""
        self.reason = reason


class _NoGreeting(Failed):
    """Who listens says something else first."""


class QmpEvents(Protocol):
    """Events from the moment of ``expect`` on."""

    def next(self, deadline: Deadline) -> Event | None:
        """The next event; None when there is none before the deadline. Raises Unknown when the line breaks."""


@contextmanager
def malformed_as_failed(machine: str) -> Iterator[None]:
    """Inside, answers are read: of another shape than QEMU's they are an error of this machine alone.

    Raises Failed (``MonitorUnreadable``).
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        LOG.warning("machine %s", machine, exc_info=True)
        why = f"unreadable answer from QEMU of machine {machine}: {type(error).__name__} {_short(error)}"
        raise Failed("MonitorUnreadable", why) from error


def checked_text(value: Any, most: int = 4096) -> str:
    """A text of an answer, of at most so many characters, all of which there are. Raises TypeError, ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is not a text")
    if len(value) > most:
        raise ValueError(f"a text of {len(value)} characters; the maximum is {most}")
    value.encode()
    return value


def checked_number(value: Any, most: int) -> int:
    """A number of an answer, from 0 to ``most``. Raises TypeError, ValueError."""
    number = int(value)
    if not 0 <= number <= most:
        raise ValueError(f"{value!r:.50} is not from 0 to {most}")
    return number


class Monitor(Protocol):
    """A line to one QEMU. Safe for threads."""

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Deadline, fd: int | None = None
    ) -> Any:
        """QEMU's answer; ``fd`` is a descriptor that the command takes with it. Raises QmpRefused; Failed if the
        connection could not be opened, so nothing was sent; Unknown if no answer came."""

    def expect(self, *names: str) -> Any:
        """A context manager with the ``QmpEvents`` of these names: enter it *before* the command that causes them."""

    def close(self) -> None:
        """Give the line back. The next command opens it again."""


def run_state(monitor: Monitor, deadline: Deadline) -> str:
    """QEMU's word for what the CPUs do. Raises NodeError."""
    return str(monitor.execute("query-status", deadline=deadline)["status"])


def has_kvm(monitor: Monitor, deadline: Deadline) -> bool:
    """Whether the machine is not emulated. Raises NodeError."""
    return bool(monitor.execute("query-kvm", deadline=deadline)["enabled"])


def qom_list(monitor: Monitor, path: str, deadline: Deadline) -> Sequence[Mapping[str, Any]]:
    """What is below a path of QEMU's object tree, each with its ``name`` and ``type``. Raises NodeError."""
    entries: list[Mapping[str, Any]] = monitor.execute("qom-list", {"path": path}, deadline=deadline)
    return entries


def qom_get(monitor: Monitor, path: str, name: str, deadline: Deadline) -> Any:
    """A property of an object in QEMU. Raises NodeError, QmpRefused if there is none."""
    return monitor.execute("qom-get", {"path": path, "property": name}, deadline=deadline)


@dataclass(frozen=True, slots=True)
class SocketPeer:
    """Who is at the other end of a socket, as the kernel knows it."""

    pid: int
    uid: int
    speaks: bool = False
    """It is QEMU itself, which has greeted; else it is the process that listens, which may have been another one
    that passed on the socket over, as libvirt does."""


Connect = Callable[..., Monitor]
"""How a line to QEMU is made, as of ``QmpMonitor``; tests make others."""


class _Loop:
    """One thread with an event loop, for all lines of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, job: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a fork has the loop but not its thread
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                # What breaks a line is raised where the line is used; asyncio would tell it once more.
                self._loop.set_exception_handler(lambda loop, context: LOG.debug("%s", context.get("message")))
                threading.Thread(target=self._loop.run_forever, name="qmp", daemon=True).start()
            loop = self._loop
        return asyncio.run_coroutine_threadsafe(job, loop).result()


_LOOP = _Loop()


class _EventBuffer:
    """What one listener has heard, readable from any thread."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self._heard: queue.Queue[Event | None] = queue.Queue(MAX_EVENTS)

    def put(self, event: Event | None) -> None:
        with suppress(queue.Full):  # more than any reader waits for: the reader also polls
            self._heard.put_nowait(event)

    def next(self, deadline: Deadline) -> Event | None:
        try:
            event = self._heard.get(timeout=deadline.seconds) if deadline.seconds else self._heard.get_nowait()
        except queue.Empty:
            return None
        if event is None:
            raise Unknown(
                "MonitorLost", f"the connection to QEMU of machine {self._machine} broke while waiting for an event"
            )
        return event


class _Listener(EventListener):
    """Hands events on as they come, in place of a queue that grows."""

    def __init__(self, names: tuple[str, ...], to: _EventBuffer) -> None:
        super().__init__(names=names)
        self._to = to

    async def put(self, event: Any) -> None:
        if self.accept(event):
            self._to.put(dict(event))


class QmpMonitor:
    """A line over a QMP socket."""

    def __init__(
        self,
        machine: str,
        path: str,
        *,
        command_seconds: float = 10.0,
        check: Callable[[SocketPeer], None] = lambda peer: None,
    ) -> None:
        """``check`` gets the listening, then the greeting peer before any command; it raises Denied for a stranger."""
        self._machine, self._path = machine, path
        self._command_seconds, self._check = command_seconds, check
        self._lock = threading.RLock()
        self._client: Any = None
        self._socket: socket.socket | None = None
        self._listening: list[tuple[_Listener, _EventBuffer]] = []

    def execute(
        self, command: str, arguments: Mapping[str, Any] | None = None, *, deadline: Deadline, fd: int | None = None
    ) -> Any:
        what = f"{command} to QEMU of machine {self._machine}"
        try:
            json.dumps(arguments)
        except (TypeError, ValueError) as error:
            raise Failed("MonitorMisused", f"cannot send {what}: {error}") from None
        if not self._lock.acquire(timeout=deadline.seconds):
            raise Unknown(
                "MonitorSilent", f"{what} was not sent: other commands still wait for answers; QEMU hangs or is busy"
            )
        try:
            self._open(deadline)
            if (
                deadline.passed
            ):  # The line is sound: dropped, it would cost the next one's time, and others their events.
                raise Unknown("MonitorSilent", f"{what} was not sent: no time is left; QEMU hangs or is busy")
            limit = (deadline if command in _SLOW else deadline.capped(self._command_seconds)).seconds
            try:
                return _LOOP.run(asyncio.wait_for(_execute(self._client, command, arguments, fd), limit))
            except ExecuteError as error:
                raise QmpRefused(self._machine, command, error.error_class, _short(error)) from None
            except TimeoutError:
                self._drop()
                raise Unknown(
                    "MonitorSilent", f"no answer to {what} within {limit:.1f} s: QEMU hangs, or the host is too busy"
                ) from None
            except Exception as error:  # invalid JSON or text can raise anything
                self._drop()
                raise Unknown("MonitorLost", f"the connection broke during {what}: {_short(error)}") from None
        finally:
            self._lock.release()

    @contextmanager
    def expect(self, *names: str) -> Iterator[QmpEvents]:
        heard = _EventBuffer(self._machine)
        pair = (_Listener(names, heard), heard)
        with self._lock:
            self._listening.append(pair)
            if self._client is not None:
                self._client.register_listener(pair[0])
        try:
            yield heard
        finally:
            with self._lock:
                self._listening.remove(pair)
                if self._client is not None:
                    self._client.remove_listener(pair[0])

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _open(self, deadline: Deadline) -> None:
        if self._client is not None and self._client.runstate.name == "RUNNING":
            return
        self._drop()
        try:
            self._greet(deadline)
        except _NoGreeting:
            # What QEMU had to say to the last client, an event, can come first. Nothing was asked yet.
            self._greet(deadline)

    def _greet(self, deadline: Deadline) -> None:
        line = _connected(self._machine, self._path, deadline.capped(GREETING_SECONDS))
        try:
            limit = deadline.capped(GREETING_SECONDS).seconds
            due = Deadline.after(limit)
            pid, uid, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            self._check(listens := SocketPeer(pid, uid))
            speaks = _peer_of(line, due)
            # One that gave up rights since it listened is the same process.
            self._check(replace(listens, speaks=True) if speaks.pid == pid else speaks)
            client = _LOOP.run(_greeted(self._machine, line, [pair[0] for pair in self._listening], due.seconds))
        except TimeoutError:
            _shut(line)
            raise Unknown(
                "MonitorSilent",
                f"QEMU of machine {self._machine} sends no greeting on {self._path} within {limit:.1f} s: "
                "it hangs, or another client holds its monitor",
            ) from None
        except NodeError:
            _shut(line)
            raise
        except Exception as error:
            _shut(line)
            raise _NoGreeting(
                "MonitorUnreachable",
                f"the process that listens on {self._path} does not send the greeting of QEMU: {_short(error)}",
            ) from None
        self._client, self._socket = client, line

    def _drop(self) -> None:
        client, line = self._client, self._socket
        self._client = self._socket = None
        if client is None:
            return
        for _, heard in self._listening:
            heard.put(None)
        if line is not None:
            with suppress(OSError):  # first, so that neither a full buffer nor a hung QEMU can hold the goodbye up
                line.shutdown(socket.SHUT_RDWR)
        with suppress(Exception):  # it tells once more what broke the line
            _LOOP.run(asyncio.wait_for(client.disconnect(), 2.0))
        for listener, _ in self._listening:
            with suppress(ValueError, QMPError):
                client.remove_listener(listener)


def _connected(machine: str, path: str, deadline: Deadline) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # whatever is written says who wrote it
    while True:
        try:
            line.connect(path)
            return line
        except BlockingIOError:  # others wait in front of us
            if deadline.passed:
                line.close()
                raise Unknown(
                    "MonitorSilent", f"QEMU of machine {machine} does not accept a connection on {path}: it hangs"
                ) from None
            time.sleep(_QUEUE_SECONDS)
        except OSError as error:
            line.close()
            raise Failed(
                "MonitorUnreachable", f"no QEMU of machine {machine} listens on {path}: {error.strerror or error}"
            ) from None


def _peer_of(line: socket.socket, deadline: Deadline) -> SocketPeer:
    """Who has written what can be read first; it stays to be read. Raises TimeoutError, EOFError."""
    ready = select.poll()  # select itself knows no descriptors above 1023
    ready.register(line, select.POLLIN)
    if not ready.poll(deadline.seconds * 1000):
        raise TimeoutError
    begun, ancillary, _, _ = line.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
    if not begun:
        raise EOFError("it closed the connection")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, uid, _ = _CREDENTIALS.unpack(content)
            return SocketPeer(pid, uid, speaks=True)
    raise EOFError("the kernel does not say who it is")


async def _greeted(machine: str, line: socket.socket, listeners: list[_Listener], seconds: float) -> Any:
    client = QMPClient(machine, MAX_MESSAGE)
    client.events.names.add("")  # no event is called so: its own listener keeps them for a reader whom there never is
    for listener in listeners:
        client.register_listener(listener)
    await asyncio.wait_for(client.connect(line), seconds)
    return client


async def _execute(client: Any, command: str, arguments: Mapping[str, Any] | None, fd: int | None) -> Any:
    if fd is not None:  # QEMU keeps it for the command that comes next on this line
        client.send_fd_scm(fd)
    return await client.execute(command, arguments)


def _shut(line: socket.socket) -> None:
    with suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        line.close()


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.encode("utf-8", "replace").decode()  # JSON can name characters that there are not
    return text if len(text) <= 300 else text[:297] + "..."
