"""Cache the observed state of machines, so that QEMU is not asked more often than necessary."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from devalloc_node.errors import NodeError, Unknown
from devalloc_node.machine import machine_files, resources
from devalloc_node.machine.config import MachineConfig
from devalloc_node.machine.process import Process
from devalloc_node.machine.records import MachineRecord
from devalloc_node.machine.spec import EmulatedDevice
from devalloc_node.machine.view import UNKNOWN_AMOUNTS, MachineAmounts, MachineView

LOOK_SECONDS = 2.0
"""What one look at a machine may take: it is answered from, and a hung QEMU must not hold up the others."""
_FRESH_SECONDS, _HUNG_SECONDS = 1.0, 10.0
"""How long a look counts; longer where QEMU did not answer."""
_SLACK_SECONDS = 0.5
"""For those that hang to be told as what they are."""
_TOGETHER = 32
"""Machines that are looked at at the same time."""


SLEEPING = "suspended"
"""QEMU's word for a guest that has put itself to sleep. Its CPUs cannot be told to go on: it is to be woken."""


@dataclass(frozen=True, slots=True)
class MachineObservation:
    """What was seen."""

    until: float = 0.0
    """How long it counts, on the monotonic clock."""
    observed: MachineAmounts = UNKNOWN_AMOUNTS
    plain: tuple[EmulatedDevice, ...] = ()
    status: str = "running"
    """QEMU's word for what its CPUs do."""
    told_memory: int | None = None
    """Bytes that QEMU was told to have, where its word counts more than what is noted."""
    problem: NodeError | None = None


class StatusCache:
    """The last look at each machine. Safe for threads."""

    def __init__(
        self, observe: Callable[[MachineRecord], tuple[MachineAmounts, tuple[EmulatedDevice, ...], str, int | None]]
    ) -> None:
        """``observe`` asks QEMU what it has, what was plugged into it, its status, and what memory it was told to have
        (None: as noted). Raises NodeError."""
        self._observe = observe
        self._mutex = threading.Lock()
        self._last: dict[str, MachineObservation] = {}
        self._under_way: dict[str, set[object]] = {}
        """Looks of which nothing was changed since they began."""

    def at(self, record: MachineRecord) -> MachineObservation:
        """What QEMU says, at most a second old."""
        last = self._at_last(record)
        return last if last.until > time.monotonic() else self._look(record, last)

    def ahead(self, records: Iterable[MachineRecord]) -> None:
        """Look at several at once, so that ``at`` has its answer: those that hang take the time of one, together."""
        now = time.monotonic()
        due = [(record, last) for record in records if (last := self._at_last(record)).until <= now]
        if len(due) < 2:
            return
        pool = ThreadPoolExecutor(min(_TOGETHER, len(due)), thread_name_prefix="look")
        try:
            futures = {pool.submit(self._look, record, last): (record, last) for record, last in due}
            late = wait(futures, timeout=LOOK_SECONDS + _SLACK_SECONDS).not_done
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        for record, last in (futures[one] for one in late):
            silent = f"QEMU of machine {record.spec.key} did not answer in time; others hang too, or the host is busy"
            problem = Unknown("MonitorSilent", silent)
            self._keep(record, replace(last, until=time.monotonic() + _FRESH_SECONDS, problem=problem))

    def last(self, key: str) -> MachineObservation | None:
        """What was seen last, however long ago; None if nothing was since the machine was changed."""
        with self._mutex:
            return self._last.get(key)

    def _at_last(self, record: MachineRecord) -> MachineObservation:
        with self._mutex:
            return self._last.get(record.spec.key, MachineObservation())

    def _keep(self, record: MachineRecord, look: MachineObservation) -> MachineObservation:
        with self._mutex:
            self._last[record.spec.key] = look
        return look

    def _look(self, record: MachineRecord, before: MachineObservation) -> MachineObservation:
        now, this, key = time.monotonic(), object(), record.spec.key
        with self._mutex:
            self._under_way.setdefault(key, set()).add(this)
        try:
            look = MachineObservation(now + _FRESH_SECONDS, *self._observe(record))
        except NodeError as problem:
            look = replace(before, until=now + _HUNG_SECONDS, problem=problem)
        with self._mutex:
            begun = self._under_way.get(key, set())
            if this in begun:
                self._last[key] = look
                begun.discard(this)
            if not begun:
                self._under_way.pop(key, None)
        return look

    def forget(self, key: str) -> None:
        """It was changed: what was seen before, or is just being looked at, may be of another run of it."""
        with self._mutex:
            self._last.pop(key, None)
            self._under_way.pop(key, None)


def record_after_end(record: MachineRecord, config: MachineConfig) -> MachineRecord:
    """What is to be noted of a machine that was known to live and does not."""
    words = machine_files.last_words(config, record.spec.id)
    if record.state == "starting":  # not to its end, so that no policy forbids to start it again
        return record.become("failed", "MachineDidNotStart", f"its start was not completed: {words}".rstrip(": "))
    on_request = record.state == "stopping" or record.reason == "StopWanted"
    code, text = ("StoppedOnRequest", "it was stopped on request") if on_request else ("MachineEnded", "it ended")
    return record.become("stopped", code, f"{text}: {words}" if words else text)


def _why_paused(status: str) -> tuple[str, str]:
    """Why the CPUs of a machine that runs do nothing."""
    code, why = "CpusStopped", f"QEMU reports {status[:50]!r}; resume it, or create the machine again"
    if status == SLEEPING:
        why = "its guest sleeps until it is woken (QEMU's system_wakeup)"
    if status == "io-error":
        code, why = (
            "DiskFailed",
            (
                "the host could not write or read a disk of it (is its file system full?); create it again to "
                "continue; a VirtualMachine continues by itself"
            ),
        )
    return code, f"its CPUs are paused: {why}"


def _wanted_next(record: MachineRecord) -> MachineAmounts:
    """Of one that does not live: what its policy starts it with, or else who creates it again."""
    comes_back = record.will_restart and not record.spec.uid
    return resources.resources_at_start(record) if comes_back else resources.requested_in_spec(record.spec)


def machine_view(
    record: MachineRecord, process: Process | None, look: MachineObservation, config: MachineConfig
) -> MachineView:
    """A machine as other rooms see it."""
    if process is None and look.problem is None and record.state in ("running", "stopping"):
        record = record_after_end(record, config)  # which is noted soon
    phases = {"starting": "Starting", "running": "Running", "stopping": "Stopping", "failed": "Failed"}
    phase, reason, message = phases.get(record.state, "Stopped"), record.reason, record.message
    if look.problem is not None:
        phase, reason, message = "Unknown", look.problem.code, look.problem.message
    elif process is None and phase != "Failed":
        phase = "Stopped"
    elif phase == "Running" and look.status != "running":
        reason, message = _why_paused(look.status)
    spec = record.spec
    return MachineView(
        key=spec.key,
        uid=spec.uid,
        phase=phase,
        wanted=resources.wanted_while_running(record) if process else _wanted_next(record),
        applied=record.applied if look.told_memory is None else replace(record.applied, memory_bytes=look.told_memory),
        observed=look.observed,
        reason=reason,
        message=message,
        pid=process.pid if process else 0,
        id=record.run,
        qmp_socket=spec.adopt or str(config.folder(spec.id) / "qmp"),
        adopted=spec.adopt is not None,
        started=spec,
        is_paused=process is not None and record.state == "starting",
        plain=look.plain if process is not None else (),
    )
