"""The life of a process: its loops run until a signal ends it, endpoints end after them, and then all that it uses is
closed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Literal, Protocol

log = logging.getLogger(__name__)

Loop = Callable[[threading.Event], None]
"""Runs in a thread of its own until the event is set."""
BEAT_SECONDS = 1.0
"""How long the main thread sleeps at most. Only it runs Python's signal handlers, but the kernel may wake another
thread for a signal, for example if SIGTERM comes right after SIGSTOP and SIGCONT."""


class ProgramFailed(Exception):
    """A process cannot begin, or has ended. The message says why, and what to do."""


class Control:
    """Ends a program, or has it look again. From any thread and from signal handlers."""

    def __init__(self) -> None:
        # Unlike an Event or a Queue, a SimpleQueue may be used in a signal handler.
        self._messages: SimpleQueue[Literal["stop", "rescan"]] = SimpleQueue()
        self.error: BaseException | None = None
        """What ended the program first."""
        self.is_running = False
        """Whether a program listens to it: until then it is put together, which may wait for locks and servers."""

    def stop(self) -> None:
        """End soon."""
        self._messages.put("stop")

    def rescan(self) -> None:
        """Look now at what is otherwise looked at now and then."""
        self._messages.put("rescan")

    def fail(self, error: BaseException) -> None:
        """End soon, with this error if it is the first."""
        self.error = self.error or error
        self.stop()

    def next(self, seconds: float = BEAT_SECONDS) -> Literal["stop", "rescan"] | None:
        """The next message; None if there is none within the time."""
        try:
            return self._messages.get(timeout=seconds)
        except Empty:
            return None

    @contextmanager
    def signals(self) -> Iterator[None]:
        """While inside: SIGINT and SIGTERM stop it, a second one, or one before it runs, ends the process at once;
        SIGHUP has it look again.

        Only in the main thread.
        """

        def end(number: int, frame: FrameType | None) -> None:
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, signal.SIG_DFL)
            if not self.is_running:
                os.kill(os.getpid(), number)
            self.stop()

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: self.rescan())
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class ProgressDisplay(Protocol):
    """Where a program says what it does."""

    def say(self, text: str) -> None:
        """Print a line that stays."""

    def state(self, text: str) -> None:
        """Show the current state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a process consists of."""

    loops: Sequence[Loop]
    """The first error of one ends the program."""
    parts: ExitStack = field(default_factory=ExitStack)
    """What is open while it runs."""
    endpoints: Sequence[Loop] = ()
    """What loops need as long as they run: they end after all loops."""
    rescan: Callable[[], None] = lambda: None
    check: Callable[[], None] = lambda: None
    """Called at least each second; what it raises ends the program."""
    grace: tuple[float, float] = (2.0, 2.0)
    """Seconds for which a stop waits for the loops, and then for the endpoints."""
    unfinished: str = ""
    """What is said if a loop has not ended by then. If this is set, all parts then stay open until the process ends,
    as they do for an endpoint."""
    at_once: tuple[type[BaseException], ...] = ()
    """Errors after which nothing may go on: nothing is waited for or closed, and the process must end."""


def run(program: Program, control: Control) -> None:
    """Run until ``control`` ends it. Raises the error that did."""
    stop, over = threading.Event(), threading.Event()
    unfinished: list[ExitStack] = []
    control.is_running = True

    def guarded(loop: Loop, until: threading.Event, used: list[ExitStack]) -> None:
        """``used``: stays open as long as the thread goes on."""
        try:
            loop(until)
        except BaseException as error:
            control.fail(error)

    def started(loops: Iterable[Loop], until: threading.Event) -> list[threading.Thread]:
        threads = [threading.Thread(target=guarded, args=(loop, until, unfinished), daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        return threads

    def end_if_due(parts: ExitStack) -> None:
        if isinstance(control.error, program.at_once):
            unfinished.append(parts.pop_all())
            raise control.error

    with program.parts as parts:
        endpoints, loops = started(program.endpoints, over), started(program.loops, stop)
        try:
            while (message := control.next()) != "stop":
                if message == "rescan":
                    program.rescan()
                program.check()
        except Exception as error:
            control.fail(error)
        end_if_due(parts)
        stop.set()
        has_ended = _joined(loops, program.grace[0])
        end_if_due(parts)
        over.set()
        if program.unfinished and not has_ended:
            log.warning("%s", program.unfinished)
        has_ended = _joined(endpoints, program.grace[1]) and has_ended
        if program.unfinished and not has_ended:
            unfinished.append(parts.pop_all())
    if control.error is not None:
        raise control.error


def _joined(threads: Sequence[threading.Thread], seconds: float) -> bool:
    """Whether all have ended within the time."""
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


@contextmanager
def abandon_hung_threads(say: Callable[[str], None]) -> Iterator[None]:
    """At the end, give threads that hang (a guest that does not power down, a kernel that does not answer) a second,
    then end the process without them: the journal records what they did, and the next start finishes it.
    """
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 1.0
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                say("stopped before everything was finished; the next start finishes it")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)
