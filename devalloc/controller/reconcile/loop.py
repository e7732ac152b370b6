"""The one reconcile loop, of which each allocator is an adapter: its settings, its pauses, and the fenced commit.

A round writes all that it decided in one commit. The commit is fenced: if something changed on which the decision
depends, nothing is written. So two allocators, or one and a concurrent release, never give one device to two claims.

The label from which a node knows that a claim or a machine is its own is written with the allocation, in the same
write. A round also writes it on objects that lack it: those of an earlier version, those whose label a user removed,
and machines that name a node themselves.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from devalloc.api.kinds import ALLOCATABLE_KINDS
from devalloc.api.meta import NODE_LABEL, node_label, parse_time
from devalloc.api.owner_names import MACHINE
from devalloc.api.views import ClaimView, MachineView, ObjectView
from devalloc.backoff import Backoff, Retry
from devalloc.controller.reconcile.decision import IN_ANNOTATIONS, AnswerForm, WriteUnit
from devalloc.controller.reconcile.requester import Requester
from devalloc.controller.reconcile.searches import BackgroundSearches, search_with_new_fleet
from devalloc.controller.reconcile.snapshot import Memo, Snapshot, SnapshotReader
from devalloc.controller.reconcile.write_backoff import WriteBackoff
from devalloc.controller.settings import DEFAULT_MIGRATION_LIMITS, MigrationLimits
from devalloc.store import (
    Change,
    Conflict,
    Event,
    Expired,
    Fence,
    FenceBroken,
    Key,
    NoSpace,
    Object,
    SkippedForSpace,
    Store,
    StoreError,
    Unusable,
    WriteRejected,
)
from devalloc.store.metadata_rules import with_change
from devalloc.tracing import record_first_span
from devalloc_solver.pipeline import admission
from devalloc_solver.problem.placement_policy import DEFAULT_PLACEMENT

MAX_REPAIRS = 200
"""Labels that a round writes on objects that need nothing else: claims that wait must not wait for an upgrade."""


def labelled_units(objects: Mapping[Key, Object], units: Sequence[WriteUnit]) -> list[WriteUnit]:
    """``units`` with the labels that their objects need then."""
    return [replace(unit, changes=tuple(_labelled(objects[each.key], each) for each in unit.changes)) for unit in units]


def missing_labels(objects: Iterable[tuple[Key, Object]], apart_from: Collection[Key], memo: Memo) -> list[WriteUnit]:
    """Units for the objects whose label is not as it should be."""
    changes = (
        memo.of("node label", obj, partial(_label_change, key, obj))
        for key, obj in objects
        if key.kind in ALLOCATABLE_KINDS and key not in apart_from
    )
    return [WriteUnit((change,), granted=False) for change in changes if change is not None]


def owning_node(obj: Object) -> str | None:
    """The node that has the object, else the one that is to have it; None if there is none."""
    if Key.of(obj).kind == MACHINE:
        return MachineView(obj).running_node or None
    claim = ClaimView(obj)
    if claim.is_held:
        return claim.holder or claim.node
    return claim.node if claim.entries else None


def _label_change(key: Key, obj: Object) -> Change | None:
    change = Change(key, obj["metadata"]["resourceVersion"], obj.get("status"))
    labelled = _labelled(obj, change)
    return None if labelled is change else labelled


def _labelled(obj: Object, change: Change) -> Change:
    """The change with the label that the object needs after it."""
    if change.key.kind not in ALLOCATABLE_KINDS:
        return change
    node = owning_node(with_change(obj, change))
    value = None if node is None else node_label(node)
    if obj["metadata"].get("labels", {}).get(NODE_LABEL) == value:
        return change
    return replace(change, labels={**change.labels, NODE_LABEL: value})


log = logging.getLogger(__name__)

_SEARCH_POLL_SECONDS = 0.1
"""Seconds between two looks for the results of searches that run beside the loop."""
_NO_SPACE_SECONDS = 10.0
"""The longest pause after a write to a full disk: the disk may have space at any moment."""
_COMMIT_ATTEMPTS = 5
"""How often a commit is repeated because of writes that do not matter to it."""


@dataclass(frozen=True)
class AllocatorSettings:
    """How claims are answered."""

    placement: str = DEFAULT_PLACEMENT
    """The name of a placement policy (S17)."""
    cel_check: str = "refuse"
    """``refuse``: a claim gets nothing of which two evaluators judge an expression differently; ``warn``: it does."""
    deadline: float | None = 10.0
    """Seconds that the solver may use for one batch; None for as long as it takes."""
    admin_namespaces: admission.AdminNamespaces = "all"
    """Where claims may have admin access (S14): everywhere, or only in namespaces with the label ``ADMIN_ACCESS``."""
    form: AnswerForm = IN_ANNOTATIONS
    """Where claims say why they have no devices."""
    labels_nodes: bool = False
    """Claims and machines get a label with their node, which watches only these. Not in an embedded store, which has
    no watch that a label could make cheaper."""
    hides_names: bool = False
    """No message contains the names of claims and machines of other namespaces."""
    batch: float = 0.05
    """Seconds to wait after a change for more, so that what is applied together is solved together."""
    resync: float = 60.0
    """Seconds after which a round looks at everything again, although nothing seems to have changed."""
    availability: float = 0.0
    """Minimum seconds between two counts of available devices, and so between two writes of a pool's availableDevices:
    on a cluster each is a request."""
    migrations: MigrationLimits = DEFAULT_MIGRATION_LIMITS
    requesters: tuple[Requester[Any], ...] = ()
    """What asks for devices beside claims."""
    retry: float = 1.0
    """Seconds to wait after a round that failed, doubled after each further one, up to ``resync``."""


@dataclass(frozen=True)
class CommitReport:
    """What became of a round's units."""

    written: Mapping[Key, Object] = field(default_factory=dict)
    """The objects as stored."""
    rejected: Sequence[tuple[WriteUnit, str]] = ()
    """Units that the store does not accept, with the reason."""


