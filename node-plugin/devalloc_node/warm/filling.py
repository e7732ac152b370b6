"""Making setups, for those who ask and so that there are always some that are ready."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress

from devalloc_node.warm.build import Builder, Leftover
from devalloc_node.warm.clearing import Clearing
from devalloc_node.warm.errors import TryAgain
from devalloc_node.warm.records import Record
from devalloc_node.warm.setup import WarmConfig
from devalloc_node.warm.shelf import Shelf


class Filling:
    """Safe for threads."""

    def __init__(self, config: WarmConfig, shelf: Shelf, builder: Builder, clearing: Clearing) -> None:
        self._config = config
        self._shelf = shelf
        self._builder = builder
        self._clearing = clearing

    def fill(self, number: int) -> None:
        """As ``Pool.fill``."""
        if number < 1:
            return
        with self._shelf.mutex:
            self._shelf.check_open()
            self._shelf.begin_making(number)
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
                        self._shelf.finish_making(record)
                except BaseException:
                    stopped.set()
                    raise

        try:
            with ThreadPoolExecutor(min(self._config.workers, number), thread_name_prefix="warm") as workers:
                for done in as_completed([workers.submit(work) for _ in range(min(self._config.workers, number))]):
                    first = first or done.exception()
        finally:  # also where no thread can be had
            with self._shelf.mutex:
                self._shelf.making -= number - begun
                self._shelf.mutex.notify_all()
        if first is not None:
            raise first

    def refill(self) -> None:
        """As ``Pool.refill``."""
        with self._shelf.mutex:
            room = self._config.most - self._shelf.total
            ready = len(self._shelf.ready) + self._shelf.making
            missing = self._config.target - ready if self._shelf.is_open else 0
        with suppress(TryAgain):  # somebody else was faster
            self.fill(min(missing, room))

    def make_one(self, *, bare: bool = False) -> Record | None:
        """One of those that room was made for, still counted as being made; None where it is not wanted any more.
        ``bare``: no machine is to wait in it. Without the lock. Raises Failed, TryAgain."""
        shelf = self._shelf
        try:
            if not shelf.is_open:
                shelf.finish_making(None)
                return None
            _, record = self._builder.make(bare=bare)
        except BaseException as error:
            with shelf.mutex:
                shelf.finish_making(None)
                shelf.failed(error)
                if isinstance(error, Leftover):
                    shelf.discard(error.record)
            raise
        with shelf.mutex:
            shelf.made += 1
            shelf.problem = ""
            if shelf.is_open:
                return record
            record = shelf.discard(record)
            shelf.finish_making(None)
        self._clearing.remove(record, {})
        return None
