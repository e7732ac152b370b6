"""The loop that answers DeviceClaims: read everything, solve, write the answers, wait for a change.

``loop`` describes the commit; ``preconditions`` lists what breaks its fence. A claim that itself changed or went
meanwhile costs only its own group. What a round could not write the next one does, because whatever stood in the way
is a change that wakes up the loop.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from devalloc.api.cordon import is_node, unschedulable_nodes
from devalloc.api.fencing import fenced_nodes
from devalloc.api.findings import ADMIN, Finding, Reader, finding_of, message_of
from devalloc.api.meta import NODE_LABEL
from devalloc.api.reasons import STILL_SEARCHING
from devalloc.api.views import ClaimView, ObjectView, device_claims_in
from devalloc.controller.reconcile.availability import PoolCounter
from devalloc.controller.reconcile.class_conditions import class_units
from devalloc.controller.reconcile.decision import WriteUnit, decide_claims
from devalloc.controller.reconcile.fenced import take_from_fenced
from devalloc.controller.reconcile.loop import (
    MAX_REPAIRS,
    AllocatorSettings,
    ReconcileLoop,
    labelled_units,
    missing_labels,
)
from devalloc.controller.reconcile.postponed import CLAIM
from devalloc.controller.reconcile.preconditions import (
    EXCLUSIVE_SPECS,
    EXCLUSIVE_STATUSES,
    allocates_from,
    fuller_pools,
)
from devalloc.controller.reconcile.requester import AnsweredRound, RoundRequests
from devalloc.controller.reconcile.resting import RestingObjects, RoundResult
from devalloc.controller.reconcile.round_solver import DEVICE_CLAIMS, REFRESH_PAUSE, RoundSolver
from devalloc.controller.reconcile.settled import SettledClaims
from devalloc.controller.reconcile.snapshot import Memo, Snapshot, order_of_key
from devalloc.controller.reconcile.stored_claims import effective_documents, ignored_changes, ignored_messages
from devalloc.controller.reconcile.surroundings import Surroundings
from devalloc.controller.reconcile.write_backoff import WriteBackoff, rejection_messages
from devalloc.store import Change, Event, EventType, Fence, Key, Object, Store
from devalloc.store.metadata_rules import with_annotations, with_status
from devalloc_solver.deadline import end_time, seconds_left
from devalloc_solver.pipeline import admission, quota

log = logging.getLogger(__name__)
_LOGGED_PROBLEMS = 10
"""How many problems of objects a round logs."""

_NO_NODE = "DevicePool {1}: spec.nodeName: there is no Node {0}; its devices are allocated, but no plugin prepares them"


class SolveManifests(Protocol):
    """What answers the claims among documents: the dict of ``devalloc_solver.solve_manifests``."""

    def __call__(self, documents: Iterable[Object], *, placement: str, deadline: float | None) -> dict[str, Any]: ...


DEFAULT_SETTINGS = AllocatorSettings()


@dataclass(frozen=True)
class DeviceClaimRound:
    """What one round found and did."""

    resource_version: str
    """The state of the store that was read: the next round is due when anything changes after it."""
    claims: int
    allocated: int
    """Claims that hold devices now."""
    waiting: int
    """Claims that want devices and have none."""
    granted: Sequence[Key]
    """Claims that got devices in this round, and machines that were placed."""
    stale: Sequence[Key]
    """Claims whose answer was dropped, because something changed meanwhile."""
    pools: int
    devices: int
    available: int
    """Devices that could still be allocated. Numbers of pools and devices are as of the last count."""
    is_counted: bool
    """Whether there are as many pools as were counted then: they may have come since."""
    problems: Sequence[str]
    """Objects that the solver left out, and why."""
    optimal: bool
    seconds: float

    @property
    def in_words(self) -> str:
        """How much there is, without what was not counted."""
        claims = f"claims {self.claims} ({self.allocated} allocated, {self.waiting} waiting)"
        if not self.is_counted:
            return claims
        return f"pools {self.pools}, devices {self.devices} ({self.available} available), {claims}"


@dataclass(frozen=True, slots=True)
class AllocatorListener:
    """What an allocator calls in its loop's thread."""

    progress: Callable[[DeviceClaimRound], None] = lambda done: None
    """After each round."""
    wrote: Callable[[Object, Object], None] = lambda before, after: None
    """Of each object that an answer was written on: what it was before and is now, or was to say if it cannot be
    written."""
    heard: Callable[[Object, Object], None] = lambda before, after: None
    """The same of each machine and migration that others have changed."""


