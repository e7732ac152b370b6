"""Units that ask for whole devices and nothing more: a flow decides them, whatever many requests compete."""

from __future__ import annotations

from collections import Counter

from devalloc_solver.place.counting_bounds import can_serve_all
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot

FEW_REQUESTS = 8
"""Requests up to which the search needs no flow to be quick."""
MAX_CANDIDATES = 20_000
"""Candidates of all requests together that are looked at for one node."""


def can_match(snapshot: Snapshot, usage: Usage, unit: PlacementUnit, node: str) -> bool | None:
    """Whether each request of a unit can have devices of its own on a node; None for a unit that asks for more."""
    requests = [*unit.requests]
    candidates = sum(len(request.candidates.accepted) for request in requests)
    if len(requests) <= FEW_REQUESTS or candidates > MAX_CANDIDATES or not all(map(_is_plain, unit.demands)):
        return None
    masks: dict[int, int] = {}
    """free device -> the requests that may take it, as bits"""
    for number, request in enumerate(requests):
        if node in request.candidates.barred or request.candidates.bars:
            return None
        for index in request.candidates.accepted:
            device = snapshot.devices[index]
            place = snapshot.pools[device.pool].node
            if place is None or device.shareable or device.draws or device.compatibility is not None:
                return None
            if place == node and not usage.in_use(device):
                masks[index] = masks.get(index, 0) | 1 << number
    classes = Counter(masks.values())
    entries = [
        (sum(1 << position for position, mask in enumerate(classes) if mask >> number & 1), request.min_count)
        for number, request in enumerate(requests)
    ]
    return can_serve_all(entries, [*classes.values()])


def _is_plain(demand: Demand) -> bool:
    """Whether a demand asks for numbers of whole devices, without a choice and without relations between them."""
    if demand.match or demand.shared or demand.relations:
        return False
    wanted = sum(request.min_count for request in demand.requests)
    return (demand.most is None or wanted <= demand.most) and all(
        len(detail) == 1 and _is_number(detail[0]) for detail in demand.details
    )


def _is_number(request: Request) -> bool:
    return request.takes_whole and not (request.requests or request.match)
