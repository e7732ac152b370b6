"""Waiting for what others do: a thread, a process, a machine, a server."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

LONG = 120.0
"""Seconds after which something is taken to hang: others may use this machine as well."""
_LONGEST_PAUSE = 0.1

Result = TypeVar("Result")


def until(
    condition: Callable[[], Result],
    what: str = "it comes about",
    seconds: float = LONG,
    *,
    context: Callable[[], object] | None = None,
) -> Result:
    """Look again and again; the first answer that is true. AssertionError with what never came, with the last answer,
    and with what ``context`` says then.

    A look may cost: it is given at most half of the time, for what is waited for is done on the same machine.
    """
    deadline, pause = time.monotonic() + seconds, 0.001
    while True:
        began = time.monotonic()
        if answer := condition():
            return answer
        now = time.monotonic()
        if now >= deadline:
            more = "" if context is None else f"\n{context()}"
            raise AssertionError(f"not within {seconds:.0f} s: {what}; the last answer: {answer!r}{more}")
        time.sleep(max(pause, min(now - began, 1.0)))
        pause = min(2 * pause, _LONGEST_PAUSE)


async def until_async(
    condition: Callable[[], Awaitable[Result] | Result],
    what: str = "it comes about",
    seconds: float = LONG,
    *,
    context: Callable[[], object] | None = None,
) -> Result:
    """As ``until``, for coroutines of the same event loop, by its clock."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        looked = condition()
        answer: Result = await looked if inspect.isawaitable(looked) else looked  # type: ignore[assignment]
        if answer:
            return answer
        if loop.time() >= deadline:
            more = "" if context is None else f"\n{context()}"
            raise AssertionError(f"not within {seconds:.0f} s: {what}; the last answer: {answer!r}{more}")
        await asyncio.sleep(_LONGEST_PAUSE)


@contextmanager
def in_threads(*loops: Callable[[threading.Event], object]) -> Iterator[threading.Event]:
    """Run loops, each in a thread of its own, until the end of the block; the event that they are given is set then.
    AssertionError if one goes on."""
    stop = threading.Event()
    threads = [threading.Thread(target=loop, args=(stop,), daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join(LONG)
    assert not any(thread.is_alive() for thread in threads), "it ends when it is stopped"
