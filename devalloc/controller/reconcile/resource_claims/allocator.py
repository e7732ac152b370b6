"""The loop that answers ResourceClaims: pods that wait for claims of ours, a joint solve, the allocations written, and
Events for what is refused.

``devalloc.controller.reconcile.loop`` has what it shares with the loop of DeviceClaims: store, fence, back-off.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from devalloc.api.adopted_pools import AdoptionRule, AllocatablePools
from devalloc.api.dedicated_pools import is_for_devalloc, namespaces_for_devalloc, with_namespace_default
from devalloc.api.findings import Finding, Reader, finding_of, message_of, text_fact
from devalloc.api.meta import DEVICE_RECORDS
from devalloc.api.reasons import STILL_SEARCHING, Reason
from devalloc.controller.leader.election import ClusterStore
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.events import NORMAL, WARNING, ObjectEvent, object_event
from devalloc.controller.reconcile.loop import AllocatorSettings, ReconcileLoop
from devalloc.controller.reconcile.resource_claims.adoption import Adoption
from devalloc.controller.reconcile.resource_claims.cluster_state import (
    KIND,
    WATCHED_KINDS,
    ClusterState,
    SolverRequest,
    held_results,
    no_room_message,
)
from devalloc.controller.reconcile.resource_claims.pending import (
    Key,
    PendingGroup,
    allocation_node,
    allocation_of,
    key_of,
)
from devalloc.controller.reconcile.round_solver import RESOURCE_CLAIMS, RoundSolver
from devalloc.controller.reconcile.snapshot import Snapshot
from devalloc.store import Change, Event, EventType, Fence
from devalloc.store import Key as ObjectKey
from devalloc.store.fencing import FencingInterrupted, fence_objects

Object = dict[str, Any]
log = logging.getLogger(__name__)

FINALIZER = "resource.kubernetes.io/delete-protection"
"""As kube-scheduler sets it: kube-controller-manager takes back what such a claim holds, and removes it."""
MIN_AVOID_SECONDS, MAX_AVOID_SECONDS = 5.0, 600.0
"""How long a claim is not given devices of a node on which kube-scheduler did not place its pod, if nothing of the node
changes; doubled each time."""
MAX_TRIES = 5
"""After so many nodes a claim waits until something of them changes, or that time is over."""
UNPLACED_SECONDS = 15.0
"""How long a claim keeps devices for a pod that kube-scheduler does not place, the first time; then doubled. Twice the
longest back-off that kube-scheduler has by default, less what a busy one needs."""
REPEAT_SECONDS, MAX_REPEAT_SECONDS = 60.0, 960.0
"""How long after an Event of a claim another one may have the same reason and another message; doubled each time."""
MAX_REPEATS, MAX_OWN_REPEATS = 100, 20
"""Such Events in ``REPEAT_SECONDS``, of all claims and of those of one namespace: a change of the fleet can change the
messages of all."""
SHARE_SECONDS, SHARE_REST = 1.0, 10.0
"""How long a round searches for nodes on which more pods find room together; and for how many times as long it is not
tried again if there are none."""
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
    avoided: dict[str, _Avoided] = field(default_factory=dict)
    """Nodes on which kube-scheduler did not place its pods."""
    tries: int = 0
    """How often that was, since a pod had a node."""
    last: float = 0.0
    """When it was the last time."""
    unused_since: float | None = None
    """When it was first seen to hold devices for pods that kube-scheduler does not place."""
    is_wide: bool = False
    """It found nothing where most of its pods have room."""
    reason: str = ""
    """The reason of the last Event; empty if that reported devices."""
    message: str = ""
    """Its message."""
    reported: float = 0.0
    """When that was."""
    repeats: int = 0
    """How often it had that reason again, with another message."""

    @property
    def delay(self) -> float:
        """How long a node is avoided now."""
        return min(MAX_AVOID_SECONDS, MIN_AVOID_SECONDS * 2.0 ** (self.tries - 1)) if self.tries else 0.0

    @property
    def pause(self) -> float:
        """How long the last Event stands before another message is one."""
        return min(MAX_REPEAT_SECONDS, REPEAT_SECONDS * 2.0 ** min(self.repeats, 10))

    @property
    def patience(self) -> float:
        """How long it keeps devices that no pod uses."""
        return min(MAX_AVOID_SECONDS, UNPLACED_SECONDS * 2.0 ** min(self.tries, 10))


@dataclass(frozen=True, slots=True)
class _Avoided:
    """A node on which kube-scheduler did not place the pods of a claim."""

    until: float
    gains: int
    """What ``ClusterState.gains`` was then."""


@dataclass(frozen=True)
class _Decision:
    """What is written for a want, and what is reported of it."""

    want: PendingGroup
    units: tuple[WriteUnit, ...] = ()
    """One for each claim, so that each counts alone."""
    reason: str = ""
    """Why it gets nothing; empty if it is given devices, or is still searched for."""
    finding: Finding | None = None
    message: str = ""
    """The sentence of the finding for the namespace of its claims."""
    node: str = ""
    """Where it held devices that no pod used."""


class _Reported(NamedTuple):
    """A refusal as it was reported, and what it depends on."""

    request: SolverRequest
    answers: Sequence[Mapping[str, Any] | None]
    """Of its claims."""
    supply: object
    """``ClusterState.supply`` then."""
    decision: _Decision

    def is_of(self, request: SolverRequest, answers: Sequence[Mapping[str, Any] | None], supply: object) -> bool:
        """Whether these are the very same."""
        is_same = self.request is request and self.supply is supply
        return is_same and all(map(operator.is_, self.answers, answers))


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
        probe: Callable[[AdoptionRule], str] = lambda rule: "adoption is not installed",
        settings: AllocatorSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``store``: of ``kinds.RESOURCES``; it writes only while this process leads. ``stamp``: a text that no leader
        had before. ``record``: called with what is to be an Event. ``gave``: with each claim that was given devices.
        ``probe``: see ``Adoption``."""
        self._store = store
        self._settings = settings or AllocatorSettings()
        self._stamp = stamp
        self._record = record
        self._progress = progress
        self._gave = gave
        self._clock = clock
        self._cluster = ClusterState()
        self._adoption = Adoption(store, probe, clock)
        self.loop = ReconcileLoop("could not answer the ResourceClaims", store, self._settings, WATCHED_KINDS, clock)
        self._solver = RoundSolver(RESOURCE_CLAIMS, self.loop.searches, clock)
        self._notes: dict[str, _ClaimNotes] = {}
        self._repeats: deque[tuple[float, str]] = deque()
        """When the last Events with another message were recorded, and in which namespace."""
        self._last_requests: list[SolverRequest] = []
        self._reported: dict[tuple[Key, ...], _Reported] = {}
        """Of the last round, by the claims of the wants."""
        self._untold: set[tuple[Key, ...]] = set()
        """Those whose message is another one than that of the last Event."""
        self._shares_room_from = 0.0
        """When the room of nodes may be shared out again."""
        self._version = ""
        """Of the last round; empty before the first one."""
        self._is_incomplete = False
        """The last round wrote less than it decided, because objects changed meanwhile."""

    def run(self, stop: threading.Event) -> None:
        """Take over, and answer claims until ``stop`` is set. Logs all errors and tries again."""

        def act() -> None:
            if self._take_over(stop):
                self.round()

        self.loop.run(stop, act, lambda: self._wait(stop))

    def _take_over(self, stop: threading.Event) -> bool:
        """Once: until what the leader before still sends is refused (``devalloc.store.fencing``). Raises
        StoreError."""
        if not self._version:
            self._store.list((KIND, "Namespace"))
            self._store.refresh()
            chosen = namespaces_for_devalloc(self._store.list("Namespace").objects)

            def is_grantable(claim: Object) -> bool:
                return is_for_devalloc(with_namespace_default(claim, chosen))

            try:
                fence_objects(self._store, self._stamp, stop, kinds=(KIND,), is_grantable=is_grantable)
            except FencingInterrupted:
                return False
        return True

    def round(self) -> None:
        """Answer all claims that pods wait for, once, if something has changed since the last time."""
        last_requests, self._last_requests = self._last_requests, []
        reported, self._reported = self._reported, {}  # after an error all is reported again
        self._adoption.update()
        pools = self._adoption.pools
        snapshot = self.loop.reading.look()
        self._version = snapshot.version
        self.loop.is_again = not self._adoption.has_seen(snapshot.objects.values())
        self._cluster.look(snapshot.objects.values(), pools)
        claims, wants, now = self._cluster.claims, self._cluster.wants(), self._clock()
        by_uid = {claim["metadata"]["uid"]: claim for claim in claims.values()}
        self._note(by_uid, now)
        refused = self.loop.refusals.look(obj for obj in snapshot.objects.values() if obj["kind"] in _COPIED_KINDS)
        kept_out = {want.claims for key in refused if (want := self._cluster.want_of((key.namespace or "", key.name)))}
        waiting, avoided, wide = self._held_back(by_uid, now)
        wanted = [want for want in wants if want.claims not in kept_out and want.claims not in waiting]
        held_back = [request for claims_, request in waiting.items() if claims_ not in kept_out]
        requests = [*held_back, *self._cluster.build_requests(wanted, avoided, wide)]
        self.loop.is_again |= self._cluster.has_left
        unplaced = self._unplaced(now)
        is_new = self._solver.update(self._cluster.documents(), self._settings.placement)
        is_same = requests == last_requests and not (is_new or self._solver.is_due or self.loop.is_unfinished)
        if is_same and not unplaced:
            self._last_requests, self._reported = requests, reported
            return
        began = time.monotonic()
        answers = self._solve(requests)
        decided = self._share_room(requests, answers)
        if decided is not requests:
            answers = self._solve(decided)
        seconds = time.monotonic() - began
        decisions, is_deferred, reported = self._decide(decided, answers, reported)
        is_deferred |= len(decided) < len(requests)
        granted = self._commit([*decisions, *unplaced], snapshot)
        self._reported = reported
        held = sum(allocation_of(claim) is not None and is_for_devalloc(claim) for claim in claims.values())
        remaining = sum(len(want.claims) for want in self._cluster.wants())
        self._progress(ResourceClaimRound(held + len(granted), remaining - len(granted), granted, seconds))
        is_searching = any(each.get(STILL_SEARCHING) for each in answers.values())
        is_left = is_searching or self._is_incomplete or is_deferred or self._cluster.is_behind
        self._last_requests = [] if is_left else requests
        self.loop.is_again |= is_deferred

    def _solve(self, requests: Iterable[SolverRequest]) -> dict[Key, Mapping[str, Any]]:
        units = {each.unit: each.documents for each in requests if each.unit is not None}
        if not units:
            return {}
        answer = self._solver.solve(units, self._settings.deadline)
        self.loop.is_again |= answer["again"]
        return {(each["namespace"], each["name"]): each for each in answer["claims"]}

    def _share_room(
        self, requests: Sequence[SolverRequest], answers: Mapping[Key, Mapping[str, Any]]
    ) -> Sequence[SolverRequest]:
        """The requests as they are to be asked for again, if then more pods find room on the nodes of their devices:
        each on one node. Those that would find none are left to the next round."""
        placed = [(each, node) for each in requests if (node := _planned_node(each, answers))]
        began = self._clock()
        if len(self._cluster.admit(placed)) == len(placed) or began < self._shares_room_from:
            return requests
        planned = self._cluster.share_room(placed, self._settings.placement, SHARE_SECONDS)
        if not planned:
            self._shares_room_from = self._clock() + SHARE_REST * (self._clock() - began)
            return requests
        nodes = {id(each): node for each, node in planned}
        is_placed = {id(each) for each, _ in placed}
        return [
            self._cluster.at_node(each, nodes[id(each)]) if id(each) in nodes else each
            for each in requests
            if id(each) in nodes or id(each) not in is_placed
        ]

    def _decide(
        self,
        requests: Sequence[SolverRequest],
        answers: Mapping[Key, Mapping[str, Any]],
        reported: Mapping[tuple[Key, ...], _Reported],
    ) -> tuple[list[_Decision], bool, dict[tuple[Key, ...], _Reported]]:
        """Decide all requests of which there is more to report than was ``reported``. Devices on a node are given only
        to so many pods as it has room for. Whether some are to be asked again at once; and what is reported then."""
        claims, is_deferred, supply = self._cluster.claims, False, self._cluster.supply
        refusals: dict[tuple[Key, ...], _Reported] = {}
        news: list[tuple[SolverRequest, Sequence[Mapping[str, Any] | None]]] = []
        for request in requests:
            own_answers = [*map(answers.get, request.want.claims)]
            one = reported.get(request.want.claims)
            if one is not None and one.is_of(request, own_answers, supply):
                refusals[request.want.claims] = one
            else:
                news.append((request, own_answers))
        self._untold &= refusals.keys()
        decisions = [refusals[keys].decision for keys in sorted(self._untold)]
        nodes = [_planned_node(request, answers) for request, _ in news]
        placed = [(request, node) for (request, _), node in zip(news, nodes, strict=True) if node]
        admitted = {id(each) for each in self._cluster.admit(placed)}
        for (request, given_answers), node in zip(news, nodes, strict=True):
            if node and id(request) not in admitted:
                is_deferred = True
                continue
            decision = _decide(request, answers, claims)
            own = [claims[key] for key in request.want.claims]
            if decision.finding is not None:
                reason, finding = self._cluster.explain_lack(decision.reason, decision.finding, own)
                message = message_of(finding, Reader(request.want.claims[0][0]))
                decision = replace(decision, reason=reason, finding=finding, message=message)
            if decision.reason and request.is_narrow:
                is_deferred = True
                for key in request.want.claims:
                    self._of(claims[key]).is_wide = True
                continue
            decisions.append(decision)
            if decision.reason and not decision.units and not self._cluster.is_behind:
                refusals[request.want.claims] = _Reported(request, given_answers, supply, decision)
        return decisions, is_deferred, refusals

    def _of(self, claim: Object) -> _ClaimNotes:
        return self._notes.setdefault(claim["metadata"]["uid"], _ClaimNotes())

    # -- nodes on which kube-scheduler does not place a pod ------------------------------------------------------------

    def _note(self, by_uid: Mapping[str, Object], now: float) -> None:
        """See which claims were sent back and which have a pod with a node, and forget those that are gone."""
        for uid in self._notes.keys() - by_uid.keys():
            del self._notes[uid]
        happened = []
        tried = [uid for uid, notes in self._notes.items() if notes.tries and allocation_of(by_uid[uid]) is not None]
        placed = self._cluster.placed_pods() if tried else frozenset()
        for uid in tried:
            if any(user["uid"] in placed for user in by_uid[uid]["status"].get("reservedFor") or ()):
                happened.append(_given_event(by_uid[uid]))
                self._notes[uid] = _ClaimNotes(self._notes[uid].given, self._notes[uid].users)
        for uid in [uid for uid, notes in self._notes.items() if notes.given]:
            notes, want = self._notes[uid], self._cluster.want_of(key_of(by_uid[uid]))
            if want is not None:
                node, notes.given = notes.given, ""
                if notes.users & {pod["metadata"]["uid"] for pod in want.pods}:
                    happened += self._sent_back(by_uid[uid], want, node, now)
        self._record(happened)

    def _held_back(
        self, by_uid: Mapping[str, Object], now: float
    ) -> tuple[dict[tuple[Key, ...], SolverRequest], dict[Key, frozenset[str]], set[Key]]:
        """The wants that wait for a node to change, by their claims; and by claim the nodes that it is not to have now,
        and whether it may have those where fewer of its pods have room."""
        waiting, avoided, wide = dict[tuple[Key, ...], SolverRequest](), dict[Key, frozenset[str]](), set[Key]()
        judged: dict[tuple[Key, ...], SolverRequest | None] = {}
        for uid in [uid for uid, notes in self._notes.items() if notes.avoided or notes.tries or notes.is_wide]:
            key, notes = key_of(by_uid[uid]), self._notes[uid]
            if (want := self._cluster.want_of(key)) is None:
                continue
            if notes.tries >= MAX_TRIES and want.claims not in judged:
                judged[want.claims] = self._waiting(want, now)
            if notes.tries >= MAX_TRIES and (request := judged[want.claims]) is not None:
                waiting[want.claims] = request
            else:
                avoided[key] = self._avoided(by_uid[uid], now)
            if notes.is_wide:
                wide.add(key)
        return waiting, avoided, wide

    def _sent_back(self, claim: Object, want: PendingGroup, node: str, now: float) -> list[ObjectEvent]:
        """Avoid the node from now on. Only the first of several nodes is worth an Event."""
        notes = self._of(claim)
        notes.given, notes.unused_since, notes.is_wide, notes.last = "", None, False, now
        notes.tries += 1
        notes.avoided[node] = _Avoided(now + notes.delay, self._cluster.gains(node))
        log.info("%s: kube-scheduler did not place pod %s on node %s", "/".join(key_of(claim)), _names(want), node)
        if notes.tries > 1:
            return []
        notes.reason = Reason.SENT_BACK.value
        note = f"pod {_names(want)} found no place on node {node}, which is left out for a while"
        return [object_event(claim, WARNING, notes.reason, "Allocate", note)]

    def _avoided(self, claim: Object, now: float) -> frozenset[str]:
        """The nodes that a claim is not to have now."""
        notes = self._of(claim)
        for node in [
            node for node, each in notes.avoided.items() if each.until <= now or self._has_changed(node, each)
        ]:
            del notes.avoided[node]
        return frozenset(notes.avoided)

    def _has_changed(self, node: str, avoided: _Avoided) -> bool:
        return self._cluster.gains(node) != avoided.gains

    def _waiting(self, want: PendingGroup, now: float) -> SolverRequest | None:
        """Let a want wait that kube-scheduler placed on none of several nodes, until one of them changes."""
        for key in want.claims:
            notes = self._of(self._cluster.claims[key])
            if notes.tries < MAX_TRIES or now >= notes.last + notes.delay:
                continue
            has_changed = any(self._has_changed(node, each) for node, each in notes.avoided.items())
            if not has_changed or now < notes.last + MIN_AVOID_SECONDS:
                nodes = dict.fromkeys(sorted(notes.avoided)[:3])
                message = no_room_message(want, len(notes.avoided), nodes)
                return SolverRequest(want, (), message, Reason.NO_ROOM_FOR_POD)
        return None

    def _unplaced(self, now: float) -> list[_Decision]:
        """Take back devices whose pods kube-scheduler has not placed for long."""
        unused = {self._cluster.claims[each.want.held[0]]["metadata"]["uid"]: each for each in self._cluster.unused()}
        for uid, notes in self._notes.items():
            if uid not in unused:
                notes.unused_since = None
        decisions = []
        for each in unused.values():
            claim = self._cluster.claims[each.want.held[0]]
            notes = self._of(claim)
            if notes.unused_since is None:
                notes.unused_since = now
            if now >= notes.unused_since + notes.patience and (unit := _release(each.want, claim)) is not None:
                decisions.append(_Decision(each.want, (unit,), Reason.SENT_BACK.value, node=each.node))
        return decisions

    # -- writing -------------------------------------------------------------------------------------------------------

    def _commit(self, decisions: Sequence[_Decision], snapshot: Snapshot) -> list[ObjectKey]:
        """Write the decisions, and report what became of them; the claims that got devices."""
        claims, pools = self._cluster.claims, self._adoption.pools

        def standing(planned: Sequence[WriteUnit], now: Snapshot) -> Sequence[WriteUnit] | None:
            """What pods and nodes write on claims does not matter, as long as allocations of these pools stay."""
            return planned if _allocations(snapshot, pools) == _allocations(now, pools) else None

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
                happened += [event for key in gave for event in self._given(written[key])]
                granted += gave
            elif each.node:
                for key in keys:
                    if key in written:
                        happened += self._sent_back(written[key], each.want, each.node, self._clock())
            elif all(key in written for key in keys):
                for key in keys:
                    self._of(written[key]).given = ""
                happened += self._refused(each.want, claims, each.reason, each.message)
            if why := next((rejected[key] for key in keys if key in rejected), None):
                happened += self._refused(each.want, claims, Reason.REFUSED.value, why)
        self._record(happened)
        return granted

    def _given(self, claim: Object) -> list[ObjectEvent]:
        """Report devices, unless kube-scheduler may well send them back again: then once its pod has a node."""
        notes = self._of(claim)
        notes.given = allocation_node(claim["status"]["allocation"]) or ""
        notes.users = frozenset(each["uid"] for each in claim["status"]["reservedFor"])
        self._gave(claim)
        if notes.tries:
            return []
        notes.reason = ""
        return [_given_event(claim)]

    def _refused(
        self, want: PendingGroup, claims: Mapping[Key, Object], reason: str, message: str
    ) -> list[ObjectEvent]:
        """Reported once for each reason, of the claims and the pods; and again for another message, at a bounded
        rate."""
        now = self._clock()
        news = [claims[key] for key in want.claims if self._of(claims[key]).reason != reason]
        # Each node that is tried in vain changes what is said of a pod without room: no Event for each.
        is_repeatable = not news and reason != Reason.NO_ROOM_FOR_POD.value
        repeated = self._repeated(want, claims, message, now) if is_repeatable else []
        for claim in (*news, *repeated):
            notes = self._of(claim)
            notes.reason, notes.message, notes.reported = reason, message, now
            notes.repeats = notes.repeats + 1 if repeated else 0
        self._untold.discard(want.claims)
        if is_repeatable and any(self._of(claims[key]).message != message for key in want.claims):
            self._untold.add(want.claims)
        if not news and not repeated:
            return []
        objects = (*news, *want.pods) if news else (*repeated, *want.pods)[:MAX_OWN_REPEATS]
        return [object_event(each, WARNING, reason, "Allocate", message) for each in objects]

    def _repeated(self, want: PendingGroup, claims: Mapping[Key, Object], message: str, now: float) -> list[Object]:
        """The claims whose last Event had another message, if it may be reported now."""
        changed = [
            claims[key]
            for key in want.claims
            if (notes := self._of(claims[key])).message != message and now >= notes.reported + notes.pause
        ]
        while self._repeats and self._repeats[0][0] <= now - REPEAT_SECONDS:
            self._repeats.popleft()
        namespace, events = want.claims[0][0], min(MAX_OWN_REPEATS, len(changed) + len(want.pods))
        own = sum(1 for _, of in self._repeats if of == namespace)
        if not changed or own + events > MAX_OWN_REPEATS or len(self._repeats) + events > MAX_REPEATS:
            return []
        self._repeats.extend([(now, namespace)] * events)
        return changed

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, stop: threading.Event) -> None:
        """Until something has changed, or a time is over for which a claim waits."""
        now = self._clock()
        notes = self._notes.values()
        ends = [end.until for each in notes for end in each.avoided.values()]
        ends += [each.last + MIN_AVOID_SECONDS for each in notes if each.tries >= MAX_TRIES]
        ends += [each.unused_since + each.patience for each in notes if each.unused_since is not None]
        ends = [end + 0.1 for end in ends if end > now]
        ends += [max(end, now) for end in self._adoption.due()]
        self.loop.wait_for_change(self._version, min([now + self._settings.resync, *ends]), stop, self._matters)

    def _matters(self, event: Event) -> bool:
        return event.type is EventType.DELETED or self._cluster.concerns(event.object)


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
    reason = request.reason.value if refused is None else str(refused["reason"])
    if request.misfit is not None or refused is None:
        finding = Finding([text_fact(str(request.misfit))])
    else:
        finding = finding_of(refused)
    released = (_release(want, claims[key]) for key in want.held)
    return _Decision(want, tuple(filter(None, released)), reason, finding)


