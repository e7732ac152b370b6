"""The natural order of devices (S17, goal 6): of answers that are as good, the one with the first devices first.

The search decides how many devices of each pool a claim gets. Which ones it names may depend on how it searched: on all
nodes of a fleet, or on those that matter. So the devices of each pool are dealt again, in the order of claims. No claim
gets another number of devices of a pool, or of devices that draw something else, and what a claim wants its devices to
have in common they still have: goals 1 to 5 are as they were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import AllocationMode, Demand, Request
from devalloc_solver.problem.ordering import claim_order
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.snapshot import Device, Snapshot

MAX_STEPS = 20_000
"""Devices looked at for one pool; where that does not suffice, its devices stay as they are. Twenty claims for the 64
devices of a pool take 1,500."""

_Exchange = tuple[int, Hashable]
"""The pool, and all that goals 1 to 5 see of a device there: devices of which this is equal may be exchanged."""


@dataclass(slots=True, eq=False)
class _Taker:
    """A request of a claim, and the devices of one exchange that it gets."""

    demand: Demand
    request: Request
    devices: list[Device] = field(default_factory=list)
    agree: tuple[str, ...] = ()
    """attributes of which these devices have one value, whichever"""
    distinct: tuple[str, ...] = ()
    """attributes of which no two of them share a value"""
    fixed: tuple[str, ...] = ()
    """attributes of which they must have the values that they have: other devices of the claim depend on these"""

    @property
    def attributes(self) -> tuple[str, ...]:
        return (*self.agree, *self.distinct, *self.fixed)

    def accepts(self, devices: Sequence[Device]) -> bool:
        """Whether it may have these devices, all of which are candidates, in place of its own."""
        for name in self.agree:
            common = devices[0].values(name).intersection(*(device.values(name) for device in devices[1:]))
            if not common:
                return False
        for name in self.distinct:
            values = [value for device in devices for value in device.values(name)]
            if len({*values}) < len(values) or not all(device.values(name) for device in devices):
                return False
        return all(_values(devices, name) == _values(self.devices, name) for name in self.fixed)


class _StepsSpent(Exception):
    pass


def in_natural_order(
    snapshot: Snapshot, holdings: Iterable[Holding], placements: Sequence[Placement]
) -> list[Placement]:
    """The same placements, in which the first devices of each pool go to the first claims by the order of S17.

    Args:
        holdings: what was held before.
    """
    viewed = frozenset(e.device.index for placed in placements for e in placed.entries if e.request.mode.is_admin)
    takers = _takers(placements, viewed)
    if not takers:
        return [*placements]
    before = Usage.of(snapshot, holdings)
    entries = [entry for placed in placements for entry in placed.entries]
    stays = {entry.device.index for entry in entries if not _is_exchangeable(entry, viewed)}
    dealt: dict[tuple[int, _Exchange], list[Device]] = {}
    for exchange, own in takers.items():
        devices = [
            device
            for device in snapshot.pools[exchange[0]].devices
            if _exchange(device) == exchange and not before.in_use(device) and device.index not in stays
        ]
        for taker, given in zip(own, _deal(own, devices), strict=True):
            dealt[id(taker.request), exchange] = given
    return [_with_devices(placed, dealt, viewed) for placed in placements]


def _takers(placements: Sequence[Placement], viewed: Set[int]) -> Mapping[_Exchange, list[_Taker]]:
    """By exchange, in the order of claims."""
    takers: dict[_Exchange, list[_Taker]] = defaultdict(list)
    for placed in sorted(placements, key=lambda one: claim_order(one.demand.claim)):
        own: dict[tuple[int, _Exchange], _Taker] = {}
        for entry in placed.entries:
            if _is_exchangeable(entry, viewed):
                key = id(entry.request), _exchange(entry.device)
                taker = own.get(key)
                if taker is None:
                    taker = own[key] = _Taker(placed.demand, entry.request)
                    takers[key[1]].append(taker)
                taker.devices.append(entry.device)
        for taker in own.values():
            _read_relations(taker, placed)
    return takers


def _is_exchangeable(entry: PlacedDevice, viewed: Set[int]) -> bool:
    """Whether it is a device that its claim alone has, whole. ``viewed``: the devices that admin details look at, who
    would look at one more (goal 4)."""
    is_whole = entry.request.mode is AllocationMode.WHOLE and not entry.amounts and not entry.device.shareable
    return is_whole and entry.device.index not in viewed


def _exchange(device: Device) -> _Exchange:
    amounts = frozenset([(name, resource.block, resource.blocks) for name, resource in device.resources.items()])
    return device.pool, (device.draws, device.compatibility, device.reach, amounts)


def _read_relations(taker: _Taker, placed: Placement) -> None:
    """What the devices of a taker must have, together or with others of the claim."""
    demand, request = taker.demand, taker.request
    is_all_of_request = sum(entry.request is request for entry in placed.entries) == len(taker.devices)
    is_all_of_claim = len(placed.entries) == len(taker.devices)
    agree: list[str] = []
    distinct: list[str] = []
    fixed: list[str] = [*demand.shared]
    (agree if is_all_of_request else fixed).extend(request.match)
    (agree if is_all_of_claim else fixed).extend(demand.match)
    for relation in demand.relations:
        if request.label in relation.labels:
            others = any(e.request is not request and e.request.label in relation.labels for e in placed.entries)
            is_own = is_all_of_request and not others
            (fixed if not is_own else distinct if relation.distinct else agree).append(relation.attribute)
    taker.agree, taker.distinct, taker.fixed = (tuple(dict.fromkeys(names)) for names in (agree, distinct, fixed))


def _values(devices: Sequence[Device], name: str) -> Counter[frozenset[object]]:
    return Counter(device.values(name) for device in devices)


def _deal(takers: Sequence[_Taker], devices: Sequence[Device]) -> list[list[Device]]:
    """The devices of each taker: the first ones for the first taker with which there are enough for all others."""
    now = [sorted(taker.devices, key=lambda device: device.index) for taker in takers]
    names = dict.fromkeys(name for taker in takers for name in taker.attributes)
    sorts = {
        device.index: (
            tuple(device.index in taker.request.candidates.accepted for taker in takers),
            tuple(device.values(name) for name in names),
        )
        for device in devices
    }
    left = [MAX_STEPS]

    def deal(number: int, free: Sequence[Device]) -> list[list[Device]] | None:
        if number == len(takers):
            return []
        taker = takers[number]
        own = [device for device in free if device.index in taker.request.candidates.accepted]
        for choice in _choices(own, len(taker.devices), sorts, left):
            if taker.accepts(choice):
                chosen = {device.index for device in choice}
                rest = deal(number + 1, [device for device in free if device.index not in chosen])
                if rest is not None:
                    return [choice, *rest]
        return None

    try:
        return deal(0, devices) or now
    except (_StepsSpent, RecursionError):
        return now


def _choices(
    devices: Sequence[Device], count: int, sorts: Mapping[int, Hashable], left: list[int], start: int = 0
) -> Iterator[list[Device]]:
    """All ways to choose some devices, the first ones first. Of those that nothing tells apart the first are taken."""
    if not count:
        yield []
        return
    passed: set[Hashable] = set()
    for position in range(start, len(devices) - count + 1):
        left[0] -= 1
        if left[0] < 0:
            raise _StepsSpent
        device = devices[position]
        if sorts[device.index] not in passed:
            for others in _choices(devices, count - 1, sorts, left, position + 1):
                yield [device, *others]
            passed.add(sorts[device.index])


def _with_devices(
    placed: Placement, dealt: Mapping[tuple[int, _Exchange], list[Device]], viewed: Set[int]
) -> Placement:
    given = {key: iter(devices) for key, devices in dealt.items()}
    entries: list[PlacedDevice] = []
    for entry in placed.entries:
        key = id(entry.request), _exchange(entry.device)
        entries.append(replace(entry, device=next(given[key])) if _is_exchangeable(entry, viewed) else entry)
    entries.sort(key=lambda entry: (entry.request.detail, entry.device.index))
    return replace(placed, entries=tuple(entries))
