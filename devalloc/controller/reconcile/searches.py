"""Background searches for hard claims, so that claims that compete with none of them do not wait.

A round first answers what is quickly answered (``is_quick`` of the fleet). Parts of the batch that take longer are
queued for a thread, which searches one after the other, each with all the time that the deadline gives. A later round
takes the answer if nothing has changed meanwhile that it depends on, and remembers it for as long as nothing does: what
nothing can be found for is not searched again. Where a part is proven to get nothing at all, so is each of its claims
or groups, with or without the others: a round that asks for some of them needs no search. Parts are those by device
(``devalloc_solver.pipeline.decomposition``).

Namespaces have fair shares of the thread: the next part is the one whose namespaces have used least of it lately. If
a part has claims of a namespace that has used much of it, the claims of others that are of no lower priority are
answered first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from devalloc.api.reasons import STILL_SEARCHING, Reason, refusal_answer
from devalloc.api.views import Order, order_of
from devalloc.controller.reconcile.stored_claims import ClaimUnit, by_unit, key_of_claim, unit_of_claim
from devalloc.store import Object

if TYPE_CHECKING:
    from devalloc_solver.pipeline.decomposition import SubproblemSummary

log = logging.getLogger(__name__)

QUICK_SECONDS = 0.25
"""Seconds that a round may search; more on a busy machine (``quick_search_end``)."""
LOAD_SECONDS = 5.0
"""How long rounds wait for the solver to be loaded: from the first round that waits for it. Half a second is enough,
but not on a machine that is busy with those who write the claims."""
HALF_LIFE_SECONDS = 60.0
"""Seconds after which half of what a namespace has used counts no more."""
RETRY_SECONDS = 60.0
"""Seconds after which a search that failed may be tried again, though nothing has changed."""
MAX_UNITS_ALONE = 64
"""Claims or groups that a part may have for its result to answer some of them as well."""
MAX_RESULTS = 256
"""Parts whose results are remembered."""
MAX_IDLE_CALLS = 64
"""Calls of ``solve`` after which a queued part, or a result, that was in none of them is dropped: a round has a few."""
MAX_ROUND_CALLS = 20
"""Calls of ``solve`` that a round has at most, unless several namespaces have quotas."""
LATE_SECONDS = QUICK_SECONDS / 4
"""Seconds that a round evaluates expressions further for which earlier rounds had no time."""
MAX_EVALUATION_ROUNDS = 160
"""Rounds in which the expressions of a claim are evaluated further before it is refused because the time ran out."""
MAX_NAMESPACES = 64
"""Namespaces whose seconds are counted one by one; those of all others are counted as ``OTHER_NAMESPACES``."""
OTHER_NAMESPACES = "(others)"

_Answer = dict[str, Any]
_Key = tuple[str, str]


class SearchableFleet(Protocol):
    """What is asked of the solver that a loop keeps warm."""

    def allocate_all(
        self, claims: Iterable[Object], deadline: float | None = None, *, is_quick: bool = False
    ) -> Any: ...
    def parts(
        self, claims: Iterable[Object], deadline: float | None = None, *, alone: bool = False
    ) -> list[SubproblemSummary]: ...
    def delete(self, document: Object) -> None: ...


SearchFunction = Callable[[Sequence[Object], Sequence[Object], float | None], _Answer]
"""Answers claims (the second) among all else that there is (the first), within a deadline; from any thread."""


@dataclass(frozen=True, slots=True)
class _IndependentClaims:
    """Claims that compete for devices with each other and with no others of the batch."""

    fingerprint: str
    """the same as long as what the answer depends on is"""
    units: Sequence[Sequence[_Key]]
    """claims that are satisfied together or not at all"""
    claims: Mapping[_Key, Object]
    priorities: Mapping[_Key, int]

    @property
    def namespaces(self) -> frozenset[str]:
        return frozenset(namespace for namespace, _ in self.claims)


@dataclass(frozen=True, slots=True)
class _SearchJob:
    part: _IndependentClaims
    documents: Sequence[Object]
    deadline: float | None
    alone: frozenset[str] = frozenset()
    """the fingerprints that its units have without the others"""


@dataclass(slots=True)
class _SearchResult:
    """What the thread found for a part."""

    answers: Mapping[_Key, _Answer]
    is_optimal: bool
    until: float | None = None
    """when it is forgotten; None for no such time"""
    is_taken: bool = False
    """a round has found that nothing has changed that it depends on"""
    call: int = 0
    """the call of ``solve`` that was the last when it came"""
    refused_alone: frozenset[str] = frozenset()
    """the fingerprints of units that are proven to get nothing, with or without the others"""
    unasked: set[_Key] = field(init=False)
    """claims that no call has asked for since"""

    def __post_init__(self) -> None:
        self.unasked = {*self.answers}


@dataclass(slots=True)
class _SearchUsage:
    """How much of the thread namespaces have used. Not thread-safe."""

    recent: dict[str, tuple[float, float]] = field(default_factory=dict)
    """namespace -> seconds that still count, and when that was"""
    total: dict[str, float] = field(default_factory=dict)
    """namespace -> seconds, all that were ever used"""

    def of(self, namespace: str, now: float) -> float:
        seconds, since = self.recent.get(namespace, (0.0, now))
        return float(seconds * 0.5 ** ((now - since) / HALF_LIFE_SECONDS))

    def heavy(self, now: float) -> frozenset[str]:
        """The namespaces that have used more lately than a round has."""
        return frozenset(namespace for namespace in self.recent if self.of(namespace, now) > QUICK_SECONDS)

    def charge(self, namespaces: Iterable[str], seconds: float, now: float) -> None:
        """Each of the namespaces has used an even share of the seconds, for each time that it is named."""
        times = Counter(namespaces)
        for namespace in sorted(times):
            share = seconds * times[namespace] / times.total()
            self.recent[namespace] = self.of(namespace, now) + share, now
            counted = namespace if namespace in self.total or len(self.total) < MAX_NAMESPACES else OTHER_NAMESPACES
            self.total[counted] = self.total.get(counted, 0.0) + share
        self.recent = {name: (left, now) for name in self.recent if (left := self.of(name, now)) > QUICK_SECONDS / 16}


@dataclass(slots=True)
class _AnswerBatch:
    """The answers of one call of ``solve``, as they come."""

    claims: Mapping[_Key, Object]
    answers: dict[_Key, _Answer] = field(default_factory=dict)
    waiting: set[_Key] = field(default_factory=set)
    """claims that are answered in a later round"""
    is_optimal: bool = True
    is_again: bool = False
    """another round would answer more"""

    def take(self, part: _IndependentClaims, answers: Mapping[_Key, _Answer]) -> None:
        """The answers to some claims of a part; the others wait."""
        for key in part.claims:
            self.answers.pop(key, None)
        self.answers |= answers
        self.waiting |= part.claims.keys() - answers.keys()

    @property
    def open(self) -> list[Object]:
        """Claims that nothing is decided of yet."""
        return [claim for key, claim in self.claims.items() if key not in self.answers and key not in self.waiting]


@dataclass(slots=True)
class BackgroundSearches:
    """The searches of one loop, and what they found. ``solve`` is for the loop's thread alone."""

    search: SearchFunction
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Condition = field(default_factory=threading.Condition)
    _queue: dict[str, _SearchJob] = field(default_factory=dict)
    _running: _SearchJob | None = None
    _results: OrderedDict[str, _SearchResult] = field(default_factory=OrderedDict)
    _last_call: dict[str, int] = field(default_factory=dict)
    """part -> the last call of ``solve`` that had it"""
    _calls: int = 0
    is_open: bool = False
    """whether there is a thread"""
    _has_news: bool = False
    _usage: _SearchUsage = field(default_factory=_SearchUsage)
    _late_rounds: dict[_Key, int] = field(default_factory=dict)
    """claims whose expressions there was no time for yet -> in how many rounds"""
    _gave_way: bool = False
    """those were left to the next round, so that it has one of them"""
    _overtaken: dict[_Key, int] = field(default_factory=dict)
    """claims for which the state changed while they were searched for, and the call in which that was seen: the next
    time they take what a round finds"""

    _solver_loaded: threading.Event = field(default_factory=threading.Event)
    _is_solver_wanted: bool = False
    """whether there was a claim"""
    _wait_ends: float | None = None
    """when no round waits for the solver any more; None before the first that does"""

    # -- the loop ------------------------------------------------------------------------------------------------------

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Search in a thread meanwhile; at the end it is waited for."""
        thread = threading.Thread(target=self._run, name="searches", daemon=True)
        self.is_open = True
        try:
            thread.start()
        except BaseException:  # no thread is to be had
            self.is_open = False
            raise
        try:
            yield
        finally:
            with self._lock:
                self.is_open = False
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
            self._results.clear()
            self._queue.clear()
            self._running = None  # its answer is not taken

    def seconds(self) -> Mapping[str, float]:
        """What was searched for each namespace so far."""
        with self._lock:
            return dict(self._usage.total)

    def bounded(self, seconds: float | None) -> float | None:
        """The seconds that a round may take for one claim: what takes longer is searched for in the thread."""
        if not self.is_open:
            return seconds
        return QUICK_SECONDS if seconds is None else min(seconds, QUICK_SECONDS)

    def is_late(self, claims: Iterable[Object]) -> bool:
        """Whether the expressions of one of these claims are evaluated in turns, round after round."""
        return any(key_of_claim(claim) in self._late_rounds for claim in claims)

    def solve(
        self,
        fleet: SearchableFleet,
        documents: Sequence[Object],
        claims: Sequence[Object],
        deadline: float | None,
        others: Sequence[Object] = (),
    ) -> _Answer:
        """The dict of ``solve_manifests``. Claims that are searched for still have ``STILL_SEARCHING`` in theirs;
        ``again`` is True if another call would answer more, and ``searching`` if a later one will.

        Args:
            fleet: knows the ``documents``, and is left as it was.
            claims: that wait.
            deadline: seconds that the search for a part may take.
            others: claims that are answered as well, and are not given anything.
        """
        if not self.is_open or (deadline is not None and deadline <= QUICK_SECONDS):
            return self._of_fleet(fleet, claims, deadline, others)
        self._await_solver(claims)
        batch = _AnswerBatch({key_of_claim(claim): claim for claim in claims})
        self._calls += 1
        heavy = self._heavy()
        with self._lock:
            before = [*self._results]
        late_units = {unit_of_claim(claim) for key, claim in batch.claims.items() if key in self._late_rounds}
        read = {key: claim for key, claim in batch.claims.items() if unit_of_claim(claim) not in late_units}
        is_mixed = len({namespace in heavy for namespace, _ in read}) > 1
        for part in _parts_of(fleet, read) if is_mixed or self._remembers() else ():
            if (result := self._result_of(part)) is not None:
                batch.take(part, result.answers)
                batch.is_optimal &= result.is_optimal
            elif (refused := self._refused_with_others(fleet, part)) is not None:
                batch.take(part, refused)
            elif self._is_searched(part):
                batch.take(part, {})
            elif (
                len(part.units) > 1
                and heavy & part.namespaces
                and self._overtaken.keys().isdisjoint(part.claims)
                and (light := self._light_answers(fleet, part, heavy))
            ):
                self._leave(fleet, batch, part, light, documents, deadline)
        self._note_overtaken(batch, before)
        is_late = self._let_one_be_evaluated(batch, late_units)
        began = self.clock()
        answer = self._of_fleet(fleet, batch.open, LATE_SECONDS if is_late else QUICK_SECONDS, others, is_quick=True)
        with self._lock:
            self._usage.charge((key[0] for key in map(key_of_claim, batch.open)), self.clock() - began, self.clock())
        quick = {key_of_answer(each): each for each in answer["claims"]}
        unproven = {*map(_key_of_text, answer.get("unproven", ()))}
        late = unproven | {
            key
            for key, each in quick.items()
            if key in batch.claims and each["reason"] == Reason.SEARCH_LIMIT and each.get("exceeded") != "time"
        }
        left = {key_of_claim(claim): claim for claim in batch.open}
        batch.answers |= quick
        for part in _parts_of(fleet, left) if late else ():
            if not late.isdisjoint(part.claims):
                given = self._answers_before_search(fleet, part, quick, unproven, heavy)
                self._leave(fleet, batch, part, given, documents, deadline)
        self._leave_unread(batch, unproven)
        batch.answers |= {key: _searching_answer(key) for key in batch.waiting}
        return {
            **answer,
            "claims": [batch.answers[key] for key in sorted(batch.answers)],
            "optimal": answer["optimal"] and batch.is_optimal and not batch.waiting,
            "again": batch.is_again,
            STILL_SEARCHING: bool(batch.waiting) or batch.is_again,
        }

    def _leave(
        self,
        fleet: SearchableFleet,
        batch: _AnswerBatch,
        part: _IndependentClaims,
        given: Mapping[_Key, _Answer],
        documents: Sequence[Object],
        deadline: float | None,
    ) -> None:
        """Leave a part to the thread, or, if some of its claims are given something, to the round after."""
        batch.take(part, given)
        if given:
            batch.is_again = True
            return
        job = _SearchJob(part, documents, deadline, frozenset(self._fingerprints_alone(fleet, part)))
        with self._lock:
            self._last_call[part.fingerprint] = self._calls
            self._queue[part.fingerprint] = job
            self._lock.notify_all()

    def _answers_before_search(
        self,
        fleet: SearchableFleet,
        part: _IndependentClaims,
        quick: Mapping[_Key, _Answer],
        unproven: set[_Key],
        heavy: frozenset[str],
    ) -> dict[_Key, _Answer]:
        """What claims of a part are given before it is searched: all that the round found, if no more can be given, and
        only reasons are open."""
        if unproven.isdisjoint(part.claims):
            return {key: quick[key] for key in part.claims if quick[key]["allocated"]}
        if self._overtaken.keys().isdisjoint(part.claims):
            return self._light_answers(fleet, part, heavy)
        for key in part.claims:
            self._overtaken.pop(key, None)
        return self._given(fleet, [*part.claims.values()])

    def _light_answers(
        self, fleet: SearchableFleet, part: _IndependentClaims, heavy: frozenset[str]
    ) -> dict[_Key, _Answer]:
        """What claims of other namespaces than the heavy ones get among themselves, if they are of no lower priority
        than any of these: so they do not wait for who is searched for all the time."""
        light = [unit for unit in part.units if not any(namespace in heavy for namespace, _ in unit)]
        others = part.claims.keys() - {key for unit in light for key in unit}
        if not others:
            return {}
        highest = max(part.priorities[key] for key in others)
        first = [key for unit in light if all(part.priorities[key] >= highest for key in unit) for key in unit]
        return self._given(fleet, [part.claims[key] for key in first]) if first else {}

    def _given(self, fleet: SearchableFleet, claims: Sequence[Object]) -> dict[_Key, _Answer]:
        """What a round finds for these claims."""
        keys = {key_of_claim(claim) for claim in claims}
        answers = self._of_fleet(fleet, claims, QUICK_SECONDS)["claims"]
        return {key: each for each in answers if (key := key_of_answer(each)) in keys and each["allocated"]}

    def _let_one_be_evaluated(self, batch: _AnswerBatch, late_units: Collection[ClaimUnit]) -> bool:
        """Leave claims whose expressions take long to later rounds, with their groups. Rounds alternate: one has all
        other claims, which are answered at once, the next one such claim or group, which has all the time that it
        takes. Of these the first is that of the namespace that has used least. Returns whether this round has one."""
        units = {unit: claims for unit, claims in by_unit(batch.open).items() if unit in late_units}
        others = [claim for claim in batch.open if unit_of_claim(claim) not in units]
        self._gave_way = bool(units and others) and not self._gave_way
        if not units:
            return False
        if not self._gave_way:
            now = self.clock()
            others = min(units.values(), key=lambda claims: self._turn(claims, now))
        batch.waiting |= {*map(key_of_claim, batch.open)} - {*map(key_of_claim, others)}
        batch.is_again = True
        return not self._gave_way

    def _turn(self, claims: Sequence[Object], now: float) -> tuple[float, int, Order]:
        """The place of a unit among those whose expressions take long. Those of a namespace are evaluated one after the
        other: the fleet remembers a limited number of verdicts."""
        rounds = max(self._late_rounds.get(key_of_claim(claim), 0) for claim in claims)
        with self._lock:
            return self._usage.of(key_of_claim(claims[0])[0], now), -rounds, min(map(order_of, claims))

    def _leave_unread(self, batch: _AnswerBatch, unproven: set[_Key]) -> None:
        """Claims whose expressions take longer than a round has are not refused yet, nor are their groups: the fleet
        remembers how far it came, so a later round goes on from there."""
        late_units = {
            unit_of_claim(claim)
            for key, claim in batch.claims.items()
            if (each := batch.answers.get(key)) is not None
            and (each.get("exceeded") == "time" or (key in unproven and not each["allocated"]))
        }
        late = [key for key, claim in batch.claims.items() if late_units and unit_of_claim(claim) in late_units]
        aside = {key: rounds for key, rounds in self._late_rounds.items() if key in batch.waiting}
        self._late_rounds = aside | {key: self._late_rounds.get(key, 0) + 1 for key in late}
        unread = {key for key, rounds in self._late_rounds.items() if rounds < MAX_EVALUATION_ROUNDS}
        batch.waiting |= unread
        batch.is_again |= bool(unread)

    def _of_fleet(
        self,
        fleet: SearchableFleet,
        claims: Sequence[Object],
        deadline: float | None,
        others: Sequence[Object] = (),
        *,
        is_quick: bool = False,
    ) -> _Answer:
        """Its answer, which it does not keep."""
        answer: _Answer = fleet.allocate_all([*others, *claims], deadline, is_quick=is_quick)
        forget_given(fleet, claims, answer["claims"])
        return answer

    # -- what is known of parts ----------------------------------------------------------------------------------------

    def _heavy(self) -> frozenset[str]:
        with self._lock:
            return self._usage.heavy(self.clock())

    def _remembers(self) -> bool:
        """Whether any part has a result, or is searched."""
        with self._lock:
            return bool(self._results or self._queue or self._running)

    def _result_of(self, part: _IndependentClaims) -> _SearchResult | None:
        with self._lock:
            self._last_call[part.fingerprint] = self._calls
            result = self._results.get(part.fingerprint)
            if result is None:
                return None
            if result.until is not None and self.clock() > result.until:
                del self._results[part.fingerprint]
                return None
            self._results.move_to_end(part.fingerprint)
            result.is_taken = True
            return result

    def _refused_with_others(self, fleet: SearchableFleet, part: _IndependentClaims) -> Mapping[_Key, _Answer] | None:
        """The answers to a part of whose claims a larger one was proven to get nothing, as long as nothing changes that
        these depend on."""
        with self._lock:
            larger = [
                (fingerprint, result)
                for fingerprint, result in self._results.items()
                if result.refused_alone and part.claims.keys() <= result.answers.keys()
            ]
        alone = frozenset(self._fingerprints_alone(fleet, part) if larger else ())
        for fingerprint, result in larger:
            if alone and alone <= result.refused_alone:
                with self._lock:
                    self._last_call[fingerprint] = self._calls
                    result.is_taken = True
                return {key: result.answers[key] for key in part.claims}
        return None

    def _fingerprints_alone(self, fleet: SearchableFleet, part: _IndependentClaims) -> list[str]:
        """What the fingerprint of each unit of a part is without the others; nothing if there are too many."""
        if len(part.units) == 1:
            return [part.fingerprint]
        if len(part.units) > MAX_UNITS_ALONE:
            return []
        alone = [each.fingerprint for each in _parts_of(fleet, part.claims, alone=True)]
        return alone if len(alone) == len(part.units) else []

    def _is_searched(self, part: _IndependentClaims) -> bool:
        with self._lock:
            is_running = self._running is not None and self._running.part.fingerprint == part.fingerprint
            return is_running or part.fingerprint in self._queue

    def _note_overtaken(self, batch: _AnswerBatch, before: Iterable[str]) -> None:
        """Note for which claims a result came too late: this call asks for them, and what the result depends on has
        changed, which may be no more than that another claim of the part is gone. Claims that have an answer now are
        no longer overtaken: others that compete with them go first again.

        A round with quotas asks in several calls, for some claims in one and for others in the next. So a claim that
        this call does not ask for is noted in a later one, and a result stays for a while: another call may take it.
        Only results of ``before`` count: others came while this call was under way.
        """
        with self._lock:
            oldest = self._calls - MAX_IDLE_CALLS
            for fingerprint in before:
                result = self._results.get(fingerprint)
                if result is None:
                    continue
                if not result.is_taken:
                    requested = result.unasked & batch.claims.keys()
                    result.unasked -= requested
                    self._overtaken |= dict.fromkeys(requested, self._calls)
                # Each round looks for the parts of its claims as long as there is a result, which takes time.
                is_overtaken = not result.is_taken and not result.unasked
                last = max(result.call, self._last_call.get(fingerprint, 0))
                if last <= (self._calls - MAX_ROUND_CALLS if is_overtaken else oldest):
                    del self._results[fingerprint]
            self._last_call = {name: call for name, call in self._last_call.items() if call > oldest}
            self._overtaken = {
                key: call for key, call in self._overtaken.items() if key not in batch.answers and call > oldest
            }

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._load_when_wanted()
        while (job := self._next()) is not None:
            began = self.clock()
            try:
                _load_solver()
                began = self.clock()
                answer = self.search(job.documents, [*job.part.claims.values()], job.deadline)
                answers = {key: each for each in answer["claims"] if (key := key_of_answer(each)) in job.part.claims}
                result = _SearchResult(answers, answer["optimal"])
            except Exception:
                log.exception("could not answer %s", ", ".join("/".join(key) for key in [*job.part.claims][:8]))
                result = _SearchResult(
                    {key: _failed_answer(key) for key in job.part.claims}, False, self.clock() + RETRY_SECONDS
                )
            self._finish(job, result, self.clock() - began)

    def _load_when_wanted(self) -> None:
        """Load the solver at the first claim: it takes memory, which a store without claims does not need."""
        with self._lock:
            while self.is_open and not self._is_solver_wanted:
                self._lock.wait()
            if not self.is_open:
                return
        with suppress(Exception):  # a search says why
            _load_solver()
        self._solver_loaded.set()

    def _await_solver(self, claims: Sequence[Object]) -> None:
        """A moment for the thread to load the solver: without it the round would leave several claims to a search."""
        if self._solver_loaded.is_set() or not claims:
            return
        with self._lock:
            self._is_solver_wanted = True
            self._lock.notify_all()
        if len(claims) > 1:
            now = self.clock()
            if self._wait_ends is None:
                self._wait_ends = now + LOAD_SECONDS
            if now < self._wait_ends:
                self._solver_loaded.wait(self._wait_ends - now)

    def _next(self) -> _SearchJob | None:
        with self._lock:
            while True:
                if not self.is_open:
                    return None
                for fingerprint in [*self._queue]:
                    if self._last_call.get(fingerprint, 0) < self._calls - MAX_IDLE_CALLS:
                        del self._queue[fingerprint]
                if self._queue:
                    break
                self._lock.wait()
            now = self.clock()

            def turn(job: _SearchJob) -> tuple[float, int]:
                used = max(self._usage.of(namespace, now) for namespace in job.part.namespaces)
                return used, -max(job.part.priorities.values())

            self._running = min(self._queue.values(), key=turn)
            return self._queue.pop(self._running.part.fingerprint)

    def _finish(self, job: _SearchJob, result: _SearchResult, seconds: float) -> None:
        refused_claims = [key for key, each in result.answers.items() if not each["allocated"]]
        refused = {namespace for namespace, _ in refused_claims}
        with self._lock:
            self._usage.charge(refused or job.part.namespaces, seconds, self.clock())
            oldest = self._calls - MAX_IDLE_CALLS
            self._last_call = {name: call for name, call in self._last_call.items() if call >= oldest}
            if self._running is job:
                self._running = None
                result.call = self._calls
                if result.is_optimal and len(refused_claims) == len(job.part.claims):
                    result.refused_alone = job.alone
                self._results[job.part.fingerprint] = result
                while len(self._results) > MAX_RESULTS:
                    self._results.popitem(last=False)
            self._has_news = True


def search_with_new_fleet(placement: str, cel_check: str = "refuse") -> SearchFunction:
    """A search that begins with a fleet of its own."""

    def search(documents: Sequence[Object], claims: Sequence[Object], deadline: float | None) -> _Answer:
        from devalloc_solver import Fleet as NewFleet  # takes a while to load

        fleet = NewFleet.from_manifests(documents, placement=placement, cel_check=cel_check)
        return cast(_Answer, fleet.allocate_all(claims, deadline))

    return search


def _load_solver() -> None:
    """Not in the loop, where claims would wait for it, and without delaying others."""
    from devalloc_solver.exact.model import load_solver  # takes a while itself

    load_solver()


def _parts_of(
    fleet: SearchableFleet, claims: Mapping[_Key, Object], *, alone: bool = False
) -> Iterator[_IndependentClaims]:
    """``alone``: each unit as a part of its own."""
    for summary in fleet.parts(claims.values(), QUICK_SECONDS, alone=alone):
        own_claims = {key: claims[key] for unit in summary.units for key in unit}
        # What the solver looks at, and what the claims ask for in words, as refusals quote it.
        digest = hashlib.sha256(summary.fingerprint.encode())
        for key in sorted(own_claims):
            digest.update(json.dumps([key, own_claims[key].get("spec")], sort_keys=True).encode())
        yield _IndependentClaims(digest.hexdigest(), summary.units, own_claims, summary.priorities)


def _searching_answer(key: _Key) -> _Answer:
    """Answer a claim while the search for a place for it goes on."""
    answer = refusal_answer(key, Reason.SEARCH_LIMIT, "the search for a place is not finished")
    return {**answer, STILL_SEARCHING: True}


def _failed_answer(key: _Key) -> _Answer:
    """Answer a claim whose search for a place ended with an error."""
    message = "the search for a place failed; see the log of the controller"
    return refusal_answer(key, Reason.SEARCH_LIMIT, message)


def forget_given(fleet: SearchableFleet, claims: Iterable[Object], answers: Iterable[_Answer]) -> None:
    """Take from the fleet what claims that wait were given: the documents of a later round say what was written."""
    given = {key_of_answer(each) for each in answers if each["allocated"]}
    for claim in claims:
        if key_of_claim(claim) in given:
            fleet.delete(claim)


def key_of_answer(answer: _Answer) -> _Key:
    """Namespace and name of its claim."""
    return answer["namespace"], answer["name"]


def _key_of_text(text: str) -> _Key:
    namespace, _, name = text.partition("/")
    return namespace, name
