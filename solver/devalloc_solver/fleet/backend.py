"""What a fleet does with claims and objects. It is the same in both dialects, whose backends fill in the steps."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from devalloc.api.findings import group_ref, text_fact
from devalloc.api.node_rules import NodeRestriction
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.deadline import ALLOCATE_SECONDS, Call, end_time
from devalloc_solver.fleet.claim_reader import ClaimReader, spec_text
from devalloc_solver.fleet.explainer import FleetExplainer
from devalloc_solver.fleet.fleet_stats import FleetStats
from devalloc_solver.fleet.joint import Echoes, nodes_that_matter, place_in_fleet
from devalloc_solver.fleet.node_class_plan import ChosenPlace, ClaimQuery
from devalloc_solver.fleet.placed import PlacedClaim
from devalloc_solver.fleet.shape_search import ShapeSearch
from devalloc_solver.fleet.state import FleetState, Name
from devalloc_solver.fleet.subset import FleetSubset
from devalloc_solver.fleet.waiting import Gains, Prospects
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline.decomposition import (
    SubproblemSummary,
    summarize_subproblems,
    summarize_units,
)
from devalloc_solver.pipeline.flow import UnsolvedProblem
from devalloc_solver.pipeline.narrowing import MAX_CLAIMS
from devalloc_solver.pipeline.strategy import SearchOutcome, add_rejected_claims, search_parts
from devalloc_solver.pipeline.units import RejectedClaim, timeout_rejection
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import ClaimAnswer, Solution
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request

Manifest = Mapping[str, Any]
_MAX_VERSION = 20
"""Digits of a resourceVersion that is compared."""
Answer = dict[str, Any]
"""of one claim, as ``solve_manifests`` has it"""


class ReadClaim(Protocol):
    """A claim as it was read. What it asks for counts only of one that is valid."""

    @property
    def key(self) -> Key: ...

    @property
    def group(self) -> str | None: ...

    @property
    def pinned_node(self) -> str | None: ...

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]: ...

    @property
    def priority(self) -> int: ...

    @property
    def shape(self) -> Hashable | None:
        """Equal for claims that ask for the same; None if unknown."""

    @property
    def repeated(self) -> Mapping[str, Any]:
        """What its answer repeats of it, by field of the answer."""


StateT = TypeVar("StateT", bound=FleetState)
ReadT = TypeVar("ReadT", bound=ReadClaim)
QueryT = TypeVar("QueryT", bound=ClaimQuery)


@dataclass(frozen=True, slots=True)
class _Request(Generic[ReadT, QueryT]):
    """A claim, and what the index says of it."""

    read: ReadT
    query: QueryT
    shape: ShapeSearch
    fits: bool
    """by itself"""


class FleetBackend(ABC, Generic[StateT, ReadT, QueryT]):
    """Objects of one dialect, kept and indexed, and answers to claims; see ``Fleet``. Not thread-safe."""

    def __init__(self, state: StateT, reader: ClaimReader[ReadT, Any], refusals: FleetExplainer[Any, Any]) -> None:
        self._state, self._reader, self._explainer = state, reader, refusals
        self._echoes = Echoes(state, self._held_answer, self._write)
        self._assumed: set[Key] = set()
        """claims that were given devices here, and of which no state with these has come in yet"""

    def read_ahead(self) -> None:
        """Read now what is otherwise read when a claim first needs it: for a fleet that stays."""

    # -- one claim -----------------------------------------------------------------------------------------------------

    def allocate(self, claim: Manifest, deadline: float | None = ALLOCATE_SECONDS, *, is_quick: bool = False) -> Answer:
        """Place one claim, have the answer checked, and keep what it got. ``is_quick``: see ``Allowance.begin``."""
        started = time.monotonic()
        index = self._state.index
        index.allowance.begin(end_time(deadline, started), started, started, is_quick=is_quick)
        read = self._read(claim)
        settled = self._settled(read)
        if settled is not None:
            return self._write(settled)
        if read.group is not None:
            group = group_ref(read.group)["group"]
            message = f"is a member of group {group}, and a group is answered as a whole: use allocate_all"
            causes = (text_fact(message),)
            return self._write(RejectedClaim(read.key, Reason.GROUP_UNSATISFIABLE, causes, read.group).answer(), read)
        try:
            answer = self._place(read)
        except OutOfTime as error:
            index.forget()
            return self._write(timeout_rejection(read, error).answer(), read)
        if answer["allocated"]:
            self._assumed.add(read.key)
        return answer

    def _place(self, read: ReadT) -> Answer:
        """The answer to a valid claim that stands alone and holds nothing.

        Raises OutOfTime; nothing is changed then.
        """
        try:
            return self._place_by_index(read)
        except self._errors:
            return self._place_after_error(read)

    def _place_by_index(self, read: ReadT) -> Answer:
        """Raises ``_errors`` and OutOfTime; nothing is changed then."""
        query = self._query(read)
        if isinstance(query, RejectedClaim):
            return self._write(query.answer(), read)
        if query is None:
            return self._place_on_whole(read)
        spot = self._state.places.find(query, read.pinned_node)
        if query.is_strange:
            return self._place_on_whole(read)
        if spot is not None:
            return self._accept(read, query, spot)
        return self._refuse(read, query)

    def _refuse(self, read: ReadT, query: QueryT) -> Answer:
        """The answer to a claim that fits nowhere."""
        refused = self._explainer.explain(query)
        return self._place_on_whole(read) if refused is None else deepcopy(self._write(refused, read))

    def _accept(self, read: ReadT, query: QueryT, spot: ChosenPlace) -> Answer:
        """Check, keep and answer what the index has found."""
        placed = self._placed(read, query, spot)
        refused = self._check(read, placed)
        if refused is not None:
            return self._write(refused.answer(), read)
        self._grant(read, placed)
        return placed.answer

    # -- several claims ------------------------------------------------------------------------------------------------

    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> dict[str, Any]:
        """Place claims jointly, with the kept members of their groups, and keep what they got."""
        call = Call(deadline, is_quick=is_quick)
        fresh = self._fresh(claims)
        answer = self._allocate_in_part(fresh, call)
        if answer is not None:
            return answer
        before = {*self._state.allocations}
        solution, waiting = self._solve(fresh, call)
        self._echoes.note(solution, before)
        self._record_all(solution, waiting)
        return solution.to_dict(self._write)

    def _allocate_in_part(self, fresh: Sequence[ReadT], call: Call) -> dict[str, Any] | None:
        """The same from the nodes that matter to these claims, in a fleet where nothing is wrong; None where all is to
        be looked at: it is not certain what matters, or claims that fit by themselves do not fit together."""
        keys = {read.key for read in fresh}
        if self._echoes.edition != self._state.edition or not len(fresh) == len(keys) <= MAX_CLAIMS:
            return None
        state = self._state
        state.index.allowance.begin(call.ends, call.started, is_quick=call.is_quick)
        try:
            requested = self._ask_alone(fresh)
            outcome = None if requested is None else self._search_in_part(requested, call)
        except OutOfTime:
            state.index.forget()
            return None
        except self._errors:
            return None
        if requested is None or outcome is None:
            return None
        search, spots = outcome
        answers = self._answer_all(requested, spots)
        if answers is None:
            return None
        self._assumed |= spots.keys()
        levels = add_rejected_claims(search.levels, [read.priority for read in fresh])
        solution = Solution((), tuple(levels), True, time.monotonic() - call.started, ())
        shown = [*self._echoes.all_but(spots.keys()), *answers.values()]
        shown.sort(key=lambda answer: (answer["namespace"], answer["name"]))
        return {**solution.to_dict(), "claims": shown}

    def _refuse_in_time(self, ask: _Request[ReadT, QueryT]) -> Answer:
        try:
            return self._refuse(ask.read, ask.query)
        except OutOfTime as error:
            self._state.index.forget()
            return self._write(timeout_rejection(ask.read, error).answer(), ask.read)

    def _ask_alone(self, fresh: Sequence[ReadT]) -> list[_Request[ReadT, QueryT]] | None:
        """What claims ask the index for, and whether they fit by themselves; None where it has no words for one."""
        requested = []
        for read in fresh:
            if not (self._is_waiting(read) and self._is_plain(read)) or read.group is not None:
                return None
            query = self._query(read)
            if query is None or isinstance(query, RejectedClaim) or not query.is_monotone:
                return None
            shape = self._state.places.shape(query)
            fits = self._state.places.find(query, read.pinned_node) is not None
            if query.is_strange or not isinstance(shape, ShapeSearch) or shape.wide:
                return None
            requested.append(_Request(read, query, shape, fits))
        return requested

    def _search_in_part(
        self, requested: Sequence[_Request[ReadT, QueryT]], call: Call
    ) -> tuple[SearchOutcome, Mapping[Key, ChosenPlace]] | None:
        """Places for all claims that fit by themselves, as the others get nothing beside these either; None where that
        is not certain to be right."""
        index = self._state.index
        if any(self._is_costly(ask.read) for ask in requested):
            return None
        requested = [ask for ask in requested if ask.fits]
        if not requested:
            index.allowance.begin_search()
            return SearchOutcome([], []), {}
        pins = [pin for ask in requested if (pin := ask.read.pinned_node) is not None and pin in index.records]
        searches = [(ask.shape, ask.read.restrictions) for ask in requested]
        records = nodes_that_matter(index, searches, pins, len(requested))
        if records is None:
            return None
        subset = self._explainer.subset(self._state.rules, records)
        units = self._units([ask.read for ask in requested], subset)
        if units is None:
            return None
        index.allowance.begin_search()
        held, ends = self._explainer.holdings(subset), call.search_end()
        outcome = search_parts(
            *(subset.snapshot, held, units), policy=self._state.policy, ends=ends, is_quick=call.is_quick
        )
        spots = {one.demand.key: place_in_fleet(one, subset, records) for one in outcome.placements}
        if outcome.doubtful or any(ask.read.key not in spots for ask in requested):
            return None
        return outcome, spots

    def _answer_all(
        self, requested: Sequence[_Request[ReadT, QueryT]], spots: Mapping[Key, ChosenPlace]
    ) -> dict[Key, Answer] | None:
        """Check, keep and answer what was found for several claims, and refuse the others.

        Keeps nothing if it fails. None where an answer is disputed, or a device that only a reason reads has an error.
        """
        answers: dict[Key, Answer] = {}
        try:
            with ExitStack() as rollback:
                for ask in requested:
                    key = ask.read.key
                    if key in spots:
                        name = (self._state.claim_kind, *key)
                        is_kept = name in self._state.objects
                        undo = partial(self._release, key) if is_kept else partial(self._state.remove, name)
                        answers[key] = self._accept(ask.read, ask.query, spots[key])
                        if not answers[key]["allocated"]:
                            return None
                        rollback.callback(undo)
                self._explainer.given_now = frozenset(spots)
                for ask in requested:
                    if ask.read.key not in spots:
                        answers[ask.read.key] = self._refuse_in_time(ask)
                rollback.pop_all()
        except self._errors:
            return None
        finally:
            self._explainer.given_now = frozenset()
        return answers

    def _record_all(self, solution: Solution, waiting: Iterable[ReadT]) -> None:
        """Keep what claims got that held nothing before."""
        by_key = {read.key: read for read in waiting}
        for answer in solution.claims:
            if answer.allocated and answer.key in by_key:
                self._record(by_key[answer.key], answer)
                self._assumed.add(answer.key)

    @gc_paused(settle=True)
    def parts(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, alone: bool = False
    ) -> list[SubproblemSummary]:
        """The parts of these claims that compete for no device with each other, without placing any."""
        prepared = self._prepare(self._fresh(claims), Call(deadline))
        summarize = summarize_units if alone else summarize_subproblems
        return summarize(prepared.snapshot, prepared.allocations, prepared.units)

    def problems(self) -> list[dict[str, Any]]:
        """What is wrong with the objects, and with what claims hold of them."""
        return list(self.allocate_all([])["problems"])

    def kinds(self) -> Iterator[str]:
        """The kind of each object."""
        return (name[0] for name, same in self._state.objects.items() for _ in same)

    def release(self, namespace: str, name: str) -> None:
        """Take its devices from a claim; the claim itself is kept as pending."""
        if not self.holds(namespace, name):
            raise KeyError(f"no claim {namespace}/{name} holds devices")
        key = namespace, name
        self._assumed.discard(key)
        self._release(key)

    @abstractmethod
    def holds(self, namespace: str, name: str) -> bool:
        """Whether a claim of that name has devices."""

    # -- claims that wait ----------------------------------------------------------------------------------------------

    def gains(self) -> Gains:
        """What has become free or new since the last call."""
        index, (edition, names) = self._state.index, self._edition()
        room = index.room_gained()
        kinds, index.gained = frozenset(index.gained), set()
        altered, index.altered = frozenset(index.altered), set()
        return Gains((index.kinds, *edition), names, kinds, room, altered, [kind.driver for kind in index.kinds.kinds])

    def waiting_key(self, claim: Manifest) -> Hashable | None:
        """Equal for claims that stand alone and have the same answer; None if that cannot be told."""
        try:
            return self._waiting_key(self._read(claim))
        except (ValueError, KeyError):
            return None

    def _waiting_key(self, read: ReadT) -> Hashable | None:
        if not self._is_waiting(read) or read.shape is None:
            return None
        text = spec_text(read.repeated)
        return read.key[0], read.shape, read.pinned_node, read.restrictions, read.priority, text

    def prospects(self, claim: Manifest, deadline: float | None = None, *, at_best: bool = False) -> Prospects | None:
        """What a claim alone could have, whatever group it is in; None if that cannot be told, or not in time."""
        started, index = time.monotonic(), self._state.index
        index.allowance.begin(end_time(deadline, started), started, started)
        unknown: tuple[type[Exception], ...] = (ValueError, KeyError, *self._errors)
        try:
            read = self._read(self._at_best(claim) if at_best else claim)
            key = self._waiting_key(read)
            return None if key is None else self._prospects(read, key)
        except unknown:
            return None
        except OutOfTime:
            index.forget()
            return None

    def _prospects(self, read: ReadT, key: Hashable) -> Prospects | None:
        query = self._query(read)
        if isinstance(query, RejectedClaim):
            return Prospects(key, frozenset(), frozenset(), fits=False, most=0)
        if query is None or query.is_strange or not query.is_monotone:
            return None
        places = self._state.places
        shape = places.shape(query)
        requests = [*shape.demand.requests]
        kinds, least = None, 0
        if isinstance(shape, ShapeSearch):
            kinds = frozenset([kind for request in requests for kind in request.candidates.accepted])
            least = shape.fewest if shape.takes_free_only else 0
        named = [request.eligible.class_drivers for request in requests]
        drivers = None if None in named else frozenset().union(*(one for one in named if one is not None))
        if places.find(query, read.pinned_node) is None:
            return Prospects(key, kinds, drivers, fits=False, most=0, least=least)
        most = None if kinds is None else _most_copies(shape.demand, self._explainer.stats)
        return Prospects(key, kinds, drivers, fits=True, most=most, least=least)

    # -- objects -------------------------------------------------------------------------------------------------------

    def update(self, document: Manifest, *, is_current: bool = False) -> list[dict[str, Any]]:
        """Take in an object that is new or has changed; what is wrong with it. Nothing of a claim in an older state
        than the one that counts, unless the caller says that this is the one."""
        name = self._checked_name(document)
        if name[0] == self._state.claim_kind:
            if not is_current and self.holds(*name[1:]) and self._is_older(name, document):
                return []
            self._assumed.discard(name[1:])
        return [problem.to_dict() for problem in self._replace(name, document)]

    def _is_older(self, name: Name, document: Manifest) -> bool:
        """Whether this state of a claim that has devices is from before it got them, or from before the last one."""
        now, new = self._metadata_of(name), document.get("metadata")
        uids = now.get("uid"), new.get("uid") if isinstance(new, Mapping) else None
        if None not in uids and uids[0] != uids[1]:
            return False
        versions = [str(one.get("resourceVersion", "")) for one in (now, new) if isinstance(one, Mapping)]
        is_known = len(versions) == 2 and all(text.isdecimal() and len(text) < _MAX_VERSION for text in versions)
        if is_known and int(versions[1]) < int(versions[0]):
            return True
        return name[1:] in self._assumed and not self._is_allocated(document)

    def delete(self, document: Manifest) -> None:
        """Forget an object; of a claim also what it holds."""
        name = self._checked_name(document)
        if name[0] == self._state.claim_kind:
            self._assumed.discard(name[1:])
        if not self._state.remove(name):
            raise KeyError(f"no {name[0]} {'/'.join(part for part in name[1:] if part)}")

    def _checked_name(self, document: Manifest) -> Name:
        name = self._name_of(document) if isinstance(document, Mapping) else ("", "", "")
        if not name[0] or not name[2]:
            raise ValueError("to name an object, give its kind, its metadata.name, and its namespace if it has one")
        return name

    # -- what the dialects differ in -----------------------------------------------------------------------------------

    _errors: ClassVar[tuple[type[Exception], ...]]
    """what the index raises for an expression that cannot be evaluated on some device"""

    @abstractmethod
    def _read(self, claim: Manifest) -> ReadT:
        """A claim, or the kept one of its name. Raises ValueError and KeyError as ``Fleet.allocate``."""

    def _at_best(self, claim: Manifest) -> Manifest:
        """A valid claim without its own expressions, or as it is."""
        return claim

    @abstractmethod
    def _settled(self, read: ReadT) -> ClaimAnswer | None:
        """The answer to a claim that is invalid or has devices; None for one that is to be solved."""

    @abstractmethod
    def _held_answer(self, key: Key) -> ClaimAnswer:
        """The answer to a claim that holds devices."""

    def _is_plain(self, read: ReadT) -> bool:
        """Whether nothing is to be said of how a claim is written, but in its answer."""
        return True

    @abstractmethod
    def _units(self, reads: Sequence[ReadT], subset: FleetSubset[Any]) -> Sequence[PlacementUnit] | None:
        """Claims that stand alone in terms of a subset, in the order in which they are decided; None where one is
        refused."""

    @abstractmethod
    def _is_costly(self, read: ReadT) -> bool:
        """Whether an expression of a claim costs more than is free: on all devices it may cost too much."""

    @abstractmethod
    def _is_waiting(self, read: ReadT) -> bool:
        """Whether a claim is valid, and holds nothing."""

    @abstractmethod
    def _write(self, answer: ClaimAnswer, read: ReadT | None = None) -> Answer:
        """An answer as ``solve_manifests`` has it. ``read``: the claim, if the answer does not repeat yet what it is to
        repeat of it."""

    @abstractmethod
    def _query(self, read: ReadT) -> QueryT | RejectedClaim | None:
        """What a claim asks the index for, or why it is not solved; None for what the index has no words for."""

    @abstractmethod
    def _place_after_error(self, read: ReadT) -> Answer:
        """The answer to a claim of which the index raised one of ``_errors``."""

    @abstractmethod
    def _place_on_whole(self, read: ReadT) -> Answer:
        """The answer to a claim that the index has no words for."""

    @abstractmethod
    def _placed(self, read: ReadT, query: QueryT, spot: ChosenPlace) -> PlacedClaim: ...

    @abstractmethod
    def _check(self, read: ReadT, placed: PlacedClaim) -> RejectedClaim | None:
        """Judge an answer independently; why it is not given, if expressions are disputed.

        Raises errors.AnswerRefused.
        """

    @abstractmethod
    def _grant(self, read: ReadT, placed: PlacedClaim) -> None:
        """A claim has what its place gives it, from now on."""

    @abstractmethod
    def _record(self, read: ReadT, answer: ClaimAnswer) -> None:
        """The same for an answer that was given jointly."""

    @abstractmethod
    def _fresh(self, claims: Iterable[Manifest]) -> list[ReadT]:
        """Claims of a call, as they were read, but for those that hold devices."""

    @abstractmethod
    def _prepare(self, fresh: Sequence[ReadT], call: Call) -> UnsolvedProblem[Any]:
        """The problem of these claims, with the kept members of their groups."""

    @abstractmethod
    def _solve(self, fresh: Sequence[ReadT], call: Call) -> tuple[Solution, Iterable[ReadT]]:
        """Solve that problem; the claims that may have got devices come with it."""

    @abstractmethod
    def _edition(self) -> tuple[tuple[object, ...], object]:
        """Other objects once what claims ask for has another meaning, and one once other objects can be named."""

    @abstractmethod
    def _metadata_of(self, name: Name) -> Mapping[str, Any]:
        """``uid`` and ``resourceVersion`` of a claim, as far as they are known."""

    @abstractmethod
    def _is_allocated(self, document: Manifest) -> bool:
        """Whether the status of a claim's manifest records devices."""

    @abstractmethod
    def _release(self, key: Key) -> None: ...

    @abstractmethod
    def _name_of(self, document: Manifest) -> Name: ...

    @abstractmethod
    def _replace(self, name: Name, document: Manifest) -> Iterable[Problem]: ...


def _most_copies(demand: Demand, stats: FleetStats) -> int | None:
    """How many claims of a demand, of which all candidates are known, could have a place at once, at most; None if
    that is not counted."""
    if not all(request.takes_whole for request in demand.requests):
        return None
    stats.update()
    sizes = stats.sizes()

    def most(request: Request) -> int:
        kinds = request.candidates.accepted
        return (sum(sizes.get(kind, 0) for kind in kinds) - stats.used(kinds)) // max(1, request.min_count)

    return min((max(map(most, detail)) for detail in demand.details), default=None)
