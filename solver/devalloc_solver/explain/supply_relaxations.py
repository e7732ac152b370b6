"""Relaxations of the supply: pool resources, compatibility groups, and devices that are withheld (S6a, S12, S12a)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.quantity import Format, Quantity
from devalloc_solver.explain.feasibility import FeasibilityChecker, FeasibilityQuestion
from devalloc_solver.explain.minimal_overcommit import minimal_overcommit
from devalloc_solver.explain.relaxations import Relaxation, apply_relaxations, drop_unneeded
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.problem.demand import Candidates, Demand, Request
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.snapshot import Device, Pool, Resource, Snapshot

MAX_NODES = 8
"""Nodes that are tried besides the best answer, for one where less is to be taken away."""

AcceptsDevice = Callable[[Request, Device], bool]
"""Whether a request may take a device, given what the device would be like; leaving aside what is in use."""


# -- pool resources and compatibility groups ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What the devices of a pool share in a dialect."""

    entry: Mapping[str, str]
    words: str
    is_limit: Callable[[str], bool]
    """whether a resource of a pool is one of them"""
    raise_limits: Callable[[Snapshot, Mapping[tuple[int, str], int]], Iterable[Relaxation]]
    """of (pool, resource) -> blocks that are missing"""
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

    def narrow(question: FeasibilityQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
        """Which pools have too little of what, or would have to mix groups, where that is least."""
        return _fewest_relaxations(
            question,
            finder,
            apply(question),
            partial(_limits_of, limits),
            partial(minimal_overcommit, finder=finder),
            limits.nodes,
        )

    return Relaxation(limits.entry, limits.words, apply, order=1, narrow=narrow)


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
    return replace(pool, devices=tuple(_without_attribute(device, COMPATIBILITY_GROUP) for device in pool.devices))


def _without_attribute(device: Device, name: str) -> Device:
    return replace(device, attributes={key: value for key, value in device.attributes.items() if key != name})


def _limits_of(
    limits: SharedLimits, question: FeasibilityQuestion, placements: Sequence[Placement]
) -> list[Relaxation]:
    snapshot, ledger = question.snapshot, Usage.of(question.snapshot, question.held)
    taken = {e.device.index for p in placements for e in p.entries if not e.request.mode.is_admin}
    new = [snapshot.devices[i] for i in sorted(taken) if not ledger.in_use(snapshot.devices[i])]
    drawn: dict[tuple[int, str], int] = defaultdict(int)
    groups: dict[int, set[object]] = defaultdict(set)
    for device in new:
        for name, blocks in device.draws:
            drawn[device.pool, name] += blocks
        if device.compatibility is not None:
            groups[device.pool].add(device.compatibility)
    short: dict[tuple[int, str], int] = {}
    for (pool, name), blocks in sorted(drawn.items()):
        missing = blocks - ledger.free_pool_blocks(pool, name)
        if missing > 0:
            more = max(0, ledger.drawn[pool][name] - snapshot.pools[pool].resources[name].blocks)
            short[pool, name] = missing + more
    edits = [*limits.raise_limits(snapshot, short)]
    for pool, new_groups in sorted(groups.items()):
        if len(new_groups | ledger.groups.get(pool, set())) > 1:
            edits.append(_mix_groups(snapshot.pools[pool]))
    return edits


def _raise_resources(snapshot: Snapshot, short: Mapping[tuple[int, str], int]) -> Iterator[Relaxation]:
    return (_raise_resource(snapshot.pools[pool], name, blocks) for (pool, name), blocks in short.items())


POOL_RESOURCES = SharedLimits(
    {"kind": "poolResource"}, "with more of the pools' resources", lambda name: True, _raise_resources
)


def _raise_resource(pool: Pool, name: str, blocks: int) -> Relaxation:
    resource = pool.resources[name]
    missing, whole = (str(Quantity(n, quantity_format(n))) for n in (blocks * resource.block, resource.nano))

    def change(other: Pool) -> Pool:
        if other.index != pool.index:
            return other
        raised = Resource(resource.block, other.resources[name].blocks + blocks)
        return replace(other, resources={**other.resources, name: raised})

    return Relaxation(
        {"kind": "poolResource", "pool": pool.name, "node": pool.node, "resource": name}
        | {"capacity": whole, "missing": missing},
        f"with {missing} more of {name} in pool {pool.name} (which has {whole})",
        lambda question: question.with_pools(change).touching(pool),
        order=1,
    )


def quantity_format(nano: int) -> Format:
    """Binary suffixes for what is a multiple of 1Mi, as memory is."""
    return Format.BINARY_SI if nano and nano % (2**20 * 10**9) == 0 else Format.DECIMAL_SI


def _mix_groups(pool: Pool) -> Relaxation:
    def change(other: Pool) -> Pool:
        return _ungrouped(other) if other.index == pool.index else other

    return Relaxation(
        {"kind": "compatibilityGroup", "pool": pool.name, "node": pool.node},
        f"if pool {pool.name} allowed devices of different compatibility groups together",
        lambda question: question.with_pools(change).touching(pool),
        order=1,
    )


# -- withheld devices --------------------------------------------------------------------------------------------------


def withheld_devices(snapshot: Snapshot) -> list[Device]:
    """Devices that are marked unavailable, and those that request what their pool does not define."""
    return [d for d in snapshot.devices if UNAVAILABLE in d.attributes or d.undefined is not None]


def release_withheld(devices: Sequence[Device], accepts: AcceptsDevice) -> Relaxation | None:
    """All of ``withheld_devices``, made available at once; narrowed to those that are needed. None: there are none."""
    if not devices:
        return None
    offered = partial(_with_devices_offered, devices=devices, accepts=accepts, change=_usable_device)

    def narrow(question: FeasibilityQuestion, finder: FeasibilityChecker) -> Sequence[Relaxation]:
        def used(_: FeasibilityQuestion, placements: Sequence[Placement]) -> list[Relaxation]:
            taken = {e.device.index for p in placements for e in p.entries}
            needed_devices = [d for d in devices if d.index in taken]
            edits = [_offer_device(question.snapshot, d, accepts) for d in needed_devices if d.unavailable is not None]
            lacking = dict.fromkeys((d.pool, d.undefined) for d in needed_devices if d.undefined is not None)
            return edits + [_define_resource(question.snapshot, pool, name, devices, accepts) for pool, name in lacking]

        return _fewest_relaxations(question, finder, offered(question), used)

    words = "once unavailable devices are available"
    return Relaxation({"kind": "unavailable"}, words, offered, order=1, narrow=narrow)


def _with_devices_offered(
    question: FeasibilityQuestion, devices: Sequence[Device], accepts: AcceptsDevice, change: Callable[[Device], Device]
) -> FeasibilityQuestion:
    """The question with these devices changed, and on offer to requests that would take them then."""
    free = {d.index: change(question.snapshot.devices[d.index]) for d in devices}

    def offer(_: Demand, request: Request) -> Request:
        added = {i: None for i, d in free.items() if i not in request.candidates.accepted and accepts(request, d)}
        if not added:
            return request
        return replace(
            request, candidates=Candidates({**request.candidates.accepted, **added}, request.candidates.funnel)
        )

    return question.with_devices(free).with_requests(offer)


def _usable_device(device: Device) -> Device:
    return _make_available(_define_resources(device))


def _make_available(device: Device) -> Device:
    return _without_attribute(device, UNAVAILABLE)


def _define_resources(device: Device) -> Device:
    return replace(device, undefined=None)


def _offer_device(snapshot: Snapshot, device: Device, accepts: AcceptsDevice) -> Relaxation:
    """One device made available."""
    pool = snapshot.pools[device.pool]
    entry = {"kind": "unavailable", "pool": pool.name, "node": pool.node, "device": device.name}
    words = f"once {pool.name}/{device.name} is available ({device.unavailable})"
    change = partial(_with_devices_offered, devices=[device], accepts=accepts, change=_make_available)
    entry["why"] = device.unavailable
    return Relaxation(entry, words, lambda question: change(question).touching(pool), order=1)


def _define_resource(
    snapshot: Snapshot, index: int, name: str | None, devices: Sequence[Device], accepts: AcceptsDevice
) -> Relaxation:
    """A resource defined in a pool, with enough of it for all the devices that request it."""
    pool = snapshot.pools[index]
    users = [d for d in devices if (d.pool, d.undefined) == (index, name)]
    entry: dict[str, object] = {"kind": "undefinedResource", "pool": pool.name, "node": pool.node, "resource": name}
    words = f"once pool {pool.name} defines {name}, which its device {users[0].name} requests"
    change = partial(_with_devices_offered, devices=users, accepts=accepts, change=_define_resources)
    return Relaxation(
        {**entry, "devices": [d.name for d in users]}, words, lambda question: change(question).touching(pool), order=1
    )


# -- where least is needed ---------------------------------------------------------------------------------------------


def _fewest_relaxations(
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
    return drop_unneeded(best or [], lambda chosen: finder.works(apply_relaxations(question, chosen)))


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
