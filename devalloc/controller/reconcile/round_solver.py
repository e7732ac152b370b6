"""The solver of the loops, for either kind of claims: a Fleet that is kept from round to round and receives only what
has changed; and the one place that decides whether a claim that was refused is asked for again.

Claims are answered one by one where that is as good as jointly, as where none of them fits: then an answer costs what
has changed. All else is solved jointly, and what takes long beside the loop (``searches``). A refusal holds until a
change could help the claim (``WaitingBook``). Claims whose expressions cost too much have a pause.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from devalloc.api.conditions import ALLOCATED, find_condition
from devalloc.api.node_rules import restrictions_of
from devalloc.api.owner_names import owner_of
from devalloc.api.reasons import STILL_SEARCHING, Reason, find_reason, is_final_refusal, refusal_answer
from devalloc.api.views import ClaimKey, ClaimView, Order, order_of
from devalloc.controller.reconcile.searches import (
    QUICK_SECONDS,
    BackgroundSearches,
    forget_given,
    key_of_answer,
    search_with_new_fleet,
)
from devalloc.controller.reconcile.stored_claims import ClaimUnit, class_names, key_of_claim
from devalloc.controller.reconcile.write_backoff import UNRELATED_KINDS
from devalloc.store import Object
from devalloc_solver import WaitingBook
from devalloc_solver.deadline import seconds_left
from devalloc_solver.problem.placement_policy import DEFAULT_PLACEMENT

if TYPE_CHECKING:
    from devalloc_solver import Fleet

ObjectName = tuple[str, str, str, str]
"""What a Fleet calls an object: its apiVersion, kind, namespace and name."""
_Answer = dict[str, Any]

WAKE_SECONDS = 0.02
"""How long a round looks for units that a change could help; the rest is left to the next one."""
WOKEN = 32
"""Units after which it does so: each that gets nothing takes 5 ms and more to answer, and new claims wait for that."""
REFRESHED = 50
"""Units whose refusals a round finds anew, because they are old."""
REFRESHED_SECONDS = 0.05
"""How long a round that finds them anew is to take: a claim that comes meanwhile waits for it."""
REASONS_ANEW = 4
"""Reasons that each of the first calls after a start finds anew, which takes 10 ms; others that are recorded hold."""
CLOSELY_COMPARED = 100
"""Recorded refusals that hold after a start, until further ones are compared with the fleet without the expressions of
their claims, and none more is found anew at once: 0.1 ms each instead of 0.4 and more. The waiting book has all found
anew, one after the other."""
REFRESH_PAUSE = 1.0
"""Seconds between two such rounds."""
REST_FACTOR = 20.0
"""How many times as long as the solver was busy with it a claim is left alone, at least, that costs too much."""
_RECORDED = "recorded"
"""In an answer: it is what its claim had recorded already."""
_WITH_PROBLEMS = frozenset({Reason.CLAIM_INVALID.value, Reason.CHECK_FAILED.value})
"""Refusals of which the problems of objects say more."""


@dataclass(frozen=True, slots=True)
class ClaimKind:
    """What differs between the kinds of claims."""

    name: str
    devices: str
    """the field of the status with the devices of a claim"""
    compared: str
    """the part of a refusal that its claims report; of ResourceClaims messages have names in them"""
    summarized: frozenset[str]
    """kinds of objects of which the parts of a batch say all: a change of others makes results of searches void"""
    has_state: bool
    """whether what claims hold is answered, too, and problems of objects are listed"""
    gives_alone: bool
    """whether several claims may be given devices one by one"""


DEVICE_CLAIMS = ClaimKind("DeviceClaim", "allocations", "message", UNRELATED_KINDS, has_state=True, gives_alone=False)
RESOURCE_CLAIMS = ClaimKind(
    "ResourceClaim",
    "allocation",
    "reason",
    frozenset({"ResourceSlice", "ResourceClaim"}),
    has_state=False,
    gives_alone=True,
)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The answers to a unit that is not asked for again: a claim, or the members of a group."""

    claims: Sequence[Object]
    answers: Sequence[_Answer]


