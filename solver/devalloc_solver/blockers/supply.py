"""What the supply holds back: pool resources, compatibility groups, and devices that are withheld (S6a, S12, S12a)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from devalloc.api.meta import COMPATIBILITY_GROUP, UNAVAILABLE
from devalloc.api.quantity import Format, Quantity
from devalloc_solver.assignment import Placement
from devalloc_solver.blockers.edits import Edit, applied, needed
from devalloc_solver.blockers.question import Finder, Question
from devalloc_solver.blockers.sparing import sparing
from devalloc_solver.demand import Demand, Slot
from devalloc_solver.eligibility import Candidates
from devalloc_solver.holdings import Ledger
from devalloc_solver.snapshot import Device, Pool, Resource, Snapshot

NODES = 8
"""Nodes that are tried besides the best answer, for one where less is to be taken away."""

Accepts = Callable[[Slot, Device], bool]
"""Whether a slot may take a device, given what the device would be like; leaving aside what is in use."""


# -- pool resources and compatibility groups -------------------------------------------------------------------------


def shared_limits() -> Edit:
    """All that the devices of a pool share, taken away at once; narrowed to pools, resources and amounts.

    One edit serves all units of a fleet: it remembers what the fleet is like without these limits.
    """
    last: list[tuple[Snapshot, Snapshot]] = []

    def apply(question: Question) -> Question:
        if last and last[0][0] is question.snapshot:
            return replace(question, snapshot=last[0][1])
        free = _without_limits(question)
        last[:] = [(question.snapshot, free.snapshot)]
        return free

    def narrow(question: Question, finder: Finder) -> Sequence[Edit]:
        """Which pools have too little of what, or would have to mix groups, where that is least."""
        return _least(question, finder, apply(question), _limits_of, partial(sparing, finder=finder))

    return Edit({"kind": "poolResource"}, "with more of the pools' resources", apply, order=1, narrow=narrow)


def shares_limits(question: Question) -> bool:
    """Whether there is anything that the candidates of a unit share."""
    devices = question.snapshot.devices
    slots = [slot for demand in question.unit.demands for slot in demand.slots if not slot.mode.is_admin]
    return any(devices[i].draws or devices[i].compatibility for slot in slots for i in slot.candidates.accepted)


def _without_limits(question: Question) -> Question:
    return question.with_pools(lambda pool: _boundless(_ungrouped(pool)))


def _boundless(pool: Pool) -> Pool:
    """With devices that draw on nothing."""
    if not any(device.draws for device in pool.devices):
        return pool
    return replace(pool, devices=tuple(replace(d, draws=()) if d.draws else d for d in pool.devices))


def _ungrouped(pool: Pool) -> Pool:
    if all(device.compatibility is None for device in pool.devices):
        return pool
    return replace(pool, devices=tuple(_without_attribute(device, COMPATIBILITY_GROUP) for device in pool.devices))


def _without_attribute(device: Device, name: str) -> Device:
    return replace(device, attributes={key: value for key, value in device.attributes.items() if key != name})


def _limits_of(question: Question, placements: Sequence[Placement]) -> list[Edit]:
    snapshot, ledger = question.snapshot, Ledger.of(question.snapshot, question.held)
    taken = {e.device.index for p in placements for e in p.entries if not e.slot.mode.is_admin}
    new = [snapshot.devices[i] for i in sorted(taken) if not ledger.in_use(snapshot.devices[i])]
    drawn: dict[tuple[int, str], int] = defaultdict(int)
    groups: dict[int, set[object]] = defaultdict(set)
    for device in new:
        for name, blocks in device.draws:
            drawn[device.pool, name] += blocks
        if device.compatibility is not None:
            groups[device.pool].add(device.compatibility)
    edits = []
    for (pool, name), blocks in sorted(drawn.items()):
        missing = blocks - ledger.free_pool_blocks(pool, name)
        if missing > 0:
            more = max(0, ledger.drawn[pool][name] - snapshot.pools[pool].resources[name].blocks)
            edits.append(_raise(snapshot.pools[pool], name, missing + more))
    for pool, found in sorted(groups.items()):
        if len(found | ledger.groups.get(pool, set())) > 1:
            edits.append(_mix(snapshot.pools[pool]))
    return edits


def _raise(pool: Pool, name: str, blocks: int) -> Edit:
    resource = pool.resources[name]
    missing, whole = (str(Quantity(n, _format(n))) for n in (blocks * resource.block, resource.nano))

    def change(other: Pool) -> Pool:
        if other.index != pool.index:
            return other
        raised = Resource(resource.block, other.resources[name].blocks + blocks)
        return replace(other, resources={**other.resources, name: raised})

    return Edit(
        {"kind": "poolResource", "pool": pool.name, "node": pool.node, "resource": name}
        | {"capacity": whole, "missing": missing},
        f"with {missing} more of {name} in pool {pool.name} (which has {whole})",
        lambda question: question.with_pools(change).touching(pool),
        order=1,
    )


def _format(nano: int) -> Format:
    """Binary suffixes for what is a multiple of 1Mi, as memory is."""
    return Format.BINARY_SI if nano and nano % (2**20 * 10**9) == 0 else Format.DECIMAL_SI


def _mix(pool: Pool) -> Edit:
    def change(other: Pool) -> Pool:
        return _ungrouped(other) if other.index == pool.index else other

    return Edit(
        {"kind": "compatibilityGroup", "pool": pool.name, "node": pool.node},
        f"if devices of different compatibility groups went together in pool {pool.name}",
        lambda question: question.with_pools(change).touching(pool),
        order=1,
    )


# -- withheld devices ------------------------------------------------------------------------------------------------


def withheld_devices(snapshot: Snapshot) -> list[Device]:
    """Devices that are marked unavailable, and those that request what their pool does not define."""
    return [d for d in snapshot.devices if UNAVAILABLE in d.attributes or d.undefined is not None]


def withheld(devices: Sequence[Device], accepts: Accepts) -> Edit | None:
    """All of ``withheld_devices``, made available at once; narrowed to those that are needed. None: there are none."""
    if not devices:
        return None
    offered = partial(_offered, devices=devices, accepts=accepts, change=_freed)

    def narrow(question: Question, finder: Finder) -> Sequence[Edit]:
        def used(_: Question, placements: Sequence[Placement]) -> list[Edit]:
            taken = {e.device.index for p in placements for e in p.entries}
            found = [d for d in devices if d.index in taken]
            edits = [_offer(question.snapshot, d, accepts) for d in found if d.unavailable is not None]
            lacking = dict.fromkeys((d.pool, d.undefined) for d in found if d.undefined is not None)
            return edits + [_define(question.snapshot, pool, name, devices, accepts) for pool, name in lacking]

        return _least(question, finder, offered(question), used)

    words = "once unavailable devices are available"
    return Edit({"kind": "unavailable"}, words, offered, order=1, narrow=narrow)


def _offered(
    question: Question, devices: Sequence[Device], accepts: Accepts, change: Callable[[Device], Device]
) -> Question:
    """The question with these devices changed, and on offer to slots that would take them then."""
    free = {d.index: change(question.snapshot.devices[d.index]) for d in devices}

    def offer(_: Demand, slot: Slot) -> Slot:
        found = {i: None for i, d in free.items() if i not in slot.candidates.accepted and accepts(slot, d)}
        if not found:
            return slot
        return replace(slot, candidates=Candidates({**slot.candidates.accepted, **found}, slot.candidates.funnel))

    return question.with_devices(free).with_slots(offer)


def _freed(device: Device) -> Device:
    return _available(_defined(device))


def _available(device: Device) -> Device:
    return _without_attribute(device, UNAVAILABLE)


def _defined(device: Device) -> Device:
    return replace(device, undefined=None)


def _offer(snapshot: Snapshot, device: Device, accepts: Accepts) -> Edit:
    """One device made available."""
    pool = snapshot.pools[device.pool]
    entry = {"kind": "unavailable", "pool": pool.name, "node": pool.node, "device": device.name}
    words = f"once {pool.name}/{device.name} is available ({device.unavailable})"
    change = partial(_offered, devices=[device], accepts=accepts, change=_available)
    entry["why"] = device.unavailable
    return Edit(entry, words, lambda question: change(question).touching(pool), order=1)


def _define(snapshot: Snapshot, index: int, name: str | None, devices: Sequence[Device], accepts: Accepts) -> Edit:
    """A resource defined in a pool, with enough of it for all the devices that request it."""
    pool = snapshot.pools[index]
    mine = [d for d in devices if (d.pool, d.undefined) == (index, name)]
    entry: dict[str, object] = {"kind": "undefinedResource", "pool": pool.name, "node": pool.node, "resource": name}
    words = f"once pool {pool.name} defines {name}, which its device {mine[0].name} requests"
    change = partial(_offered, devices=mine, accepts=accepts, change=_defined)
    return Edit(
        {**entry, "devices": [d.name for d in mine]}, words, lambda question: change(question).touching(pool), order=1
    )


# -- where least is needed -------------------------------------------------------------------------------------------


def _least(
    question: Question,
    finder: Finder,
    relaxed: Question,
    edits_of: Callable[[Question, Sequence[Placement]], list[Edit]],
    better: Callable[[Question, Question, Sequence[Placement]], Sequence[Placement]] | None = None,
) -> Sequence[Edit]:
    """Of some placements of the relaxed question, the one with the fewest edits, and of those the ones needed.

    ``better`` makes of the best placements some that may do with fewer edits.
    """
    best: list[Edit] | None = None
    where: Sequence[Placement] = ()
    for placements in _placements(relaxed, finder):
        found = edits_of(question, placements)
        if best is None or len(found) < len(best):
            best, where = found, placements
        if len(best) <= 1:
            break
    if best and len(best) > 1 and better is not None:
        best = min(edits_of(question, better(question, relaxed, where)), best, key=len)
    return needed(best or [], lambda chosen: finder.works(applied(question, chosen)))


def _placements(relaxed: Question, finder: Finder) -> Iterator[Sequence[Placement]]:
    """The best answer, and those on some other nodes."""
    first = finder.probe(relaxed)
    if first is None:
        return
    yield first
    if relaxed.unit.pin is not None:
        return
    snapshot = relaxed.snapshot
    accepted = {i for d in relaxed.unit.demands for slot in d.slots for i in slot.candidates.accepted}
    useful = {snapshot.pools[snapshot.devices[i].pool].node for i in accepted}
    nodes = [node for node in snapshot.nodes if node in useful and all(p.node != node for p in first)]
    for node in nodes[:NODES]:
        found = finder.probe(relaxed.pinned(node))
        if found is not None:
            yield found
