"""Create setups on request and keep enough of them ready."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress

from devalloc_node.warm.builder import Leftover, SetupBuilder
from devalloc_node.warm.errors import NotEnoughSetups
from devalloc_node.warm.pool_state import PoolState
from devalloc_node.warm.records import SetupRecord
from devalloc_node.warm.setup import WarmConfig
from devalloc_node.warm.teardown import SetupTeardown


class PoolRefill:
    """Safe for threads."""

    def __init__(
        self, config: WarmConfig, pool_state: PoolState, builder: SetupBuilder, clearing: SetupTeardown
    ) -> None:
        self._config = config
        self._pool_state = pool_state
        self._builder = builder
        self._clearing = clearing

    def fill(self, number: int) -> None:
        """As ``Pool.fill``."""
        if number < 1:
            return
        with self._pool_state.mutex:
            self._pool_state.check_open()
            self._pool_state.begin_making(number)
        left, first = iter(range(number)), None
        counting = threading.Lock()
        stopped = threading.Event()
        begun = 0

        def work() -> None:
            nonlocal begun
            while not stopped.is_set():
                with counting:
                    if next(left, None) is None:
                        return
                    begun += 1
                try:
                    record = self.make_one()
                    if record is not None:
                        self._pool_state.finish_making(record)
                except BaseException:
                    stopped.set()
                    raise

        try:
            with ThreadPoolExecutor(min(self._config.workers, number), thread_name_prefix="warm") as workers:
                for done in as_completed([workers.submit(work) for _ in range(min(self._config.workers, number))]):
                    first = first or done.exception()
        finally:  # also where no thread can be had
            with self._pool_state.mutex:
                self._pool_state.making -= number - begun
                self._pool_state.mutex.notify_all()
        if first is not None:
            raise first

    def refill(self) -> None:
        """As ``Pool.refill``."""
        with self._pool_state.mutex:
            room = self._config.most - self._pool_state.total
            ready = len(self._pool_state.ready) + self._pool_state.making
            missing = self._config.target - ready if self._pool_state.is_open else 0
        with suppress(NotEnoughSetups):  # somebody else was faster
            self.fill(min(missing, room))

    def make_one(self, *, bare: bool = False) -> SetupRecord | None:
        """One of those that room was made for, still counted as being made; None where it is not wanted any more.
        ``bare``: no machine is to wait in it. Without the lock. Raises Failed, NotEnoughSetups."""
        pool_state = self._pool_state
        try:
            if not pool_state.is_open:
                pool_state.finish_making(None)
                return None
            _, record = self._builder.make(bare=bare)
        except BaseException as error:
            with pool_state.mutex:
                pool_state.finish_making(None)
                pool_state.failed(error)
                if isinstance(error, Leftover):
                    pool_state.discard(error.record)
            raise
        with pool_state.mutex:
            pool_state.made += 1
            pool_state.problem = ""
            if pool_state.is_open:
                return record
            record = pool_state.discard(record)
            pool_state.finish_making(None)
        self._clearing.remove(record, {})
        return None
