"""Hear from each machine's QEMU when its CPUs stop or go on: one thread for all machines of this node.

QEMU tells it at once, on a monitor of its own (the socket ``events``), for example when a disk is full. Without it a
machine that stands still would be noticed only when it is looked at for another reason. What an event says does not
count: it only causes a look.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from devalloc.worker import repeat, when_set
from devalloc_machines.qemu.guest_report import LineBuffer
from devalloc_machines.vms.guest_reports import ReportPort, ReportPorts
from devalloc_node.errors import NodeError
from devalloc_node.net.unix_sockets import ForeignListener, connect_to_user
from devalloc_node.net.wakeable_selector import WakeableSelector

log = logging.getLogger(__name__)

EVENTS = frozenset({"STOP", "RESUME", "SUSPEND", "SUSPEND_DISK", "WAKEUP", "GUEST_PANICKED"})
"""Of these a machine is looked at."""
LOOK_SECONDS = 30.0
"""All machines are looked up this often: another plugin on this state folder may have started one."""
PAUSE_SECONDS = 0.2
"""Between turns: however many events a QEMU sends, its machine is looked at no more often."""
READ_BYTES = 16 << 10
"""Of one machine in a turn."""
_CAPABILITIES = b'{"execute": "qmp_capabilities"}\n'


@dataclass(slots=True)
class _Line:
    port: ReportPort
    socket: socket.socket
    buffer: LineBuffer = field(default_factory=LineBuffer)


class QemuEvents:
    """``run`` in one thread; ``hear`` from any."""

    def __init__(self, ports: ReportPorts, changed: Callable[[str], None]) -> None:
        """``changed`` gets the key of a machine whose CPUs may have stopped, or may run again."""
        self._ports, self._changed = ports, changed
        self._lines: dict[str, _Line] = {}
        self._selector = WakeableSelector()

    def hear(self, changed: Sequence[str]) -> None:
        """Take changes as ``ChangeNotifier.follow`` reports them: a machine may have begun."""
        if any(one.startswith("machine ") for one in changed):
            self._selector.wake()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        with self._selector.opened():
            when_set(stop, self._selector.wake)
            try:
                repeat(stop, self._turn, PAUSE_SECONDS, "cannot hear of events of machines", most=LOOK_SECONDS)
            finally:
                for key in list(self._lines):
                    self._drop(key)

    def _turn(self) -> None:
        """Connect to the machines that there are, then wait for events and act on them."""
        self._connect_all()
        for key in [key for key in self._selector.wait(LOOK_SECONDS) if self._has_event(key)]:
            self._changed(key)

    def _connect_all(self) -> None:
        try:
            ports: Mapping[str, ReportPort] = self._ports.all()
        except NodeError as error:
            log.warning("cannot look up which machines there are: %s", error)
            return
        for key, line in list(self._lines.items()):
            if ports.get(key) != line.port:
                self._drop(key)
        for key, port in ports.items():
            if key not in self._lines:
                self._connect(key, port)

    def _connect(self, key: str, port: ReportPort) -> None:
        try:
            connection = connect_to_user(port.path, port.user)
        except (OSError, ForeignListener) as error:  # it is only just being started, or a version before started it
            log.debug("machine %s: cannot connect to its events: %s", key, error)
            return
        self._lines[key] = _Line(port, connection)
        self._selector.add(connection, key)
        with suppress(OSError):  # it has ended since, which is what is read next
            connection.send(_CAPABILITIES)  # QEMU sends no event before

    def _has_event(self, key: str) -> bool:
        line = self._lines[key]
        try:
            received = line.socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        if not received:
            self._drop(key)
            return False
        lines = list(line.buffer.lines(received))
        return any(map(_is_of_cpus, lines))

    def _drop(self, key: str) -> None:
        line = self._lines.pop(key)
        self._selector.remove(line.socket)
        line.socket.close()


def _is_of_cpus(line: bytes) -> bool:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    name = content.get("event") if isinstance(content, dict) else None
    return isinstance(name, str) and name in EVENTS