class DeviceClaimAllocator:
    """Answers the claims of a store, round by round."""

    def __init__(
        self,
        store: Store,
        *,
        settings: AllocatorSettings = DEFAULT_SETTINGS,
        kinds: Iterable[str] | None = None,
        solve: SolveManifests | None = None,
        listener: AllocatorListener | None = None,
        may_write: Callable[[], bool] = lambda: True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``kinds``: what is read to decide; None for all. ``solve`` None: a Fleet that is kept warm. ``may_write``:
        whether this process leads, for writes beside the fenced commit."""
        self._store = store
        self._settings = settings
        self.loop = ReconcileLoop("could not answer the claims", store, settings, kinds, clock)
        self._of_kind = {kind: each for each in settings.requesters for kind in each.kinds}
        self._asking = frozenset({CLAIM, *self._of_kind})
        self._solver: RoundSolver | None = None
        self._resting: RestingObjects | None = None
        if solve is None:
            solve = self._solver = RoundSolver(DEVICE_CLAIMS, self.loop.searches, clock, settings.cel_check)
        self._solve: SolveManifests = solve
        self._listener = listener or AllocatorListener()
        self._may_write = may_write
        self._now = now
        self._clock = clock
        self._fence_backoff = WriteBackoff(clock)
        self._counted = -math.inf
        """When it was counted last what is available, by ``clock``."""
        self._pools_then = 0
        """How many there were, those too that cannot be read, when they were counted."""
        self._numbers = 0, 0, 0
        """Of pools, devices and available devices then."""
        self._is_behind = False
        """It is to be counted again."""
        self.has_labelled = False
        """Each object of a node has that node's label, as far as the store accepts it: nodes can rely on it."""
        self._own_writes: set[str] = set()
        self._memo = Memo()
        self._counter = PoolCounter(settings.requesters)
        if self._solver is not None:
            settled = SettledClaims((self._solver, self._counter, self._memo))
            self._resting = RestingObjects(self._solver, self._asking, settled)
        self._last: DeviceClaimRound | None = None
        """The last round, if one more on the same objects would come to the same."""
        self._seen: Mapping[Key, Object] = {}
        """All objects as of the last round, with what it wrote."""
        self._surroundings = Surroundings(self._asking)
        self._changed: set[Key] = set()
        """Objects that may be others than in the last round that came to its end."""
        self._problems: frozenset[str] = frozenset()
        self._left: frozenset[Key] = frozenset()
        """Refusals that the last round left to this one."""
        self._unsaid: list[WriteUnit] = []
        """What the last round wanted to say on objects, and they could not be written."""

    def run(self, stop: threading.Event) -> None:
        """Round after round until ``stop`` is set. Raises Unusable; logs all other errors and tries again."""
        version = ""

        def act() -> None:
            nonlocal version
            done = self.round()
            version = done.resource_version
            self._listener.progress(done)

        self.loop.run(stop, act, lambda: self._wait(version, stop))

    def round(self) -> DeviceClaimRound:
        """Answer every claim there is, once."""
        last, self._last = self._last, None  # after an error, what has changed is not new to the next round
        is_due = self._resting is not None and self._resting.is_due
        everything, version, is_new = self.loop.reading.look()
        objects = self._active(everything)
        is_due = is_due or (self._resting is not None and self._resting.has_woken)
        around = self._surroundings
        of_nodes = [*objects.values(), *around.nodes_and_pools] if around.has_fences else []
        if take_from_fenced(self._store, of_nodes, self._fence_backoff, self._may_write):
            everything, version, _ = self.loop.reading.look()
            objects = self._active(everything)
            is_new = True
        if last is not None and not (is_new or is_due or self.loop.is_unfinished or self.loop.refusals.has_entries()):
            self._last = last
            return replace(last, seconds=0.0)
        self._memo.turn()
        self._hear(objects)
        documents, requests = self._input(objects)
        if (with_woken := self._wake(requests, objects, everything)) is not None:
            objects = with_woken
            documents, requests = self._input(objects)
        self.loop.is_again, self._unsaid = False, []
        if self._solver is not None:
            self._solver.note_recorded(obj for key, obj in objects.items() if key.kind == CLAIM)
        kept_out = rejection_messages(self.loop.refusals.look(documents), requests)
        answer = admission.solve_admitted(
            requests.documents,
            partial(self._answer, end_time(self._settings.deadline, time.monotonic())),
            self._settings.admin_namespaces,
            kept_out,
        )
        answer = {
            **answer,
            "claims": [*answer["claims"], *requests.withheld()],
            "problems": [*answer["problems"], *(problem.to_dict() for problem in requests.problems)],
        }
        as_solved = {(one["namespace"], one["name"]): one for one in answer["claims"]}
        answer["claims"] = [self._read_in(one["namespace"], requests.in_words(one)) for one in answer["claims"]]
        now = self._now().isoformat(timespec="seconds").replace("+00:00", "Z")
        claims_units = decide_claims(documents, answer, now, self._memo, form=self._settings.form)
        in_conditions = self._settings.form.in_conditions
        done_on = AnsweredRound(answer, [*objects.values()], documents, around, now, self._say, in_conditions)
        units = self._without_transient(requests.decide(claims_units, done_on))
        units += [WriteUnit((change,), granted=False) for change in ignored_changes(around.foreign)]
        unlabelled: set[Key] = set()
        if self._settings.labels_nodes:
            units = labelled_units(everything, units)
            missing = missing_labels(objects.items(), {key for unit in units for key in unit.keys}, self._memo)
            repairs = [unit for unit in missing if not self.loop.refusals.is_backed_off(unit)]
            self.loop.is_again |= len(repairs) > MAX_REPAIRS
            units += repairs[:MAX_REPAIRS]
            unlabelled = {key for unit in missing for key in unit.keys}
        written = self._commit(units, version, everything)
        for key, obj in written.items():
            self._listener.wrote(everything[key], obj)
        for change in (change for unit in self._unsaid for change in unit.changes):
            old = everything[change.key]
            self._listener.wrote(old, with_annotations(with_status(old, change.status), change.annotations))
        freed = {key for unit in units if unit.released or unit.follows_up for key in unit.keys}
        self._own_writes = {obj["metadata"]["resourceVersion"] for key, obj in written.items() if key not in freed}
        self._seen = {**everything, **written}
        self._changed = set()
        resting = settled = 0
        if self._resting is not None:
            resting, settled = self._resting.claims, len(self._resting.settled)
            gives = any(unit.granted or unit.grows for unit in units)
            undone = frozenset(key for unit in units for key in unit.keys - written.keys())
            is_proven = bool(answer["optimal"]) and not answer.get("again")
            result = RoundResult(as_solved, written, undone, gives, is_proven)
            self._resting.settle(objects, requests, result)
            self.loop.is_again |= self._resting.is_behind
        seen, replaced = {**objects, **written}, {id(everything[key]): obj for key, obj in written.items()}
        if self._settings.labels_nodes and not self.has_labelled:
            self.has_labelled = not missing_labels(seen.items(), self.loop.refusals.keys(), self._memo)
        state = [replaced.get(id(doc), doc) for doc in documents]
        pools = around.pools
        self._is_behind = self._clock() - self._counted < self._settings.availability
        if not self._is_behind:
            self._publish_availability(state)
            self._pools_then = pools
        self._publish_counts(state)
        self._publish_classes(documents, now)
        claims = device_claims_in(state)
        without = [claim for claim in claims if not ClaimView(claim).entries]
        waiting = [claim for claim in without if not ObjectView(claim).is_deleting]
        strangers = (_NO_NODE.format(*each) for each in around.unknown_nodes.items())
        problems = (*map(_problem_message, answer["problems"]), *ignored_messages(around.foreign), *strangers)
        self._report(problems)
        if self._resting is not None:
            subjects = {_subject_key(problem) for problem in answer["problems"]}
            self._settle_held(self._resting, objects, result, subjects | unlabelled | self.loop.refusals.keys())
        done = DeviceClaimRound(
            resource_version=version,
            claims=len(claims) + resting + settled,
            allocated=len(claims) - len(without) + settled,
            waiting=len(waiting) + resting,
            granted=[key for unit in units if unit.granted for key in unit.keys & written.keys()],
            stale=[key for unit in units for key in unit.keys - written.keys()],
            pools=self._numbers[0],
            devices=self._numbers[1],
            available=self._numbers[2],
            is_counted=pools == self._pools_then,
            problems=problems,
            optimal=answer["optimal"],
            seconds=answer["seconds"],
        )
        is_searching = any(one.get(STILL_SEARCHING) for one in answer["claims"])
        self.loop.is_again |= bool(answer.get("again"))
        has_unsettled = self._solver is not None and self._solver.has_unsettled
        is_final = not (is_searching or has_unsettled or answer.get(STILL_SEARCHING, not answer["optimal"]))
        if not units and is_final and not self._is_behind and not (waiting and around.has_quotas):
            self._last = done
        return done

    def _hear(self, objects: Mapping[Key, Object]) -> None:
        """Tell the listener what nodes say of machines and migrations."""
        for key, obj in objects.items():
            if key.kind != CLAIM and (old := self._seen.get(key)) is not None and old is not obj:
                self._listener.heard(old, obj)

    def _active(self, objects: Mapping[Key, Object]) -> Mapping[Key, Object]:
        """What asks for devices and a round looks at: without what waits and cannot be helped by what has changed."""
        self._changed |= self.loop.reading.take_changes()
        self._surroundings.update(objects, self._changed)
        if self._resting is not None:
            return self._resting.look(objects, self._seen, self._changed)
        keys = (key for key in objects if key.kind in self._asking)
        return {key: objects[key] for key in sorted(keys, key=order_of_key)}

    def _input(self, objects: Mapping[Key, Object]) -> tuple[list[Object], RoundRequests]:
        documents = [*objects.values(), *self._surroundings.documents]
        others_wait = self._resting is not None and self._resting.has_machines
        effective = effective_documents(documents, self._memo)
        return documents, RoundRequests(self._settings.requesters, effective, self._memo, others_wait=others_wait)

    def _wake(
        self,
        requests: RoundRequests,
        objects: Mapping[Key, Object],
        everything: Mapping[Key, Object],
    ) -> Mapping[Key, Object] | None:
        """The objects with those that wait and that a change could help; None if there are none."""
        if self._resting is None or self._solver is None:
            return None
        documents = [doc for doc in requests.documents if not admission.is_admission_object(doc)]
        self._solver.update(self._solver.split(documents)[0], self._settings.placement)
        return self._resting.wake(objects, everything)

    def _settle_held(
        self, resting: RestingObjects, objects: Mapping[Key, Object], done: RoundResult, apart_from: Collection[Key]
    ) -> None:
        """Let claims rest that hold devices if nothing but themselves bears on what is to be said of them; all rest no
        more if the solver has more to say of one that does. Not those ``apart_from``."""
        assert self._solver is not None
        if self._solver.has_unsettled:
            resting.wake_held()
            self.loop.is_again = True
            return
        matters = self._surroundings.has_quotas or self._surroundings.has_fences
        if (
            self._solver.can_settle
            and not (matters or self.loop.is_unfinished)
            and all(key.kind == CLAIM for key in objects)
        ):
            resting.settle_held(objects, done, apart_from)

    def _say(self, namespace: str, finding: Finding) -> str:
        """The sentence of a finding as it is read in a namespace."""
        return message_of(finding, Reader(namespace) if self._settings.hides_names else ADMIN)

    def _read_in(self, namespace: str, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer to a claim, with its sentence as it is read in its namespace."""
        return {**answer, "message": self._say(namespace, finding_of(answer))} if answer["message"] else answer

    def _without_transient(self, units: Sequence[WriteUnit]) -> list[WriteUnit]:
        """Drop refusals that only say another claim of this batch won. The next round, which follows at once, writes
        the lasting reason. It also writes what this round left out, whatever it gives, and is followed by another."""
        transient = {key for unit in units if unit.transient for key in unit.keys}
        gives = any(unit.granted or unit.grows for unit in units)
        self._left = frozenset(transient - self._left) if gives else frozenset()
        self.loop.is_again = gives and bool(transient)
        return [unit for unit in units if not (unit.transient and unit.keys & self._left)]

    def _answer(self, ends: float | None, documents: Sequence[Object]) -> dict[str, Any]:
        return self._solve(documents, placement=self._settings.placement, deadline=seconds_left(ends))

    def _commit(
        self, units: Sequence[WriteUnit], version: str, decided_on: Mapping[Key, Object]
    ) -> Mapping[Key, Object]:
        """Write what was decided on the objects of a version.

        A node that only says how its devices are breaks the fence as well, and so does a machine that is permitted
        more or less; while nothing changed that matters the decision holds, or what is left of it.
        """

        def standing(planned: Sequence[WriteUnit], now: Snapshot) -> Sequence[WriteUnit] | None:
            if (pools := fuller_pools(decided_on, now.objects, self._settings.requesters)) is None:
                return None
            return [unit for unit in planned if not allocates_from(unit, pools)]

        holders = EXCLUSIVE_STATUSES.union(*(each.holders for each in self._settings.requesters))
        report = self.loop.commit(units, Fence(version, EXCLUSIVE_SPECS, holders), standing)
        self._unsaid += [unit for unit, _ in report.rejected if not (unit.granted or unit.grows or unit.released)]
        return report.written

    def _publish_availability(self, state: Sequence[Object]) -> None:
        """Write availableDevices if it differs."""
        pools = devices = total = 0
        units = []
        for doc, size, available in self._counter.count(state):
            pools, devices, total = pools + 1, devices + size, total + available
            status = doc.get("status", {})
            if status.get("availableDevices") != available:
                change = Change.of(doc, {**status, "availableDevices": available})
                units.append(WriteUnit((change,), granted=False))
        self._publish(units)
        self._counted, self._numbers = self._clock(), (pools, devices, total)

    def _publish_counts(self, state: Sequence[Object]) -> None:
        """Write how much of quotas is used if that differs."""
        units = []
        has_quotas = self._surroundings.has_quotas
        for doc, status in quota.quota_statuses_to_write(effective_documents(state)) if has_quotas else ():
            units.append(WriteUnit((Change.of(doc, status),), granted=False))
        done = self._publish(units)
        # any write of others meanwhile is a reason to look again
        unread = {key for unit in units for key in unit.keys} - done.keys()
        if done or unread:
            self._seen = {key: obj for key, obj in {**self._seen, **done}.items() if key not in unread}

    def _publish_classes(self, documents: Iterable[Object], now: str) -> None:
        """Write whether classes are valid if that differs. Not in an embedded store: 0.1.0 would not read the class."""
        if not self._settings.form.in_conditions:
            return
        self._seen = {**self._seen, **self._publish(class_units(documents, self._memo, now))}

    def _publish(self, units: Sequence[WriteUnit]) -> Mapping[Key, Object]:
        """Write what no decision depends on, without taking it for news; return the objects as written."""
        done = self.loop.commit(units, fence=None).written
        self._own_writes |= {obj["metadata"]["resourceVersion"] for obj in done.values()}
        return done

    def _wait(self, version: str, stop: threading.Event) -> None:
        """Wait until others changed something after ``version``, the resync is due, or ``stop`` is set; on the way
        availableDevices are written when that is due."""
        until = self._clock() + self._settings.resync
        if self._solver is not None and self._solver.waiting.has_outdated:
            until = self._clock() + REFRESH_PAUSE
        if self._is_behind:
            due = min(until, self._counted + self._settings.availability)
            if self.loop.wait_for_change(version, due, stop, self._is_news) or stop.is_set():
                return
            objects = self.loop.reading.look().objects
            self._changed |= self.loop.reading.take_changes()
            self._surroundings.update(objects, self._changed)
            asking = {key: obj for key, obj in objects.items() if key.kind in self._asking}
            if self._resting is not None:
                asking = self._resting.without_resting(asking)
                self._counter.unsettle(self._resting.settled.replaced(objects))
            self._publish_availability([*asking.values(), *self._surroundings.documents])
            self._is_behind = False
        self.loop.wait_for_change(version, until, stop, self._is_news)

    def _is_news(self, event: Event) -> bool:
        """Whether others wrote something that matters."""
        return event.object["metadata"]["resourceVersion"] not in self._own_writes and self._matters(event)

    def _matters(self, event: Event) -> bool:
        """Much of namespaces and quotas that changes is not read here, and of allocated claims what nodes say of their
        devices: in a cluster all day long."""
        now = event.object if event.type is not EventType.DELETED else None
        before = self._seen.get(Key.of(event.object))
        if admission.is_admission_object(event.object):
            content = [None if one is None else admission.relevant_content(one) for one in (now, before)]
            return bool(content[0] != content[1])
        if is_node(event.object):  # which says all day long that it is there
            came_or_went = (now is None) != (before is None)
            states = [(unschedulable_nodes([one]), fenced_nodes([one])) for one in (now or {}, before or {})]
            return came_or_went or states[0] != states[1]
        of = self._of_kind.get(event.object["kind"])
        relevant = _relevant_if_allocated if of is None else of.relevant
        state = None if now is None else relevant(now)
        return state is None or before is None or bool(state != relevant(before))

    def _report(self, problems: Sequence[str]) -> None:
        """Log each problem when it comes, not every time it is seen; of many, as at a start, the first ones."""
        news = [problem for problem in problems if problem not in self._problems]
        for problem in news[:_LOGGED_PROBLEMS]:
            log.warning("%s", problem)
        if len(news) > _LOGGED_PROBLEMS:
            log.warning("and %d more problems: `devalloc solve` lists all", len(news) - _LOGGED_PROBLEMS)
        self._problems = frozenset(problems)


def _relevant_if_allocated(doc: Object) -> Any:
    """Of an allocated claim all that a round may decide on; None of anything else."""
    if doc["kind"] != "DeviceClaim" or not ClaimView(doc).entries:
        return None
    metadata = doc["metadata"]
    names = ("uid", "generation", "annotations", "finalizers", "deletionTimestamp")
    label = (metadata.get("labels") or {}).get(NODE_LABEL)
    return ClaimView(doc).entries, doc.get("spec"), label, *(metadata.get(name) for name in names)


def _subject_key(problem: Mapping[str, Any]) -> Key:
    kind, namespace, name = (str(problem.get(part) or "") for part in ("kind", "namespace", "name"))
    return Key(kind, namespace or "default", name)


def _problem_message(problem: dict[str, Any]) -> str:
    name = "/".join(str(problem[part]) for part in ("namespace", "name") if problem.get(part))
    parts = (problem.get("kind"), name, problem.get("path"))
    return f"{' '.join(str(part) for part in parts if part)}: {problem['message']}"
