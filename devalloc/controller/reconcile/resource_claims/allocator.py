"""The loop that answers ResourceClaims: pods that wait for claims of ours, a joint solve, the allocations written, and
Events for what is refused.

``devalloc.controller.reconcile.loop`` has what it shares with the loop of DeviceClaims: store, fence, back-off.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from devalloc.api.reasons import STILL_SEARCHING, Reason
from devalloc.controller.leader.election import ClusterStore
from devalloc.controller.reconcile.decision import WriteUnit, redact
from devalloc.controller.reconcile.events import NORMAL, WARNING, ObjectEvent, object_event
from devalloc.controller.reconcile.loop import AllocatorSettings, ReconcileLoop
from devalloc.controller.reconcile.resource_claims.cluster_state import (
    KIND,
    WATCHED_KINDS,
    ClusterState,
    SolverRequest,
    dedicated_results,
)
from devalloc.controller.reconcile.resource_claims.pending import (
    Key,
    PendingGroup,
    allocation_node,
    allocation_of,
    is_for_devalloc,
    key_of,
)
from devalloc.controller.reconcile.snapshot import Snapshot
from devalloc.controller.reconcile.warm_solver import IncrementalResourceSolver
from devalloc.store import Change, Fence
from devalloc.store import Key as ObjectKey
from devalloc.store.fencing import FencingInterrupted, fence_objects

Object = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
"""As kube-scheduler sets it: kube-controller-manager takes back what such a claim holds, and removes it."""
AVOID_SECONDS = 60.0
"""How long a claim is not given devices of a node from which kube-scheduler sent it back."""
ALLOCATED = "Allocated"
"""Reason of the Event of a claim that was given devices."""
_COPIED_KINDS = frozenset({KIND, "DeviceClass"})
"""Kinds whose change may let the API server accept what it refused."""


@dataclass(frozen=True, slots=True)
class ResourceClaimRound:
    """What one round found and did."""

    allocated: int
    """ResourceClaims of ours that have devices now."""
    waiting: int
    """Those that pods wait for, and that have none."""
    granted: Sequence[ObjectKey]
    """Of those that have devices, the ones that got them in this round."""
    seconds: float
    """What the solver thought."""

    @property
    def in_words(self) -> str:
        claims = self.allocated + self.waiting
        return f"ResourceClaims {claims} ({self.allocated} allocated, {self.waiting} waiting)"


@dataclass(slots=True)
class _ClaimNotes:
    """What is known of a claim beyond what stands on it. By UID, for as long as the claim is there."""

    given: str = ""
    """The node on which it was given devices by us, as long as these pods wait."""
    users: frozenset[str] = frozenset()
    """Their UIDs."""
    avoided: dict[str, float] = field(default_factory=dict)
    """Nodes that it is not to have, and until when."""
    reason: str = ""
    """The reason that was told last."""


@dataclass(frozen=True)
class _Decision:
    """What is written for a want, and what is reported of it."""

    want: PendingGroup
    units: tuple[WriteUnit, ...] = ()
    """One for each claim, so that each counts alone."""
    reason: str = ""
    """Why it gets nothing; empty if it is given devices, or is still searched for."""
    message: str = ""


class ResourceClaimAllocator:
    """One ``run`` in one thread."""

    def __init__(
        self,
        store: ClusterStore,
        *,
        stamp: str,
        record: Callable[[Iterable[ObjectEvent]], None] = lambda happened: None,
        progress: Callable[[ResourceClaimRound], None] = lambda done: None,
        gave: Callable[[Object], None] = lambda claim: None,
        settings: AllocatorSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``store``: of ``kinds.RESOURCES``; it writes only while this process leads. ``stamp``: a text that no leader
        had before. ``record``: called with what is to be an Event. ``gave``: with each claim that was given devices."""
        self._store = store
        self._settings = settings or AllocatorSettings()
        self._stamp = stamp
        self._record = record
        self._progress = progress
        self._gave = gave
        self._clock = clock
        self._cluster = ClusterState()
        self.loop = ReconcileLoop("could not answer the ResourceClaims", store, self._settings, WATCHED_KINDS, clock)
        self._solver = IncrementalResourceSolver(self._settings.placement, clock, self.loop.searches)
        self._notes: dict[str, _ClaimNotes] = {}
        self._last_requests: list[SolverRequest] = []
        self._version = ""
        """Of the last round; empty before the first one."""
        self._is_incomplete = False
        """The last round wrote less than it decided, because objects changed meanwhile."""

    def run(self, stop: threading.Event) -> None:
        """Take over, and answer claims until ``stop`` is set. Logs all errors and tries again."""

        def act() -> None:
            if self._take_over(stop):
                self.round()
                self.loop.is_again |= self._solver.is_again

        self.loop.run(stop, act, lambda: self._wait(stop))

    def _take_over(self, stop: threading.Event) -> bool:
        """Once: until what the leader before still sends is refused (``devalloc.store.fencing``). Raises
        StoreError."""
        if not self._version:
            self._store.list(KIND)
            self._store.refresh()
            try:
                fence_objects(self._store, self._stamp, stop, kinds=(KIND,), is_grantable=is_for_devalloc)
            except FencingInterrupted:
                return False
        return True

    def round(self) -> None:
        """Answer all claims that pods wait for, once, if something has changed since the last time."""
        last_requests, self._last_requests = self._last_requests, []
        snapshot = self.loop.reading.look()
        self._version, self.loop.is_again = snapshot.version, False
        self._cluster.look(snapshot.objects.values())
        claims, wants, now = self._cluster.claims, self._cluster.wants(), self._clock()
        self._note(claims, wants, now)
        refused = self.loop.refusals.look(obj for obj in snapshot.objects.values() if obj["kind"] in _COPIED_KINDS)
        wants = [want for want in wants if not any(_object_key(key) in refused for key in want.claims)]
        avoided = {
            key: frozenset(node for node, until in self._of(claims[key]).avoided.items() if until > now)
            for want in wants
            for key in want.claims
        }
        requests = self._cluster.build_requests(wants, avoided)
        is_new = self._solver.update(self._cluster.documents())
        if requests == last_requests and not (is_new or self._solver.is_due or self.loop.is_unfinished):
            self._last_requests = requests
            return
        documents, began = [document for each in requests for document in each.documents], time.monotonic()
        answers = {
            (each["namespace"], each["name"]): each
            for each in (self._solver.solve(documents, self._settings.deadline) if documents else ())
        }
        seconds = time.monotonic() - began
        granted = self._commit([_decide(each, answers, claims) for each in requests], snapshot)
        held = sum(is_for_devalloc(claim) and allocation_of(claim) is not None for claim in claims.values())
        waiting = sum(len(want.claims) for want in self._cluster.wants())
        self._progress(ResourceClaimRound(held + len(granted), waiting - len(granted), granted, seconds))
        is_searching = any(each.get(STILL_SEARCHING) for each in answers.values())
        self._last_requests = [] if is_searching or self._is_incomplete else requests

    def _of(self, claim: Object) -> _ClaimNotes:
        return self._notes.setdefault(claim["metadata"]["uid"], _ClaimNotes())

    def _note(self, claims: Mapping[Key, Object], wants: Sequence[PendingGroup], now: float) -> None:
        """See which claims were sent back, and forget those that are gone."""
        there = {claim["metadata"]["uid"] for claim in claims.values()}
        for uid in [uid for uid in self._notes if uid not in there]:
            del self._notes[uid]
        happened = []
        for want in wants:
            for key in want.claims:
                notes = self._of(claims[key])
                given, notes.given = notes.given, ""
                if given and notes.users & {pod["metadata"]["uid"] for pod in want.pods}:
                    notes.avoided[given] = now + AVOID_SECONDS
                    note = f"pod {_names(want)} found no place on node {given}, which is left out for a while"
                    happened.append(object_event(claims[key], WARNING, Reason.SENT_BACK.value, "Allocate", note))
        self._record(happened)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _commit(self, decisions: Sequence[_Decision], snapshot: Snapshot) -> list[ObjectKey]:
        """Write the decisions, and report what became of them; the claims that got devices."""
        claims = self._cluster.claims

        def standing(planned: Sequence[WriteUnit], now: Snapshot) -> Sequence[WriteUnit] | None:
            """What pods and nodes write on claims does not matter, as long as allocations of dedicated pools stay."""
            return planned if _allocations(snapshot) == _allocations(now) else None

        units = [unit for each in decisions for unit in each.units if not self.loop.refusals.is_backed_off(unit)]
        report = self.loop.commit(units, Fence(snapshot.version, statuses=frozenset({KIND})), standing)
        written = report.written
        rejected = {key: why for unit, why in report.rejected for key in unit.keys}
        self._is_incomplete = not all(unit.keys <= written.keys() | rejected.keys() for unit in units)
        happened: list[ObjectEvent] = []
        granted: list[ObjectKey] = []
        for each in decisions:
            keys = [key for unit in each.units for key in unit.keys]
            if not each.reason:
                gave = [key for key in keys if key in written]
                happened += [self._given(each.want, written[key]) for key in gave]
                granted += gave
            elif all(key in written for key in keys):
                for key in keys:
                    self._of(written[key]).given = ""
                happened += self._refused(each.want, claims, each.reason, each.message)
            if why := next((rejected[key] for key in keys if key in rejected), None):
                happened += self._refused(each.want, claims, Reason.REFUSED.value, why)
        self._record(happened)
        return granted

    def _given(self, want: PendingGroup, claim: Object) -> ObjectEvent:
        given, notes = claim["status"]["allocation"], self._of(claim)
        notes.given, notes.reason = allocation_node(given) or "", ""
        notes.users = frozenset(each["uid"] for each in claim["status"]["reservedFor"])
        self._gave(claim)
        results = given["devices"].get("results", [])
        names = ", ".join(f"{each['pool']}/{each['device']}" for each in results[:8])
        more = f" and {len(results) - 8} more" if len(results) > 8 else ""
        note = f"for pod {_names(want)} on node {notes.given}: {names}{more}"
        return object_event(claim, NORMAL, ALLOCATED, "Allocate", note)

    def _refused(
        self, want: PendingGroup, claims: Mapping[Key, Object], reason: str, message: str
    ) -> list[ObjectEvent]:
        """Reported once for each reason, of the claims and the pods."""
        news = [claims[key] for key in want.claims if self._of(claims[key]).reason != reason]
        for key in want.claims:
            self._of(claims[key]).reason = reason
        if not news:
            return []
        return [object_event(each, WARNING, reason, "Allocate", message) for each in (*news, *want.pods)]

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, stop: threading.Event) -> None:
        """Until something has changed, or a time is over for which a claim waits."""
        now = self._clock()
        ends = [end + 0.1 for each in self._notes.values() for end in each.avoided.values() if end > now]
        self.loop.wait_for_change(self._version, min([now + self._settings.resync, *ends]), stop)


