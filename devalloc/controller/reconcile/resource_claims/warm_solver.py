"""The solver of resource.k8s.io, kept warm from round to round, and told what has changed in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from devalloc.api.meta import GROUP, PRIORITY
from devalloc.api.reasons import Reason
from devalloc.controller.reconcile.searches import QUICK_SECONDS, BackgroundSearches, search_with_new_fleet
from devalloc_solver.deadline import seconds_left

if TYPE_CHECKING:
    from devalloc_solver.fleet.resource_k8s.backend import ResourceClaimFleet

Object = dict[str, Any]
ObjectName = tuple[str, str, str]
"""Kind, namespace and name."""
_INCREMENTAL_KINDS = frozenset({"ResourceSlice", "ResourceClaim"})
"""Kinds that the solver's parts of a batch say all of; answers are made of classes as well."""
_Key = tuple[str, str]
_Answer = dict[str, Any]

REST_FACTOR = 20.0
"""How many times as long as the solver was busy with it a claim is left alone whose expressions were too expensive."""
MAX_EXPENSIVE = 10_000
"""Such claims that are remembered; of more the oldest are forgotten."""


@dataclass(slots=True)
class _ExpensiveClaims:
    """What a claim was told whose expressions were too expensive, and those in a group with it."""

    claims: Sequence[object]
    """which claims these are: an edit of the spec makes another one"""
    specs: Sequence[object]
    """as they were asked for, with the nodes that suit their pods"""
    answers: Sequence[_Answer]
    until: float
    """when they may be asked for again"""
    is_stale: bool
    """something has changed that they could use; or they were asked for with others, and may do with all of the time"""


