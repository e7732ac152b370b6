"""Tiny random instances of the solver's own normal form, for ``normal_form`` to search exhaustively."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

from devalloc_solver.dialects.device_claims.expressions import LANGUAGE
from devalloc_solver.eligibility.facts import Eligible
from devalloc_solver.eligibility.judge import Judge
from devalloc_solver.problem.allocations import AllocatedDevice, Holding
from devalloc_solver.problem.demand import AllocationMode, Candidates, Constraint, Demand, PlacementUnit, Request
from devalloc_solver.problem.snapshot import Device, Pool, Resource, Snapshot
from tests.support.normal_form import Place, SearchInstance


def random_instance(random: Random, *, crowded: bool = False) -> SearchInstance:
    """A few devices and claims that meet the rules and each other; ``crowded``: equal claims for whole devices."""
    snapshot = _snapshot(random)
    sets = [_candidates(random, snapshot) for _ in range(random.choice([1, 2, 2, 3]))]
    kinds = [_demand_shape(random, snapshot, sets, crowded) for _ in range(random.choice([1, 1, 2, 2]))]
    units: list[PlacementUnit] = []
    for number in range(random.choice([3, 3, 4, 5]) if crowded else random.choice([1, 2, 3, 3, 4])):
        kind = random.randrange(len(kinds))
        pin, demand = kinds[kind]
        claim = a_claim(f"c{number}", demand.claim.priority)
        copy = _copy(demand, claim, kind)
        if random.random() < (0.03 if crowded else 0.1):
            other = _copy(random.choice(kinds)[1], a_claim(f"c{number}b", demand.claim.priority), kind)
            units.append(PlacementUnit((copy, other), "group", pin))
            continue
        units.append(PlacementUnit((copy,), None, pin))
    units.sort(key=lambda unit: (-unit.demands[0].claim.priority, unit.demands[0].key))
    return SearchInstance(snapshot, tuple(_holdings(random, snapshot)), tuple(units))


def candidates(devices: Iterable[int]) -> Candidates:
    """Devices that a slot accepts."""
    return Candidates(dict.fromkeys(devices), ())


def a_slot(accepted: Candidates, **fields: Any) -> Request:
    """A slot for one whole device, but for these fields."""
    eligible = Eligible(Judge(LANGUAGE), None, ())
    plain = Request(0, None, None, AllocationMode.WHOLE, 1, 1, {}, {}, (), accepted, eligible)
    return replace(plain, **fields)


def a_claim(name: str, priority: int = 0) -> SimpleNamespace:
    """What the solver knows of a claim of any dialect."""
    key = ("default", name)
    return SimpleNamespace(key=key, priority=priority, metadata=SimpleNamespace(creation_timestamp=None, name=name))


def _copy(demand: Demand, claim: SimpleNamespace, kind: int) -> Demand:
    """An equal claim with slots of its own, as two manifests would make it."""
    details = tuple(tuple(replace(slot) for slot in detail) for detail in demand.details)
    return replace(demand, claim=claim, details=details, shape=kind)


def _snapshot(random: Random) -> Snapshot:
    nodes = ["n1", "n2"][: random.choice([0, 1, 1, 2, 2])]
    pools: list[Pool] = []
    devices: list[Device] = []
    theme = random.choice(["plain", "shareable", "counters", "mixed", "mixed"])
    lists = random.random() < 0.5
    for number in range(random.choice([1, 2, 2, 3])):
        node = random.choice([*nodes, *nodes, None])
        counters = {"c": Resource(1, random.choice([1, 2, 3]))} if theme in ("counters", "mixed") else {}
        members = []
        alike = random.random() < 0.4
        attributes, resources = _attributes(random, lists), _resources(random)
        for _ in range(random.choice([1, 2, 2, 3, 4])):
            shareable = theme == "shareable" or (theme == "mixed" and random.random() < (0.8 if alike else 0.4))
            reach = None
            if node is None and nodes and random.random() < 0.4:
                reach = frozenset(random.sample(nodes, random.choice([1, len(nodes)])))
            members.append(
                Device(
                    index=len(devices) + len(members),
                    pool=number,
                    name=f"d{len(members)}",
                    attributes=attributes if alike else _attributes(random, lists),
                    resources=resources if alike else _resources(random),
                    draws=(("c", random.choice([1, 1, 2])),) if counters and random.random() < 0.7 else (),
                    undefined=None,
                    shareable=shareable,
                    reach=reach,
                )
            )
        pools.append(Pool(number, node, f"p{number}", "driver", counters, tuple(members)))
        devices += members
    by_node: dict[Place, tuple[Pool, ...]] = defaultdict(tuple)
    for pool in pools:
        by_node[pool.node] = (*by_node[pool.node], pool)
    return Snapshot(tuple(pools), tuple(devices), tuple(nodes), dict(by_node), {p.name: (p,) for p in pools})


SCALE = 10**27 + 1
"""Amounts beyond 64 bits, and not round."""


def _resources(random: Random) -> dict[str, Resource]:
    resources = {"m": Resource(1, random.choice([2, 3, 4]) * SCALE)}
    if random.random() < 0.3:
        resources["k"] = Resource(1, random.choice([0, 1, 2]))
    return resources


def _attributes(random: Random, lists: bool) -> dict[str, object]:
    attributes: dict[str, object] = {}
    for name in "ab":
        if random.random() < 0.85:
            attributes[name] = random.choice("xyz"[: random.choice([1, 2, 3])])
            if lists and random.random() < 0.4:
                attributes[name] = frozenset(random.sample("xyz", random.choice([1, 2, 2])))
    return attributes


def _candidates(random: Random, snapshot: Snapshot) -> Candidates:
    chance = random.choice([0.5, 0.8, 1.0])
    return Candidates({d.index: None for d in snapshot.devices if random.random() < chance}, ())


def _demand_shape(
    random: Random, snapshot: Snapshot, sets: Sequence[Candidates], crowded: bool
) -> tuple[str | None, Demand]:
    details = []
    for index in range(random.choice([1, 1, 2] if crowded else [1, 1, 2, 2, 3])):
        count = random.choice([1, 1, 1, 2, 3])
        numbers: list[int | None] = [None] if count == 1 else [*range(count)]
        details.append(
            tuple(_slot(random, snapshot, index, number, random.choice(sets), crowded) for number in numbers)
        )
    labels = [slot.label for detail in details for slot in detail]
    relations = []
    for _ in range(random.choice([0, 0, 1] if crowded else [0, 0, 1, 1, 2])):
        scope = labels if random.random() < 0.5 else random.sample(labels, random.randint(1, len(labels)))
        relations.append(Constraint(random.choice("ab"), random.random() < (0.1 if crowded else 0.4), frozenset(scope)))
    pin = random.choice(["n1", "n2", "n3"]) if random.random() < 0.1 else None
    demand = Demand(
        claim=a_claim("", random.choice([0, 0, 0, 1])),
        details=tuple(details),
        match=("a",) if random.random() < 0.15 and not _lists(snapshot) else (),
        relations=tuple(relations),
        most=random.choice([None, None, None, 2, 3]),
        once=random.random() < 0.5,
    )
    return pin, demand


def _lists(snapshot: Snapshot) -> bool:
    """Match attributes of details are of one dialect, lists of the other."""
    return any(isinstance(value, frozenset) for d in snapshot.devices for value in d.attributes.values())


def _slot(
    random: Random,
    snapshot: Snapshot,
    index: int,
    alternative: int | None,
    candidates: Candidates,
    crowded: bool,
) -> Request:
    modes = [AllocationMode.WHOLE, AllocationMode.EVERY, AllocationMode.ADMIN_COUNT, AllocationMode.ADMIN_ALL]
    mode = AllocationMode.WHOLE if crowded else random.choices(modes, weights=[8, 1, 1, 1])[0]
    least = random.choice([1, 1, 1, 2]) if mode in (AllocationMode.WHOLE, AllocationMode.ADMIN_COUNT) else 1
    most: int | None = least
    if mode is AllocationMode.WHOLE and random.random() < 0.1:
        most = least + 1
    elif mode in (AllocationMode.EVERY, AllocationMode.ADMIN_ALL):
        most = random.choice([None, None, 2])
    match = ("b",) if random.random() < 0.15 and not _lists(snapshot) else ()
    if match:
        having = {i: None for i in candidates.accepted if "b" in snapshot.devices[i].attributes}
        candidates = Candidates(having, ())
    portion = (("m", random.choice([1, SCALE, SCALE, SCALE, SCALE, 2 * SCALE])),)
    with_k = (*portion, ("k", random.choice([0, 1])))
    portions = {}
    for i in candidates.accepted:
        device = snapshot.devices[i]
        if device.shareable and random.random() < 0.97:
            portions[i] = with_k if "k" in device.resources else portion
    requests = {"m": random.choice([1, 3]) * SCALE} if mode is AllocationMode.WHOLE and random.random() < 0.1 else {}
    return Request(index, alternative, None, mode, least, most, requests, {}, match, candidates, portions)


def _holdings(random: Random, snapshot: Snapshot) -> Iterator[Holding]:
    for device in snapshot.devices:
        if random.random() < 0.1:
            amounts = (("m", random.choice([1, 1, 2, 3]) * SCALE),) if device.shareable else None
            yield Holding(("held", f"h{device.index}"), 0, (AllocatedDevice(device.index, amounts),))
