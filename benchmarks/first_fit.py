"""A plain first fit: what is measured beside the solver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from devalloc_solver.dialects.device_claims.problem import DeviceClaimProblem
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import AllocationMode, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot


def first_fit(prepared: DeviceClaimProblem) -> dict[int, int]:
    """priority -> claims that the first node has room for, claim by claim: no score, nothing is moved.

    Within a node the first devices that fit are taken, the values to match in being tried in turn. Only for what
    `scenario` asks: whole devices, and attributes to match.
    """
    snapshot = prepared.snapshot
    usage = Usage.of(snapshot, prepared.allocations)
    free = {device.index for device in snapshot.devices if not usage.in_use(device)}
    satisfied = {demand.claim.priority: 0 for unit in prepared.units for demand in unit.demands}
    for unit in prepared.units:
        chosen = next(
            (devices for node in snapshot.nodes if (devices := _fit(snapshot, usage, free, unit, node))), None
        )
        if chosen is None:
            continue
        for device in chosen:
            free.discard(device.index)
            usage.whole.add(device.index)
            for name, blocks in device.draws:
                usage.drawn[device.pool][name] += blocks
        satisfied[unit.demands[0].claim.priority] += 1
    return satisfied


def _fit(snapshot: Snapshot, usage: Usage, free: set[int], unit: PlacementUnit, node: str) -> list[Device] | None:
    demand = unit.demands[0]
    pools = snapshot.pools_by_node[node]
    values: list[object] = [None]
    if demand.match:
        values = list(dict.fromkeys(d.attributes.get(demand.match[0]) for pool in pools for d in pool.devices))
    for value in values:
        taken: list[Device] = []
        for alternatives in demand.details:
            for request in alternatives:
                devices = _take(usage, free, pools, request, demand.match[0] if demand.match else None, value, taken)
                if devices:
                    taken += devices
                    break
            else:
                break
        else:
            return taken
    return None


def _take(
    usage: Usage,
    free: set[int],
    pools: Sequence[Pool],
    request: Request,
    match: str | None,
    value: object,
    taken: Sequence[Device],
) -> list[Device] | None:
    assert request.mode is AllocationMode.WHOLE
    names = {device.index for device in taken}
    fitting: dict[object, list[Device]] = {}
    drawn = Counter({(d.pool, name): blocks for d in taken for name, blocks in d.draws})
    for pool in pools:
        for device in pool.devices:
            if device.index not in free or device.index in names or device.index not in request.candidates.accepted:
                continue
            if match is not None and device.attributes.get(match) != value:
                continue
            if any(drawn[device.pool, n] + b > usage.free_pool_blocks(device.pool, n) for n, b in device.draws):
                continue
            group = fitting.setdefault(device.attributes.get(request.match[0]) if request.match else None, [])
            group.append(device)
            if len(group) == request.min_count:
                return group
    return None
