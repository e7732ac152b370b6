"""The loop from the VirtualMachine objects of a store to the machines of this node.

What changed (an object, a claim, a machine) is a message to a ``Worker``, whose keys are the machines and claims that
it concerns: each is brought nearer to its object. So a guest that powers down slowly delays no other machine, and a
round costs what changed, not what exists. The loop keeps no state that matters: one that starts after a crash does the
same as one that never ended. What cannot be done yet is tried again with growing pauses, and at once when something on
which it depends changes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api import views
from devalloc.api.host_pool_names import node_of_host_pool
from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.meta import ALLOCATED_NODE, FENCED_FROM, RELEASE
from devalloc.api.views import ClaimKey, ClaimView
from devalloc.inventory.capacity import host_pool_name
from devalloc.store import Event, EventType, NotFound, Object, Store, StoreError, Unusable
from devalloc.store.watcher import Listed, Watcher, run_with_watchers
from devalloc.worker import FAILED, UNTRIED, Again, Pace, Why, Worker, in_thread
from devalloc_machines.qemu.records import MachineView, State
from devalloc_machines.service.operations import MachineOperations
from devalloc_machines.vms import machine_claims as claimed
from devalloc_machines.vms import objects
from devalloc_machines.vms.machine_claims import Claims
from devalloc_machines.vms.objects import retry_delay
from devalloc_machines.vms.status import own_status
from devalloc_machines.vms.steps import MachineControls, MachineReconciler
from devalloc_node.claims import finalizers
from devalloc_node.claims.store_grants import KIND as CLAIM
from devalloc_node.errors import NodeError
from devalloc_node.operations.change_feed import CLAIMS, DEVICES, ChangeNotifier

log = logging.getLogger(__name__)

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
_MISSED = "missed"
"""In place of changes of which there were too many."""
_ROOM = "room"
"""This node has given something back that others may wait for."""
_HOST = "host"
"""The key of looking at the host for what machines wait for there."""


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


Do = Callable[["_WorkItem", Why], Again | None]
"""What is done for a key of the worker, ``vm UID`` or ``claim UID``."""


@dataclass(slots=True)
class _WorkItem:
    """What the loop remembers of a key."""

    do: Do
    seen: Hashable = None
    """What it depended on when it was last worked on."""
    reported: Hashable = None
    """What its guest had reported then: that is written at once, and is no reason to try sooner what failed."""
    ended: float | None = None
    """When the last work on it ended."""
    glances: int = 0
    """Since it was last worked on."""
    runs: bool = False
    """Whether its machine ran when it was last looked at."""
    is_unchanged: Callable[[], bool] | None = None
    """As of the last ``Outcome``."""
    written: Mapping[str, Any] | None = None
    """This node's part of the status, as last written."""