def _decide(
    request: SolverRequest, answers: Mapping[Key, Mapping[str, Any]], claims: Mapping[Key, Object]
) -> _Decision:
    """What a want is given, or why it is not; then what its pods hold becomes free."""
    want = request.want
    if any(answers[key].get(STILL_SEARCHING) for key in want.claims if key in answers):
        return _Decision(want)
    refusals = [answers[key] for key in want.claims if key in answers and not answers[key]["allocated"]]
    # Most members of a group only report that another member cannot be satisfied.
    refused = min(refusals, key=lambda each: each["reason"] == Reason.GROUP_UNSATISFIABLE, default=None)
    if request.misfit is None and refused is None:
        return _Decision(want, tuple(_grant(want, claims[key], answers[key], key) for key in want.claims))
    reason = Reason.NO_SUITABLE_NODE.value if refused is None else str(refused["reason"])
    message = request.misfit or str(refused and refused["message"])
    if request.expression:
        message = message.replace(request.expression, "<a node that suits the pod>")
    message = redact(message, want.claims[0][0], lambda *key: key in claims)
    released = (_release(want, claims[key]) for key in want.held)
    return _Decision(want, tuple(filter(None, released)), reason, message)


def _grant(want: PendingGroup, claim: Object, answer: Mapping[str, Any], key: Key) -> WriteUnit:
    given = {**answer["allocations"], "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    status = {**claim.get("status", {}), "allocation": given, "reservedFor": want.users(key)}
    version = claim["metadata"]["resourceVersion"]
    return WriteUnit((Change(_object_key(key), version, status, finalizers=(FINALIZER,)),), granted=True)


def _release(want: PendingGroup, claim: Object) -> WriteUnit | None:
    """What a pod holds that cannot have the rest is free for others, and for itself elsewhere: it does not run."""
    users = {pod["metadata"]["uid"] for pod in want.pods}
    status = claim.get("status", {})
    if not {each.get("uid") for each in status.get("reservedFor") or ()} <= users:
        return None
    remaining = {name: value for name, value in status.items() if name not in ("allocation", "reservedFor", "devices")}
    change = Change(_object_key(key_of(claim)), claim["metadata"]["resourceVersion"], remaining)
    return WriteUnit((change,), granted=False, released=True)


def _allocations(snapshot: Snapshot) -> dict[ObjectKey, object]:
    """By claim, what it has of pools that are dedicated to this allocator: kube-scheduler allocates all others."""
    claims = ((key, dedicated_results(obj)) for key, obj in snapshot.objects.items() if key.kind == KIND)
    return {key: results for key, results in claims if results}


def _object_key(key: Key) -> ObjectKey:
    return ObjectKey(KIND, *key)


def _names(want: PendingGroup) -> str:
    names = [pod["metadata"]["name"] for pod in want.pods]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
