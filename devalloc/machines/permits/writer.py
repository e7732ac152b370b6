"""The only task that writes permits: it handles requests and pending writes one after the other, on the state of the
store.

It takes all requests since the last write, and writes their results at once: in one transaction if the store has
transactions, else in parallel, each machine by itself. Each caller gets what was written for its machine. A decision
that changes nothing is not written. A write without a request stays due until it succeeds.

The machines of each source are written by themselves, so that one whose writes hang holds up no other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from devalloc.backoff import Backoff
from devalloc.controller.leader.lease import KIND as LEASE
from devalloc.controller.leader.lease import Lease, LeaseLost
from devalloc.machines.permits.decide import (
    ConditionValue,
    PermitAnswer,
    PermitGrant,
    PermitRecord,
    PermitRefused,
    PermitTransaction,
    RetryLater,
)
from devalloc.machines.permits.hosts import FrozenHosts
from devalloc.machines.permits.leadership import Leadership
from devalloc.machines.permits.ledger import CanMigrate, Host, PermitLedgers
from devalloc.machines.permits.metrics import PermitMetrics
from devalloc.machines.permits.sources import MAX_BATCH, MachineSource, MachineSources
from devalloc.scaling.messages.permits import PermitRequest
from devalloc.scaling.messages.permits import RequestError as BadRequest
from devalloc.scaling.permits.ledger import MachineKey
from devalloc.scaling.resources import Resources
from devalloc.store import (
    Change,
    CommitOutcomes,
    Conflict,
    Event,
    EventType,
    Expired,
    Fence,
    FenceBroken,
    NotFound,
    NotLeader,
    Object,
    Store,
    StoreError,
    WriteRejected,
)
from devalloc.worker import until_set

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 10
"""How often a decision is made anew because an object changed meanwhile."""
MAX_WAITING = 8192
"""Requests and news that may wait. A store that stands still must not fill the memory with what is asked meanwhile."""
RETRY_SECONDS = 1.0
MAX_SETTLE_SECONDS = 30.0
"""How often at least a write is tried again of machines that cannot be written."""
T = TypeVar("T")


class RunInWriter(Protocol):
    """Runs what speaks with the store in the thread of the writer."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


@dataclass(frozen=True, slots=True)
class _QueuedRequest:
    request: PermitRequest
    node: str | None
    """The one whose machines who asks may ask for; None: all."""
    by_pod: bool
    """It names machines by their runner pods only."""
    has_gone: Callable[[], bool]
    answer: asyncio.Future[PermitAnswer]


_DecidedRequest = tuple[_QueuedRequest, PermitAnswer]
"""A request, and what is to be told."""


@dataclass(frozen=True, slots=True)
class StoreChanges:
    """What the store or the hosts told."""

    events: Sequence[Event] = ()
    gap: bool = False
    """Something was missed: all is to be read again."""
    hosts: Mapping[str, Host] | None = None
    can_move: CanMigrate | None = None
    """How to judge from now on whether machines can move; with ``hosts``."""
    pods: Sequence[Event] = ()
    """Of runner pods."""
    all_pods: Sequence[Object] | None = None
    """All runner pods that there are."""
    settled: _Lane | None = None
    """No late permit can be written on machines of this source any more."""


@dataclass(slots=True)
class _PendingWrite:
    """What is to be written of a machine unasked."""

    conditions: dict[str, ConditionValue] = field(default_factory=dict)
    retract: bool = False


@dataclass(slots=True)
class _Lane:
    """The machines of one source, as they are written."""

    source: MachineSource
    is_suspended: bool
    """Whether they get no permits, because writing them fails, or late permits may still be written."""
    late: asyncio.Future[CommitOutcomes] | None = None
    """The last write of them that failed; perhaps it is still under way."""


class OutcomeUnknown(Exception):
    """It is unknown whether permits were written that were not waited for any longer."""

    def __init__(self, permits: Mapping[MachineKey, Resources], why: str) -> None:
        super().__init__(why)
        self.permits = permits
        """What they may have at most if it was."""


