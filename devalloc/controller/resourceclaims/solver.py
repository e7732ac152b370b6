"""The solver of resource.k8s.io, kept warm from round to round, and told what has changed in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
        """The answers to claims that wait, jointly; in the form of ``solve_manifests``."""
        fleet, self._fleet = self._fleet, None  # an error leaves nothing behind
        assert fleet is not None, "it is told what there is first"
        answers = [fleet.allocate(claims[0])] if len(claims) == 1 else fleet.allocate_all(claims, deadline)["claims"]
        by_key = {(claim["metadata"]["namespace"], claim["metadata"]["name"]): claim for claim in claims}
        answers = [each for each in answers if (each["namespace"], each["name"]) in by_key]
        for each in answers:
            if each["allocated"]:
                fleet.delete(by_key[each["namespace"], each["name"]])
        self._fleet = fleet
        return answers
