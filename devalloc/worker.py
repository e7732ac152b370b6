"""Loops: work on keys that someone adds or whose time comes, and work that is done again and again.

``Worker`` is what client-go calls a work queue, with its loop: a key is worked on by one thread at a time, several keys
beside each other; a key that is added while it is worked on is worked on once more; one that failed is due again after
a growing pause, or when it is added.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Generic, TypeVar

from devalloc.backoff import Retry

log = logging.getLogger(__name__)

MAX_MESSAGES = 20_000
"""Messages that wait for a round; if there are more, one takes the place of all."""
MAX_ASIDE = 256
"""Threads that may wait for something slow beside those that work."""
MOST_ROUND_SECONDS = 5.0
"""The longest pause after a round that failed, which keeps all keys, however short their own pauses are."""

Errors = tuple[type[BaseException], ...]
K = TypeVar("K", bound=Hashable)
M = TypeVar("M")


class Why(Enum):
    """Why a key is worked on."""

    ADDED = "added"
    """Someone added it, and its time has not come."""
    DUE = "due"
    """Its time came."""


@dataclass(frozen=True, slots=True)
class Again:
    """A key is due again, though no one adds it."""

    after: float | None = None
    """Seconds; None: as long as ``Pace`` says after a failure."""
    failed: bool | Exception = False
    """It counts as a failure, which is logged if it is an error."""


FAILED = Again(failed=True)
UNTRIED = Again()
"""Nothing was tried: the key is due when it was before it was added, and its failures stay."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Times are in seconds."""

    first: float = 1.0
    """The pause after the first failure in a row; twice as long after each further one,"""
    most: float = 60.0
    """but not longer."""
    batch: float = 0.0
    """After a change more are waited for, so that what changes together is seen together."""
    threads: int = 0
    """Keys that are worked on at the same time; 0: one, in the loop's own thread."""
    expected: Errors = ()
    """Errors that are no bugs: one line in the log, once while they stay the same."""
    fatal: Errors = ()
    """Errors that end the loop."""


def in_thread(work: Callable[[], None]) -> None:
    """Do it in a thread that does not keep the process: what it leaves unfinished, the next start goes on with."""
    threading.Thread(target=work, name="worker", daemon=True).start()


def when_set(stop: threading.Event, do: Callable[[], object]) -> threading.Thread:
    """Do it when ``stop`` is set, which others wait for by something else. The thread that waits for that."""

    def wait() -> None:
        stop.wait()
        do()

    thread = threading.Thread(target=wait, name="stop", daemon=True)
    thread.start()
    return thread


_waiters_lock = threading.Lock()
_waiters: dict[threading.Event, set[Callable[[], None]]] = {}
"""Who waits in event loops for what is not set yet. One thread waits for all of them: those who wait may come and go
as long as the program runs."""


async def until_set(stop: threading.Event) -> None:
    """Wait in an event loop until another thread sets it."""
    loop, is_set = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(is_set.set)

    with _waiters_lock:
        if stop.is_set():
            return
        if stop not in _waiters:
            when_set(stop, partial(_wake_all, stop))
        waiters = _waiters.setdefault(stop, set())
        waiters.add(wake)
    try:
        await is_set.wait()
    finally:
        with _waiters_lock:
            waiters.discard(wake)


def _wake_all(stop: threading.Event) -> None:
    with _waiters_lock:
        waiters = [*_waiters.pop(stop, ())]
    for wake in waiters:
        wake()


