"""The solvers of the loops: a Fleet that is kept from round to round and receives only what has changed."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from devalloc.api.meta import GROUP
from devalloc.api.reasons import Reason, is_final_refusal
from devalloc.api.views import ClaimView, order_of
from devalloc.controller.reconcile.searches import QUICK_SECONDS, BackgroundSearches, search_with_new_fleet
from devalloc.controller.reconcile.write_backoff import UNRELATED_KINDS
from devalloc.store import Object
from devalloc_solver import WaitingBook
from devalloc_solver.deadline import seconds_left
from devalloc_solver.problem.placement_policy import DEFAULT_PLACEMENT

if TYPE_CHECKING:
    from devalloc_solver import Fleet

ObjectName = tuple[str, ...]
"""What an object is called among those of a loop: equal for the same object, and its kind is in it."""
_ClaimKey = tuple[str, str]
_Answer = dict[str, Any]

_INCREMENTAL_KINDS = frozenset({"ResourceSlice", "ResourceClaim"})
"""Kinds that the solver's parts of a batch say all of; answers are made of classes as well."""
REST_FACTOR = 20.0
"""How many times as long as the solver was busy with it a claim is left alone whose expressions were too expensive."""
WAKE_SECONDS = 0.02
"""How long a round looks for units that a change could help; the rest is left to the next one."""
REFRESHED = 50
"""Units whose refusals a round finds anew, because they are old."""
REFRESHED_SECONDS = 0.05
"""How long a round that finds them anew is to take: a claim that comes meanwhile waits for it."""
REFRESH_PAUSE = 1.0
"""Seconds between two such rounds."""
MAX_EXPENSIVE = 10_000
"""Such claims that are remembered; of more the oldest are forgotten."""


class WarmFleet:
    """A fleet, and the documents that it has. Not thread-safe.

    The fleet does not keep what a round decided: the next round reads from the documents what was written.
    An error leaves nothing behind: then the next round begins with all documents.
    """

    def __init__(self, cel_check: str = "refuse") -> None:
        """``cel_check``: see ``AllocatorSettings``."""
        self._cel_check = cel_check
        self.loaded: dict[ObjectName, Object] = {}
        self.settled: dict[ObjectName, Object] = {}
        """documents that the fleet has although the last update was not given them"""
        self._fleet: Fleet | None = None
        self._placement = ""

    def update(
        self,
        documents: dict[ObjectName, Object],
        placement: str,
        is_unchanged: Callable[[Object | None, Object], bool],
    ) -> dict[ObjectName, Object | None] | None:
        """Give the fleet all documents. Returns those that are new or changed, or (None) gone. None: all are new.

        They are what the store has now. It orders what it reads itself, and after the restore of a backup it goes on
        with older states, so the fleet takes them whatever their version is.
        """
        from devalloc_solver import Fleet  # takes a while to load

        fleet, self._fleet = self._fleet, None
        changed: dict[ObjectName, Object | None] | None = None
        if fleet is None or placement != self._placement:
            manifests = [*self.settled.values(), *documents.values()]
            fleet = Fleet.from_manifests(manifests, placement=placement, cel_check=self._cel_check, freeze=True)
        else:
            changed = dict.fromkeys(name for name in self.loaded if name not in documents)
            for name in changed:
                fleet.delete(self.loaded[name])
            for name, document in documents.items():
                if not is_unchanged(self.loaded.get(name), document):
                    fleet.update(document, is_current=True)
                    changed[name] = document
        self.loaded, self._placement, self._fleet = documents, placement, fleet
        return changed

    def settle(self, name: ObjectName) -> None:
        """Leave a document in the fleet although the next updates are not given it."""
        if (document := self.loaded.pop(name, None)) is not None:
            self.settled[name] = document

    def unsettle(self, name: ObjectName) -> None:
        """The next update is given the document, or it is gone."""
        if (document := self.settled.pop(name, None)) is not None:
            self.loaded[name] = document

    def is_ready(self, placement: str) -> bool:
        """Whether there is a fleet with this placement, of the documents of the last update."""
        return self._fleet is not None and self._placement == placement

    def take(self) -> Fleet:
        """The fleet, for a question; ``put_back`` it afterwards."""
        fleet, self._fleet = self._fleet, None
        assert fleet is not None, "the fleet must be loaded first"
        return fleet

    def put_back(self, fleet: Fleet) -> None:
        """Nothing went wrong."""
        self._fleet = fleet


