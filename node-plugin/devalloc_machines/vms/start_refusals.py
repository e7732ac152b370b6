"""Machines that cannot start, or end again and again: when another try makes sense, and when their room is given back.

A machine that ended is started again at once, and with growing pauses if it ends soon after each start.

A machine that can never start would keep what its node reserves for it for ever, and others would wait for that room.
So after a refusal that lasts, or several failures, the node gives it back and writes the condition ``Startable``. The
allocator then looks for no place for the machine until the condition goes or its spec changes. The node removes the
condition when a file, program or interface of the host changes that the machine needs, or after a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from devalloc.api.machine_reservation import STARTABLE
from devalloc.api.meta import parse_time
from devalloc.backoff import RestartPause
from devalloc_node.errors import TRANSIENT, NodeError, Unknown

FAILURES = 5
"""So many tries in a row that fail, for any reason, give the room back."""
RETRY_SECONDS = 600.0
"""The pause before a machine asks for room again though nothing changed."""
SOON_SECONDS = 60.0
"""The same for what may pass without a change of the host."""
CHANGE_SECONDS = 5.0
"""The least pause: files of the host can change again and again, as while an image is copied. Also for what another run
of the plugin refused: this run may have been started with the options that the refusal asked for."""
HOST_FILES = frozenset(
    {
        "DeviceReserved",
        "DiskFormat",
        "DiskInUse",
        "DiskNamesOthers",
        "DiskTooSmall",
        "FileUnreadable",
        "FirmwareChanged",
        "FirmwareInvalid",
        "FirmwareMissing",
        "ImageChanged",
        "InUseUnknown",
        "PathMissing",
        "PathNotAllowed",
        "PathNotFile",
        "QemuMissing",
        "SwtpmMissing",
        "TapInUse",
        "TapMissing",
    }
)
"""Codes for a machine that cannot start as long as a program, file or interface of the host is as it is."""
_MAY_PASS = frozenset({"DiskInUse", "InUseUnknown", "TapInUse"})
"""Those of them that others end without a change of the host, such as a machine that is still powering down."""
_RUNS = frozenset({"MachineExists", "MachineRuns"})
"""Those of a start that something else which runs is in the way of: nothing is given back."""
_MAX_MESSAGE = 4096
_OFTEN = 30
"""So many runs that did not last make the longest pause."""


@dataclass(slots=True)
class _Run:
    """The last run of a machine, or the last try to start it."""

    began: float
    generation: int | None
    """Of the spec that it was started by."""
    pause: RestartPause
    is_over: bool = False
    """It was seen not to run."""


class RestartBackoff:
    """The pauses of machines before they are started again, by their keys. Safe for threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._runs: dict[str, _Run] = {}

    def begun(self, key: str, generation: int | None = None, *, is_hopeless: bool = False) -> None:
        """It was started now, or that was tried, by a spec of that generation. ``is_hopeless``: what is in its way does
        not go away by itself, so the longest pause comes next."""
        with self._mutex:
            last = self._runs.get(key)
            quick = last.pause.failures if last is not None and last.generation == generation else 0
            pause = RestartPause(max(quick, _OFTEN) if is_hopeless else quick)
            self._runs[key] = _Run(self._clock(), generation, pause)

    def left(self, key: str, generation: int | None = None) -> float:
        """Seconds until one that is seen not to run may be started; 0 for now, and for another spec than before."""
        with self._mutex:
            last = self._runs.get(key)
            if last is None or last.generation != generation:
                return 0.0
            now = self._clock()
            if not last.is_over:
                last.is_over = True
                last.pause.ended(now, now - last.began)
            return max(0.0, last.pause.due - now)

    def runs(self, key: str) -> None:
        """It is seen to run: if it was seen not to, another caller has started it, and its next run is its first."""
        with self._mutex:
            if (last := self._runs.get(key)) is not None and last.is_over:
                del self._runs[key]

    def forget(self, key: str) -> None:
        """Its next run is its first."""
        with self._mutex:
            self._runs.pop(key, None)


def lasts(code: str, *, retryable: bool | None = None) -> bool:
    """Whether what a start was refused with stays so until the machine or its host is changed. ``retryable``: of the
    error, if that is known."""
    may_pass = code in TRANSIENT if retryable is None else retryable
    return code not in _MAY_PASS and (code in HOST_FILES or not may_pass)


GIVEN_BACK = "nothing is reserved for it until something of it or of its host changes, or until the next try"


class Needs:
    """What a machine needs to start, as it is now: files of the host, and what else there is."""

    def __init__(self, files: Callable[[], Hashable], others: Hashable) -> None:
        self._look = files
        self._files = files()
        self.current: Hashable = (self._files, others)

    def is_unchanged(self) -> bool:
        """Whether the files are as they were."""
        return self._look() == self._files


@dataclass(slots=True)
class _Failures:
    """Of one machine, by one generation of its spec."""

    generation: int | None
    count: int = 0
    host: Hashable = None
    """What it needs of the host, as that was when its room was given back."""
    may_pass: bool = True
    """Whether what failed may succeed without a change of the host."""
    by_another: bool = False
    """Whether another run of the plugin refused it, and this one has not tried."""


class StartRefusals:
    """The failed starts of machines, by their keys. Safe for threads."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """``now``: seconds since the epoch, as conditions have their times."""
        self._now = now
        self._mutex = threading.Lock()
        self._failures: dict[str, _Failures] = {}

    def gives_back(self, key: str, generation: int | None, error: NodeError, host: Hashable) -> bool:
        """Whether this failure is one after which its room is given back. ``host``: what it needs of the host."""
        if isinstance(error, Unknown) or error.code in _RUNS:
            return False
        with self._mutex:
            before = self._failures.get(key)
            if before is None or before.generation != generation:
                before = self._failures[key] = _Failures(generation)
            before.count, before.host, before.by_another = before.count + 1, host, False
            before.may_pass = not lasts(error.code, retryable=error.retryable)
            return not before.may_pass or before.count >= FAILURES

    def forget(self, key: str) -> None:
        """It has started, or is gone."""
        with self._mutex:
            self._failures.pop(key, None)

    def pause(self, key: str, condition: Mapping[str, Any], host: Hashable) -> float:
        """Seconds until a machine with this condition is worth another try; soon if something of the host changed, or
        if another run of the plugin refused it."""
        with self._mutex:
            before = self._failures.get(key)
            if before is None:
                generation = condition.get("observedGeneration")
                before = self._failures[key] = _Failures(generation, FAILURES - 1, host, by_another=True)
            whole = SOON_SECONDS if before.may_pass else RETRY_SECONDS
            if before.by_another or before.host != host:
                whole = CHANGE_SECONDS
        try:
            since = parse_time(str(condition.get("lastTransitionTime"))).timestamp()
        except ValueError:
            return 0.0
        return min(whole, max(0.0, since + whole - self._now()))


def start_refused(error: NodeError, generation: int | None) -> dict[str, Any]:
    """The condition ``Startable`` of a machine whose start failed."""
    condition: dict[str, Any] = {
        "type": STARTABLE,
        "status": "False",
        "reason": error.code,
        "message": error.message[:_MAX_MESSAGE],
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return condition if generation is None else condition | {"observedGeneration": generation}
