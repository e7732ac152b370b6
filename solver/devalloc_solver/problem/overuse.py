"""Devices and resources that are allocated more often, or to a larger amount, than they exist.

No decision of this solver causes it. A forged or restored status, a late write or a bug does, and users must notice.
The solver takes no device from a claim because of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from devalloc.api.findings import AT_LENGTH, Cause, Fact, Finding, claim_ref, fact, first_of, message_of
from devalloc.api.owner_names import owner_of
from devalloc.api.problems import Problem
from devalloc_solver.problem.allocations import Holding
from devalloc_solver.problem.snapshot import Snapshot

Claim = tuple[str, ...]
"""What names a claim; namespace and name are the last parts."""
D = TypeVar("D", bound=Hashable)
"""What names a device."""
P = TypeVar("P", bound=Hashable)
"""What names a pool. A counter is a pool and the name of a resource that its devices draw on."""
Amounts = Mapping[str, int]
"""Nano units of each resource."""


@dataclass(frozen=True, slots=True)
class DeviceHold(Generic[D]):
    """A device that a claim holds: all of it when ``amounts`` is None. Admin access holds nothing."""

    claim: Claim
    device: D
    amounts: Amounts | None


@dataclass(frozen=True, slots=True)
class Overuse(Generic[D]):
    """Claims that hold more together than there is."""

    devices: tuple[D, ...]
    claims: tuple[Claim, ...]
    """In order; one alone may hold more of a device than it has."""
    resource: str | None = None
    """Of what there is too little; None for a device that is held whole and has several owners."""
    is_of_pool: bool = False
    """The resource is one that the devices of a pool draw on."""


def find_overuse(
    holds: Iterable[DeviceHold[D]],
    capacity: Callable[[D], Amounts],
    draws: Callable[[D], Iterable[tuple[tuple[P, str], int]]],
    total: Callable[[tuple[P, str]], int | None],
) -> list[Overuse[D]]:
    """All that is held by more than there is of it, in the order of the claims that hold it, not of the documents.

    ``capacity``: what shares of a device take from, as far as it is known. ``draws``: what a device that is in use
    takes of its pool, and ``total`` how much of that there is, None if it is not known.
    """
    by_device: dict[D, list[DeviceHold[D]]] = defaultdict(list)
    for hold in sorted(holds, key=lambda hold: hold.claim):
        by_device[hold.device].append(hold)
    return [*_of_devices(by_device, capacity), *_of_pools(by_device, draws, total)]


def _of_devices(by_device: Mapping[D, list[DeviceHold[D]]], capacity: Callable[[D], Amounts]) -> Iterator[Overuse[D]]:
    for device, held in by_device.items():
        owners = _owners(held)
        if len(owners) > 1 and any(hold.amounts is None for hold in held):
            yield Overuse((device,), owners)
            continue
        used: dict[str, int] = defaultdict(int)
        for hold in held:
            for name, amount in (hold.amounts or {}).items():
                used[name] += amount
        there = capacity(device) if used else {}
        short = next((name for name in sorted(used) if name in there and used[name] > there[name]), None)
        if short is not None:
            yield Overuse((device,), owners, short)


def _of_pools(
    by_device: Mapping[D, list[DeviceHold[D]]],
    draws: Callable[[D], Iterable[tuple[tuple[P, str], int]]],
    total: Callable[[tuple[P, str]], int | None],
) -> Iterator[Overuse[D]]:
    """A device draws once, however many shares of it there are."""
    drawn: dict[tuple[P, str], int] = defaultdict(int)
    drawing: dict[tuple[P, str], list[D]] = defaultdict(list)
    for device in by_device:
        for counter, amount in draws(device):
            drawn[counter] += amount
            drawing[counter].append(device)
    overuses: dict[tuple[D, ...], Overuse[D]] = {}
    for counter, amount in drawn.items():
        there = total(counter)
        if there is not None and amount > there and (devices := tuple(drawing[counter])) not in overuses:
            owners = _owners(hold for device in devices for hold in by_device[device])
            overuses[devices] = Overuse(devices, owners, counter[1], is_of_pool=True)
    yield from overuses.values()


def _owners(held: Iterable[DeviceHold[D]]) -> tuple[Claim, ...]:
    return tuple(sorted({hold.claim for hold in held}))


# -- as data -----------------------------------------------------------------------------------------------------------


def overuse_cause(
    overuse: Overuse[D], device: Callable[[D], str], holder: Callable[[Claim], Mapping[str, Any]]
) -> Fact:
    """What is held, and by whom."""
    titles = [*dict.fromkeys(map(device, overuse.devices))]  # a device and its ghost have one
    holders = {tuple(sorted(ref.items())): ref for ref in map(holder, overuse.claims)}  # parts of a machine have one
    held = first_of("devices", titles, more="moreDevices") | first_of("holders", [*holders.values()])
    if overuse.resource is None:
        return fact(Cause.SEVERAL_OWNERS, **held)
    return fact(Cause.OVER_DRAWN if overuse.is_of_pool else Cause.OVER_COMMITTED, **held, resource=overuse.resource)


def overuse_problems(overuses: Iterable[Overuse[D]], kind: str, device: Callable[[D], str]) -> Iterator[Problem]:
    """One of each claim that is concerned."""
    for overuse in overuses:
        cause = overuse_cause(overuse, device, lambda claim: claim_ref((claim[-2], claim[-1])))
        message = message_of(Finding([cause]), AT_LENGTH)
        for of, namespace, name in dict.fromkeys(owner_of((claim[-2], claim[-1]), kind) for claim in overuse.claims):
            yield Problem(
                message, path="status", kind=of, namespace=namespace, name=name, severity="warning", cause=cause
            )


# -- of a snapshot -----------------------------------------------------------------------------------------------------


def overuse_of_allocations(snapshot: Snapshot, allocations: Iterable[Holding]) -> list[Overuse[int]]:
    """The same of allocations; devices are their numbers. What a claim may hold, but need not, raises no alarm."""
    devices, pools = snapshot.devices, snapshot.pools

    def draws(index: int) -> Iterator[tuple[tuple[int, str], int]]:
        return (((devices[index].pool, name), blocks) for name, blocks in devices[index].draws)

    def total(counter: tuple[int, str]) -> int | None:
        resource = pools[counter[0]].resources.get(counter[1])
        return None if resource is None else resource.blocks

    return find_overuse(
        (DeviceHold(one.owner, i.device, i.sums) for one in allocations for i in one.items if i.is_certain),
        lambda index: {name: resource.nano for name, resource in devices[index].resources.items()},
        draws,
        total,
    )


def device_title(snapshot: Snapshot, index: int) -> str:
    device = snapshot.devices[index]
    return f"{snapshot.pools[device.pool].name}/{device.name}"
