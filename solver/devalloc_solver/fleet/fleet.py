"""``Fleet``: the public class of a fleet that stays in memory. It delegates to the back end of its dialect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from devalloc.api.problems import Problem
from devalloc_solver.answer_types import ClaimAnswerDict, ProblemDict, SolutionDict
from devalloc_solver.deadline import ALLOCATE_SECONDS
from devalloc_solver.dialects.api_groups import DEVICE_CLAIMS, RESOURCE_CLAIMS, api_group_of, as_manifest_list
from devalloc_solver.exact.policy import PLACEMENTS
from devalloc_solver.fleet.devmgmt.backend import DeviceClaimFleet
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline import admission, quota
from devalloc_solver.pipeline.decomposition import SubproblemSummary

Manifest = Mapping[str, Any]


class FleetBackend(Protocol):
    """What each dialect does; see ``Fleet``."""

    def allocate(self, claim: Manifest, deadline: float | None) -> dict[str, Any]: ...
    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> dict[str, Any]: ...
    def parts(self, claims: Iterable[Manifest], deadline: float | None = None) -> list[SubproblemSummary]: ...
    def release(self, namespace: str, name: str) -> None: ...
    def holds(self, namespace: str, name: str) -> bool: ...
    def update(self, document: Manifest) -> list[dict[str, Any]]: ...
    def delete(self, document: Manifest) -> None: ...


class Fleet:
    """Pools, classes and claims, kept and indexed, so that one claim is answered in a fraction of a millisecond.

    Every answer is what ``solve_manifests`` would say of the same state, passes the same independent check, and is
    remembered: what was given is in use until it is released. The same calls in the same order give the same bytes.

    A Fleet speaks one dialect: that of its manifests, DeviceClaims or resource.k8s.io.

    A Fleet counts no ResourceQuotas: ``problems`` of ``update`` and ``allocate_all`` say so where there are any.
    ``solve_manifests`` does.

    A Fleet is not thread-safe: call it from one thread at a time.
    """

    def __init__(self, warm: FleetBackend, group: str) -> None:
        """Use ``from_manifests``."""
        self._warm = warm
        self._group = group
        """the API group of its dialect"""
        self._quotas: dict[tuple[str, str], dict[str, Any]] = {}
        """ResourceQuotas of devices, by namespace and name: that they do not count"""

    @classmethod
    @gc_paused(settle=True)
    def from_manifests(cls, documents: Iterable[Manifest], *, placement: str = "pack") -> Fleet:
        """A fleet of what ``solve_manifests`` takes. Pending claims among it are kept, and not solved.

        Content that is invalid is left out, as everywhere. Without any manifest of resource.k8s.io the dialect is that
        of DeviceClaims.

        Raises:
            ValueError: when ``placement`` is neither ``pack`` nor ``spread``, ``documents`` are one manifest or text,
                or of both dialects.
        """
        if placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
        documents = as_manifest_list(documents)
        groups = {api_group_of(document) for document in documents}
        if {DEVICE_CLAIMS, RESOURCE_CLAIMS} <= groups:
            message = f"documents are of both {DEVICE_CLAIMS} and {RESOURCE_CLAIMS}"
            raise ValueError(f"{message}: a Fleet reads one dialect; make two")
        if RESOURCE_CLAIMS not in groups:
            fleet = cls(DeviceClaimFleet.from_manifests(documents, placement=placement), DEVICE_CLAIMS)
            for document in documents:
                fleet._note_quota(document)
            return fleet
        from devalloc_solver.fleet.resource_k8s.backend import ResourceClaimFleet  # with its CEL runtime

        return cls(ResourceClaimFleet.from_manifests(documents, placement=placement), RESOURCE_CLAIMS)

    # -- claims --------------------------------------------------------------------------------------------------------

    def allocate(self, claim: Manifest, deadline: float | None = ALLOCATE_SECONDS) -> ClaimAnswerDict:
        """Place one claim, have the answer checked, and keep what it got.

        Args:
            claim: the manifest of a claim; of one that is kept, ``{"kind": …, "metadata": {"namespace": …,
                "name": …}}`` will do. One that holds devices already is answered with these.
            deadline: seconds after which the claim is answered with ``SearchLimit`` where nothing is known yet; None
                for as long as it takes.

        Returns:
            The dict of this claim as ``solve_manifests`` would have it, with the reason where nothing fits; for a
            ResourceClaim a ``ResourceClaimAnswerDict``. A member of a group is never placed here: a group is answered
            as a whole, with ``allocate_all``.

        Raises:
            ValueError: if it is not the manifest of a claim of this dialect, or ``deadline`` is invalid.
            KeyError: when only the name is given and no such claim is kept.
        """
        self._refuse_foreign(claim)
        return cast(ClaimAnswerDict, self._warm.allocate(claim, deadline))

    @gc_paused()
    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> SolutionDict:
        """Place claims jointly, and keep what they got.

        Args:
            claims: manifests, or names of kept claims, as for ``allocate``. Members of their groups that are kept are
                placed with them.
            deadline: seconds after which the best answer found is taken; None for as long as it takes.
            is_quick: leave claims that take long to search, so that the others do not wait: they are answered with
                ``SearchLimit``, and ``unproven`` names them. The search then has all of ``deadline``, and on a
                busy machine up to four times as long. A claim that competes with them for no device is answered
                without them, and so may be given a device of another pool than all together would (S17, goal 3).

        Returns:
            The dict that ``solve_manifests`` would return for this state and these claims.

        Raises:
            ValueError, KeyError: as ``allocate``.
        """
        if isinstance(claims, Mapping):
            raise ValueError("claims must be several manifests, not one: use allocate")
        claims = as_manifest_list(claims, "claims")
        for claim in claims:
            self._refuse_foreign(claim)
        answer = self._warm.allocate_all(claims, deadline, is_quick=is_quick)
        if is_quick:
            answer = {"unproven": [], **answer}
        if self._quotas:
            answer = {**answer, "problems": [*answer["problems"], *self._quotas.values()]}
        return cast(SolutionDict, answer)

    def parts(self, claims: Iterable[Manifest], deadline: float | None = None) -> list[SubproblemSummary]:
        """The parts of these claims that compete for no device with each other: who of a part is satisfied depends on
        no other part.

        Args:
            claims: as for ``allocate_all``. None of them is placed.
            deadline: seconds in which expressions are evaluated. Claims that it does not suffice for are in no part.

        Raises:
            ValueError, KeyError: as ``allocate``.
        """
        claims = as_manifest_list(claims, "claims")
        for claim in claims:
            self._refuse_foreign(claim)
        return self._warm.parts(claims, deadline)

    def release(self, namespace: str, name: str) -> None:
        """Take its devices from a claim; the claim itself is kept as pending.

        Raises:
            KeyError: when no claim of that name holds devices.
        """
        self._warm.release(namespace, name)

    def holds(self, namespace: str, name: str) -> bool:
        """Whether a claim of that name has devices: it was given them here, or came in with them."""
        return self._warm.holds(namespace, name)

    # -- objects -------------------------------------------------------------------------------------------------------

    def update(self, document: Manifest) -> list[ProblemDict]:
        """Take in an object that is new or has changed: a pool, a class, a configuration object or a claim.

        It replaces the objects of its kind, namespace and name; a pool only that of its node, if there is one (S2).
        Claims keep what they hold of a pool that changes, as far as it is still there (S18). A claim is taken as it
        is: with the allocations that its status records, and none without.

        Returns:
            What is wrong with it, as in ``problems`` of ``solve_manifests``. An invalid object counts as such.

        Raises:
            ValueError: if it is not a manifest, has no kind and name, or is of the other dialect.
        """
        self._refuse_foreign(document)
        return cast(list[ProblemDict], [*self._warm.update(document), *self._note_quota(document)])

    def delete(self, document: Manifest) -> None:
        """Forget an object; of a claim also what it holds. Only kind, namespace and name are looked at.

        Raises:
            ValueError: when kind or name is missing.
            KeyError: when there is no such object.
        """
        self._warm.delete(document)
        if self._quotas and document.get("kind") == quota.KIND:
            self._quotas.pop(_object_key(document), None)

    def _note_quota(self, document: Manifest) -> list[dict[str, Any]]:
        """What to say of a ResourceQuota of devices; nothing of anything else."""
        if not isinstance(document, Mapping) or document.get("kind") != quota.KIND:
            return []
        readable, place = admission.sort_documents([document]).readable, _object_key(document)
        self._quotas.pop(place, None)
        if not readable or not quota.is_quota(readable[0]) or not quota.bounds_of(readable[0]):
            return []
        message = "is ignored: a Fleet does not apply quotas; solve_manifests does"
        problem = Problem(message, kind=quota.KIND, namespace=place[0], name=place[1], severity="warning")
        self._quotas[place] = problem.to_dict()
        return [self._quotas[place]]

    def _refuse_foreign(self, document: object) -> None:
        group = api_group_of(document)
        if group != self._group and group in (DEVICE_CLAIMS, RESOURCE_CLAIMS):
            raise ValueError(f"this Fleet reads {self._group}, not {group}: make another Fleet for this manifest")


def _object_key(document: Manifest) -> tuple[str, str]:
    metadata = document.get("metadata")
    names = metadata if isinstance(metadata, Mapping) else {}
    return str(names.get("namespace") or "default"), str(names.get("name"))
