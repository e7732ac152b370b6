"""What the model of a batch consists of: the decisions of each slot, and all that the search reads or fixes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devalloc_solver.bunches import Bunch, Place
from devalloc_solver.demand import Demand, Mode, Slot, Unit
from devalloc_solver.holdings import Ledger
from devalloc_solver.snapshot import Snapshot

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

Terms = list[tuple[int, "IntVar"]]
"""A linear expression: (coefficient, variable)."""
Bin = tuple[int, int]
"""(bunch, number): one device of a bunch, whichever it will be."""
Target = int | Bin
"""What a take is of: any device of a bunch, or one that others share."""


@dataclass(slots=True, eq=False)
class SlotVars:
    """The decisions of one slot of one unit."""

    unit: int
    demand: Demand
    slot: Slot
    chosen: IntVar
    takes: dict[Target, IntVar] = field(default_factory=dict)
    """how many devices, or portions of them: of whole takers and counted admin details"""
    shares: dict[Bin, tuple[IntVar, dict[str, Terms]]] = field(default_factory=dict)
    """whether a share is taken, and the blocks of each resource"""
    every: dict[Place, tuple[tuple[int, ...], IntVar]] = field(default_factory=dict)
    """place -> the bunches of which the slot gets all devices there, and a literal that holds when it does"""


@dataclass(slots=True, eq=False)
class Cell:
    """What members of a crowd take at a site for one slot, all with one value of the slot's own match attributes."""

    members: Terms
    takes: dict[Target, IntVar] = field(default_factory=dict)
    undivided: dict[Bin, IntVar] = field(default_factory=dict)
    """members that have all of their share on this device"""
    parts: dict[Bin, dict[str, Terms]] = field(default_factory=dict)
    """blocks of each resource for the other shares, of all these members together"""
    split: IntVar | None = None
    """how many these are"""


@dataclass(slots=True, eq=False)
class Site:
    """Where members of a crowd may be: a place, and one value of the attributes that all devices of a claim share."""

    place: Place
    patterns: dict[tuple[int, ...], IntVar]
    """alternative of each detail -> members that choose these"""
    cells: dict[tuple[int, int], list[Cell]] = field(default_factory=dict)
    """(detail, alternative) -> the cells of that slot"""


@dataclass(slots=True, eq=False)
class Crowd:
    """The decisions of equal units: how many of them do what. Who does it is told afterwards, earlier ones first."""

    units: tuple[int, ...]
    sites: list[Site] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class BatchModel:
    """The CP-SAT model and the meaning of its variables."""

    snapshot: Snapshot
    ledger: Ledger
    units: Sequence[Unit]
    bunches: Sequence[Bunch]
    nodes: Sequence[str]
    """nodes worth considering"""
    cp: cp_model.CpModel
    satisfied: list[IntVar] = field(default_factory=list)
    """one for each unit"""
    places: dict[int, dict[Place, IntVar]] = field(default_factory=dict)
    """unit on its own -> where it may be"""
    slots: list[SlotVars] = field(default_factory=list)
    """of the units on their own"""
    crowds: list[Crowd] = field(default_factory=list)
    pools_used: dict[int, IntVar] = field(default_factory=dict)
    devices_used: dict[int, IntVar] = field(default_factory=dict)
    """bunch -> distinct devices in use"""
    users: dict[int, Terms] = field(default_factory=dict)
    """bunch -> what adds up to the devices of it that are given, those of admin details left aside"""
    nodes_used: dict[str, IntVar] = field(default_factory=dict)
    draws: dict[tuple[int, str], Terms] = field(default_factory=dict)
    """(pool, resource) -> blocks that the batch draws"""


def sharing_slots(units: Sequence[Unit]) -> list[Slot]:
    """The slots that may take part of a device: shares or portions."""
    slots = (slot for unit in units for demand in unit.demands for slot in demand.slots)
    return [slot for slot in slots if slot.mode is Mode.SHARE or (slot.portions and not slot.mode.is_admin)]


def bin_count(bunch: Bunch, ledger: Ledger, sharing: Iterable[Slot]) -> int:
    """How many devices of a bunch these slots may need at most: as many as when each had devices of its own.

    A solution with more can be changed into that one: no slot is on more devices then than it was.
    """
    need = 0
    index = bunch.one.index
    for slot in sharing:
        if index not in slot.candidates.accepted:
            continue
        if slot.mode is Mode.SHARE:
            need += max((-(-amount // free) for amount, free in _supply(slot, bunch, ledger)), default=0)
        elif index in slot.portions:
            need += bunch.size if slot.most is None else slot.most
        if need >= bunch.size:
            return bunch.size
    return need


def _supply(slot: Slot, bunch: Bunch, ledger: Ledger) -> Iterable[tuple[int, int]]:
    """(requested, free on one device of the bunch) of each resource it has; blocks"""
    for name, amount in slot.requests.items():
        if free := ledger.free_blocks(bunch.one, name):
            yield -(-amount // bunch.one.resources[name].block), free
