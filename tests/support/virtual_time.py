"""A clock that tests set, and an event loop whose clock jumps: sockets are real, and waiting costs nothing.

A waiter for a time gets it as soon as nothing else can happen: no callback is ready and no socket of this process
has anything to read. What one end of a loopback connection sends is there for the other end at once, so both ends, in
one such loop, see a quiet network in which every timer is exact.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
_SETTLED = 0.002  # seconds without any I/O before the clock may jump: in case the kernel delivers late
_STUCK = 5.0  # seconds after which a loop with nothing to wait for gets an error


class Clock:
    """Seconds that go by where a test says so."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class _Selector(selectors.DefaultSelector):
    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.loop.threads:
            return super().select(_STUCK)
        ready = super().select(_STUCK if timeout is None else self.loop.settled)
        if not ready and timeout is None:
            raise RuntimeError("nothing will ever happen: no timer is set, and no peer sends")
        if not ready and timeout:
            self.loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """``now`` in seconds. Work in threads and in other processes holds the clock: they take as long as they take."""

    def __init__(self, settled: float = _SETTLED) -> None:
        self.now = 1_000.0
        self.settled = settled
        self.threads = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Arguments]], Result], *args: *Arguments
    ) -> asyncio.Future[Result]:
        self.threads += 1
        done = super().run_in_executor(executor, func, *args)
        done.add_done_callback(lambda _: setattr(self, "threads", self.threads - 1))
        return done

    async def subprocess_exec(self, protocol_factory: Callable[[], Any], *program: Any, **options: Any) -> Any:
        self.threads += 1

        def made() -> Any:
            protocol = protocol_factory()
            exited = protocol.process_exited

            def ended() -> None:
                self.threads -= 1
                exited()

            protocol.process_exited = ended
            return protocol

        try:
            return await super().subprocess_exec(made, *program, **options)
        except OSError:  # there is no process
            self.threads -= 1
            raise


def run(main: Coroutine[Any, Any, Result], *, sockets: bool = True) -> Result:
    """Run it as `asyncio.run` does, on a clock that jumps; what is logged as an error by the loop is raised.

    Without ``sockets`` nothing is ever on its way, and the clock jumps at once.
    """
    errors: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(_SETTLED if sockets else 0.0)) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
        result = runner.run(main)
    if errors:
        raise AssertionError(f"the event loop reported: {errors}") from errors[0].get("exception")
    return result
