"""Back-off for writes that the store rejected, so that they are not tried again in vain.

An object may be one that the API server refuses to write on, whatever is decided: it has as many annotations as one
may have, a policy says no, its group is too large to be written as one. Were it asked for in each round, the solver
would each time reserve devices for it that no claim then gets. So it is kept out until it, a class or a configuration
has changed; and because what refuses may be elsewhere (a policy, a right, a quota) it is retried after a while,
less and less often.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from devalloc.api import meta
from devalloc.api.owner_names import MACHINE
from devalloc.api.reasons import Reason
from devalloc.api.views import MigrationView
from devalloc.backoff import backoff_delay
from devalloc.controller.reconcile.decision import WriteUnit
from devalloc.controller.reconcile.requester import RoundRequests
from devalloc.controller.reconcile.stored_claims import ALLOCATION_ANNOTATIONS
from devalloc.store import Change, Key, Object

log = logging.getLogger(__name__)

MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 60.0, 3600.0
"""The first and the longest back-off before it is tried again though nothing of it has changed."""
_MIGRATION = "VirtualMachineMigration"
_MAX_MESSAGE = 1000
"""Characters of the server's message that are reported."""
_OWN_ANNOTATIONS = frozenset(
    {*ALLOCATION_ANNOTATIONS, meta.LEADER, meta.TRANSACTION, meta.RELEASE, meta.EVICT, meta.LAST_NODE}
)
"""Annotations that the controller writes, or takes away."""
UNRELATED_KINDS = frozenset(
    {"DeviceClaim", "ResourceClaim", MACHINE, _MIGRATION, "DevicePool", "Namespace", "ResourceQuota"}
)
"""Kinds that say nothing of what is copied onto a claim, as classes and configurations do."""


@dataclass(frozen=True, slots=True)
class _UnitSignature:
    """Units that are alike: what is refused of one is of the next."""

    gives: bool
    """Something was set aside for it."""
    takes: bool
    keys: frozenset[Key]

    @classmethod
    def of(cls, unit: WriteUnit) -> _UnitSignature:
        return cls(unit.granted or unit.grows, unit.released, unit.keys)


@dataclass(frozen=True, slots=True)
class _RejectedUnit:
    why: str
    state: Any
    """What it depends on, as it was then."""
    until: float
    rejections: int
    """In a row, in this state."""


class _Documents:
    """The documents of one round, each index of them made once: many writes may be refused in one round."""

    def __init__(self, documents: Iterable[Object]) -> None:
        self._all = [*documents]

    @cached_property
    def by_key(self) -> Mapping[Key, Object]:
        return {Key.of(doc): doc for doc in self._all}

    @cached_property
    def copied(self) -> list[tuple[Any, Any]]:
        """The versions of those from which a claim's allocation is copied."""
        around = [doc["metadata"] for doc in self._all if doc["kind"] not in UNRELATED_KINDS]
        return sorted((each["uid"], each.get("generation", 0)) for each in around)


class WriteBackoff:
    """Of one loop. Use from one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[_UnitSignature, _RejectedUnit] = {}
        self._documents = _Documents(())

    def has_entries(self) -> bool:
        """Whether anything may have to be asked for again though nothing changes."""
        return bool(self._refused)

    def keys(self) -> frozenset[Key]:
        """The objects that the store did not let be written."""
        return frozenset(key for which in self._refused for key in which.keys)

    def look(self, documents: Iterable[Object]) -> dict[Key, str]:
        """What is not to be asked for in a round on these documents, and why."""
        self._documents = _Documents(documents)
        self._refused = {which: one for which, one in self._refused.items() if one.state == self._state(which)}
        now = self._clock()
        return {
            key: one.why
            for which, one in self._refused.items()
            if which.gives and now < one.until
            for key in which.keys
        }

    def is_backed_off(self, unit: WriteUnit) -> bool:
        """Whether a write that gives nothing was refused, and nothing has changed since that would help."""
        one = self._refused.get(which := _UnitSignature.of(unit))
        return one is not None and not which.gives and self._clock() < one.until

    def note(self, unit: WriteUnit, why: str) -> bool:
        """That it was refused, in a round on the documents of the last ``look``; logged once. Whether something was set
        aside for it that is free again when it is kept out."""
        which = _UnitSignature.of(unit)
        state, before = self._state(which), self._refused.get(which)
        is_old = before is not None and before.state == state
        rejections = 1 + (before.rejections if before is not None and is_old else 0)
        pause = backoff_delay(rejections, MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        why = why if len(why) <= _MAX_MESSAGE else f"{why[:_MAX_MESSAGE]} ..."
        log.log(
            logging.DEBUG if is_old else logging.ERROR,
            "the decision on %s was refused; devalloc tries again in %.0f s, or after a change: %s",
            ", ".join(sorted(map(str, unit.keys))[:8]),
            pause,
            why,
        )
        now = self._clock()
        was_kept_out = before is not None and is_old and now < before.until
        self._refused[which] = _RejectedUnit(why, state, now + pause, rejections)
        return which.gives and not was_kept_out

    def _state(self, which: _UnitSignature) -> Any:
        """What it depends on. What is given is copied from classes and configurations; what is said is of the object's
        status. Not its resourceVersion: of two writes the first may have been done, and put back."""
        there = self._documents.by_key
        members = {key: _written_by_others(there.get(key), with_status=not which.gives) for key in which.keys}
        return (members, self._documents.copied) if which.gives else members


def unit_of(obj: Object) -> WriteUnit:
    """A write of this object alone that gives nothing, for loops beside the rounds of an allocator."""
    change = Change.of(obj, obj.get("status"))
    return WriteUnit((change,), granted=False, released=True)


def rejection_messages(
    kept_out: Mapping[Key, str], requests: RoundRequests
) -> dict[tuple[str, str], tuple[Reason, str]]:
    """Reason and message of each claim of the solver's input that is not to be asked for."""
    reasons: dict[tuple[str, str], tuple[Reason, str]] = {}
    for key, why in kept_out.items():
        reasons |= dict.fromkeys(requests.parts_of(key), rejection_reason(why))
    return reasons


def rejection_reason(why: str) -> tuple[Reason, str]:
    """Reason and message of a claim that ``WriteBackoff`` keeps out, as the store did not accept its allocation."""
    return Reason.REFUSED, f"the allocation could not be written: {why}"


def _written_by_others(obj: Object | None, *, with_status: bool) -> Any:
    """What others have written of an object."""
    if obj is None:
        return None
    metadata = obj["metadata"]
    noted = {name: value for name, value in metadata.get("annotations", {}).items() if name not in _OWN_ANNOTATIONS}
    fields = [metadata.get(name) for name in ("uid", "generation", "labels", "finalizers", "deletionTimestamp")]
    return fields, noted, _relevant_status(obj) if with_status else None


def _relevant_status(obj: Object) -> Any:
    """Of a migration only the phase: its source writes the progress each second, and a refusal outlasts that."""
    return MigrationView(obj).phase if obj["kind"] == _MIGRATION else obj.get("status")