class RoundSolver:
    """Not thread-safe. After an error a round begins anew with all documents."""

    def __init__(
        self,
        kind: ClaimKind = DEVICE_CLAIMS,
        searches: BackgroundSearches | None = None,
        clock: Callable[[], float] = time.monotonic,
        cel_check: str = "refuse",
    ) -> None:
        """``searches``: what is not answered at once is left to; None: all is answered at once. ``cel_check``: see
        ``AllocatorSettings``."""
        self._kind = kind
        self._searches = searches or BackgroundSearches(search_with_new_fleet(DEFAULT_PLACEMENT, cel_check))
        self._clock = clock
        self._cel_check = cel_check
        self.waiting = WaitingBook(kind.name, clock, kind.compared)
        self._fleet: Fleet | None = None
        """With the documents of the last update; None after an error."""
        self._placement = ""
        self._documents: Sequence[Object] = ()
        """Those of the last update: all but claims that wait."""
        self._is_read = False
        """The fleet is as these say."""
        self._held: dict[ClaimKey, Object] = {}
        """The claims among these."""
        self._changed: dict[ObjectName, Mapping[str, Any] | None] | None = None
        """What updates took in since the last answers; None: all."""
        self._seconds = 0.0
        """How long the last answers took, by ``clock``."""
        self._refusals: dict[ClaimUnit, _Refusal] = {}
        self._is_starting = True
        """No call had few claims yet: what is recorded on claims is from before this began."""
        self._still_held = 0
        """How many recorded refusals held since."""
        self._recorded: Mapping[ClaimKey, Object] = {}
        """Claims with what is recorded on them, of which the solver does not read all."""
        # -- what is known of claims that hold something, and of the state, if the kind has it
        self._answers: dict[ClaimKey, _Answer] = {}
        self._given: dict[ClaimKey, _Answer] = {}
        """The last answers to claims that waited and got something."""
        self._problems: list[_Answer] | None = None
        """None: the answers and problems of the last round may be others now."""
        self._subjects: frozenset[tuple[str, ...]] = frozenset()
        """Kind, namespace and name of what the problems are of."""
        self._classes: frozenset[tuple[str, str]] = frozenset()
        """The apiVersion and name of each class that is there and well."""
        self._settled: dict[ObjectName, Object] = {}
        """Claims that hold something and are not among the documents."""
        self._settled_answers: dict[ClaimKey, _Answer] = {}
        self.has_unsettled = False
        """The last call answered one of these in another way than before."""

    # -- what there is -------------------------------------------------------------------------------------------------

    def update(self, documents: Iterable[Object], placement: str = DEFAULT_PLACEMENT) -> bool:
        """Read everything but claims that wait. Returns whether anything has changed since the last time."""
        from devalloc_solver import Fleet  # takes a while to load

        documents, fleet = [*documents], self._fleet
        is_new = fleet is None or placement != self._placement
        is_same = len(documents) == len(self._documents) and all(map(operator.is_, documents, self._documents))
        if is_same and self._is_read and not is_new:
            return False
        so_far, self._changed, self._fleet = self._changed, None, None
        if fleet is None or is_new:
            fleet = Fleet(placement, self._cel_check)
            changed = fleet.sync([*self._settled.values(), *documents])
        else:
            changed = fleet.sync(documents, self._settled.keys())
        if is_new or changed:
            self.waiting.catch_up(fleet)
        if is_new or any(name[1] not in self._kind.summarized for name in changed):
            self._searches.forget()
        self._documents, self._is_read, self._placement, self._fleet = documents, True, placement, fleet
        self._held = {ClaimView(one).key: one for one in documents if one["kind"] == self._kind.name}
        self._changed = None if is_new or so_far is None else so_far | changed
        return is_new or bool(changed)

    def _take(self) -> Fleet:
        """The fleet for a question; afterwards it is set again, unless an error may have left something there."""
        fleet, self._fleet = self._fleet, None
        assert fleet is not None, "update comes first"
        return fleet

    @property
    def can_settle(self) -> bool:
        """Whether the last call came to its end, and its answers hold as long as nothing changes."""
        return self._problems is not None

    def settle(self, claims: Iterable[Object]) -> None:
        """Go on as if these claims, which hold something, were among the documents as they are, until ``unsettle``;
        they have no more answers."""
        from devalloc_solver import Fleet

        for key in map(key_of_claim, claims):
            if (document := self._held.get(key)) is not None:
                self._settled[Fleet.object_name(document)] = document
            if (answer := self._answers.pop(key, None)) is not None:
                self._settled_answers[key] = answer

    def unsettle(self, claims: Iterable[Object]) -> None:
        """The next documents have these claims, or they are gone."""
        from devalloc_solver import Fleet

        self._is_read = False
        for claim in claims:
            self._settled.pop(Fleet.object_name(claim), None)
            answer = self._settled_answers.pop(key := key_of_claim(claim), None)
            if answer is None:
                self._problems = None
            else:
                self._answers[key] = answer

    # -- claims that wait ----------------------------------------------------------------------------------------------

    def wake(self, *, has_new: bool) -> set[Hashable]:
        """The units that are to be asked for again: a change could help them, or their refusals are old.

        ``has_new``: there are new units, for which old refusals are left to later rounds."""
        fleet = self._take()
        units = self.waiting.wake(fleet, WAKE_SECONDS, WOKEN)
        self._fleet = fleet
        return {*units, *self.waiting.outdated(REFRESHED, REFRESHED_SECONDS, yields=has_new)}

    @property
    def is_due(self) -> bool:
        """Whether some are to be asked for again, though nothing has changed."""
        return self.waiting.is_behind or self.waiting.has_outdated or bool(self.waiting.due())

    def rest(
        self,
        unit: Hashable,
        order: Order,
        claims: Sequence[Object],
        answers: Sequence[Mapping[str, Any]],
        *,
        is_proven: bool,
    ) -> bool:
        """Leave a unit alone that was refused: until a change could help it, or for a while if it costs too much.

        ``is_proven``: nothing was given in that round, and no more could be. Returns False if it is to be asked for in
        each round: it may get something, or it cannot be told what could help it."""
        if any(map(costs_too_much, answers)):
            return self.waiting.pause(unit, REST_FACTOR * self._seconds)
        self.waiting.end_pauses(unit)
        if not may_rest_with(answers):
            return False
        is_single = len(claims) == 1 and ClaimView(claims[0]).group is None
        if not (is_single or is_proven):
            return False
        fleet = self._take()
        if is_single:
            is_recorded = bool(answers[0].get(_RECORDED))
            rests = self.waiting.rest(fleet, unit, order, claims[0], {**answers[0]}, is_recorded=is_recorded)
        else:
            rests = self.waiting.rest_together(fleet, unit, order, claims)
        self._fleet = fleet
        return rests

    def note_recorded(self, claims: Iterable[Object]) -> None:
        """Note what is recorded on the claims of the next call, as stored: after a start, refusals that still hold."""
        self._recorded = {ClaimView(claim).key: claim for claim in claims} if self._is_starting else {}

    # -- answers -------------------------------------------------------------------------------------------------------

    def __call__(self, documents: Iterable[Object], *, placement: str, deadline: float | None) -> _Answer:
        """The dict of ``solve_manifests`` for these documents, but for ``objective``."""
        in_fleet, waiting = self.split(documents)
        self.update(in_fleet, placement)
        return self.answer(waiting, deadline)

    def split(self, documents: Iterable[Object]) -> tuple[list[Object], list[Object]]:
        """What ``update`` is to read, and the claims that wait. Without a spec a claim does not: the Fleet says so."""
        in_fleet: list[Object] = []
        waiting: list[Object] = []
        for document in documents:
            is_claim = document["kind"] == self._kind.name and "spec" in document
            is_waiting = is_claim and not ClaimView(document).status.get(self._kind.devices)
            (waiting if is_waiting else in_fleet).append(document)
        return in_fleet, waiting

    def solve(self, units: Mapping[ClaimUnit, Sequence[Object]], deadline: float | None) -> _Answer:
        """The answers to all claims that wait, in the form of ``solve_manifests``, round after round.

        One that was refused has the very same answer again, at no cost, until a change could help it. One that costs
        too much has it until its pause is over, also if other nodes suit its pod meanwhile."""
        self._forget_all_but(units)
        has_new = not units.keys() <= self._refusals.keys()
        woken = {*self.wake(has_new=has_new), *self.waiting.due()} if self._refusals else set()
        again: list[_Answer] = []
        fresh: dict[ClaimUnit, Sequence[Object]] = {}
        for unit, members in units.items():
            refusal = None if unit in woken else self._refusals.get(unit)
            if refusal is not None and (refusal.claims is members or self._is_of(refusal, unit, members)):
                again += refusal.answers
            else:
                self._refusals.pop(unit, None)
                fresh[unit] = members
        answer = self.answer([claim for members in fresh.values() for claim in members], deadline)
        by_key = {key_of_answer(each): each for each in answer["claims"]}
        is_again = bool(answer.get("again"))
        is_proven = answer["optimal"] and not is_again and not any(each["allocated"] for each in by_key.values())
        for unit, members in fresh.items():
            own = [by_key[key] for key in map(key_of_claim, members) if key in by_key]
            self.waiting.discard(unit)
            order = min(map(order_of, members))
            if len(own) == len(members) and self.rest(unit, order, members, own, is_proven=is_proven):
                self._refusals[unit] = _Refusal(members, own)
        return {**answer, "claims": [*answer["claims"], *again], "again": is_again or self.waiting.is_behind}

    def _forget_all_but(self, units: Mapping[ClaimUnit, object]) -> None:
        """Forget what waits no more, and what was woken and had no answer."""
        for unit in self.waiting.units - units.keys():
            self.waiting.discard(unit)
            self.waiting.end_pauses(unit)
        for unit in self._refusals.keys() - units.keys():
            del self._refusals[unit]

    def _is_of(self, refusal: _Refusal, unit: Hashable, claims: Sequence[Object]) -> bool:
        is_same = [*map(_identity, refusal.claims)] == [*map(_identity, claims)]
        return is_same and (self.waiting.is_paused(unit) or [*map(_wish, refusal.claims)] == [*map(_wish, claims)])

    def answer(self, claims: Sequence[Object], deadline: float | None) -> _Answer:
        """The answers to claims that wait among what ``update`` has read, and to those that hold something if the kind
        has that, in the form of ``solve_manifests``. What takes long has ``STILL_SEARCHING`` in its answer."""
        ends, began, started = (
            None if deadline is None else time.monotonic() + deadline,
            self._clock(),
            time.monotonic(),
        )
        self.has_unsettled = False
        changed, self._changed = self._changed, {}
        fleet, problems, self._problems = self._take(), self._problems, None
        claims = [claim for claim in claims if key_of_claim(claim) not in self._held]
        given, claims = self._refused_like_others(fleet, claims)
        is_current = not self._kind.has_state or (problems is not None and self._renew(fleet, changed))
        answer = self._ask(fleet, claims, ends, is_current=is_current)
        given += answer["claims"]
        if self._kind.has_state:
            self._given = {key_of_answer(each): each for each in answer["claims"] if each["allocated"]}
            if answer["problems"] is None:
                answer["problems"] = problems
            named = {owner_of(key_of_claim(claim), self._kind.name) for claim in claims}
            # What the problems are of may be gone next time.
            self._problems = answer["problems"] if named.isdisjoint(self._subjects) else None
            given += self._answers.values()
        self.waiting.ignore_changes(fleet)
        self._fleet, self._seconds = fleet, self._clock() - began
        given.sort(key=key_of_answer)
        return {**answer, "claims": given, "seconds": round(time.monotonic() - started, 6)}

    def _refused_like_others(self, fleet: Fleet, claims: Sequence[Object]) -> tuple[list[_Answer], list[Object]]:
        """The answers to claims of which equals wait already, and the other claims. After a start, of many claims also
        the answers to those that still fit nowhere, as they are recorded: the waiting book has them found anew."""
        if self._kind.compared != "message":
            return [], [*claims]
        self._is_starting = self._is_starting and len(claims) > REASONS_ANEW
        refused: list[_Answer] = []
        others: list[Object] = []
        anew: set[Hashable] = set()
        for claim in claims:
            view = ClaimView(claim)
            if view.group is not None:
                others.append(claim)
            elif (cached := self.waiting.refusal(key := fleet.waiting_key(claim))) is not None:
                refused.append({**cached, "namespace": view.key[0], "name": view.key[1]})
            elif self._is_starting and (recorded := self._recorded_refusal(fleet, claim, key, anew)) is not None:
                refused.append(recorded)
            else:
                others.append(claim)
        return refused, others

    def _recorded_refusal(
        self, fleet: Fleet, claim: Object, key: Hashable | None, anew: set[Hashable]
    ) -> _Answer | None:
        """Return the recorded refusal of a claim that still fits nowhere; None if it is to be answered anew, as the
        first different claims of each call are. ``key``: its ``waiting_key``. ``anew``: the keys of these."""
        if (stored := self._recorded.get(key_of_claim(claim))) is None:
            return None
        view, generation = ClaimView(stored), stored["metadata"].get("generation")
        condition = find_condition(view.status.get("conditions"), ALLOCATED)
        reason = find_reason(view.reason)
        # One of a group may be of the time before its claim left it: an annotation is no part of a generation.
        if (
            reason in (None, Reason.GROUP_UNSATISFIABLE)
            or not reason.is_of_fleet
            or condition.get("observedGeneration", generation) != generation
        ):
            return None
        is_close = self._still_held < CLOSELY_COMPARED
        if is_close and len(anew) < REASONS_ANEW:
            anew.add(key)
        if key in anew:
            return None
        is_of_rules = reason is Reason.NO_MATCHING_DEVICES
        if not self.waiting.still_holds(fleet, claim, key, is_of_rules=is_of_rules, at_best=not is_close):
            return None
        self._still_held += 1
        return {**refusal_answer(view.key, reason, view.message), _RECORDED: True}

    def _ask(self, fleet: Fleet, claims: Sequence[Object], ends: float | None, *, is_current: bool) -> _Answer:
        """The answers to claims that wait. ``is_current``: those to others, and the problems, are known."""
        alone = self._answer_alone(fleet, claims, ends) if is_current else None
        if alone is not None:
            is_optimal = all(each["allocated"] or is_final_refusal(each) for each in alone)
            return {"claims": alone, "problems": None, "optimal": is_optimal}
        documents = [*self._settled.values(), *self._documents]
        others = [one for key, one in self._held.items() if not fleet.holds(*key)] if self._kind.has_state else ()
        answer = self._searches.solve(fleet, documents, claims, seconds_left(ends), others)
        requested = {*map(key_of_claim, claims)}
        given: list[_Answer] = []
        state: dict[ClaimKey, _Answer] = {}
        for each in answer["claims"]:
            if (key := key_of_answer(each)) in requested:
                given.append(each)
            else:
                state[key] = each
        if self._kind.has_state:
            self._note_state(state, answer["problems"])
        return {**answer, "claims": given}

    def _answer_alone(self, fleet: Fleet, claims: Sequence[Object], ends: float | None) -> list[_Answer] | None:
        """Answer claims one by one; None if they are to be answered jointly: there is a group, or what one gets may
        depend on the others, because some get something.

        Several claims share a quarter of the time that is left, and all refusals together take no longer than a round
        may search. If any takes longer, all are answered jointly. A search that is too long for a round goes on beside
        the loop, and expressions that take too long are evaluated in turns.
        """
        if any(ClaimView(claim).group is not None for claim in claims) or self._searches.is_late(claims):
            return None
        ordered, is_single = sorted(claims, key=order_of), len(claims) == 1
        gives = is_single or (self._kind.gives_alone and any(_may_fit(fleet, claim) for claim in ordered[:1]))
        most, began = self._searches.bounded(None), time.monotonic()

        def is_over() -> bool:
            return most is not None and time.monotonic() - began > most

        if not gives and any(is_over() or _may_fit(fleet, claim) for claim in ordered):
            return None

        def stands(answer: _Answer) -> bool:
            """As it is from a joint solve."""
            return gives if answer["allocated"] else (is_single or not gives) and self._is_settled_alone(answer)

        answers: list[Any] = []
        for number, claim in enumerate(ordered):
            if not gives and is_over():
                break
            left = seconds_left(ends)
            share = left / (4 * (len(claims) - number)) if left is not None and len(claims) > 1 else left
            share = self._searches.bounded(share)
            answers.append(fleet.allocate(claim, share, is_quick=self._searches.is_open))
            if not stands(answers[-1]):
                break
        forget_given(fleet, claims, answers)
        is_whole = len(answers) == len(claims) and all(map(stands, answers))
        has_more = self._kind.has_state and any(one.get("warnings") for one in answers)
        return answers if is_whole and not has_more else None

    def _is_settled_alone(self, answer: _Answer) -> bool:
        """Whether the refusal of a single claim is that of a joint solve, and says all."""
        if answer["reason"] == Reason.SEARCH_LIMIT and answer.get("exceeded") in (None, "time"):
            return False  # it is searched for beside the loop, or its expressions are evaluated in turns
        return not self._kind.has_state or answer["reason"] not in _WITH_PROBLEMS

    # -- what claims hold ----------------------------------------------------------------------------------------------

    def _renew(self, fleet: Fleet, changed: Mapping[ObjectName, Mapping[str, Any] | None] | None) -> bool:
        """Renew the answers to claims that have changed. False if all are to be looked at: something else has changed,
        or there is or was a problem of one of these."""
        if changed is None:
            return False
        for name, document in changed.items():
            if name[1] != self._kind.name or owner_of(name[2:], name[1]) in self._subjects:
                return False
            before = self._answers.pop(key := name[2:], None) or self._given.get(key)
            if document is None:
                continue
            has_classes = all((document["apiVersion"], name) in self._classes for name in class_names(document))
            if not (fleet.holds(*key) and has_classes):
                return False
            answer: Any = fleet.allocate(document)
            if not answer["allocated"] or answer.get("lost") or answer.get("warnings"):
                return False
            if before is None or before["allocations"] != answer["allocations"]:
                return False  # others may hold it, too
            self._answers[key] = answer
        return True

    def _note_state(self, answers: Mapping[ClaimKey, _Answer], problems: Sequence[_Answer]) -> None:
        """Note the answers to claims that hold something, and what is wrong."""
        settled = {name[2:] for name in self._settled}
        for key in settled & answers.keys():
            if self._settled_answers.get(key) != answers[key]:
                self.has_unsettled = True
                self._settled_answers[key] = answers[key]
        self._answers = {key: each for key, each in answers.items() if key not in settled}
        parts = [[str(each.get(part) or "") for part in ("kind", "namespace", "name")] for each in problems]
        self._subjects = frozenset((kind, namespace or "default", name) for kind, namespace, name in parts)
        self._classes = frozenset(
            (one["apiVersion"], one["metadata"]["name"])
            for one in self._documents
            if one["kind"] == "DeviceClass"
            and ("DeviceClass", "default", one["metadata"]["name"]) not in self._subjects
        )


def may_rest_with(answers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are all the answers that a unit gets while nothing changes, or it is to have a pause."""
    return any(map(costs_too_much, answers)) or all(map(is_final_refusal, answers))


def costs_too_much(answer: Mapping[str, Any]) -> bool:
    """Whether its expressions cost too much, or the time did not suffice for them, in however many rounds; or two
    evaluators judge them differently, so that it gets nothing of what is free for it."""
    is_disputed = answer["reason"] == Reason.CHECK_FAILED.value
    return not (answer["allocated"] or answer.get(STILL_SEARCHING)) and (bool(answer.get("exceeded")) or is_disputed)


def _may_fit(fleet: Fleet, claim: Object) -> bool:
    """Whether a claim alone has a place now, or that cannot be told."""
    prospects = fleet.prospects(claim, QUICK_SECONDS)
    return prospects is None or prospects.fits


def _wish(claim: Object) -> object:
    """What it asks for, with the nodes that suit its pods."""
    return claim["spec"], restrictions_of(claim)


def _identity(claim: Object) -> object:
    """Equal as long as it is the same claim: its spec cannot be edited."""
    return claim["metadata"].get("uid") or claim.get("spec")
