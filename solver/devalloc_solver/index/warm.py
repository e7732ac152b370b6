"""The warm solver of DeviceClaims: what ``Fleet`` does for this dialect, documented there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from devalloc.api.claim import DeviceClaim
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.problems import Problem
from devalloc_solver import cel
from devalloc_solver.budget import OutOfTime
from devalloc_solver.deadline import end_of
from devalloc_solver.demand import late
from devalloc_solver.eligibility import ExpressionError
from devalloc_solver.index.devmgmt import Devmgmt
from devalloc_solver.index.documents import Document, name_of, read
from devalloc_solver.index.echo import echo
from devalloc_solver.index.reader import ClaimReader
from devalloc_solver.intake import Refused
from devalloc_solver.parts import Summary, summaries
from devalloc_solver.reasons import Reason
from devalloc_solver.stages import AnswerRefused, answer_refused, prepare, solve_intake
from devalloc_solver.standing import Standing


class ClaimFleet:
    """Pools, classes and claims, kept and indexed. Not thread-safe."""

    def __init__(self, state: Devmgmt) -> None:
        """Use ``from_manifests``."""
        self._state = state
        self._reader = ClaimReader()
        self._standing = Standing()

    @classmethod
    def from_manifests(cls, documents: Iterable[Mapping[str, Any]], *, placement: str) -> ClaimFleet:
        """Read everything at once."""
        return cls(Devmgmt.load((read(document) for document in documents), placement))

    # -- claims ------------------------------------------------------------------------------------------------------

    def allocate(self, claim: Mapping[str, Any], deadline: float | None) -> dict[str, Any]:
        """Place one claim, have the answer checked, and keep what it got."""
        started = time.monotonic()
        self._state.index.allowance.begin(end_of(deadline, started), started, started)
        document, found, shape = self._read_claim(claim)
        if found is None or found.is_allocated or found.key in self._state.kept:
            return self._echo(document)
        if found.group is not None:
            told = f"is a member of group {found.group}, which is answered as a whole: use allocate_all"
            return answer_refused(Refused(found.key, Reason.GROUP_UNSATISFIABLE, told, found.group)).to_dict()
        begin = True
        while True:
            try:
                return self._place(document, found, shape)
            except ExpressionError:
                self._state.expression_failed(begin=begin)
                begin = False
            except OutOfTime as error:
                self._state.index.forget()
                return answer_refused(late(found, error)).to_dict()

    def _place(self, document: Document, found: DeviceClaim, shape: object) -> dict[str, Any]:
        """The same for a valid claim that stands alone and holds nothing.

        Raises ExpressionError when the budget of an expression is spent, and OutOfTime; nothing is changed then.
        """
        state = self._state
        ask = state.ask(found, shape)
        if isinstance(ask, Refused):
            return answer_refused(ask).to_dict()
        spot = state.index.find(ask, found.pinned_node)
        if spot is None:
            return state.refusals.explain(ask, [problem.message for problem in document.problems])
        answer = state.answer(found, spot, [problem.message for problem in document.problems])
        violations = state.judge.judge(found, answer)
        if violations:
            raise AnswerRefused("the check refuses this answer (please report it): " + "; ".join(violations[:10]))
        state.grant(document, found, answer, spot)
        return answer

    def allocate_all(
        self, claims: Iterable[Mapping[str, Any]], deadline: float | None = None, *, is_quick: bool = False
    ) -> dict[str, Any]:
        """Place claims jointly, and keep what they got."""
        if isinstance(claims, Mapping):
            raise ValueError("claims must be several manifests, not one: use allocate")
        started = time.monotonic()
        documents = [self._read_claim(claim)[0] for claim in claims]
        fresh = [d for d in documents if (d.name[1], d.name[2]) not in self._state.kept]
        intake, placement = self._state.everything(fresh), self._state.placement
        solution = solve_intake(intake, placement, deadline, started, self._standing, is_quick=is_quick)
        by_key: dict[tuple[str, str], Document] = {(d.name[1], d.name[2]): d for d in self._state.pending()}
        by_key |= {(d.name[1], d.name[2]): d for d in fresh}
        for answer in solution.claims:
            if answer.allocated and answer.key not in self._state.kept and answer.key in by_key:
                self._state.record(by_key[answer.key], answer.to_dict())
        return solution.to_dict()

    def parts(self, claims: Iterable[Mapping[str, Any]], deadline: float | None = None) -> list[Summary]:
        """The parts of these claims that compete for no device with each other, without placing any."""
        started = time.monotonic()
        documents = [self._read_claim(claim)[0] for claim in claims]
        fresh = [d for d in documents if (d.name[1], d.name[2]) not in self._state.kept]
        prepared = prepare(
            self._state.everything(fresh), self._standing, ends=end_of(deadline, started), started=started
        )
        return summaries(prepared.snapshot, prepared.holdings, prepared.units)

    def release(self, namespace: str, name: str) -> None:
        """Take its devices from a claim; the claim itself is kept as pending."""
        if not self._state.release((namespace, name)):
            raise KeyError(f"no claim {namespace}/{name} holds devices")

    def holds(self, namespace: str, name: str) -> bool:
        """Whether a claim of that name has devices."""
        return (namespace, name) in self._state.kept

    # -- objects -----------------------------------------------------------------------------------------------------

    def update(self, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Take in an object that is new or has changed."""
        found = read(document)
        if not isinstance(document, Mapping) or not found.name[0] or not found.name[2]:
            raise ValueError("a manifest is a map that has at least kind and metadata.name")
        self._state.replace(found)
        return [problem.to_dict() for problem in (*found.problems, *_broken_expression(found))]

    def delete(self, document: Mapping[str, Any]) -> None:
        """Forget an object; of a claim also what it holds."""
        name = name_of(document) if isinstance(document, Mapping) else ("", "", "")
        if not name[0] or not name[2]:
            raise ValueError("to delete an object takes its kind and metadata.name, and the namespace where it has one")
        if not self._state.remove(name):
            raise KeyError(f"no {name[0]} {'/'.join(part for part in name[1:] if part)}")

    # -- inside ------------------------------------------------------------------------------------------------------

    def _read_claim(self, claim: Mapping[str, Any]) -> tuple[Document, DeviceClaim | None, object]:
        """The document, the claim where it is valid, and its shape."""
        if not isinstance(claim, Mapping) or claim.get("kind") != "DeviceClaim":
            raise ValueError("claim must be the manifest of a DeviceClaim")
        if "spec" not in claim:
            kept = self._state.documents.by_name.get(name_of(claim), ())
            if len(kept) != 1:
                raise KeyError(f"no claim {'/'.join(name_of(claim)[1:])} is kept: give its whole manifest")
            return self._reader.again(kept[0])
        found = self._reader.read(claim)
        if not found[0].name[2]:
            raise ValueError("claim must have metadata.name")
        return found

    def _echo(self, document: Document) -> dict[str, Any]:
        """What a claim is told that holds something already, or is invalid."""
        state = self._state
        held = (document.name[1], document.name[2]) in state.kept
        answer = echo(state.of_claim(document), state.documents, state.rules.intake.classes)
        if answer.allocated and not held:
            state.replace(document)
        return answer.to_dict()


def _broken_expression(document: Document) -> Iterator[Problem]:
    """A class that cannot be used although it reads well."""
    if isinstance(document.object, DeviceClass) and document.object.spec.constraints:
        try:
            cel.compile(document.object.spec.constraints)
        except cel.CompileError as error:
            told = f"line {error.line}, column {error.column}: {error.message}"
            yield Problem(told, path="spec.constraints", kind="DeviceClass", name=document.object.metadata.name)
