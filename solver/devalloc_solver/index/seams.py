"""What the index asks of a dialect (DeviceClaims here, resource.k8s.io's own there), and what it answers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from devalloc_solver.demand import Slot, Unit
from devalloc_solver.snapshot import Device, Pool, Snapshot


class Ask(Protocol):
    """What a claim (or whatever is satisfied as a whole) asks for, whoever asks."""

    @property
    def shape(self) -> Hashable:
        """Equal for what asks for the same: equal shapes share what was found out about nodes."""

    def unit_on(self, snapshot: Snapshot) -> Unit:
        """The unit, without pin, in terms of a snapshot. Verdicts are kept by whoever answers: this is called often."""

    def reads(self, slot: Slot) -> frozenset[str] | None:
        """The attributes that its expressions read; None for all."""

    def literals(self, slot: Slot) -> Iterable[tuple[str, frozenset[Any]]]:
        """Attributes of which each candidate has one of the values, as far as the expressions say so plainly."""

    def passing(self, slot: Slot, name: str, values: Iterable[object]) -> Sequence[object] | None:
        """Those of the values of an attribute that a candidate may have, where an expression reads nothing else."""

    def drivers(self, slot: Slot) -> frozenset[str] | None:
        """The drivers of which candidates are; None for any."""


class Given(NamedTuple):
    """One device given to one slot."""

    slot: Slot
    pool: Pool
    device: Device
    """of the snapshot of its own node, or of the network's"""
    accepted: Any
    """what ``Candidates.accepted`` says of it: the class that accepted the device"""
    amounts: tuple[tuple[str, int], ...] = ()
    """nano units of a share; empty for a whole device"""


class Spot(NamedTuple):
    """Where something goes: the node (None for network devices alone) and the devices, in order of the details."""

    node: str | None
    given: Sequence[Given]
