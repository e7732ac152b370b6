"""How much of a node comes into use at least by a claim that is placed there, to spread (S17, goal 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from devalloc_solver.problem.demand import AllocationMode, Demand, Request
from devalloc_solver.problem.loads import PoolScale
from devalloc_solver.problem.snapshot import Device

ROUNDING = 2
"""What a share beside others may add less than on a device of its own, since loads are whole numbers."""

DevicesOf = Callable[[Request], Iterable[tuple[int, Device, PoolScale | None]]]
"""The candidates of a request, each by its number there and with the scale of its pool; None for that of the network,
which is of no node."""


def least_load(demands: Iterable[Demand], devices_of: DevicesOf) -> int:
    """No placement of these claims adds less to a node."""
    details = [
        min((least for request in detail if (least := least_of(request, devices_of(request))) is not None), default=0)
        for demand in demands
        for detail in demand.details
    ]
    return sum(details)


def least_of(request: Request, devices: Iterable[tuple[int, Device, PoolScale | None]]) -> int | None:
    """The same of one request on devices; None where there are none."""
    if request.mode.is_admin:
        return 0
    least: int | None = None
    shares = request.mode is AllocationMode.SHARE
    for number, device, scale in devices:
        if scale is None:
            more = 0
        elif device.shareable or shares:
            amounts = dict(request.portions.get(number, ())) if device.shareable else request.requests
            more = max(0, scale.load(device, amounts) - ROUNDING)
        else:
            more = scale.whole(device.draws)
        if least is None or more < least:
            least = more
            if not least:
                break
    return None if least is None else least * (1 if shares else request.min_count)