def _planned_node(request: SolverRequest, answers: Mapping[Key, Mapping[str, Any]]) -> str:
    """The node of the devices that a request may get; empty if it gets none."""
    given = [answers[key] for key in request.want.claims if key in answers and answers[key]["allocated"]]
    if len(given) < len(request.want.claims):
        return ""
    return next(filter(None, (allocation_node(each["allocations"]) for each in given)), "")


def _given_event(claim: Object) -> ObjectEvent:
    given = claim["status"]["allocation"]
    results = given["devices"].get("results", [])
    names = ", ".join(f"{each['pool']}/{each['device']}" for each in results[:8])
    more = f" and {len(results) - 8} more" if len(results) > 8 else ""
    pods = ", ".join(each["name"] for each in claim["status"]["reservedFor"][:3])
    note = f"for pod {pods} on node {allocation_node(given) or ''}: {names}{more}"
    return object_event(claim, NORMAL, ALLOCATED, "Allocate", note)


def _grant(want: PendingGroup, claim: Object, answer: Mapping[str, Any], key: Key) -> WriteUnit:
    given = {**answer["allocations"], "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    status = {**claim.get("status", {}), "allocation": given, "reservedFor": want.users(key)}
    version = claim["metadata"]["resourceVersion"]
    notes = {**_records_removed(claim), **answer.get("annotations", {})}
    return WriteUnit((Change(_object_key(key), version, status, notes, finalizers=(FINALIZER,)),), granted=True)


def _release(want: PendingGroup, claim: Object) -> WriteUnit | None:
    """What a pod holds that cannot have the rest is free for others, and for itself elsewhere: it does not run."""
    users = {pod["metadata"]["uid"] for pod in want.pods}
    status = claim.get("status", {})
    if not {each.get("uid") for each in status.get("reservedFor") or ()} <= users:
        return None
    remaining = {name: value for name, value in status.items() if name not in ("allocation", "reservedFor", "devices")}
    version = claim["metadata"]["resourceVersion"]
    change = Change(_object_key(key_of(claim)), version, remaining, _records_removed(claim))
    return WriteUnit((change,), granted=False, released=True)


def _records_removed(claim: Object) -> dict[str, str | None]:
    """The change of annotations that takes away what an earlier allocation recorded."""
    return {name: None for name in (DEVICE_RECORDS,) if name in claim["metadata"].get("annotations", {})}


def _allocations(snapshot: Snapshot, pools: AllocatablePools) -> dict[ObjectKey, object]:
    """By claim, what it has of the pools of this allocator: kube-scheduler allocates all others."""
    claims = ((key, held_results(obj, pools)) for key, obj in snapshot.objects.items() if key.kind == KIND)
    return {key: results for key, results in claims if results}


def _object_key(key: Key) -> ObjectKey:
    return ObjectKey(KIND, *key)


def _names(want: PendingGroup) -> str:
    names = [pod["metadata"]["name"] for pod in want.pods]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
