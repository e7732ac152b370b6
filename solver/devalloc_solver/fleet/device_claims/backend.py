"""The Fleet's back end for DeviceClaims: objects of a fleet that stays in memory, and answers to claims."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc.api.reasons import Reason
from devalloc_solver.cel import device_claims as cel
from devalloc_solver.cel.budget import OutOfTime
from devalloc_solver.deadline import end_time
from devalloc_solver.dialects.device_claims.answers import ClaimAnswer, allocated_answer
from devalloc_solver.dialects.device_claims.candidates import ExpressionError
from devalloc_solver.dialects.device_claims.demands import timeout_rejection
from devalloc_solver.dialects.device_claims.manifests import RejectedClaim
from devalloc_solver.fleet.device_claims.claim_reader import DeviceClaimReader
from devalloc_solver.fleet.device_claims.documents import (
    ManifestRecord,
    ManifestStore,
    full_name,
    name_of,
    pools_of,
    read_manifest,
    select_valid,
)
from devalloc_solver.fleet.device_claims.state import DeviceFleetState
from devalloc_solver.pipeline.decomposition import SubproblemSummary, summarize_subproblems
from devalloc_solver.pipeline.device_claims import AnswerRefused, prepare, rejected_answer, solve_input
from devalloc_solver.pipeline.solve_cache import SolveCache
from devalloc_solver.problem.allocations import read_allocations
from devalloc_solver.problem.snapshot import take_snapshot


def settled_answer(
    of_claim: Iterable[ManifestRecord], documents: ManifestStore, classes: Mapping[str, DeviceClass]
) -> ClaimAnswer:
    """The answer of the stages to a claim that is allocated or invalid.

    Args:
        of_claim: the manifests of its name, at least one; several make each other invalid, and the first counts that
            holds anything.
        documents: where the pools are that it names.
        classes: the valid ones, by name.
    """
    intake = select_valid(of_claim)
    if intake.refused:
        return rejected_answer(min(intake.refused, key=lambda refused: refused.status is None))
    (claim,) = intake.claims
    snapshot, _ = take_snapshot(_pools_named(claim, documents))
    _, lost, _ = read_allocations(snapshot, [claim], classes)
    return allocated_answer(claim, snapshot, lost, intake.warnings.get(claim.key, ()))


def _pools_named(claim: DeviceClaim, documents: ManifestStore) -> list[DevicePool]:
    assert claim.status is not None
    names = dict.fromkeys(entry.device_pool_name for entry in claim.status.allocations)
    return [pool for name in names for pool in pools_of(documents.by_name.get(full_name("DevicePool", None, name), ()))]


class DeviceClaimFleet:
    """Pools, classes and claims, kept and indexed. Not thread-safe."""

    def __init__(self, state: DeviceFleetState) -> None:
        """Use ``from_manifests``."""
        self._state = state
        self._reader = DeviceClaimReader()
        self._standing = SolveCache()

    @classmethod
    def from_manifests(cls, documents: Iterable[Mapping[str, Any]], *, placement: str) -> DeviceClaimFleet:
        """Read everything at once."""
        return cls(DeviceFleetState.load((read_manifest(document) for document in documents), placement))

    # -- claims --------------------------------------------------------------------------------------------------------

    def allocate(self, claim: Mapping[str, Any], deadline: float | None) -> dict[str, Any]:
        """Place one claim, have the answer checked, and keep what it got."""
        started = time.monotonic()
        self._state.index.allowance.begin(end_time(deadline, started), started, started)
        document, typed, shape = self._read_claim(claim)
        if typed is None or typed.is_allocated or typed.key in self._state.holdings:
            return self._echo(document)
        if typed.group is not None:
            message = f"is a member of group {typed.group}, and a group is answered as a whole: use allocate_all"
            return rejected_answer(RejectedClaim(typed.key, Reason.GROUP_UNSATISFIABLE, message, typed.group)).to_dict()
        begin = True
        while True:
            try:
                return self._place(document, typed, shape)
            except ExpressionError:
                self._state.expression_failed(begin=begin)
                begin = False
            except OutOfTime as error:
                self._state.index.forget()
                return rejected_answer(timeout_rejection(typed, error)).to_dict()

    def _place(self, document: ManifestRecord, claim: DeviceClaim, shape: object) -> dict[str, Any]:
        """The same for a valid claim that stands alone and holds nothing.

        Raises ExpressionError when the budget of an expression is spent, and OutOfTime; nothing is changed then.
        """
        state = self._state
        ask = state.ask(claim, shape)
        if isinstance(ask, RejectedClaim):
            return rejected_answer(ask).to_dict()
        spot = state.index.find(ask, claim.pinned_node)
        if spot is None:
            return state.refusals.explain(ask, [problem.message for problem in document.problems])
        answer = state.answer(claim, spot, [problem.message for problem in document.problems])
        violations = state.judge.judge(claim, answer)
        if violations:
            raise AnswerRefused("the check refuses this answer (please report it): " + "; ".join(violations[:10]))
        if state.judge.disagreements:
            answer["warnings"] = [*answer.get("warnings", ()), *state.judge.disagreements]
        state.grant(document, claim, answer, spot)
        return answer

    def allocate_all(
        self, claims: Iterable[Mapping[str, Any]], deadline: float | None = None, *, is_quick: bool = False
    ) -> dict[str, Any]:
        """Place claims jointly, and keep what they got."""
        if isinstance(claims, Mapping):
            raise ValueError("claims must be several manifests, not one: use allocate")
        started = time.monotonic()
        documents = [self._read_claim(claim)[0] for claim in claims]
        fresh = [d for d in documents if (d.name[1], d.name[2]) not in self._state.holdings]
        intake, placement = self._state.everything(fresh), self._state.placement
        solution = solve_input(intake, placement, deadline, started, self._standing, is_quick=is_quick)
        by_key: dict[tuple[str, str], ManifestRecord] = {(d.name[1], d.name[2]): d for d in self._state.pending()}
        by_key |= {(d.name[1], d.name[2]): d for d in fresh}
        for answer in solution.claims:
            if answer.allocated and answer.key not in self._state.holdings and answer.key in by_key:
                self._state.record(by_key[answer.key], answer.to_dict())
        return solution.to_dict()

    def parts(self, claims: Iterable[Mapping[str, Any]], deadline: float | None = None) -> list[SubproblemSummary]:
        """The parts of these claims that compete for no device with each other, without placing any."""
        started = time.monotonic()
        documents = [self._read_claim(claim)[0] for claim in claims]
        fresh = [d for d in documents if (d.name[1], d.name[2]) not in self._state.holdings]
        prepared = prepare(
            self._state.everything(fresh), self._standing, ends=end_time(deadline, started), started=started
        )
        return summarize_subproblems(prepared.snapshot, prepared.holdings, prepared.units)

    def release(self, namespace: str, name: str) -> None:
        """Take its devices from a claim; the claim itself is kept as pending."""
        if not self._state.release((namespace, name)):
            raise KeyError(f"no claim {namespace}/{name} holds devices")

    def holds(self, namespace: str, name: str) -> bool:
        """Whether a claim of that name has devices."""
        return (namespace, name) in self._state.holdings

    # -- objects -------------------------------------------------------------------------------------------------------

    def update(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Take in an object that is new or has changed."""
        parsed = read_manifest(document)
        if not isinstance(document, Mapping) or not parsed.name[0] or not parsed.name[2]:
            raise ValueError("a manifest must be a map with at least kind and metadata.name")
        self._state.replace(parsed)
        return [problem.to_dict() for problem in (*parsed.problems, *_class_expression_error(parsed))]

    def delete(self, document: Mapping[str, Any]) -> None:
        """Forget an object; of a claim also what it holds."""
        name = name_of(document) if isinstance(document, Mapping) else ("", "", "")
        if not name[0] or not name[2]:
            raise ValueError("to delete an object, give its kind, its metadata.name, and its namespace if it has one")
        if not self._state.remove(name):
            raise KeyError(f"no {name[0]} {'/'.join(part for part in name[1:] if part)}")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _read_claim(self, claim: Mapping[str, Any]) -> tuple[ManifestRecord, DeviceClaim | None, object]:
        """The document, the claim where it is valid, and its shape."""
        if not isinstance(claim, Mapping) or claim.get("kind") != "DeviceClaim":
            raise ValueError("claim must be the manifest of a DeviceClaim")
        if "spec" not in claim:
            stored = self._state.documents.by_name.get(name_of(claim), ())
            if len(stored) != 1:
                raise KeyError(f"no claim {'/'.join(name_of(claim)[1:])} is in the fleet: give its whole manifest")
            return self._reader.again(stored[0])
        outcome = self._reader.read(claim)
        if not outcome[0].name[2]:
            raise ValueError("claim must have metadata.name")
        return outcome

    def _echo(self, document: ManifestRecord) -> dict[str, Any]:
        """The answer to a claim that has devices already, or is invalid."""
        state = self._state
        held = (document.name[1], document.name[2]) in state.holdings
        answer = settled_answer(state.of_claim(document), state.documents, state.rules.intake.classes)
        if answer.allocated and not held:
            state.replace(document)
        return answer.to_dict()


def _class_expression_error(document: ManifestRecord) -> Iterator[Problem]:
    """A class that cannot be used although it reads well."""
    if isinstance(document.object, DeviceClass) and document.object.spec.constraints:
        try:
            cel.compile(document.object.spec.constraints)
        except cel.CompileError as error:
            message = f"line {error.line}, column {error.column}: {error.message}"
            yield Problem(message, path="spec.constraints", kind="DeviceClass", name=document.object.metadata.name)
