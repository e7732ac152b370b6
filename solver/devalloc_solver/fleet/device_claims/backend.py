"""DeviceClaims in a fleet that stays in memory."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.findings import text_fact
from devalloc.api.json_content import MAPPINGS
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc_solver.cel import device_claims as cel
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.deadline import Call
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, SolveCache, prepare
from devalloc_solver.dialects.device_claims.solve import solve_input
from devalloc_solver.eligibility.judge import ExpressionError
from devalloc_solver.errors import AnswerRefused
from devalloc_solver.fleet.backend import Answer, FleetBackend, Manifest, Name
from devalloc_solver.fleet.device_claims.documents import (
    ClaimRecord,
    DeviceClaimReader,
    ManifestRecord,
    name_of,
    read_manifest,
)
from devalloc_solver.fleet.device_claims.part import Echoes, part_for, settled_answer
from devalloc_solver.fleet.device_claims.state import DeviceFleetState
from devalloc_solver.fleet.node_class_plan import ClaimQuery
from devalloc_solver.fleet.waiting import Prospects
from devalloc_solver.pipeline.units import RejectedClaim, timeout_rejection
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import Solution
from devalloc_solver.problem.demand import Request
from devalloc_solver.problem.placement_policy import PlacementPolicy


class DeviceClaimFleet(FleetBackend[DeviceFleetState, ManifestRecord]):
    """Pools, classes and claims."""

    _claim_kind = "DeviceClaim"

    def __init__(self, state: DeviceFleetState, cel_check: str) -> None:
        """Use ``from_manifests``."""
        super().__init__(state)
        self._cel_check = cel_check
        self._reader = DeviceClaimReader()
        self._standing = SolveCache()
        self._echoes = Echoes(state)

    @classmethod
    def from_manifests(
        cls, documents: Iterable[Manifest], *, policy: PlacementPolicy, cel_check: str
    ) -> DeviceClaimFleet:
        """Read everything at once."""
        return cls(DeviceFleetState((read_manifest(document) for document in documents), policy), cel_check)

    def read_ahead(self) -> None:
        self._state.judge.read_devices()
        DeviceClaim.model_rebuild()  # which else the first claim does

    # -- one claim -----------------------------------------------------------------------------------------------------

    def _read(self, claim: Manifest) -> ManifestRecord:
        if not isinstance(claim, MAPPINGS) or claim.get("kind") != "DeviceClaim":
            raise ValueError("claim must be the manifest of a DeviceClaim")
        if "spec" not in claim:
            stored = self._state.documents.by_name.get(name_of(claim), ())
            if len(stored) != 1:
                raise KeyError(f"no claim {'/'.join(name_of(claim)[1:])} is in the fleet: give its whole manifest")
            return stored[0]
        read = self._reader.read(claim)
        if not read.name[2]:
            raise ValueError("claim must have metadata.name")
        return read

    def _settled(self, read: ManifestRecord) -> Answer | None:
        state = self._state
        held = read.key in state.allocations
        if not held and isinstance(read, ClaimRecord) and not read.is_allocated:
            return None
        answer = settled_answer(state, read)
        if answer.allocated and not held:
            state.replace(read)
        return answer.to_dict()

    def _group_of(self, read: ManifestRecord) -> str | None:
        return read.group if isinstance(read, ClaimRecord) else None

    def _rejected(self, read: ManifestRecord, reason: Reason, message: str) -> Answer:
        return RejectedClaim(read.key, reason, (text_fact(message),), self._group_of(read)).answer().to_dict()

    def _timed_out(self, read: ManifestRecord, error: OutOfTime) -> Answer:
        assert isinstance(read, ClaimRecord)
        return timeout_rejection(read, error).answer().to_dict()

    def _place(self, read: ManifestRecord) -> Answer:
        assert isinstance(read, ClaimRecord)
        begin = True
        while True:
            try:
                return self._place_once(read)
            except ExpressionError:
                self._state.expression_failed(begin=begin)
                begin = False

    def _place_once(self, claim: ClaimRecord) -> Answer:
        """Raises ExpressionError when the budget of an expression is spent, and OutOfTime; nothing is changed then."""
        state = self._state
        query = state.query(claim)
        if isinstance(query, RejectedClaim):
            return query.answer().to_dict()
        spot = state.places.find(query, claim.pinned_node)
        if spot is None:
            return state.refusals.explain(query)
        placed = state.placed(claim, spot)
        answer = placed.answer
        violations = state.judge.judge(claim, answer)
        if violations:
            raise AnswerRefused("the check refuses this answer (please report it): " + "; ".join(violations[:10]))
        if state.judge.disagreements:
            if self._cel_check == "refuse" and (disputed := state.judge.disputed):
                causes = tuple(map(text_fact, disputed[:3]))
                return RejectedClaim(claim.key, Reason.CHECK_FAILED, causes, claim.group).answer().to_dict()
            answer["warnings"] = [*answer.get("warnings", ()), *state.judge.disagreements]
        state.grant(claim, placed)
        return answer

    # -- claims that wait ----------------------------------------------------------------------------------------------

    def _waiting_key(self, read: ManifestRecord) -> Hashable | None:
        if not isinstance(read, ClaimRecord) or read.is_deleting or read.is_allocated:
            return None
        if read.key in self._state.allocations:
            return None
        return read.namespace, read.shape, read.pinned_node, read.excluded_nodes, read.priority, tuple(read.warnings)

    def _prospects(self, read: ManifestRecord, key: Hashable) -> Prospects | None:
        assert isinstance(read, ClaimRecord)
        state = self._state
        try:
            query = state.query(read)
            if isinstance(query, RejectedClaim):
                return Prospects(key, frozenset(), frozenset(), fits=False, most=0)
            return self._prospects_by_index(query, key, read.pinned_node, state.refusals.stats)
        except ExpressionError:
            return None

    def _drivers(self, query: ClaimQuery, requests: Sequence[Request]) -> frozenset[str] | None:
        named = [query.drivers(request) for request in requests]  # as its classes say
        return None if None in named else frozenset().union(*(one for one in named if one is not None))

    def _edition(self) -> tuple[tuple[object, ...], object]:
        rules = self._state.rules
        return (rules, rules.wholes.edition), self._state.configs_edition

    # -- several claims ------------------------------------------------------------------------------------------------

    def kinds(self) -> Iterator[str]:
        return (name[0] for name, same in self._state.documents.by_name.items() for _ in same)

    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> dict[str, Any]:
        call, state = Call(deadline, is_quick=is_quick), self._state
        fresh = self._fresh(claims)
        in_part = self._allocate_in_part(fresh, call)
        if in_part is not None:
            return in_part
        everything, before = state.everything(fresh), {*state.allocations}
        solution = solve_input(everything, state.policy, call, self._standing, cel_check=self._cel_check)
        self._echoes.note(solution, before)
        self._record(solution, (*state.pending(), *fresh))
        return solution.to_dict()

    def _allocate_in_part(self, fresh: Sequence[ManifestRecord], call: Call) -> dict[str, Any] | None:
        """The same for a few claims in a fleet where nothing is wrong, from the nodes that matter to them; None where
        all is to be looked at: one is left out, or it is not certain what matters."""
        state = self._state
        claims = [read for read in fresh if isinstance(read, ClaimRecord)]
        keys = {claim.key for claim in claims}
        if not self._echoes.are_all or len(keys) < len(fresh):
            return None
        try:
            part = part_for(state, claims)
        except (ExpressionError, OutOfTime):
            return None
        if part is None:
            return None
        solution = solve_input(part, state.policy, call, cel_check=self._cel_check)
        placed = [answer for answer in solution.claims if answer.key in keys and answer.allocated]
        if len(placed) < len(keys) or solution.problems:
            return None
        self._record(solution, claims)
        answers = [*self._echoes.all_but(keys), *(answer.to_dict() for answer in placed)]
        answers.sort(key=lambda answer: (answer["namespace"], answer["name"]))
        return {**solution.to_dict(), "claims": answers}

    def _record(self, solution: Solution, waiting: Iterable[ManifestRecord]) -> None:
        """Keep what claims got that held nothing before."""
        state = self._state
        by_key = {read.key: read for read in waiting if isinstance(read, ClaimRecord)}
        for answer in solution.claims:
            if answer.allocated and answer.key not in state.allocations and answer.key in by_key:
                state.record(by_key[answer.key], answer.to_dict())
                self._assumed.add(answer.key)

    def _prepare(self, claims: Iterable[Manifest], call: Call) -> DeviceClaimProblem:
        return prepare(self._state.everything(self._fresh(claims)), self._standing, call)

    def _fresh(self, claims: Iterable[Manifest]) -> list[ManifestRecord]:
        """Those that hold nothing."""
        documents = [self._read(claim) for claim in claims]
        return [document for document in documents if document.key not in self._state.allocations]

    # -- objects -------------------------------------------------------------------------------------------------------

    def holds(self, namespace: str, name: str) -> bool:
        return (namespace, name) in self._state.allocations

    def _release(self, key: Key) -> None:
        self._state.release(key)

    def _metadata_of(self, name: Name) -> Mapping[str, Any]:
        for document in self._state.documents.by_name.get(name, ()):
            if isinstance(claim := document.object, DeviceClaim):
                return {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
        return {}

    def _is_allocated(self, document: Manifest) -> bool:
        status = document.get("status")
        return isinstance(status, Mapping) and bool(status.get("allocations"))

    def _name_of(self, document: Manifest) -> Name:
        return name_of(document)

    def _replace(self, name: Name, document: Manifest) -> Iterable[Problem]:
        parsed = read_manifest(document)
        self._state.replace(parsed)
        return (*parsed.problems, *_class_expression_error(parsed))

    def _remove(self, name: Name) -> bool:
        return self._state.remove(name)


def _class_expression_error(document: ManifestRecord) -> Iterator[Problem]:
    """A class that cannot be used although it reads well."""
    if isinstance(document.object, DeviceClass) and document.object.spec.constraints:
        try:
            cel.compile(document.object.spec.constraints)
        except cel.CompileError as error:
            message = f"line {error.line}, column {error.column}: {error.message}"
            yield Problem(message, path="spec.constraints", kind="DeviceClass", name=document.object.metadata.name)
