"""Thread pools that change and observe machines: a slow guest delays neither the event loop nor other machines.

A change cannot be cancelled: it continues even if no caller waits for it any more. The next change of that machine
begins when it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class MachineExecutors:
    """Used in one event loop."""

    def __init__(self, threads: int) -> None:
        """``threads``: for changes, and as many for looks. Those that are slow have a quarter of that, of their own."""
        self._looks = ThreadPoolExecutor(threads, thread_name_prefix="scaling-look")
        self._changes = ThreadPoolExecutor(threads, thread_name_prefix="scaling")
        self._slow = ThreadPoolExecutor(max(1, threads // 4), thread_name_prefix="scaling-slow")
        self._under_way: dict[str, Future[Any]] = {}
        """The change of each machine."""

    async def look(self, key: str, work: Callable[[], _Result]) -> _Result:
        """Have it done by another thread, once the machine is not being changed."""
        await self._turn(key)
        return await asyncio.wrap_future(self._looks.submit(work))

    async def change(self, key: str, work: Callable[[], _Result], *, slow: bool) -> _Result:
        """The same with what changes the machine. Cancelled before it was begun it never is; else it ends by itself."""
        await self._turn(key)
        future = (self._slow if slow else self._changes).submit(work)
        self._under_way[key] = future
        self._when_done(future, lambda: self._ended(key, future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """What is under way ends by itself; what waits for a thread is not begun any more."""
        for executor in (self._looks, self._changes, self._slow):
            executor.shutdown(wait=False, cancel_futures=True)

    async def _turn(self, key: str) -> None:
        while (future := self._under_way.get(key)) is not None and not future.done():
            ended = asyncio.Event()
            self._when_done(future, ended.set)
            await ended.wait()

    def _ended(self, key: str, future: Future[Any]) -> None:
        if self._under_way.get(key) is future:
            del self._under_way[key]

    @staticmethod
    def _when_done(future: Future[Any], then: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()

        def tell(_: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(then)

        future.add_done_callback(tell)