class IncrementalResourceSolver:
    """What the solver knows of a cluster. Not thread-safe.

    The decisions of a round count only when they come back as documents: they may not have been written.
    """

    def __init__(
        self,
        placement: str = "pack",
        clock: Callable[[], float] = time.monotonic,
        searches: BackgroundSearches | None = None,
    ) -> None:
        """``searches``: what is not answered at once is left to; None: all is answered at once."""
        self._placement = placement
        self._searches = searches or BackgroundSearches(search_with_new_fleet(placement))
        self._clock = clock
        self._left_alone: dict[_Key, _ExpensiveClaims] = {}
        """by the group of the claims, or the one of them"""
        self._fleet: ResourceClaimFleet | None = None
        self._loaded: dict[ObjectName, Object] = {}
        self.is_again = False
        """whether what was asked since the last ``tell`` would be answered with more at once: there was no time for all
        expressions"""

    def tell(self, documents: Mapping[ObjectName, Object]) -> bool:
        """All there is but claims that wait; whether anything of it is new."""
        from devalloc_solver.fleet.resource_k8s.backend import ResourceClaimFleet  # takes a while to load

        self.is_again = False  # a round in which nothing waits tells, and does not ask
        if self._fleet is None:
            self._searches.forget()
            self._fleet = ResourceClaimFleet.from_manifests(documents.values(), placement=self._placement)
            self._loaded = dict(documents)
            self._make_stale()
            return True
        gone = [name for name in self._loaded if name not in documents]
        differing = [name for name, content in documents.items() if self._loaded.get(name) != content]
        try:
            for name in gone:
                self._fleet.delete(self._loaded[name])
            for name in differing:
                self._fleet.update(documents[name])
        except BaseException:
            self._fleet = None  # its content is uncertain
            raise
        if any(name[0] not in _INCREMENTAL_KINDS for name in (*gone, *differing)):
            self._searches.forget()
        self._loaded = dict(documents)
        if any(kind != "ResourceClaim" for kind, _, _ in (*gone, *differing)):
            self._make_stale()
        return bool(gone or differing)

    def _make_stale(self) -> None:
        for one in self._left_alone.values():
            one.is_stale = True

    @property
    def is_due(self) -> bool:
        """Whether a claim that was left alone is to be asked for: what it can use has changed meanwhile."""
        now = self._clock()
        return any(one.is_stale and one.until <= now for one in self._left_alone.values())

    def solve(self, claims: Sequence[Object], deadline: float | None) -> list[dict[str, Any]]:
        """The answers to claims that wait, in the form of ``solve_manifests``.

        Single ones one after the other, as long as all get devices: then there is no better answer. Else all jointly,
        within the deadline; what takes long has ``SEARCHING`` in its answer (``BackgroundSearches.solve``). A claim
        whose expressions were too expensive gets the same answer again, at no cost, until slices, classes or the nodes
        for its pods change. Then it is asked for again, though not at once (``REST_FACTOR``).
        """
        units = _units(claims)
        again = [record for key, unit in units.items() if (record := self._find_left_alone(key, unit)) is not None]
        answered = {(each["namespace"], each["name"]) for one in again for each in one.answers}
        fresh = [claim for claim in claims if _key(claim) not in answered]
        began = self._clock()
        self.is_again = False
        answers = self._ask(fresh, deadline) if fresh else []
        self._note(units, answers, self._clock() - began)
        return [*answers, *(dict(each) for one in again for each in one.answers)]

    def _find_left_alone(self, key: _Key, unit: Sequence[Object]) -> _ExpensiveClaims | None:
        """What these claims were told, if they are to be left alone."""
        record = self._left_alone.get(key)
        if record is None or record.claims != [_identity(claim) for claim in unit]:
            return None
        record.is_stale |= record.specs != [claim.get("spec") for claim in unit]
        return None if record.is_stale and record.until <= self._clock() else record

    def _note(self, units: Mapping[_Key, Sequence[Object]], answers: Sequence[_Answer], seconds: float) -> None:
        """Remember which claims were too expensive, and forget those that wait no more."""
        for key in self._left_alone.keys() - units.keys():
            del self._left_alone[key]
        by_key = {(each["namespace"], each["name"]): each for each in answers}
        until = self._clock() + REST_FACTOR * seconds
        several = len(by_key.keys() & {_key(claim) for unit in units.values() for claim in unit[:1]}) > 1
        for key, unit in units.items():
            unit_answers = [by_key[_key(claim)] for claim in unit if _key(claim) in by_key]
            if not unit_answers:
                continue
            self._left_alone.pop(key, None)
            exceeded = {each.get("exceeded") for each in unit_answers} - {None}
            if exceeded:
                if len(self._left_alone) >= MAX_EXPENSIVE:
                    del self._left_alone[next(iter(self._left_alone))]
                specs = [claim.get("spec") for claim in unit]
                stale = several and "expression" not in exceeded
                self._left_alone[key] = _ExpensiveClaims(
                    [_identity(claim) for claim in unit], specs, unit_answers, until, stale
                )

    def _ask(self, claims: Sequence[Object], deadline: float | None) -> list[_Answer]:
        ends = None if deadline is None else time.monotonic() + deadline
        fleet, self._fleet = self._fleet, None  # an error leaves nothing behind
        assert fleet is not None, "the fleet must be loaded first"
        by_key = {_key(claim): claim for claim in claims}
        answers = self._one_by_one(fleet, claims, ends)
        self._take_back(fleet, answers, by_key)
        is_answered = len(answers) == len(claims) and all(each["allocated"] for each in answers)
        if not is_answered and (len(claims) > 1 or not answers or self._is_left(answers[0])):
            answer = self._searches.solve(fleet, [*self._loaded.values()], claims, seconds_left(ends))
            self.is_again = bool(answer.get("again"))
            answers = [each for each in answer["claims"] if (each["namespace"], each["name"]) in by_key]
        self._fleet = fleet
        return answers

    def _one_by_one(
        self, fleet: ResourceClaimFleet, claims: Sequence[Object], ends: float | None
    ) -> list[dict[str, Any]]:
        """The answers up to the first refusal; none where there is a group, which is answered as a whole.

        Of several claims each has its share of a quarter of the time: what takes longer is answered with the others,
        and what takes longer than a round has beside the loop. Expressions of a single claim have all of the time.
        """
        answers: list[dict[str, Any]] = []
        if any(claim["metadata"].get("annotations", {}).get(GROUP) for claim in claims):
            return answers
        several = len(claims) > 1
        for number, claim in enumerate(sorted(claims, key=_priority_order)):
            left = seconds_left(ends)
            share = left / (4 * (len(claims) - number)) if left is not None and several else left
            if self._searches.is_open:
                share = QUICK_SECONDS if share is None else min(share, QUICK_SECONDS)
            answers.append(fleet.allocate(claim, share))
            if not several and answers[-1].get("exceeded") == "time":
                answers = [fleet.allocate(claim, seconds_left(ends))]
            if not answers[-1]["allocated"]:
                break
        return answers

    def _is_left(self, answer: _Answer) -> bool:
        """Whether a single claim is to be searched for beside the loop."""
        return self._searches.is_open and answer["reason"] == Reason.SEARCH_LIMIT and "exceeded" not in answer

    def _take_back(
        self, fleet: ResourceClaimFleet, answers: Sequence[Mapping[str, Any]], claims: Mapping[tuple[str, str], Object]
    ) -> None:
        for each in answers:
            if each["allocated"]:
                fleet.delete(claims[each["namespace"], each["name"]])


def _key(claim: Object) -> _Key:
    metadata = claim["metadata"]
    return metadata["namespace"], metadata["name"]


def _units(claims: Sequence[Object]) -> dict[_Key, list[Object]]:
    """Claims that are answered together, by group or name."""
    by_key: dict[_Key, list[Object]] = {}
    for claim in claims:
        group = claim["metadata"].get("annotations", {}).get(GROUP)
        key = _key(claim)
        by_key.setdefault((key[0], f"group {group}" if group else key[1]), []).append(claim)
    return by_key


def _identity(claim: Object) -> object:
    """Equal as long as it is the same claim: its spec cannot be edited."""
    return claim["metadata"].get("uid") or claim.get("spec")


def _priority_order(claim: Object) -> tuple[int, str, str, str]:
    """The most urgent first, then the oldest."""
    metadata = claim["metadata"]
    return -_priority(claim), metadata.get("creationTimestamp", ""), metadata["namespace"], metadata["name"]


def _priority(claim: Object) -> int:
    text = claim["metadata"].get("annotations", {}).get(PRIORITY, "0")
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else 0
