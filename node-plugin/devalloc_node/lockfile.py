"""Locks on files and folders, which go with their last holder."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from devalloc_node.deadline import Deadline
from devalloc_node.errors import Failed

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

Refusal = Callable[[str], Failed]
"""The error that names what is locked; gets the reason, a sentence or more."""


@dataclass(eq=False, slots=True)
class _Turn:
    thread: int = field(default_factory=threading.get_ident)
    came: threading.Event = field(default_factory=threading.Event)


class LockFolder:
    """Locks by name, one file each, between the threads of this process and between processes.

    This is where anybody waits for a lock of the plugin: until the deadline, or until the caller has gone. The threads
    of a process have their turns in the order in which they came. While a lock is held its file says who holds it and
    what for; then the file is removed.
    """

    def __init__(self, folder: Path, *, reentrant: bool = False) -> None:
        """``reentrant``: a thread that holds one of the locks may take it again."""
        self._folder = folder
        self._reentrant = reentrant
        self._mutex = threading.Lock()
        self._lines: dict[str, deque[_Turn]] = {}
        """By name the threads of this process that hold it (the first of each) and wait for it (all others)."""

    @contextmanager
    def held(self, name: str, deadline: Deadline, work: str, busy: Refusal, *, brief: bool = False) -> Iterator[None]:
        """Hold the lock of that name. ``work``: what it is held for, such as ``work_for`` gives; a lock that is
        taken while another one is held is held for the same work. ``brief``: all holders release it within
        milliseconds, so that any number of calls may wait for it.

        Raises what ``busy`` makes when the lock is still held at the deadline, or, if nothing was begun, at once when
        MOST_WAITING calls wait already; Failed ``Cancelled`` when the caller has gone and nothing was begun,
        ``LockUnavailable``.
        """
        if self._reentrant and self._is_mine(name):
            yield
            return
        turn = _Turn()
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
            descriptor = self._locked(name, deadline, busy, brief)
            try:
                if outermost is None:
                    _refuse_cancelled(deadline)
                    _thread.work = work
                _note(descriptor, outermost or work)
                yield
            finally:
                _thread.work = outermost
                # Removed while it is locked: who waits for it notices (``is_at``) and makes a new one.
                with suppress(OSError):
                    self._path(name).unlink(missing_ok=True)
                os.close(descriptor)
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

    def _locked(self, name: str, deadline: Deadline, busy: Refusal, brief: bool) -> int:
        """A descriptor of the file of that name, locked against other processes."""
        if (descriptor := self._try(name)) is not None:
            return descriptor
        pause, longest = _POLL_SECONDS
        with self._waiting(name, deadline, busy, brief):
            while True:
                self._give_up(name, deadline, busy)
                time.sleep(min(pause, deadline.seconds))
                pause = min(2 * pause, longest)
                if (descriptor := self._try(name)) is not None:
                    return descriptor

    def _try(self, name: str) -> int | None:
        """The same, or None when another process has it locked."""
        path = self._path(name)
        while True:
            descriptor = self._open(path)
            try:
                if not take(descriptor):
                    os.close(descriptor)
                    return None
                if is_at(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _open(self, path: Path) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            try:
                return os.open(path, flags, 0o600)
            except FileNotFoundError:  # the folder: not made yet, or somebody removed it
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                return os.open(path, flags, 0o600)
        except OSError as error:
            raise Failed("LockUnavailable", f"cannot lock {path}: {error.strerror}") from error

    @contextmanager
    def _waiting(self, name: str, deadline: Deadline, busy: Refusal, brief: bool) -> Iterator[None]:
        """Inside, a call takes one of the places of calls that wait for their first lock."""
        if deadline.cancelled is None or brief or _has_begun():
            yield
            return
        if not _calls.acquire(blocking=False):
            raise busy(f"{self._holder(name)}, and {MOST_WAITING} other calls wait already. Ask again later")
        try:
            yield
        finally:
            _calls.release()

    def _give_up(self, name: str, deadline: Deadline, busy: Refusal) -> None:
        """Raises the error with which a wait ends, if it is time for that."""
        if not _has_begun():  # what was begun goes on, though nobody wants the answer any more
            _refuse_cancelled(deadline)
        if deadline.passed:
            raise busy(f"{self._holder(name)}. Ask again when that has ended, or allow more time (--timeout)")

    def _holder(self, name: str) -> str:
        """Who holds it, since when and what for, as far as its file tells."""
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return "another request has just begun or ended"
        try:
            content = json.loads(os.read(descriptor, _NOTE_BYTES))
            work, since, pid = str(content["work"]), float(content["since"]), int(content["pid"])
            clock = time.strftime("%H:%M:%S", time.gmtime(since))
            seconds = max(0.0, time.time() - since)
            return f"{work} has been under way for {seconds:.0f} s (since {clock} UTC, process {pid})"
        except (OSError, ValueError, KeyError, TypeError, OverflowError):  # of an earlier version, or the disk was full
            return f"{holder_of(descriptor)} has it locked"
        finally:
            os.close(descriptor)


def work_for(work: str, caller: str) -> str:
    """What a lock is held for, with who asked for that, if anybody did."""
    return f"{work} (for {caller})" if caller else work


def _has_begun() -> bool:
    """Whether this thread holds a lock, and so may have changed something already."""
    return getattr(_thread, "work", None) is not None


def _refuse_cancelled(deadline: Deadline) -> None:
    if deadline.cancelled is not None and deadline.cancelled.is_set():
        raise Failed("Cancelled", "the caller has gone, so nothing was begun")


def _note(descriptor: int, work: str) -> None:
    """Write into a locked file who holds it. If that cannot be written, the kernel still knows which process does."""
    content = json.dumps({"work": work[: _NOTE_BYTES // 16], "since": time.time(), "pid": os.getpid()})
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content.encode(), 0)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether a file that was just locked is still the one of that name: its last holder removed it while it was
    locked, and then the lock is worth nothing. Whoever sees that opens the name anew."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def take(descriptor: int) -> bool:
    """Lock what it leads to, or say that somebody else has it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder_of(descriptor: int) -> str:
    """Who has it locked, for people: ``process 4242 (devalloc)``, as far as the kernel tells."""
    found = os.fstat(descriptor)
    inode = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()  # 1: FLOCK ADVISORY WRITE 4242 fe:00:131 0 EOF
            if words[1:2] == ["FLOCK"] and words[5:6] == [inode] and words[4].isdecimal() and words[4] != "0":
                name = Path(f"/proc/{words[4]}/comm").read_text(errors="replace").strip()
                return f"process {words[4]} ({name})"
    except OSError:
        pass
    return "another process"
