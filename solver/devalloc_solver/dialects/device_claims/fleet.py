"""DeviceClaims in a fleet that stays in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.findings import text_fact
from devalloc.api.json_content import MAPPINGS
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc_solver.cel import device_claims as cel
from devalloc_solver.deadline import Call
from devalloc_solver.dialects.device_claims.answers import allocated_answer, repeated
from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.dialects.device_claims.demands import build_units
from devalloc_solver.dialects.device_claims.fleet_rules import DeviceClaimQuery
from devalloc_solver.dialects.device_claims.fleet_state import DeviceFleetState
from devalloc_solver.dialects.device_claims.manifest_records import (
    ClaimRecord,
    DeviceClaimReader,
    ManifestRecord,
    full_name,
    name_of,
    pools_of,
    read_manifest,
    select_valid,
)
from devalloc_solver.dialects.device_claims.placed_claims import place_claim
from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem, SolveCache, prepare
from devalloc_solver.dialects.device_claims.solve import solve_input
from devalloc_solver.dialects.device_claims.status import find_lost
from devalloc_solver.eligibility.judge import ExpressionError
from devalloc_solver.errors import AnswerRefused
from devalloc_solver.fleet.backend import Answer, FleetBackend, Manifest
from devalloc_solver.fleet.node_class_plan import ChosenPlace
from devalloc_solver.fleet.placed import PlacedClaim
from devalloc_solver.fleet.state import Name
from devalloc_solver.fleet.subset import FleetSubset
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Key
from devalloc_solver.problem.answer import ClaimAnswer, Solution
from devalloc_solver.problem.demand import PlacementUnit
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.snapshot import take_snapshot


class DeviceClaimFleet(FleetBackend[DeviceFleetState, ManifestRecord, DeviceClaimQuery]):
    """Pools, classes and claims."""

    _errors = (ExpressionError,)

    def __init__(self, state: DeviceFleetState, cel_check: str) -> None:
        """Use ``from_manifests``."""
        super().__init__(state, DeviceClaimReader(), state.refusals)
        self._cel_check = cel_check
        self._standing = SolveCache()

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
            stored = self._state.objects.get(name_of(claim), ())
            if len(stored) != 1:
                raise KeyError(f"no claim {'/'.join(name_of(claim)[1:])} is in the fleet: give its whole manifest")
            return stored[0]
        read = self._reader.read(claim)
        if not read.name[2]:
            raise ValueError("claim must have metadata.name")
        return read

    def _at_best(self, claim: Manifest) -> Manifest:
        return {**claim, "spec": {**claim["spec"], "claims": [*map(_without_expression, claim["spec"]["claims"])]}}

    def _settled(self, read: ManifestRecord) -> ClaimAnswer | None:
        state = self._state
        held = read.key in state.allocations
        if not held and isinstance(read, ClaimRecord) and not read.is_allocated:
            return None
        answer = settled_answer(state, read)
        if answer.allocated and not held:
            state.replace(read)
        return answer

    def _is_costly(self, read: ManifestRecord) -> bool:
        costs = self._state.rules.shared.judge.costs
        details = (detail for entry in read.valid.spec.claims for detail in entry.alternatives)
        return any(costs.of(detail.constraints) for detail in details if detail.constraints)

    def _is_waiting(self, read: ManifestRecord) -> bool:
        if not isinstance(read, ClaimRecord) or read.is_deleting or read.is_allocated:
            return False
        return read.key not in self._state.allocations

    def _write(self, answer: ClaimAnswer, read: ManifestRecord | None = None) -> Answer:
        return (answer if read is None else answer.repeating(read.repeated)).to_dict()

    def _query(self, read: ManifestRecord) -> DeviceClaimQuery | RejectedClaim:
        rules, claim = self._state.rules, read.valid
        return rules.refusal(claim) or DeviceClaimQuery(claim, rules.shape(claim), rules)

    def _place_after_error(self, read: ManifestRecord) -> Answer:
        """The budget of an expression is spent; see ``DeviceFleetState.expression_failed``."""
        self._state.expression_failed(begin=True)
        while True:
            try:
                return self._place_by_index(read)
            except ExpressionError:
                self._state.expression_failed(begin=False)

    def _place_on_whole(self, read: ManifestRecord) -> Answer:
        raise AssertionError("the index has words for every DeviceClaim")

    def _placed(self, read: ManifestRecord, query: DeviceClaimQuery, spot: ChosenPlace) -> PlacedClaim:
        return place_claim(query.claim, spot, query.rules.problem_input)

    def _check(self, read: ManifestRecord, placed: PlacedClaim) -> RejectedClaim | None:
        """Refuse a claim on whose devices the two evaluators disagree, if that is asked for."""
        judge, answer = self._state.judge, placed.answer
        violations = judge.judge(read.valid, answer)
        if violations:
            raise AnswerRefused("the check refuses this answer (please report it): " + "; ".join(violations[:10]))
        if judge.disagreements:
            if self._cel_check == "refuse" and (disputed := judge.disputed):
                return RejectedClaim(read.key, Reason.CHECK_FAILED, tuple(map(text_fact, disputed[:3])), read.group)
            answer["warnings"] = [*answer.get("warnings", ()), *judge.disagreements]
        return None

    def _grant(self, read: ManifestRecord, placed: PlacedClaim) -> None:
        self._state.grant(read.valid, placed)

    def _record(self, read: ManifestRecord, answer: ClaimAnswer) -> None:
        if isinstance(read, ClaimRecord) and answer.key not in self._state.allocations:
            self._state.record(read, answer.to_dict())

    def _edition(self) -> tuple[tuple[object, ...], object]:
        rules = self._state.rules
        return (rules, rules.wholes.edition), self._state.configs_edition

    # -- several claims ------------------------------------------------------------------------------------------------

    def _held_answer(self, key: Key) -> ClaimAnswer:
        return settled_answer(self._state, self._state.source(key))

    def _units(
        self, reads: Sequence[ManifestRecord], subset: FleetSubset[CandidateFinder]
    ) -> Sequence[PlacementUnit] | None:
        claims = tuple(read.valid.model for read in reads)
        units, refused = build_units(replace(self._state.rules.problem_input, claims=claims), subset.judge)
        return None if refused else units

    def _prepare(self, fresh: Sequence[ManifestRecord], call: Call) -> DeviceClaimProblem:
        return prepare(self._state.everything(fresh), self._standing, call)

    def _solve(self, fresh: Sequence[ManifestRecord], call: Call) -> tuple[Solution, Iterable[ManifestRecord]]:
        state = self._state
        solution = solve_input(
            *(state.everything(fresh), state.policy, call, self._standing), cel_check=self._cel_check
        )
        return solution, (*state.pending(), *fresh)

    def _fresh(self, claims: Iterable[Manifest]) -> list[ManifestRecord]:
        documents = [self._read(claim) for claim in claims]
        return [document for document in documents if document.key not in self._state.allocations]

    # -- objects -------------------------------------------------------------------------------------------------------

    def holds(self, namespace: str, name: str) -> bool:
        return (namespace, name) in self._state.allocations

    def _release(self, key: Key) -> None:
        self._state.release(key)

    def _metadata_of(self, name: Name) -> Mapping[str, Any]:
        for document in self._state.objects.get(name, ()):
            if isinstance(document, ClaimRecord):
                metadata = document.without_status().model.metadata
                return {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
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


def _class_expression_error(document: ManifestRecord) -> Iterator[Problem]:
    """A class that cannot be used although it reads well."""
    if isinstance(document.object, DeviceClass) and document.object.spec.constraints:
        try:
            cel.compile(document.object.spec.constraints)
        except cel.CompileError as error:
            message = f"line {error.line}, column {error.column}: {error.message}"
            yield Problem(message, path="spec.constraints", kind="DeviceClass", name=document.object.metadata.name)


def _without_expression(detail: Manifest) -> Manifest:
    rest = {name: value for name, value in detail.items() if name != "constraints"}
    return {**rest, "oneOf": [*map(_without_expression, rest["oneOf"])]} if rest.get("oneOf") else rest


def settled_answer(state: DeviceFleetState, read: ManifestRecord) -> ClaimAnswer:
    """The answer of the stages to a claim that is allocated or invalid.

    Several claims of its name make each other invalid, and the first counts that holds anything.
    """
    problem_input = select_valid(state.objects[read.name] if read.key in state.allocations else [read])
    if problem_input.refused:
        return min(problem_input.refused, key=lambda refused: refused.status is None).answer()
    (claim,) = problem_input.claims
    snapshot, _ = take_snapshot([*_pools_named(claim, state)])
    lost, _ = find_lost(snapshot, [claim])
    own = repeated(claim.spec, problem_input.warnings.get(claim.key, ()))
    return allocated_answer(claim, snapshot, lost.get(claim.key, ())).repeating(own)


def _pools_named(claim: DeviceClaim, state: DeviceFleetState) -> Iterator[DevicePool]:
    assert claim.status is not None
    for name in dict.fromkeys(entry.device_pool_name for entry in claim.status.allocations):
        yield from pools_of(state.objects.get(full_name("DevicePool", None, name), ()))
