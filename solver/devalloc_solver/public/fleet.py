"""``Fleet``: the public class of a fleet that stays in memory. It delegates to the back end of a dialect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import Any, cast

from devalloc.api.problems import Problem
from devalloc.api.quantity import type_name
from devalloc_solver.answer_types import ClaimAnswerDict, ProblemDict, SolutionDict
from devalloc_solver.check import check_cel_check
from devalloc_solver.deadline import ALLOCATE_SECONDS
from devalloc_solver.dialects.api_groups import DEVICE_CLAIMS, RESOURCE_CLAIMS, api_group_of, as_manifest_list
from devalloc_solver.dialects.device_claims.fleet import DeviceClaimFleet
from devalloc_solver.fleet.backend import FleetBackend, Manifest
from devalloc_solver.fleet.waiting import Gains, Prospects
from devalloc_solver.gc_pause import gc_paused
from devalloc_solver.pipeline import admission, quota
from devalloc_solver.pipeline.decomposition import SubproblemSummary
from devalloc_solver.problem.placement_policy import policy_named

ObjectName = tuple[str, str, str, str]
"""The apiVersion, kind, namespace ("default" if it has none) and name of an object."""


class Fleet:
    """Pools, classes and claims that stay in memory and are indexed: one claim takes a fraction of a millisecond.

    Every answer equals that of ``solve_manifests`` for the same state, and passes the same independent check. The Fleet
    counts devices that it has allocated as in use until they are released. The same calls in the same order give the
    same bytes.

    A Fleet can hold DeviceClaims and objects of resource.k8s.io. No device is in both dialects (T1), and each dialect
    is solved separately.

    A Fleet does not apply ResourceQuotas; if there are any, ``problems`` of ``update`` and ``allocate_all`` report it.
    ``solve_manifests`` applies them.

    A Fleet is not thread-safe: call it from one thread at a time.
    """

    def __init__(self, placement: str, cel_check: str = "refuse") -> None:
        """Make an empty fleet, for ``sync``; ``from_manifests`` makes one of manifests.

        Raises:
            ValueError: when ``placement`` is the name of no policy, or ``cel_check`` neither ``refuse`` nor ``warn``.
            TypeError: when it is not text: manifests are for ``from_manifests``.
        """
        if not isinstance(placement, str):
            raise TypeError(f"placement must be text, not {type_name(placement)}: Fleet.from_manifests takes manifests")
        check_cel_check(cel_check)
        self._policy, self._cel_check = policy_named(placement), cel_check
        self._backends: dict[str, FleetBackend[Any, Any, Any]] = {}
        """API group -> the back end of its dialect, as far as there is anything of it"""
        self._others: dict[tuple[object, ...], Manifest] = {}
        """objects of other groups (Nodes), for the back end that is yet to be made"""
        self._quotas: dict[tuple[str, str], dict[str, Any]] = {}
        """ResourceQuotas of devices, by namespace and name: that they do not count"""
        self._synced: dict[ObjectName, Manifest] = {}
        """what ``sync`` was given, as it was given last"""

    @classmethod
    def from_manifests(
        cls, documents: Iterable[Manifest], *, placement: str = "pack", cel_check: str = "refuse", freeze: bool = False
    ) -> Fleet:
        """Make a fleet of the manifests that ``solve_manifests`` takes, of either dialect or both.

        Pending claims among them become part of the fleet, and are not solved yet. Invalid objects are left out;
        ``problems`` lists them.

        Args:
            freeze: for a process that keeps the fleet. Read all devices for the check now, rather than each when a
                claim first gets it. If the fleet is large, or once a garbage collection takes long, exempt all objects
                that there are then in the process from the next ones, which otherwise take half a second of some call
                with 80,000 devices: objects in circles of references that are exempt stay in memory until the next
                large fleet is made in this way.

        Raises:
            ValueError: when ``placement`` is the name of no policy, ``cel_check`` neither ``refuse`` nor ``warn`` (see
                ``solve_manifests``), or ``documents`` are one manifest or text.
        """
        fleet = cls(placement, cel_check)
        fleet._load(as_manifest_list(documents), freeze=freeze)
        return fleet

    def _load(self, documents: Iterable[Manifest], *, freeze: bool) -> None:
        """Read the first documents of an empty fleet."""
        with gc_paused(settle=True, freeze=freeze):
            numbered = [(api_group_of(document), document) for document in documents]
            met = {group for group, _ in numbered}
            groups = [group for group in (RESOURCE_CLAIMS, DEVICE_CLAIMS) if group in met] or [DEVICE_CLAIMS]
            for group in groups:
                foreign = {RESOURCE_CLAIMS, DEVICE_CLAIMS} - {group} if group == groups[0] else met - {group}
                self._make(group, [document for own, document in numbered if own not in foreign])
            if DEVICE_CLAIMS in groups:
                for group, document in numbered:
                    if group not in groups:
                        self._note_other(document)
            for backend in self._backends.values() if freeze else ():
                backend.read_ahead()

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

    def _make(self, group: str, documents: list[Manifest]) -> FleetBackend[Any, Any, Any]:
        if group == RESOURCE_CLAIMS:
            from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet  # with its CEL runtime

            self._backends[group] = ResourceClaimFleet.from_manifests(documents, policy=self._policy)
        else:
            self._backends[group] = DeviceClaimFleet.from_manifests(
                documents, policy=self._policy, cel_check=self._cel_check
            )
        return self._backends[group]

    def _backend(self, document: object) -> FleetBackend[Any, Any, Any]:
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
        """Place one claim, check the answer, and record the devices as in use.

        Args:
            claim: the manifest of a claim. For a claim that is in the fleet, its name is enough:
                ``{"kind": …, "metadata": {"namespace": …, "name": …}}``. A claim that holds devices gets the same
                answer again. A ResourceClaim may have a field ``restrictions``: rules of ``devalloc.api.node_rules``
                by which it keeps off nodes.
            deadline: seconds, or None for no limit. If there is no answer by then, the reason is ``SearchLimit``.
            is_quick: give expressions no time beyond a short deadline. The next call continues where this one ended.

        Returns:
            The entry of this claim in the answer of ``solve_manifests``, with the reason if nothing fits; for a
            ResourceClaim a ``ResourceClaimAnswerDict``. A member of a group is never placed here: ``allocate_all``
            answers a group as a whole.

        Raises:
            ValueError: if it is not the manifest of a claim, or ``deadline`` is invalid.
            KeyError: if only the name is given, and no claim of that name is in the fleet.
        """
        return cast(ClaimAnswerDict, self._backend(claim).allocate(claim, deadline, is_quick=is_quick))

    @gc_paused(settle=True)
    def allocate_all(
        self, claims: Iterable[Manifest], deadline: float | None = None, *, is_quick: bool = False
    ) -> SolutionDict:
        """Place claims jointly, and record their devices as in use.

        Args:
            claims: manifests, or names of claims of the fleet, as for ``allocate``, all of one dialect. Members of
                their groups that are in the fleet are placed with them.
            deadline: seconds after which the best answer so far is taken, or None for no limit.
            is_quick: skip claims that take long to search, so that the others do not wait. The skipped claims get the
                reason ``SearchLimit``, and ``unproven`` lists them. The search then has all of ``deadline``, and on a
                busy machine up to four times as long. A claim that shares no device with skipped claims is answered
                without them, so it may get a device of another pool than in a joint answer (S17, goal 3).

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
        """Divide claims into subproblems: claims of different subproblems do not compete for a device.

        Args:
            claims: as for ``allocate_all``. None of them is placed.
            deadline: seconds for the evaluation of expressions. Claims whose expressions take longer are in no
                subproblem.
            alone: make each claim or group a subproblem of its own, as in a batch without the others.

        Raises:
            ValueError, KeyError: as ``allocate``.
        """
        claims = as_manifest_list(claims, "claims")
        return self._backend_of_all(claims).parts(claims, deadline, alone=alone)

    def _backend_of_all(self, claims: list[Manifest]) -> FleetBackend[Any, Any, Any]:
        backends = [*dict.fromkeys(map(self._backend, claims))]
        if len(backends) > 1:
            raise ValueError("the claims are of both dialects, which are solved separately: make a call for each")
        return backends[0] if backends else self._backend(None)

    def release(self, namespace: str, name: str, kind: str | None = None) -> None:
        """Release the devices of a claim. The claim stays in the fleet, and is pending.

        Args:
            kind: ``DeviceClaim`` or ``ResourceClaim``; only needed if claims of both kinds have that name.

        Raises:
            KeyError: if no claim of that name holds devices.
            ValueError: if a DeviceClaim and a ResourceClaim of that name hold devices, and ``kind`` is not given.
        """
        holders = [backend for backend in self._of_kind(kind) if backend.holds(namespace, name)]
        if len(holders) > 1:
            raise ValueError(f"a DeviceClaim and a ResourceClaim named {namespace}/{name} hold devices: give the kind")
        (holders[0] if holders else self._backend({"kind": kind})).release(namespace, name)

    def holds(self, namespace: str, name: str, kind: str | None = None) -> bool:
        """Whether a claim of that name (and kind, if given) holds devices: from this fleet, or from its status."""
        return any(backend.holds(namespace, name) for backend in self._of_kind(kind))

    def _of_kind(self, kind: str | None) -> list[FleetBackend[Any, Any, Any]]:
        return [*self._backends.values()] if kind is None else [self._backend({"kind": kind})]

    # -- claims that wait ----------------------------------------------------------------------------------------------

    def gains(self, kind: str) -> Gains:
        """What became free or new, for claims of a kind, since the last call (for ``WaitingBook``)."""
        return self._backend({"kind": kind}).gains()

    def waiting_key(self, claim: Manifest) -> Hashable | None:
        """A key that is equal for claims without a group that get the same answer. None if that is not certain."""
        return self._backend(claim).waiting_key(claim)

    def prospects(self, claim: Manifest, deadline: float | None = None, *, at_best: bool = False) -> Prospects | None:
        """What a claim could get now, by itself and without its group. Changes nothing in the fleet.

        None if that is not certain, or not within ``deadline`` seconds. ``at_best``: it is known to be valid, and what
        it could get if its own expressions accepted all devices is enough, which is found sooner.
        """
        return self._backend(claim).prospects(claim, deadline, at_best=at_best)

    # -- objects -------------------------------------------------------------------------------------------------------

    def update(self, document: Manifest, *, is_current: bool = False) -> list[ProblemDict]:
        """Add or replace an object that is new or has changed: a pool, a class, a configuration object or a claim.

        It replaces the object of the same kind, namespace and name; a pool replaces only that of the same node (S2).
        If a pool changes, claims keep the devices that they hold, also those that it no longer publishes (S18). A claim
        holds what its status records.

        An older state of a claim that holds devices is ignored: a state with a lower ``resourceVersion``; and, if the
        fleet itself allocated the devices, each state without devices until the first state with devices arrives. (A
        different ``uid`` is another claim.) So an event from before the status was written frees nothing; ``release``
        and ``delete`` do.

        Args:
            is_current: set it if the object has this state now, although its version may be lower: after a backup of
                etcd or of the store was restored. Set it only for objects that a list returned, never for events.

        Returns:
            What is wrong with it, as in ``problems`` of ``solve_manifests``. An invalid object counts as such.

        Raises:
            ValueError: if it is not a manifest, or has no kind and name.
        """
        problems = self._backend(document).update(document, is_current=is_current)
        return cast(list[ProblemDict], [*problems, *self._note_other(document)])

    def delete(self, document: Manifest) -> None:
        """Remove an object by its kind, namespace and name. The devices of a removed claim are free.

        Raises:
            ValueError: when kind or name is missing.
            KeyError: when there is no such object.
        """
        self._backend(document).delete(document)
        self._others.pop(_full_name(document), None)
        if self._quotas and document.get("kind") == quota.KIND:
            self._quotas.pop(_object_key(document), None)

    def sync(
        self, documents: Iterable[Manifest], remaining: Collection[ObjectName] = frozenset()
    ) -> dict[ObjectName, Manifest | None]:
        """Make the objects what they are now: take in what differs from the last call, and remove what is gone.

        Documents are what a list of all objects returned just now: each counts, whatever its version (``is_current`` of
        ``update``). An object is the same if it equals what was given last, or differs only in ``resourceVersion`` and,
        unless it is a claim, ``status``. So devices that the fleet itself gave or released since are as the fleet has
        them until the claim's document changes. Objects that came in by other calls stay, and are yours to delete.

        An empty fleet loads all at once, as ``from_manifests`` does with ``freeze``.

        Args:
            documents: one for each object. Do not change them afterwards.
            remaining: names of objects that are as they were and not among the documents.

        Returns:
            What is new or changed, and None for what is gone.

        Raises:
            ValueError: if they are not several manifests, or one has no kind and name.
        """
        now = {self.object_name(document): document for document in as_manifest_list(documents)}
        if not self._backends:
            self._load(now.values(), freeze=True)
            self._synced = now
            return {**now}
        changed: dict[ObjectName, Manifest] = {}
        new = 0
        for name, document in now.items():
            if (before := self._synced.get(name)) is document:
                continue
            new += before is None
            if before is None or not _is_same(before, document):
                changed[name] = document
        gone: list[ObjectName] = []
        if len(self._synced) + new > len(now) + len(remaining):
            gone = [name for name in self._synced if name not in now and name not in remaining]
        for name in gone:
            self.delete(self._synced[name])
            del self._synced[name]
        for name, document in changed.items():
            self.update(document, is_current=True)
            self._synced[name] = document
        self._synced |= now
        return {**dict.fromkeys(gone), **changed}

    @staticmethod
    def object_name(document: Manifest) -> ObjectName:
        """Read what an object is called. Raises ValueError without a kind or name."""
        try:
            metadata = document["metadata"]
            namespace = metadata.get("namespace") or "default"
            return document.get("apiVersion") or "", document["kind"], namespace, metadata["name"]
        except (AttributeError, KeyError, TypeError):
            raise ValueError("give the manifest of each object, with its kind and its metadata.name") from None

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


def _is_same(before: Manifest, now: Manifest) -> bool:
    """Whether the fleet need not read an object again: it knows of claims what they have, and no other status."""
    if before == now or now["kind"] in ("DeviceClaim", "ResourceClaim"):
        return before == now
    return _without_status(before) == _without_status(now)


def _without_status(document: Manifest) -> Manifest:
    metadata = {name: value for name, value in document["metadata"].items() if name != "resourceVersion"}
    return {**{name: value for name, value in document.items() if name != "status"}, "metadata": metadata}
