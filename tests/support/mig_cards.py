"""Cards cut into partitions, as the NVIDIA DRA driver publishes them: a counter for each memory slice by its position.

Partitions of one profile are all different then: each draws on memory slices of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from devalloc_solver.problem.allocations import AllocatedDevice, Holding
from devalloc_solver.problem.demand import Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Pool, Resource, Snapshot
from tests.support.normal_form import SearchInstance
from tests.support.normal_instances import a_claim, a_slot, candidates

Layout = Mapping[str, tuple[int, Sequence[range]]]
"""profile -> (compute slices, the memory slices of each place where it may go)"""

A100: Layout = {
    "1g": (1, [range(i, i + 1) for i in range(7)]),
    "1g+": (1, [range(i, i + 2) for i in (0, 2, 4, 6)]),
    "2g": (2, [range(i, i + 2) for i in (0, 2, 4)]),
    "3g": (3, [range(4), range(4, 8)]),
    "4g": (4, [range(4)]),
    "7g": (7, [range(8)]),
}
SMALL: Layout = {
    "1g": (1, [range(i, i + 1) for i in range(3)]),
    "1g+": (1, [range(2), range(2, 4)]),
    "2g": (2, [range(2), range(1, 3)]),
    "3g": (3, [range(4)]),
}
"""A card of three compute and four memory slices; the places of 2g overlap, so that a bad one is in the way twice."""


def snapshot_of(layout: Layout, cards: int, *, together: bool, positions: bool = True) -> Snapshot:
    """A node with so many cards, all in one pool or each in one of its own; else memory slices are a mere number."""
    memory = max(place.stop for _, places in layout.values() for place in places)
    compute = max(slices for slices, _ in layout.values())
    members: list[list[Device]] = [[] for _ in range(1 if together else cards)]
    resources: list[dict[str, Resource]] = [{} for _ in members]
    total = 0
    for card in range(cards):
        pool = 0 if together else card
        kinds = {"compute": compute} | ({f"m{i}": 1 for i in range(memory)} if positions else {"memory": memory})
        resources[pool] |= {f"card{card}-{name}": Resource(1, size) for name, size in kinds.items()}
        for profile, (slices, places) in layout.items():
            for place in places:
                drawn = [("compute", slices)]
                drawn += [(f"m{i}", 1) for i in place] if positions else [("memory", len(place))]
                draws = tuple(sorted((f"card{card}-{name}", blocks) for name, blocks in drawn))
                name = f"c{card}-{profile}-{place.start}"
                attributes: dict[str, object] = {"profile": profile, "card": card}
                members[pool].append(Device(total, pool, name, attributes, {}, draws, None))
                total += 1
    pools = tuple(
        Pool(number, "n1", f"p{number}", "driver", resources[number], tuple(devices))
        for number, devices in enumerate(members)
    )
    devices = tuple(device for pool in pools for device in pool.devices)
    return Snapshot(pools, devices, ("n1",), {"n1": pools}, {pool.name: (pool,) for pool in pools})


def partition_claim(snapshot: Snapshot, wanted: Sequence[Sequence[tuple[str, int]]], *, match: bool = False) -> Demand:
    """A claim for so many partitions of a profile each; several pairs in a row are alternatives."""
    by_profile = {
        profile: candidates(d.index for d in snapshot.devices if d.attributes["profile"] == profile)
        for alternatives in wanted
        for profile, _ in alternatives
    }

    def slot(detail: int, number: int | None, profile: str, count: int) -> Request:
        return a_slot(by_profile[profile], detail=detail, alternative=number, min_count=count, max_count=count)

    details = tuple(
        tuple(
            slot(detail, number if len(alternatives) > 1 else None, *pair) for number, pair in enumerate(alternatives)
        )
        for detail, alternatives in enumerate(wanted)
    )
    return Demand(claim=a_claim("c"), details=details, match=("card",) if match else ())


def random_cards(random: Random, layout: Layout, most: int) -> SearchInstance:
    """Up to ``most`` cards, some of them in use, and one unit that asks for about as much as there is."""
    cards = random.randint(1, most)
    snapshot = snapshot_of(layout, cards, together=random.random() < 0.5, positions=random.random() < 0.8)
    left = cards * max(slices for slices, _ in layout.values()) * random.uniform(0.5, 1.1)
    wanted: list[list[tuple[str, int]]] = []
    while left > 0 and len(wanted) < 6:
        alternatives = random.sample([*layout], random.choice([1, 1, 1, 2]))
        count = random.randint(1, cards)
        wanted.append([(profile, count) for profile in alternatives])
        left -= layout[alternatives[0]][0] * count
    claims = [wanted]
    if len(wanted) > 1 and random.random() < 0.3:
        claims = [wanted[::2], wanted[1::2]]
    match = random.random() < 0.15
    demands = tuple(partition_claim(snapshot, claim, match=match) for claim in claims)
    named = tuple(Demand(a_claim(f"c{number}"), demand.details, demand.match) for number, demand in enumerate(demands))
    unit = PlacementUnit(named, "group" if len(named) > 1 else None, "n1" if len(named) > 1 else None)
    return SearchInstance(snapshot, tuple(_in_use(random, snapshot)), (unit,))


def _in_use(random: Random, snapshot: Snapshot) -> Iterator[Holding]:
    """Some partitions, as many as fit beside each other."""
    chance = random.choice([0, 0, 0.05, 0.15])
    free = {(pool.index, name): r.blocks for pool in snapshot.pools for name, r in pool.resources.items()}
    for device in snapshot.devices:
        drawn = {(device.pool, name): blocks for name, blocks in device.draws}
        if random.random() < chance and all(free[name] >= blocks for name, blocks in drawn.items()):
            for name, blocks in drawn.items():
                free[name] -= blocks
            yield Holding(("held", f"h{device.index}"), 0, (AllocatedDevice(device.index, None),))
