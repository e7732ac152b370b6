"""Read what the guests of this node report: one thread for all machines that were started with ``guestReports``.

It connects to each machine's socket ``agent``, the other end of the guest's second serial port, and only reads. It
takes so many bytes and lines of a machine in a second and no more; QEMU then lets the guest wait. QEMU throws away what
a guest writes while no one is connected, for example while the plugin restarts, so guests repeat what matters.

Nothing is on disk: after a restart there is no report of a machine until its guest writes again. Only that a guest has
finished is on its object, from which it comes back (``restore``).
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from devalloc.worker import repeat, when_set
from devalloc_machines.qemu import user_ids
from devalloc_machines.qemu.guest_report import (
    NOTHING_REPORTED,
    BadLine,
    GuestReport,
    LineBuffer,
    MetricNames,
    updated_report,
)
from devalloc_machines.qemu.records import MACHINES, record_of
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.journal import Journal
from devalloc_node.net.unix_sockets import ForeignListener, connect_to_user
from devalloc_node.net.wakeable_selector import WakeableSelector

log = logging.getLogger(__name__)

BYTES_A_SECOND = 16 << 10
"""Of one machine."""
LINES_A_SECOND = 100
READ_BYTES = 4096
"""At once, so that no machine waits long for another."""
PAUSE_SECONDS = 0.05
"""Between turns: QEMU sends each byte of a serial port alone, and a turn for each would be thousands a second."""
SHOW_SECONDS = 5.0
"""A status that changes sooner after the last change is shown then: objects are not written more often."""
CONNECT_SECONDS = 2.0
"""Between tries to connect."""
LOOK_SECONDS = 30.0
"""All machines are looked at this often: another plugin on this state folder may have started one."""
FINISH_SECONDS = 30.0
"""For ending a machine, beside the time that its guest has to power down,"""
AGAIN_SECONDS = 10.0
"""and the pause before that is tried again."""
_LIVE = ("starting", "running", "stopping", "incoming")
"""States of records. A machine that comes from another node is connected to before its guest goes on here."""


@dataclass(frozen=True, slots=True)
class ReportPort:
    """Where the guest of one run of a machine reports."""

    run: str
    path: Path
    user: int
    """Whose process listens there. A QEMU that was taken over can put a link to another socket there."""
    powerdown_seconds: float = 30.0


class ReportPorts:
    """The ports of the machines in the journal that live, or are about to. For one thread; calls raise Failed."""

    def __init__(self, records: Journal, config: MachineConfig, *, of_qemu: bool = False) -> None:
        """``of_qemu``: the sockets on which QEMU tells of events, of all machines that were started here; otherwise the
        ports of guests that report."""
        self._records, self._config, self._of_qemu = records, config, of_qemu
        self._name = "events" if of_qemu else "agent"
        self._read: dict[str, tuple[tuple[object, object], ReportPort]] = {}
        """By key, with the run and user of the record: reading a record takes a while."""

    def all(self) -> Mapping[str, ReportPort]:
        """By the machines' keys."""
        contents = self._records.records(MACHINES)
        for key in self._read.keys() - contents.keys():
            del self._read[key]
        return {key: port for key, content in contents.items() if (port := self._of(key, content)) is not None}

    def one(self, key: str) -> ReportPort | None:
        """None if that machine does not report."""
        content = self._records.record(MACHINES, key)
        return None if content is None else self._of(key, content)

    def _of(self, key: str, content: Mapping[str, Any]) -> ReportPort | None:
        if self._config.dry_run or content.get("state") not in _LIVE:
            return None
        manifest = content.get("manifest")  # of most machines it is not even read
        spec = manifest.get("spec") if isinstance(manifest, Mapping) else None
        if not isinstance(spec, Mapping) or spec.get("adopt") is not None:
            return None
        if spec.get("guestReports") is not True and not self._of_qemu:
            return None
        run = content.get("run"), content.get("user")
        if (cached := self._read.get(key)) is not None and cached[0] == run:
            return cached[1]
        with suppress(NodeError):  # said by those who change it
            record = record_of(key, content)
            path = self._config.folder(record.spec.id) / self._name
            port = ReportPort(record.run, path, user_ids.listener_uid(record), record.spec.powerdown_seconds)
            self._read[key] = (run, port)
            return port
        return None


@dataclass(slots=True)
class _Line:
    """To the guest of one machine."""

    port: ReportPort
    connect_at: float = 0.0
    socket: socket.socket | None = None
    buffer: LineBuffer = field(default_factory=LineBuffer)
    waiting: deque[bytes] = field(default_factory=deque)
    """Lines that were read and not looked at: there were too many in this second."""
    second: float = float("-inf")
    """When the present second began, in which so much may still be read:"""
    bytes_left: int = 0
    lines_left: int = 0
    report: GuestReport = NOTHING_REPORTED
    shown: GuestReport | None = None
    """The report whose status others know."""
    shown_at: float = float("-inf")
    finish_at: float = 0.0
    is_ending: bool = False
    is_watched: bool = False
    """Whether the thread waits for more of it."""