class _WaitingFleet:
    """A warm fleet, and what waits for a change of it."""

    def __init__(self, kind: str, clock: Callable[[], float], cel_check: str = "refuse") -> None:
        self._warm = WarmFleet(cel_check)
        compared = "message" if kind == "DeviceClaim" else "reason"  # of ResourceClaims, messages have their names
        self.waiting = WaitingBook(kind, clock, compared)

    def _note_changes(self, changed: Mapping[ObjectName, Object | None] | None) -> None:
        """Note what they could help. ``changed``: by the last update; None: all."""
        if changed is None or changed:
            fleet = self._warm.take()
            self.waiting.catch_up(fleet)
            self._warm.put_back(fleet)

    def wake(self, seconds: float | None) -> list[Hashable]:
        """The units that a change could help (``WaitingBook.wake``)."""
        fleet = self._warm.take()
        units = self.waiting.wake(fleet, seconds)
        self._warm.put_back(fleet)
        return units

    def rest(self, unit: Hashable, order: tuple[Any, ...], claims: Sequence[Object], answer: _Answer | None) -> bool:
        """Leave a unit alone that was refused, until a change could help it; whether that can be told.

        ``answer``: that of a single claim; None for claims that are satisfied together, and are proven not to fit.
        """
        fleet = self._warm.take()
        if answer is None:
            is_left = self.waiting.rest_together(fleet, unit, order, claims)
        else:
            is_left = self.waiting.rest(fleet, unit, order, claims[0], answer)
        self._warm.put_back(fleet)
        return is_left


def _withdraw(fleet: Fleet, claims: Iterable[Object], answers: Iterable[Mapping[str, Any]]) -> None:
    """Forget what was given now: the documents of the next round say what of it was written."""
    given = {(each["namespace"], each["name"]) for each in answers if each["allocated"]}
    for claim in claims:
        if ClaimView(claim).key in given:
            fleet.delete(claim)


# -- DeviceClaims ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _PreviousRound:
    """The result of the last round, for a round in which little has changed."""

    answers: dict[_ClaimKey, _Answer]
    """Of the claims that hold something."""
    problems: list[_Answer]
    about: frozenset[ObjectName] = field(init=False)
    """What the problems are of."""

    def __post_init__(self) -> None:
        parts = ("kind", "namespace", "name")
        subjects = [[str(each.get(part) or "") for part in parts] for each in self.problems]
        self.about = frozenset(("", kind, namespace or "default", name) for kind, namespace, name in subjects)


