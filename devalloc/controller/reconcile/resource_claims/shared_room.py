"""Which node each of several pods gets that are given devices at once, so that they share the room of nodes.

The solver knows amounts that claims share: those of a device that is taken in portions. So each node has one more
device here, of which its free CPU, memory and so on are the amounts, and what waits takes a portion of it as large as
what its pods take. Of the answer only the nodes count: the devices are then asked for there, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from devalloc.api.quantity import MAX_BASE_UNITS, NANO
from devalloc.api.views import ObjectView
from devalloc.controller.reconcile.resource_claims.node_room import Amounts
from devalloc_solver.deadline import Call
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.manifests import read_documents
from devalloc_solver.dialects.resource_k8s.problem import prepare
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.eligibility.facts import Eligible
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.exact.model import load_solver
from devalloc_solver.pipeline.strategy import search_parts
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, Request
from devalloc_solver.problem.ordering import natural_key
from devalloc_solver.problem.placement_policy import policy_named
from devalloc_solver.problem.snapshot import Device, Pool, Resource, Snapshot, join_pools

Object = dict[str, Any]
Portion = tuple[tuple[str, int], ...]
FreeAmounts = Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """Claims that get devices of one node, all or none, and what their pods take there."""

    documents: tuple[Object, ...]
    """As the solver is asked."""
    amounts: Amounts


def most_at_once(requests: Sequence[Amounts], free: Mapping[str, Mapping[str, int | None]]) -> int:
    """Compute how many of these find room at most, if each took no more of a resource than the least. ``free``: by
    node, as for ``plan_nodes``."""
    most = len(requests)
    for name in {name for amounts in free.values() for name in amounts}:
        least = min(each.get(name, 0) for each in requests)
        amounts = [each[name] for each in free.values()]
        if least:
            most = min(most, sum(len(requests) if each is None else max(0, each) // least for each in amounts))
    return most


def plan_nodes(
    requests: Sequence[RoomRequest],
    supply: Iterable[Object],
    free: Mapping[str, Mapping[str, int | None]],
    *,
    placement: str,
    seconds: float,
) -> list[str]:
    """Choose a node for each request, empty for those that cannot all have one, or were not decided in time.

    Args:
        supply: slices, classes, and claims that have devices.
        free: by node its free amounts by resource; None if there is no limit.
    """
    load_solver()  # or it would have to be done in these seconds
    call = Call(seconds)
    documents = [*supply, *(one for each in requests for one in each.documents)]
    problem = prepare(read_documents(documents, DEFAULT_GATES), DEFAULT_GATES, call)
    snapshot = _with_room(problem.snapshot, free)
    rooms = {device.index: device.resources for device in snapshot.devices[len(problem.snapshot.devices) :]}
    counted = {name for amounts in free.values() for name in amounts}
    portions = {
        _key(each.documents[0]): tuple((name, n) for name, n in sorted(each.amounts.items()) if name in counted)
        for each in requests
    }

    def demand_with_room(demand: Demand) -> Demand:
        portion = portions.get(demand.key)
        if portion is None:
            return demand
        roomy = [index for index, there in rooms.items() if all(n <= there[name].nano for name, n in portion)]
        room = _room_request(len(demand.details), dict.fromkeys(roomy, portion))
        shape = None if demand.shape is None else (demand.shape, portion)
        return replace(demand, details=(*demand.details, (room,)), most=(demand.most or 0) + 1, shape=shape)

    units = [replace(unit, demands=tuple(map(demand_with_room, unit.demands))) for unit in problem.units]
    policy, ends = policy_named(placement), call.search_end()
    placed = search_parts(snapshot, problem.allocations, units, policy=policy, ends=ends).placements
    nodes = {one.demand.key: one.node or "" for one in placed}
    return [min(nodes.get(_key(one), "") for one in each.documents) for each in requests]


def _key(claim: Object) -> tuple[str, str]:
    return ObjectView(claim).key


def _with_room(snapshot: Snapshot, free: Mapping[str, FreeAmounts]) -> Snapshot:
    """The snapshot with a device on each node that has its free amounts, to be taken in portions."""
    most, pools = MAX_BASE_UNITS * NANO, [*snapshot.pools]
    for index, (node, amounts) in enumerate(free.items(), len(snapshot.devices)):
        there = {name: Resource(1, most if n is None else min(max(0, n), most)) for name, n in amounts.items()}
        room = Device(index, len(pools), "room", {}, there, (), None, shareable=True)
        pools.append(Pool(room.pool, node, "", "", {}, (room,)))
    return join_pools(pools, sorted({*snapshot.nodes, *free}, key=natural_key))


def _room_request(detail: int, portions: Mapping[int, Portion]) -> Request:
    """A request for a portion of one of these devices."""
    return Request(
        detail=detail,
        alternative=None,
        spec=None,
        mode=AllocationMode.WHOLE,
        min_count=1,
        max_count=1,
        requests={},
        limits={},
        match=(),
        candidates=Candidates(dict.fromkeys(portions), ()),
        eligible=Eligible(Judge(selector_language(DEFAULT_GATES)), None, ()),
        portions=portions,
    )
