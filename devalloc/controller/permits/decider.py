"""The one task that decides: what is asked and what has to be written, one after the other, on what the store has.

It takes what has come in since the last write, and has it all written at once: in one transaction where the store has
them, else side by side, each machine by itself. Of each is told what was written of it. What changes nothing is not
written. What is to be written unasked stays due until it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from devalloc.controller.http import Response
from devalloc.controller.lease import KIND as LEASE
from devalloc.controller.lease import Lost
from devalloc.controller.permits.book import Book
from devalloc.controller.permits.draft import Draft, Granted, Later, Told
from devalloc.controller.permits.hosts import Host, Still
from devalloc.controller.permits.lease import Right
from devalloc.controller.permits.metrics import Metrics
from devalloc.controller.permits.records import KIND, key_of
from devalloc.scaling.messages.plugin import Refused as BadRequest
from devalloc.scaling.messages.plugin import Request
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
    Outcomes,
    Refused,
    Store,
    StoreError,
)

log = logging.getLogger(__name__)

ATTEMPTS = 10
"""How often a decision is made anew because an object changed meanwhile."""
AT_ONCE = 512
"""Requests that are decided and written together."""
MOST_WAITING = 8192
"""Requests and news that may wait. A store that stands still must not fill the memory with what is asked meanwhile."""
RETRY_SECONDS = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    node: str | None
    """The one whose machines who asks may ask for; None: all."""
    has_gone: Callable[[], bool]
    answer: asyncio.Future[Response | Granted]


_Told = tuple[_Asked, Response | Granted]
"""A request, and what is to be told."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the store or the hosts told."""

    events: Sequence[Event] = ()
    gap: bool = False
    """Something was missed: all is to be read again."""
    hosts: Mapping[str, Host] | None = None


@dataclass(slots=True)
class _Due:
    """What is to be written of a machine unasked."""

    conditions: dict[str, Told] = field(default_factory=dict)
    retract: bool = False