class IncrementalSolver(_WaitingFleet):
    """Called with all documents round after round; answers as ``solve_manifests`` does of each, but for ``objective``.
    Not thread-safe.

    A round that finds one simple claim more, or some fewer, than the last costs what these cost. Claims that wait as
    long as nothing changes that could help them are not among the documents: ``waiting`` has them.
    """

    def __init__(
        self,
        searches: BackgroundSearches | None = None,
        clock: Callable[[], float] = time.monotonic,
        cel_check: str = "refuse",
    ) -> None:
        """``searches``: what is not answered at once is left to; None: all is answered at once."""
        # The fleet has all but claims that hold nothing and have a spec.
        super().__init__("DeviceClaim", clock, cel_check)
        self._searches = searches or BackgroundSearches(search_with_new_fleet(DEFAULT_PLACEMENT, cel_check))
        self._previous_round: _PreviousRound | None = None
        self._changed: dict[ObjectName, Object | None] | None = {}
        """What ``update`` read since the last call; None: all."""
        self._read: Sequence[Object] | None = None
        """The documents of the last update."""
        self._waiting: list[Object] = []
        """Those of them that the fleet has not: claims that wait."""
        self._settled: dict[_ClaimKey, _Answer] = {}
        """The answers to claims that are not among the documents although they hold something."""
        self.has_unsettled = False
        """The last call answered one of these in another way than before."""

    def __call__(self, documents: Iterable[Object], *, placement: str, deadline: float | None) -> _Answer:
        """The dict of ``solve_manifests`` for these documents. An error leaves nothing behind."""
        ends = None if deadline is None else time.monotonic() + deadline
        documents, self.has_unsettled = list(documents), False
        previous_round, self._previous_round = self._previous_round, None
        self.update(documents, placement)
        changed, self._changed = self._changed, {}
        fleet, loaded = self._warm.take(), self._warm.loaded
        waiting = [claim for claim in self._waiting if _name(claim) not in loaded]
        refused, waiting = self._refused_again(fleet, waiting)
        answer = None
        if changed is not None and previous_round is not None and len(waiting) <= 1:
            answer = self._answer_small_change(fleet, previous_round, changed, waiting, seconds_left(ends))
        if answer is None:
            claims = [document for document in documents if _is_claim(document)]
            others = [claim for claim in claims if _name(claim) in loaded and not fleet.holds(*ClaimView(claim).key)]
            if changed is None or any(name[1] not in UNRELATED_KINDS for name in changed):
                self._searches.forget()
            manifests = [*self._warm.settled.values(), *loaded.values()]
            answer = self._searches.solve(fleet, manifests, waiting, seconds_left(ends), others)
            answer = self._without_settled(answer)
            claim_keys = {name[2:] for name in loaded if name[1] == "DeviceClaim"}
            held = {key: each for each in answer["claims"] if (key := (each["namespace"], each["name"])) in claim_keys}
            previous_round = _PreviousRound(held, answer["problems"])
            if any(("", *_name(claim)[1:]) in previous_round.about for claim in waiting):
                previous_round = None  # they may be gone next time
        self.waiting.ignore_changes(fleet)
        self._warm.put_back(fleet)
        self._previous_round = previous_round
        if refused:
            claims = sorted([*answer["claims"], *refused], key=lambda each: (each["namespace"], each["name"]))
            answer = {**answer, "claims": claims}
        return answer

    def update(self, documents: Sequence[Object], placement: str) -> None:
        """Read the documents, but for claims that wait, before a call with the same and with more that wait."""
        read, self._read = self._read, None  # after an error all is read again
        is_same = read is not None and len(read) == len(documents) and all(map(operator.is_, read, documents))
        if is_same and self._warm.is_ready(placement):
            self._read = read
            return
        loaded: dict[ObjectName, Object] = {}
        self._waiting = []
        for document in documents:
            if _is_loaded_beforehand(document):
                loaded[_name(document)] = document
            else:
                self._waiting.append(document)
        so_far, self._changed = self._changed, None
        changed = self._warm.update(loaded, placement, _is_unchanged)
        self._note_changes(changed)
        self._changed = None if changed is None or so_far is None else {**so_far, **changed}
        self._read = documents

    @property
    def can_settle(self) -> bool:
        """Whether the last call came to its end, and its answers hold as long as nothing changes."""
        return self._previous_round is not None

    def settle(self, claims: Iterable[Object]) -> None:
        """Go on as if these claims, which hold something, were among the documents as they are, until ``unsettle``;
        they have no more answers."""
        for claim in claims:
            key = ClaimView(claim).key
            if self._previous_round is not None and (answer := self._previous_round.answers.pop(key, None)) is not None:
                self._settled[key] = answer
            self._warm.settle(_name(claim))

    def unsettle(self, claims: Iterable[Object]) -> None:
        """The next documents have these claims, or they are gone."""
        for claim in claims:
            answer = self._settled.pop(key := ClaimView(claim).key, None)
            self._warm.unsettle(_name(claim))
            if answer is None:
                self._previous_round = None
            elif self._previous_round is not None:
                self._previous_round.answers[key] = answer

    def _without_settled(self, answer: _Answer) -> _Answer:
        """The answer without that to claims that were not among the documents."""
        if not self._warm.settled:
            return answer
        settled = {name[2:] for name in self._warm.settled}
        others = []
        for each in answer["claims"]:
            if (key := (each["namespace"], each["name"])) not in settled:
                others.append(each)
            elif self._settled.get(key) != each:
                self.has_unsettled = True
                self._settled[key] = each
        return {**answer, "claims": others}

    def _refused_again(self, fleet: Fleet, claims: Sequence[Object]) -> tuple[list[_Answer], list[Object]]:
        """The answers to claims of which equals wait already, and the other claims."""
        refused: list[_Answer] = []
        others: list[Object] = []
        for claim in claims:
            key = ClaimView(claim).key
            answer = None if ClaimView(claim).group is not None else self.waiting.refusal(fleet, claim)
            if answer is None:
                others.append(claim)
            else:
                refused.append({**answer, "namespace": key[0], "name": key[1]})
        return refused, others

    def _answer_small_change(
        self,
        fleet: Fleet,
        previous_round: _PreviousRound,
        changed: Mapping[ObjectName, Object | None],
        waiting: list[Object],
        deadline: float | None,
    ) -> _Answer | None:
        """The answer if all that has changed are claims that hold something and are well, and one at most waits
        that is simple and gets its devices; None if that is not so, and all are to be looked at."""
        began = time.monotonic()
        if any(name[1] != "DeviceClaim" or ("", *name[1:]) in previous_round.about for name in changed):
            return None
        if not all(
            _is_simple(claim) and ClaimView(claim).group is None and not ClaimView(claim).is_deleting
            for claim in waiting
        ):
            return None
        for name, document in changed.items():
            previous_round.answers.pop((name[2], name[3]), None)
            if document is not None:
                if not fleet.holds(*name[2:]) or not self._has_classes(document, previous_round):
                    return None
                answer: Any = fleet.allocate(document)
                if not answer["allocated"] or answer.get("lost") or answer.get("warnings"):
                    return None
                previous_round.answers[name[2], name[3]] = answer
        if self._searches.is_late(waiting):
            return None
        is_quick = self._searches.is_open
        share = min(deadline or QUICK_SECONDS, QUICK_SECONDS) if is_quick else deadline
        given: list[Any] = [fleet.allocate(claim, share, is_quick=is_quick) for claim in waiting]
        _withdraw(fleet, waiting, given)
        if not all(each["allocated"] for each in given):
            return None
        answers = sorted([*previous_round.answers.values(), *given], key=lambda each: (each["namespace"], each["name"]))
        seconds = round(time.monotonic() - began, 6)
        return {"claims": answers, "problems": previous_round.problems, "optimal": True, "seconds": seconds}

    def _has_classes(self, claim: Object, previous_round: _PreviousRound) -> bool:
        """Whether the claim is simple, and the class that it names is there and well."""
        if not _is_simple(claim):
            return False
        named = claim["spec"]["claims"][0].get("deviceClass")
        place = (claim["apiVersion"], "DeviceClass", "default", str(named))
        return not named or (place in self._warm.loaded and ("", *place[1:]) not in previous_round.about)


