"""The loop: pods that wait for claims of ours, a joint solve, the allocations written, Events for what is refused.

Safe against a second allocator as with DeviceClaims: only the leader runs it, and before it decides it writes on each
claim of its own (``devalloc.controller.leader.fencing`` says why), so that what the leader before it still sends is
refused. A write of whose end nobody knows is made known in the same way before anything else is decided.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from devalloc.api import meta
from devalloc.backoff import Backoff
from devalloc.controller.reconcile.events import NORMAL, WARNING, ObjectEvent
from devalloc.controller.reconcile.redaction import redact
from devalloc.controller.reconcile.resource_claims.cluster_state import ClusterState, SolverRequest
from devalloc.controller.reconcile.resource_claims.kinds import (
    CLAIM_RESOURCE,
    OPTIONAL_KINDS,
    WATCHED_KINDS,
    WATCHED_RESOURCES,
)
from devalloc.controller.reconcile.resource_claims.pending import (
    Key,
    PendingGroup,
    allocation_node,
    allocation_of,
    is_for_devalloc,
)
from devalloc.controller.reconcile.resource_claims.warm_solver import IncrementalResourceSolver
from devalloc.controller.reconcile.searches import BackgroundSearches, search_with_new_fleet
from devalloc.store import Conflict, Expired, NotFound, StoreError
from devalloc.store import Key as ObjectKey
from devalloc.store.errors import Forbidden, Invalid, UnknownOutcome
from devalloc.store.kubernetes.api_error import ApiError
from devalloc.store.kubernetes.client import Client
from devalloc.store.kubernetes.informer_cache import InformerCache
from devalloc.store.kubernetes.object_writer import ObjectWriter
from devalloc.store.kubernetes.reflector import Reflector
from devalloc.store.kubernetes.resources import ResourceRegistry
from devalloc_solver.explain.reasons import STILL_SEARCHING

log = logging.getLogger(__name__)

Object = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
"""As kube-scheduler sets it: kube-controller-manager takes back what such a claim holds, and removes it."""
WRITER_THREADS = 8
DELETIONS_KEPT = 10_000
AVOID_SECONDS = 60.0
"""How long a claim is not given devices of a node from which kube-scheduler sent it back."""
ALLOCATED = "Allocated"
"""Reason of the Event of a claim that was given devices."""
SENT_BACK, UNSUITABLE = "SentBack", "NoSuitableNode"
"""Reasons of Events of claims that wait."""
REJECTED_SECONDS = 60.0
"""How long a claim is left alone whose allocation the API server refused."""


@dataclass(frozen=True, slots=True)
class ResourceClaimSettings:
    """How claims are answered."""

    placement: str = "pack"
    deadline: float | None = 10.0
    """Seconds the solver may think about one batch; None for as long as it takes."""
    batch: float = 0.05
    """Seconds to wait after a change for more, so that what is made together is solved together."""
    resync: float = 60.0
    retry: float = 1.0
    """Seconds to wait after a round that failed; twice as long after each further one, up to ``resync``."""


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
    refused_until: float = 0.0
    reason: str = ""
    """The reason that was told last."""


class ResourceClaimAllocator:
    """One ``run`` in one thread."""

    def __init__(
        self,
        client: Client,
        *,
        stamp: str,
        may_write: Callable[[], bool] = lambda: True,
        record: Callable[[Iterable[ObjectEvent]], None] = lambda happened: None,
        progress: Callable[[ResourceClaimRound], None] = lambda done: None,
        gave: Callable[[Object], None] = lambda claim: None,
        settings: ResourceClaimSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``stamp``: a text that no leader had before. ``may_write``: asked before each write. ``record``: told what is
        to be an Event. ``gave``: told of each claim that was given devices, from several threads."""
        self._settings = settings or ResourceClaimSettings()
        self._stamp = stamp
        self._record = record
        self._progress = progress
        self._gave = gave
        self._clock = clock
        self._mirror = InformerCache(DELETIONS_KEPT)
        self._client = client
        self._writing = ObjectWriter(client, ResourceRegistry(WATCHED_RESOURCES), self._mirror.see, may_write)
        self._cluster = ClusterState()
        self.searches = BackgroundSearches(search_with_new_fleet(self._settings.placement), clock)
        self._solver = IncrementalResourceSolver(self._settings.placement, clock, self.searches)
        self._notes: dict[str, _ClaimNotes] = {}
        self._doubtful: set[Key] = set()
        self._stamps = count(1)
        self._last_requests: list[SolverRequest] = []
        self._place = 0
        self._reflectors: list[Reflector] = []
        self.began: float | None = None
        """When what it is at began, by the monotonic clock; None in between."""
        self.failing: float | None = None
        """Since when all that it tries fails."""

    @property
    def silent_seconds(self) -> float:
        """For how long it has not been told of what changes of some kind; 0 while it is."""
        return max((reflector.silent_seconds for reflector in self._reflectors), default=0.0)

    def run(self, stop: threading.Event) -> None:
        """Take over, and answer claims until ``stop`` is set. What fails is logged and tried again."""
        reflectors = self._reflectors = [
            Reflector(self._client, resource, self._mirror) for resource in WATCHED_RESOURCES
        ]
        versions: dict[str, str] = {}
        try:
            with ThreadPoolExecutor(WRITER_THREADS, thread_name_prefix="resourceclaims") as writers:
                if not self._tried(lambda: versions.update(self._listed(reflectors, writers)), stop):
                    return
                for reflector in reflectors:
                    if reflector.resource.kind in versions:
                        reflector.begin(versions[reflector.resource.kind])
                with self.searches.in_thread():
                    while self._tried(lambda: self.round(writers), stop):
                        self._wait(stop)
        finally:
            for reflector in reflectors:
                reflector.end()
            for reflector in reflectors:
                reflector.join(5.0)

    def _tried(self, act: Callable[[], object], stop: threading.Event) -> bool:
        """Do it, again and again where it fails; False once ``stop`` is set."""
        backoff, last_error = Backoff(self._settings.retry, self._settings.resync), ""
        while not stop.is_set():
            try:
                self.began = time.monotonic()
                act()
                self.began = self.failing = None
                return True
            except Exception as error:
                self.failing, self.began = self.failing or self.began, None
                self._last_requests = []
                pause = backoff.next_delay()
                unexpected = None if isinstance(error, (ApiError, StoreError)) else error
                news = str(error) != last_error
                last_error = str(error)
                message = "cannot answer ResourceClaims, next try in %.0f s: %s"
                log.log(logging.WARNING if news else logging.DEBUG, message, pause, error, exc_info=unexpected)
                stop.wait(pause)
        return False

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _listed(self, reflectors: Sequence[Reflector], writers: ThreadPoolExecutor) -> dict[str, str]:
        """Read all there is, with every claim of ours sealed; the version of each kind.

        Those that hold devices too: the leader before may have sent that they are taken back, since when their pod may
        have been scheduled, and no mark of a node on the claim refuses it.
        """
        reflectors[0].list()
        claims = [
            claim
            for claim in self._mirror.select(frozenset({CLAIM_RESOURCE.kind}), None).objects
            if is_for_devalloc(claim)
        ]
        for _ in writers.map(self._settle, [_key(claim) for claim in claims], claims):
            pass  # raises what one of them did
        versions = {}
        for reflector in reflectors:
            resource = reflector.resource
            try:
                versions[resource.kind] = reflector.list()
            except ApiError as error:
                if resource.kind not in OPTIONAL_KINDS or error.status != 404:
                    raise
                log.info("the cluster does not serve %s of %s", resource.plural, resource.version)
        return versions

    def _settle(self, key: Key, current: Object | None = None) -> None:
        """Write on a claim, after which nothing that was sent before can change it: no grant, and no taking back from a
        pod that begins to run meanwhile. Raises StoreError.

        One that has as many annotations as the API server takes gets a label instead; what refuses that as well is
        left, as in ``devalloc.controller.leader.fencing``. ``current``: the claim as it was read just now.
        """
        place = "annotations"
        while True:
            try:
                claim, current = current or self._writing.read(ObjectKey(CLAIM_RESOURCE.kind, *key)), None
                metadata = claim["metadata"]
                stamp = f"{self._stamp} {next(self._stamps)}" if place == "annotations" else secrets.token_hex(8)
                marked = {**metadata.get(place, {}), meta.LEADER: stamp}
                self._writing.write({**claim, "metadata": {**metadata, place: marked}})
                return
            except NotFound:
                return
            except Conflict:
                continue
            except (Forbidden, Invalid) as error:
                if place == "labels" and isinstance(error, Forbidden):
                    raise
                if place == "labels":
                    log.error("cannot fence ResourceClaim %s: %s", "/".join(key), error)
                    return
                place = "labels"

    # -- rounds --------------------------------------------------------------------------------------------------------

    def round(self, writers: ThreadPoolExecutor) -> None:
        """Answer all claims that pods wait for, once, where something has changed since the last time."""
        for key in sorted(self._doubtful):
            self._settle(key)
            self._doubtful.discard(key)
        self._hear()
        now = self._clock()
        claims = self._cluster.claims()
        wants = self._cluster.wants()
        self._note(claims, wants, now)
        wants = [want for want in wants if not any(self._of(claims[key]).refused_until > now for key in want.claims)]
        avoided = {
            key: frozenset(node for node, until in self._of(claims[key]).avoided.items() if until > now)
            for want in wants
            for key in want.claims
        }
        requests = self._cluster.build_requests(wants, avoided)
        is_new = self._solver.tell(self._cluster.documents())
        if requests == self._last_requests and not (is_new or self._solver.is_due):
            return
        documents, began = [document for each in requests for document in each.documents], time.monotonic()
        answers = {
            (each["namespace"], each["name"]): each
            for each in (self._solver.solve(documents, self._settings.deadline) if documents else ())
        }
        seconds = time.monotonic() - began
        outcomes = list(writers.map(lambda each: self._answer(each, answers, claims), requests))
        self._record(happened := [event for happened, _ in outcomes for event in happened])
        granted = [
            ObjectKey(CLAIM_RESOURCE.kind, event.regarding["namespace"], event.regarding["name"])
            for event in happened
            if event.reason == ALLOCATED
        ]
        held = sum(is_for_devalloc(claim) and allocation_of(claim) is not None for claim in claims.values())
        waiting = sum(len(want.claims) for want in self._cluster.wants())
        self._progress(ResourceClaimRound(held + len(granted), waiting - len(granted), granted, seconds))
        for error in (error for _, error in outcomes if error is not None):
            raise error
        is_searching = any(each.get(STILL_SEARCHING) for each in answers.values())
        self._last_requests = [] if is_searching else requests

    def _hear(self) -> None:
        try:
            events, self._place = self._mirror.events(WATCHED_KINDS, self._place, deletions=self._place > 0)
        except Expired:
            self._cluster.clear()
            events, self._place = self._mirror.events(WATCHED_KINDS, 0, deletions=False)
        self._cluster.tell(events)

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
                    happened.append(_event_of(claims[key], WARNING, SENT_BACK, note))
        self._record(happened)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _answer(
        self, request: SolverRequest, answers: Mapping[Key, Mapping[str, Any]], claims: Mapping[Key, Object]
    ) -> tuple[list[ObjectEvent], StoreError | None]:
        """Write what a want is given, or say why it is not; an error that concerns more than it."""
        want = request.want
        if any(answers[key].get(STILL_SEARCHING) for key in want.claims if key in answers):
            return [], None
        refusals = [answers[key] for key in want.claims if key in answers and not answers[key]["allocated"]]
        # Most members of a group only report that another member cannot be satisfied.
        refused = min(refusals, key=lambda each: each["reason"] == "GroupUnsatisfiable", default=None)
        try:
            if request.misfit is None and refused is None:
                return [self._give(want, claims[key], answers[key], key) for key in want.claims], None
            for key in want.held:
                self._take_back(want, claims[key])
        except (Conflict, NotFound) as error:
            log.info("left for the next round: %s", error)
            return [], None
        except (Forbidden, Invalid) as error:
            return self._refused(want, claims, "Refused", str(error), wait=True), None
        except StoreError as error:
            return [], error
        reason = UNSUITABLE if refused is None else str(refused["reason"])
        message = request.misfit or str(refused and refused["message"])
        if request.expression:
            message = message.replace(request.expression, "<a node that suits the pod>")
        message = redact(message, want.claims[0][0], lambda *key: key in claims)
        return self._refused(want, claims, reason, message), None

    def _give(self, want: PendingGroup, claim: Object, answer: Mapping[str, Any], key: Key) -> ObjectEvent:
        metadata = claim["metadata"]
        notes = self._of(claim)
        if FINALIZER not in metadata.get("finalizers", ()):
            updated = {**metadata, "finalizers": [*metadata.get("finalizers", ()), FINALIZER]}
            claim = self._writing.write({**claim, "metadata": updated})
        given = {**answer["allocations"], "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        status = {**claim.get("status", {}), "allocation": given, "reservedFor": want.users(key)}
        claim = self._written(key, {**claim, "status": status})
        notes.given, notes.reason = allocation_node(given) or "", ""
        notes.users = frozenset(each["uid"] for each in status["reservedFor"])
        self._gave(claim)
        results = given["devices"].get("results", [])
        names = ", ".join(f"{each['pool']}/{each['device']}" for each in results[:8])
        more = f" and {len(results) - 8} more" if len(results) > 8 else ""
        return _event_of(claim, NORMAL, ALLOCATED, f"for pod {_names(want)} on node {notes.given}: {names}{more}")

    def _take_back(self, want: PendingGroup, claim: Object) -> None:
        """What a pod holds that cannot have the rest is free for others, and for itself elsewhere: it does not run."""
        users = {pod["metadata"]["uid"] for pod in want.pods}
        status = claim.get("status", {})
        if {each.get("uid") for each in status.get("reservedFor") or ()} <= users:
            remaining = {
                name: value for name, value in status.items() if name not in ("allocation", "reservedFor", "devices")
            }
            self._of(claim).given = ""
            self._written(_key(claim), {**claim, "status": remaining})

    def _written(self, key: Key, claim: Object) -> Object:
        try:
            return self._writing.write_status(claim)
        except UnknownOutcome:
            self._doubtful.add(key)
            raise

    def _refused(
        self, want: PendingGroup, claims: Mapping[Key, Object], reason: str, message: str, *, wait: bool = False
    ) -> list[ObjectEvent]:
        """Told once for each reason, of the claims and the pods."""
        news = [claims[key] for key in want.claims if self._of(claims[key]).reason != reason]
        for key in want.claims:
            notes = self._of(claims[key])
            notes.reason = reason
            if wait:
                notes.refused_until = self._clock() + REJECTED_SECONDS
        if not news:
            return []
        return [_event_of(each, WARNING, reason, message) for each in (*news, *want.pods)]

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _wait(self, stop: threading.Event) -> None:
        """Until something was heard of, or a time is over that somebody waits for."""
        if self._solver.is_again:
            stop.wait(self._settings.batch)
            return
        until = time.monotonic() + self._settings.resync
        if self._notes:
            ends = [t for each in self._notes.values() for t in (*each.avoided.values(), each.refused_until)]
            left = [end - self._clock() for end in ends if end > self._clock()]
            until = min([until, *(time.monotonic() + each + 0.1 for each in left)])
        while not stop.is_set() and time.monotonic() < until:
            if self.searches.news():
                return
            with self._mirror.changed:
                if self._mirror.newest > self._place:
                    break
                self._mirror.changed.wait(0.2)
        stop.wait(self._settings.batch)


def _key(claim: Object) -> Key:
    return claim["metadata"]["namespace"], claim["metadata"]["name"]


def _names(want: PendingGroup) -> str:
    names = [pod["metadata"]["name"] for pod in want.pods]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _event_of(obj: Object, kind: str, reason: str, note: str) -> ObjectEvent:
    metadata = obj["metadata"]
    about = {"apiVersion": obj["apiVersion"], "kind": obj["kind"]}
    about |= {name: metadata[name] for name in ("namespace", "name", "uid", "resourceVersion") if metadata.get(name)}
    return ObjectEvent(about, kind, reason, "Allocate", note)