class ReconcileLoop:
    """Round after round: read what changed, decide, write it in one fenced commit, wait for the next change.

    An allocator gives the decision (``act`` of ``run``) and says when a decision still holds (``commit``). All else is
    here: snapshots, searches beside the loop, back-off after failures and for refused writes, fences, pauses. ``run``
    in one thread; read the fields from any.
    """

    def __init__(
        self,
        what: str,
        store: Store,
        settings: AllocatorSettings,
        kinds: Iterable[str] | None,
        clock: Callable[[], float],
    ) -> None:
        """``what``: what a failing round could not do, for the log. ``kinds``: what is read to decide; None for all."""
        self._what = what
        self._store = store
        self._settings = settings
        self._kinds = None if kinds is None else frozenset(kinds)
        self._ignored: frozenset[str] = frozenset()
        """Kinds that do not count, though they may be in the store."""
        self._clock = clock
        self._stop = threading.Event()
        self.reading = SnapshotReader(store, self._kinds)
        self.searches = BackgroundSearches(search_with_new_fleet(settings.placement, settings.cel_check), clock)
        self.refusals = WriteBackoff(clock)
        self.is_again = False
        """Another round is due at once: devices were set aside in vain, or work was left over."""
        self.is_unfinished = False
        """Something that was written is marked still as not yet given: the store takes the marks away before it writes
        anything else."""
        self.began: float | None = None
        """When the current round began, by ``clock``; None between rounds."""
        self.failing: float | None = None
        """Since when all rounds fail."""

    def ignore_kind(self, kind: str) -> None:
        """Decide without these objects, which may not be read, or do not count here. Before ``run``."""
        self._ignored |= {kind}
        self._kinds = None if self._kinds is None else self._kinds - {kind}
        self.reading = SnapshotReader(self._store, self._kinds, self._ignored)

    def run(self, stop: threading.Event, act: Callable[[], object], wait: Callable[[], object]) -> None:
        """``act`` until ``stop`` is set, with ``wait`` after a round that left nothing to do. Raises Unusable; logs all
        other errors and tries again."""
        self._stop = stop
        with self.searches.in_thread():
            self._run(stop, act, wait)

    def _run(self, stop: threading.Event, act: Callable[[], object], wait: Callable[[], object]) -> None:
        retry = Retry(log, self._what, self._settings.retry, self._settings.resync, expected=(StoreError,))
        reread = Backoff(self._settings.retry, self._settings.resync)
        while not stop.is_set():
            try:
                self.began = self._clock()
                act()
                retry.succeeded()
                self.began = self.failing = None
                if self.is_unfinished:
                    stop.wait(self._settings.retry)
                elif self.is_again:
                    stop.wait(self._settings.batch)  # users write the claims of a group one by one
                else:
                    wait()
                reread.reset()
            except Expired:
                stop.wait(reread.next_delay())
            except Unusable:
                raise
            except Exception as error:
                self.failing = self.began if self.failing is None else self.failing
                self.began = None
                is_full = isinstance(error, NoSpace) or isinstance(error.__cause__, NoSpace)
                stop.wait(retry.failed(error, _NO_SPACE_SECONDS if is_full else math.inf))

    def wait_for_change(
        self, version: str, until: float, stop: threading.Event, matters: Callable[[Event], bool] = lambda event: True
    ) -> bool:
        """Until something that ``matters`` has changed after ``version``, a search has ended, ``until``, or ``stop``.
        Whether a round is due."""
        while not stop.is_set() and (now := self._clock()) < until:
            if self.searches.news():
                return True
            due = min(until, now + _SEARCH_POLL_SECONDS) if self.searches.is_busy else until
            with closing(self._store.watch(self._kinds, version, timeout=max(0.0, due - now), stop=stop)) as events:
                if any(matters(event) for event in events if Key.of(event.object).kind not in self._ignored):
                    stop.wait(self._settings.batch)
                    return True
        return False

    def commit(
        self,
        units: Iterable[WriteUnit],
        fence: Fence | None,
        standing: Callable[[Sequence[WriteUnit], Snapshot], Sequence[WriteUnit] | None] = lambda units, now: None,
    ) -> CommitReport:
        """Write the units whose objects are still as they were; none if the fence is broken, or after a stop.

        ``standing``: called if the fence is broken, because much breaks it that does not matter to the decision, and
        slow decisions would otherwise never be written: the units that still hold; None: decide again. Raises
        StoreError.
        """
        units = [unit for unit in units if not self.refusals.is_backed_off(unit)]
        if self._stop.is_set() or not (units or self.is_unfinished):
            return CommitReport()
        renewals = _COMMIT_ATTEMPTS
        while True:
            try:
                outcomes = self._store.commit_each([unit.changes for unit in units], fence)
                break
            except FenceBroken as broken:
                now = self.reading.look() if renewals else None
                left = None if now is None else standing(units, now)
                if left is None or now is None or fence is None:
                    log.info("decided on an outdated state, deciding again: %s", broken)
                    return CommitReport()
                self.is_again |= len(left) < len(units)
                units, fence = [*left], replace(fence, resource_version=now.version)
                renewals -= 1
        written: dict[Key, Object] = {}
        rejected: list[tuple[WriteUnit, str]] = []
        for unit, outcome in zip(units, outcomes, strict=True):
            if isinstance(outcome, WriteRejected):
                self.is_again |= self.refusals.note(unit, outcome.why)
                rejected.append((unit, outcome.why))
            elif isinstance(outcome, Conflict):
                log.info("left for the next round: %s", outcome)
            else:
                written |= {Key.of(obj): obj for obj in outcome}
                if unit.granted:
                    _trace(outcome)
        if (skipped := next((each for each in outcomes if isinstance(each, SkippedForSpace)), None)) is not None:
            raise NoSpace(skipped.why)  # nothing reports when there is space again, so all is decided again soon
        self.is_unfinished = any(ObjectView(obj).is_unsettled for obj in written.values())
        return CommitReport(written, rejected)


def _trace(objects: Iterable[Object]) -> None:
    """The first span of each claim among these, which were written with devices."""
    for obj in objects:
        if obj["kind"] not in ("DeviceClaim", "ResourceClaim"):
            continue
        metadata = obj["metadata"]
        with suppress(KeyError, TypeError, ValueError):  # an object without a time or a UID has no trace
            began = parse_time(metadata["creationTimestamp"]).timestamp()
            names = {"k8s.namespace.name": metadata.get("namespace") or "", "devalloc.claim.name": metadata["name"]}
            record_first_span(metadata["uid"], "allocate", began, time.time(), **names)
