"""What the model of a batch consists of: the decisions of each slot, and all that the search reads or fixes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devalloc_solver.bunches import Bunch
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.holdings import Key, Ledger
from devalloc_solver.snapshot import Snapshot

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

Terms = list[tuple[int, "IntVar"]]
"""A linear expression: (coefficient, variable)."""
Place = str | None
"""A node; None only in a fleet without nodes, where there are network devices alone."""


@dataclass(frozen=True, slots=True)
class Relax:
    """Rules to leave out when looking for the reason of a refusal (S19)."""

    match: bool = False
    pool_resources: bool = False
    limits: bool = False
    """limits of resources, and of count where there is no count to reach"""


NOTHING = Relax()


@dataclass(slots=True, eq=False)
class SlotVars:
    """The decisions of one slot."""

    unit: int
    demand: Demand
    slot: Slot
    chosen: IntVar
    counts: dict[int, IntVar] = field(default_factory=dict)
    """bunch -> devices, for whole takers and counted admin details"""
    shares: dict[tuple[int, int], tuple[IntVar, dict[str, Terms]]] = field(default_factory=dict)
    """(bunch, bin) -> whether a share is taken, and the blocks of each resource"""
    every: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    """place -> the bunches an admin detail gets all of there"""


@dataclass(slots=True, eq=False)
class BatchModel:
    """The CP-SAT model and the meaning of its variables."""

    snapshot: Snapshot
    ledger: Ledger
    units: Sequence[Unit]
    bunches: Sequence[Bunch]
    cp: cp_model.CpModel
    kept: dict[Key, IntVar]
    """releasable claim -> whether it keeps its devices"""
    satisfied: list[IntVar] = field(default_factory=list)
    places: list[dict[Place, IntVar]] = field(default_factory=list)
    slots: list[SlotVars] = field(default_factory=list)
    pools_used: dict[int, IntVar] = field(default_factory=dict)
    devices_used: dict[int, IntVar] = field(default_factory=dict)
    """bunch -> distinct devices in use"""
    nodes_used: dict[str, IntVar] = field(default_factory=dict)


def bin_count(bunch: Bunch, ledger: Ledger, units: Sequence[Unit]) -> int:
    """How many devices of a bunch shares may need at most: as many as when each slot had devices of its own.

    A solution with more can be changed into that one: no slot is on more devices then than it was.
    """
    need = 0
    for slot in (s for unit in units for d in unit.demands for s in d.slots):
        if slot.mode is Mode.SHARE and bunch.one.index in slot.candidates.accepted:
            need += max((-(-amount // free) for amount, free in _supply(slot, bunch, ledger)), default=0)
        if need >= bunch.size:
            return bunch.size
    return need


def _supply(slot: Slot, bunch: Bunch, ledger: Ledger) -> Iterable[tuple[int, int]]:
    """(requested, free on one device of the bunch) of each resource it has; blocks"""
    for name, amount in slot.requests.items():
        if free := ledger.free_blocks(bunch.one, name):
            yield -(-amount // bunch.one.resources[name].block), free
