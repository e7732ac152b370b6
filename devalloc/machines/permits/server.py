"""The permit server: it serves while it has the lease, and watches what its decisions depend on: the lease, the
objects, the hosts."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from prometheus_client.core import Metric

from devalloc.backoff import Backoff
from devalloc.controller.leader.lease import LeaseLost
from devalloc.machines.permits.doors import PLAIN_HTTP, PermitDoors, ServerAddresses
from devalloc.machines.permits.hosts import FrozenHosts, Hosts
from devalloc.machines.permits.leadership import Leadership, new_holder, permits_lease
from devalloc.machines.permits.ledger import CanMigrate, Host, PermitLedgers, dump_ledgers, has_no_devices
from devalloc.machines.permits.metrics import PermitMetrics
from devalloc.machines.permits.migration import MigrationTracker
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.sources import MachineSource, MachineSources
from devalloc.machines.permits.store_migrator import StoreMigrator
from devalloc.machines.permits.writer import RETRY_SECONDS, PermitWriter, RunInWriter, StoreChanges
from devalloc.store import Event, Object, Store, StoreError, Unavailable
from devalloc.store.watcher import Listed, Watcher
from devalloc.worker import repeat, until_set

log = logging.getLogger(__name__)
LISTEN_SECONDS, MAX_LISTEN_SECONDS = 2.0, 60.0
"""How long after the port for requests was in use it is tried again: twice as long each time, but not longer."""


class Accounts(Protocol):
    """Counts what machines are permitted, while a server serves. Use from one event loop at a time."""

    async def begin(self, in_writer: RunInWriter) -> None:
        """Go on from what the last server counted; the ledgers have all machines. Raises StoreError."""

    async def run(self, in_writer: RunInWriter, interval: float) -> None:
        """Count, and write it down every ``interval`` seconds."""

    async def save(self, in_writer: RunInWriter) -> None:
        """Write it down. Raises StoreError."""

    def collect(self) -> Iterable[Metric]:
        """What was written down, as metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitServices:
    """What a server stands on, which machines it answers for, and how they leave a node that has too little room."""

    store: Store
    hosts: Hosts
    frozen: FrozenHosts | None = None
    settings: Settings = field(default_factory=Settings)
    leadership: Leadership | None = None
    """The one that it grants by; None: a lease of its own."""
    node: str | None = None
    """It answers for the machines of this node only, beside the servers of other nodes; None: for those of all."""
    sources: Sequence[MachineSource] = ()
    """Of machines beside devalloc's own. The store must support their kinds."""
    migrator: StoreMigrator | None = None
    movable: Callable[[], CanMigrate] = lambda: has_no_devices
    """Reads what keeps machines on their nodes; returns how to judge by that. Raises StoreError."""
    accounts: Callable[[PermitLedgers, Leadership], Accounts] | None = None
    """Makes what counts what machines were permitted; None: nothing does."""
    plain_http: str = PLAIN_HTTP
    """What is logged of clients that know no TLS."""
    ready: Callable[[ServerAddresses], None] = lambda addresses: None
    """Called in its thread each time it begins to listen."""
    unheard: Callable[[OSError], None] | None = None
    """The same each time it cannot listen for requests, which it tries again; None: it raises that."""
    waiting: Callable[[str], None] = log.warning
    """The same each time it begins to wait for another process's lease."""


