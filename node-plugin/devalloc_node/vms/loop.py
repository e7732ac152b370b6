"""The loop from the VirtualMachine objects of a store to the machines of this node.

It is a work queue. What changed (an object, a claim, a machine) queues the machines that it concerns, and workers bring
these nearer to their objects. So a guest that powers down slowly delays no other machine, and a round costs what
changed, not what exists. The loop keeps no state that matters: one that starts after a crash does the same as one that
never ended. The loop retries what cannot be done yet: with growing delays, and at once when something on which it
depends changes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api import views
from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.meta import ALLOCATED_NODE, FENCED_FROM, RELEASE
from devalloc.api.views import ClaimView
from devalloc.backoff import backoff_delay
from devalloc.inventory.capacity import host_pool_name
from devalloc.store import Event, EventType, NotFound, Object, Store, StoreError, Unusable
from devalloc.store.watcher import Listed, Watcher
from devalloc_node.claims import finalizers
from devalloc_node.claims.store_grants import KIND as CLAIM
from devalloc_node.deadline import Deadline
from devalloc_node.errors import NodeError
from devalloc_node.machine.records import MachineView
from devalloc_node.machine_service.operations import MachineOperations
from devalloc_node.operations.change_feed import CLAIMS, DEVICES, ChangeNotifier, machine_change
from devalloc_node.operations.claim_registry import HeldClaim
from devalloc_node.vms import machine_claims as claimed
from devalloc_node.vms import objects
from devalloc_node.vms.machine_claims import Claims
from devalloc_node.vms.objects import retry_delay
from devalloc_node.vms.reconciler import MachineControls, MachineReconciler

log = logging.getLogger(__name__)

WORK_SECONDS = 90.0
"""For removing a machine whose object is gone."""
_POOL = "DevicePool"
_WATCHED = (*ALLOCATABLE_KINDS, _POOL)
_GLANCES = 6
"""A machine that is as its object says, and of which nothing changed, is only asked whether it still runs when its turn
comes: so many times, and then it is worked on all the same."""
_GLANCE_RESYNCS = 4
"""Pauses of ``resync`` between such glances: they are for what neither the kernel nor QEMU's end tells of, such as a
disk that failed."""
_HOST_SECONDS = 2.0
"""The pause between looks whether what a machine waits for on the host is there: a few calls of stat for each that
waits, and none for any other."""
_ROOM_SECONDS = 1.0
"""The pause after a failure before it is tried again because this node has given something back."""
_HEARD_AT_MOST = 20_000
"""Changes that wait for a round; if there are more, all objects are listed and all machines looked at instead."""
MAX_ASIDE = 256
"""Machines of which a guest may be waited for beside the work on others. As long as its author likes, up to an hour, a
guest may take to power down: those of one tenant must not keep all workers."""
_MISSED = "missed"
"""In place of changes on this node of which there were too many."""
ClaimKey = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Times are in seconds."""

    resync: float = 60.0
    """Everything is looked at again this often, though nothing is known to have changed."""
    batch: float = 0.05
    """After a change more are waited for, so that what is applied together is seen together."""
    retry: float = 1.0
    """The pause after the first failure; twice as long after each further one,"""
    most: float = 60.0
    """but not longer."""
    grace: float = 300.0
    """How long a machine must be without its object, which this node did not let go, before it is removed (T16)."""
    workers: int = 8
    """Machines that are worked on at the same time, beside those of which a guest is waited for."""


@dataclass(slots=True)
class _WorkItem:
    """When something is due again."""

    seen: Hashable = None
    """What it depended on when it was last worked on."""
    reported: Hashable = None
    """What its guest had reported then: that is written at once, and is no reason to try sooner what failed."""
    failures: int = 0
    at: float = 0.0
    ended: float = 0.0
    """When the last work on it ended."""
    glances: int = 0
    """Since it was last worked on."""
    runs: bool = False
    """Whether its machine ran when it was last looked at."""
    is_unchanged: Callable[[], bool] | None = None
    """As of the last ``Outcome``."""
    written: Mapping[str, Any] | None = None
    """This node's part of the status, as last written."""

    @property
    def is_settled(self) -> bool:
        """Whether a glance is enough when its time comes."""
        return self.runs and not self.failures and self.seen is not None and self.glances < _GLANCES


