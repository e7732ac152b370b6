"""The funnels of a whole fleet, counted from its kinds of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

from devalloc_solver.dialects.device_claims.candidates import CandidateFinder
from devalloc_solver.explain.funnel import MAX_USERS, SHOWN, Funnel, has_room_for
from devalloc_solver.fleet.device_kinds import DeviceKind
from devalloc_solver.fleet.fleet_stats import DevicePosition, FleetStats
from devalloc_solver.fleet.pool_states import NodeRecord, PoolState
from devalloc_solver.problem.allocations import Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Request

StepKey = tuple[int, str]
"""(stage, what)"""


@dataclass(slots=True)
class KindFunnels:
    """Makes funnels; see ``funnel.Counts``. For one state of the fleet."""

    census: FleetStats
    eligibility: CandidateFinder
    """judges one device of each kind, as ``Kinds.sample`` has them"""

    def make(self, request: Request) -> Funnel:
        """The funnel of a request of any part of the fleet."""
        sample = self.eligibility.snapshot
        sizes, firsts = self.sizes(), self.firsts()
        rejected: dict[StepKey, list[DeviceKind]] = defaultdict(list)
        examples: dict[StepKey, list[DevicePosition]] = defaultdict(list)
        accepted: set[int] = set()
        without: list[DeviceKind] = []
        nothing = Usage(sample)
        for kind in self.parts():
            if not sizes.get(kind.index):
                continue
            mismatch = self.eligibility.mismatch(request.spec, sample.devices[kind.index])
            if mismatch is not None:
                rejected[mismatch.stage, mismatch.what].append(kind)
                if mismatch.example:
                    examples[mismatch.stage, mismatch.what].append(firsts[kind.index][0])
            elif has_room_for(request, sample, kind.index, nothing):
                accepted.add(kind.index)
            else:
                without.append(kind)
        steps = []
        for (stage, what), kinds in sorted(rejected.items(), key=lambda item: _order(item[0], item[1], sizes)):
            example = self._example(request, examples[stage, what])
            steps.append((what, sum(sizes[k.index] for k in kinds), self._names(kinds), example))
        if without:
            count = sum(sizes[kind.index] for kind in without)
            steps.append(
                (f"have no {' or '.join(sorted(request.requests))} to share", count, self._names(without), None)
            )
        matching = sum(sizes[kind] for kind in accepted)
        taken = 0 if request.mode.is_admin else self.taken(request, accepted)
        holders = self.holders(request, accepted) if taken else ()
        excluded = 0 if request.mode.is_admin else self.excluded(accepted)
        free = matching - taken - excluded
        return Funnel(request, sum(sizes.values()), tuple(steps), matching, holders, taken, excluded, free)

    def parts(self) -> Sequence[DeviceKind]:
        """All devices, in parts that are judged alike."""
        return self.census.index.kinds.kinds

    def sizes(self) -> Mapping[int, int]:
        """part -> devices"""
        return self.census.sizes()

    def firsts(self) -> Mapping[int, Sequence[DevicePosition]]:
        """part -> its first devices in natural order"""
        return self.census.firsts()

    # -- names ---------------------------------------------------------------------------------------------------------

    def _names(self, kinds: Sequence[DeviceKind]) -> tuple[str, ...]:
        """The first devices of these kinds."""
        firsts = self.firsts()
        return tuple(self._title(place) for place in islice(merge(*(firsts[kind.index] for kind in kinds)), SHOWN))

    def _title(self, place: DevicePosition) -> str:
        record = self.census.record(place[0])
        device = record.snapshot.devices[place[1]]
        return f"{record.snapshot.pools[device.pool].name}/{device.name}"

    def _example(self, request: Request, places: Sequence[DevicePosition]) -> str | None:
        """Why the first device is rejected, in its own values."""
        if not places:
            return None
        first = min(places)
        record = self.census.record(first[0])
        device = record.snapshot.devices[first[1]]
        sample = self.eligibility.snapshot.devices[first[2]]
        same = type(device)(
            sample.index, sample.pool, device.name, device.attributes, device.resources, device.draws, device.undefined
        )
        mismatch = self.eligibility.mismatch(request.spec, same)
        return None if mismatch is None or not mismatch.example else f"{self._title(first)}: {mismatch.example}"

    # -- in use --------------------------------------------------------------------------------------------------------

    def taken(self, request: Request, accepted: set[int]) -> int:
        """Devices of these kinds of which the request can have nothing now."""
        taken = self.census.used(accepted)
        if taken and request.mode is AllocationMode.SHARE:
            shared = ((state, count) for state, count in self.census.states() if state.shared)
            taken -= sum(count * _devices_with_room(request, state, accepted) for state, count in shared)
        return taken

    def excluded(self, accepted: set[int]) -> int:
        """Free devices of these kinds that cannot be had, because others have what they need of the pool."""
        return self.census.excluded(accepted)

    def holders(self, request: Request, accepted: set[int]) -> tuple[tuple[Key, int], ...]:
        """Who holds them: the first ones, and as many nameless ones as there are more."""
        if request.mode is AllocationMode.SHARE:
            return self._holders_of_shared(request, accepted)
        listed, users = self.census.holders_of(accepted, MAX_USERS)
        return (*listed, *((_UNNAMED,) * (users - len(listed))))

    def _holders_of_shared(self, request: Request, accepted: set[int]) -> tuple[tuple[Key, int], ...]:
        index = self.census.index
        taken: dict[tuple[str | None, int], bool] = {}
        users: dict[Any, int] = defaultdict(int)
        for key, items in index.held.items():
            for node, device, _ in items:
                record = index.network if node is None else index.records[node]
                assert record is not None
                if record.kinds[device].index not in accepted:
                    continue
                if (node, device) not in taken:
                    taken[node, device] = not _has_room(request, record, device)
                if taken[node, device]:
                    users[key] += 1
        return tuple(sorted(users.items(), key=lambda item: (-item[1], item[0])))


def _order(step: StepKey, kinds: Sequence[DeviceKind], sizes: Mapping[int, int]) -> tuple[int, int, str]:
    return step[0], -sum(sizes[kind.index] for kind in kinds), step[1]


_UNNAMED: tuple[Key, int] = (("", ""), 0)


def _devices_with_room(request: Request, state: PoolState, kinds: Collection[int]) -> int:
    """Devices of these kinds that are in use, and have something left for a request that shares."""
    own = ((state.kind.kinds[group], use) for group, use in state.shared)
    return sum(
        not whole and _has_room_left(request, kind, dict(amounts))
        for kind, (whole, amounts) in own
        if kind.index in kinds
    )


def _has_room(request: Request, record: NodeRecord, device: int) -> bool:
    pool = record.snapshot.devices[device].pool
    use = record.uses[pool][device - record.starts[pool]]
    return not use.whole and _has_room_left(request, record.kinds[device], use.amounts)


def _has_room_left(request: Request, kind: DeviceKind, used: Mapping[str, int]) -> bool:
    for name in request.requests:
        resource = kind.one.resources.get(name)
        if resource is not None and (resource.nano - used.get(name, 0)) // resource.block > 0:
            return True
    return False
