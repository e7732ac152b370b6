"""The solver of resource.k8s.io, kept warm from round to round, and told what has changed in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from devalloc.api.meta import GROUP, PRIORITY

if TYPE_CHECKING:
    from devalloc_solver.dra.fleet import ResourceFleet

Object = dict[str, Any]
Name = tuple[str, str, str]
"""Kind, namespace and name."""


class WarmCluster:
    """What the solver knows of a cluster. Not thread-safe.

    What a round decided is not believed until it is told as a document: it may not have been written.
    """

    def __init__(self, placement: str = "pack") -> None:
        self._placement = placement
        self._fleet: ResourceFleet | None = None
        self._told: dict[Name, Object] = {}

    def tell(self, documents: Mapping[Name, Object]) -> bool:
        """All there is but claims that wait; whether anything of it is new."""
        from devalloc_solver.dra.fleet import ResourceFleet  # takes a while to load

        if self._fleet is None:
            self._fleet = ResourceFleet.from_manifests(documents.values(), placement=self._placement)
            self._told = dict(documents)
            return True
        gone = [name for name in self._told if name not in documents]
        differing = [name for name, content in documents.items() if self._told.get(name) != content]
        try:
            for name in gone:
                self._fleet.delete(self._told[name])
            for name in differing:
                self._fleet.update(documents[name])
        except BaseException:
            self._fleet = None  # nobody can tell what it knows
            raise
        self._told = dict(documents)
        return bool(gone or differing)

    def solve(self, claims: Sequence[Object], deadline: float | None) -> list[dict[str, Any]]:
        """The answers to claims that wait, in the form of ``solve_manifests``.

        Single ones one after the other, as long as all get devices: then there is no better answer. Else all jointly,
        within the deadline.
        """
        fleet, self._fleet = self._fleet, None  # an error leaves nothing behind
        assert fleet is not None, "it is told what there is first"
        by_key = {(claim["metadata"]["namespace"], claim["metadata"]["name"]): claim for claim in claims}
        answers = self._one_by_one(fleet, claims)
        self._take_back(fleet, answers, by_key)
        is_answered = len(answers) == len(claims) and all(each["allocated"] for each in answers)
        if not is_answered and (len(claims) > 1 or not answers):
            found = fleet.allocate_all(claims, deadline)["claims"]
            answers = [each for each in found if (each["namespace"], each["name"]) in by_key]
            self._take_back(fleet, answers, by_key)
        self._fleet = fleet
        return answers

    def _one_by_one(self, fleet: ResourceFleet, claims: Sequence[Object]) -> list[dict[str, Any]]:
        """The answers up to the first refusal; none where there is a group, which is answered as a whole."""
        answers: list[dict[str, Any]] = []
        if any(claim["metadata"].get("annotations", {}).get(GROUP) for claim in claims):
            return answers
        for claim in sorted(claims, key=_turn):
            answers.append(fleet.allocate(claim))
            if not answers[-1]["allocated"]:
                break
        return answers

    def _take_back(
        self, fleet: ResourceFleet, answers: Sequence[Mapping[str, Any]], claims: Mapping[tuple[str, str], Object]
    ) -> None:
        for each in answers:
            if each["allocated"]:
                fleet.delete(claims[each["namespace"], each["name"]])


def _turn(claim: Object) -> tuple[int, str, str, str]:
    """The most urgent first, then the oldest."""
    metadata = claim["metadata"]
    return -_priority(claim), metadata.get("creationTimestamp", ""), metadata["namespace"], metadata["name"]


def _priority(claim: Object) -> int:
    text = claim["metadata"].get("annotations", {}).get(PRIORITY, "0")
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 20 else 0