class _HostsMoved(Exception):
    """Something on the hosts is not as it was when it was decided."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        super().__init__("the hosts are not as they were")
        self.hosts = hosts


class _Wake:
    """Something is due."""


class Decider:
    """Use from one event loop, and make another one for the next."""

    def __init__(
        self,
        store: Store,
        book: Book,
        lease: Right,
        metrics: Metrics,
        writer: ThreadPoolExecutor,
        still: Still | None = None,
    ) -> None:
        """``writer``: one thread, so that what is written is written in order. ``still``: what is written within."""
        self.book = book
        self._still = still
        self._hosts: Mapping[str, Host] = {}
        """As the book has them."""
        self.seen = "0"
        """The resourceVersion up to which all changes are known. Only a listing tells: a watch shows several changes to
        one object as the last of them, after those that others had meanwhile."""
        self._store = store
        self._lease = lease
        self.kinds = frozenset({KIND}) | lease.kinds
        """What decisions are made on."""
        self._metrics = metrics
        self._writer = writer
        self._queue: asyncio.Queue[_Asked | Seen | _Wake] = asyncio.Queue()
        self._due: dict[Key, _Due] = {}
        self._listed = 0
        """The resourceVersion of the last listing: news that are older are none."""
        self._stale = False
        """Whether the store may have what the book has not: a write ended and nobody knows how."""
        self._is_certain = True
        """Whether no such write may still arrive, though all was read since: the next one that is done says so."""

    @property
    def waiting(self) -> int:
        """Requests and news that nobody has begun with."""
        return self._queue.qsize()

    async def load(self, hosts: Mapping[str, Host]) -> None:
        """Begin with these hosts and all objects. Raises StoreError, Lost."""
        self._hosts = hosts
        self.book.begin(hosts)
        await self._reload(starting=True)
        for key, record in self.book.records.items():
            if record.permit is not None and not record.scaled:  # nobody knows any more whether that was to be written
                self._due[key] = _Due(retract=True)

    def see(self, seen: Seen) -> None:
        """Take note, before anything that is asked later is decided."""
        self._queue.put_nowait(seen)

    def tell(self, key: Key, conditions: Mapping[str, Told]) -> None:
        """Write conditions on a machine soon; tried again until it is done, or the machine is gone."""
        self._due.setdefault(key, _Due()).conditions.update(conditions)
        self._queue.put_nowait(_Wake())

    async def ask(self, request: Request, has_gone: Callable[[], bool], node: str | None = None) -> Response | Granted:
        """What is answered, after it is written. ``has_gone``: whether nobody is there any more to hear it. ``node``:
        the one whose machines may be asked for; None: all."""
        if self._queue.qsize() >= MOST_WAITING:
            return Response(503, b"too many are waiting; ask again")
        answer: asyncio.Future[Response | Granted] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Asked(request, node, has_gone, answer))
        return await answer

    async def in_writer(self, work: Callable[[], T]) -> T:
        """What speaks with the store, after all that was to be done there before."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    def turn_away(self) -> None:
        """Nobody is left waiting for an answer that does not come."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _Asked):
                _answer_all([item], Response(503, b"this server does not answer any more; ask again"))

    async def run(self) -> None:
        """Decide for ever. Raises Lost."""
        while True:
            items = await self._next()
            asked = [item for item in items if isinstance(item, _Asked)]
            try:
                for item in items:
                    if isinstance(item, Seen):
                        self._see(item)
                if asked or self._due:
                    await self._decide(asked)
            except Lost:
                _answer_all(asked, Response(503, b"another server answers now; ask again"))
                raise
            except StoreError as error:
                # Nobody knows whether it was written. All is read again before anything else is decided.
                log.warning("permits cannot be written: %s", error)
                self._stale, self._is_certain = True, False
                self._metrics.commits.labels("failed").inc()
                _answer_all(asked, Response(503, b"permits cannot be written now; ask again"))
            except Exception:
                log.exception("requests could not be decided; going on with what the store has")
                self._stale, self._is_certain = True, False
                _answer_all(asked, Response(500, b"internal error"))

    async def _next(self) -> list[_Asked | Seen | _Wake]:
        """What there is to do; nothing where what is due is to be tried again."""
        items: list[_Asked | Seen | _Wake] = []
        if not self._due:
            items.append(await self._queue.get())
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    items.append(await self._queue.get())
        while len(items) < AT_ONCE and not self._queue.empty():
            items.append(self._queue.get_nowait())
        return items

    def _see(self, seen: Seen) -> None:
        """Raises Lost."""
        if seen.hosts is not None:
            self._limit(seen.hosts)
        self._stale |= seen.gap
        for event in seen.events:
            if int(event.resource_version) <= self._listed:
                continue
            obj, gone = event.object, event.type is EventType.DELETED
            if obj["kind"] != LEASE:
                self._see_machine(obj, gone)
            elif self._lease.is_meant(obj):
                self._lease.check_one(obj, gone)

    def _limit(self, hosts: Mapping[str, Host]) -> None:
        self._hosts = hosts
        self.book.limit(hosts)

    def _see_machine(self, obj: Object, gone: bool) -> None:
        if gone:
            self.book.drop(key_of(obj), obj["metadata"]["resourceVersion"])
        else:
            self._put(obj)

    def _put(self, obj: Object, *, starting: bool = False) -> None:
        key = key_of(obj)
        before = self.book.records.get(key)
        self.book.put(obj, starting=starting)
        after = self.book.records.get(key)
        if before is not None and before.scaled and after is not None and not after.scaled:
            self._due.setdefault(key, _Due()).retract = True

    async def _decide(self, asked: Sequence[_Asked]) -> None:
        """Answer all of them, each after what it asks for is written. Raises StoreError, Lost."""
        waiting = list(asked)
        while True:
            some, waiting = self._one_each(waiting)
            due, self._due = self._due, {}
            try:
                waiting += await self._decide_some(some, due)
            finally:
                for key, one in due.items():  # what is not written
                    newer = self._due.setdefault(key, _Due())
                    newer.conditions = {**one.conditions, **newer.conditions}
                    newer.retract |= one.retract
            if not waiting:
                return

    def _one_each(self, asked: Iterable[_Asked]) -> tuple[list[_Asked], list[_Asked]]:
        """The first request for each machine, and all others: what is told to each has to be written by itself."""
        first: list[_Asked] = []
        others: list[_Asked] = []
        known: set[Key] = set()
        for item in asked:
            try:
                key = self.book.find((item.request.pod.namespace, item.request.pod.name), item.node).key
            except BadRequest:
                first.append(item)
                continue
            (others if key in known else first).append(item)
            known.add(key)
        return first, others

    async def _decide_some(self, asked: Sequence[_Asked], due: dict[Key, _Due]) -> list[_Asked]:
        """Those that are to be decided after this. What is written of ``due`` is taken off it: someone may write the
        objects again and again. Raises StoreError, Lost."""
        later: list[_Asked] = []
        for _ in range(ATTEMPTS):
            if self._stale:
                await self._reload()
            if not self._lease.is_valid:
                raise Lost("the lease ran out")
            draft = Draft(self.book, self._lease.holder, _now(), is_certain=self._is_certain)
            for key, one in due.items():
                draft.tell(key, one.conditions)
                if one.retract:
                    draft.retract(key)
            told: list[_Told] = []
            for item in asked:
                if not _is_over(item):
                    try:
                        told.append((item, self._decided(draft, item)))
                    except Later:
                        later.append(item)
            asked = [item for item, _ in told]
            changes = draft.changes()
            if not changes:
                draft.adopt([])
                due.clear()
                self._tell(told)
                return later
            self._tell((item, answer) for item, answer in told if not _is_written(draft, answer))
            try:
                outcomes = await self.in_writer(partial(self._commit, changes))
            except _HostsMoved as moved:
                self._limit(moved.hosts)
            except (FenceBroken, Expired):
                # A machine came, went, was placed or seen to have something else, or the lease was written.
                self._metrics.commits.labels("fenced").inc()
                await self._reload()
            else:
                asked = await self._take_over(draft, told, outcomes, changes, due)
                if not asked and not due:
                    return later
        _answer_all(asked, Response(503, b"the VirtualMachine keeps changing; ask again"))
        return later

    async def _take_over(
        self,
        draft: Draft,
        told: Sequence[_Told],
        outcomes: Outcomes,
        changes: Sequence[Change],
        due: dict[Key, _Due],
    ) -> list[_Asked]:
        """What is written counts, and is told. Those who are to be decided again, because it is not."""
        self._is_certain = True
        ends = {_key_of(change): outcome for change, outcome in zip(changes, outcomes, strict=True)}
        lost = {key: outcome for key, outcome in ends.items() if isinstance(outcome, Conflict)}
        self._metrics.commits.labels("conflict" if lost else "done").inc()
        draft.adopt([obj for outcome in ends.values() if not isinstance(outcome, Conflict) for obj in outcome], lost)
        self.seen = outcomes.resource_version
        refused = {key: outcome.why for key, outcome in lost.items() if isinstance(outcome, Refused)}
        for key in [*due]:
            if key not in lost or key in refused:
                del due[key]
        self._tell((item, answer) for item, answer in told if not isinstance(answer, Granted) or answer.key not in lost)
        left = []
        for item, answer in told:
            if isinstance(answer, Granted) and answer.key in refused:
                log.warning("no permit can be written on %s/%s: %s", *answer.key, refused[answer.key])
                _answer_all(
                    [item], Response(503, b"the store does not take the permit: " + refused[answer.key].encode())
                )
            elif isinstance(answer, Granted) and answer.key in lost:
                left.append(item)
        await self._reread(lost)
        return left

    def _commit(self, changes: Sequence[Change]) -> Outcomes:
        """Each by itself: see ``Draft``."""
        began = time.perf_counter()
        try:
            with nullcontext(self._hosts) if self._still is None else self._still() as hosts:
                if hosts != self._hosts:
                    raise _HostsMoved(hosts)
                fence = Fence(self.seen, specs=self.kinds, statuses=self.kinds)
                return self._store.commit_each([[change] for change in changes], fence)
        finally:
            self._metrics.committing.observe(time.perf_counter() - began)

    def _decided(self, draft: Draft, item: _Asked) -> Response | Granted:
        """Raises Later."""
        try:
            return draft.answer(item.request, item.node)
        except Later:
            raise
        except BadRequest as refused:
            log.debug("refused: %s", refused)
            return Response(refused.status, refused.text.encode("utf-8", "replace"))
        except Exception:
            log.exception("a request of %s could not be decided", item.request.pod)
            return Response(500, b"internal error")

    def _tell(self, told: Iterable[_Told]) -> None:
        for item, answer in told:
            if item.answer.done():  # told before, or whoever asked has gone
                continue
            if isinstance(answer, Granted):
                self._metrics.granted(answer)
                self._metrics.wanting.inc(answer.wants_migration)
            item.answer.set_result(answer)

    async def _reload(self, *, starting: bool = False) -> None:
        """All objects as they are at one moment, from which on a fence holds. Raises StoreError, Lost."""
        listing = await self.in_writer(partial(self._store.list, self.kinds))
        self._lease.check([obj for obj in listing.objects if obj["kind"] == LEASE])
        there = set()
        for obj in listing.objects:
            if obj["kind"] == KIND:
                self._put(obj, starting=starting)
                there.add(key_of(obj))
        for key in self.book.objects.keys() - there:
            self.book.drop(key)
        self.seen = listing.resource_version
        self._listed = int(listing.resource_version)
        self._stale = False

    async def _reread(self, keys: Iterable[Key]) -> None:
        """The objects that somebody else changed, as they are now."""
        for namespace, name in keys:
            try:
                obj = await self.in_writer(partial(self._store.get, KIND, namespace, name))
            except NotFound:
                self.book.drop((namespace, name))
            else:
                self._put(obj)


def _is_over(item: _Asked) -> bool:
    """Whether nobody waits for the answer any more. What such a request asks for may be long ago: a newer one may have
    come by another way, so it is not decided."""
    if item.answer.done() or not item.has_gone():
        return item.answer.cancelled()
    item.answer.set_result(Response(503, b"you have gone"))
    return True


def _key_of(change: Change) -> Key:
    return change.key.namespace or "default", change.key.name


def _is_written(draft: Draft, answer: Response | Granted) -> bool:
    """Whether an answer tells of something that is not in the store yet."""
    return isinstance(answer, Granted) and draft.writes(answer.key)


def _answer_all(asked: Iterable[_Asked], response: Response) -> None:
    for item in asked:
        if not item.answer.done():
            item.answer.set_result(response)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
