"""Relaxations of the supply: pool resources, compatibility groups, and devices that are withheld (S6a, S12, S12a)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from devalloc.api.cordon import unschedulable_reasons
from devalloc.api.quantity import sum_text
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.joint_counts import quantity_format
from devalloc_solver.explain.relaxations import Relaxation, RelaxedQuestion, drop_unneeded
from devalloc_solver.problem.allocations import AllocatedDevice, Holding, Key, Usage
from devalloc_solver.problem.demand import AllocationMode, Candidates, Demand, PlacementUnit, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Device, Pool, Snapshot

DetailKey = tuple[Key, int]
"""(claim, detail)"""
_MAX_DEVICES_WEIGHED = 20_000
"""Devices that may be looked at for what one detail has left out: a number at once, beyond that any will do."""


@dataclass(frozen=True, slots=True, eq=False)
class _DetailPart:
    """A detail as it was served without limits, as so many devices that may be left out one by one."""

    where: DetailKey
    request: Request
    weight: int
    """what the lightest candidate draws, in thousandths of its pool's resources"""

    @property
    def is_divisible(self) -> bool:
        """Whether two requests for some of its devices each are as good as one for all."""
        request = self.request
        return request.mode is AllocationMode.WHOLE and not (
            request.requests or request.limits or request.match or request.portions
        )

    @property
    def count(self) -> int:
        """1 where it is served all or none."""
        return self.request.min_count if self.is_divisible else 1

    def split(self, used: int, taken: Sequence[int], chosen: Sequence[int] | None) -> Iterator[Request]:
        """One request for what is kept, of the devices ``taken`` for it, and one for what is left out."""
        if used:
            yield self.of(used, taken)
        if used < self.count:
            yield self.of(self.count - used, chosen)

    def of(self, count: int, devices: Sequence[int] | None = None) -> Request:
        """The request for some of its devices, to be taken of these only."""
        request = self.request if count == self.count else replace(self.request, min_count=count, max_count=count)
        if devices is None:
            return request
        accepted = {index: request.candidates.accepted[index] for index in devices}
        return replace(request, candidates=replace(request.candidates, accepted=accepted))


def minimal_overcommit(
    question: FeasibilityQuestion, free: FeasibilityQuestion, placed: Sequence[Placement], finder: FeasibilityChecker
) -> Sequence[Placement]:
    """Placements of the same alternatives on the same node as ``placed``, and ``placed`` where there is nothing better.

    ``free`` is the question without the limits, and ``placed`` answers it. The question itself has no answer.
    """
    node = placed[0].node
    question, free = question.pinned(node), free.pinned(node)
    parts = _parts(question, placed)
    best = _place_most(question, parts, finder)
    if best is None:
        return placed
    count, placements = best
    counts = _first_devices(parts, count)
    taken: dict[DetailKey, list[int]] = defaultdict(list)
    for placement in placements:
        for entry in placement.entries:
            taken[placement.demand.key, entry.request.detail].append(entry.device.index)
    light = _least_excess(question, [placement.holding() for placement in placements], parts, counts)
    for chosen in (light, {}):
        requests = {
            part.where: [*part.split(counts[part.where], taken[part.where], chosen.get(part.where))] for part in parts
        }
        answer = finder.probe(_with_parts(free, requests), any_will_do=True)
        if answer is not None:
            return answer
    return placed


def _parts(question: FeasibilityQuestion, placements: Sequence[Placement]) -> list[_DetailPart]:
    """The details, those that draw nothing first, then those that draw most."""
    served = {(p.demand.key, e.request.detail): e.request for p in placements for e in p.entries}
    devices = question.snapshot.devices
    parts = []
    weights: dict[int, int] = {}
    """accepted devices, by identity -> weight of the lightest"""
    for demand in question.unit.demands:
        for detail in demand.details:
            request = served.get((demand.key, detail[0].detail), detail[0])
            accepted = request.candidates.accepted
            if id(accepted) not in weights:
                weights[id(accepted)] = min((_weight(question, devices[index]) for index in accepted), default=0)
            parts.append(_DetailPart((demand.key, request.detail), request, weights[id(accepted)]))
    return sorted(parts, key=lambda part: (part.weight > 0, -part.weight))


