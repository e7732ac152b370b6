"""ResourceClaims of an embedded store: all that wait are allocated, without pods, from its ResourceSlices.

A claim keeps its devices until it is deleted. Its annotations say why it waits, as those of a DeviceClaim do.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from devalloc.api.cordon import NODE_KIND
from devalloc.api.kinds import qualified_kind
from devalloc.api.meta import DEVICE_RECORDS, MESSAGE, REASON
from devalloc.api.reasons import STILL_SEARCHING
from devalloc.api.views import ClaimView
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.loop import AllocatorSettings, ReconcileLoop
from devalloc.controller.reconcile.resource_claims.pending import allocation_of
from devalloc.controller.reconcile.round_solver import RESOURCE_CLAIMS, RoundSolver
from devalloc.controller.reconcile.snapshot import Snapshot
from devalloc.controller.reconcile.stored_claims import by_unit
from devalloc.controller.reconcile.write_backoff import rejection_reason
from devalloc.store import Change, Fence, Key, Store

Object = dict[str, Any]

_API = "resource.k8s.io/v1"
CLAIM = "ResourceClaim"
SUPPLY_KINDS = frozenset({"ResourceSlice", "DeviceTaintRule", NODE_KIND, qualified_kind("DeviceClass", _API)})
"""What decides who gets what."""


class StoredClaimAllocator:
    """One ``run`` in one thread."""

    def __init__(
        self,
        store: Store,
        settings: AllocatorSettings | None = None,
        granted: Callable[[Iterable[Key]], None] = lambda keys: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``granted``: called with the claims that were given devices."""
        self._settings = settings or AllocatorSettings()
        self._granted = granted
        self._clock = clock
        self.loop = ReconcileLoop(
            "could not answer the ResourceClaims", store, self._settings, SUPPLY_KINDS | {CLAIM}, clock
        )
        # Each claim has its message, and no Event: none is to name a claim that is gone.
        self._solver = RoundSolver(replace(RESOURCE_CLAIMS, compared="message"), self.loop.searches, clock)
        self._version = ""
        """Of the last round that came to its end; empty before the first one."""
        self._is_unfinished = False
        """That round left something to answer, though nothing changes."""

    def run(self, stop: threading.Event) -> None:
        """Answer claims until ``stop`` is set. Raises Unusable; logs all other errors and tries again."""
        self.loop.run(stop, self.round, lambda: self._wait(stop))

    def round(self) -> None:
        """Answer all claims that wait, once, if something has changed since the last time. Raises StoreError."""
        snapshot = self.loop.reading.look()
        is_due = self._is_unfinished or self._solver.is_due or self.loop.refusals.has_entries()
        self.loop.is_again = False
        if snapshot.version == self._version and not is_due:
            return
        self._version, self._is_unfinished = "", True
        claims = {key: obj for key, obj in snapshot.objects.items() if key.kind == CLAIM}
        refused = self.loop.refusals.look(claims.values())
        waiting = {key: claim for key, claim in claims.items() if _is_pending(claim)}
        pending = {key: claim for key, claim in waiting.items() if key not in refused}
        answers = [_rejection(key, why) for key, why in refused.items() if key in waiting]
        if pending:
            others = (
                obj for key, obj in snapshot.objects.items() if key.kind != CLAIM or allocation_of(obj) is not None
            )
            self._solver.update(others, self._settings.placement)
            asking = (claim if "spec" in claim else {**claim, "spec": {}} for claim in pending.values())
            answer = self._solver.solve(by_unit(asking), self._settings.deadline)
            answers += answer["claims"]
            self.loop.is_again |= answer["again"] or any(each.get(STILL_SEARCHING) for each in answers)
        self._commit(waiting, answers, snapshot)
        self._version, self._is_unfinished = snapshot.version, self.loop.is_again

    def _commit(self, pending: Mapping[Key, Object], answers: Iterable[Mapping[str, Any]], snapshot: Snapshot) -> None:
        by_name = {(each["namespace"], each["name"]): each for each in answers}
        units: list[WriteUnit] = []
        groups: dict[tuple[str | None, str], list[Change]] = defaultdict(list)
        for key, claim in pending.items():
            answer = by_name.get((key.namespace or "default", key.name))
            if answer is None or answer.get(STILL_SEARCHING) or (change := _change(key, claim, answer)) is None:
                continue
            if answer["allocated"] and (group := ClaimView(claim).group) is not None:
                groups[key.namespace, group].append(change)
            else:
                units.append(WriteUnit((change,), granted=answer["allocated"]))
        units += [WriteUnit(tuple(changes), granted=True) for changes in groups.values()]
        fence = Fence(snapshot.version, specs=SUPPLY_KINDS, statuses=frozenset({CLAIM}))
        report = self.loop.commit(units, fence)
        self._granted(key for unit in units if unit.granted for key in unit.keys if key in report.written)

    def _wait(self, stop: threading.Event) -> None:
        self.loop.wait_for_change(self._version, self._clock() + self._settings.resync, stop)


def _is_pending(claim: Object) -> bool:
    return allocation_of(claim) is None and not claim["metadata"].get("deletionTimestamp")


def _rejection(key: Key, why: str) -> dict[str, Any]:
    """The answer to a claim whose allocation the store did not accept."""
    reason, message = rejection_reason(why)
    about = {"namespace": key.namespace or "default", "name": key.name}
    return {**about, "allocated": False, "reason": reason.value, "message": message}


def _change(key: Key, claim: Object, answer: Mapping[str, Any]) -> Change | None:
    """What is written on a claim; None if it says so already."""
    noted, version = claim["metadata"].get("annotations") or {}, claim["metadata"]["resourceVersion"]
    if answer["allocated"]:
        given = {**answer["allocations"], "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        notes = {name: None for name in (REASON, MESSAGE, DEVICE_RECORDS) if name in noted}
        return Change(
            key, version, {**(claim.get("status") or {}), "allocation": given}, notes | answer.get("annotations", {})
        )
    wanted = {REASON: str(answer["reason"]), MESSAGE: str(answer["message"])}
    if all(noted.get(name) == text for name, text in wanted.items()):
        return None
    return Change(key, version, claim.get("status"), wanted)