class _HostsChanged(Exception):
    """Something on the hosts is not as it was when it was decided."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        super().__init__("the hosts have changed")
        self.hosts = hosts


class PermitWriter:
    """Use from one event loop, and make another one for the next."""

    def __init__(
        self,
        store: Store,
        book: PermitLedgers,
        sources: MachineSources,
        lease: Leadership,
        metrics: PermitMetrics,
        thread: ThreadPoolExecutor,
        still: FrozenHosts | None = None,
    ) -> None:
        """``sources``: those of the book. ``thread``: one, so that what is written is written in order. ``still``:
        what is written within."""
        self.book = book
        self._still = still
        self._hosts: Mapping[str, Host] = {}
        """As the book has them."""
        self.seen = "0"
        """The resourceVersion up to which all changes are known. Only a listing tells: a watch shows several changes to
        one object as the last of them, after those that others had meanwhile."""
        self._store = store
        self._lease = lease
        self.kinds = sources.kinds | lease.kinds
        """What decisions are made on."""
        self._metrics = metrics
        self._thread = thread
        self._sources = sources
        self._lanes = {source.kind: _Lane(source, not source.is_settled) for source in sources.all}
        self._queue: asyncio.Queue[_QueuedRequest | StoreChanges] = asyncio.Queue()
        self._waiting = 0
        self._due: dict[MachineKey, _PendingWrite] = {}
        self._listed = 0
        """The resourceVersion of the last listing: news that are older are none."""
        self._stale = False
        """Whether the store may have what the ledgers lack: a write whose outcome is unknown."""
        self._must_inherit = True
        """Whether the runner pods were not listed yet."""
        self._is_certain = True
        """Whether no such write may still arrive, though all was read since: the next one that is done says so."""

    @property
    def waiting(self) -> int:
        """Requests in the queue. Changes of the store wait there too, and are not counted."""
        return self._waiting

    async def load(
        self,
        hosts: Mapping[str, Host],
        pods: Sequence[Object] | None = None,
        can_move: CanMigrate | None = None,
    ) -> None:
        """Begin with these hosts and runner pods, and all objects. ``pods``: None if they come later. ``can_move``: as
        ``PermitLedgers`` has it. Raises StoreError, LeaseLost."""
        self._hosts = hosts
        self.book.begin(hosts, can_move)
        self._must_inherit = True
        if pods is not None:
            self._list_pods(pods)
        for kind, lane in self._lanes.items():
            if lane.is_suspended:
                self.book.doubt(kind, None)
        await self._reload(starting=True)
        for runner in self.book.ownerless_runners:
            log.warning(
                "runner pod %s/%s counts on node %s for what it says itself, up to its limits: its machine was deleted",
                *runner.key,
                runner.node,
            )
        for key, record in self.book.records.items():
            if record.permit is not None and not record.scaled:  # it is unknown whether that had to be written
                self._due[key] = _PendingWrite(retract=True)

    def see(self, seen: StoreChanges) -> None:
        """Take note, before anything that is asked later is decided."""
        self._queue.put_nowait(seen)

    def tell(self, key: MachineKey, conditions: Mapping[str, ConditionValue]) -> None:
        """Write conditions on a machine soon; tried again until it is done, or the machine is gone."""
        self._due.setdefault(key, _PendingWrite()).conditions.update(conditions)
        self._queue.put_nowait(StoreChanges())

    async def ask(
        self, request: PermitRequest, has_gone: Callable[[], bool], node: str | None = None, *, by_pod: bool = False
    ) -> PermitAnswer:
        """The answer, after it was written. ``has_gone``: whether the caller has gone. ``node``: the one whose
        machines may be asked for; None: all. ``by_pod``: the request names a runner pod, not a machine."""
        if self._queue.qsize() >= MAX_WAITING:
            return PermitRefused(503, "too many are waiting; ask again")
        answer: asyncio.Future[PermitAnswer] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_QueuedRequest(request, node, by_pod, has_gone, answer))
        self._waiting += 1
        return await answer

    async def run_in_writer(self, work: Callable[[], T]) -> T:
        """What speaks with the store, after all that was to be done there before."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def reject_waiting(self) -> None:
        """Answer all waiting requests, so that no caller waits in vain."""
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if isinstance(item, _QueuedRequest):
                self._waiting -= 1
                _answer_all([item], PermitRefused(503, "this server does not answer any more; ask again"))

    async def run(self) -> None:
        """Decide for ever. Raises LeaseLost."""
        while True:
            items = await self._next()
            requests = [item for item in items if isinstance(item, _QueuedRequest)]
            self._waiting -= len(requests)
            try:
                for item in items:
                    if isinstance(item, StoreChanges):
                        self._see(item)
                if requests or self._due:
                    await self._decide(requests)
            except LeaseLost:
                _answer_all(requests, PermitRefused(503, "another server answers now; ask again"))
                raise
            except StoreError as error:
                # It is unknown whether it was written. Read everything again before the next decision.
                log.warning("cannot write permits: %s", error)
                self._stale, self._is_certain = True, False
                self._metrics.commits.labels("failed").inc()
                _answer_all(requests, PermitRefused(503, "permits cannot be written now; ask again"))
            except Exception:
                log.exception("could not decide requests; continuing with the state of the store")
                self._stale, self._is_certain = True, False
                _answer_all(requests, PermitRefused(500, "internal error"))

    async def _next(self) -> list[_QueuedRequest | StoreChanges]:
        """What there is to do; nothing if what is due is to be tried again."""
        items: list[_QueuedRequest | StoreChanges] = []
        if not self._due:
            items.append(await self._queue.get())
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    items.append(await self._queue.get())
        while len(items) < MAX_BATCH and not self._queue.empty():
            items.append(self._queue.get_nowait())
        return items

    def _see(self, seen: StoreChanges) -> None:
        """Raises LeaseLost."""
        if seen.hosts is not None:
            self._hosts = seen.hosts
            self.book.limit(seen.hosts, seen.can_move)
        self._stale |= seen.gap
        if seen.all_pods is not None:
            self._list_pods(seen.all_pods)
        for event in seen.pods:
            self._see_pod(event.object, event.type is EventType.DELETED)
        if (lane := seen.settled) is not None:
            lane.is_suspended, self._stale = False, True
            self.book.doubt(lane.source.kind, {})
        for event in seen.events:
            if int(event.resource_version) <= self._listed:
                continue
            obj, gone = event.object, event.type is EventType.DELETED
            if obj["kind"] != LEASE and gone:
                self.book.drop(self._sources.key(obj), obj["metadata"]["resourceVersion"])
            elif obj["kind"] != LEASE:
                self._put(obj)
            elif isinstance(self._lease, Lease) and self._lease.is_meant(obj):
                self._lease.check_one(obj, gone)

    def _list_pods(self, pods: Sequence[Object]) -> None:
        there = {(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in pods}
        for key in {*self.book.runners} - there:
            self.book.drop_runner(key)
        for pod in pods:
            self._see_pod(pod, False)
        self._must_inherit = False

    def _see_pod(self, pod: Object, gone: bool) -> None:
        if gone or (runner := self._sources.read_pod(pod)) is None:
            self.book.drop_runner((pod["metadata"]["namespace"], pod["metadata"]["name"]))
        else:
            self.book.put_runner(runner, is_inherited=self._must_inherit)

    def _put(self, obj: Object, *, starting: bool = False) -> None:
        key = self._sources.key(obj)
        before = self.book.records.get(key)
        self.book.put(obj, starting=starting)
        after = self.book.records.get(key)
        if before is not None and before.scaled and after is not None and not after.scaled:
            self._due.setdefault(key, _PendingWrite()).retract = True

    async def _decide(self, requests: Sequence[_QueuedRequest]) -> None:
        """Answer all of them, each after what it asks for is written. Raises StoreError, LeaseLost."""
        waiting = list(requests)
        while True:
            some, waiting = self._one_each(waiting)
            due, self._due = self._due, {}
            lanes = [(lane, [item for item in some if self._lane_of(item) is lane]) for lane in self._lanes.values()]
            dues = [{key: one for key, one in due.items() if self._lane(key) is lane} for lane, _ in lanes]
            try:
                for (lane, items), of_lane in zip(lanes, dues, strict=True):
                    if items or of_lane:
                        waiting += await self._decide_in(lane, items[: lane.source.batch], of_lane)
                        waiting += items[lane.source.batch :]
            finally:
                for key, one in ((key, one) for of_lane in dues for key, one in of_lane.items()):  # what is not written
                    newer = self._due.setdefault(key, _PendingWrite())
                    newer.conditions = {**one.conditions, **newer.conditions}
                    newer.retract |= one.retract
            if not waiting:
                return

    def _lane(self, key: MachineKey) -> _Lane:
        return self._lanes[self._sources.of(key).kind]

    def _lane_of(self, item: _QueuedRequest) -> _Lane:
        """Return that of the machine; the first one for a request that names none."""
        try:
            return self._lane(self._machine_of(item))
        except BadRequest:
            return next(iter(self._lanes.values()))

    def _machine_of(self, item: _QueuedRequest) -> MachineKey:
        """Raises RequestError."""
        pod = item.request.pod
        return self.book.find((pod.namespace, pod.name), item.node, by_pod=item.by_pod).key

    async def _decide_in(
        self, lane: _Lane, requests: Sequence[_QueuedRequest], due: dict[MachineKey, _PendingWrite]
    ) -> list[_QueuedRequest]:
        """As ``_decide_some``: if machines cannot be written in time, only those of their source get no permits.
        Raises StoreError, LeaseLost."""
        name = lane.source.name
        if not lane.is_suspended:
            try:
                return await self._decide_some(lane, requests, due)
            except OutcomeUnknown as failed:
                log.warning("%s get no permits until they can be written again: %s", name, failed)
                lane.is_suspended = True
                self.book.doubt(lane.source.kind, failed.permits)
                self._metrics.commits.labels("failed").inc()
        _answer_all(requests, PermitRefused(503, f"{name} cannot be written now; ask again"))
        return []

    def _one_each(self, requests: Iterable[_QueuedRequest]) -> tuple[list[_QueuedRequest], list[_QueuedRequest]]:
        """The first request for each machine, and all others: each answer has to be written by itself."""
        first: list[_QueuedRequest] = []
        others: list[_QueuedRequest] = []
        seen: set[MachineKey] = set()
        for item in requests:
            try:
                key = self._machine_of(item)
            except BadRequest:
                first.append(item)
                continue
            (others if key in seen else first).append(item)
            seen.add(key)
        return first, others

    async def _decide_some(
        self, lane: _Lane, requests: Sequence[_QueuedRequest], due: dict[MachineKey, _PendingWrite]
    ) -> list[_QueuedRequest]:
        """Those that are to be decided after this. What is written of ``due`` is taken off it: someone may write the
        objects again and again. Raises StoreError, LeaseLost."""
        later: list[_QueuedRequest] = []
        for _ in range(MAX_ATTEMPTS):
            if self._stale:
                await self._reload()
            if not self._lease.is_valid:
                raise LeaseLost("the lease ran out")
            draft = PermitTransaction(self.book, self._lease.holder, _now(), is_certain=self._is_certain)
            for key, one in due.items():
                draft.tell(key, one.conditions)
                if one.retract:
                    draft.retract(key)
            decided: list[_DecidedRequest] = []
            for item in requests:
                if self._lane_of(item) is not lane:  # the machine that it names is another one by now
                    later.append(item)
                elif not _is_abandoned(item):
                    try:
                        decided.append((item, self._decided(draft, item)))
                    except RetryLater:
                        later.append(item)
            requests = [item for item, _ in decided]
            records = draft.records()
            if not records:
                draft.adopt([])
                due.clear()
                self._tell(decided)
                return later
            self._tell((item, answer) for item, answer in decided if not _is_written(draft, answer))
            try:
                outcomes = await self._write(lane, records)
            except _HostsChanged as moved:
                self._hosts = moved.hosts
                self.book.limit(moved.hosts)
            except (FenceBroken, Expired):
                # A machine came, went, was placed or seen to have something else, or the lease was written.
                self._metrics.commits.labels("fenced").inc()
                await self._reload()
            else:
                requests = await self._take_over(draft, decided, outcomes, records, due)
                if not requests and not due:
                    return later
        _answer_all(requests, PermitRefused(503, "the VirtualMachine keeps changing; ask again"))
        return later

    async def _take_over(
        self,
        draft: PermitTransaction,
        decided: Sequence[_DecidedRequest],
        outcomes: CommitOutcomes,
        records: Sequence[PermitRecord],
        due: dict[MachineKey, _PendingWrite],
    ) -> list[_QueuedRequest]:
        """Apply and answer what was written. Returns the requests that must be decided again, because their write
        failed."""
        self._is_certain = True
        ends = {record.key: outcome for record, outcome in zip(records, outcomes, strict=True)}
        lost = {key: outcome for key, outcome in ends.items() if isinstance(outcome, Conflict)}
        self._metrics.commits.labels("conflict" if lost else "done").inc()
        draft.adopt([obj for outcome in ends.values() if not isinstance(outcome, Conflict) for obj in outcome], lost)
        self.seen = outcomes.resource_version
        refused = {key: outcome.why for key, outcome in lost.items() if isinstance(outcome, WriteRejected)}
        for key in [*due]:
            if key not in lost or key in refused:
                del due[key]
        self._tell(
            (item, answer) for item, answer in decided if not isinstance(answer, PermitGrant) or answer.key not in lost
        )
        left = []
        for item, answer in decided:
            if isinstance(answer, PermitGrant) and answer.key in refused:
                log.warning("cannot write a permit on %s/%s: %s", *answer.key, refused[answer.key])
                _answer_all([item], PermitRefused(503, "the store does not take the permit: " + refused[answer.key]))
            elif isinstance(answer, PermitGrant) and answer.key in lost:
                left.append(item)
        await self._reread(lost)
        return left

    async def _write(self, lane: _Lane, records: Sequence[PermitRecord]) -> CommitOutcomes:
        """Raises as ``_commit``; OutcomeUnknown if machines that are not waited for without end are not written."""
        source, patience = lane.source, lane.source.patience
        changes = [source.change(self.book.objects[record.key], record) for record in records]
        if patience is None:
            return await self.run_in_writer(partial(self._commit, changes))
        writing = asyncio.get_running_loop().run_in_executor(None, self._commit, changes)
        try:
            return await asyncio.wait_for(asyncio.shield(writing), patience)
        except (FenceBroken, Expired, NotLeader):
            raise
        except (StoreError, TimeoutError) as error:
            lane.late = writing
            why = str(error) or f"the API server did not answer in {patience:.0f} s"
            raise OutcomeUnknown({record.key: record.most for record in records}, why) from error

    def _commit(self, changes: Sequence[Change]) -> CommitOutcomes:
        """Each by itself: see ``PermitTransaction``."""
        began = time.perf_counter()
        try:
            with nullcontext(self._hosts) if self._still is None else self._still() as hosts:
                if hosts != self._hosts:
                    raise _HostsChanged(hosts)
                unsettled = frozenset(kind for kind, lane in self._lanes.items() if lane.is_suspended)
                fence = Fence(self.seen, specs=self.kinds, statuses=self.kinds, unsettled=unsettled)
                return self._store.commit_each([[change] for change in changes], fence)
        finally:
            self._metrics.committing.observe(time.perf_counter() - began)

    def _decided(self, draft: PermitTransaction, item: _QueuedRequest) -> PermitAnswer:
        """Raises RetryLater."""
        try:
            return draft.answer(item.request, item.node, by_pod=item.by_pod)
        except RetryLater:
            raise
        except BadRequest as refused:
            log.debug("refused: %s", refused)
            return PermitRefused(refused.status, refused.text)
        except Exception:
            log.exception("could not decide a request of %s", item.request.pod)
            return PermitRefused(500, "internal error")

    def _tell(self, decided: Iterable[_DecidedRequest]) -> None:
        for item, answer in decided:
            if item.answer.done():  # answered before, or the caller has gone
                continue
            if isinstance(answer, PermitGrant):
                self._metrics.granted(answer)
                self._metrics.wanting.inc(answer.wants_migration)
            item.answer.set_result(answer)

    async def _reload(self, *, starting: bool = False) -> None:
        """All objects as they are at one moment, from which on a fence holds. Raises StoreError, LeaseLost."""
        listing = await self.run_in_writer(partial(self._store.list, self.kinds))
        self._lease.check([obj for obj in listing.objects if obj["kind"] == LEASE])
        there = set()
        for obj in listing.objects:
            if obj["kind"] != LEASE:
                self._put(obj, starting=starting)
                there.add(self._sources.key(obj))
        for key in {*self.book.machines} - there:
            self.book.drop(key)
        self.seen = listing.resource_version
        self._listed = int(listing.resource_version)
        self._stale = False

    async def _reread(self, keys: Iterable[MachineKey]) -> None:
        """The objects that others changed, as they are now."""
        for key in keys:
            try:
                obj = await self.run_in_writer(partial(self._store.get, *self._sources.object_key(key)))
            except NotFound:
                self.book.drop(key)
            else:
                self._put(obj)

    # -- machines that cannot be written -------------------------------------------------------------------------------

    async def settled(self, stop: threading.Event) -> None:
        """Wait until all machines can be written, if that does not take long."""
        stopped = asyncio.ensure_future(until_set(stop))
        for lane in self._lanes.values():
            settled = asyncio.ensure_future(_can_write(lane))
            patience = lane.source.patience
            await asyncio.wait({stopped, settled}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            settled.cancel()
        stopped.cancel()

    def settling(self, over: threading.Event, helpers: ThreadPoolExecutor) -> list[Coroutine[Any, Any, None]]:
        """Return what tries, beside the decisions, to write machines that cannot be written, until it is cancelled."""
        lanes = [lane for lane in self._lanes.values() if lane.source.patience is not None]
        return [self._settle(lane, over, helpers) for lane in lanes]

    async def _settle(self, lane: _Lane, over: threading.Event, helpers: ThreadPoolExecutor) -> None:
        backoff = Backoff(RETRY_SECONDS, MAX_SETTLE_SECONDS)
        while True:
            while not lane.is_suspended:
                await asyncio.sleep(RETRY_SECONDS / 4)
            doubtful = self.book.doubtful(lane.source.kind)
            keys = None if doubtful is None else [self._sources.object_key(key) for key in doubtful]
            if (late := lane.late) is not None:
                await asyncio.wait([late])
                _ = late.cancelled() or late.exception()  # it was logged when it was given up
            try:
                await asyncio.get_running_loop().run_in_executor(helpers, lane.source.settle, keys, over)
            except StoreError as error:
                if backoff.failures in (0, 5) or backoff.failures % 20 == 0:
                    log.warning("cannot write %s, so they get no permits: %s; trying again", lane.source.name, error)
                await asyncio.sleep(backoff.next_delay())
                continue
            backoff.reset()
            self.see(StoreChanges(settled=lane))
            await _can_write(lane)


async def _can_write(lane: _Lane) -> None:
    """Wait until its machines can be written."""
    while lane.is_suspended:
        await asyncio.sleep(0.02)


def _is_abandoned(item: _QueuedRequest) -> bool:
    """Whether the caller has gone. Such a request may be outdated: a newer one may have
    come by another way, so it is not decided."""
    if item.answer.done() or not item.has_gone():
        return item.answer.cancelled()
    item.answer.set_result(PermitRefused(503, "you have gone"))
    return True


def _is_written(draft: PermitTransaction, answer: PermitAnswer) -> bool:
    """Whether an answer tells of something that is not in the store yet."""
    return isinstance(answer, PermitGrant) and draft.writes(answer.key)


def _answer_all(requests: Iterable[_QueuedRequest], refusal: PermitRefused) -> None:
    for item in requests:
        if not item.answer.done():
            item.answer.set_result(refusal)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