def _weight(question: FeasibilityQuestion, device: Device) -> int:
    resources = question.snapshot.pools[device.pool].resources
    return sum(1000 * blocks // max(1, resources[name].blocks) for name, blocks in device.draws)


def _place_most(
    question: FeasibilityQuestion, parts: Sequence[_DetailPart], finder: FeasibilityChecker
) -> tuple[int, Sequence[Placement]] | None:
    """Many devices, counted from the first part on, that fit within the limits, and where they go.

    Leaving out twice as many each time: what is left out and fits all the same is seen to later.
    """
    total = sum(part.count for part in parts)
    left_out = 1
    while left_out < total:
        counts = _first_devices(parts, total - left_out)
        requests = {part.where: [part.of(counts[part.where])] if counts[part.where] else [] for part in parts}
        answer = finder.probe(_with_parts(question, requests), any_will_do=True)
        if answer is not None:
            return total - left_out, answer
        left_out *= 2
    return None


def _first_devices(parts: Sequence[_DetailPart], count: int) -> dict[DetailKey, int]:
    """How many devices of each part are among so many, from the first part on."""
    counts = {}
    for part in parts:
        counts[part.where] = min(part.count, count)
        count -= counts[part.where]
    return counts


def _with_parts(question: FeasibilityQuestion, requests: Mapping[DetailKey, Sequence[Request]]) -> FeasibilityQuestion:
    """The question with each detail replaced by a detail for each of these requests."""

    def change(demand: Demand) -> Demand | None:
        details = [(request,) for detail in demand.details for request in requests[demand.key, detail[0].detail]]
        return replace(demand, details=tuple(details), shape=None) if details else None

    return question.with_demands(change)


def _least_excess(
    question: FeasibilityQuestion,
    placed: Sequence[Holding],
    parts: Sequence[_DetailPart],
    counts: Mapping[DetailKey, int],
) -> dict[DetailKey, list[int]]:
    """For the devices of divisible parts that are left out, one by one: the one that adds least to what falls short."""
    snapshot = question.snapshot
    usage = Usage.of(snapshot, (*question.held, *placed))
    short: set[tuple[int, str]] = set()
    lightest: dict[DetailKey, list[int]] = {}

    def missing(device: Device) -> list[tuple[int, str]]:
        pool = device.pool
        return [(pool, name) for name, blocks in device.draws if blocks > usage.free_pool_blocks(pool, name)]

    def price(device: Device) -> tuple[int, int, int]:
        lacks = missing(device)
        held = usage.groups.get(device.pool) if device.compatibility is not None else None
        mixes = bool(held and held != {device.compatibility})
        return sum(lack not in short for lack in lacks) + mixes, len(lacks), device.index

    for part in parts:
        count = part.count - counts[part.where]
        if not count or not part.is_divisible:
            continue
        alike = _equal_candidates(question, part.request, usage)
        if count * len(alike) > _MAX_DEVICES_WEIGHED:
            continue
        by_pool: dict[int, list[list[Device]]] = defaultdict(list)
        for devices in alike:
            by_pool[devices[0].pool].append(devices)
        best = {pool: min(price(devices[-1]) for devices in there) for pool, there in by_pool.items()}
        chosen = lightest[part.where] = []
        while best and len(chosen) < count:
            _, _, index = min(best.values())
            device = snapshot.devices[index]
            there = by_pool[device.pool]
            next(devices for devices in there if devices[-1] is device).pop()
            there[:] = filter(None, there)
            chosen.append(index)
            short.update(missing(device))
            usage.add(Holding(part.where[0], 0, (AllocatedDevice(index, None),)))
            del best[device.pool]
            if there:
                best[device.pool] = min(price(devices[-1]) for devices in there)
    return lightest


def _equal_candidates(question: FeasibilityQuestion, request: Request, usage: Usage) -> list[list[Device]]:
    """The candidates of a request that are free on the node, those together that draw the same; the first ones last."""
    snapshot, nodes = question.snapshot, (None, question.unit.pin)
    alike: dict[object, list[Device]] = defaultdict(list)
    for index in sorted(request.candidates.accepted, reverse=True):
        device = snapshot.devices[index]
        if snapshot.pools[device.pool].node in nodes and not usage.in_use(device):
            alike[device.pool, device.draws, device.compatibility].append(device)
    return [*alike.values()]


MAX_NODES = 8
"""Nodes that are tried besides the best answer, for one where less is to be taken away."""

AcceptsDevice = Callable[[Demand, Request, Device], bool]
"""Whether a request takes a device, given what both would be like; leaving aside what is in use."""


# -- pool resources and compatibility groups ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What the devices of a pool share in a dialect."""

    entry: Mapping[str, str]
    entry_of: Callable[[Pool, str, int, int], Mapping[str, Any]]
    """of (pool, limit, what of it is needed and what of that is missing, in nano)"""
    is_limit: Callable[[str], bool] = lambda _: True
    """whether a resource of a pool is one of them"""
    limit_of: Callable[[str], str] = str
    """the limit that a resource of a pool stands for; several may stand for one"""
    nodes: int = MAX_NODES
    """nodes that are tried besides the best answer"""


def relax_shared_limits(limits: SharedLimits) -> Relaxation:
    """All that the devices of a pool share, taken away at once; narrowed to pools, resources and amounts.

    One edit serves all units of a fleet: it remembers what the fleet is like without these limits.
    """
    last: list[tuple[Snapshot, Snapshot]] = []

    def apply(question: FeasibilityQuestion) -> FeasibilityQuestion:
        if last and last[0][0] is question.snapshot:
            return replace(question, snapshot=last[0][1])
        free = question.with_pools(lambda pool: _without_draws(_ungrouped(pool), limits.is_limit))
        last[:] = [(question.snapshot, free.snapshot)]
        return free

    def narrow(relaxed: RelaxedQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
        """Which pools have too little of what, or would have to mix groups, where that is least."""
        question = relaxed([])
        return fewest_on_nodes(
            question,
            finder,
            apply(question),
            partial(_limits_of, limits),
            partial(minimal_overcommit, finder=finder),
            limits.nodes,
        )

    return Relaxation(limits.entry, apply, order=1, narrow=narrow)


def shares_limits(question: FeasibilityQuestion) -> bool:
    """Whether there is anything that the candidates of a unit share."""
    devices = question.snapshot.devices
    requests = [request for demand in question.unit.demands for request in demand.requests if not request.mode.is_admin]
    return any(
        devices[i].draws or devices[i].compatibility for request in requests for i in request.candidates.accepted
    )


def _without_draws(pool: Pool, is_limit: Callable[[str], bool]) -> Pool:
    """With devices that draw on none of these resources."""
    if not any(device.draws for device in pool.devices):
        return pool
    free = (replace(d, draws=tuple(draw for draw in d.draws if not is_limit(draw[0]))) for d in pool.devices)
    return replace(pool, devices=tuple(free))


def _ungrouped(pool: Pool) -> Pool:
    if all(device.compatibility is None for device in pool.devices):
        return pool
    return replace(pool, devices=tuple(replace(device, compatibility=None) for device in pool.devices))


def _limits_of(
    limits: SharedLimits, question: FeasibilityQuestion, placements: Sequence[Placement]
) -> list[Relaxation]:
    snapshot, usage = question.snapshot, Usage.of(question.snapshot, question.held)
    taken = {e.device.index for p in placements for e in p.entries if not e.request.mode.is_admin}
    new = [snapshot.devices[i] for i in sorted(taken) if not usage.in_use(snapshot.devices[i])]
    drawn: dict[tuple[int, str], int] = defaultdict(int)
    groups: dict[int, set[object]] = defaultdict(set)
    for device in new:
        for name, blocks in device.draws:
            drawn[device.pool, name] += blocks
        if device.compatibility is not None:
            groups[device.pool].add(device.compatibility)
    short: dict[tuple[int, str], int] = {}
    for (pool, name), blocks in sorted(drawn.items()):
        missing = blocks - usage.free_pool_blocks(pool, name)
        if missing > 0:
            more = max(0, usage.drawn[pool][name] - snapshot.pools[pool].resources[name].blocks)
            short[pool, name] = missing + more
    edits = [*_raised_limits(limits, snapshot, short)]
    for pool, new_groups in sorted(groups.items()):
        if len(new_groups | usage.groups.get(pool, set())) > 1:
            edits.append(_mix_groups(snapshot.pools[pool]))
    return edits


def _raised_limits(
    limits: SharedLimits, snapshot: Snapshot, short: Mapping[tuple[int, str], int]
) -> Iterator[Relaxation]:
    """One edit for each limit that falls short; ``short``: (pool, resource) -> blocks that are missing."""
    worst: dict[tuple[int, str], tuple[int, int]] = {}
    for (index, name), blocks in short.items():
        resource = snapshot.pools[index].resources[name]
        key, missing = (index, limits.limit_of(name)), blocks * resource.block
        worst[key] = max(worst.get(key, (0, 0)), (resource.nano + missing, missing))
    for (index, name), (needed, missing) in worst.items():
        pool = snapshot.pools[index]
        raised = partial(_raise_limit, limits=limits, pool=pool, limit=name, nano=needed)
        yield Relaxation(limits.entry_of(pool, name, needed, missing), raised, order=1)


def _raise_limit(
    question: FeasibilityQuestion, limits: SharedLimits, pool: Pool, limit: str, nano: int
) -> FeasibilityQuestion:
    """With a limit of a pool raised, where it is less. The pool may have been decoded anew."""

    def change(other: Pool) -> Pool:
        if (other.name, other.node) != (pool.name, pool.node):
            return other
        resources = {
            name: replace(resource, blocks=-(-nano // resource.block))
            for name, resource in other.resources.items()
            if resource.nano < nano and limits.limit_of(name) == limit
        }
        return replace(other, resources={**other.resources, **resources})

    return question.with_pools(change).touching(pool)


def _resource_entry(pool: Pool, name: str, needed: int, missing: int) -> dict[str, Any]:
    whole, shown = (sum_text(nano, quantity_format(nano)) for nano in (needed - missing, missing))
    entry = {"kind": "poolResource", "pool": pool.name, "node": pool.node, "resource": name}
    return {**entry, "capacity": whole, "missing": shown}


POOL_RESOURCES = SharedLimits({"kind": "poolResource"}, _resource_entry)


def _mix_groups(pool: Pool) -> Relaxation:
    def change(other: Pool) -> Pool:
        return _ungrouped(other) if other.index == pool.index else other

    return Relaxation(
        {"kind": "compatibilityGroup", "pool": pool.name, "node": pool.node},
        lambda question: question.with_pools(change).touching(pool),
        order=1,
    )


# -- withheld devices --------------------------------------------------------------------------------------------------


def withheld_devices(snapshot: Snapshot) -> list[Device]:
    """Devices that are marked unavailable, and those that request what their pool does not define."""
    return [d for d in snapshot.devices if d.unavailable is not None or d.undefined is not None]


def release_withheld(
    devices: Sequence[Device], meant: Callable[[PlacementUnit], AcceptsDevice], accepts: AcceptsDevice
) -> Relaxation | None:
    """All of ``withheld_devices``, made available at once; narrowed to those that are needed. None: there are none.

    ``meant``: which of them requests of a unit are to get. Those that are needed go to any request that ``accepts``
    them: else another edit would seem to be needed, too.
    """
    if not devices:
        return None

    def offered(question: FeasibilityQuestion) -> FeasibilityQuestion:
        accepting = meant(question.unit)
        return _with_devices_offered(question, devices, accepting, lambda d: _make_available(_define_resources(d)))

    def narrow(relaxed: RelaxedQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
        question = relaxed([])

        def used(_: FeasibilityQuestion, placements: Sequence[Placement]) -> list[Relaxation]:
            taken = {e.device.index for p in placements for e in p.entries}
            needed_devices = [d for d in devices if d.index in taken]
            edits = _offer_devices(question.snapshot, needed_devices, devices, accepts)
            lacking = dict.fromkeys((d.pool, d.undefined) for d in needed_devices if d.undefined is not None)
            return edits + [_define_resource(question.snapshot, pool, name, devices, accepts) for pool, name in lacking]

        return fewest_on_nodes(question, finder, offered(question), used)

    return Relaxation({"kind": "unavailable"}, offered, order=1, narrow=narrow)


def _with_devices_offered(
    question: FeasibilityQuestion, devices: Sequence[Device], accepts: AcceptsDevice, change: Callable[[Device], Device]
) -> FeasibilityQuestion:
    """The question with these devices changed, and on offer to requests that would take them then."""
    free = {d.index: change(question.snapshot.devices[d.index]) for d in devices}

    def offer(demand: Demand, request: Request) -> Request:
        others = ((i, d) for i, d in free.items() if i not in request.candidates.accepted)
        added = {i: None for i, d in others if accepts(demand, request, d)}
        if not added:
            return request
        return replace(
            request, candidates=Candidates({**request.candidates.accepted, **added}, request.candidates.funnel)
        )

    return question.with_devices(free).with_requests(offer)


def _make_available(device: Device) -> Device:
    return replace(device, unavailable=None)


def _define_resources(device: Device) -> Device:
    return replace(device, undefined=None)


def _offer_devices(
    snapshot: Snapshot, needed: Sequence[Device], withheld: Sequence[Device], accepts: AcceptsDevice
) -> list[Relaxation]:
    """What makes the needed devices available: nodes to make schedulable, and devices that are unavailable
    on their own."""
    unavailable = [device for device in needed if device.unavailable is not None]
    nodes = dict.fromkeys(node for device in unavailable if (node := _unschedulable_node(snapshot, device)) is not None)
    alone = [device for device in unavailable if _unschedulable_node(snapshot, device) is None]
    by_node = make_schedulable(snapshot, withheld, accepts) if nodes else {}
    edits = [
        replace(by_node[node], instead=[by_node[other] for other in by_node if other not in nodes]) for node in nodes
    ]
    return edits + [_offer_device(snapshot, device, accepts) for device in alone]


def _unschedulable_node(snapshot: Snapshot, device: Device) -> str | None:
    """The node of a device that is unavailable only because its whole node gets nothing new."""
    is_unschedulable = device.unavailable is not None and unschedulable_reasons(device.unavailable)
    return snapshot.pools[device.pool].node if is_unschedulable else None


def make_schedulable(snapshot: Snapshot, withheld: Sequence[Device], accepts: AcceptsDevice) -> dict[str, Relaxation]:
    """For each node that gets nothing new: an edit that makes it schedulable."""
    by_node: dict[str, list[Device]] = defaultdict(list)
    for device in withheld:
        if (node := _unschedulable_node(snapshot, device)) is not None:
            by_node[node].append(device)
    return {node: _make_node_schedulable(snapshot, node, devices, accepts) for node, devices in by_node.items()}


def _make_node_schedulable(
    snapshot: Snapshot, node: str, devices: Sequence[Device], accepts: AcceptsDevice
) -> Relaxation:
    pool, why = snapshot.pools[devices[0].pool], str(devices[0].unavailable)
    change = partial(_with_devices_offered, devices=devices, accepts=accepts, change=_make_available)
    entry = {"kind": "unavailable", "node": node, "why": why}
    return Relaxation(entry, lambda question: change(question).touching(pool), order=1)


def _offer_device(snapshot: Snapshot, device: Device, accepts: AcceptsDevice) -> Relaxation:
    """One device made available."""
    pool = snapshot.pools[device.pool]
    entry = {"kind": "unavailable", "pool": pool.name, "node": pool.node, "device": device.name}
    change = partial(_with_devices_offered, devices=[device], accepts=accepts, change=_make_available)
    entry["why"] = device.unavailable
    return Relaxation(entry, lambda question: change(question).touching(pool), order=1)


def _define_resource(
    snapshot: Snapshot, index: int, name: str | None, devices: Sequence[Device], accepts: AcceptsDevice
) -> Relaxation:
    """A resource defined in a pool, with enough of it for all the devices that request it."""
    pool = snapshot.pools[index]
    users = [d for d in devices if (d.pool, d.undefined) == (index, name)]
    entry: dict[str, object] = {"kind": "undefinedResource", "pool": pool.name, "node": pool.node, "resource": name}
    change = partial(_with_devices_offered, devices=users, accepts=accepts, change=_define_resources)
    return Relaxation(
        {**entry, "devices": [d.name for d in users]}, lambda question: change(question).touching(pool), order=1
    )


# -- where least is needed ---------------------------------------------------------------------------------------------


def fewest_on_nodes(
    question: FeasibilityQuestion,
    finder: FeasibilityChecker,
    relaxed: FeasibilityQuestion,
    edits_of: Callable[[FeasibilityQuestion, Sequence[Placement]], list[Relaxation]],
    better: Callable[[FeasibilityQuestion, FeasibilityQuestion, Sequence[Placement]], Sequence[Placement]]
    | None = None,
    nodes: int = MAX_NODES,
) -> Sequence[Relaxation]:
    """Of some placements of the relaxed question, the one with the fewest edits, and of those the ones needed.

    ``better`` makes of the best placements some that may do with fewer edits.
    """
    best: list[Relaxation] | None = None
    where: Sequence[Placement] = ()
    for placements in _placements(relaxed, finder, nodes):
        edits = edits_of(question, placements)
        if best is None or len(edits) < len(best):
            best, where = edits, placements
        if len(best) <= 1:
            break
    if best and len(best) > 1 and better is not None:
        best = min(edits_of(question, better(question, relaxed, where)), best, key=len)
    return drop_unneeded(question, best or [], finder)


def _placements(relaxed: FeasibilityQuestion, finder: FeasibilityChecker, most: int) -> Iterator[Sequence[Placement]]:
    """The best answer, and those on some other nodes."""
    first = finder.probe(relaxed)
    if first is None:
        return
    yield first
    if relaxed.unit.pin is not None or not most:
        return
    snapshot = relaxed.snapshot
    accepted = {i for d in relaxed.unit.demands for request in d.requests for i in request.candidates.accepted}
    useful = {snapshot.pools[snapshot.devices[i].pool].node for i in accepted}
    nodes = [node for node in snapshot.nodes if node in useful and all(p.node != node for p in first)]
    for node in nodes[:most]:
        placements = finder.probe(relaxed.pinned(node))
        if placements is not None:
            yield placements
