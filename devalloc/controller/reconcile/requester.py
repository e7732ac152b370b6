"""What asks for devices beside claims, such as machines: a ``Requester`` for the objects of some kinds.

It puts what its objects ask for and hold into the solver's input, as claims that no user can name (``owner_names``).
From the answer it decides what is written on its objects, in one with what is written on claims. The program gives the
loop its requesters. An installed package adds one by an entry point of the group devalloc.requesters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from devalloc.api.findings import Finding
from devalloc.api.problems import Problem
from devalloc.api.views import ClaimKey
from devalloc.controller.reconcile.decision import DEVICE_CLAIM, WriteUnit
from devalloc.controller.reconcile.events import ObjectEvent, claim_events
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.controller.reconcile.surroundings import Surroundings
from devalloc.store import Key, Object


@dataclass(slots=True)
class Requests:
    """What one requester asks for in a round."""

    documents: Sequence[Object]
    """The solver's input."""
    problems: Sequence[Problem] = ()
    """What is wrong with its objects."""

    @property
    def bound(self) -> Iterable[ClaimKey]:
        """Claims that are placed with its objects, or wait with them."""
        return ()

    def parts_of(self, key: Key, *, alone: bool = False) -> Sequence[ClaimKey]:
        """What asks for an object in the solver's input; with ``alone`` only if it is in no group with claims."""
        return ()

    def is_waiting(self, key: Key) -> bool:
        """Whether nothing is asked for an object, because something must change first."""
        return False


R = TypeVar("R", bound=Requests)


@dataclass(frozen=True, slots=True)
class AnsweredRound:
    """What the solver has answered in a round, and on what."""

    answer: Mapping[str, Any]
    objects: Sequence[Object]
    """What asks for devices."""
    documents: Sequence[Object]
    """These and all others, as they are stored."""
    around: Surroundings
    now: str
    """RFC 3339."""
    say: Callable[[str, Finding], str]
    """The sentence of a finding in a namespace."""
    in_conditions: bool
    """Objects say in conditions why they wait: the store is a cluster's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester(Generic[R]):
    """What asks for devices for the objects of some kinds. All functions are pure."""

    kinds: frozenset[str]
    holders: frozenset[str] = frozenset()
    """Those of them that hold devices by their status: writes of others on it break the fence of a round."""
    read: Callable[[Sequence[Object], Memo | None, bool], R]
    """What is asked for in documents, in which allocated claims are as they count; the last: whether objects that are
    not among them wait for room."""
    decide: Callable[[R, list[WriteUnit], AnsweredRound], list[WriteUnit]] = lambda requested, units, done: units
    """The units of claims and other requesters, and its own."""
    withheld: Callable[[R], list[dict[str, Any]]] = lambda requested: []
    """Answers to claims that are not asked for because they wait with an object."""
    in_words: Callable[[R, dict[str, Any]], dict[str, Any]] = lambda requested, answer: answer
    """The answer to a claim, with the fields of objects for what stands for them in the solver's input."""
    held: Callable[[Object], list[Any]] = lambda obj: []
    """Entries of all that an object counts for."""
    relevant: Callable[[Object], Any] = lambda obj: None
    """All of an object that a round may depend on; None if any change of it matters."""
    wrote: Callable[[Object, Object], Iterable[ObjectEvent]] = lambda before, after: ()
    """What became of an object by a write of the loop."""
    heard: Callable[[Object, Object], Iterable[ObjectEvent]] = lambda before, after: ()
    """What became of an object by a write of others."""


def events_of_write(before: Object, after: Object, requesters: Iterable[Requester[Any]]) -> list[ObjectEvent]:
    """What became of an object by a write of the loop; nothing for what no user waits for."""
    if before["kind"] == DEVICE_CLAIM:
        return [*claim_events(before, after)]
    return [event for each in requesters if before["kind"] in each.kinds for event in each.wrote(before, after)]


class RoundRequests:
    """The solver's input of a round: claims, and what all requesters put beside them."""

    def __init__(
        self,
        requesters: Iterable[Requester[Any]],
        documents: Sequence[Object],
        memo: Memo | None = None,
        *,
        others_wait: bool = False,
    ) -> None:
        self._requests: list[tuple[Requester[Any], Any]] = []
        for each in requesters:
            self._requests.append((each, each.read(documents, memo, others_wait)))
            documents = self._requests[-1][1].documents
        self.documents = documents
        self.problems: list[Problem] = [one for _, requested in self._requests for one in requested.problems]
        self.bound: list[ClaimKey] = [claim for _, requested in self._requests for claim in requested.bound]

    def of(self, requester: Requester[R]) -> R:
        """What one of the requesters asks for."""
        requests: R = next(requested for each, requested in self._requests if each is requester)
        return requests

    def parts_of(self, key: Key, *, alone: bool = False) -> Sequence[ClaimKey]:
        """What asks for an object in the solver's input, for a claim itself; ``alone``: as of ``Requests``."""
        if key.kind == DEVICE_CLAIM:
            return [(key.namespace or "default", key.name)]
        return [part for _, requested in self._requests for part in requested.parts_of(key, alone=alone)]

    def is_waiting(self, key: Key) -> bool:
        """Whether nothing is asked for an object, because something must change first."""
        return any(requested.is_waiting(key) for _, requested in self._requests)

    def withheld(self) -> list[dict[str, Any]]:
        """Answers to claims that are not asked for because they wait with an object."""
        return [answer for each, requested in self._requests for answer in each.withheld(requested)]

    def in_words(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer to a claim, with the fields of objects for what stands for them in the solver's input."""
        for each, requested in self._requests:
            answer = each.in_words(requested, answer)
        return answer

    def decide(self, units: list[WriteUnit], done: AnsweredRound) -> list[WriteUnit]:
        """What is to be written; ``units``: on claims, for themselves."""
        for each, requested in self._requests:
            units = each.decide(requested, units, done)
        return units