@dataclass(frozen=True, slots=True)
class LoopExecution:
    """When and where a loop works."""

    clock: Callable[[], float] = time.monotonic
    spawn: Callable[[Callable[[], None]], None] = in_thread
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
    ) -> None:
        """``notifier`` reports which machines and claims changed. ``removed`` is called with ``machine`` when one whose
        object is gone was removed, for the metrics."""
        execution = execution or LoopExecution()
        self._store = store
        self._operations = operations
        self._host_pool = host_pool_name(operations.node_name)
        self._settings = settings = settings or LoopSettings()
        self._removed = removed
        self._clock = execution.clock
        self.worker: Worker[str, Listed | Event | str] = Worker(
            "cannot reconcile the machines",
            self._do,
            self._take,
            pace=Pace(
                settings.retry,
                settings.most,
                batch=settings.batch,
                threads=settings.workers,
                expected=(NodeError, StoreError),
                fatal=(Unusable,),
            ),
            overflow=_MISSED,
            clock=execution.clock,
            spawn=execution.spawn,
        )
        self._keeper = MachineReconciler(
            store,
            operations,
            clock=execution.clock,
            controls=controls,
            aside=self.worker.aside,
        )
        self._is_stale = True
        """Whether changes were missed, so that all objects must be listed."""
        self._machines: dict[str, Object] = {}
        """VirtualMachines by UID."""
        self._uids: dict[str, str] = {}
        """Their UIDs by key."""
        self._claims: dict[ClaimKey, Object] = {}
        self._users: dict[ClaimKey, set[str]] = {}
        """UIDs of the VirtualMachines that name a claim."""
        self._items: dict[str, _WorkItem] = {}
        self._has_host_pool: bool | None = None
        """Whether this node publishes its capacity for machines: one that does not starts every machine placed on it.
        None: not checked yet."""
        self._gone_since: dict[str, float] = {}
        self._warned_of: str | None = None
        operations.why_not_here = self._why_not_here
        notifier.follow(lambda changed: self.worker.tell(*changed))

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; what is under way goes on. Raises Unusable; all else is logged and retried."""
        watcher = Watcher(
            self._store,
            _WATCHED,
            self._hear_store,
            "cannot watch the machines' objects",
            lists=False,
            relist=self._settings.resync,
        )
        run_with_watchers(self.worker.run, [watcher], stop)
        self.leave_idle()

    def leave_idle(self) -> None:
        """At the end, release objects of which nothing is here: no other plugin may come to do it when they are
        deleted. A plugin that does come takes them again."""
        try:
            for obj in self._store.list(objects.KIND).objects:
                is_busy = self.worker.is_busy(f"vm {obj['metadata']['uid']}")
                if objects.holder_of(obj) == self._operations.node_name and not is_busy:
                    self._keeper.leave_idle(obj)
        except (NodeError, StoreError) as error:
            log.warning("cannot release machines that never ran on this node: %s", error)

    # What changed.

    def _hear_store(self, change: Listed | Event) -> None:
        """Raises StoreError."""
        change = change if isinstance(change, Listed) else self._as_it_is(change)
        # Nodes publish all day long: pools of others are not to wake this one.
        if (
            isinstance(change, Listed)
            or change.object["kind"] != _POOL
            or change.object["metadata"]["name"] == self._host_pool
        ):
            self.worker.tell(change)

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
            return name in self._items or node in (views.MachineView(obj).node, objects.holder_of(obj))
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

    def _take(self, messages: Sequence[Listed | Event | str]) -> None:
        """Take what changed. Raises StoreError, NodeError."""
        is_all = self._is_stale or any(isinstance(one, Listed) or one == _MISSED for one in messages)
        self._is_stale = True
        of_node = [one for one in messages if isinstance(one, str)]
        changes = self._list() if is_all else [one for one in messages if isinstance(one, Event)]
        owners = self._operations.machines.owners() if is_all else None
        claims = {key for one in of_node for key in self._claims_of_change(one)}
        for change in changes:
            claims |= self._take_change(change, owners)
        if is_all or any(change.object["kind"] == _POOL for change in changes):
            self._look_at_host_pool()
        self._look_at_claims([self._claims[key] for key in claims if key in self._claims], owners)
        is_gone = any(one.type is EventType.DELETED and one.object["kind"] == objects.KIND for one in changes)
        if is_all or is_gone:
            self._look_at_orphans(self._operations.machines.owners())
        self._is_stale = False
        if True in {self._take_of_node(one) for one in of_node}:
            self._try_what_failed()

    def _list(self) -> list[Event]:
        """All objects as they are now, and those that are gone since, as changes. Raises StoreError, NodeError."""
        now = {obj["metadata"]["uid"]: obj for obj in self._store.list(ALLOCATABLE_KINDS).objects}
        here = [(objects.KIND, key, owner) for key, owner in self._operations.machines.owners().items() if owner]
        records = [held.record for held in self._operations.claims.held()]
        here += [(CLAIM, str(record.ref), record.ref.uid) for record in records if record.kind == CLAIM]
        for kind, key, uid in here:
            if uid not in now and (obj := objects.read_again(self._store, kind, key, uid)) is not None:
                now[uid] = obj  # its label is missing
        before = [*self._machines.values(), *self._claims.values()]
        gone = [obj for obj in before if obj["metadata"]["uid"] not in now]
        return [
            *(Event(EventType.DELETED, obj, "") for obj in gone),
            *(Event(EventType.MODIFIED, obj, "") for obj in now.values()),
        ]

    def _take_change(self, change: Event, owners: Mapping[str, str] | None) -> set[ClaimKey]:
        """Take an object as it is; the claims that this concerns. ``owners``: of all machines here, if all objects are
        listed: then the journal is not asked for each."""
        obj, is_gone = change.object, change.type is EventType.DELETED
        if obj["kind"] == objects.KIND:
            claims = _claims_of(self._machines.get(obj["metadata"]["uid"])) | _claims_of(obj)
            if is_gone:
                self._machine_gone(obj)
            else:
                self._machine_is(obj, owners)
            return claims
        if obj["kind"] == _POOL:
            return set()
        if is_gone:
            self._claim_gone(obj)
        else:
            self._claim_is(obj)
        return {_claim_key(obj)}

    def _look_at_host_pool(self) -> None:
        """If this node begins or ceases to publish what it has for machines, all that wait are due: one may have waited
        to be placed."""
        try:
            pool = self._store.get(_POOL, None, self._host_pool)
            is_there = node_of_host_pool(pool) == self._operations.node_name
        except NotFound:
            is_there = False
        if self._has_host_pool is not None and is_there != self._has_host_pool:
            for name in self._items:
                if self.worker.failures(name):
                    self.worker.add(name, 0.0)
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

    def _machine_is(self, obj: Object, owners: Mapping[str, str] | None) -> None:
        """Take a VirtualMachine as it is, and add it if it changed, or if a listing shows that its status is not what
        was last written: two writers that dispute a status must not wake each other with every write. ``owners``: as
        of ``_take_change``."""
        uid, key = obj["metadata"]["uid"], objects.key_of(obj)
        before = self._machines.get(uid)
        self._machines[uid], self._uids[key] = obj, uid
        if is_changed := before is None or before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
            self._forget_user(before)
            for claim in _claims_of(obj):
                self._users.setdefault(claim, set()).add(uid)
        name, node = f"vm {uid}", self._operations.node_name
        is_here = node in (views.MachineView(obj).node, objects.holder_of(obj))
        # Its machine may be here even if a user took the object from this node by hand.
        if not is_here and owners is not None:
            is_here = owners.get(key) == uid
        elif not is_here and name in self._items:
            is_here = self._operations.machines.owner(key) == uid
        if not is_here:
            self._drop(name)
            return
        item = self._item(name, partial(self._look_after, uid))
        if is_changed:
            self.worker.add(name)
        if owners is not None and item.written is not None and own_status(obj) != item.written:
            self._make_due(name, item)

    def _why_not_here(self, key: str) -> str:
        """Do as ``MachineOperations.why_not_here``; for any thread."""
        obj = self._machines.get(self._uids.get(key, ""))
        return "" if obj is None else objects.why_not_begun(obj, self._operations.node_name)

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
        """Take a DeviceClaim as it is, and add the machines that name it if it changed."""
        key = _claim_key(obj)
        before, self._claims[key] = self._claims.get(key), obj
        if before is not None and before["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]:
            return
        if before is not None and before["metadata"]["uid"] != obj["metadata"]["uid"]:
            self._drop(f"claim {before['metadata']['uid']}")
        self._add_users(key)

    def _claim_gone(self, obj: Object) -> None:
        key = _claim_key(obj)
        if (there := self._claims.get(key)) is not None and there["metadata"]["uid"] == obj["metadata"]["uid"]:
            del self._claims[key]
            self._add_users(key)
        self._drop(f"claim {obj['metadata']['uid']}")

    def _add_users(self, key: ClaimKey) -> None:
        for uid in sorted(self._users.get(key, ())):
            if f"vm {uid}" in self._items:
                self.worker.add(f"vm {uid}")

    def _look_at_claims(self, claims: Sequence[Object], owners: Mapping[str, str] | None) -> None:
        """Write on claims who uses them, and add those that this node is to unprepare. ``owners``: as of
        ``_take_change``."""
        node, here = self._operations.node_name, self._operations.claims
        if owners is not None:
            held = here.held()
        else:
            held = [one for claim in claims for one in here.held(claim["metadata"]["uid"])]
        claimed.write_users(self._store, claims, held, node)
        users = {uid for claim in claims for uid in self._users.get(_claim_key(claim), ())}
        machines = [self._machines[uid] for uid in users]
        is_owned = self._operations.machines.owner if owners is None else owners.get
        due = {f"claim {one.ref.uid}": one for one in claimed.due_unprepares(claims, machines, held, node, is_owned)}
        for claim in claims:
            name = f"claim {claim['metadata']['uid']}"
            if name not in due:
                self._drop(name)
            elif self._item(name, partial(self._unprepare, due[name])).seen != due[name].depends:
                self.worker.add(name)

    def _take_of_node(self, changed: str) -> bool:
        """Add the machines that changed on this node; whether something may have been given back, as one without an
        object may have done."""
        kind, _, key = changed.partition(" ")
        if kind == "machine":
            name = f"vm {self._uids.get(key, '')}"
            if name not in self._items:
                return True
            self.worker.add(name)
        elif changed == DEVICES:  # those that are well again, or there again
            self._keeper.device_changes += 1
        elif changed == _MISSED:
            for name in self._items:
                self.worker.add(name)
        return changed in (DEVICES, _MISSED, _ROOM)

    def _try_what_failed(self) -> None:
        """Have what failed tried again soon: it may have waited for what this node has given back."""
        now = self._clock()
        for name, item in self._items.items():
            if item.ended is not None and self.worker.failures(name):
                self.worker.add(name, max(0.0, item.ended + _ROOM_SECONDS - now))

    # Keys of the worker.

    def _item(self, name: str, do: Do) -> _WorkItem:
        item = self._items.setdefault(name, _WorkItem(do))
        item.do = do
        return item

    def _make_due(self, name: str, item: _WorkItem) -> None:
        """Have it worked on, though nothing of which the loop knows changed."""
        item.glances = _GLANCES
        self.worker.add(name, 0.0)

    def _drop(self, name: str) -> None:
        """Drop a key: it is never due again."""
        self.worker.forget(name)
        item = self._items.pop(name, None)
        if item is not None and item.runs:
            self.worker.tell(_ROOM)

    def _do(self, name: str, why: Why) -> Again | None:
        """Raises StoreError, NodeError."""
        if name == _HOST:
            return self._look_at_host()
        if (item := self._items.get(name)) is None:
            return None
        try:
            return item.do(item, why)
        except NodeError as error:
            return Again(retry_delay(error), failed=error)
        finally:
            item.ended = self._clock()

    def _look_at_host(self) -> Again | None:
        """Add those of which something on the host, which has no event, is otherwise than when they were tried."""
        waiting = [(name, item) for name, item in list(self._items.items()) if item.is_unchanged is not None]
        for name, item in waiting:
            is_unchanged = item.is_unchanged
            if is_unchanged is not None and not self.worker.is_busy(name) and not is_unchanged():
                item.is_unchanged = None
                self._make_due(name, item)
        return Again(_HOST_SECONDS) if waiting else None

    def _look_after(self, uid: str, item: _WorkItem, why: Why) -> Again | None:
        """Bring a machine nearer to its object, if anything that it depends on changed or its time came. Raises
        StoreError, NodeError."""
        obj, name = self._machines.get(uid), f"vm {uid}"
        if obj is None:
            return None
        key, failures = objects.key_of(obj), self.worker.failures(name)
        is_settled = item.runs and not failures and item.seen is not None and item.glances < _GLANCES
        if why is Why.DUE and is_settled and self._operations.machines.is_as_seen(key):
            item.glances += 1
            return Again(_GLANCE_RESYNCS * self._settings.resync)
        machine = self._operations.machines.get(key)
        runs = machine is not None and machine.runs
        if item.runs and not runs:
            self.worker.tell(_ROOM)
        item.runs = runs
        depends = (
            _depends(obj, self._claims, machine, self._operations.node_name),
            self._keeper.scaling(key),
        )
        reported = self._keeper.guest_status(machine)
        if item.seen != depends:
            self.worker.reset(name)
        elif item.reported == reported and why is Why.ADDED:
            return UNTRIED
        item.seen, item.reported, item.is_unchanged, item.written = depends, reported, None, None
        item.glances = 0
        outcome = self._keeper.keep(obj, self._named_claims)
        if outcome is None:
            return Again(self._settings.resync)
        item.is_unchanged, item.written = outcome.is_unchanged, outcome.written
        if item.is_unchanged is not None:
            self.worker.add(_HOST, _HOST_SECONDS)
        if outcome.reason:
            return Again(outcome.after, failed=True)
        return Again(self._settings.resync if outcome.after is None else outcome.after)

    def _unprepare(self, one: claimed.DueUnprepare, item: _WorkItem, why: Why) -> Again:
        """Raises StoreError, NodeError."""
        if item.seen == one.depends and why is Why.ADDED:
            return UNTRIED
        item.seen = one.depends
        if not claimed.unprepare(self._store, self._operations, one):
            return FAILED
        self.worker.tell(_ROOM)
        return Again(self._settings.resync)

    # Machines whose objects are gone.

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
        """Add the machines that have been without an object for the whole of the grace period. ``owners``: UIDs of
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
                item = self._item(f"vm {uid}", partial(self._look_after_orphan, key, uid))
                if item.ended is None:
                    self.worker.add(f"vm {uid}")

    def _look_after_orphan(self, key: str, uid: str, item: _WorkItem, why: Why) -> Again:
        """Remove a machine when the store says, asked for that very object, that it is gone (T16)."""
        machines = self._operations.machines
        was_here = machines.owner(key) == uid
        self._keeper.keep(objects.reference(key, uid), self._named_claims, is_over=True)
        if was_here and machines.owner(key) != uid:
            self._removed("machine")
            self.worker.tell(_ROOM)
        return Again(self._settings.resync)


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
    run = machine.id if machine is not None and machine.runs and machine.state is not State.CUT_OFF else ""
    seen = (
        None
        if machine is None
        else (
            machine.phase,
            run and machine.reason,
            run,
            machine.observed,
            machine.state is State.CUT_OFF,
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