class GuestReports:
    """``run`` in one thread; the rest is safe for threads."""

    def __init__(
        self,
        ports: ReportPorts,
        finish: Callable[[str, str, str, Deadline], None],
        changed: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """``finish(key, run, message, deadline)`` ends a machine whose guest has finished; raises NodeError.
        ``changed`` gets the keys of machines whose status changed. ``spawn`` has something done in another thread."""
        self._ports, self._finish, self._changed = ports, finish, changed
        self._clock, self._spawn = clock, spawn or _in_thread
        self._mutex = threading.Lock()
        """For the next four, of which other threads change only ``_heard`` and ``_restored``."""
        self._lines: dict[str, _Line] = {}
        self._dropped = 0
        self._heard: set[str] = set()
        self._restored: dict[str, tuple[str, str]] = {}
        """By key, the run and the message of a guest that has finished."""
        self._names: dict[str, MetricNames] = {}
        """By key. A machine that starts anew has those of its run before."""
        self._selector = WakeableSelector()
        self._look_at = float("-inf")

    def report(self, key: str, run: str) -> GuestReport | None:
        """What the guest of that run last reported; None while it has reported no status to this plugin."""
        with self._mutex:
            line = self._lines.get(key)
            return None if line is None or line.port.run != run else line.shown

    def restore(self, key: str, run: str, message: str) -> None:
        """Have a machine ended whose guest has finished, as its object says: the plugin ended just then, or the machine
        moved here. Nothing to do if that is known."""
        with self._mutex:
            line = self._lines.get(key)
            if line is not None and line.port.run == run and line.report.status == "finished":
                return
            self._restored[key] = (run, message)
        self.hear([f"machine {key}"])

    def metrics(self) -> Mapping[str, Mapping[str, float]]:
        """The metrics of guests, by the machines' keys and by name."""
        with self._mutex:
            return {key: line.report.metrics for key, line in self._lines.items() if line.report.metrics}

    @property
    def dropped(self) -> int:
        """Lines that were not reports."""
        return self._dropped

    def hear(self, changed: Sequence[str]) -> None:
        """Take changes as ``ChangeNotifier.follow`` reports them."""
        keys = [one.removeprefix("machine ") for one in changed if one.startswith("machine ")]
        if keys:
            with self._mutex:
                self._heard.update(keys)
            self._selector.wake()

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set."""
        with self.opened():
            when_set(stop, self._selector.wake)
            repeat(stop, self.turn, PAUSE_SECONDS, "cannot read the reports of guests", most=CONNECT_SECONDS)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, ``turn`` can be called. At the end all machines are let go of."""
        with self._selector.opened():
            try:
                yield
            finally:
                for key in list(self._lines):
                    self._drop(key)

    def turn(self, most: float = LOOK_SECONDS) -> None:
        """Wait for at most so many seconds for something to do, and do it."""
        self._look()
        for key in self._selector.wait(max(0.0, min(most, self._next_at() - self._clock()))):
            if (line := self._lines.get(key)) is not None:
                self._read(key, line)
        self._look()
        for key, line in list(self._lines.items()):
            self._attend(key, line)

    # Which machines there are.

    def _look(self) -> None:
        """Take up machines that report, and let go of those that no longer do."""
        with self._mutex:
            heard, self._heard = self._heard, set()
            restored, self._restored = self._restored, {}
        now = self._clock()
        if now >= self._look_at:
            try:
                ports: Mapping[str, ReportPort | None] = self._ports.all()
            except NodeError as error:
                log.warning("cannot look up which guests report: %s", error)
                self._look_at = now + CONNECT_SECONDS
                return
            self._look_at = now + LOOK_SECONDS
            self._names = {key: names for key, names in self._names.items() if not names.is_empty(now)}
            ports = {**dict.fromkeys(self._lines), **ports}
        else:
            ports = {}
            for key in heard:
                with suppress(NodeError):  # the next look at all of them finds it
                    ports[key] = self._ports.one(key)
        for key, port in ports.items():
            there = self._lines.get(key)
            if there is not None and there.port == port:
                continue
            self._drop(key)
            if port is not None:
                with self._mutex:
                    self._lines[key] = line = _Line(port)
                self._attend(key, line)
        for key, (run, message) in restored.items():
            there = self._lines.get(key)
            if there is not None and there.port.run == run and there.report.status != "finished":
                with self._mutex:
                    there.report = replace(there.report, status="finished", message=message)

    def _drop(self, key: str) -> None:
        line = self._lines.get(key)
        if line is not None:
            self._close(line)
            with self._mutex:
                del self._lines[key]

    def _next_at(self) -> float:
        """When something is due though no guest writes."""
        due = [self._look_at]
        for line in self._lines.values():
            if line.socket is None:
                due.append(line.connect_at)
            if line.waiting or (line.socket is not None and not line.is_watched):
                due.append(line.second + 1.0)
            if line.report.status == "finished" and not line.is_ending:
                due.append(line.finish_at)
            if _is_unshown(line):
                due.append(line.shown_at + SHOW_SECONDS)
        return min(due)

    # One machine.

    def _attend(self, key: str, line: _Line) -> None:
        """Do what is due."""
        now = self._clock()
        if line.socket is None and now >= line.connect_at:
            self._connect(key, line)
        if not line.is_watched and now >= line.second + 1.0:
            self._take_lines(key, line)
            if not line.waiting:
                self._watch(key, line)
        if _is_unshown(line) and (line.report.status == "finished" or now >= line.shown_at + SHOW_SECONDS):
            with self._mutex:
                line.shown, line.shown_at = line.report, now
            self._changed(key)
        if line.report.status == "finished" and not line.is_ending and now >= line.finish_at:
            line.is_ending = True  # each in a thread, which waits for its guest: no one can hold up the ends of others
            try:
                self._spawn(partial(self._end, key, line))
            except BaseException:
                line.is_ending = False
                raise

    def _connect(self, key: str, line: _Line) -> None:
        line.connect_at = self._clock() + CONNECT_SECONDS
        try:
            connection = connect_to_user(line.port.path, line.port.user)
        except ForeignListener as error:
            line.connect_at = self._clock() + LOOK_SECONDS
            log.warning("machine %s: a process of user %d listens on its report port; not read", key, error.user)
            return
        except OSError as error:  # it is only just being started, or ends, or others wait in front of us
            log.debug("machine %s: cannot connect to its report port: %s", key, error)
            return
        line.socket, line.buffer = connection, LineBuffer()
        self._watch(key, line)

    def _watch(self, key: str, line: _Line) -> None:
        if line.socket is not None and not line.is_watched:
            self._selector.add(line.socket, key)
            line.is_watched = True

    def _unwatch(self, line: _Line) -> None:
        if line.socket is not None and line.is_watched:
            self._selector.remove(line.socket)
            line.is_watched = False

    def _close(self, line: _Line) -> None:
        self._unwatch(line)
        if line.socket is not None:
            line.socket.close()
            line.socket = None

    def _read(self, key: str, line: _Line) -> None:
        """Take what came, as far as there may be more in this second."""
        if line.socket is None:
            return
        self._begin_second(line)
        try:
            received = line.socket.recv(min(READ_BYTES, line.bytes_left)) if line.bytes_left else None
        except BlockingIOError:
            return
        except OSError as error:
            log.debug("machine %s: its report port broke: %s", key, error)
            received = b""
        if received == b"":
            self._close(line)
            line.connect_at = self._clock() + CONNECT_SECONDS
            return
        if received:
            line.bytes_left -= len(received)
            before = line.buffer.dropped
            line.waiting.extend(line.buffer.lines(received))
            self._dropped += line.buffer.dropped - before
            self._take_lines(key, line)
        if line.waiting or not line.bytes_left:
            self._unwatch(line)  # until this second is over

    def _begin_second(self, line: _Line) -> None:
        now = self._clock()
        if now >= line.second + 1.0:
            line.second, line.bytes_left, line.lines_left = now, BYTES_A_SECOND, LINES_A_SECOND

    def _take_lines(self, key: str, line: _Line) -> None:
        self._begin_second(line)
        while line.waiting and line.lines_left:
            line.lines_left -= 1
            try:
                report = updated_report(line.report, line.waiting.popleft())
                if report.metrics is not line.report.metrics:
                    self._names.setdefault(key, MetricNames()).check(report.metrics, self._clock())
            except BadLine as error:
                self._dropped += 1
                log.debug("machine %s: a line of its guest is not a report: %s", key, error)
                continue
            with self._mutex:
                line.report = report

    def _end(self, key: str, line: _Line) -> None:
        """In a thread of its own."""
        port = line.port
        try:
            due = Deadline.after(FINISH_SECONDS + port.powerdown_seconds)
            self._finish(key, port.run, line.report.message, due)
        except NodeError as error:
            log.warning("cannot end machine %s, whose guest has finished: %s", key, error)
        except Exception:
            log.exception("machine %s", key)
        line.finish_at, line.is_ending = self._clock() + AGAIN_SECONDS, False
        self.hear([f"machine {key}"])


def _is_unshown(line: _Line) -> bool:
    report, shown = line.report, line.shown
    if report.status is None:
        return False
    return shown is None or (report.status, report.message) != (shown.status, shown.message)


def _in_thread(work: Callable[[], None]) -> None:
    """A thread that does not keep the process: the guest powers down all the same."""
    threading.Thread(target=work, name="guest-finished", daemon=True).start()
