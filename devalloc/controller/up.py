"""Everything on this machine in one process: publish its devices, answer the claims, until somebody says stop."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Literal

from devalloc.controller.allocate import AllocateSettings, Allocator, Round, Solve
from devalloc.controller.publish import Published, Publisher
from devalloc.store import Expired, Unusable
from devalloc.store.lease import hold
from devalloc.store.sqlite import SQLiteStore

if TYPE_CHECKING:
    from devalloc.inventory import Discovery
    from devalloc.inventory.watch import InventoryWatcher

log = logging.getLogger(__name__)

Message = Literal["stop", "rescan"]
GRACE_SECONDS = 2.0
"""How long a stop waits for work that is under way. What it leaves unfinished has written nothing."""
_RETRY_SECONDS = 5.0


@dataclass(frozen=True)
class Inventory:
    """How this host's devices are found."""

    node_name: str
    discover: Callable[[], Discovery]


class Up:
    """The loops of one machine on one store."""

    def __init__(
        self,
        path: Path,
        inventory: Inventory | None,
        *,
        settings: AllocateSettings | None = None,
        resync: float = 60.0,
        on_round: Callable[[Round], None] = lambda done: None,
        on_published: Callable[[Published], None] = lambda done: None,
        solve: Solve | None = None,
    ) -> None:
        """``inventory`` None: answer claims only. ``resync``: seconds between looks at the devices without any event.

        The callbacks come from threads of their own, never two at a time from one loop.
        """
        self._path = path
        self._inventory = inventory
        self._settings = settings or AllocateSettings()
        self._resync = resync
        self._on_round = on_round
        self._on_published = on_published
        self._solve = solve
        # Unlike an Event or a Queue, a SimpleQueue may be used in a signal handler.
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._failure: BaseException | None = None
        self._unfinished: ExitStack | None = None

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self._messages.put("stop")

    def rescan(self) -> None:
        """Look at the host's devices now and publish them. From any thread or signal handler."""
        self._messages.put("rescan")

    def run(self) -> None:
        """Run until ``stop``. Raises Held when another process runs on this store, Unusable when it is damaged."""
        stop = threading.Event()
        with ExitStack() as stack:
            store = stack.enter_context(closing(SQLiteStore(self._path)))
            stack.enter_context(hold(self._path))
            if problems := store.check():
                raise Unusable(
                    f"the store {self._path} is damaged: {problems[0]} ({len(problems)} in all). "
                    "Put the last file that `devalloc backup` made in its place"
                )
            loops: list[Callable[[threading.Event], None]] = []
            published = threading.Event()
            watcher = None
            if self._inventory is None:
                published.set()
            else:
                watcher = self._watcher(store, self._inventory, published, stack, loops)

            def allocate(stop: threading.Event) -> None:
                # Not before this host's pools are what the host has: a device may have gone while nobody looked.
                while not published.wait(0.1) and not stop.is_set():
                    continue
                Allocator(store, settings=self._settings, solve=self._solve, progress=self._on_round).run(stop)

            loops.append(allocate)
            threads = [threading.Thread(target=self._guarded, args=(loop, stop), daemon=True) for loop in loops]
            for thread in threads:
                thread.start()
            while (message := self._messages.get()) != "stop":
                if message == "rescan" and watcher is not None:
                    watcher.rescan(republish=True)
            stop.set()
            until = time.monotonic() + GRACE_SECONDS
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))
            if any(thread.is_alive() for thread in threads):
                log.warning("stopped in the middle of a solve; nothing of it was written")
                self._unfinished = stack.pop_all()  # the thread still uses store and lock; they go with the process
        if self._failure is not None:
            raise self._failure

    def _watcher(
        self,
        store: SQLiteStore,
        inventory: Inventory,
        published: threading.Event,
        stack: ExitStack,
        loops: list[Callable[[threading.Event], None]],
    ) -> InventoryWatcher:
        from devalloc.inventory.events import UdevSource
        from devalloc.inventory.watch import InventoryWatcher, WatchSettings

        publisher = Publisher(store, inventory.node_name)

        def discover() -> Discovery:
            try:
                return inventory.discover()
            except BaseException:
                published.set()  # the claims on other pools do not wait for this host to be readable
                raise

        def publish(found: Discovery) -> None:
            try:
                errors = [problem for problem in found.problems if problem.is_error]
                if errors and not found.pools:
                    # A host that cannot be read is not a host without devices.
                    raise RuntimeError(f"found no devices, and left the published pools as they are: {errors[0]}")
                self._on_published(publisher.publish(found.pools))
            finally:
                published.set()

        source = stack.enter_context(closing(UdevSource()))
        watcher = InventoryWatcher(discover, publish, source=source, settings=WatchSettings(resync=self._resync))

        # From before the first publication, so that nothing done to our pools is missed.
        start = store.list([]).resource_version

        def repair(stop: threading.Event) -> None:
            """Publish again what somebody overwrote or deleted: at once where it is seen, now and then in any case."""
            since = start
            while not stop.is_set():
                try:
                    for event in store.watch("DevicePool", since, timeout=self._resync, stop=stop):
                        since = event.resource_version
                        if publisher.overwritten(event):
                            watcher.rescan(republish=True)
                    watcher.rescan(republish=True)
                except Expired:
                    since = store.list([]).resource_version
                    watcher.rescan(republish=True)
                except Unusable:
                    raise
                except Exception:
                    log.exception("could not watch the pools; trying again in %.0f s", _RETRY_SECONDS)
                    stop.wait(_RETRY_SECONDS)

        loops += [watcher.run, repair]
        return watcher

    def _guarded(self, loop: Callable[[threading.Event], None], stop: threading.Event) -> None:
        """A loop that ends with an error ends everything."""
        try:
            loop(stop)
        except BaseException as error:
            self._failure = error
            self.stop()


@contextmanager
def signals(up: Up) -> Iterator[None]:
    """While inside: SIGINT and SIGTERM stop it, a second one ends the process at once; SIGHUP looks at the devices.

    Only in the main thread.
    """

    def end(number: int, frame: FrameType | None) -> None:
        up.stop()
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: up.rescan())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
