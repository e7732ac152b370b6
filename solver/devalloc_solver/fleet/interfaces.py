"""What the index needs to know of a claim in either dialect, and what it answers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from devalloc_solver.problem.demand import PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot


class ClaimQuery(Protocol):
    """What a claim, or a group that is satisfied as a whole, requests; equal for equal requests."""

    @property
    def shape(self) -> Hashable:
        """Equal for equal requests: equal shapes share what the search learned about nodes."""

    def unit_on(self, snapshot: Snapshot) -> PlacementUnit:
        """The unit, without pin, in terms of a snapshot. This is called often, so implementations cache verdicts."""

    def reads(self, request: Request) -> frozenset[str] | None:
        """The attributes that its expressions read; None for all."""

    def literals(self, request: Request) -> Iterable[tuple[str, frozenset[Any]]]:
        """Attributes of which each candidate has one of the values, as far as the expressions say so plainly."""

    def passing(self, request: Request, name: str, values: Iterable[object]) -> Sequence[object] | None:
        """Those of the values of an attribute that a candidate may have, where an expression reads nothing else."""

    def drivers(self, request: Request) -> frozenset[str] | None:
        """The drivers of which candidates are; None for any."""


class ChosenDevice(NamedTuple):
    """One device given to one request."""

    request: Request
    pool: Pool
    device: Device
    """of the snapshot of its own node, or of the network's"""
    accepted: Any
    """what ``Candidates.accepted`` says of it: the class that accepted the device"""
    amounts: tuple[tuple[str, int], ...] = ()
    """nano units of a share; empty for a whole device"""


class ChosenPlace(NamedTuple):
    """Where something goes: the node (None for network devices alone) and the devices, in order of the details."""

    node: str | None
    given: Sequence[ChosenDevice]
