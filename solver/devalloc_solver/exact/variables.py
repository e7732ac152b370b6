"""The variables of the exact model: the decisions of each request, and all that the search reads or fixes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.device_groups import DeviceGroup, Place
from devalloc_solver.problem.snapshot import Snapshot

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    IntVar = cp_model.IntVar

LinearTerms = list[tuple[int, "IntVar"]]
"""A linear expression: (coefficient, variable)."""
DeviceBin = tuple[int, int]
"""(device group, number): one device of the group, whichever it will be."""
Target = int | DeviceBin
"""What a take is of: any device of a device group, or one that others share."""


@dataclass(slots=True, eq=False)
class RequestVars:
    """The decisions of one request of one unit."""

    unit: int
    demand: Demand
    request: Request
    chosen: IntVar
    takes: dict[Target, IntVar] = field(default_factory=dict)
    """how many devices, or portions of them: of whole takers and counted admin details"""
    shares: dict[DeviceBin, tuple[IntVar, dict[str, LinearTerms]]] = field(default_factory=dict)
    """whether a share is taken, and the blocks of each resource"""
    every: dict[Place, tuple[tuple[int, ...], IntVar]] = field(default_factory=dict)
    """place -> the device groups of which the request gets all devices there, and a literal that holds when it does"""


@dataclass(slots=True, eq=False)
class GroupCellVars:
    """What members of a claim group take at a site for one request, all with one value of its own match attributes."""

    members: LinearTerms
    takes: dict[Target, IntVar] = field(default_factory=dict)
    undivided: dict[DeviceBin, IntVar] = field(default_factory=dict)
    """members that have all of their share on this device"""
    parts: dict[DeviceBin, dict[str, LinearTerms]] = field(default_factory=dict)
    """blocks of each resource for the other shares, of all these members together"""
    split: IntVar | None = None
    """how many these are"""


@dataclass(slots=True, eq=False)
class GroupSiteVars:
    """Where members of a claim group may be: a place, and one value of the attributes that a claim's devices share."""

    place: Place
    patterns: dict[tuple[int, ...], IntVar]
    """alternative of each detail -> members that choose these"""
    cells: dict[tuple[int, int], list[GroupCellVars]] = field(default_factory=dict)
    """(detail, alternative) -> the cells of that request"""


@dataclass(slots=True, eq=False)
class ClaimGroupVars:
    """The decisions of equal units: how many of them do what. Names are given afterwards, to earlier units first."""

    units: tuple[int, ...]
    sites: list[GroupSiteVars] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class BatchModel:
    """The CP-SAT model and the meaning of its variables."""

    snapshot: Snapshot
    usage: Usage
    units: Sequence[PlacementUnit]
    device_groups: Sequence[DeviceGroup]
    nodes: Sequence[str]
    """nodes worth considering"""
    cp: cp_model.CpModel
    satisfied: list[IntVar] = field(default_factory=list)
    """one for each unit"""
    places: dict[int, dict[Place, IntVar]] = field(default_factory=dict)
    """unit on its own -> where it may be"""
    requests: list[RequestVars] = field(default_factory=list)
    """of the units on their own"""
    claim_groups: list[ClaimGroupVars] = field(default_factory=list)
    pools_used: dict[int, IntVar] = field(default_factory=dict)
    devices_used: dict[int, IntVar] = field(default_factory=dict)
    """device group -> distinct devices in use"""
    users: dict[int, LinearTerms] = field(default_factory=dict)
    """device group -> what adds up to the devices of it that are given, those of admin details left aside"""
    unwatched: list[int] = field(default_factory=list)
    """device groups that no admin detail looks at: exactly what ``users`` add up to is in use of them"""
    loads: dict[int, LinearTerms] = field(default_factory=dict)
    """device group -> what adds up to how much of its devices comes into use (``problem.placement_policy``)"""
    nodes_used: dict[str, IntVar] = field(default_factory=dict)
    draws: dict[tuple[int, str], LinearTerms] = field(default_factory=dict)
    """(pool, resource) -> blocks that the batch draws"""


def sharing_requests(units: Sequence[PlacementUnit]) -> list[Request]:
    """The requests that may take part of a device: shares or portions."""
    requests = (request for unit in units for request in unit.requests)
    return [
        request
        for request in requests
        if request.mode is AllocationMode.SHARE or (request.portions and not request.mode.is_admin)
    ]


def max_bins(device_group: DeviceGroup, usage: Usage, sharing: Iterable[Request]) -> int:
    """How many devices of a device group these requests may need at most: as many as when each had devices of its own.

    A solution with more can be changed into that one: no request is on more devices then than it was.
    """
    need = 0
    index = device_group.one.index
    for request in sharing:
        if index not in request.candidates.accepted:
            continue
        if request.mode is AllocationMode.SHARE:
            need += max((-(-amount // free) for amount, free in _supply(request, device_group, usage)), default=0)
        elif index in request.portions:
            need += device_group.size if request.max_count is None else request.max_count
        if need >= device_group.size:
            return device_group.size
    return need


def _supply(request: Request, device_group: DeviceGroup, usage: Usage) -> Iterable[tuple[int, int]]:
    """(requested, free on one device of the device group) of each resource it has; blocks"""
    for name, amount in request.requests.items():
        if free := usage.free_blocks(device_group.one, name):
            yield -(-amount // device_group.one.resources[name].block), free
