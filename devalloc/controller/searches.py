"""Claims that take long to answer are answered beside the loop, so that nobody who competes with none of them waits.

A round gives the solver little time. A part of its claims (those that compete with each other) that this does not
suffice for is left unanswered, and searched by a thread with all the time that the deadline gives. Its answer is taken
in a later round if nothing has changed meanwhile that it depends on; it is remembered for as long as nothing does, so
that claims which nothing can be found for are not searched again.

Who searches for long comes last: of the parts that wait for the thread, the next is the one whose namespaces have had
the least of it. Where claims of such a namespace compete with others of no lower priority, these are answered first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from devalloc.store import Object

if TYPE_CHECKING:
    from devalloc_solver.parts import Summary

log = logging.getLogger(__name__)

QUICK = 0.25
"""Seconds that a round may search."""
HALF_LIFE = 60.0
"""Seconds after which half of what a namespace has spent is forgiven."""
MOST_ANSWERS = 256
"""Parts whose answers are remembered."""
MOST_CALLS = 64
"""Calls of ``solve`` after which a part that was in none of them is not searched any more: a round has a few."""
MOST_ROUNDS = 40
"""Rounds in which the expressions of a claim are evaluated further before it is told that the time ran out."""
MOST_NAMESPACES = 64
"""Namespaces that the seconds are counted of one by one; beyond, they are counted as ``OTHERS``."""
OTHERS = "(others)"
SEARCHING = "searching"
"""In an answer: the claim has none yet."""
_LIMIT = "SearchLimit"

_Answer = dict[str, Any]
_Key = tuple[str, str]


class Fleet(Protocol):
    """What is asked of the solver that a loop keeps warm."""

    def allocate_all(self, claims: Iterable[Object], deadline: float | None = None) -> _Answer: ...
    def parts(self, claims: Iterable[Object]) -> list[Summary]: ...
    def delete(self, document: Object) -> None: ...


Search = Callable[[Sequence[Object], Sequence[Object], float | None], _Answer]
"""Answers claims (the second) among all else that there is (the first), within a deadline; from any thread."""


@dataclass(frozen=True, slots=True)
class _Job:
    fingerprint: str
    documents: Sequence[Object]
    claims: Sequence[Object]
    priority: int
    deadline: float | None

    @property
    def namespaces(self) -> frozenset[str]:
        return frozenset(_key(claim)[0] for claim in self.claims)


@dataclass(slots=True)
class _Done:
    """The answer to a part."""

    answers: dict[_Key, _Answer]
    optimal: bool
    is_taken: bool = False
    """a round has found it to be of what there is"""


@dataclass(slots=True)
class Searches:
    """What one loop leaves to a thread, and what it remembers. ``solve`` is for the loop's thread alone."""

    search: Search
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Condition = field(default_factory=threading.Condition)
    _queue: dict[str, _Job] = field(default_factory=dict)
    _running: _Job | None = None
    _done: OrderedDict[str, _Done] = field(default_factory=OrderedDict)
    _wanted: dict[str, int] = field(default_factory=dict)
    """part -> the last call of ``solve`` that had it"""
    _calls: int = 0
    _is_open: bool = False
    _has_news: bool = False
    _spent: dict[str, tuple[float, float]] = field(default_factory=dict)
    """namespace -> seconds searched for it that are not forgiven yet, and when that was"""
    _seconds: dict[str, float] = field(default_factory=dict)
    """the same, nothing forgiven"""
    _failed: set[str] = field(default_factory=set)
    """parts of which the search ended with an error: they are answered in a round, which fails as well if need be"""
    _unread: dict[_Key, int] = field(default_factory=dict)
    """claims whose expressions there was no time for yet -> in how many rounds"""
    _overtaken: set[_Key] = field(default_factory=set)
    """claims of parts that were other by the time that they were answered: they take what is found at once"""

    # -- the loop ------------------------------------------------------------------------------------------------------

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Search in a thread meanwhile; at the end it is waited for."""
        self._is_open = True
        thread = threading.Thread(target=self._run, name="searches", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._is_open = False
                self._queue.clear()
                self._lock.notify_all()
            thread.join()

    @property
    def is_busy(self) -> bool:
        """Whether there may be news sooner or later."""
        with self._lock:
            return bool(self._queue or self._running or self._has_news)

    def news(self) -> bool:
        """Whether something was answered since this was last asked."""
        with self._lock:
            has_news, self._has_news = self._has_news, False
            return has_news

    def forget(self) -> None:
        """Something has changed that answers are made of and parts say nothing of, such as a configuration."""
        with self._lock:
            self._done.clear()
            self._failed.clear()
            self._queue.clear()
            self._running = None  # its answer is not taken

    def seconds(self) -> Mapping[str, float]:
        """What was searched for each namespace so far."""
        with self._lock:
            return dict(self._seconds)

    def solve(
        self,
        fleet: Fleet,
        documents: Sequence[Object],
        claims: Sequence[Object],
        deadline: float | None,
        others: Sequence[Object] = (),
    ) -> _Answer:
        """The dict of ``solve_manifests``. Claims that are searched for still have ``SEARCHING`` in theirs; ``again``
        is True where another call would answer more, and ``searching`` where a later one will.

        Args:
            fleet: knows the ``documents``, and is left as it was.
            claims: that wait.
            deadline: seconds that the search for a part may take.
            others: claims that are answered as well, and are not given anything.
        """
        if not self._is_open or (deadline is not None and deadline <= QUICK):
            return self._of_fleet(fleet, claims, deadline, others)
        by_key = {_key(claim): claim for claim in claims}
        settled: dict[_Key, _Answer] = {}
        waiting: set[_Key] = set()
        is_optimal, is_again = True, False
        self._calls += 1
        heavy = self._heavy()
        for summary in fleet.parts(claims) if heavy or self._knows_any() else ():
            keys = [key for unit in summary.units for key in unit]
            known = self._recall(name := _name(summary, by_key))
            if known is not None:
                settled |= known.answers
                waiting.update(key for key in keys if key not in known.answers)
                is_optimal = is_optimal and known.optimal
            elif self._is_searched(name):
                waiting.update(keys)
            elif len(summary.units) > 1 and self._overtaken.isdisjoint(keys) and any(key[0] in heavy for key in keys):
                settled |= (given := self._first_of(fleet, summary, by_key))
                waiting.update(key for key in keys if key not in given)
                is_again = is_again or bool(given)
                if not given:
                    self._submit(summary, documents, [by_key[key] for key in keys], by_key, deadline)
        self._notice_overtaken(by_key)
        left = [claim for key, claim in by_key.items() if key not in settled and key not in waiting]
        answer = self._of_fleet(fleet, left, QUICK, others)
        found: dict[_Key, _Answer] = {(each["namespace"], each["name"]): each for each in answer["claims"]}
        unproven = {*map(_key_of, answer.get("unproven", ()))}
        late = unproven | {key for key, each in found.items() if key in by_key and each["reason"] == _LIMIT}
        for summary in fleet.parts(left) if late else ():
            keys = [key for unit in summary.units for key in unit]
            if late.isdisjoint(keys):
                continue
            if self._has_failed(_name(summary, by_key)):
                mine = self._of_fleet(fleet, [by_key[key] for key in keys], deadline)["claims"]
                found |= {key: each for each in mine if (key := (each["namespace"], each["name"])) in keys}
                continue
            given = self._at_once(fleet, summary, by_key, found, unproven)
            for key in keys:
                if key in given:
                    found[key] = given[key]
                else:
                    found.pop(key, None)
                    waiting.add(key)
            is_again = is_again or bool(given)
            if not given:
                self._submit(summary, documents, [by_key[key] for key in keys], by_key, deadline)
        if unread := self._unread_of(by_key, found):
            waiting |= unread
            is_again = True
        found |= settled
        found |= {key: _open(key) for key in waiting}
        return {
            **answer,
            "claims": sorted(found.values(), key=lambda each: (each["namespace"], each["name"])),
            "optimal": answer["optimal"] and is_optimal and not waiting,
            "again": is_again,
            SEARCHING: bool(waiting) or is_again,
        }

    def _at_once(
        self,
        fleet: Fleet,
        summary: Summary,
        by_key: Mapping[_Key, Object],
        found: Mapping[_Key, _Answer],
        unproven: set[_Key],
    ) -> dict[_Key, _Answer]:
        """What claims of a part are given before the search for it is over: all that was found, where that is as much
        as there is, or where the search came too late the last time."""
        keys = {key for unit in summary.units for key in unit}
        if keys.isdisjoint(unproven) or not keys.isdisjoint(self._overtaken):
            self._overtaken -= keys
            return {key: found[key] for key in keys if found[key]["allocated"]}
        return self._first_of(fleet, summary, by_key)

    def _first_of(self, fleet: Fleet, summary: Summary, by_key: Mapping[_Key, Object]) -> dict[_Key, _Answer]:
        """What those claims of a part get among themselves whose namespaces have not been searched for, and that are of
        no lower priority than any of the others: so they do not wait for who is searched for all the time."""
        heavy = self._heavy()
        light = [unit for unit in summary.units if not any(key[0] in heavy for key in unit)]
        others = {key for unit in summary.units for key in unit}.difference(*light)
        most = max((summary.priorities[key] for key in others), default=None)
        first = [unit for unit in light if most is None or all(summary.priorities[key] >= most for key in unit)]
        if most is None or not first:
            return {}
        claims = [by_key[key] for unit in first for key in unit]
        answers = self._of_fleet(fleet, claims, QUICK)["claims"]
        mine = {_key(claim) for claim in claims}
        got = {(each["namespace"], each["name"]): each for each in answers}
        return {key: got[key] for key in mine if got[key]["allocated"]}

    def _unread_of(self, by_key: Mapping[_Key, Object], found: Mapping[_Key, _Answer]) -> set[_Key]:
        """Claims whose expressions take longer than a round has. The fleet remembers how far it came, so the next round
        goes on from there: these are not refused before."""
        from devalloc_solver.budget import OUT_OF_TIME  # takes a while to load

        late = [key for key in by_key if key in found and OUT_OF_TIME in (found[key].get("message") or "")]
        self._unread = {key: self._unread.get(key, 0) + 1 for key in late}
        return {key for key, rounds in self._unread.items() if rounds < MOST_ROUNDS}

    def _of_fleet(
        self, fleet: Fleet, claims: Sequence[Object], deadline: float | None, others: Sequence[Object] = ()
    ) -> _Answer:
        """Its answer, which it does not keep: the documents of a later round say what of it was written."""
        answer = fleet.allocate_all([*others, *claims], deadline)
        given = {(each["namespace"], each["name"]) for each in answer["claims"] if each["allocated"]}
        for claim in claims:
            if _key(claim) in given:
                fleet.delete(claim)
        return answer

    # -- what is known of parts ----------------------------------------------------------------------------------------

    def _knows_any(self) -> bool:
        with self._lock:
            return bool(self._done or self._queue or self._running)

    def _recall(self, name: str) -> _Done | None:
        with self._lock:
            self._wanted[name] = self._calls
            known = self._done.get(name)
            if known is not None:
                self._done.move_to_end(name)
                known.is_taken = True
            return known

    def _is_searched(self, name: str) -> bool:
        with self._lock:
            return name in self._queue or (self._running is not None and self._running.fingerprint == name)

    def _notice_overtaken(self, waiting: Mapping[_Key, Object]) -> None:
        """Answers that came too late: what they depend on has changed."""
        with self._lock:
            for name, done in [*self._done.items()]:
                if not done.is_taken:
                    del self._done[name]
                    self._overtaken |= done.answers.keys()
            self._overtaken &= waiting.keys()

    def _has_failed(self, name: str) -> bool:
        """Said once: after that it is searched for again."""
        with self._lock:
            has_failed = name in self._failed
            self._failed.discard(name)
            return has_failed

    def _submit(
        self,
        summary: Summary,
        documents: Sequence[Object],
        claims: Sequence[Object],
        by_key: Mapping[_Key, Object],
        deadline: float | None,
    ) -> None:
        name = _name(summary, by_key)
        with self._lock:
            self._wanted[name] = self._calls
            self._queue[name] = _Job(name, documents, claims, max(summary.priorities.values()), deadline)
            self._lock.notify_all()

    def _heavy(self) -> set[str]:
        """Namespaces that were searched for, and not long ago."""
        with self._lock:
            now = self.clock()
            return {namespace for namespace in self._spent if self._left(namespace, now) > QUICK}

    def _left(self, namespace: str, now: float) -> float:
        seconds, since = self._spent.get(namespace, (0.0, now))
        return float(seconds * 0.5 ** ((now - since) / HALF_LIFE))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            began = self.clock()
            try:
                answer = self.search(job.documents, job.claims, job.deadline)
                mine = {_key(claim) for claim in job.claims}
                found = {key: each for each in answer["claims"] if (key := (each["namespace"], each["name"])) in mine}
                done: _Done | None = _Done(found, answer["optimal"])
            except Exception:
                log.exception("could not answer %s", ", ".join("/".join(_key(claim)) for claim in job.claims[:8]))
                done = None
            self._finish(job, done, self.clock() - began)

    def _next(self) -> _Job | None:
        with self._lock:
            while True:
                if not self._is_open:
                    return None
                for name in [name for name in self._queue if self._wanted.get(name, 0) < self._calls - MOST_CALLS]:
                    del self._queue[name]
                if self._queue:
                    break
                self._lock.wait()
            now = self.clock()
            self._running = min(
                self._queue.values(),
                key=lambda job: (max(self._left(each, now) for each in job.namespaces), -job.priority),
            )
            return self._queue.pop(self._running.fingerprint)

    def _finish(self, job: _Job, done: _Done | None, seconds: float) -> None:
        answers = {} if done is None else done.answers
        refused = {key[0] for key, each in answers.items() if not each["allocated"]} or job.namespaces
        with self._lock:
            now = self.clock()
            for namespace in refused:
                share = seconds / len(refused)
                self._spent[namespace] = self._left(namespace, now) + share, now
                counted = namespace if namespace in self._seconds or len(self._seconds) < MOST_NAMESPACES else OTHERS
                self._seconds[counted] = self._seconds.get(counted, 0.0) + share
            self._spent = {name: (left, now) for name in self._spent if (left := self._left(name, now)) > QUICK / 16}
            self._wanted = {name: call for name, call in self._wanted.items() if call >= self._calls - MOST_CALLS}
            is_valid, self._running = self._running is job, None
            if is_valid and done is None:
                self._failed.add(job.fingerprint)
            elif is_valid and done is not None:
                self._done[job.fingerprint] = done
                while len(self._done) > MOST_ANSWERS:
                    self._done.popitem(last=False)
            self._has_news = True


def search_anew(placement: str) -> Search:
    """A search that begins with a fleet of its own."""

    def search(documents: Sequence[Object], claims: Sequence[Object], deadline: float | None) -> _Answer:
        from devalloc_solver import Fleet as NewFleet  # takes a while to load

        return NewFleet.from_manifests(documents, placement=placement).allocate_all(claims, deadline)

    return search


def _name(summary: Summary, claims: Mapping[_Key, Object]) -> str:
    """Of a part: it is the same one as long as what the solver looks at is, and what its claims ask for in words."""
    told = hashlib.sha256(summary.fingerprint.encode())
    for key in sorted(key for unit in summary.units for key in unit):
        told.update(json.dumps([key, claims[key].get("spec")], sort_keys=True).encode())
    return told.hexdigest()


def _open(key: _Key) -> _Answer:
    return {
        "namespace": key[0],
        "name": key[1],
        "allocated": False,
        "node": None,
        "allocations": [],
        "oneOf": None,
        "reason": _LIMIT,
        "message": "a place is searched for still",
        SEARCHING: True,
    }


def _key(claim: Object) -> _Key:
    metadata = claim["metadata"]
    return metadata.get("namespace") or "default", metadata["name"]


def _key_of(text: str) -> _Key:
    namespace, _, name = text.partition("/")
    return namespace, name