class Worker(Generic[K, M]):
    """A work queue and its loop. ``run`` it in a thread of its own; ``round`` is one turn of it, for tests. None is the
    only key of one that looks at all each time."""

    def __init__(
        self,
        what: str,
        work: Callable[[K, Why], Again | None],
        take: Callable[[Sequence[M]], None] = lambda messages: None,
        *,
        pace: Pace | None = None,
        overflow: M | None = None,
        clock: Callable[[], float] = time.monotonic,
        spawn: Callable[[Callable[[], None]], None] = in_thread,
    ) -> None:
        """``what`` cannot be done if a key fails, for the log. ``work`` brings a key nearer to what it is to be; it may
        raise. ``take`` is called in the loop's thread with the messages, and adds the keys that they concern; if it
        raises, it is called with the same again. ``overflow``: takes the place of more than ``MAX_MESSAGES``."""
        self._what, self._work, self._take = what, work, take
        self._pace = pace or Pace()
        self._overflow, self._clock, self._spawn = overflow, clock, spawn
        self._changed = threading.Condition()
        """Guards all that follows."""
        self._count = 0
        """Of what may have given the loop something to do."""
        self._messages: list[M] = []
        self._added: dict[K, float] = {}
        """The keys that were added, since when, by the clock,"""
        self._due: dict[K, float] = {}
        """and those whose time will come."""
        self._order: list[tuple[float, int, K]] = []
        """Both as a heap, with entries that no longer hold."""
        self._number = itertools.count()
        self._busy: dict[K, float | None] = {}
        """The keys that are worked on, and when they were due before they were added."""
        self._forgotten: set[K] = set()
        """Of the busy ones."""
        self._retries: dict[K, Retry] = {}
        """Of keys that failed."""
        self._aside = 0
        self._fatal: BaseException | None = None
        self._stop: threading.Event | None = None
        """That of ``run``."""
        self.began: float | None = None
        """When the round of ``run`` that goes on began, by ``time.monotonic``; None between rounds."""

    # From any thread.

    def tell(self, *messages: M) -> None:
        """Have ``take`` called with these."""
        with self._changed:
            self._add_messages(messages)
            self._beat()

    def add(self, key: K, after: float | None = None) -> None:
        """Work on a key, as something changed. ``after``: because its time comes in so many seconds, or sooner if it
        is due sooner."""
        with self._changed:
            self._add(key, after)
            self._beat()

    def reset(self, key: K) -> None:
        """Forget its failures: what it failed for has changed."""
        with self._changed:
            self._retries.pop(key, None)

    def forget(self, key: K) -> None:
        """Work on a key no more, unless it is added again. Work on it that has begun goes on, for the last time."""
        with self._changed:
            self._added.pop(key, None)
            self._due.pop(key, None)
            self._retries.pop(key, None)
            if key in self._busy:
                self._forgotten.add(key)

    def failures(self, key: K) -> int:
        """Count how often in a row it failed."""
        with self._changed:
            return self._retries[key].failures if key in self._retries else 0

    def is_busy(self, key: K) -> bool:
        """Whether it is worked on."""
        with self._changed:
            return key in self._busy

    @contextmanager
    def aside(self) -> Generator[None, None, None]:
        """Count the thread that works on a key as none: it waits for something slow."""
        with self._changed:
            self._aside += 1
            self._beat()
        try:
            yield
        finally:
            with self._changed:
                self._aside -= 1

    # In the loop's thread.

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Raises what is ``fatal``; all else is logged, and tried again."""
        self._stop = stop
        when_set(stop, self._wake)
        retry = self._new_retry(self._what, MOST_ROUND_SECONDS)
        while not stop.is_set():
            with self._changed:
                seen = self._count
            self.began = time.monotonic()
            try:
                pause = self.round()
                retry.succeeded()
            except self._pace.fatal:
                raise
            except Exception as error:
                self.began = None
                stop.wait(retry.failed(error))
                continue
            finally:
                self.began = None
            with self._changed:
                self._changed.wait_for(partial(self._is_due, seen, stop), pause)
            if self._pace.batch:
                stop.wait(self._pace.batch)

    def round(self) -> float | None:
        """Take the messages and begin what is due; seconds until a key is due, None if none waits. Raises what
        ``take`` raises, and what is ``fatal``."""
        with self._changed:
            messages, self._messages = self._messages, []
        if messages:
            try:
                self._take(messages)
            except BaseException:
                with self._changed:
                    since, self._messages = self._messages, []
                    self._add_messages([*messages, *since])
                raise
        now, last = self._clock(), next(self._number)
        while (begun := self._next(now, last)) is not None:
            self._begin(*begun)
        with self._changed:
            if self._fatal is not None:
                raise self._fatal
            self._drop_outdated()
            return max(0.0, self._order[0][0] - self._clock()) if self._order and not self._is_full() else None

    def drain(self, seconds: float) -> bool:
        """Wait until nothing is worked on; whether that came within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, seconds)

    # With ``_changed`` held.

    def _is_due(self, seen: int, stop: threading.Event) -> bool:
        return self._count != seen or stop.is_set()

    def _beat(self) -> None:
        self._count += 1
        self._changed.notify_all()

    def _add_messages(self, messages: Sequence[M]) -> None:
        self._messages.extend(messages)
        if self._overflow is not None and len(self._messages) > MAX_MESSAGES:
            self._messages = [self._overflow]

    def _add(self, key: K, after: float | None) -> None:
        self._forgotten.discard(key)
        if after is None:
            self._put(self._added, key, self._clock())
        else:
            self._put(self._due, key, self._clock() + after)

    def _put(self, times: dict[K, float], key: K, at: float) -> None:
        if key not in times or at < times[key]:
            times[key] = at
            heapq.heappush(self._order, (at, next(self._number), key))

    def _is_full(self) -> bool:
        return len(self._busy) - min(self._aside, MAX_ASIDE) >= max(1, self._pace.threads)

    def _drop_outdated(self) -> None:
        """Drop entries of the heap that no longer hold, as far as they are in front. Those of keys that are worked on
        hold again when that ends."""
        while self._order:
            at, _, key = self._order[0]
            if key not in self._busy and at in (self._added.get(key), self._due.get(key)):
                return
            heapq.heappop(self._order)

    # One key.

    def _next(self, now: float, last: int) -> tuple[K, Why] | None:
        """Take the key that has been due for longest, if one may begin. What came after the number ``last`` is for the
        next round: a key that adds itself must not keep this one from ending."""
        with self._changed:
            if self._fatal is not None or (self._stop is not None and self._stop.is_set()):
                return None
            self._drop_outdated()
            if not self._order or self._order[0] > (now, last) or self._is_full():
                return None
            _, _, key = heapq.heappop(self._order)
            self._added.pop(key, None)
            due = self._due.pop(key, None)
            is_due = due is not None and due <= now
            self._busy[key] = None if is_due else due
            return key, Why.DUE if is_due else Why.ADDED

    def _begin(self, key: K, why: Why) -> None:
        work = partial(self._do, key, why)
        if not self._pace.threads:
            work()
            return
        try:
            self._spawn(work)
        except BaseException:
            self._end(key, UNTRIED)
            self.add(key, 0.0 if why is Why.DUE else None)
            raise

    def _do(self, key: K, why: Why) -> None:
        again: Again | None = None
        try:
            again = self._work(key, why)
        except self._pace.fatal as error:
            self._fatal = error
        except Exception as error:
            again = Again(failed=error)
        finally:
            self._end(key, again)

    def _end(self, key: K, again: Again | None) -> None:
        again = self._counted(key, again)
        with self._changed:
            due = self._busy.pop(key, None)
            for times in (self._added, self._due):
                if key in times:  # it was added while it was worked on
                    heapq.heappush(self._order, (times[key], next(self._number), key))
            if key in self._forgotten:
                self._forgotten.discard(key)
                self._retries.pop(key, None)
            elif again is not None and again.after is not None:
                self._add(key, again.after)
            elif again is not None and due is not None:
                self._put(self._due, key, due)
            self._beat()

    def _counted(self, key: K, again: Again | None) -> Again | None:
        """Count a failure or a success, and log what failed; when the key is due again."""
        if again is UNTRIED:
            return again
        if again is None or not again.failed:
            self.reset(key)
            return again
        what = self._what if key is None else f"{self._what}: {key}"
        with self._changed:
            retry = self._retries.setdefault(key, self._new_retry(what))
        if isinstance(again.failed, Exception):
            return Again(retry.failed(again.failed, after=again.after))
        pause = retry.count()
        return Again(pause if again.after is None else again.after)

    def _new_retry(self, what: str, most: float = math.inf) -> Retry:
        return Retry(log, what, self._pace.first, min(self._pace.most, most), expected=self._pace.expected)

    def _wake(self) -> None:
        with self._changed:
            self._beat()


DONE = math.inf
"""Seconds after which nothing is done again."""


def repeat(
    stop: threading.Event,
    do: Callable[[], float | None],
    seconds: float,
    what: str,
    *,
    delay: float = 0.0,
    most: float | None = None,
    expected: Errors = (),
    fatal: Errors = (),
) -> None:
    """Do it after ``delay`` seconds, and again ``seconds`` after it ended, or after as many as it returns, until
    ``stop`` is set or it returns ``DONE``.

    After a failure the pause grows up to ``most`` seconds (None: it does not grow). ``what`` cannot be done, for the
    log; ``expected``, ``fatal``: as of ``Pace``."""
    retry = Retry(log, what, seconds, seconds if most is None else most, expected=expected)
    if delay > 0.0:
        stop.wait(delay)
    while not stop.is_set():
        try:
            after = do()
            retry.succeeded()
            pause = seconds if after is None else after
        except fatal:
            raise
        except Exception as error:
            pause = retry.failed(error)
        if pause == DONE:
            return
        if pause > 0.0:
            stop.wait(pause)
