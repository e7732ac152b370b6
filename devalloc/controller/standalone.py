"""Everything on this machine in one process: publish its devices and answer the claims until it is stopped."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Literal, Protocol

from devalloc.api.cordon import NODE_KIND
from devalloc.controller.host_inventory import HostInventory, InventorySource
from devalloc.controller.migration_cleanup import MigrationCleanup
from devalloc.controller.pool_publisher import (
    PublishLock,
    PublishResult,
    withdraw_previous_name,
    withdraw_previous_names,
)
from devalloc.controller.reconcile.device_claims import (
    AllocatorListener,
    DeviceClaimAllocator,
    DeviceClaimRound,
    SolveManifests,
)
from devalloc.controller.reconcile.loop import AllocatorSettings
from devalloc.controller.reconcile.resource_claims.stored import StoredClaimAllocator
from devalloc.controller.replica_sets import KIND as REPLICA_SET_KIND
from devalloc.controller.replica_sets import ReplicaSets
from devalloc.controller.usage import UsageAccountant
from devalloc.controller.usage.records import KIND as RECORD_KIND
from devalloc.inventory.watch import UdevSource
from devalloc.service_manager import Round
from devalloc.store import Key, Store, Unavailable, Unusable
from devalloc.store.paths import hold_store
from devalloc.store.sqlite import SQLiteStore
from devalloc.worker import when_set

log = logging.getLogger(__name__)

__all__ = ["InventorySource", "Standalone", "handling_signals"]

Message = Literal["stop", "rescan"]
Loop = Callable[[threading.Event], None]
"""Runs until the event is set."""
GRACE_SECONDS = 2.0
"""How long a stop waits for work that is under way. What it leaves unfinished has written nothing."""
_LOCK_CHECK_SECONDS = 1.0
"""From one look to the next whether this process still holds the store, however many messages come."""


class Standalone:
    """The loops of one machine on one store."""

    def __init__(
        self,
        path: Path,
        inventory: InventorySource | None,
        *,
        settings: AllocatorSettings | None = None,
        resync: float = 60.0,
        on_round: Callable[[DeviceClaimRound], None] = lambda done: None,
        on_published: Callable[[PublishResult], None] = lambda done: None,
        solve: SolveManifests | None = None,
        extra_loops: Sequence[Callable[[Store, threading.Event], None]] = (),
    ) -> None:
        """``inventory`` None: answer claims only. ``resync``: seconds between looks at the devices without any event.
        ``extra_loops``: what else runs on the store until the event is set.

        The callbacks come from threads of their own, never two at a time from one loop.
        """
        self._path = path
        self._inventory = inventory
        self._settings = settings or AllocatorSettings()
        self._resync = resync
        self._on_round = on_round
        self._on_published = on_published
        self.on_granted: Callable[[Iterable[Key]], None] = lambda keys: None
        """Called with ResourceClaims that were given devices. Set it before ``run``."""
        self._solve = solve
        self._extra_loops = tuple(extra_loops)
        # Unlike an Event or a Queue, a SimpleQueue may be used in a signal handler.
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._failure: BaseException | None = None
        self.is_looked = threading.Event()
        """Set when the devices of this host are published for the first time, or are not to be."""
        self.rounds: list[Round] = []
        """Of the loops that must go on, for the watchdog of the service manager."""
        self._unfinished: ExitStack | None = None

    def stop(self) -> None:
        """End ``run`` soon. From any thread or signal handler."""
        self._messages.put("stop")

    def fail(self, error: BaseException) -> None:
        """End ``run`` soon, with this error. From any thread."""
        self._failure = error
        self.stop()

    def rescan(self) -> None:
        """Look at the host's devices now and publish them. From any thread or signal handler."""
        self._messages.put("rescan")

    def run(self) -> None:
        """Run until ``stop``. Raises StoreLocked if another process runs on this store or runs the plugin of this node,
        Unusable when it is damaged, StillNamed when the host had another name that is in use, and Unavailable when its
        folder goes meanwhile."""
        with ExitStack() as stack:
            store = stack.enter_context(closing(SQLiteStore(self._path)))
            is_held = stack.enter_context(hold_store(self._path))
            if problems := store.check():
                raise Unusable(
                    f"the store {self._path} is damaged: {problems[0]} ({len(problems)} in all). "
                    "Put back the last file that `devalloc backup` made with `devalloc restore`"
                )
            turn = None
            if self._inventory is not None:
                name, previous = self._inventory.node_name, self._inventory.previous_name
                # Before anything is changed: the plugin of this node may run already, in another process.
                turn = stack.enter_context(
                    closing(PublishLock(self._path, name, is_plugin=self._inventory.with_plugin))
                )
                withdrawn = withdraw_previous_names(store, self._path, name)
                if previous not in (None, name):
                    withdrawn += withdraw_previous_name(store, self._path, name, previous)
                if withdrawn:
                    self._on_published(PublishResult(deleted=withdrawn))
            try:
                has_ended = self._run_loops(store, is_held, turn, stack)
            finally:
                # Before another plugin of this node can begin.
                has_stopped = self._inventory is None or self._inventory.stop_plugin()
            if not (has_ended and has_stopped):
                self._unfinished = stack.pop_all()  # what goes on uses store and locks; they go with the process
        if self._failure is not None:
            raise self._failure

    def _run_loops(
        self, store: SQLiteStore, is_held: Callable[[], bool], turn: PublishLock | None, stack: ExitStack
    ) -> bool:
        """Run the loops until ``stop``; False if one of them has not ended. What they use is open until the end of
        ``stack``."""
        stop = threading.Event()
        store.call_by_group()
        listener = AllocatorListener(progress=self._on_round)
        allocator = DeviceClaimAllocator(store, settings=self._settings, solve=self._solve, listener=listener)
        for kind in (NODE_KIND, RECORD_KIND, REPLICA_SET_KIND):  # none of these changes an answer
            allocator.loop.ignore_kind(kind)
        resources = StoredClaimAllocator(store, self._settings, self.on_granted)
        self.rounds += [lambda: allocator.loop.began, lambda: resources.loop.began]
        loops: list[Loop] = [allocator.run, resources.run]
        host = None
        if self._inventory is not None and turn is not None:
            source = stack.enter_context(closing(UdevSource()))
            host = HostInventory(
                store,
                self._inventory,
                source,
                turn,
                resync=self._resync,
                on_published=self._on_published,
            )
            loops = [host.watch, host.repair, resources.run, _start_after(host.looked, allocator.run)]
            loops.append(_start_after(host.looked, lambda stop: self.is_looked.set()))
        else:
            self.is_looked.set()
        loops.append(UsageAccountant([store], store, f"{socket.gethostname()}-{os.getpid()}").run)
        loops.append(ReplicaSets(store, collects=True).run)
        loops.append(MigrationCleanup(store, self._settings.migrations).run)
        loops += [partial(each, store) for each in self._extra_loops]
        threads = [threading.Thread(target=self._guarded, args=(loop, stop), daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        next_look = time.monotonic() + _LOCK_CHECK_SECONDS
        while (message := self._next_message(next_look)) != "stop":
            if message == "rescan" and host is not None:
                host.rescan()
            if time.monotonic() < next_look:
                continue
            next_look = time.monotonic() + _LOCK_CHECK_SECONDS
            if not is_held():
                self._failure = self._failure or Unavailable(
                    f"the folder {self._path.absolute().parent} was removed or replaced while `devalloc up` ran on "
                    f"the store {self._path.name} in it. Put the folder back, or a backup with `devalloc restore`, "
                    "and start `devalloc up` again"
                )
                break
        stop.set()
        until = time.monotonic() + GRACE_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            log.warning("stopped in the middle of a solve; nothing of it was written")
            return False
        return True

    def _next_message(self, until: float) -> Message | None:
        """None when there is none until then."""
        try:
            return self._messages.get(timeout=max(0.0, until - time.monotonic()))
        except Empty:
            return None

    def _guarded(self, loop: Loop, stop: threading.Event) -> None:
        """A loop that ends with an error ends everything."""
        try:
            loop(stop)
        except BaseException as error:
            self.fail(error)


def _start_after(ready: threading.Event, loop: Loop) -> Loop:
    """A loop that begins when ``ready`` is set: a device may have gone meanwhile."""

    def run(stop: threading.Event) -> None:
        when_set(stop, ready.set)
        ready.wait()
        loop(stop)

    return run


class Stoppable(Protocol):
    """What goes on until it is stopped."""

    def stop(self) -> None: ...

    def rescan(self) -> None: ...


@contextmanager
def handling_signals(work: Stoppable) -> Iterator[None]:
    """While inside: SIGINT and SIGTERM stop it, a second one ends the process at once; SIGHUP looks at the devices.

    Only in the main thread.
    """

    def end(number: int, frame: FrameType | None) -> None:
        work.stop()
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, lambda number, frame: work.rescan())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
