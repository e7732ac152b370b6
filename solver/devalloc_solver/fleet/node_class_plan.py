"""The plan by which a claim is placed on any node of a class, its score, and the exact placement on one node."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from devalloc.api.node_rules import NodeRestriction
from devalloc_solver.fleet.equal_devices import reachable_snapshot
from devalloc_solver.fleet.pool_states import NodeRecord, ShareState
from devalloc_solver.pipeline.strategy import place_on_node
from devalloc_solver.place import SearchDeadline
from devalloc_solver.place.search_context import SearchContext, score_of
from devalloc_solver.problem.demand import PlacementUnit, Request
from devalloc_solver.problem.placement import PlacedDevice
from devalloc_solver.problem.placement_policy import PlacementPolicy
from devalloc_solver.problem.placement_score import PlacementScore
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot


class ClaimQuery(Protocol):
    """What a claim, or a group that is satisfied as a whole, requests; equal for equal requests."""

    @property
    def shape(self) -> Hashable:
        """Equal for equal requests: equal shapes share what the search learned about nodes."""

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        """Rules by which it keeps off nodes."""

    @property
    def takes_network(self) -> bool:
        """Whether devices of the network may be among its candidates."""

    @property
    def is_monotone(self) -> bool:
        """Whether it never fits better if there are fewer devices."""

    @property
    def is_strange(self) -> bool:
        """Whether an expression turned out too expensive for the index."""

    def unit_on(self, snapshot: Snapshot) -> PlacementUnit:
        """The unit, without pin, in terms of a snapshot. This is called often, so implementations cache verdicts."""


@dataclass(slots=True, eq=False)  # not frozen, nor a tuple: either takes twice as long to make
class ChosenDevice:
    """One device given to one request."""

    request: Request
    pool: Pool
    device: Device
    """of the snapshot of its own node, or of the network's"""
    accepted: Any
    """what ``Candidates.accepted`` says of it: the class that accepted the device"""
    amounts: tuple[tuple[str, int], ...] = ()
    """nano units of a share; empty for a whole device"""


@dataclass(slots=True, eq=False)
class ChosenPlace:
    """Where something goes: the node (None for network devices alone) and the devices, in order of the details."""

    node: str | None
    given: Sequence[ChosenDevice]


Taken = tuple[NodeRecord, Device, PlacedDevice]
"""(the node or the network, the device in its own snapshot, what is taken of it)"""


def place_exactly(
    record: NodeRecord,
    network: NodeRecord | None,
    unit_on: Callable[[Snapshot], PlacementUnit | None],
    policy: PlacementPolicy,
    deadline: SearchDeadline,
    *,
    decide: bool = True,
) -> tuple[PlacementScore, Sequence[Taken]] | None:
    """The best on one node by search, for a unit of one demand; None when it does not fit there. ``decide``: see
    ``place_on_node``.

    Args:
        network: the record of the network, if any of its devices may be taken.
        unit_on: the unit in terms of what the node reaches; None if it is known not to fit.
        policy: how to choose where goals 1 to 4 of S17 are reached.
        deadline: shared by all searches of a call. Raises budget.OutOfTime where nothing is known by then.
    """
    if network is None:
        offset, snapshot, usage = 0, record.snapshot, record.usage()
    else:
        offset = len(network.snapshot.devices)
        snapshot = reachable_snapshot(record.snapshot, network.snapshot, record.name)
        usage = record.usage(snapshot, offset)
        network.fill(usage, 0)
    unit = unit_on(snapshot)
    if unit is None:
        return None
    placements = place_on_node(usage, unit, record.name, policy, deadline, decide=decide)
    if not placements:
        return None
    entries = placements[0].entries
    taken: list[Taken] = []
    for entry in entries:
        owner, number = record, entry.device.index - offset
        if network is not None and number < 0:
            owner, number = network, entry.device.index
        taken.append((owner, owner.snapshot.devices[number], entry))
    of_node = record.name if any(owner is record for owner, _, _ in taken) else None
    score = score_of(SearchContext(snapshot, usage, policy), placements, of_node)
    return score._replace(order=()), taken  # the first of equal nodes is found before the others


@dataclass(frozen=True, slots=True)
class PlanPart:
    """So many free devices of some groups of one pool, the first ones in order."""

    request: Request
    pool: int
    groups: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class PlanPick:
    """The n-th in order of the devices of a group that are in the same use."""

    request: Request
    network: bool
    pool: int
    group: int
    use: str | ShareState
    number: int
    amounts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class NodeClassPlan:
    """Valid for every node of the class that it was made for."""

    score: PlacementScore
    ways: tuple[tuple[PlanPart | PlanPick, ...], ...]
    """equally good choices of what to take: each node gets the one whose devices come first in natural order. Empty
    where only CP-SAT can tell: the score is then one that cannot be beaten"""
    local: bool
    """whether any device is the node's own"""

    def given(self, record: NodeRecord, network: NodeRecord | None) -> list[ChosenDevice]:
        """The devices, by name; those of a request in natural order."""
        if len(self.ways) == 1:
            return self._given(self.ways[0], record, network)
        every = [self._given(way, record, network) for way in self.ways]
        return min(every, key=lambda given: sorted([one.device.index for one in given]))

    def _given(
        self, parts: Sequence[PlanPart | PlanPick], record: NodeRecord, network: NodeRecord | None
    ) -> list[ChosenDevice]:
        devices: list[ChosenDevice] = []
        for part in parts:
            if isinstance(part, PlanPart):
                devices += _take_part(part, record)
            else:
                owner = network if part.network else record
                assert owner is not None
                devices.append(_take_pick(part, owner))
        return devices


FREE_USE = "free"
WHOLE_USE = "whole"


def device_use(record: NodeRecord, pool: int, position: int) -> str | ShareState:
    use = record.uses[pool].get(position)
    if use is None:
        return FREE_USE
    return use.sharing if use.shares else WHOLE_USE


def _take_part(part: PlanPart, record: NodeRecord) -> list[ChosenDevice]:
    pool, uses, view = record.pools[part.pool], record.uses[part.pool], record.snapshot.pools[part.pool]
    accepted, kinds, group_of = part.request.candidates.accepted, pool.kinds, pool.group_of
    taken: list[ChosenDevice] = []
    for position in pool.positions(part.groups):
        if position not in uses:
            device, kind = view.devices[position], kinds[group_of[position]]
            taken.append(ChosenDevice(part.request, view, device, accepted[kind.index]))
            if len(taken) == part.count:
                break
    return taken


def _take_pick(part: PlanPick, record: NodeRecord) -> ChosenDevice:
    pool = record.pools[part.pool]
    alike = (p for p in pool.groups[part.group] if device_use(record, part.pool, p) == part.use)
    position = next(p for number, p in enumerate(alike) if number == part.number)
    view = record.snapshot.pools[part.pool]
    accepted = part.request.candidates.accepted[pool.kinds[part.group].index]
    return ChosenDevice(part.request, view, view.devices[position], accepted, part.amounts)


def pick_of(request: Request, taken: Taken, network: NodeRecord | None) -> PlanPick:
    """The pick that stands for a device, on any node of the same class."""
    record, device, entry = taken
    kind, position = record.pools[device.pool], device.index - record.starts[device.pool]
    group, use = kind.group_of[position], device_use(record, device.pool, position)
    alike = [p for p in kind.groups[group] if device_use(record, device.pool, p) == use]
    return PlanPick(request, record is network, device.pool, group, use, alike.index(position), entry.amounts)