class PermitServer:
    """Everything of one server. ``run`` in a thread."""

    def __init__(self, services: PermitServices) -> None:
        self._services = services
        self._sources = MachineSources(*services.sources)
        self.settings = services.settings
        self.book = PermitLedgers(
            self.settings,
            self._sources,
            migrates=services.migrator is not None,
            node=services.node,
        )
        self.lease = services.leadership or permits_lease(services.store, new_holder(), node=services.node)
        self._accounts = None if services.accounts is None else services.accounts(self.book, self.lease)
        self.metrics = PermitMetrics(self.book, *filter(None, [self._accounts]))
        self._waits_for: str | None = None
        self._listening = Backoff(LISTEN_SECONDS, MAX_LISTEN_SECONDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        """While it serves."""

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set: whenever this server has the lease.

        What is wrong with the store for a time is waited out. Raises OSError if it cannot listen for requests, unless
        ``unheard`` takes note of that.
        """
        try:
            take_turn, expected, fatal = partial(self._take_turn, stop), (StoreError,), (OSError,)
            repeat(stop, take_turn, RETRY_SECONDS, "not serving permits", expected=expected, fatal=fatal)
        finally:
            with suppress(StoreError):
                self.lease.give()

    def _take_turn(self, stop: threading.Event) -> float:
        """Serve if it is this server's turn; seconds until it tries again. Raises StoreError, and OSError if it cannot
        listen."""
        try:
            taken = self.lease.take()
            if (waits_for := self.lease.held_by) not in (None, self._waits_for):
                self._services.waiting(f"not serving permits yet: waiting for {waits_for}")
            self._waits_for = waits_for
            if not taken:
                return min(RETRY_SECONDS / 2, self.lease.seconds / 5)
            asyncio.run(self._serve(stop))
            return 0.0
        except LeaseLost as lost:
            log.warning("%s; waiting until it is free again", lost)
            with suppress(StoreError):
                self.lease.give()
            return random.uniform(0, RETRY_SECONDS)  # two that give way to each other must not do so for ever
        except TimeoutError:
            raise Unavailable("reading all objects took too long") from None
        except OSError as error:
            if self._services.unheard is None:
                raise
            with suppress(StoreError):
                self.lease.give()
            self._services.unheard(error)
            return self._listening.next_delay()

    # -- the life of one lease ---------------------------------------------------------------------------------------

    async def _serve(self, stop: threading.Event) -> None:
        s = self.settings
        # One thread: what is written is written in order.
        with ThreadPoolExecutor(1, "permits-store") as thread, ThreadPoolExecutor(4, "permits-watch") as helpers:
            services = self._services
            writer = PermitWriter(
                services.store, self.book, self._sources, self.lease, self.metrics, thread, services.frozen
            )
            moves = MigrationTracker(self.book, writer.tell, self.metrics, services.migrator, s.migration_seconds)
            async with asyncio.timeout(s.startup_seconds):
                await self._load(writer, helpers)
                if self._accounts is not None:
                    await self._accounts.begin(writer.run_in_writer)
            over = threading.Event()
            doors = PermitDoors(s, writer, moves, self.metrics, self.shown, services.plain_http)
            work = (
                writer.run(),
                self._mind_lease(thread),
                self._mind_hosts(writer, helpers),
                moves.run(s.resync),
                until_set(stop),
                *writer.settling(over, helpers),
                *(() if self._accounts is None else (self._accounts.run(writer.run_in_writer, s.resync),)),
            )
            loop = asyncio.get_running_loop()
            tasks: list[asyncio.Future[None]] = [asyncio.create_task(each) for each in work]
            tasks += [loop.run_in_executor(helpers, watcher.run, over) for watcher in self._watchers(writer)]
            try:
                self._loop = loop
                await writer.settled(stop)  # usually it takes little, and no agent has to ask twice
                addresses = await doors.open(lambda task: tasks.append(asyncio.create_task(task)))
                self._listening.reset()
                services.ready(addresses)
                log.info("serving permits at %s:%d", *addresses.requests)
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                self._loop = None
                over.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                writer.reject_waiting()
                await doors.close()
                if self.lease.is_valid and self._accounts is not None:
                    with suppress(StoreError):
                        await self._accounts.save(writer.run_in_writer)

    async def _load(self, writer: PermitWriter, helpers: ThreadPoolExecutor) -> None:
        """The hosts, and all objects. Raises StoreError, LeaseLost."""
        try:
            hosts, can_move = await asyncio.get_running_loop().run_in_executor(helpers, self._read_hosts)
        except Exception as error:
            log.exception("cannot read the hosts")
            raise Unavailable(f"cannot read the hosts: {error}") from error
        pods: Sequence[Object] | None = None
        if (of_pods := self._sources.pods) is not None:
            with suppress(StoreError):  # the watch says so, and tries again; its machines count by their objects
                listing = partial(of_pods[0].list, (of_pods[1],))
                pods = (await asyncio.get_running_loop().run_in_executor(helpers, listing)).objects
        await writer.load(hosts, pods, can_move)

    def _watchers(self, writer: PermitWriter) -> list[Watcher]:
        """Make what reports changes to the writer, each in a thread of its own."""
        loop = asyncio.get_running_loop()

        def tell(seen: StoreChanges) -> None:
            with suppress(RuntimeError):  # the loop is closed, and with it all connections
                loop.call_soon_threadsafe(writer.see, seen)

        def hear(change: Listed | Event) -> None:
            tell(StoreChanges(events=(change,)) if isinstance(change, Event) else StoreChanges(gap=True))

        def hear_pods(change: Listed | Event) -> None:
            tell(StoreChanges(pods=(change,)) if isinstance(change, Event) else StoreChanges(all_pods=change.objects))

        store, what = self._services.store, "cannot watch VirtualMachines"
        watchers = [Watcher(store, writer.kinds, hear, what, lists=False, since=writer.seen)]
        if self._sources.pods is not None:
            watchers.append(Watcher(*self._sources.pods, hear_pods, "cannot read which pods run machines"))
        return watchers

    async def _mind_lease(self, thread: ThreadPoolExecutor) -> None:
        """Renew it in time. Raises LeaseLost."""
        while True:
            await asyncio.sleep(self.lease.seconds / 3)
            try:
                await asyncio.get_running_loop().run_in_executor(thread, self.lease.renew)
            except StoreError as error:
                log.warning("cannot renew the lease: %s", error)
                if not self.lease.is_valid:
                    raise LeaseLost("the lease expired, because it could not be renewed") from error

    def _read_hosts(self) -> tuple[Mapping[str, Host], CanMigrate]:
        """Read the hosts, and what keeps machines on them. Raises StoreError."""
        return self._services.hosts(), self._services.movable()

    async def _mind_hosts(self, writer: PermitWriter, helpers: ThreadPoolExecutor) -> None:
        """Look at the hosts now and then."""
        while True:
            await asyncio.sleep(self.settings.resync)
            try:
                hosts, can_move = await asyncio.get_running_loop().run_in_executor(helpers, self._read_hosts)
                writer.see(StoreChanges(hosts=hosts, can_move=can_move))
            except Exception:
                log.exception("cannot read the hosts; continuing with the last known state")

    async def seen(self, show: Callable[[], bytes]) -> bytes | None:
        """What ``shown`` or the metrics' ``text`` tells, for another event loop; None while nothing is served."""
        if (loop := self._loop) is None:
            return None

        async def text() -> bytes:
            return show()

        with suppress(TimeoutError, RuntimeError, asyncio.CancelledError):  # it ends just now
            return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(text(), loop)), 5.0)
        return None

    def shown(self, **more: object) -> bytes:
        """The ledgers, as JSON. In the server's own thread."""
        shown = {"holder": self.lease.holder, "leaseValid": self.lease.is_valid, **more, **dump_ledgers(self.book)}
        return json.dumps(shown, indent=1).encode()
