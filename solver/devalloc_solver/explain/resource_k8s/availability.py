"""How many devices a request can have at most, on the node that has the most, and who holds the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice
from devalloc_solver.explain.funnel import (
    NO_USERS,
    SHOWN,
    Funnel,
    FunnelCounter,
    Users,
    count_devices,
    describe_missing,
    has_room_for,
)
from devalloc_solver.problem.allocations import Allocation, Key
from devalloc_solver.problem.demand import AllocationMode, Constraint, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot


@dataclass(slots=True)
class Availability:
    """Counts devices; of those in use, by whom."""

    snapshot: Snapshot
    offers: Sequence[PublishedDevice]
    held: Sequence[Allocation]
    _counter: FunnelCounter = field(init=False)

    def __post_init__(self) -> None:
        self._counter = FunnelCounter(self.snapshot, self.held)

    def count(self, request: Request, *, with_users: bool) -> Funnel:
        """``with_users``: whether anything is asked of those who hold devices."""
        return self._counter.make(request)

    def funnel(self, request: Request) -> dict[str, Any]:
        """As JSON."""
        return self.count(request, with_users=False).to_dict(request.spec.subrequest.name, with_users=False)

    def users(self, request: Request) -> Users:
        """Who has devices for a request, and how many, such as "default/a (2)"."""
        if request.mode.is_admin:
            return NO_USERS
        _, first, users = self.taken(request)
        return [f"{'/'.join(claim)} ({count})" for claim, count in first], users

    def errors(self, requests: Iterable[Request]) -> Sequence[str]:
        """The devices that could not be judged for these requests."""
        return sorted({error for request in requests for error in request.spec.verdict.errors})

    def taken(self, request: Request) -> tuple[int, Sequence[tuple[Key, int]], int]:
        """(devices for a request that are in use, the first SHOWN of those who have most of them, how many have any)"""
        funnel = self.count(request, with_users=True)
        return funnel.in_use, funnel.holders[:SHOWN], len(funnel.holders)

    def shortage(self, unit: PlacementUnit, request: Request, *, is_empty: bool) -> str:
        """Such as "no node has 4 free devices for request r (at most 3)"; empty when counting does not show it."""
        best = self.most(unit, request, is_empty=is_empty) if counts_devices(request) else request.min_count
        if best >= request.min_count:
            return ""
        wanted = count_devices(request.min_count, "" if is_empty else "free ")
        return describe_missing(unit.pin, f"{wanted} for request {request.spec.subrequest.name}", best)

    def most(self, unit: PlacementUnit, request: Request, *, is_empty: bool) -> int:
        """The most devices for a request that one node has, free or not (``is_empty``)."""
        accepted = request.candidates.accepted
        devices = [i for i in accepted if is_empty or has_room_for(request, self.snapshot, i, self._counter.usage)]
        return self._best(unit, devices, len)

    def having(self, request: Request, name: str) -> tuple[int, int]:
        """(devices for a request that have a value of an attribute, all devices for it)"""
        accepted = request.candidates.accepted
        return sum(bool(self.snapshot.devices[index].values(name)) for index in accepted), len(accepted)

    def disagreement(self, unit: PlacementUnit) -> str:
        """Such as "no node has 3 devices with one `d/numa` value for request r (at most 2)"; empty as above."""
        for demand in unit.demands:
            for relation in demand.relations:
                alone = (detail[0] for detail in demand.details if len(detail) == 1)
                for request in (request for request in alone if request.label in relation.labels):
                    if counts_devices(request) and (text := self._disagreement(unit, relation, request)):
                        return text
        names = dict.fromkeys(relation.attribute for demand in unit.demands for relation in demand.relations)
        which = f" on {' and '.join(f'`{name}`' for name in names)}" if names else ""
        return f"no combination of devices satisfies the constraints{which}"

    def _disagreement(self, unit: PlacementUnit, relation: Constraint, request: Request) -> str:
        values = {i: self.snapshot.devices[i].values(relation.attribute) for i in request.candidates.accepted}
        having = [index for index, own_values in values.items() if own_values]
        name = f"`{relation.attribute}`"
        if relation.distinct:

            def count(some: Sequence[int]) -> int:
                return len(frozenset().union(*(values[index] for index in some)))

            what = f"all different in {name}"
        else:

            def count(some: Sequence[int]) -> int:
                counts = Counter(value for index in some for value in values[index])
                return max(counts.values(), default=0)

            what = f"with one {name} value"
        best = self._best(unit, having, count)
        if best >= request.min_count:
            return ""
        there, total = self.having(request, relation.attribute)
        without = f", {total - there} of {total} have no {name}" if there < total else ""
        wanted = f"{count_devices(request.min_count)} {what} for request {request.spec.subrequest.name}"
        return describe_missing(unit.pin, wanted, f"{best}{without}")

    def _best(self, unit: PlacementUnit, devices: Iterable[int], count: Callable[[Sequence[int]], int]) -> int:
        """The most that one node has, or the node that is allowed."""
        groups: dict[frozenset[str], list[int]] = defaultdict(list)
        for index in devices:
            groups[self.offers[index].nodes].append(index)
        by_node: dict[str, list[int]] = defaultdict(list)
        for nodes, some in groups.items():
            for node in nodes:
                by_node[node] += some
        return max((count(some) for node, some in by_node.items() if unit.pin in (None, node)), default=0)


def counts_devices(request: Request) -> bool:
    """Whether it takes so many devices."""
    return request.mode in (AllocationMode.WHOLE, AllocationMode.ADMIN_COUNT)
