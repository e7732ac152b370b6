"""The natural order of devices (S17, goal 6): of answers that are as good, the one with the first devices first.

The search decides how many devices of each pool a claim gets, and what is drawn on the pool. Which devices it names may
depend on how it searched: on all nodes of a fleet, or on those that matter. So they are dealt again, in the order of
claims. No claim gets another number of devices of a pool, and together they get as many of each sort; a share gets as
much of a device, beside the same others; and what a claim wants its devices to have in common they still have. So goals
1 to 5 are as they were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from devalloc_solver.problem.allocations import Holding, Usage
from devalloc_solver.problem.demand import AllocationMode
from devalloc_solver.problem.ordering import claim_order
from devalloc_solver.problem.placement import PlacedDevice, Placement
from devalloc_solver.problem.snapshot import Device, Snapshot

MAX_STEPS = 20_000
"""Devices looked at for one pool; where that does not suffice, its devices stay as they are. Twenty claims for the 64
devices of a pool take 100."""

_EXCHANGED = frozenset((AllocationMode.WHOLE, AllocationMode.SHARE))

_Take = tuple[Placement, PlacedDevice]
_Amounts = tuple[tuple[str, int, int], ...]
"""(resource, nano units of a block, blocks)"""


@dataclass(slots=True, eq=False)
class _Taker:
    """Requests that have devices of a pool together, the same amounts of each; mostly one, that has all of it."""

    takes: Sequence[_Take]
    """of one of the devices"""
    reach: frozenset[str] | None
    """from where its devices are reached"""
    amounts: _Amounts | None
    """what there is of resources on each; None where it wants none of them"""
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

    @property
    def kind(self) -> Hashable:
        """Equal for takers that have the same candidates."""
        return (self.reach, self.amounts, *[id(entry.request.candidates.accepted) for _, entry in self.takes])

    def is_candidate(self, device: Device) -> bool:
        return (
            device.reach == self.reach
            and (self.amounts is None or self.amounts == _amounts(device))
            and all(device.index in entry.request.candidates.accepted for _, entry in self.takes)
        )

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


def in_natural_order(
    snapshot: Snapshot, holdings: Iterable[Holding], placements: Sequence[Placement]
) -> list[Placement]:
    """The same placements, in which the first devices of each pool go to the first claims by the order of S17.

    Args:
        holdings: what was held before.
    """
    before = Usage.of(snapshot, holdings)
    takes = _takes(placements, before)
    dealt: dict[int, Device] = {}
    for pool, takers in _takers(snapshot, takes).items():
        free = [
            device
            for device in snapshot.pools[pool].devices
            if takes.get(device.index, True) and not before.in_use(device)
        ]
        for taker, given in zip(takers, _Dealer(takers, free).deal(), strict=True):
            dealt.update(zip([device.index for device in taker.devices], given, strict=True))
    return [_with_devices(placed, dealt) for placed in placements]


def _takes(placements: Sequence[Placement], before: Usage) -> Mapping[int, Sequence[_Take]]:
    """Which requests have each device, in the order of claims; none where it stays as it is.

    Those stay that were in use before, of which a request has all that there are, or at which an admin looks: one more
    would be looked at (goal 4).
    """
    takes: dict[int, list[_Take]] = defaultdict(list)
    stay: set[int] = set()
    for placed in sorted(placements, key=lambda one: claim_order(one.demand.claim)):
        for entry in placed.entries:
            device = entry.device
            takes[device.index].append((placed, entry))
            if entry.request.mode not in _EXCHANGED or device.shareable or before.in_use(device):
                stay.add(device.index)
    return {index: () if index in stay else of_device for index, of_device in takes.items()}


def _takers(snapshot: Snapshot, takes: Mapping[int, Sequence[_Take]]) -> Mapping[int, list[_Taker]]:
    """By pool, in the order of claims."""
    rank: dict[int, int] = {}
    takers: dict[int, dict[tuple[object, ...], _Taker]] = defaultdict(dict)
    for index, of_device in takes.items():
        if of_device:
            device = snapshot.devices[index]
            amounts = _amounts(device) if any(map(_wants_amounts, of_device)) else None
            whose = [(rank.setdefault(id(p), len(rank)), entry.request.detail, entry.amounts) for p, entry in of_device]
            key = tuple(whose), amounts or (), tuple(sorted(device.reach or ()))
            taker = _Taker(of_device, device.reach, amounts)
            takers[device.pool].setdefault(key, taker).devices.append(device)
    for taker in (taker for of_pool in takers.values() for taker in of_pool.values()):
        taker.devices.sort(key=lambda device: device.index)
        _read_relations(taker)
    return {pool: [own[key] for key in sorted(own)] for pool, own in takers.items()}


def _wants_amounts(take: _Take) -> bool:
    _, entry = take
    return bool(entry.amounts or entry.request.requests or entry.request.limits)


def _amounts(device: Device) -> _Amounts:
    return tuple(sorted((name, resource.block, resource.blocks) for name, resource in device.resources.items()))


def _sort(device: Device) -> Hashable:
    """All that goals 1 to 5 see of a device of a pool that comes into use."""
    return device.draws, device.compatibility, device.reach, _amounts(device)


def _read_relations(taker: _Taker) -> None:
    """What the devices of a taker must have, together or with others of the claim."""
    agree: list[str] = []
    distinct: list[str] = []
    fixed: list[str] = []
    for placed, entry in taker.takes:
        demand, request = placed.demand, entry.request
        fixed += demand.shared
        if not (demand.match or request.match or demand.relations):
            continue
        is_all_of_request = sum(e.request is request for e in placed.entries) == len(taker.devices)
        is_all_of_claim = len(placed.entries) == len(taker.devices)
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


class _StepsSpent(Exception):
    pass


@dataclass(slots=True, eq=False)
class _Dealer:
    """Gives devices of a pool to its takers: the first ones to the first taker with which there are enough for all
    others, and so many of each sort as before. Of devices that nothing tells apart the first is tried."""

    takers: Sequence[_Taker]
    devices: Sequence[Device]
    """in natural order"""
    steps: int = 0
    _is_given: bytearray = field(init=False)
    _sorts: Sequence[Hashable] = field(init=False)
    _left: Counter[Hashable] = field(init=False)
    """sort of device -> how many are still to be given"""
    _starts: dict[Hashable, int] = field(default_factory=dict)
    """what a taker may have -> how many of the first devices are given, or not for it"""
    _looks: dict[int, Hashable] = field(default_factory=dict)
    """device -> all that takers see of it, as far as asked for"""

    def __post_init__(self) -> None:
        self._is_given = bytearray(len(self.devices))
        self._sorts = [_sort(device) for device in self.devices]
        self._left = Counter(_sort(device) for taker in self.takers for device in taker.devices)

    def deal(self) -> Iterable[Sequence[Device]]:
        """The devices of each taker: those that it has where others would take too long to find."""
        try:
            given = self._search()
        except (_StepsSpent, RecursionError):
            given = None
        if given is None:
            return [taker.devices for taker in self.takers]
        return [[self.devices[number] for number in numbers] for numbers in given]

    def _search(self) -> Sequence[Sequence[int]] | None:
        given: list[Sequence[int]] = []
        choices = [self._choices(self.takers[0])]
        while choices:
            choice = next(choices[-1], None)
            if choice is None:
                choices.pop()
                if given:
                    given.pop()
            else:
                given.append(choice)
                if len(given) == len(self.takers):
                    return given
                choices.append(self._choices(self.takers[len(given)]))
        return None

    def _choices(self, taker: _Taker) -> Iterator[Sequence[int]]:
        """What a taker may have of the free devices, the first ones first; it is given until the next one is asked."""
        start = self._starts.get(taker.kind, 0)
        first = self._first(taker, start)
        self._starts[taker.kind] = first[0] if first else len(self.devices)
        if self._is_enough(taker, first):
            self._give(first)
            yield first
            self._take_back(first)
        for choice in self._combinations(taker, len(taker.devices), start):
            if choice != first and self._is_enough(taker, choice):
                yield choice

    def _is_enough(self, taker: _Taker, numbers: Sequence[int]) -> bool:
        return len(numbers) == len(taker.devices) and taker.accepts([self.devices[number] for number in numbers])

    def _first(self, taker: _Taker, start: int) -> list[int]:
        numbers: list[int] = []
        of_sort: Counter[Hashable] = Counter()
        for number in self._free(taker, start):
            sort = self._sorts[number]
            if of_sort[sort] < self._left[sort]:
                of_sort[sort] += 1
                numbers.append(number)
                if len(numbers) == len(taker.devices):
                    break
        return numbers

    def _free(self, taker: _Taker, start: int) -> Iterator[int]:
        for number in range(start, len(self.devices)):
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise _StepsSpent
            is_free = not self._is_given[number] and self._left[self._sorts[number]]
            if is_free and taker.is_candidate(self.devices[number]):
                yield number

    def _combinations(self, taker: _Taker, count: int, start: int) -> Iterator[list[int]]:
        if not count:
            yield []
            return
        passed: set[Hashable] = set()
        for number in self._free(taker, start):
            if not passed or self._look(number) not in passed:
                self._give([number])
                for others in self._combinations(taker, count - 1, number + 1):
                    yield [number, *others]
                self._take_back([number])
                passed.add(self._look(number))

    def _give(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._is_given[number] = True
            self._left[self._sorts[number]] -= 1

    def _take_back(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._is_given[number] = False
            self._left[self._sorts[number]] += 1
        self._starts.clear()

    def _look(self, number: int) -> Hashable:
        if number not in self._looks:
            device = self.devices[number]
            kinds = {taker.kind: taker for taker in self.takers}
            names = dict.fromkeys(name for taker in self.takers for name in taker.attributes)
            self.steps += len(kinds)
            accepted = tuple([taker.is_candidate(device) for taker in kinds.values()])
            self._looks[number] = self._sorts[number], accepted, tuple([device.values(name) for name in names])
        return self._looks[number]


def _with_devices(placed: Placement, dealt: Mapping[int, Device]) -> Placement:
    entries = [replace(entry, device=dealt.get(entry.device.index, entry.device)) for entry in placed.entries]
    entries.sort(key=lambda entry: (entry.request.detail, entry.device.index))
    return replace(placed, entries=tuple(entries))