def _is_claim(document: Object) -> bool:
    return document.get("kind") == "DeviceClaim"


def _is_simple(claim: Object) -> bool:
    """Whether it asks for one thing, without alternatives, limits and equal attributes: then it is placed in no time,
    and needs no deadline; others may take a search."""
    spec = claim.get("spec")
    if not isinstance(spec, dict) or spec.keys() != {"claims"} or not isinstance(spec["claims"], list):
        return False
    entry = spec["claims"][0] if len(spec["claims"]) == 1 else None
    return isinstance(entry, dict) and not entry.keys() & {"oneOf", "limits", "matchAttributes"}


def _is_loaded_beforehand(document: Object) -> bool:
    """Whether the fleet is to know of it beforehand: of claims, those that may hold something, and those without a
    spec, which it would take for the name of one that it knows."""
    return not _is_claim(document) or bool(ClaimView(document).entries) or "spec" not in document


def _is_unchanged(previous: Object | None, document: Object) -> bool:
    """Of claims all counts: what an allocated one is depends on more than itself (``effective_documents``). Of pools
    the status does not: it says what claims hold. A version says nothing: a Node that is cordoned or tainted changes
    what its pools are here, and not the pools."""
    if previous is document:
        return True
    if previous is None or _is_claim(document):
        return previous == document
    return _without_status(previous) == _without_status(document)


