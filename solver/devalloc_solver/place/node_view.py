"""What one node offers to a unit: the candidates it reaches, in groups of interchangeable devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from devalloc_solver.place.requests import IndexedRequest, MatchConstraint, UnitRequests, indistinguishable
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.allocations import pool_allows as is_allowed
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

Place = str | None
"""A node; None in a fleet without nodes, where there are network devices alone."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateGroup:
    """Devices of one pool that no ask tells apart, in natural order."""

    number: int
    pool: int
    """position in ``NodeView.pools``"""
    devices: tuple[Device, ...]
    accepted: int
    """mask of the asks whose candidates they are"""
    takers: int
    """mask of those that may take one of them as things stand"""
    draws: tuple[tuple[str, int], ...]
    """what taking one draws on the pool: nothing when it is in use already"""
    group: object | None
    """compatibility group to keep to; None too when in use"""

    @property
    def one(self) -> Device:
        return self.devices[0]

    @property
    def size(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """A node, or no node, with all that its unit may use."""

    node: Place
    asks: UnitRequests
    ledger: Usage
    pools: tuple[Pool, ...]
    """those with candidates, in natural order"""
    lots: tuple[CandidateGroup, ...]
    tie_values: tuple[tuple[frozenset[object], ...], ...]
    """per tie, per lot"""
    distinct_values: tuple[tuple[frozenset[object], ...], ...]
    peers: tuple[int, ...]
    """masks of the asks that no lot tells apart; every ask is in one"""
    peer: tuple[int, ...]
    """per ask: the position of its peers"""

    def free_nano(self, lot: CandidateGroup, name: str) -> int:
        """What shares may still take of one device, rounded down to blocks."""
        capacity = lot.one.resources.get(name)
        return 0 if capacity is None else self.ledger.free_blocks(lot.one, name) * capacity.block


def view_node(asks: UnitRequests, snapshot: Snapshot, ledger: Usage, node: Place) -> NodeView:
    """Sort the candidates that the node reaches into lots."""
    lots: list[CandidateGroup] = []
    pools: list[Pool] = []
    names = asks.names
    for pool in reached_pools(snapshot, node):
        free = free_blocks(pool, ledger)
        alike: dict[object, list[Device]] = {}
        masks: dict[object, tuple[int, int]] = {}
        for device, accepted in candidates_of_pool(asks, pool, node):
            takers = _requests_that_may_take(asks, device, accepted, free, ledger)
            key: object = (
                accepted,
                takers,
                device_state(asks, device, ledger),
                tuple([device.attributes.get(n) for n in names]) if names else (),
            )
            alike.setdefault(key, []).append(device)
            masks[key] = (accepted, takers)
        if alike:
            pools.append(pool)
        for key, devices in alike.items():
            fresh = not ledger.in_use(devices[0])
            lots.append(
                CandidateGroup(
                    number=len(lots),
                    pool=len(pools) - 1,
                    devices=tuple(devices),
                    accepted=masks[key][0],
                    takers=masks[key][1],
                    draws=devices[0].draws if fresh else (),
                    group=devices[0].compatibility if fresh else None,
                )
            )
    together = indistinguishable(
        [mask for lot in lots for mask in (lot.takers, lot.accepted)], (1 << len(asks.asks)) - 1
    )
    peer = [0] * len(asks.asks)
    for position, mask in enumerate(together):
        for ask in asks.of(mask):
            peer[ask.number] = position
    return NodeView(
        node=node,
        asks=asks,
        ledger=ledger,
        pools=tuple(pools),
        lots=tuple(lots),
        tie_values=_values_of(asks.ties, lots),
        distinct_values=_values_of(asks.distincts, lots),
        peers=tuple(together),
        peer=tuple(peer),
    )


def _values_of(
    ties: Sequence[MatchConstraint], lots: Sequence[CandidateGroup]
) -> tuple[tuple[frozenset[object], ...], ...]:
    """Per tie, per lot; many ties read the same attributes."""
    by_tie: dict[object, tuple[frozenset[object], ...]] = {}
    for tie in ties:
        if (tie.names, tie.listed) not in by_tie:
            by_tie[tie.names, tie.listed] = tuple([tie.values(lot.one) for lot in lots])
    return tuple([by_tie[tie.names, tie.listed] for tie in ties])


def reached_pools(snapshot: Snapshot, node: Place) -> Iterator[Pool]:
    """Network pools first, as the natural order has it."""
    yield from snapshot.pools_by_node.get(None, ())
    if node is not None:
        yield from snapshot.pools_by_node.get(node, ())


def candidates_of_pool(asks: UnitRequests, pool: Pool, node: Place) -> Iterator[tuple[Device, int]]:
    """The pool's devices that some ask accepts and the node reaches, with the mask of these asks."""
    barred = asks.barred_from(node)
    for device in pool.devices:
        mask = 0
        for accepted, bits in asks.sets:
            if device.index in accepted:
                mask |= bits
        mask &= ~barred
        if mask and (device.reach is None or node in device.reach):
            yield device, mask


def device_state(asks: UnitRequests, device: Device, ledger: Usage) -> tuple[object, ...]:
    """What a device has left and what taking it would draw, as far as the unit can tell."""
    index = device.index
    names: Mapping[str, object] | tuple[str, ...] = device.resources if device.shareable else asks.resources
    amounts: tuple[object, ...] = ()
    if names:
        amounts = tuple(
            (name, device.resources[name].block, device.resources[name].blocks, ledger.free_nano(device, name))
            for name in names
            if name in device.resources
        )
    portions = tuple([taken.get(index) for taken, _ in asks.portions]) if asks.portions else ()
    if ledger.in_use(device):
        return index in ledger.whole, index in ledger.shared, device.shareable, amounts, portions
    return device.draws, device.compatibility, device.shareable, amounts, portions


def _requests_that_may_take(
    asks: UnitRequests, device: Device, accepted: int, free: Mapping[str, int], ledger: Usage
) -> int:
    """The asks that may take the device as things stand. ``free``: blocks of its pool's resources."""
    watching = accepted & asks.admin
    rest = accepted & ~asks.admin
    index = device.index
    if not rest or index in ledger.whole or device.undefined is not None:
        return watching
    in_use = index in ledger.shared
    if not in_use and not pool_allows(device, free, ledger):
        return watching
    if device.shareable:
        for taken, mask in asks.portions:
            portion = taken.get(index)
            if portion is None or ledger.portions_left(device, portion) == 0:
                rest &= ~mask
        return watching | rest & asks.portioned
    if in_use:
        rest &= asks.share
    if shares := rest & asks.share:
        for ask in asks.of(shares):
            if not _has_share(ask, device, ledger):
                rest ^= ask.bit
    return watching | rest


def free_blocks(pool: Pool, ledger: Usage) -> dict[str, int]:
    """Blocks of a pool's resources that are free."""
    return {name: ledger.free_pool_blocks(pool.index, name) for name in pool.resources}


def pool_allows(device: Device, free: Mapping[str, int], ledger: Usage) -> bool:
    """Pool resources and compatibility groups (S12, S12a), for a device that is not in use. ``free``: of its pool."""
    return is_allowed(device, free, ledger.groups.get(device.pool))


def _has_share(ask: IndexedRequest, device: Device, ledger: Usage) -> bool:
    """Whether a share may take something of the device; all of it where it must be a single device."""
    for name, nano in ask.request.requests.items():
        free = ledger.free_blocks(device, name)
        if ask.request.max_count != 1:
            if free:
                return True
        elif not free or free * device.resources[name].block < nano:
            return False
    return ask.request.max_count == 1


def count_fixed(site: NodeView, ask: IndexedRequest) -> int:
    """How many devices an ask for every device gets."""
    return sum(lot.size for lot in devices_of_fixed(site, ask))


def devices_of_fixed(site: NodeView, ask: IndexedRequest) -> list[CandidateGroup]:
    """All that an ask for every device gets."""
    assert ask.request.mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL)
    return [lot for lot in site.lots if lot.accepted & ask.bit]
