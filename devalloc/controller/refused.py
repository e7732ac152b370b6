"""What the store would not write, so that it is not asked for again in vain.

An object may be one that the API server refuses to write on, whatever is decided: it has as many annotations as one
may have, a policy says no, its group is too large to be written as one. Were it asked for in each round, the solver
would set devices aside for it each time that nobody then has. So it is kept out until it, a class or a configuration
has changed; and because what refuses may be elsewhere (a policy, a right, a quota) it is tried again after a while,
ever more seldom.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.controller.claims import OF_ALLOCATION
from devalloc.controller.decision import Unit
from devalloc.controller.placing import KIND, Placing
from devalloc.store import Key, Object

log = logging.getLogger(__name__)

REFUSED = "Refused"
"""Reason of a claim or machine: what it was given could not be written."""
FIRST_SECONDS, MOST_SECONDS = 60.0, 3600.0
"""After which it is tried again though nothing of it has changed; twice as long after each further time, up to the
second."""
_LENGTH = 1000
"""Characters of what the server says that are told."""
_OURS = frozenset({*OF_ALLOCATION, meta.LEADER, meta.TRANSACTION, meta.RELEASE})
"""Annotations that the controller writes, or takes away."""
_ON_WHICH = frozenset({"DeviceClaim", KIND})
_NO_PART = frozenset({*_ON_WHICH, "DevicePool", "Namespace", "ResourceQuota"})
"""Kinds that say nothing of what is copied onto a claim, as classes and configurations do."""


@dataclass(frozen=True, slots=True)
class _Refused:
    why: str
    state: Any
    """What it depends on, as it was then."""
    until: float
    pause: float


class Refusals:
    """Of one allocator. Use from one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[tuple[bool, frozenset[Key]], _Refused] = {}
        """By whether it gave something to them, and by the objects of the unit."""
        self._documents: list[Object] = []

    def look(self, documents: Iterable[Object]) -> dict[Key, str]:
        """What is not to be asked for in a round on these documents, and why."""
        self._documents = [*documents]
        states = self._states() if self._refused else {}
        self._refused = {
            (gives, keys): one
            for (gives, keys), one in self._refused.items()
            if one.state == (_of(keys, states) if gives else self._versions(keys))
        }
        now = self._clock()
        return {
            key: one.why for (gives, keys), one in self._refused.items() if gives and now < one.until for key in keys
        }

    def is_known(self, unit: Unit) -> bool:
        """Whether a write that gives nothing was refused on just these states, and is not to be tried again yet."""
        one = self._refused.get((False, unit.keys))
        return one is not None and one.state == _based_on(unit) and self._clock() < one.until

    def note(self, unit: Unit, why: str) -> bool:
        """That it was refused, in a round on the documents of the last ``look``; logged once. Whether something was set
        aside for it that is free again when it is kept out."""
        gives = unit.granted or unit.grows
        state = _of(unit.keys, self._states()) if gives else _based_on(unit)
        before = self._refused.get((gives, unit.keys))
        is_old = before is not None and before.state == state
        pause = min(2 * before.pause, MOST_SECONDS) if before is not None and is_old else FIRST_SECONDS
        why = why if len(why) <= _LENGTH else f"{why[:_LENGTH]} ..."
        log.log(
            logging.DEBUG if is_old else logging.ERROR,
            "what was decided on %s is refused, and left until something of it changes: %s",
            ", ".join(sorted(map(str, unit.keys))[:8]),
            why,
        )
        now = self._clock()
        was_kept_out = before is not None and is_old and now < before.until
        self._refused[gives, unit.keys] = _Refused(why, state, now + pause, pause)
        return gives and not was_kept_out

    def _states(self) -> dict[Key | None, Any]:
        """What is looked at of each claim and machine, and (None) of all classes and configurations."""
        around = [doc["metadata"] for doc in self._documents if doc["kind"] not in _NO_PART]
        found: dict[Key | None, Any] = {
            Key.of(doc): _state(doc["metadata"]) for doc in self._documents if doc["kind"] in _ON_WHICH
        }
        found[None] = sorted((each["uid"], each.get("generation", 0)) for each in around)
        return found

    def _versions(self, keys: frozenset[Key]) -> Any:
        return {key: doc["metadata"]["resourceVersion"] for doc in self._documents if (key := Key.of(doc)) in keys}


def in_words(kept_out: Mapping[Key, str], placing: Placing) -> dict[tuple[str, str], tuple[str, str]]:
    """Reason and message of each claim of the solver's input that is not to be asked for."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for key, why in kept_out.items():
        name = key.namespace or "default", key.name
        parts: tuple[tuple[str, str], ...] = (name,)
        if key.kind == KIND:
            wish, growth = placing.wishes.get(name), placing.growing.get(name)
            parts = wish.parts if wish is not None else (growth.part,) if growth is not None else ()
        found |= dict.fromkeys(parts, (REFUSED, f"what it was given could not be written: {why}"))
    return found


def _state(metadata: Mapping[str, Any]) -> Any:
    """What others have written of an object, but for its status."""
    annotations = metadata.get("annotations", {})
    noted = {name: value for name, value in annotations.items() if name not in _OURS}
    return [metadata.get(name) for name in ("uid", "generation", "labels", "finalizers", "deletionTimestamp")], noted


def _of(keys: Iterable[Key], states: Mapping[Key | None, Any]) -> Any:
    return {key: states.get(key) for key in keys}, states[None]


def _based_on(unit: Unit) -> Any:
    return {change.key: change.resource_version for change in unit.changes}