def _is_equal(previous: Object | None, document: Object) -> bool:
    return previous is document or previous == document


def _without_status(document: Object) -> Object:
    metadata = {name: value for name, value in document["metadata"].items() if name != "resourceVersion"}
    return {**{name: value for name, value in document.items() if name != "status"}, "metadata": metadata}


def _name(document: Object) -> ObjectName:
    metadata = document["metadata"]
    namespace = metadata.get("namespace") or "default"
    return document.get("apiVersion", ""), document["kind"], namespace, metadata["name"]


# -- ResourceClaims ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RefusedClaims:
    """The answers to a claim that is not asked for again, and to the members of its group."""

    claims: Sequence[object]
    """which claims these are: an edit of the spec makes another one"""
    specs: Sequence[object]
    """as they were asked for, with the nodes that suit their pods"""
    answers: Sequence[_Answer]
    until: float = 0.0
    """when those whose expressions were too expensive may be asked for again"""
    is_stale: bool = False
    """something has changed that they could use; or they were asked for with others, and may do with all of the time"""


class IncrementalResourceSolver(_WaitingFleet):
    """The same for the ResourceClaims of a cluster. Not thread-safe."""

    def __init__(
        self,
        placement: str = DEFAULT_PLACEMENT,
        clock: Callable[[], float] = time.monotonic,
        searches: BackgroundSearches | None = None,
    ) -> None:
        """``searches``: what is not answered at once is left to; None: all is answered at once."""
        super().__init__("ResourceClaim", clock)
        self._placement = placement
        self._searches = searches or BackgroundSearches(search_with_new_fleet(placement))
        self._clock = clock
        self._left_alone: dict[_ClaimKey, _RefusedClaims] = {}
        """those whose expressions were too expensive; by the group of the claims, or the one of them"""
        self._resting: dict[_ClaimKey, _RefusedClaims] = {}
        """those that fit nowhere until a change could help them"""
        self._is_proven = False
        """whether no more of what was asked last could have been given devices"""
        self.is_again = False
        """whether what was asked since the last ``update`` would have another answer if asked again: the time did not
        suffice for all expressions"""

    def update(self, documents: Mapping[ObjectName, Object]) -> bool:
        """Read everything but claims that wait. Returns whether anything changed."""
        self.is_again = False  # a round in which nothing waits updates, and does not solve
        changed = self._warm.update(dict(documents), self._placement, _is_equal)
        self._note_changes(changed)
        if changed is None or any(name[0] not in _INCREMENTAL_KINDS for name in changed):
            self._searches.forget()
        if changed is None or any(name[0] != "ResourceClaim" for name in changed):
            self._make_stale()
        return changed is None or bool(changed)

    def _make_stale(self) -> None:
        for one in self._left_alone.values():
            one.is_stale = True

    @property
    def is_due(self) -> bool:
        """Whether a claim that was left alone is to be asked for: what it can use has changed meanwhile."""
        now = self._clock()
        if self.waiting.is_behind or self.waiting.has_outdated:
            return True
        return any(one.is_stale and one.until <= now for one in self._left_alone.values())

    def solve(self, claims: Sequence[Object], deadline: float | None) -> list[dict[str, Any]]:
        """The answers to claims that wait, in the form of ``solve_manifests``.

        Single ones one after the other, as long as all get devices: then there is no better answer. Else all jointly,
        within the deadline; what takes long has ``STILL_SEARCHING`` in its answer (``BackgroundSearches.solve``). A
        claim whose expressions were too expensive gets the same answer again, at no cost, until slices, classes or the
        nodes for its pods change. Then it is asked for again, though not at once (``REST_FACTOR``). One that fits
        nowhere costs nothing until a change could help it (``WaitingBook``).
        """
        units = _units([claim if "spec" in claim else {**claim, "spec": {}} for claim in claims])
        self._wake(units)
        for key in self._left_alone.keys() - units.keys():
            del self._left_alone[key]
        again: list[_RefusedClaims] = []
        fresh: dict[_ClaimKey, Sequence[Object]] = {}
        for key, unit in units.items():
            if (record := self._find_refused(key, unit)) is None:
                fresh[key] = unit
            else:
                again.append(record)
        began = self._clock()
        self.is_again = False
        answers = self._ask([claim for unit in fresh.values() for claim in unit], deadline) if fresh else []
        self._note(fresh, answers, self._clock() - began)
        self._let_rest(fresh, answers)
        self.is_again |= self.waiting.is_behind
        return [*answers, *(dict(each) for one in again for each in one.answers)]

    def _wake(self, units: Mapping[_ClaimKey, Sequence[Object]]) -> None:
        """Let those rest no more that a change could help, and forget those that wait no more."""
        for key in self.waiting.units - units.keys():  # those too that were woken and had no answer
            self.waiting.discard(key)
            self._resting.pop(cast(_ClaimKey, key), None)
        if not self._resting:
            return
        has_new = not units.keys() <= self._resting.keys()
        woken = self.wake(WAKE_SECONDS)
        for key in [*woken, *self.waiting.outdated(REFRESHED, REFRESHED_SECONDS, yields=has_new)]:
            self._resting.pop(cast(_ClaimKey, key), None)

    def _let_rest(self, units: Mapping[_ClaimKey, Sequence[Object]], answers: Sequence[_Answer]) -> None:
        """Leave those alone that were refused now and fit nowhere."""
        by_key = {(each["namespace"], each["name"]): each for each in answers}
        nothing_given = self._is_proven and not any(each["allocated"] for each in answers)
        for key, unit in units.items() if answers else ():
            own = [by_key[ClaimView(claim).key] for claim in unit if ClaimView(claim).key in by_key]
            if not own:
                continue
            self._resting.pop(key, None)
            self.waiting.discard(key)
            if len(own) < len(unit) or not all(map(is_final_refusal, own)):
                continue
            order = min(map(order_of, unit))
            if (
                self.rest(key, order, unit, own[0])
                if len(unit) == 1
                else (nothing_given and self.rest(key, order, unit, None))
            ):
                specs = [claim.get("spec") for claim in unit]
                self._resting[key] = _RefusedClaims([_identity(claim) for claim in unit], specs, own)

    def _find_refused(self, key: _ClaimKey, unit: Sequence[Object]) -> _RefusedClaims | None:
        """What these claims were told, if they are to be left alone."""
        resting = self._resting.get(key)
        if resting is not None and (resting.claims, resting.specs) == (
            [_identity(claim) for claim in unit],
            [claim.get("spec") for claim in unit],
        ):
            return resting
        record = self._left_alone.get(key)
        if record is None or record.claims != [_identity(claim) for claim in unit]:
            return None
        record.is_stale |= record.specs != [claim.get("spec") for claim in unit]
        return None if record.is_stale and record.until <= self._clock() else record

    def _note(self, units: Mapping[_ClaimKey, Sequence[Object]], answers: Sequence[_Answer], seconds: float) -> None:
        """Remember which claims were too expensive."""
        by_key = {(each["namespace"], each["name"]): each for each in answers}
        until = self._clock() + REST_FACTOR * seconds
        several = len(by_key.keys() & {ClaimView(claim).key for unit in units.values() for claim in unit[:1]}) > 1
        for key, unit in units.items():
            unit_answers = [by_key[ClaimView(claim).key] for claim in unit if ClaimView(claim).key in by_key]
            if not unit_answers:
                continue
            self._left_alone.pop(key, None)
            exceeded = {each.get("exceeded") for each in unit_answers} - {None}
            if exceeded:
                if len(self._left_alone) >= MAX_EXPENSIVE:
                    del self._left_alone[next(iter(self._left_alone))]
                specs = [claim.get("spec") for claim in unit]
                stale = several and "expression" not in exceeded
                self._left_alone[key] = _RefusedClaims(
                    [_identity(claim) for claim in unit], specs, unit_answers, until, stale
                )

    def _ask(self, claims: Sequence[Object], deadline: float | None) -> list[_Answer]:
        ends = None if deadline is None else time.monotonic() + deadline
        fleet = self._warm.take()
        by_key = {ClaimView(claim).key: claim for claim in claims}
        self._is_proven = True
        answers = [] if self._searches.is_late(claims) else self._one_by_one(fleet, claims, ends)
        _withdraw(fleet, claims, answers)
        is_answered = len(answers) == len(claims) and all(each["allocated"] for each in answers)
        if not is_answered and (len(claims) > 1 or not answers or self._is_left(answers[0])):
            answer = self._searches.solve(fleet, [*self._warm.loaded.values()], claims, seconds_left(ends))
            self.is_again = bool(answer.get("again"))
            self._is_proven = bool(answer.get("optimal")) and not self.is_again
            answers = [each for each in answer["claims"] if (each["namespace"], each["name"]) in by_key]
        self.waiting.ignore_changes(fleet)
        self._warm.put_back(fleet)
        return answers

    def _one_by_one(self, fleet: Fleet, claims: Sequence[Object], ends: float | None) -> list[_Answer]:
        """The answers up to the first refusal; none if there is a group, which is answered as a whole.

        Of several claims each has its share of a quarter of the time: what takes longer is answered with the others,
        and what takes longer than a round has beside the loop, or in turns if it is expressions.
        """
        answers: list[Any] = []
        if any(claim["metadata"].get("annotations", {}).get(GROUP) for claim in claims):
            return answers
        several = len(claims) > 1
        for number, claim in enumerate(sorted(claims, key=order_of)):
            left = seconds_left(ends)
            share = left / (4 * (len(claims) - number)) if left is not None and several else left
            is_quick = self._searches.is_open
            if is_quick:
                share = QUICK_SECONDS if share is None else min(share, QUICK_SECONDS)
            answers.append(fleet.allocate(claim, share, is_quick=is_quick))
            if not answers[-1]["allocated"]:
                break
        return answers

    def _is_left(self, answer: _Answer) -> bool:
        """Whether a single claim is to be searched for beside the loop, or its expressions evaluated in turns."""
        is_unknown = answer["reason"] == Reason.SEARCH_LIMIT and answer.get("exceeded") in (None, "time")
        return self._searches.is_open and is_unknown


def _units(claims: Sequence[Object]) -> dict[_ClaimKey, list[Object]]:
    """Claims that are answered together, by group or name."""
    by_key: dict[_ClaimKey, list[Object]] = {}
    for claim in claims:
        group, key = claim["metadata"].get("annotations", {}).get(GROUP), ClaimView(claim).key
        by_key.setdefault((key[0], f"group {group}" if group else key[1]), []).append(claim)
    return by_key


def _identity(claim: Object) -> object:
    """Equal as long as it is the same claim: its spec cannot be edited."""
    return claim["metadata"].get("uid") or claim.get("spec")
