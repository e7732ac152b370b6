"""The warm solver for resource.k8s.io: a cluster that stays in memory, and answers claim after claim."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from devalloc.api.meta import GROUP
from devalloc_solver.demand import Unit
from devalloc_solver.dra.answers import answer_of, placed_answer, refusal_answer
from devalloc_solver.dra.candidates import Judge
from devalloc_solver.dra.checked import Checker, make_checker
from devalloc_solver.dra.cluster import Survey, survey
from devalloc_solver.dra.demands import alone, make, node_of, pending
from devalloc_solver.dra.documents import Intake, Key, Refused, key_of, read_documents, with_defaults
from devalloc_solver.dra.errors import AnswerRefused
from devalloc_solver.dra.features import read_features
from devalloc_solver.dra.fields import shown
from devalloc_solver.dra.inventory import Offer, list_offers, make_snapshot, used_devices
from devalloc_solver.dra.joint import held_usage, seen_from, solve
from devalloc_solver.dra.objects import Claim
from devalloc_solver.dra.pools import SliceBook
from devalloc_solver.dra.reasons import Explainer
from devalloc_solver.dra.result import ShareIds, make_result
from devalloc_solver.dra.search import find
from devalloc_solver.dra.selectors import Selectors
from devalloc_solver.dra.usage import Usage, add_allocation, readable
from devalloc_solver.holdings import Holding, Ledger
from devalloc_solver.policy import PLACEMENTS
from devalloc_solver.reasons import Reason
from devalloc_solver.snapshot import Snapshot

Manifest = Mapping[str, Any]
Name = tuple[str, str, str]
"""kind, namespace, name"""


@dataclass(slots=True)
class _World:
    """What follows from slices, classes and nodes, and who holds what of it."""

    intake: Intake
    seen: Survey
    offers: list[Offer]
    judge: Judge
    snapshot: Snapshot
    holdings: dict[Key, Holding]
    ledger: Ledger
    usage: Usage
    checker: Checker


class ResourceFleet:
    """ResourceSlices, DeviceClasses, Nodes and ResourceClaims, kept and read once.

    It has the methods of ``devalloc_solver.Fleet`` and answers as they do: every answer is what ``solve_manifests`` of
    this dialect would say of the same state, passes the independent check, and is remembered until it is released.

    Not thread-safe.
    """

    def __init__(self, placement: str = "pack", features: Iterable[str] | None = None) -> None:
        """Use ``from_manifests``."""
        self._placement, self._gates = placement, read_features(features)
        self._objects: dict[Name, list[Manifest]] = {}
        self._world: _World | None = None

    @classmethod
    def from_manifests(
        cls, documents: Iterable[Manifest], *, placement: str = "pack", features: Iterable[str] | None = None
    ) -> ResourceFleet:
        """A fleet of what ``dra.solve_manifests`` takes. Pending claims among it are kept, and not solved.

        Raises ValueError when ``placement`` is neither ``pack`` nor ``spread``.
        """
        if placement not in PLACEMENTS:
            raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement!r}")
        fleet = cls(placement, features)
        for document in documents:
            if isinstance(document, Mapping):
                fleet._objects.setdefault(_name(document), []).append(document)
        fleet._get_world()
        return fleet

    # -- claims ------------------------------------------------------------------------------------------------------

    def allocate(self, claim: Manifest) -> dict[str, Any]:
        """Place one claim, have the answer checked, and keep what it got.

        Args:
            claim: the manifest of a ResourceClaim; of one that is kept, kind and metadata will do. One that has an
                allocation is answered with it.

        Returns:
            The dict of this claim as ``solve_manifests`` would have it. A member of a group is never placed here.

        Raises ValueError when it is no ResourceClaim, KeyError when only its name is given and it is not kept.
        """
        manifest = self._manifest(claim)
        world = self._get_world()
        found = self._read(manifest)
        if isinstance(found, Refused):
            return refusal_answer(found)
        if found.allocation is not None:
            return answer_of((found.namespace, found.name), dict(found.allocation), node_of(found))
        if (group := found.annotations.get(GROUP)) is not None:
            told = f"is a member of group {group}, which is answered as a whole: use allocate_all"
            refused = Refused((found.namespace, found.name), Reason.GROUP_UNSATISFIABLE, told, group)
            return refusal_answer(refused)
        demand = make(pending(found, 0), world.intake, world.judge)
        if isinstance(demand, Refused):
            return refusal_answer(demand)
        return self._place(world, manifest, found, alone(demand))

    def allocate_all(self, claims: Iterable[Manifest], deadline: float | None = None) -> dict[str, Any]:
        """Place claims jointly, with the kept members of their groups, and keep what they got.

        Returns what ``solve_manifests`` would for this state and these claims; ``deadline`` is in seconds.

        Raises ValueError and KeyError as ``allocate`` does.
        """
        started = time.monotonic()
        asked = [self._manifest(claim) for claim in claims]
        wanted = {_name(manifest) for manifest in asked}
        groups = {_group(manifest) for manifest in asked} - {None}
        documents = [
            one
            for name, same in self._objects.items()
            for one in same
            if name not in wanted and (name[0] != "ResourceClaim" or _is_held(one) or _group(one) in groups)
        ]
        intake = read_documents([*documents, *asked], self._gates)
        answer = solve(intake, self._gates, self._placement, deadline, started)
        for one in answer["claims"]:
            key = one["namespace"], one["name"]
            if one["allocated"] and key in intake.manifests and not _is_held(intake.manifests[key]):
                self._keep(intake.manifests[key], one["allocations"])
        self._world = None
        return answer

    def release(self, namespace: str, name: str) -> None:
        """Take its devices from a claim; the claim itself is kept as pending.

        Raises KeyError when no claim of that name has an allocation.
        """
        full = ("ResourceClaim", namespace, name)
        held = [one for one in self._objects.get(full, ()) if _is_held(one)]
        if not held:
            raise KeyError(f"no claim {namespace}/{name} has an allocation")
        self._objects[full] = [{**one, "status": _without_allocation(one)} for one in held]
        if self._world is not None:
            world, key = self._world, (namespace, name)
            world.checker.free(key, held[0]["status"]["allocation"])
            world.holdings.pop(key, None)
            world.ledger = Ledger.of(world.snapshot, world.holdings.values())
            world.usage = self._usage()

    # -- objects -----------------------------------------------------------------------------------------------------

    def update(self, document: Manifest) -> list[dict[str, Any]]:
        """Take in an object that is new or has changed; it replaces the one of its kind, namespace and name.

        Returns what is wrong with it, as in ``problems``. Raises ValueError when it has no kind or name.
        """
        name = _checked_name(document)
        self._objects[name] = [document]
        self._world = None
        return [problem.to_dict() for problem in read_documents([document], self._gates).problems]

    def delete(self, document: Manifest) -> None:
        """Forget an object; of a claim also what it holds. Only kind, namespace and name are looked at.

        Raises ValueError when kind or name is missing, KeyError when there is no such object.
        """
        name = _checked_name(document)
        if name not in self._objects:
            raise KeyError(f"no {name[0]} {'/'.join(part for part in name[1:] if part)}")
        del self._objects[name]
        self._world = None

    # -- inside ------------------------------------------------------------------------------------------------------

    def _manifest(self, claim: Manifest) -> Manifest:
        if not isinstance(claim, Mapping) or claim.get("kind") != "ResourceClaim":
            raise ValueError("claim must be the manifest of a ResourceClaim")
        kept = self._objects.get(_name(claim), [])
        if "spec" in claim:
            return kept[0] if len(kept) == 1 and _is_held(kept[0]) else claim
        if len(kept) != 1:
            raise KeyError(f"no claim {'/'.join(_name(claim)[1:])} is kept: give its whole manifest")
        return kept[0]

    def _read(self, manifest: Manifest) -> Claim | Refused:
        intake = read_documents([manifest], self._gates)
        return intake.claims[0] if intake.claims else intake.refused[0]

    def _get_world(self) -> _World:
        if self._world is None:
            intake = read_documents([one for same in self._objects.values() for one in same], self._gates)
            seen = survey(SliceBook(intake.slices, self._gates), intake.nodes)
            offers = list_offers(seen.views, None, self._gates)
            names = {full for offer in offers for full in _full_names(offer)}
            snapshot = make_snapshot(offers, seen.nodes, sorted(names), self._gates)
            usage, holders, _ = held_usage(intake)
            holdings = {key: Holding(key, p, used_devices(offers, held).items) for key, p, held in holders}
            self._world = _World(
                intake=intake,
                seen=seen,
                offers=offers,
                judge=Judge(
                    self._gates, offers, Usage(), Selectors(self._gates), intake.classes, frozenset(seen.broken)
                ),
                snapshot=snapshot,
                holdings=holdings,
                ledger=Ledger.of(snapshot, holdings.values()),
                usage=usage,
                checker=make_checker(intake, seen.nodes, self._gates),
            )
        return self._world

    def _place(self, world: _World, manifest: Manifest, claim: Claim, unit: Unit) -> dict[str, Any]:
        holdings = list(world.holdings.values())
        placements = find(world.snapshot, holdings, unit, ledger=world.ledger, placement=self._placement)
        if placements is None:
            explainer = Explainer(world.snapshot, world.offers, holdings, [], None)
            (answer,) = explainer.explain(unit)
            return answer
        (placement,) = placements
        key = claim.namespace, claim.name
        seen = seen_from(placement, world.offers, world.seen)
        result = make_result(
            claim,
            placement.entries,
            world.offers,
            world.intake.classes,
            seen,
            self._gates,
            ShareIds(world.usage),
        )
        filled = with_defaults(manifest)
        if violations := world.checker.wrong(seen, [(key, filled, result)]):
            raise AnswerRefused(violations)
        self._keep(filled, result)
        world.checker.hold(key, result)
        world.holdings[key] = placement.holding()
        world.ledger.add(world.holdings[key])
        add_allocation(world.usage, result, "status.allocation")
        return placed_answer(placement, result)

    def _keep(self, manifest: Manifest, result: Manifest) -> None:
        status = manifest.get("status")
        told = {**status, "allocation": result} if isinstance(status, Mapping) else {"allocation": result}
        self._objects[_name(manifest)] = [{**manifest, "kind": "ResourceClaim", "status": told}]

    def _usage(self) -> Usage:
        usage = Usage()
        for same in self._objects.values():
            for one in same:
                if _is_held(one):
                    add_allocation(usage, readable(one["status"]["allocation"]), "status.allocation")
        return usage


def _name(document: Manifest) -> Name:
    return (shown(document.get("kind") or ""), *key_of(document))


def _checked_name(document: Manifest) -> Name:
    name = _name(document) if isinstance(document, Mapping) else ("", "", "")
    if not name[0] or not name[2]:
        raise ValueError("an object is named by kind and metadata.name, and the namespace where it has one")
    return name


def _is_held(document: Manifest) -> bool:
    status = document.get("status")
    return document.get("kind") == "ResourceClaim" and isinstance(status, Mapping) and bool(status.get("allocation"))


def _without_allocation(document: Manifest) -> dict[str, Any]:
    return {key: value for key, value in document["status"].items() if key != "allocation"}


def _group(document: Manifest) -> tuple[str, str] | None:
    """(namespace, group) of a claim that is a member of one."""
    metadata = document.get("metadata")
    marks = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    group = marks.get(GROUP) if isinstance(marks, Mapping) else None
    return (_name(document)[1], shown(group)) if group and document.get("kind") == "ResourceClaim" else None


def _full_names(offer: Offer) -> Iterable[str]:
    driver = offer.pool.driver
    return (name if "/" in name else f"{driver}/{name}" for name in offer.device.attributes)
