"""Locks by name in a folder, between the threads of this process and between processes; and the lock by which only one
plugin serves this host for a cluster.

The pods of a DaemonSet and a service of the host may both be started on a node. One would offer to pods what the
other one offers to machines, and both would run the machines. The locks are the kernel's, so that they go with a
process however that ends, and they lie in a folder that pods have of the host.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from devalloc.backoff import Backoff
from devalloc.file_lock import FileLock
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed

PublishMode = Literal["slices", "set-aside", "pools"]
"""How the devices are published."""
PUBLISH_MODES: Final[dict[PublishMode, str]] = {
    "slices": "publishes them as ResourceSlices for kube-scheduler",
    "set-aside": "publishes them as ResourceSlices for devalloc's controller",
    "pools": "publishes them as DevicePools and runs machines",
}
SIDE_BY_SIDE: Final = ("slices", "set-aside")
"""Ways of which the old and the new pod of a rolling update may both serve for a while."""
WAIT_SECONDS = 30.0
"""For one that is about to end: pods have that long."""
_LOOK_SECONDS = 0.2


@contextmanager
def exclusive_host(
    folder: Path, way: PublishMode, say: Callable[[str], None], wait: float = WAIT_SECONDS
) -> Iterator[None]:
    """While inside, serve the host this way. ``folder``: where all look who would serve it.

    Waits for another one to end. Raises Denied (``NodeServed``) if it does not, Failed if there can be no lock.
    """
    until, announced = time.monotonic() + wait, False
    with ExitStack() as stack:
        while (other := _acquire(folder, way, stack)) is not None:
            if time.monotonic() >= until:
                raise Denied("NodeServed", f"{other}; {_ADVICE}")
            if not announced:
                say(f"{other}; waiting {wait:.0f} s for it to end")
            announced = True
            time.sleep(_LOOK_SECONDS)
        yield


_ADVICE = (
    "only one plugin can serve a host. If one is a pod and a service of the host must run machines, label the node "
    "devalloc.io/publish=host, so that the pod leaves it; else stop one of the two"
)


def _acquire(folder: Path, way: PublishMode, stack: ExitStack) -> str | None:
    """Take the lock of a mode until the end of the stack, or return who excludes it, for people. Raises Failed."""
    with _open_lock_file(folder, "serving.lock") as door:
        door.lock()  # one process at a time looks at the locks and takes its own
        for other in PUBLISH_MODES:
            if other != way:
                with _open_lock_file(folder, f"serving-{other}.lock") as probe:
                    if not probe.try_lock():
                        return _holder(probe, other)
        lock = _open_lock_file(folder, f"serving-{way}.lock")
        if not lock.try_lock(shared=way in SIDE_BY_SIDE):
            with lock:
                return _holder(lock, way)
        stack.enter_context(lock)
    return None


def _holder(lock: FileLock, mode: PublishMode) -> str:
    return f"{lock.holder()} serves the devices of this host, and {PUBLISH_MODES[mode]}"


def _open_lock_file(folder: Path, name: str) -> FileLock:
    path = folder / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return FileLock(path)
    except OSError as error:
        raise Failed("SocketFailed", f"cannot open {path}: {error.strerror}") from error


MOST_WAITING = 32
"""Calls of a service that wait for their first lock at a time, in this process. Each takes one of the service's
threads, so half of those stay free for calls that need not wait. A call that holds a lock has begun: it waits for
further ones until its deadline, however many calls wait."""
_POLL_SECONDS = (0.001, 0.05)
"""The first and the longest pause between looks at a lock of another process."""
_GLANCE_SECONDS = 0.25
"""How often a thread that waits for another one looks whether its caller is still there."""
_NOTE_BYTES = 8192
_calls = threading.BoundedSemaphore(MOST_WAITING)
_thread = threading.local()
"""``work``: for what this thread took the first of the locks that it holds."""

LockErrorFactory = Callable[[str], Failed]
"""The error that names what is locked; gets the reason, a sentence or more."""


@dataclass(eq=False, slots=True)
class _Waiter:
    thread: int = field(default_factory=threading.get_ident)
    came: threading.Event = field(default_factory=threading.Event)


class LockFolder:
    """Locks by name, one file each, between the threads of this process and between processes.

    All callers wait for locks of the plugin here: until the deadline, or until the caller has gone. The threads
    of a process have their turns in the order in which they came. While a lock is held its file says who holds it and
    what for; then the file is removed.
    """

    def __init__(self, folder: Path, *, reentrant: bool = False) -> None:
        """``reentrant``: a thread that holds one of the locks may take it again."""
        self._folder = folder
        self._reentrant = reentrant
        self._mutex = threading.Lock()
        self._lines: dict[str, deque[_Waiter]] = {}
        """By name the threads of this process that hold it (the first of each) and wait for it (all others)."""

    @contextmanager
    def held(
        self, name: str, deadline: Deadline, work: str, busy: LockErrorFactory, *, brief: bool = False
    ) -> Iterator[None]:
        """Hold the lock of that name. ``work``: what it is held for, such as ``lock_purpose`` gives; a lock that is
        taken while another one is held is held for the same work. ``brief``: all holders release it within
        milliseconds, so that any number of calls may wait for it.

        Raises what ``busy`` makes when the lock is still held at the deadline, or, if nothing was begun, at once when
        MOST_WAITING calls wait already; Failed ``Cancelled`` when the caller has gone and nothing was begun,
        ``LockUnavailable``.
        """
        if self._reentrant and self._is_mine(name):
            yield
            return
        turn = _Waiter()
        outermost = getattr(_thread, "work", None)
        with self._mutex:
            line = self._lines.setdefault(name, deque())
            line.append(turn)
            is_free = line[0] is turn
        try:
            if not is_free:
                with self._waiting(name, deadline, busy, brief):
                    while not turn.came.wait(min(deadline.seconds, _GLANCE_SECONDS)):
                        self._give_up(name, deadline, busy)
            lock = self._locked(name, deadline, busy, brief)
            try:
                if outermost is None:
                    _refuse_cancelled(deadline)
                    _thread.work = work
                _note(lock, outermost or work)
                yield
            finally:
                _thread.work = outermost
                # Removed while it is locked: who waits for it notices (``is_same_file``) and makes a new one.
                with suppress(OSError):
                    self._path(name).unlink(missing_ok=True)
                lock.close()
        finally:
            with self._mutex:
                line.remove(turn)
                if line:
                    line[0].came.set()
                else:
                    del self._lines[name]

    def _is_mine(self, name: str) -> bool:
        with self._mutex:
            line = self._lines.get(name)
            # A turn that came and was not noticed yet is no lock, but then its thread is not here.
            return line is not None and line[0].thread == threading.get_ident()

    def _path(self, name: str) -> Path:
        return self._folder / name

    def _locked(self, name: str, deadline: Deadline, busy: LockErrorFactory, brief: bool) -> FileLock:
        """The file of that name, locked against other processes."""
        if (lock := self._try(name)) is not None:
            return lock
        backoff = Backoff(*_POLL_SECONDS)
        with self._waiting(name, deadline, busy, brief):
            while True:
                self._give_up(name, deadline, busy)
                time.sleep(min(backoff.next_delay(), deadline.seconds))
                if (lock := self._try(name)) is not None:
                    return lock

    def _try(self, name: str) -> FileLock | None:
        """The same, or None when another process has it locked."""
        path = self._path(name)
        while True:
            lock = self._open(path)
            try:
                if not lock.try_lock():
                    lock.close()
                    return None
                if lock.is_same_file():
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()

    def _open(self, path: Path) -> FileLock:
        try:
            try:
                return FileLock(path)
            except FileNotFoundError:  # the folder: not made yet, or removed
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                return FileLock(path)
        except OSError as error:
            raise Failed("LockUnavailable", f"cannot lock {path}: {error.strerror}") from error

    @contextmanager
    def _waiting(self, name: str, deadline: Deadline, busy: LockErrorFactory, brief: bool) -> Iterator[None]:
        """Inside, a call takes one of the places of calls that wait for their first lock."""
        if deadline.cancelled is None or brief or _holds_a_lock():
            yield
            return
        if not _calls.acquire(blocking=False):
            raise busy(f"{self._holder(name)}, and {MOST_WAITING} other calls are waiting. Try again later")
        try:
            yield
        finally:
            _calls.release()

    def _give_up(self, name: str, deadline: Deadline, busy: LockErrorFactory) -> None:
        """Raises the error with which a wait ends, if it is time for that."""
        if not _holds_a_lock():  # work in progress goes on, although its caller has gone
            _refuse_cancelled(deadline)
        if deadline.passed:
            raise busy(f"{self._holder(name)}. Try again when that has ended, or allow more time (--timeout)")

    def _holder(self, name: str) -> str:
        """Who holds it, since when and what for, as far as its file tells."""
        try:
            lock = FileLock.existing(self._path(name))
        except OSError:
            return "another request has just started or ended"
        with lock:
            try:
                content = json.loads(lock.read(_NOTE_BYTES))
                work, since, pid = str(content["work"]), float(content["since"]), int(content["pid"])
                clock = time.strftime("%H:%M:%S", time.gmtime(since))
                seconds = max(0.0, time.time() - since)
                return f"{work} has been in progress for {seconds:.0f} s (since {clock} UTC, process {pid})"
            except (OSError, ValueError, KeyError, TypeError, OverflowError):  # an earlier version, or a full disk
                return f"{lock.holder()} holds the lock"


def lock_purpose(work: str, caller: str) -> str:
    """What a lock is held for, and for which caller, if any."""
    return f"{work} (for {caller})" if caller else work


def _holds_a_lock() -> bool:
    """Whether this thread holds a lock, and so may have changed something already."""
    return getattr(_thread, "work", None) is not None


def _refuse_cancelled(deadline: Deadline) -> None:
    if deadline.cancelled is not None and deadline.cancelled.is_set():
        raise Failed("Cancelled", "the caller has gone, so nothing was started")


def _note(lock: FileLock, work: str) -> None:
    """Write into a locked file who holds it. If that cannot be written, the kernel still knows which process does."""
    content = json.dumps({"work": work[: _NOTE_BYTES // 16], "since": time.time(), "pid": os.getpid()})
    with suppress(OSError):
        lock.write(content.encode())
