"""The permit server: it listens, and watches what its decisions depend on: the lease, the objects, the hosts."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

from devalloc.backoff import Backoff
from devalloc.controller.leader.lease import LeaseLost
from devalloc.machines.permits.billing_usage import BillingUsage, UsageStore
from devalloc.machines.permits.caller_auth import ANYONE, PROXY, Caller, CallerRejected
from devalloc.machines.permits.decide import PermitGrant, PermitRefused
from devalloc.machines.permits.hosts import HostSource
from devalloc.machines.permits.leadership import Leadership, new_holder, permits_lease
from devalloc.machines.permits.ledger import CanMigrate, Host, PermitLedgers, has_no_devices
from devalloc.machines.permits.metrics import TYPE, PermitMetrics
from devalloc.machines.permits.migration import MigrationTracker, Migrator
from devalloc.machines.permits.settings import Settings
from devalloc.machines.permits.sources import MachineSource, MachineSources
from devalloc.machines.permits.writer import RETRY_SECONDS, PermitWriter, StoreChanges
from devalloc.net.http_server import (
    JSON,
    HttpResponse,
    HttpServer,
    ServerLimits,
    bearer_token,
    is_disconnected,
    read_body,
)
from devalloc.net.localhost import is_loopback
from devalloc.scaling.messages.permits import MAX_BODY, RequestError, decode_request
from devalloc.scaling.peer_json import MAX_BYTES, MAX_CPU, bytes_to_json, cpu_to_json
from devalloc.scaling.permits.ledger import MachineAccount, NodeLedger, is_under_pressure, next_to_migrate
from devalloc.scaling.resources import Resources
from devalloc.store import Event, Object, Store, StoreError, Unavailable
from devalloc.store.watcher import Listed, Watcher
from devalloc.worker import repeat, until_set


def dump_ledgers(book: PermitLedgers) -> dict[str, Any]:
    """All ledgers."""
    return {
        "compat": book.settings.era.value,
        "nodes": {name: _node(name, node, book) for name, node in sorted(book.nodes.items())},
    }


def _node(name: str, node: NodeLedger, book: PermitLedgers) -> dict[str, Any]:
    first = next_to_migrate(node, book.backed_off)
    return {
        **{of: _amounts(getattr(node, of)) for of in _SUMS},
        "tooFull": is_under_pressure(node),
        "firstToLeave": None if first is None else "/".join(first),
        "machines": {"/".join(key): _machine(machine) for key, machine in sorted(node.machines.items())},
    }


_SUMS = ("total", "watermark", "counted", "free", "buffer", "pressure", "accounted")


def _machine(machine: MachineAccount) -> dict[str, Any]:
    return {
        "permit": None if machine.permit is None else _amounts(machine.permit),
        **{
            name: _amounts(getattr(machine, of))
            for name, of in (
                ("min", "least"),
                ("max", "most"),
                ("reserved", "reserved"),
                ("use", "use"),
                ("kept", "previous"),
                ("buffer", "buffer"),
                ("pressure", "pressure"),
                ("overhead", "overhead"),
            )
        },
        "scaled": machine.scaled,
        "movable": machine.movable,
        "migrating": machine.migrating,
        "load": machine.load,
    }


def _amounts(of: Resources) -> dict[str, Any]:
    # A sum of what strangers ask for need not fit.
    return {"cpu": cpu_to_json(min(of.cpu, MAX_CPU)), "memory": bytes_to_json(min(of.memory, MAX_BYTES))}


log = logging.getLogger(__name__)
DUMP_RETRY_SECONDS = 30.0
"""How long after a port other than that for requests was in use it is tried again."""
LISTEN_SECONDS, MAX_LISTEN_SECONDS = 2.0, 60.0
"""The same for that port: twice as long each time, but not longer."""
CLIENT_SECONDS = 60.0
"""The log has at most one line in this time about clients of one kind."""


@dataclass(frozen=True, slots=True)
class ServerAddresses:
    """Where it listens: host and port."""

    requests: tuple[str, int]
    dump: tuple[str, int] | None
    plain: tuple[str, int] | None = None
    """For agents that speak plain HTTP."""


PLAIN_HTTP = (
    "%s speaks plain HTTP to the permit server, which serves TLS%s; agents that know no TLS need a port of "
    "their own (--neon-permits)"
)
NOT_ADMITTED = (
    "%s asked for permits at --neon-permits and was cut off%s: its address is in no network of --neon-agents; if it "
    "is an agent's, add it"
)


class ClientLog:
    """Warns of clients that learn nothing themselves of what is wrong; at most one line in ``CLIENT_SECONDS``."""

    def __init__(self, message: str, clock: Callable[[], float] = time.monotonic) -> None:
        """``message``: with places for the address and for how many there were that have no line."""
        self._message = message
        self._clock = clock
        self._next = -math.inf
        self._skipped = 0

    def note(self, address: str) -> None:
        """A client came."""
        if (now := self._clock()) < self._next:
            self._skipped += 1
            return
        more = f" ({self._skipped} more since the last such line)" if self._skipped else ""
        self._next, self._skipped = now + CLIENT_SECONDS, 0
        log.warning(self._message, address or "a client", more)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitServices:
    """What a server stands on, which machines it answers for, and how they leave a node that has too little room."""

    store: Store
    hosts: HostSource
    settings: Settings = field(default_factory=Settings)
    leadership: Leadership | None = None
    """The one that it grants by; None: a lease of its own."""
    node: str | None = None
    """It answers for the machines of this node only, beside the servers of other nodes; None: for those of all."""
    sources: Sequence[MachineSource] = ()
    """Of machines beside devalloc's own. The store must support their kinds."""
    migrator: Migrator | None = None
    movable: Callable[[], CanMigrate] = lambda: has_no_devices
    """Reads what keeps machines on their nodes; returns how to judge by that. Raises StoreError."""
    usage: UsageStore | None = None
    """Where it stores what is billed; None: in the store."""
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
        usage = services.usage or UsageStore(services.store)
        self.usage = BillingUsage(
            usage.config_maps, self.book, self.lease.name, self.lease.holder, namespace=usage.namespace
        )
        self.metrics = PermitMetrics(self.book, lambda: self.usage.stored_totals)
        self._waits_for: str | None = None
        self._listening = Backoff(LISTEN_SECONDS, MAX_LISTEN_SECONDS)
        self._loop: asyncio.AbstractEventLoop | None = None
        """While it serves."""
        # Apart from the threads of the store, which write while tokens are looked at.
        self._asking: ThreadPoolExecutor | None = None

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set: whenever this server has the lease.

        What is wrong with the store for a time is waited out. Raises OSError if it cannot listen for requests, unless
        ``unheard`` takes note of that.
        """
        if self.settings.callers is not None:
            self._asking = ThreadPoolExecutor(4, "permits-callers")
        try:
            take_turn, expected, fatal = partial(self._take_turn, stop), (StoreError,), (OSError,)
            repeat(stop, take_turn, RETRY_SECONDS, "not serving permits", expected=expected, fatal=fatal)
        finally:
            with suppress(StoreError):
                self.lease.give()
            if self._asking is not None:
                self._asking.shutdown(wait=False, cancel_futures=True)

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
                services.store, self.book, self._sources, self.lease, self.metrics, thread, services.hosts.frozen
            )
            moves = MigrationTracker(self.book, writer.tell, self.metrics, services.migrator, s.migration_seconds)
            async with asyncio.timeout(s.startup_seconds):
                await self._load(writer, helpers)
                await self.usage.begin(writer.run_in_writer)
            over = threading.Event()
            bounds = ServerLimits(s.max_connections, s.request_seconds, s.idle_seconds)
            shows_people = s.tls is None and is_loopback(s.host)
            door = HttpServer(
                lambda request: self._respond(request, writer, moves),
                bounds,
                token=s.token,
                refused=self._refused,
                plain_http=ClientLog(PLAIN_HTTP).note,
            )
            dump = HttpServer(
                lambda request: self._show(request, writer),
                bounds,
                token=None if s.shown_to_all else s.token,
                for_people=shows_people,
                refused=self._refused,
            )
            plain = HttpServer(
                lambda request: self._respond(request, writer, moves, by_pod=True),
                bounds,
                refused=partial(self._refused, strangers=ClientLog(NOT_ADMITTED)),
                networks=() if s.plain is None else s.plain.networks,
            )
            doors = (door, dump, plain)
            work = (
                writer.run(),
                self._mind_lease(thread),
                self._mind_hosts(writer, helpers),
                moves.run(s.resync),
                self.usage.run(writer.run_in_writer, s.resync),
                until_set(stop),
                *writer.settling(over, helpers),
            )
            loop = asyncio.get_running_loop()
            tasks: list[asyncio.Future[None]] = [asyncio.create_task(each) for each in work]
            tasks += [loop.run_in_executor(helpers, watcher.run, over) for watcher in self._watchers(writer)]
            try:
                self._loop = loop
                await writer.settled(stop)  # usually it takes little, and no agent has to ask twice
                address = await door.listen(s.host, s.port, s.tls)
                extra = [
                    None if place is None else await self._listen_beside(place, tasks)
                    for place in (
                        None
                        if s.dump_port is None
                        else _ExtraPort(dump, s.host, s.dump_port, s.tls, "the permit ledgers", "--permits-dump-port"),
                        None
                        if s.plain is None
                        else _ExtraPort(
                            plain, s.plain.host, s.plain.port, None, "permits by plain HTTP", "--neon-permits"
                        ),
                    )
                ]
                self._listening.reset()
                self._services.ready(ServerAddresses(address, *extra))
                log.info("serving permits at %s:%d", *address)
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
                for door in doors:
                    await door.close()
                if self.lease.is_valid:
                    with suppress(StoreError):
                        await self.usage.save(writer.run_in_writer)

    async def _listen_beside(self, place: _ExtraPort, tasks: list[asyncio.Future[None]]) -> tuple[str, int] | None:
        """Where it listens; None if it cannot yet. Machines do not wait for that: a busy port is logged once, and
        tried again."""
        try:
            return await place.door.listen(place.host, place.port, place.tls)
        except OSError as error:
            log.warning(
                "cannot serve %s at %s port %d (%s): %s; trying again",
                place.what,
                place.host,
                place.port,
                place.option,
                os.strerror(error.errno or 0),
            )
        tasks.append(asyncio.create_task(_keep_trying(place)))
        return None

    def _refused(self, reason: str, address: str, *, strangers: ClientLog | None = None) -> None:
        self.metrics.refused.labels(reason).inc()
        if strangers is not None and reason == "address":
            strangers.note(address)

    @property
    def _pods(self) -> tuple[Store, str] | None:
        """What has the pods that run machines, and their kind."""
        return next((source.pods for source in self._sources.all if source.pods is not None), None)

    async def _load(self, writer: PermitWriter, helpers: ThreadPoolExecutor) -> None:
        """The hosts, and all objects. Raises StoreError, LeaseLost."""
        try:
            hosts, can_move = await asyncio.get_running_loop().run_in_executor(helpers, self._read_hosts)
        except Exception as error:
            log.exception("cannot read the hosts")
            raise Unavailable(f"cannot read the hosts: {error}") from error
        pods: Sequence[Object] | None = None
        if (of_pods := self._pods) is not None:
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
        if self._pods is not None:
            watchers.append(Watcher(*self._pods, hear_pods, "cannot read which pods run machines"))
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
        return self._services.hosts.read(), self._services.movable()

    async def _mind_hosts(self, writer: PermitWriter, helpers: ThreadPoolExecutor) -> None:
        """Look at the hosts now and then."""
        while True:
            await asyncio.sleep(self.settings.resync)
            try:
                hosts, can_move = await asyncio.get_running_loop().run_in_executor(helpers, self._read_hosts)
                writer.see(StoreChanges(hosts=hosts, can_move=can_move))
            except Exception:
                log.exception("cannot read the hosts; continuing with the last known state")

    # -- who asks ----------------------------------------------------------------------------------------------------

    async def _respond(
        self, request: web.BaseRequest, writer: PermitWriter, moves: MigrationTracker, *, by_pod: bool = False
    ) -> HttpResponse:
        """``by_pod``: the caller is known by nothing but its address, and names machines by their runner pods."""
        began, version = time.perf_counter(), "none"
        try:
            caller = PROXY if by_pod else await self._caller_of(request)
            posted = request.method == "POST"
            body = await read_body(request, MAX_BODY, self.settings.request_seconds) if posted else b""
            decoded = decode_request(body, request.method)
            version = str(decoded.version)
            answer = await writer.ask(decoded, lambda: is_disconnected(request), caller.node, by_pod=caller.by_pod)
            if isinstance(answer, PermitGrant):
                answer = await moves.answered(answer)
        except RequestError as refused:
            log.debug("refused: %s", refused)
            answer = PermitRefused(refused.status, refused.text)
        response = (
            HttpResponse(200, answer.body, JSON)
            if isinstance(answer, PermitGrant)
            else HttpResponse(answer.status, answer.text.encode("utf-8", "replace"))
        )
        self.metrics.requests.labels(version, str(response.status)).inc()
        self.metrics.seconds.observe(time.perf_counter() - began)
        return response

    async def _caller_of(self, request: web.BaseRequest) -> Caller:
        """Raises RequestError."""
        callers = self.settings.callers
        if callers is None:
            return ANYONE
        lookup = partial(callers.caller_of, bearer_token(request), request.remote or "")
        caller = await asyncio.get_running_loop().run_in_executor(self._asking, lookup)
        if isinstance(caller, CallerRejected):
            raise RequestError(caller.status, caller.text, caller.text)
        return caller

    async def _show(self, request: web.BaseRequest, writer: PermitWriter) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(405, b"must be GET")
        if request.path == "/metrics":
            return HttpResponse(200, self.metrics.text(), TYPE)
        return HttpResponse(200, self.shown(waiting=writer.waiting), JSON)

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


@dataclass(frozen=True, slots=True)
class _ExtraPort:
    """A port beside that for requests of nodes."""

    door: HttpServer
    host: str
    port: int
    tls: ssl.SSLContext | None
    what: str
    """What is served there."""
    option: str
    """What sets the port."""


async def _keep_trying(place: _ExtraPort) -> None:
    while True:
        await asyncio.sleep(DUMP_RETRY_SECONDS)
        with suppress(OSError):
            await place.door.listen(place.host, place.port, place.tls)
            await asyncio.Event().wait()  # so that a wait for the first task to end goes on


__all__ = ["PermitServer", "ServerAddresses"]
