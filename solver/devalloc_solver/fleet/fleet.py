"""``Fleet``: the public class of a fleet that stays in memory. It delegates to the back end of a dialect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, cast

from devalloc.api.problems import Problem
from devalloc.api.quantity import type_name
from devalloc_solver.answer_types import ClaimAnswerDict, ProblemDict, SolutionDict
from devalloc_solver.check import check_cel_check
from devalloc_solver.deadline import ALLOCATE_SECONDS
from devalloc_solver.dialects.api_groups import DEVICE_CLAIMS, RESOURCE_CLAIMS, api_group_of, as_manifest_list
from devalloc_solver.fleet.backend import FleetBackend, Manifest
from devalloc_solver.fleet.device_claims.backend import DeviceClaimFleet
from devalloc_solver.fleet.waiting import Gains, Prospects
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline import admission, quota
from devalloc_solver.pipeline.decomposition import SubproblemSummary
from devalloc_solver.problem.placement_policy import check_policy


class Fleet:
    """Pools, classes and claims, kept and indexed, so that one claim is answered in a fraction of a millisecond.

    Every answer is what ``solve_manifests`` would say of the same state, passes the same independent check, and is
    remembered: what was given is in use until it is released. The same calls in the same order give the same bytes.

    A Fleet holds both dialects, DeviceClaims and resource.k8s.io. No device is in both (T1), and each is solved on its
    own.

    A Fleet counts no ResourceQuotas: ``problems`` of ``update`` and ``allocate_all`` say so where there are any.
    ``solve_manifests`` does.

    A Fleet is not thread-safe: call it from one thread at a time.
    """

    def __init__(self, placement: str, cel_check: str = "refuse") -> None:
        """An empty fleet. Use ``from_manifests``.

        Raises:
            ValueError: when ``placement`` is neither ``pack`` nor ``spread``, or ``cel_check`` neither ``refuse`` nor
                ``warn``.
            TypeError: when it is not text: manifests are for ``from_manifests``.
        """
        if not isinstance(placement, str):
            raise TypeError(f"placement must be text, not {type_name(placement)}: Fleet.from_manifests takes manifests")
        check_policy(placement)
        check_cel_check(cel_check)
        self._placement, self._cel_check = placement, cel_check
        self._backends: dict[str, FleetBackend[Any, Any]] = {}
        """API group -> the back end of its dialect, as far as there is anything of it"""
        self._others: dict[tuple[object, ...], Manifest] = {}
        """objects of other groups (Nodes), for the back end that is yet to be made"""
        self._quotas: dict[tuple[str, str], dict[str, Any]] = {}
        """ResourceQuotas of devices, by namespace and name: that they do not count"""

    @classmethod
    @gc_paused(settle=True)
    def from_manifests(
        cls, documents: Iterable[Manifest], *, placement: str = "pack", cel_check: str = "refuse"
    ) -> Fleet:
        """A fleet of what ``solve_manifests`` takes, of either dialect or both. Pending claims among it are kept, and
        not solved.

        Content that is invalid is left out, as everywhere.

        Raises:
            ValueError: when ``placement`` is neither ``pack`` nor ``spread``, ``cel_check`` neither ``refuse`` nor
                ``warn`` (see ``solve_manifests``), or ``documents`` are one manifest or text.
        """
        fleet = cls(placement, cel_check)
        numbered = [(api_group_of(document), document) for document in as_manifest_list(documents)]
        met = {group for group, _ in numbered}
        groups = [group for group in (RESOURCE_CLAIMS, DEVICE_CLAIMS) if group in met] or [DEVICE_CLAIMS]
        for group in groups:
            foreign = {RESOURCE_CLAIMS, DEVICE_CLAIMS} - {group} if group == groups[0] else met - {group}
            fleet._make(group, [document for own, document in numbered if own not in foreign])
        if DEVICE_CLAIMS in groups:
            for group, document in numbered:
                if group not in groups:
                    fleet._note_other(document)
        return fleet

    @property
    def problems(self) -> list[ProblemDict]:
        """What is wrong in the fleet now: objects that are invalid and therefore left out, devices that are gone or
        have several owners, and quotas, which do not count. An empty list: everything counts."""
        listed = [one for backend in self._backends.values() for one in backend.problems()]
        return cast(list[ProblemDict], [*listed, *self._quotas.values()])

    def __repr__(self) -> str:
        counts = Counter(kind for backend in self._backends.values() for kind in backend.kinds())
        objects = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
        return f"<Fleet: {objects or 'empty'}>"

    def _make(self, group: str, documents: list[Manifest]) -> FleetBackend[Any, Any]:
        if group == RESOURCE_CLAIMS:
            from devalloc_solver.fleet.resource_k8s.backend import ResourceClaimFleet  # with its CEL runtime

            self._backends[group] = ResourceClaimFleet.from_manifests(documents, placement=self._placement)
        else:
            self._backends[group] = DeviceClaimFleet.from_manifests(
                documents, placement=self._placement, cel_check=self._cel_check
            )
        return self._backends[group]

    def _backend(self, document: object) -> FleetBackend[Any, Any]:
        """Of the dialect of a manifest, or of what is named by its kind; of anything else, that which has Nodes."""
        group = api_group_of(document)
        if group not in (RESOURCE_CLAIMS, DEVICE_CLAIMS):
            kind = document.get("kind") if isinstance(document, Mapping) else None
            group = _GROUPS.get(kind, "") if isinstance(kind, str) else ""
            if kind == "DeviceClass" and len(self._backends) > 1:
                raise ValueError("a DeviceClass can be of either dialect: give its apiVersion")
        if not group:
            group = RESOURCE_CLAIMS if RESOURCE_CLAIMS in self._backends else DEVICE_CLAIMS
        backend = self._backends.get(group)
        return self._make(group, [*self._others.values()]) if backend is None else backend

    # -- claims --------------------------------------------------------------------------------------------------------

    def allocate(
        self, claim: Manifest, deadline: float | None = ALLOCATE_SECONDS, *, is_quick: bool = False
    ) -> ClaimAnswerDict:
        """Place one claim, have the answer checked, and keep what it got.

        Args:
            claim: the manifest of a claim; of one that is kept, ``{"kind": …, "metadata": {"namespace": …,
                "name": …}}`` will do. One that holds devices already is answered with these.
            deadline: seconds after which the claim is answered with ``SearchLimit`` where nothing is known yet; None
                for as long as it takes.
            is_quick: expressions have no time beyond a short deadline. Further calls go on where this one ended.

        Returns:
            The dict of this claim as ``solve_manifests`` would have it, with the reason where nothing fits; for a
            ResourceClaim a ``ResourceClaimAnswerDict``. A member of a group is never placed here: a group is answered
            as a whole, with ``allocate_all``.

        Raises:
            ValueError: if it is not the manifest of a claim, or ``deadline`` is invalid.
            KeyError: when only the name is given and no such claim is kept.
        """
        return cast(ClaimAnswerDict, self._backend(claim).allocate(claim, deadline, is_quick=is_quick))

    @gc_paused()
    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> SolutionDict:
        """Place claims jointly, and keep what they got.

        Args:
            claims: manifests, or names of kept claims, as for ``allocate``, all of one dialect. Members of their groups
                that are kept are placed with them.
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
        answer = self._backend_of_all(claims).allocate_all(claims, deadline, is_quick=is_quick)
        if is_quick:
            answer = {"unproven": [], **answer}
        if self._quotas:
            answer = {**answer, "problems": [*answer["problems"], *self._quotas.values()]}
        return cast(SolutionDict, answer)

    def parts(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, alone: bool = False
    ) -> list[SubproblemSummary]:
        """The parts of these claims that compete for no device with each other: who of a part is satisfied depends on
        no other part.

        Args:
            claims: as for ``allocate_all``. None of them is placed.
            deadline: seconds in which expressions are evaluated. Claims that it does not suffice for are in no part.
            alone: each claim or group is to be a part, as it is in a batch without the others.

        Raises:
            ValueError, KeyError: as ``allocate``.
        """
        claims = as_manifest_list(claims, "claims")
        return self._backend_of_all(claims).parts(claims, deadline, alone=alone)

    def _backend_of_all(self, claims: list[Manifest]) -> FleetBackend[Any, Any]:
        backends = [*dict.fromkeys(map(self._backend, claims))]
        if len(backends) > 1:
            raise ValueError("the claims are of both dialects, which are solved separately: make a call for each")
        return backends[0] if backends else self._backend(None)

    def release(self, namespace: str, name: str, kind: str | None = None) -> None:
        """Take its devices from a claim; the claim itself is kept as pending.

        Args:
            kind: ``DeviceClaim`` or ``ResourceClaim``; only needed if claims of both kinds have that name.

        Raises:
            KeyError: when no claim of that name holds devices.
            ValueError: when two claims of that name do, and ``kind`` does not say which one is meant.
        """
        holders = [backend for backend in self._of_kind(kind) if backend.holds(namespace, name)]
        if len(holders) > 1:
            raise ValueError(f"a DeviceClaim and a ResourceClaim named {namespace}/{name} hold devices: give the kind")
        (holders[0] if holders else self._backend({"kind": kind})).release(namespace, name)

    def holds(self, namespace: str, name: str, kind: str | None = None) -> bool:
        """Whether a claim of that name, and of the kind if it is given, has devices: it was given them here, or came in
        with them."""
        return any(backend.holds(namespace, name) for backend in self._of_kind(kind))

    def _of_kind(self, kind: str | None) -> list[FleetBackend[Any, Any]]:
        return [*self._backends.values()] if kind is None else [self._backend({"kind": kind})]

    # -- claims that wait ----------------------------------------------------------------------------------------------

    def gains(self, kind: str) -> Gains:
        """What has become free or new since this was last asked, for claims of a kind (``WaitingBook``)."""
        return self._backend({"kind": kind}).gains()

    def waiting_key(self, claim: Manifest) -> Hashable | None:
        """Equal for claims that stand alone and have the same answer; None if that cannot be told."""
        return self._backend(claim).waiting_key(claim)

    def prospects(self, claim: Manifest, deadline: float | None = None) -> Prospects | None:
        """What a claim alone could have now, whatever group it is in; nothing is kept of it. None if that cannot be
        told, or not within ``deadline`` seconds."""
        return self._backend(claim).prospects(claim, deadline)

    # -- objects -------------------------------------------------------------------------------------------------------

    def update(self, document: Manifest, *, is_current: bool = False) -> list[ProblemDict]:
        """Take in an object that is new or has changed: a pool, a class, a configuration object or a claim.

        It replaces the objects of its kind, namespace and name; a pool only that of its node, if there is one (S2).
        Claims keep what they hold of a pool that changes, also what is published no longer (S18). A claim is taken as
        it is: with the allocations that its status records, and none without.

        An older state of a claim that has devices changes nothing: one with a lower ``resourceVersion``, or, of a claim
        that was given its devices by this fleet, one without devices before the first with devices came in, unless its
        ``uid`` says that it is another claim. So an event from before the status was written frees nothing; ``release``
        and ``delete`` do.

        Args:
            is_current: the object has this state now, even if it is an older one: it was read after a backup of etcd
                or of the store was restored, which makes versions smaller. Say so of what a list returned, never of an
                event.

        Returns:
            What is wrong with it, as in ``problems`` of ``solve_manifests``. An invalid object counts as such.

        Raises:
            ValueError: if it is not a manifest, or has no kind and name.
        """
        problems = self._backend(document).update(document, is_current=is_current)
        return cast(list[ProblemDict], [*problems, *self._note_other(document)])

    def delete(self, document: Manifest) -> None:
        """Forget an object; of a claim also what it holds. Only kind, namespace and name are looked at.

        Raises:
            ValueError: when kind or name is missing.
            KeyError: when there is no such object.
        """
        self._backend(document).delete(document)
        self._others.pop(_full_name(document), None)
        if self._quotas and document.get("kind") == quota.KIND:
            self._quotas.pop(_object_key(document), None)

    def _note_other(self, document: Manifest) -> list[dict[str, Any]]:
        """Remember an object of no dialect; what to say of it."""
        is_other = isinstance(document, Mapping) and api_group_of(document) not in (RESOURCE_CLAIMS, DEVICE_CLAIMS)
        if is_other and RESOURCE_CLAIMS not in self._backends:
            self._others[_full_name(document)] = document
        return self._note_quota(document)

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


_GROUPS = {"DevicePool": DEVICE_CLAIMS, "DeviceClaim": DEVICE_CLAIMS}
_GROUPS |= {"ResourceSlice": RESOURCE_CLAIMS, "ResourceClaim": RESOURCE_CLAIMS}
"""kind -> API group, of kinds that only one dialect has"""


def _object_key(document: Manifest) -> tuple[str, str]:
    metadata = document.get("metadata")
    names = metadata if isinstance(metadata, Mapping) else {}
    return str(names.get("namespace") or "default"), str(names.get("name"))


def _full_name(document: Manifest) -> tuple[str, ...]:
    return str(document.get("kind")), *_object_key(document)
