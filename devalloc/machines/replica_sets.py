"""Keep the machines of VirtualMachineReplicaSets: create those that are missing, and delete those that are too many.

A machine belongs to the set that its owner references name as its controller. Machines are called like their set, with
the lowest number that is free. So a controller that decides on an outdated listing, or a second time after a crash,
creates no machine twice: the name exists already.

A machine that ended (its restart policy is Never) or is being deleted is replaced. If machines end soon, or cannot be
created, the controller waits longer after each such failure. A machine that its node starts again is not replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from devalloc.api import meta
from devalloc.api.conditions import READY, REPLICA_FAILURE, with_condition, without_conditions
from devalloc.api.decode import decode
from devalloc.api.replica_set import VirtualMachineReplicaSet
from devalloc.api.views import MachineView, ObjectView, as_mapping, as_mappings
from devalloc.backoff import QUICK_SECONDS, RestartPause
from devalloc.store import (
    OBJECT_FAILURES,
    REFUSALS,
    AlreadyExists,
    Conflict,
    Event,
    EventType,
    NotFound,
    Object,
    Store,
    StoreError,
    Unusable,
)
from devalloc.store.watcher import Listed, Watcher, run_with_watchers
from devalloc.worker import Again, Pace, Why, Worker

log = logging.getLogger(__name__)

KINDS = KIND, MACHINE = "VirtualMachineReplicaSet", "VirtualMachine"
BURST = 100
"""Machines of one set that are created or deleted before other sets have their turn, and of one namespace that are
created at once."""
CREATIONS_PER_SECOND = 20.0
"""Machines that are created in one namespace from then on: each is a change that the controller decides on, so a set of
ten thousand must not come at once."""
PAUSE_SECONDS = 0.5
"""How long a set waits whose namespace has created as many machines as it may."""
BATCH_SECONDS = 0.05
"""After a change more are waited for."""
RESYNC_SECONDS = 60.0
RETRY_SECONDS = 2.0
SetKey = tuple[str, str]
"""Namespace and name."""
_Work = tuple[str, SetKey]
"""A set, or a machine whose set may be gone: its kind and key."""


@dataclass(frozen=True, slots=True)
class SetPlan:
    """What is to be done for one set."""

    create: Sequence[str] = ()
    """Names of machines."""
    delete: Sequence[Object] = ()
    replicas: int = 0
    """Machines that are left after the deletions, without those that ended."""
    ready: int = 0
    """Machines that are ready, before the deletions."""


@dataclass(slots=True)
class _Paces:
    """Of one set: a refused deletion does not keep it from creating machines, nor the other way round."""

    create: RestartPause = field(default_factory=RestartPause)
    delete: RestartPause = field(default_factory=RestartPause)
    refused: set[str] = field(default_factory=set)
    """UIDs of machines that could not be deleted; until ``delete.due``."""
    seen: set[str] = field(default_factory=set)
    """UIDs of machines that ended and were counted."""

    def next_due(self) -> float:
        """When to look at the set again; 0: not because of the time."""
        return min((pace.due for pace in (self.create, self.delete) if pace.due > 0.0), default=0.0)


@dataclass(slots=True)
class _CreationRates:
    """How many machines each namespace may create: BURST at once, and CREATIONS_PER_SECOND after that."""

    used: dict[str, tuple[float, float]] = field(default_factory=dict)
    """namespace -> how many of the burst are used, and when that was; without those that have all of it again"""

    def left(self, namespace: str, now: float) -> int:
        return int(BURST - self._used(namespace, now))

    def charge(self, namespace: str, machines: int, now: float) -> None:
        self.used[namespace] = self._used(namespace, now) + machines, now
        self.used = {name: one for name, one in self.used.items() if self._used(name, now) > 0.0}

    def _used(self, namespace: str, now: float) -> float:
        used, since = self.used.get(namespace, (0.0, now))
        return max(0.0, used - (now - since) * CREATIONS_PER_SECOND)


def owner_of(machine: Object) -> tuple[str, str] | None:
    """Name and UID of the set that a machine belongs to; None if it belongs to none."""
    for reference in as_mappings(machine["metadata"].get("ownerReferences")):
        is_set = (reference.get("kind"), reference.get("apiVersion")) == (KIND, meta.DEVALLOC)
        if is_set and reference.get("controller") is True:
            return str(reference.get("name")), str(reference.get("uid"))
    return None


def plan(
    name: str, wanted: int, machines: Iterable[Object], taken: Callable[[str], bool], *, most: int = BURST
) -> SetPlan:
    """What brings a set nearer to ``wanted`` machines. ``machines``: its own; ``taken``: whether a machine has a name;
    ``most``: how many may be created.

    Surplus machines go in this order: those that do not run before those that do, of these those that are not ready
    before those that are, and of these the newest first. A machine that ended goes when another one takes its place, or
    when there are enough without it.
    """
    there = [machine for machine in machines if not ObjectView(machine).is_deleting]
    ended = [machine for machine in there if MachineView(machine).has_ended]
    over = {machine["metadata"]["uid"] for machine in ended}
    live = sorted(
        (m for m in there if m["metadata"]["uid"] not in over),
        key=lambda m: (not _runs(m), not is_ready(m), _age_key(m)),
    )
    ready = sum(map(is_ready, live))
    surplus = live[wanted:][::-1] if len(live) > wanted else []
    missing = min(wanted - len(live), most)
    create: list[str] = []
    number = 0
    while len(create) < missing:
        number += 1
        if not taken(candidate := f"{name}-{number}"):
            create.append(candidate)
    replaced = ended if len(live) >= wanted else ended[: len(create)]
    delete = [*surplus, *replaced][:BURST]
    return SetPlan(tuple(create), tuple(delete), len(live) - min(len(surplus), BURST), ready)


def is_ready(machine: Object) -> bool:
    """Whether it runs and, if its guest reports, whether that says so."""
    reports = MachineView(machine).spec.get("guestReports") is True
    return _runs(machine) and (not reports or MachineView(machine).condition(READY).get("status") == "True")


def _runs(machine: Object) -> bool:
    return MachineView(machine).status.get("phase") == "Running"


def _age_key(machine: Object) -> tuple[str, int, str]:
    """The oldest first; of those with one time the one with the lower number."""
    metadata = machine["metadata"]
    return str(metadata.get("creationTimestamp", "")), len(metadata["name"]), metadata["name"]


def machine_manifest(replica_set: Object, name: str) -> Object:
    """A machine of the set."""
    metadata, template = replica_set["metadata"], as_mapping(replica_set["spec"]["template"])
    more = as_mapping(template.get("metadata"))
    owner = {"apiVersion": meta.DEVALLOC, "kind": KIND, "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": meta.DEVALLOC,
        "kind": MACHINE,
        "metadata": {
            "name": name,
            "namespace": ObjectView(replica_set).key[0],
            "labels": {**as_mapping(more.get("labels")), meta.REPLICA_SET: metadata["name"]},
            "annotations": dict(as_mapping(more.get("annotations"))),
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": template["spec"],
    }


def _last_end(before: Mapping[str, Any], machines: Iterable[Object]) -> Mapping[str, Any]:
    """The latest end of a machine of a set, as its status says it or as one of these machines does; empty if no machine
    ended without a request."""
    ends = [as_mapping(before.get("lastEnd"))]
    for machine in machines:
        if end := as_mapping(MachineView(machine).status.get("lastEnd")):
            ends.append({"machine": machine["metadata"]["name"], **end})
    return max(ends, key=lambda end: (str(end.get("time") or ""), len(end)))  # how it ended may be added later


class ReplicaSets:
    """``run`` in one thread of the process that leads."""

    def __init__(
        self,
        store: Store,
        *,
        collects: bool,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``collects``: delete machines whose set is gone, as a cluster's garbage collector does by itself."""
        self._store, self._collects, self._clock, self._now = store, collects, clock, now
        self._sets: dict[SetKey, Object] = {}
        self._machines: dict[SetKey, Object] = {}
        self._owned: dict[str, set[SetKey]] = {}
        """Machines by the UID of the set that they belong to."""
        self._paces: dict[str, _Paces] = {}
        """By the UID of the set."""
        self._rates = _CreationRates()
        self.worker: Worker[_Work, Listed | Event] = Worker(
            "cannot keep the machines of replica sets",
            self._do,
            self._take,
            pace=Pace(RETRY_SECONDS, RESYNC_SECONDS, batch=BATCH_SECONDS, expected=(StoreError,), fatal=(Unusable,)),
            clock=clock,
        )

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set. Raises Unusable; all else is logged and tried again."""
        what = "cannot watch replica sets"
        watcher = Watcher(self._store, KINDS, self.worker.tell, what, lists=False, relist=RESYNC_SECONDS)
        run_with_watchers(self.worker.run, [watcher], stop)

    def _take(self, changes: Sequence[Listed | Event]) -> None:
        """Raises StoreError."""
        if any(isinstance(change, Listed) for change in changes):
            # Read here and now: a listing from before machines were created or deleted here would undo that, and have
            # others deleted.
            self._take_all(self._store.list(KINDS).objects)
            return
        for change in changes:
            if isinstance(change, Event):
                self._take_one(change)

    def _take_all(self, objects: Sequence[Object]) -> None:
        """Take all objects as they are now."""
        self._sets = {ObjectView(obj).key: obj for obj in objects if obj["kind"] == KIND}
        self._machines, self._owned = {}, {}
        for obj in objects:
            if obj["kind"] == MACHINE:
                self._put(obj)
        uids = {obj["metadata"]["uid"] for obj in self._sets.values()}
        self._paces = {uid: pace for uid, pace in self._paces.items() if uid in uids}
        self._add_sets(self._sets)
        self._add_orphans(key for key, obj in self._machines.items() if owner_of(obj) is not None)

    def _take_one(self, event: Event) -> None:
        """Take a set or a machine that changed."""
        obj, key, is_gone = event.object, ObjectView(event.object).key, event.type is EventType.DELETED
        if obj["kind"] == KIND:
            self._add_sets([key])
            if is_gone:
                self._sets.pop(key, None)
                self._add_orphans(self._owned.get(obj["metadata"]["uid"], set()))
            else:
                self._sets[key] = obj
            return
        before = self._remove(key)
        if not is_gone:
            self._put(obj)
            self._add_orphans([key] if owner_of(obj) is not None else [])
        owners = (owner_of(each) for each in (before, obj) if each is not None)
        self._add_sets((key[0], owner[0]) for owner in owners if owner is not None)

    def _add_sets(self, keys: Iterable[SetKey]) -> None:
        for key in sorted(keys):
            self.worker.add((KIND, key))

    def _add_orphans(self, keys: Iterable[SetKey]) -> None:
        """Have machines deleted whose set may be gone."""
        for key in sorted(keys) if self._collects else ():
            self.worker.add((MACHINE, key))

    def _put(self, machine: Object) -> None:
        self._machines[ObjectView(machine).key] = machine
        if (owner := owner_of(machine)) is not None:
            self._owned.setdefault(owner[1], set()).add(ObjectView(machine).key)

    def _remove(self, key: SetKey) -> Object | None:
        machine = self._machines.pop(key, None)
        owner = None if machine is None else owner_of(machine)
        if owner is not None and (keys := self._owned.get(owner[1])) is not None:
            keys.discard(key)
            if not keys:
                del self._owned[owner[1]]
        return machine

    def _do(self, work: _Work, why: Why) -> Again | None:
        """Bring a set nearer to what it is to be, or delete a machine whose set is gone. Raises StoreError."""
        kind, key = work
        if kind == MACHINE:
            self._collect(key)
            return None
        if (obj := self._sets.get(key)) is None:
            return None
        if self._keep(obj):
            return Again(0.0)
        paces = self._paces.get(obj["metadata"]["uid"])
        due = 0.0 if paces is None else paces.next_due()
        return Again(max(0.0, due - self._clock())) if due else None

    def _keep(self, obj: Object) -> bool:
        """Whether more is to be done at once. Raises StoreError."""
        decoded, uid, key = decode(obj), obj["metadata"]["uid"], ObjectView(obj).key
        if ObjectView(obj).is_deleting:
            self._paces.pop(uid, None)
            return False
        if not isinstance(decoded.object, VirtualMachineReplicaSet):
            self._paces.pop(uid, None)
            problem = next((str(problem) for problem in decoded.problems if problem.is_error), "it is unreadable")
            self._write_status(obj, SetPlan(), problem)
            return False
        paces = self._paces.setdefault(uid, _Paces())
        machines = [self._machines[each] for each in sorted(self._owned.get(uid, ())) if each[0] == key[0]]
        now = self._clock()
        self._count_ended(paces, [m for m in machines if MachineView(m).has_ended], now)
        most = self._rates.left(key[0], now) if paces.create.may_act(now) else 0
        wanted = decoded.object.spec.replicas
        todo = plan(key[1], wanted, machines, lambda name: (key[0], name) in self._machines, most=most)
        deleted = self._delete_all(key, todo.delete, paces, now)
        left = [m for m in todo.delete if m["metadata"]["uid"] in paces.refused and not MachineView(m).has_ended]
        created = 0
        for name in todo.create:
            if not self._create(obj, name, paces.create):
                break
            created += 1
        self._rates.charge(key[0], created, now)
        live = todo.replicas + len(left) + created
        if live >= wanted:
            paces.create.problem = ""
        state = SetPlan(replicas=live, ready=min(todo.ready, live))
        self._write_status(obj, state, paces.create.problem, paces.delete.problem, machines)
        if live == wanted and not paces.create.due and not created:
            self._recover(paces.create, machines)
        if live < wanted and not paces.create.due and self._rates.left(key[0], now) < 1:
            paces.create.due = now + PAUSE_SECONDS
            return deleted > 0
        return live != wanted and (created > 0 or deleted > 0)

    def _count_ended(self, paces: _Paces, ended: Sequence[Object], now: float) -> None:
        """Wait longer if machines end soon after they were created."""
        uids = {machine["metadata"]["uid"] for machine in ended}
        new = [machine for machine in ended if machine["metadata"]["uid"] not in paces.seen]
        paces.seen = uids
        if not new:
            return
        paces.create.ended(now, min(map(self._age, new)))

    def _recover(self, pace: RestartPause, machines: Sequence[Object]) -> None:
        """Machines that last end the back-off."""
        if pace.failures and all(is_ready(m) and self._age(m) >= QUICK_SECONDS for m in machines):
            pace.failures = 0

    def _age(self, machine: Object) -> float:
        """Seconds since a machine was created."""
        try:
            created = meta.parse_time(str(machine["metadata"].get("creationTimestamp")))
        except ValueError:
            return QUICK_SECONDS
        return (self._now() - created).total_seconds()

    def _create(self, obj: Object, name: str, pace: RestartPause) -> bool:
        """Whether a machine of that name is there now. Raises StoreError if no store answers."""
        key = (ObjectView(obj).key[0], name)
        try:
            self._put(self._store.create(machine_manifest(obj, name)))
        except AlreadyExists:
            try:  # a listing was outdated
                self._put(self._store.get(MACHINE, *key))
            except NotFound:
                return False
            self._add_sets([ObjectView(obj).key])
            return False
        except OBJECT_FAILURES as error:
            pace.failed(self._clock(), f"machine {key[0]}/{name} cannot be created: {error}")
            log.warning("replica set %s/%s: %s", *ObjectView(obj).key, pace.problem)
            return False
        pace.problem = ""
        return True

    def _delete_all(self, key: SetKey, machines: Sequence[Object], paces: _Paces, now: float) -> int:
        """How many were deleted. Those that the store refuses to delete wait, and no others. Raises StoreError if no
        store answers."""
        if paces.delete.may_act(now):
            paces.refused.clear()
        deleted, problem = 0, ""
        for machine in machines:
            if (uid := machine["metadata"]["uid"]) in paces.refused:
                continue
            try:
                deleted += self._delete(machine)
            except OBJECT_FAILURES as error:
                paces.refused.add(uid)
                problem = f"machine {'/'.join(ObjectView(machine).key)} cannot be deleted: {error}"
                if not isinstance(error, REFUSALS):  # the next ones may take as long: other sets have their turn
                    self._add_sets([key])
                    break
        if problem:
            paces.delete.failed(now, problem)
            log.warning("replica set %s/%s: %s", *key, problem)
        elif not any(machine["metadata"]["uid"] in paces.refused for machine in machines):
            paces.delete = RestartPause()
        return deleted

    def _delete(self, machine: Object) -> bool:
        """Raises StoreError."""
        key = ObjectView(machine).key
        try:
            version = machine["metadata"]["resourceVersion"]
            last = self._store.delete(MACHINE, *key, uid=machine["metadata"]["uid"], resource_version=version)
        except (NotFound, Conflict):
            return False  # it is gone, or not as it was: an event says how it is, and it is decided again
        if last["metadata"].get("finalizers"):
            self._put(last)
        else:
            self._remove(key)
        return True

    def _collect(self, key: SetKey) -> None:
        """Delete a machine whose set is gone. Raises StoreError."""
        machine = self._machines.get(key)
        owner = None if machine is None else owner_of(machine)
        if machine is None or owner is None or ObjectView(machine).is_deleting:
            return
        try:
            if self._store.get(KIND, key[0], owner[0])["metadata"]["uid"] == owner[1]:
                return
        except NotFound:
            pass
        self._delete(machine)

    def _write_status(
        self, obj: Object, now: SetPlan, not_created: str, not_deleted: str = "", machines: Iterable[Object] = ()
    ) -> None:
        """Write how the set stands, if that changed. ``not_created``, ``not_deleted``: why not, if so. ``machines``:
        its own, also those that go. Raises StoreError."""
        metadata, before = obj["metadata"], as_mapping(obj.get("status"))
        problem = ("FailedCreate", not_created) if not_created else ("FailedDelete", not_deleted)
        status: dict[str, Any] = {
            "replicas": now.replicas,
            "readyReplicas": now.ready,
            "selector": f"{meta.REPLICA_SET}={metadata['name']}",
            "observedGeneration": metadata.get("generation", 1),
            "conditions": self._conditions(obj, now, problem),
        }
        if end := _last_end(before, machines):
            status["lastEnd"] = end
        if status == before:
            return
        try:
            self._sets[ObjectView(obj).key] = self._store.replace_status({**obj, "status": status})
        except NotFound:
            self._sets.pop(ObjectView(obj).key, None)
        except Conflict:
            self._add_sets([ObjectView(obj).key])
            try:
                self._sets[ObjectView(obj).key] = self._store.get(KIND, *ObjectView(obj).key)
            except NotFound:
                self._sets.pop(ObjectView(obj).key, None)

    def _conditions(self, obj: Object, now: SetPlan, problem: tuple[str, str]) -> list[dict[str, Any]]:
        """Whether all machines are there and ready, and why they cannot be, if so: ``problem``, a reason and a message.
        They change with the numbers of the status, so they cost no request of their own."""
        reason, message = problem[0], problem[1][:4096]
        before, (namespace, name) = as_mapping(obj.get("status")).get("conditions"), ObjectView(obj).key
        wanted = as_mapping(obj.get("spec")).get("replicas", 1)
        text = f"{now.ready} of {wanted if isinstance(wanted, int) else '?'} machines are ready"
        if now.replicas == now.ready == wanted and not message:
            ready = ("True", "MachinesReady", text)
        elif message:
            ready = ("False", reason, f"{text}; {message}")
        elif now.replicas > wanted:
            ready = ("False", "MachinesLeaving", f"{text}, and {now.replicas - wanted} more are to go")
        else:
            shows = f"`devalloc explain vmrs/{name} -n {namespace}` shows why"
            ready = ("False", "MachinesNotReady", f"{text}: {shows}")
        at, generation = self._now().strftime("%Y-%m-%dT%H:%M:%SZ"), obj["metadata"].get("generation", 1)
        conditions = with_condition(before, READY, ready, at, generation)
        if not message:
            return without_conditions(conditions, [REPLICA_FAILURE])
        return with_condition(conditions, REPLICA_FAILURE, ("True", reason, message), at, generation)
