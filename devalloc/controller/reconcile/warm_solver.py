"""The solver of the loop: a Fleet that is kept from round to round and receives only what has changed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from devalloc.controller.reconcile.claims import allocation_entries, claim_key, group_of, is_deleting
from devalloc.controller.reconcile.searches import BackgroundSearches, search_with_new_fleet
from devalloc.controller.reconcile.write_backoff import UNRELATED_KINDS
from devalloc.store import Object
from devalloc_solver.deadline import seconds_left

if TYPE_CHECKING:
    from devalloc_solver import Fleet

_Name = tuple[str, str, str, str]
_ClaimKey = tuple[str, str]
_Answer = dict[str, Any]


@dataclass(slots=True)
class _LastRound:
    """What the last round came to, for one in which little has changed."""

    answers: dict[_ClaimKey, _Answer]
    """Of the claims that hold something."""
    problems: list[_Answer]
    about: frozenset[_Name] = field(init=False)
    """What the problems are of."""

    def __post_init__(self) -> None:
        parts = ("kind", "namespace", "name")
        subjects = [[str(each.get(part) or "") for part in parts] for each in self.problems]
        self.about = frozenset(("", kind, namespace or "default", name) for kind, namespace, name in subjects)


class IncrementalSolver:
    """Called with all documents round after round; answers as ``solve_manifests`` does of each, but for ``objective``.
    Not thread-safe.

    What a round decided is not believed until the next one sees it in the documents: it may not have been written. A
    round that finds one simple claim more, or some fewer, than the last costs what these cost.
    """

    def __init__(self, searches: BackgroundSearches | None = None) -> None:
        """``searches``: what is not answered at once is left to; None: all is answered at once."""
        self._searches = searches or BackgroundSearches(search_with_new_fleet("pack"))
        self._fleet: Fleet | None = None
        self._placement = ""
        self._loaded: dict[_Name, Object] = {}
        """what the fleet was told: everything but claims that hold nothing and have a spec"""
        self._standing: _LastRound | None = None

    def __call__(self, documents: Iterable[Object], *, placement: str, deadline: float | None) -> _Answer:
        """The dict of ``solve_manifests`` for these documents. An error leaves nothing behind."""
        ends = None if deadline is None else time.monotonic() + deadline
        documents = list(documents)
        fleet, self._fleet = self._fleet, None
        standing, self._standing = self._standing, None
        if fleet is None or placement != self._placement:
            fleet, changed = self._load(documents, placement), None
        else:
            changed = self._update(fleet, documents)
        waiting = [document for document in documents if _is_claim(document) and _name(document) not in self._loaded]
        answer = None
        if changed is not None and standing is not None and len(waiting) <= 1:
            answer = self._little(fleet, standing, changed, waiting, seconds_left(ends))
        if answer is None:
            claims = [document for document in documents if _is_claim(document)]
            others = [claim for claim in claims if _name(claim) in self._loaded and not self._is_held(fleet, claim)]
            if changed is None or any(name[1] not in UNRELATED_KINDS for name in changed):
                self._searches.forget()
            answer = self._searches.solve(fleet, [*self._loaded.values()], waiting, seconds_left(ends), others)
            claim_keys = {name[2:] for name in self._loaded if name[1] == "DeviceClaim"}
            held = {key: each for each in answer["claims"] if (key := (each["namespace"], each["name"])) in claim_keys}
            standing = _LastRound(held, answer["problems"])
            if any(("", *_name(claim)[1:]) in standing.about for claim in waiting):
                standing = None  # they may be gone next time
        self._fleet, self._standing = fleet, standing
        return answer

    def _is_held(self, fleet: Fleet, claim: Object) -> bool:
        """Whether the fleet answers for it without being asked: as it was told."""
        return _name(claim) in self._loaded and fleet.holds(*claim_key(claim))

    def _load(self, documents: list[Object], placement: str) -> Fleet:
        from devalloc_solver import Fleet  # takes a while to load

        self._loaded = {_name(document): document for document in documents if _is_loaded_beforehand(document)}
        self._placement = placement
        return Fleet.from_manifests(self._loaded.values(), placement=placement)

    def _update(self, fleet: Fleet, documents: list[Object]) -> dict[_Name, Object | None]:
        """Tell the fleet of what is new, has changed, or (None) is gone."""
        now = {_name(document): document for document in documents if _is_loaded_beforehand(document)}
        changed: dict[_Name, Object | None] = dict.fromkeys(self._loaded.keys() - now.keys())
        for name in changed:
            fleet.delete(self._loaded[name])
        for name, document in now.items():
            if not _is_unchanged(self._loaded.get(name), document):
                fleet.update(document)
                changed[name] = document
        self._loaded = now
        return changed

    def _little(
        self,
        fleet: Fleet,
        standing: _LastRound,
        changed: Mapping[_Name, Object | None],
        waiting: list[Object],
        deadline: float | None,
    ) -> _Answer | None:
        """The answer where all that has changed are claims that hold something and are well, and one at most waits
        that is simple and gets its devices; None where that is not so, and all are to be looked at."""
        began = time.monotonic()
        if any(name[1] != "DeviceClaim" or ("", *name[1:]) in standing.about for name in changed):
            return None
        if not all(_is_simple(claim) and group_of(claim) is None and not is_deleting(claim) for claim in waiting):
            return None
        for name, document in changed.items():
            standing.answers.pop(name[2:], None)
            if document is not None:
                if not fleet.holds(*name[2:]) or not self._has_classes(document, standing):
                    return None
                answer: Any = fleet.allocate(document)
                if not answer["allocated"] or answer.get("lost") or answer.get("warnings"):
                    return None
                standing.answers[name[2:]] = answer
        given: list[Any] = [fleet.allocate(claim, deadline) for claim in waiting]
        self._take_back(fleet, waiting, given)
        if not all(each["allocated"] for each in given):
            return None
        answers = sorted([*standing.answers.values(), *given], key=lambda each: (each["namespace"], each["name"]))
        seconds = round(time.monotonic() - began, 6)
        return {"claims": answers, "problems": standing.problems, "optimal": True, "seconds": seconds}

    def _has_classes(self, claim: Object, standing: _LastRound) -> bool:
        """Whether the claim is simple, and the class that it names is there and well."""
        if not _is_simple(claim):
            return False
        named = claim["spec"]["claims"][0].get("deviceClass")
        place = (claim["apiVersion"], "DeviceClass", "default", str(named))
        return not named or (place in self._loaded and ("", *place[1:]) not in standing.about)

    def _take_back(self, fleet: Fleet, claims: list[Object], answers: Iterable[_Answer]) -> None:
        """Forget what was given now: the documents of the next round say what of it was written."""
        given = {(each["namespace"], each["name"]) for each in answers if each["allocated"]}
        for claim in claims:
            if _name(claim)[2:] in given:
                fleet.delete(claim)


def _is_claim(document: Object) -> bool:
    return document.get("kind") == "DeviceClaim"


def _is_simple(claim: Object) -> bool:
    """Whether it asks for one thing, without alternatives, limits and equal attributes: then it is placed in no time,
    and needs no deadline; others may take a search."""
    spec = claim.get("spec")
    if not isinstance(spec, dict) or spec.keys() != {"claims"} or not isinstance(spec["claims"], list):
        return False
    entry = spec["claims"][0] if len(spec["claims"]) == 1 else None
    return isinstance(entry, dict) and not entry.keys() & {"oneOf", "limits", "matchAttributes"}


def _is_loaded_beforehand(document: Object) -> bool:
    """Whether the fleet is to know of it beforehand: of claims, those that may hold something, and those without a
    spec, which it would take for the name of one that it knows."""
    return not _is_claim(document) or bool(allocation_entries(document)) or "spec" not in document


def _is_unchanged(previous: Object | None, document: Object) -> bool:
    """Of claims all counts: what an allocated one is depends on more than itself (``as_allocated``). Of pools the
    status does not: it says what claims hold."""
    if previous is document:
        return True
    if previous is None or _is_claim(document):
        return previous == document
    before, now = previous["metadata"], document["metadata"]
    version = now.get("resourceVersion")
    if version is not None and (before.get("uid"), before.get("resourceVersion")) == (now.get("uid"), version):
        return True
    return _without_status(previous) == _without_status(document)


def _without_status(document: Object) -> Object:
    metadata = {name: value for name, value in document["metadata"].items() if name != "resourceVersion"}
    return {**{name: value for name, value in document.items() if name != "status"}, "metadata": metadata}


def _name(document: Object) -> _Name:
    metadata = document["metadata"]
    namespace = metadata.get("namespace") or "default"
    return document.get("apiVersion", ""), document["kind"], namespace, metadata["name"]