def _in_thread(work: Callable[[], None]) -> None:
    """A thread that does not keep the process: what it leaves unfinished, the next start goes on with."""
    threading.Thread(target=work, name="machine", daemon=True).start()


@dataclass(frozen=True, slots=True)
class LoopExecution:
    """When and where a loop works."""

    clock: Callable[[], float] = time.monotonic
    spawn: Callable[[Callable[[], None]], None] = _in_thread
    """Has something done in another thread."""


class VirtualMachineLoop:
    """Run it in a thread of its own."""

    def __init__(
        self,
        store: Store,
        operations: MachineOperations,
        notifier: ChangeNotifier,
        *,
        settings: LoopSettings | None = None,
        removed: Callable[[str], None] = lambda what: None,
        execution: LoopExecution | None = None,
        controls: MachineControls | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """``notifier`` reports which machines and claims changed. ``removed`` is called with ``machine`` when one whose
        object is gone was removed, for the metrics. ``settle``: called before the first round, again until it does not
        raise: it ends what was taken away from this node (``fencing``)."""
        execution = execution or LoopExecution()
        self._store = store
        self._operations = operations
        self._host_pool = host_pool_name(operations.node_name)
        self._settings = settings or LoopSettings()
        self._removed = removed
        self._clock = execution.clock
        self.began: float | None = None
        """When the round that goes on began, by ``time.monotonic``; None between rounds."""
        self._keeper = MachineReconciler(
            store,
            operations,
            clock=execution.clock,
            controls=controls,
            aside=self._waiting_for_guest,
        )
        self._spawn = execution.spawn
        self._settle = settle
        self._is_settled = False
        self._wake = ChangeNotifier()
        """Beats when there may be something to begin."""
        self._mutex = threading.Lock()
        """For what other threads write: the next four."""
        self._heard: list[Event | str] = []
        self._is_stale = True
        """Whether changes were missed, so that all objects must be listed."""
        self._aside = 0
        """Workers that wait for a guest to power down."""
        self._is_room = False
        """Whether this node has given something back that others may wait for."""
        self._machines: dict[str, Object] = {}
        """VirtualMachines by UID."""
        self._uids: dict[str, str] = {}
        """Their UIDs by key."""
        self._claims: dict[ClaimKey, Object] = {}
        self._users: dict[ClaimKey, set[str]] = {}
        """UIDs of the VirtualMachines that name a claim."""
        self._work: dict[str, Callable[[_WorkItem], None]] = {}
        """What a worker does, by name: ``vm UID`` or ``claim UID``."""
        self._turns: dict[str, _WorkItem] = {}
        self._queue: dict[str, None] = {}
        """Names that wait for a worker, in their order."""
        self._busy: set[str] = set()
        self._to_glance: deque[tuple[str, _WorkItem]] = deque()
        self._is_glancing = False
        self._next_host_look = 0.0
        self._is_looking_at_host = False
        self._has_host_pool: bool | None = None
        """Whether this node publishes its capacity for machines: one that does not starts every machine placed on it.
        None: not checked yet."""
        self._gone_since: dict[str, float] = {}
        self._warned_of: str | None = None
        operations.why_not_here = self._why_not_here
        notifier.follow(self._hear)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; what is under way goes on. Raises Unusable; all else is logged and retried."""
        watching = threading.Thread(target=self._watch, args=(stop,), name="machines-watch", daemon=True)
        watching.start()
        next_listing = 0.0
        while not stop.is_set():
            seen, now = self._wake.count, self._clock()
            is_due = now >= next_listing
            if is_due:
                next_listing = now + self._settings.resync
            self.began = time.monotonic()
            try:
                pause = self.round(everything=is_due)
            except Unusable:
                raise
            except (NodeError, StoreError) as error:
                pause = self._settings.retry
                log.error("cannot reconcile the machines; next try in %.0f s: %s", pause, error)
            except Exception:
                log.exception("cannot reconcile the machines; next try in %.0f s", self._settings.retry)
                pause = self._settings.retry
            finally:
                self.began = None
            self._wake.wait(seen, max(0.0, min(pause, next_listing - self._clock())))
            stop.wait(self._settings.batch)
        watching.join()
        self.leave_idle()

    def leave_idle(self) -> None:
        """At the end, release objects of which nothing is here: no other plugin may come to do it when they are
        deleted. A plugin that does come takes them again."""
        try:
            for obj in self._store.list(objects.KIND).objects:
                if objects.holder_of(obj) == self._operations.node_name and (
                    f"vm {obj['metadata']['uid']}" not in self._busy
                ):
                    self._keeper.leave_idle(obj)
        except (NodeError, StoreError) as error:
            log.warning("cannot release machines that never ran on this node: %s", error)

    def round(self, *, everything: bool = True) -> float:
        """Begin all that is due and not under way; seconds until something is due again, though nothing changes.

        ``everything``: list all objects, instead of going by the changes that were heard. Raises StoreError, NodeError.
        """
        if not self._is_settled:
            self._settle()
            self._is_settled = True
        with self._mutex:
            heard, self._heard = self._heard, []
            everything, self._is_stale = everything or self._is_stale, False
        try:
            if everything:
                self._list()
            else:
                self._take(heard)
        except Exception:
            with self._mutex:
                self._is_stale = True
                # A listing shows what became of objects, and not what changed on this node.
                self._add_heard([one for one in heard if isinstance(one, str)])
            raise
        self._queue_heard(one for one in heard if isinstance(one, str))
        self._queue_due()
        self._begin()
        return self._pause()

    # What changed.

    def _hear(self, changed: Sequence[Event | str]) -> None:
        with self._mutex:
            self._add_heard(changed)
        self._wake.beat()

    def _add_heard(self, changed: Sequence[Event | str]) -> None:
        """With the mutex held."""
        if len(self._heard) + len(changed) <= _HEARD_AT_MOST:
            self._heard.extend(changed)
            return
        self._is_stale = True  # a listing shows what became of objects
        on_node = dict.fromkeys(one for one in (*self._heard, *changed) if isinstance(one, str))
        self._heard = list(on_node) if len(on_node) <= _HEARD_AT_MOST else [_MISSED]

    def _watch(self, stop: threading.Event) -> None:
        """Have the loop hear of what changes in the store."""
        Watcher(self._store, _WATCHED, self._hear_store, "cannot watch the machines' objects", lists=False).run(stop)
        self._wake.beat()

    def _hear_store(self, change: Listed | Event) -> None:
        """Raises StoreError."""
        if isinstance(change, Listed):
            with self._mutex:
                self._is_stale = True
            self._wake.beat()
            return
        event = self._as_it_is(change)
        # Nodes publish all day long: pools of others are not to wake this one.
        if event.object["kind"] != _POOL or event.object["metadata"]["name"] == self._host_pool:
            self._hear([event])

    def _as_it_is(self, event: Event) -> Event:
        """An object of this node that seems to be deleted may only have left what the node watches, because a user
        removed its label: then it is as it was. Raises StoreError."""
        obj = event.object
        if event.type is not EventType.DELETED or obj["kind"] not in ALLOCATABLE_KINDS or not self._concerns(obj):
            return event
        now = objects.read_again(self._store, obj["kind"], objects.key_of(obj), obj["metadata"]["uid"])
        return event if now is None else replace(event, type=EventType.MODIFIED, object=now)

    def _concerns(self, obj: Object) -> bool:
        node = self._operations.node_name
        if obj["kind"] == objects.KIND:
            name = f"vm {obj['metadata']['uid']}"
            return name in self._work or node in (views.MachineView(obj).node, objects.holder_of(obj))
        return node in (ClaimView(obj).holder, ClaimView(obj).node)

    def _named_claims(self, obj: Object) -> Claims:
        """The claims that a machine names, also those that are not this node's, which it does not watch. Raises
        StoreError."""
        claims: dict[ClaimKey, Object] = {}
        for key in _claims_of(obj):
            claim = self._claims.get(key)
            if claim is None or not self._concerns(claim):
                claim = objects.read_again(self._store, CLAIM, "/".join(key))
            if claim is not None:
                claims[key] = claim
        return claims

    def _list(self) -> None:
        """Take all objects as they are now."""
        machines, claims = {}, {}
        for obj in self._store.list(ALLOCATABLE_KINDS).objects:
            if obj["kind"] == objects.KIND:
                machines[obj["metadata"]["uid"]] = obj
            else:
                claims[_claim_key(obj)] = obj
        self._look_at_host_pool()
        owners = self._operations.machines.owners()
        for machine, owner in owners.items():
            if not owner or owner in machines:
                continue
            if (there := objects.read_again(self._store, objects.KIND, machine, owner)) is not None:
                machines[owner] = there  # its label is missing
        held = self._operations.claims.held()
        for record in (one.record for one in held if one.record.kind == CLAIM):
            key = (record.ref.namespace, record.ref.name)
            if key in claims:
                continue
            if (there := objects.read_again(self._store, CLAIM, str(record.ref), record.ref.uid)) is not None:
                claims[key] = there  # the same
        for uid in self._machines.keys() - machines.keys():
            self._machine_gone(self._machines[uid])
        for uid, obj in machines.items():
            self._machine_is(obj, is_here=owners.get(objects.key_of(obj)) == uid)
            self._queue_if_overwritten(uid, obj)
        for key in self._claims.keys() - claims.keys():
            self._claim_gone(self._claims[key])
        for obj in claims.values():
            self._claim_is(obj)
        self._look_at_claims(list(claims), held, {key for key, uid in owners.items() if uid})
        self._look_at_orphans(owners)

    def _take(self, heard: Iterable[Event | str]) -> None:
        """Take what was heard."""
        claims: set[ClaimKey] = set()
        is_machine_gone = is_pool_changed = False
        for one in heard:
            if isinstance(one, str):
                claims |= self._claims_of_change(one)
            elif one.object["kind"] == objects.KIND:
                obj, uid = one.object, one.object["metadata"]["uid"]
                claims |= _claims_of(self._machines.get(uid)) | _claims_of(obj)
                if one.type is EventType.DELETED:
                    self._machine_gone(obj)
                    is_machine_gone = True
                else:
                    self._machine_is(obj, is_here=f"vm {uid}" in self._work and self._is_here(obj))
            elif one.object["kind"] == _POOL:
                is_pool_changed = True
            elif one.type is EventType.DELETED:
                self._claim_gone(one.object)
            else:
                self._claim_is(one.object)
                claims.add(_claim_key(one.object))
        if is_pool_changed:
            self._look_at_host_pool()
        present = [key for key in claims if key in self._claims]
        held = [one for key in present for one in self._operations.claims.held(self._claims[key]["metadata"]["uid"])]
        self._look_at_claims(present, held, _KeysWithObject(self._operations))
        if is_machine_gone:
            self._look_at_orphans(self._operations.machines.owners())

    def _look_at_host_pool(self) -> None:
        """If this node begins or ceases to publish what it has for machines, all that wait are due: one may have waited
        to be placed."""
        try:
            pool = self._store.get(_POOL, None, self._host_pool)
            is_there = node_of_host_pool(pool) == self._operations.node_name
        except NotFound:
            is_there = False
        if self._has_host_pool is not None and is_there != self._has_host_pool:
            for name, turn in self._turns.items():
                if turn.failures:
                    turn.at = 0.0
                    self._queue.setdefault(name)
        self._has_host_pool = is_there

    def _claims_of_change(self, changed: str) -> set[ClaimKey]:
        """The claims that a change on this node concerns."""
        if changed == CLAIMS:
            return set(self._claims)
        kind, _, key = changed.partition(" ")
        if kind == "claim":
            namespace, _, name = key.partition("/")
            return {(namespace, name)}
        return _claims_of(self._machines.get(self._uids.get(key, "")))

    def _machine_is(self, obj: Object, *, is_here: bool) -> None:
        """Take a VirtualMachine as it is, and queue it if it changed. ``is_here``: its machine is on this node, even if
        a user took the object from this node by hand."""
        uid = obj["metadata"]["uid"]
        before = self._machines.get(uid)
        self._machines[uid], self._uids[objects.key_of(obj)] = obj, uid
        if before is None or _claims_of(before) != _claims_of(obj):
            self._forget_user(before)
            for key in _claims_of(obj):
                self._users.setdefault(key, set()).add(uid)
        name, node = f"vm {uid}", self._operations.node_name
        if node not in (views.MachineView(obj).node, objects.holder_of(obj)) and not is_here:
            self._drop(name)
            return
        self._work[name] = partial(self._look_after, uid)
        if before is None or before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            self._queue.setdefault(name)

    def _why_not_here(self, key: str) -> str:
        """As ``MachineOperations.why_not_here``; for any thread."""
        obj = self._machines.get(self._uids.get(key, ""))
        return "" if obj is None else objects.why_not_begun(obj, self._operations.node_name)

    def _queue_if_overwritten(self, uid: str, obj: Object) -> None:
        """Queue a machine if its status is not what was last written. This is only for listings: two writers that
        dispute a status must not wake each other with every write."""
        turn = self._turns.get(f"vm {uid}")
        if turn is not None and turn.written is not None and objects.own_status(obj) != turn.written:
            turn.at = 0.0
            self._queue.setdefault(f"vm {uid}")

    def _machine_gone(self, obj: Object) -> None:
        uid, key = obj["metadata"]["uid"], objects.key_of(obj)
        self._forget_user(self._machines.pop(uid, None))
        if self._uids.get(key) == uid:
            del self._uids[key]
        self._drop(f"vm {uid}")

    def _forget_user(self, obj: Object | None) -> None:
        for key in _claims_of(obj):
            users = self._users.get(key, set())
            users.discard(obj["metadata"]["uid"] if obj is not None else "")
            if not users:
                self._users.pop(key, None)

    def _claim_is(self, obj: Object) -> None:
        """Take a DeviceClaim as it is, and queue the machines that name it if it changed."""
        key = _claim_key(obj)
        before, self._claims[key] = self._claims.get(key), obj
        if before is not None and before["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]:
            return
        if before is not None and before["metadata"]["uid"] != obj["metadata"]["uid"]:
            self._drop(f"claim {before['metadata']['uid']}")
        self._queue_users(key)

    def _claim_gone(self, obj: Object) -> None:
        key = _claim_key(obj)
        if (there := self._claims.get(key)) is not None and there["metadata"]["uid"] == obj["metadata"]["uid"]:
            del self._claims[key]
            self._queue_users(key)
        self._drop(f"claim {obj['metadata']['uid']}")

    def _queue_users(self, key: ClaimKey) -> None:
        for uid in sorted(self._users.get(key, ())):
            if f"vm {uid}" in self._work:
                self._queue.setdefault(f"vm {uid}")

    def _look_at_claims(
        self, keys: Collection[ClaimKey], held: Sequence[HeldClaim], with_object: Container[str]
    ) -> None:
        """Write on claims who uses them, and queue those that this node is to unprepare. ``held``: what it holds of
        them; ``with_object``: keys of machines that were made for objects."""
        node = self._operations.node_name
        claims = [self._claims[key] for key in keys]
        claimed.write_users(self._store, claims, held, node)
        users = {uid for key in keys for uid in self._users.get(key, ())}
        machines = [self._machines[uid] for uid in users]
        due = {f"claim {one.ref.uid}": one for one in claimed.due_unprepares(claims, machines, held, node, with_object)}
        for claim in claims:
            name = f"claim {claim['metadata']['uid']}"
            if name not in due:
                self._drop(name)
                continue
            self._work[name] = partial(self._unprepare, due[name])
            turn = self._turns.get(name)
            if turn is None or turn.seen != due[name].depends:
                self._queue.setdefault(name)

    def _queue_heard(self, heard: Iterable[str]) -> None:
        """Queue the machines that changed on this node. One without an object may have given something back."""
        for changed in heard:
            kind, _, key = changed.partition(" ")
            if kind == "machine":
                name = f"vm {self._uids.get(key, '')}"
                if name in self._work:
                    self._queue.setdefault(name)
                else:
                    self._is_room = True
            elif changed == DEVICES:  # those that are well again, or there again
                self._is_room = True
                self._keeper.device_changes += 1
            elif changed == _MISSED:
                self._is_room = True
                for name in self._work:
                    self._queue.setdefault(name)

    # What is begun.

    def _drop(self, name: str) -> None:
        """It is never due again."""
        self._work.pop(name, None)
        turn = self._turns.pop(name, None)
        if turn is not None and turn.runs:
            self._is_room = True

    def _queue_due(self) -> None:
        """Queue what is due by now. If this node has given something back, so is what failed: it may have waited for
        that, and the pause that it earned before is over."""
        now = self._clock()
        with self._mutex:
            is_room, self._is_room = self._is_room, False
        due = []
        for name, turn in self._turns.items():
            if is_room and turn.failures:
                turn.at = min(turn.at, turn.ended + _ROOM_SECONDS)
            if turn.at <= now and name not in self._busy and name not in self._queue:
                if turn.is_settled:
                    turn.at, turn.glances = now + _GLANCE_RESYNCS * self._settings.resync, turn.glances + 1
                    self._to_glance.append((name, turn))
                else:
                    due.append((turn.at, name))
        for _, name in sorted(due):
            self._queue.setdefault(name)
        waiting = self._waiting_for_host()
        if waiting and now >= self._next_host_look and not self._is_looking_at_host:
            self._next_host_look, self._is_looking_at_host = now + _HOST_SECONDS, True
            self._spawn_or(partial(self._look_at_host, waiting), self._host_looked_at)
        if self._to_glance and not self._is_glancing:
            self._is_glancing = True
            self._spawn_or(self._glance, self._glanced)

    def _waiting_for_host(self) -> list[tuple[str, _WorkItem]]:
        """What waits for a change of the host that has no event."""
        waiting = [(name, turn) for name, turn in self._turns.items() if turn.is_unchanged is not None]
        return [(name, turn) for name, turn in waiting if name not in self._busy]

    def _begin(self) -> None:
        """Have workers do what is queued, as many at a time as there are."""
        for name in list(self._queue):
            if self._is_full():
                return
            if name in self._busy:
                continue
            del self._queue[name]
            if (work := self._work.get(name)) is not None:
                self._busy.add(name)
                turn = self._turns.setdefault(name, _WorkItem())
                self._spawn_or(partial(self._do, name, turn, work), partial(self._not_begun, name))

    def _is_full(self) -> bool:
        """Whether as much is worked on as may be at the same time."""
        return len(self._busy) - min(self._aside, MAX_ASIDE) >= self._settings.workers

    @contextmanager
    def _waiting_for_guest(self) -> Iterator[None]:
        """Inside, a worker counts as none."""
        with self._mutex:
            self._aside += 1
        self._wake.beat()
        try:
            yield
        finally:
            with self._mutex:
                self._aside -= 1

    def _spawn_or(self, work: Callable[[], None], not_begun: Callable[[], None]) -> None:
        """Have it done in another thread; ``not_begun`` is called if there can be none now."""
        try:
            self._spawn(work)
        except BaseException:
            not_begun()
            raise

    def _not_begun(self, name: str) -> None:
        self._busy.discard(name)
        self._queue.setdefault(name)

    def _glanced(self) -> None:
        self._is_glancing = False

    def _host_looked_at(self) -> None:
        self._is_looking_at_host = False

    def _do(self, name: str, turn: _WorkItem, work: Callable[[_WorkItem], None]) -> None:
        try:
            work(turn)
        except (NodeError, StoreError) as error:
            log.warning("%s: %s", name, error)
            self._ended(turn, failed=True, after=retry_delay(error) if isinstance(error, NodeError) else None)
        except Exception:
            log.exception("%s", name)
            self._ended(turn, failed=True)
        self._busy.discard(name)
        self._wake.beat()  # another one may begin, and how long to sleep is known

    def _ended(self, turn: _WorkItem, *, failed: bool = False, after: float | None = None) -> None:
        """Work came to its end; ``after``: seconds until it is worth trying again."""
        settings = self._settings
        turn.failures = turn.failures + 1 if failed else 0
        pause = backoff_delay(turn.failures, settings.retry, settings.most) if failed else settings.resync
        turn.ended, turn.glances = self._clock(), 0
        turn.at = turn.ended + (pause if after is None else after)

    def _pause(self) -> float:
        """Until the next thing is due. A worker that ends wakes the loop."""
        now = self._clock()
        if self._is_full():
            return self._settings.resync
        due = [turn.at - now for name, turn in self._turns.items() if name not in self._busy]
        if self._waiting_for_host():
            due.append(_HOST_SECONDS if self._is_looking_at_host else self._next_host_look - now)
        return max(0.0, min([self._settings.resync, *due]))

    # What workers do.

    def _glance(self) -> None:
        """Queue those of ``_to_glance`` that do not run as they did. One after the other: no caller waits for it."""
        try:
            while self._to_glance:
                name, turn = self._to_glance.popleft()
                obj = self._machines.get(name.removeprefix("vm "))
                if obj is not None and not self._operations.machines.is_as_seen(objects.key_of(obj)):
                    turn.at = 0.0
                    self._hear([machine_change(objects.key_of(obj))])
        finally:
            self._glanced()

    def _look_at_host(self, waiting: Sequence[tuple[str, _WorkItem]]) -> None:
        """Queue those of which something on the host is otherwise than when they were tried."""
        try:
            for name, turn in waiting:
                is_unchanged, obj = turn.is_unchanged, self._machines.get(name.removeprefix("vm "))
                if obj is not None and is_unchanged is not None and not is_unchanged():
                    turn.is_unchanged, turn.at = None, 0.0
                    self._hear([machine_change(objects.key_of(obj))])
        finally:
            self._host_looked_at()

    def _look_after(self, uid: str, turn: _WorkItem) -> None:
        """Bring a machine nearer to its object, if anything that it depends on changed or its time came."""
        obj, now = self._machines.get(uid), self._clock()
        if obj is None:
            return
        key = objects.key_of(obj)
        machine = self._operations.machines.get(key)
        runs = machine is not None and machine.runs
        if turn.runs and not runs:
            with self._mutex:
                self._is_room = True
        turn.runs = runs
        depends = (
            _depends(obj, self._claims, machine, self._operations.node_name),
            self._keeper.scaling(key),
        )
        reported = self._keeper.guest_status(machine)
        if turn.seen != depends:
            turn.failures = 0
        elif turn.reported == reported and now < turn.at:
            return
        turn.seen, turn.reported, turn.is_unchanged, turn.written = depends, reported, None, None
        outcome = self._keeper.keep(obj, self._named_claims)
        if outcome is None:
            self._ended(turn)
        else:
            self._ended(turn, failed=bool(outcome.reason), after=outcome.after)
            turn.is_unchanged, turn.written = outcome.is_unchanged, outcome.written

    def _unprepare(self, one: claimed.DueUnprepare, turn: _WorkItem) -> None:
        if turn.seen == one.depends and self._clock() < turn.at:
            return
        turn.seen = one.depends
        is_done = claimed.unprepare(self._store, self._operations, one)
        if is_done:
            with self._mutex:
                self._is_room = True
        self._ended(turn, failed=not is_done)

    # Machines whose objects are gone.

    def _is_here(self, obj: Object) -> bool:
        return bool(self._operations.machines.owner(objects.key_of(obj)) == obj["metadata"]["uid"])

    def _is_same_store(self, gone: Collection[str]) -> bool:
        """Whether the objects come from the same store as before: another store does not show that an object is gone.
        Once every machine has an object in the other store, that store counts. ``gone``: keys of machines without an
        object."""
        identity, journal = self._store.identity(), self._operations.claims.journal
        previous = journal.setting(objects.IDENTITY)
        if previous is None or (previous != identity and not gone):
            journal.set(objects.IDENTITY, previous := identity)
        if previous != identity and previous != self._warned_of:
            self._warned_of = previous
            log.warning(
                "VirtualMachines come from another store than before (%s, and not %s): %s have no object in it and "
                "stay as they are; delete them by hand if you do not need them (`devalloc vm delete`)",
                identity,
                previous,
                ", ".join(sorted(gone)),
            )
        return previous == identity

    def _look_at_orphans(self, owners: Mapping[str, str]) -> None:
        """Queue the machines that have been without an object for the whole of the grace period. ``owners``: UIDs of
        the objects that machines were made for, by the machines' keys."""
        gone = {uid: key for key, uid in owners.items() if uid and uid not in self._machines}
        self._operations.without_object = frozenset(gone)
        if not self._is_same_store(gone.values()):
            return
        now = self._clock()
        for uid in self._gone_since.keys() - gone.keys() - self._machines.keys():
            self._drop(f"vm {uid}")  # it is removed
        self._gone_since = {uid: self._gone_since.get(uid, now) for uid in gone}
        for uid, key in gone.items():
            if now - self._gone_since[uid] >= self._settings.grace:
                self._work[f"vm {uid}"] = partial(self._remove, key, uid)
                if f"vm {uid}" not in self._turns:
                    self._queue.setdefault(f"vm {uid}")

    def _remove(self, key: str, uid: str, turn: _WorkItem) -> None:
        """Only when the store says, asked for that very object, that it is gone (T16)."""
        is_there = objects.read_again(self._store, objects.KIND, key, uid) is not None
        machine = self._operations.machines.get(key)
        if not is_there and machine is not None and machine.uid == uid:
            log.warning("removing machine %s (uid %s): its VirtualMachine was deleted", key, uid)
            self._keeper.leave(key)
            due = Deadline.after(WORK_SECONDS)
            with self._waiting_for_guest():
                self._operations.delete(key, None, due, owner=uid, force=not machine.adopted, caller="reconcile")
            self._removed("machine")
            with self._mutex:
                self._is_room = True
        self._ended(turn)


class _KeysWithObject:
    """The keys of machines that were made for objects."""

    def __init__(self, operations: MachineOperations) -> None:
        self._machines = operations.machines

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and bool(self._machines.owner(key))


def _claim_key(claim: Object) -> ClaimKey:
    return objects.namespace_of(claim), claim["metadata"]["name"]


def _claims_of(obj: Object | None) -> set[ClaimKey]:
    """The claims that a VirtualMachine names."""
    return set() if obj is None else {(objects.namespace_of(obj), name) for name in views.MachineView(obj).claim_names}


def _depends(obj: Object, claims: Claims, machine: MachineView | None, node_name: str) -> Hashable:
    """What must change for a machine to be worth another look before its time. ``claims``: as the loop last heard of
    them. It reads none of them for this: a tenant's machines can name many, and their changes can be many."""
    metadata = obj["metadata"]
    versions = [
        (
            claim["metadata"]["uid"],
            claim["metadata"]["generation"],
            *(claim["metadata"].get("annotations", {}).get(name) for name in (RELEASE, ALLOCATED_NODE, FENCED_FROM)),
            bool(allocated),
            finalizers.is_group_pending(claim),
        )
        for name in views.MachineView(obj).claim_names
        if (claim := claims.get((objects.namespace_of(obj), name))) is not None
        for allocated in [claim.get("status", {}).get("allocations")]
    ]
    # Each start that fails was a run of its own, which is no news: only that of a machine that runs is.
    run = machine.id if machine is not None and machine.runs and not machine.is_paused else ""
    seen = (
        None
        if machine is None
        else (
            machine.phase,
            run and machine.reason,
            run,
            machine.observed,
            machine.is_paused,
            machine.is_moving,
            machine.last_end,
        )
    )
    status = obj.get("status") or {}
    allocations = status.get("allocations")
    placed = (
        status.get("nodeName"),
        status.get("numaNode"),
        repr(allocations),
        allocations and objects.why_not_admitted(obj),
        views.MachineView(obj).is_unsettled,
    )
    holder = objects.holder_of(obj)
    other_holder = None if holder == node_name else holder
    is_leaving = objects.must_leave(obj, node_name), objects.was_taken_away(obj, node_name)
    request = views.MachineView(obj).restart_request
    return (metadata["generation"], request, other_holder, tuple(versions), seen, placed, is_leaving)
