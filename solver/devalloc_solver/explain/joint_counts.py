"""What requests lack together, although each of them has enough devices on its own: counts that prove it (S19)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

from devalloc.api.findings import Cause, Fact, fact
from devalloc.api.quantity import Format, sum_text
from devalloc_solver.problem.demand import AllocationMode, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Snapshot

MAX_SETS = 16
"""Different sets of matching devices that are compared with each other."""
MAX_NAMED = 3
"""Requests that a cause names."""
_TOO_MANY = 1 << 30
_ALL = (AllocationMode.EVERY, AllocationMode.ADMIN_ALL)

Detail = tuple[Request, ...]


def best_on_node(
    snapshot: Snapshot, devices: Iterable[int], pin: str | None, count: Callable[[Sequence[int]], int]
) -> int | None:
    """The highest count of these devices on one node, or on node ``pin``; None if no node has any. Devices of the
    network count wherever a claim may be, also where no pool names a node."""
    groups: dict[frozenset[str], list[int]] = defaultdict(list)
    own = {pool.index: frozenset((pool.node,)) for pool in snapshot.pools if pool.node is not None}
    everywhere = frozenset(snapshot.nodes if pin is None else (pin,)) or frozenset(("",))
    for index in devices:
        device = snapshot.devices[index]
        groups[own.get(device.pool, everywhere if device.reach is None else device.reach)].append(index)
    reached: dict[str, list[frozenset[str]]] = defaultdict(list)
    """node -> keys of the groups that it reaches: the devices of many nodes are not listed for each of them"""
    for nodes in groups:
        for node in nodes if pin is None else nodes & {pin}:
            reached[node].append(nodes)
    keys = dict.fromkeys(map(tuple, reached.values()))
    return max((count([*chain.from_iterable(map(groups.__getitem__, key))]) for key in keys), default=None)


def excess(snapshot: Snapshot, unit: PlacementUnit) -> Fact | None:
    """That a claim would get more devices than it can have, wherever it goes; None if counting does not show it."""
    for demand in unit.demands:
        if demand.most is None or not any(request.mode in _ALL for request in demand.requests):
            continue  # what is asked for by number was counted before
        devices = {index for request in demand.requests for index in request.candidates.accepted}
        fewest = best_on_node(snapshot, devices, unit.pin, lambda some, of=demand: -_fewest(of, some))  # type: ignore[misc]
        if fewest is not None and demand.most < -fewest < _TOO_MANY:
            return fact(Cause.TOO_MANY, limit=demand.most, count=-fewest)
    return None


def _fewest(demand: Demand, here: Collection[int]) -> int:
    """The fewest devices that a claim would get of these, as far as counting tells."""
    total = 0
    for detail in demand.details:
        counts = [_count(request, here) for request in detail]
        total += min((count for count in counts if count), default=_TOO_MANY)
    return total


def _count(request: Request, here: Collection[int]) -> int:
    if request.mode not in _ALL:
        return request.min_count
    return sum(index in request.candidates.accepted for index in here)


def competition(
    snapshot: Snapshot, unit: PlacementUnit, request_ref: Callable[[Request], Mapping[str, str]]
) -> Fact | None:
    """That requests want more devices together than match any of them; None if counting does not show it."""
    details = [
        detail for demand in unit.demands for detail in demand.details if all(request.takes_whole for request in detail)
    ]
    sets: dict[frozenset[int], list[Detail]] = {}
    by_identity: dict[tuple[int, ...], frozenset[int]] = {}
    for detail in details:
        key = tuple(id(request.candidates) for request in detail)
        if key not in by_identity:
            by_identity[key] = frozenset().union(*(request.candidates.accepted for request in detail))
        sets.setdefault(by_identity[key], []).append(detail)
    if len(details) < 2:
        return None
    union = frozenset[int]().union(*sets)
    compared = {*sets, union} if len(sets) <= MAX_SETS else {union}
    for devices in sorted(compared, key=lambda one: (len(one), min(one, default=0))):
        inside = [detail for own, same in sets.items() if own <= devices for detail in same]
        wanted = sum(min(request.min_count for request in detail) for detail in inside)
        most = best_on_node(snapshot, devices, unit.pin, len) or 0
        if len(inside) > 1 and most < wanted:
            refs = [request_ref(detail[0]) for detail in details if detail in inside]
            names = [ref["request"].partition("/")[0] for ref in refs]
            is_few = len({*names}) == len(names) <= MAX_NAMED
            return fact(
                Cause.COMPETITION,
                requests=names if is_few else None,
                paths=[ref["path"] for ref in refs if "path" in ref] or None if is_few else None,
                count=len(inside),
                wanted=wanted,
                most=str(most),
                node=unit.pin,
            )
    return None


def amounts_together(snapshot: Snapshot, unit: PlacementUnit) -> Fact | None:
    """That amounts come to more than the devices of any node have; None if counting does not show it."""
    wanted: dict[str, list[tuple[int, Detail]]] = defaultdict(list)
    for detail in (detail for demand in unit.demands for detail in demand.details):
        for name, nano in _least_amounts(detail).items():
            wanted[name].append((nano, detail))
    for name in sorted(name for name, amounts in wanted.items() if len(amounts) > 1):
        number, needed = len(wanted[name]), sum(nano for nano, _ in wanted[name])
        requests = {id(one): one for _, detail in wanted[name] for one in detail}.values()
        devices = set[int]().union(*{id(one.candidates): one.candidates.accepted for one in requests}.values())

        def total(some: Sequence[int], of: str = name) -> int:
            resources = (snapshot.devices[index].resources.get(of) for index in some)
            return sum(resource.nano for resource in resources if resource is not None)

        most = best_on_node(snapshot, devices, unit.pin, total) or 0
        if most < needed:
            texts = [sum_text(nano, quantity_format(nano)) for nano in (needed, most)]
            return fact(Cause.AMOUNTS, count=number, resource=name, wanted=texts[0], most=texts[1], node=unit.pin)
    return None


def _least_amounts(detail: Detail) -> dict[str, int]:
    """resource -> the least that one of the alternatives takes of its devices; of no request for admin access."""
    if any(request.mode.is_admin for request in detail):
        return {}
    amounts = [_portion(request) if request.portions else dict(request.requests) for request in detail]
    names = set(amounts[0]).intersection(*amounts[1:]) if amounts else set[str]()
    return {name: least for name in names if (least := min(each[name] for each in amounts))}


def _portion(request: Request) -> dict[str, int]:
    """The same of a request for a portion of each device: as many as are wanted, each as small as any. Nothing if it
    may have a whole one."""
    if not request.candidates.accepted.keys() <= request.portions.keys():
        return {}
    portions = [dict(portion) for portion in request.portions.values()]
    names = set(portions[0]).intersection(*portions[1:])
    return {name: request.min_count * min(portion[name] for portion in portions) for name in names}


def quantity_format(nano: int) -> Format:
    """Binary suffixes for what is a multiple of 1Mi, as memory is."""
    return Format.BINARY_SI if nano and nano % (2**20 * 10**9) == 0 else Format.DECIMAL_SI
