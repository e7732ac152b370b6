"""The server of permits: it listens, decides in the order in which it is asked, and tells what is written down.

All decisions are made by one task, so that no two see the same room. It takes what has come in since the last write,
and writes it all at once: the more is asked, the more go with one write. What changes nothing is not written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

from aiohttp import web

from devalloc.api.meta import parse_time
from devalloc.controller.permits.book import (
    Book,
    Draft,
    Granted,
    Told,
    leaving_by_age,
    nothing_more,
    without_devices,
)
from devalloc.controller.permits.dump import dump
from devalloc.controller.permits.hosts import CanMove, Host, Hosts, Overhead
from devalloc.controller.permits.http import PLAIN, Bounds, Door, Response, read_some
from devalloc.controller.permits.lease import KIND as LEASE
from devalloc.controller.permits.lease import Lease, Lost, is_the_lease
from devalloc.controller.permits.metrics import TYPE, Metrics
from devalloc.controller.permits.migration import Migrator
from devalloc.controller.permits.records import KIND, MIGRATING, SHOULD_MIGRATE, key_of
from devalloc.controller.permits.settings import Settings
from devalloc.scaling.messages.plugin import MAX_BODY, Refused, Request, decode
from devalloc.scaling.permits.ledger import Key
from devalloc.store import (
    Change,
    Conflict,
    Event,
    EventType,
    Expired,
    Fence,
    FenceBroken,
    NotFound,
    Object,
    Store,
    StoreError,
    Unavailable,
)

log = logging.getLogger(__name__)

JSON = "application/json"
ATTEMPTS = 10
"""How often a decision is made anew because an object changed meanwhile."""
AT_ONCE = 512
"""Requests that are decided and written together."""
RETRY_SECONDS = 1.0
_KINDS = frozenset({KIND, LEASE})
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where it listens: host and port."""

    requests: tuple[str, int]
    dump: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    answer: asyncio.Future[Response | Granted]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the store or the hosts told."""

    events: Sequence[Event] = ()
    gap: bool = False
    """Something was missed: all is to be read again."""
    hosts: Mapping[str, Host] | None = None


@dataclass(frozen=True, slots=True)
class _Edit:
    """What is to be written unasked."""

    conditions: Mapping[Key, Mapping[str, Told]] = field(default_factory=dict)
    retract: tuple[Key, ...] = ()


class PermitServer:
    """Everything of one server. ``run`` in a thread."""

    def __init__(
        self,
        store: Store,
        hosts: Hosts,
        settings: Settings | None = None,
        *,
        migrator: Migrator | None = None,
        overhead: Overhead = nothing_more,
        can_move: CanMove = without_devices,
        alone: bool = False,
        lease_seconds: float = 15.0,
        on_ready: Callable[[Addresses], None] = lambda addresses: None,
    ) -> None:
        """``alone``: the caller holds a lock (``devalloc.store.lease.hold``) by which no other server lives on this
        store. ``on_ready`` is told each time it begins to listen, from the server's thread.
        """
        self.settings = settings or Settings()
        self.book = Book(self.settings, overhead=overhead, can_move=can_move, migrates=migrator is not None)
        self.metrics = Metrics(self.book)
        holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.lease = Lease(store, holder, seconds=lease_seconds, alone=alone)
        self._store = store
        self._hosts = hosts
        self._migrator = migrator
        self._on_ready = on_ready
        self._queue: asyncio.Queue[_Asked | _Seen | _Edit] = asyncio.Queue()
        self._seen = "0"
        """The resourceVersion up to which all changes are known. Only a listing tells: a watch shows several changes to
        one object as the last of them, after those that others had meanwhile."""
        self._stale = False
        """Whether the store may have what the book has not: a write ended and nobody knows how."""

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set: whenever this server has the lease.

        What is wrong with the store for a time is waited out. Raises OSError where it cannot listen.
        """
        while not stop.is_set():
            try:
                if self.lease.take():
                    asyncio.run(self._serve(stop))
                else:
                    stop.wait(min(RETRY_SECONDS / 2, self.lease.seconds / 5))
            except Lost as lost:
                log.warning("%s; waiting until it is free again", lost)
            except (StoreError, TimeoutError) as error:
                log.warning("permits are not served: %s; trying again", error or "reading all objects took too long")
                stop.wait(RETRY_SECONDS)
        with suppress(StoreError):
            self.lease.give()

    # -- the life of one lease ---------------------------------------------------------------------------------------

    async def _serve(self, stop: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue()
        # One thread: what is written is written in order.
        with ThreadPoolExecutor(1, "permits-store") as writer, ThreadPoolExecutor(2, "permits-watch") as helpers:
            self._writer, self._helpers = writer, helpers
            over = threading.Event()
            async with asyncio.timeout(self.settings.startup_seconds):
                await self._load()
            doors = [
                Door(self._respond, self._bounds, token=self.settings.token, refused=self._refused),
                Door(self._show, self._bounds, token=self.settings.token, refused=self._refused),
            ]
            tasks = [
                asyncio.create_task(work)
                for work in (
                    self._decide_forever(),
                    self._mind_lease(),
                    self._mind_hosts(),
                    self._mind_migrations(),
                    _until(stop),
                )
            ]
            watching = loop.run_in_executor(helpers, self._watch, self._seen, over, loop)
            try:
                s = self.settings
                asked = await doors[0].listen(s.host, s.port, s.tls)
                shown = None if s.dump_port is None else await doors[1].listen(s.host, s.dump_port, s.tls)
                self._on_ready(Addresses(asked, shown))
                log.info("permits are served at %s:%d", *asked)
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                over.set()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                self._turn_away()
                for door in doors:
                    await door.close()
                await watching

    @property
    def _bounds(self) -> Bounds:
        s = self.settings
        return Bounds(s.max_connections, s.request_seconds, s.idle_seconds)

    def _refused(self, reason: str) -> None:
        self.metrics.refused.labels(reason).inc()

    def _turn_away(self) -> None:
        """Nobody is left waiting for an answer that does not come."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _Asked) and not item.answer.done():
                item.answer.set_result(Response(503, b"this server does not answer any more; ask again"))

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    async def _load(self) -> None:
        """The hosts, and all objects. Raises StoreError, Lost."""
        try:
            hosts = await self._in(self._helpers, self._hosts)
        except Exception as error:
            log.exception("the hosts cannot be looked at")
            raise Unavailable(f"the hosts cannot be looked at: {error}") from error
        self.book.begin(hosts)
        await self._reload(starting=True)

    async def _reload(self, *, starting: bool = False) -> None:
        """All objects as they are at one moment, from which on a fence holds. Raises StoreError, Lost."""
        listing = await self._in(self._writer, lambda: self._store.list(_KINDS))
        leases = [obj for obj in listing.objects if obj["kind"] == LEASE]
        self.lease.check(next((obj for obj in leases if is_the_lease(obj)), None))
        there = set()
        for obj in listing.objects:
            if obj["kind"] == KIND:
                self.book.put(obj, starting=starting)
                there.add(key_of(obj))
        for key in self.book.records.keys() - there:
            self.book.drop(key)
        self._seen = listing.resource_version
        self._stale = False

    def _watch(self, since: str, over: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the deciding task what changes. In a thread of its own."""

        def tell(seen: _Seen) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._queue.put_nowait, seen)

        while not over.is_set():
            try:
                for event in self._store.watch(_KINDS, since, stop=over):
                    tell(_Seen(events=(event,)))
                    since = event.resource_version
            except StoreError as error:
                if not isinstance(error, Expired):
                    log.warning("VirtualMachines cannot be watched: %s; trying again", error)
                over.wait(RETRY_SECONDS)
                with suppress(StoreError):
                    since = self._store.list(LEASE).resource_version
                    tell(_Seen(gap=True))

    async def _mind_lease(self) -> None:
        """Renew it in time. Raises Lost."""
        while True:
            await asyncio.sleep(self.lease.seconds / 3)
            try:
                await self._in(self._writer, self.lease.renew)
            except StoreError as error:
                log.warning("the lease cannot be renewed: %s", error)
                if not self.lease.is_valid:
                    raise Lost("the lease ran out, because it could not be renewed") from error

    async def _mind_hosts(self) -> None:
        """Look at the hosts now and then, and at the time."""
        before = time.monotonic()
        looked = before
        while True:
            await asyncio.sleep(min(1.0, self.settings.resync))
            now = time.monotonic()
            self.metrics.account(now - before)
            before = now
            if now - looked < self.settings.resync:
                continue
            looked = now
            try:
                self._queue.put_nowait(_Seen(hosts=await self._in(self._helpers, self._hosts)))
            except Exception:
                log.exception("the hosts cannot be looked at; going on with what is known of them")

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _respond(self, request: web.BaseRequest) -> Response:
        began, version = time.perf_counter(), "none"
        try:
            posted = request.method == "POST"
            body = await read_some(request, MAX_BODY, self.settings.request_seconds) if posted else b""
            decoded = decode(body, request.method)
            version = str(decoded.version)
            answer: asyncio.Future[Response | Granted] = asyncio.get_running_loop().create_future()
            self._queue.put_nowait(_Asked(decoded, answer))
            told = await answer
            response = await self._migrated(told) if isinstance(told, Granted) else told
        except Refused as refused:
            log.debug("refused: %s", refused)
            response = Response(refused.status, refused.text.encode("utf-8", "replace"))
        self.metrics.requests.labels(version, str(response.status)).inc()
        self.metrics.seconds.observe(time.perf_counter() - began)
        return response

    async def _show(self, request: web.BaseRequest) -> Response:
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"must be GET")
        if request.path == "/metrics":
            return Response(200, self.metrics.text(), TYPE)
        shown = {"holder": self.lease.holder, "leaseValid": self.lease.is_valid, **dump(self.book)}
        return Response(200, json.dumps(shown, indent=1).encode(), JSON)

    # -- decisions ---------------------------------------------------------------------------------------------------

    async def _decide_forever(self) -> None:
        while True:
            items = [await self._queue.get()]
            while len(items) < AT_ONCE and not self._queue.empty():
                items.append(self._queue.get_nowait())
            asked = [item for item in items if isinstance(item, _Asked)]
            edits = [item for item in items if isinstance(item, _Edit)]
            try:
                for item in items:
                    if isinstance(item, _Seen):
                        self._see(item)
                if asked or edits:
                    await self._decide(asked, edits)
            except Lost:
                _answer_all(asked, Response(503, b"another server answers now; ask again"))
                raise
            except StoreError as error:
                # Nobody knows whether it was written. All is read again before anything else is decided.
                log.warning("permits cannot be written: %s", error)
                self._stale = True
                self.metrics.commits.labels("failed").inc()
                _answer_all(asked, Response(503, b"permits cannot be written now; ask again"))
            except Exception:
                log.exception("requests could not be decided; going on with what the store has")
                self._stale = True
                _answer_all(asked, Response(500, b"internal error"))

    def _see(self, seen: _Seen) -> None:
        """Raises Lost."""
        if seen.hosts is not None:
            self.book.limit(seen.hosts)
        self._stale |= seen.gap
        for event in seen.events:
            obj = event.object
            gone = event.type is EventType.DELETED
            if obj["kind"] == LEASE:
                if is_the_lease(obj):
                    self.lease.check(None if gone else obj)
            else:
                self._see_machine(obj, gone)

    def _see_machine(self, obj: Object, gone: bool) -> None:
        key = key_of(obj)
        before = self.book.records.get(key)
        if gone:
            self.book.drop(key)
            return
        self.book.put(obj)
        after = self.book.records.get(key)
        if before is not None and before.scaled and after is not None and not after.scaled:
            self._queue.put_nowait(_Edit(retract=(key,)))

    async def _decide(self, asked: Sequence[_Asked], edits: Sequence[_Edit]) -> None:
        """Answer all of them, each after what it asks for is written. Raises StoreError, Lost."""
        waiting = list(asked)
        for _ in range(ATTEMPTS):
            if self._stale:
                await self._reload()
            if not self.lease.is_valid:
                raise Lost("the lease ran out")
            draft = Draft(self.book, self.lease.holder, _now())
            for edit in edits:
                for key, conditions in edit.conditions.items():
                    draft.tell(key, conditions)
                for key in edit.retract:
                    draft.retract(key)
            told = [(item, self._decided(draft, item.request)) for item in waiting]
            changes = draft.changes()
            if not changes:
                draft.adopt([])
                self._tell(told)
                return
            self._tell([(item, answer) for item, answer in told if not _is_written(draft, answer)])
            try:
                stored = await self._in(self._writer, partial(self._committed, changes))
            except (FenceBroken, Expired):
                # A machine came, went, was placed or seen to have something else, or the lease was written.
                self.metrics.commits.labels("fenced").inc()
                await self._reload()
            except Conflict as conflict:
                self.metrics.commits.labels("conflict").inc()
                await self._reread([(key.namespace or "default", key.name) for key in conflict.conflicts])
            else:
                self.metrics.commits.labels("done").inc()
                draft.adopt(stored)
                # The fence held: up to here there is nothing that anybody else wrote.
                self._seen = str(max(int(self._seen), *(int(obj["metadata"]["resourceVersion"]) for obj in stored)))
                self._tell(told)
                return
        _answer_all(asked, Response(503, b"the VirtualMachine keeps changing; ask again"))

    def _committed(self, changes: Sequence[Change]) -> Sequence[Object]:
        began = time.perf_counter()
        try:
            return self._store.commit(changes, Fence(self._seen, specs=_KINDS, statuses=_KINDS))
        finally:
            self.metrics.committing.observe(time.perf_counter() - began)

    def _decided(self, draft: Draft, request: Request) -> Response | Granted:
        try:
            return draft.answer(request)
        except Refused as refused:
            log.debug("refused: %s", refused)
            return Response(refused.status, refused.text.encode("utf-8", "replace"))
        except Exception:
            log.exception("a request of %s could not be decided", request.pod)
            return Response(500, b"internal error")

    def _tell(self, told: Iterable[tuple[_Asked, Response | Granted]]) -> None:
        for item, answer in told:
            if item.answer.done():  # told before, or whoever asked has gone
                continue
            if isinstance(answer, Granted):
                self.metrics.granted(answer)
                self.metrics.wanting.inc(answer.wants_migration)
            item.answer.set_result(answer)

    async def _reread(self, keys: Iterable[Key]) -> None:
        """The objects that somebody else changed, as they are now."""
        for namespace, name in keys:
            try:
                obj = await self._in(self._writer, partial(self._store.get, KIND, namespace, name))
            except NotFound:
                self.book.drop((namespace, name))
            else:
                self.book.put(obj)

    # -- migrations --------------------------------------------------------------------------------------------------

    async def _migrated(self, granted: Granted) -> Response:
        """What to tell, once the migrator was told where one is to begin. What was granted stays so in any case."""
        if not granted.begins_migration or self._migrator is None:
            return Response(200, granted.body, JSON)
        key, node = granted.key, granted.node
        try:
            begun = await asyncio.get_running_loop().run_in_executor(None, self._migrator.begin, key, node)
        except Exception as error:
            log.exception("the migration of %s/%s could not be begun", *key)
            self.metrics.migrations.labels("failed").inc()
            self._edit(key, (False, "MigratorFailed", f"it could not be begun: {error}"[:1000]))
            return Response(500, b"the migration could not be begun")
        self.metrics.migrations.labels("begun" if begun else "exists").inc()
        return Response(200, granted.body if begun else granted.without_migration, JSON)

    async def _mind_migrations(self) -> None:
        while True:
            await asyncio.sleep(self.settings.resync)
            await self._look_at_migrations()

    async def _look_at_migrations(self) -> None:
        """Withdraw what takes too long; in the newest form, begin what has to be."""
        latest = datetime.now(UTC) - timedelta(seconds=self.settings.migration_seconds)
        for key, record in list(self.book.records.items()):
            moving = record.migrating
            if moving is not None and moving.is_true and _is_before(moving.since, latest):
                log.warning("the migration of %s/%s took too long; it is withdrawn", *key)
                if await self._told(lambda m, k=key: m.withdraw(k)):  # type: ignore[misc]
                    self.metrics.migrations.labels("withdrawn").inc()
                    self._edit(key, (False, "TimedOut", "it took too long and was withdrawn"))
        for key in leaving_by_age(self.book):
            record = self.book.records[key]
            why = f"node {record.node} has too little room"
            if self._migrator is None:
                if record.should_migrate is None or not record.should_migrate.is_true:
                    self.metrics.wanting.inc()
                    self._queue.put_nowait(_Edit({key: {SHOULD_MIGRATE: (True, "NodePressure", why)}}))
            else:
                self._edit(key, (True, "NodePressure", why))
                if not await self._told(lambda m, k=key, n=record.node: m.begin(k, n)):  # type: ignore[misc]
                    self._edit(key, (False, "MigratorFailed", "it could not be begun"))

    async def _told(self, work: Callable[[Migrator], object]) -> bool:
        """Whether the migrator did as it was told. True where there is none any more."""
        migrator = self._migrator
        if migrator is None:
            return True
        try:
            await asyncio.get_running_loop().run_in_executor(None, lambda: work(migrator))
        except Exception:
            log.exception("the migrator failed")
            self.metrics.migrations.labels("failed").inc()
            return False
        return True

    def _edit(self, key: Key, told: Told) -> None:
        self._queue.put_nowait(_Edit({key: {MIGRATING: told}}))


def _is_written(draft: Draft, answer: Response | Granted) -> bool:
    """Whether an answer tells of something that is not in the store yet."""
    return isinstance(answer, Granted) and draft.writes(answer.key)


async def _until(stop: threading.Event) -> None:
    while not stop.is_set():
        await asyncio.sleep(0.05)


def _answer_all(asked: Iterable[_Asked], response: Response) -> None:
    for item in asked:
        if not item.answer.done():
            item.answer.set_result(response)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _is_before(since: str, latest: datetime) -> bool:
    try:
        return parse_time(since).astimezone(UTC) < latest
    except ValueError:
        return True  # nobody knows how long it takes


__all__ = ["PLAIN", "Addresses", "PermitServer"]
