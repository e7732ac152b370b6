"""The solver of the loop: a Fleet that is kept from round to round, and told what has changed in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from devalloc.controller.claims import allocations
from devalloc.store import Object

if TYPE_CHECKING:
    from devalloc_solver import Fleet

_Name = tuple[str, str, str, str]


class WarmSolver:
    """Called with all documents round after round; answers as ``solve_manifests`` does of each. Not thread-safe.

    What a round decided is not believed until the next one sees it in the documents: it may not have been written.
    """

    def __init__(self) -> None:
        self._fleet: Fleet | None = None
        self._placement = ""
        self._told: dict[_Name, Object] = {}
        """what the fleet was told: everything but claims that hold nothing and have a spec"""

    def __call__(self, documents: Iterable[Object], *, placement: str, deadline: float | None) -> dict[str, Any]:
        """The dict of ``solve_manifests`` for these documents. An error leaves nothing behind."""
        documents = list(documents)
        fleet, self._fleet = self._fleet, None
        fleet = self._told_anew(documents, placement) if fleet is None else self._told_of(fleet, documents, placement)
        claims = [document for document in documents if _is_claim(document)]
        answer = fleet.allocate_all(claims, deadline=deadline)
        self._take_back(fleet, claims, answer)
        self._fleet = fleet
        return answer

    def _told_anew(self, documents: list[Object], placement: str) -> Fleet:
        from devalloc_solver import Fleet  # takes a while to load

        self._told = {_name(document): document for document in documents if _counts(document)}
        self._placement = placement
        return Fleet.from_manifests(self._told.values(), placement=placement)

    def _told_of(self, fleet: Fleet, documents: list[Object], placement: str) -> Fleet:
        """Tell the fleet of what is new, has changed, or is gone."""
        if placement != self._placement:
            return self._told_anew(documents, placement)
        now = {_name(document): document for document in documents if _counts(document)}
        for name in self._told.keys() - now.keys():
            fleet.delete(self._told[name])
        for name, document in now.items():
            if not _same(self._told.get(name), document):
                fleet.update(document)
        self._told = now
        return fleet

    def _take_back(self, fleet: Fleet, claims: list[Object], answer: dict[str, Any]) -> None:
        """Forget what was given now: the documents of the next round say what of it was written."""
        given = {(each["namespace"], each["name"]) for each in answer["claims"] if each["allocated"]}
        for claim in claims:
            name = _name(claim)
            if name not in self._told and name[2:] in given:
                fleet.delete(claim)


def _is_claim(document: Object) -> bool:
    return document.get("kind") == "DeviceClaim"


def _counts(document: Object) -> bool:
    """Whether the fleet is to know of it beforehand: of claims, those that may hold something, and those without a
    spec, which it would take for the name of one that it knows."""
    return not _is_claim(document) or bool(allocations(document)) or "spec" not in document


def _same(told: Object | None, document: Object) -> bool:
    """Of claims all counts: what an allocated one is depends on more than itself (``as_allocated``)."""
    if told is None or _is_claim(document):
        return told == document
    before, now = told["metadata"], document["metadata"]
    version = now.get("resourceVersion")
    if version is not None and (before.get("uid"), before.get("resourceVersion")) == (now.get("uid"), version):
        return True
    return told == document


def _name(document: Object) -> _Name:
    metadata = document["metadata"]
    namespace = metadata.get("namespace") or "default"
    return document.get("apiVersion", ""), document["kind"], namespace, metadata["name"]
