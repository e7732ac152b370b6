"""Who is named for a ResourceClaim that finds its devices in use, judged by trying every set of holders by hand.

If the release of one claim is enough, the blockers are one such claim; no name of a larger set can be left out. The
rows of the funnel are judged by giving each device away alone. The rules are written here once more, for small fleets
of whole devices, partitions and shares. DEVALLOC_FUZZ_EXAMPLES sets how many.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from devalloc_solver.dra import explain, solve_manifests
from tests.support.dra_builders import ANY, claim, counter_slice, device, node, request, slice_
from tests.support.examples import examples

EXAMPLES = examples(60)
BATCH = 30
Manifest = dict[str, Any]
COUNTERS = 4
"""Slices of a card that has partitions."""
MEMORY = 8
"""Capacity of a device that is shared."""


@dataclass(frozen=True)
class Device:
    node: str | None
    """None: every node reaches it"""
    pool: str
    name: str
    kind: str
    """whole, part or shared"""
    numa: int
    slices: frozenset[int] = frozenset()
    """what it takes of its card, whose slices no other claim may have then"""


@dataclass(frozen=True)
class Held:
    device: Device
    memory: int = 0
    """of a device that is shared"""


@dataclass(frozen=True)
class Ask:
    kind: str
    count: int
    memory: int = 0
    size: int = 0
    """slices of a partition, or 0 for any"""

    def takes(self, one: Device) -> bool:
        return one.kind == self.kind and self.size in (0, len(one.slices))


@dataclass(frozen=True)
class Case:
    nodes: tuple[str, ...]
    devices: tuple[Device, ...]
    holders: tuple[tuple[str, tuple[Held, ...]], ...]
    asks: tuple[Ask, ...]
    match: bool


# -- the rules ---------------------------------------------------------------------------------------------------------


def fits(case: Case, gone: Iterable[str] = ()) -> bool:
    """Whether the claim fits some node once these holders are gone."""
    left = set(gone)
    held = [item for name, items in case.holders if name not in left for item in items]
    return any(_fits(case, held, node) for node in case.nodes)


def _fits(case: Case, held: Sequence[Held], node: str) -> bool:
    there = [one for one in case.devices if one.node in (None, node)]
    choices = [itertools.combinations([d for d in there if ask.takes(d)], ask.count) for ask in case.asks]
    for chosen in itertools.product(*choices):
        taken = [Held(d, ask.memory) for ask, some in zip(case.asks, chosen, strict=True) for d in some]
        if case.match and len({item.device.numa for item in taken}) > 1:
            continue
        if is_possible([*held, *taken]):
            return True
    return False


def is_possible(held: Sequence[Held]) -> bool:
    """Whether all this can be held at once."""
    memory: Counter[Device] = Counter()
    taken: set[object] = set()
    for item in held:
        if item.device in memory:
            memory[item.device] += item.memory
            continue
        if item.device.kind == "shared":
            memory[item.device] = item.memory
        parts = {(item.device.pool, number) for number in item.device.slices} or {item.device}
        if not taken.isdisjoint(parts):
            return False
        taken |= parts
    return all(amount <= MEMORY for amount in memory.values())


def row(case: Case, ask: Ask, one: Device) -> str:
    """Of the funnel, for a device that passes all that the request says."""
    held = [item for _, items in case.holders for item in items]
    if is_possible([*held, Held(one, ask.memory)]):
        return "free"
    return "inUse" if any(item.device == one for item in held) else "excluded"


# -- drawn cases -------------------------------------------------------------------------------------------------------


def drawn(rng: Random, *, nodes: int | None = None) -> Case:
    names = tuple(f"n{i}" for i in range(nodes or rng.choice([1, 2, 3])))
    places: list[str | None] = [*names, *([None] if rng.random() < 0.25 else [])]
    devices = tuple(one for place in places for one in _pools(rng, place))
    holders: list[tuple[str, tuple[Held, ...]]] = []
    held: list[Held] = []
    for number in range(rng.randint(1, 7)):
        node = rng.choice(names)
        own: list[Held] = []
        order = [d for d in devices if d.node in (None, node)]
        rng.shuffle(order)
        wanted = rng.choice([1, 1, 1, 2, 3])
        for one in order:
            item = Held(one, rng.randint(1, 5) if one.kind == "shared" else 0)
            if len(own) < wanted and is_possible([*held, *own, item]):
                own.append(item)
        if own:
            holders.append((f"h{number}", tuple(own)))
            held += own
    asks = tuple(_ask(rng) for _ in range(rng.choice([1, 1, 2])))
    return Case(names, devices, tuple(holders), asks, rng.random() < 0.3)


def _pools(rng: Random, node: str | None) -> Iterator[Device]:
    name = node or "net"
    for number in range(rng.randint(0, 4)):
        yield Device(node, f"{name}-whole", f"w{number}", "whole", rng.randrange(2))
    for card in range(rng.choice([0, 1, 1, 2])):
        numa = rng.randrange(2)
        for size in (1, 2, 4):
            for start in range(0, COUNTERS, size):
                slices = frozenset(range(start, start + size))
                kind = "shared" if size == 2 and rng.random() < 0.3 else "part"
                yield Device(node, f"{name}-card{card}", f"p{size}-{start}", kind, numa, slices)
    for number in range(rng.choice([0, 0, 1, 2])):
        yield Device(node, f"{name}-shared", f"s{number}", "shared", rng.randrange(2))


def _ask(rng: Random) -> Ask:
    match rng.choice(["whole", "part", "part", "shared"]):
        case "whole":
            return Ask("whole", rng.randint(1, 3))
        case "part":
            return Ask("part", rng.choice([1, 1, 2]), size=rng.choice([0, 1, 2, 4, 4]))
        case _:
            return Ask("shared", 1, memory=rng.randint(1, MEMORY))


# -- as manifests ------------------------------------------------------------------------------------------------------


def slices_of(case: Case) -> list[Manifest]:
    pools: dict[str, list[Device]] = {}
    for one in case.devices:
        pools.setdefault(one.pool, []).append(one)
    slices = []
    for pool, some in pools.items():
        node, is_card = some[0].node, bool(some[0].slices)
        where = {"allNodes": True} if node is None else {"nodeName": node}
        spec = {"pool": pool, "count": 2 if is_card else 1, **where}
        slices.append(slice_(pool, [_device(one) for one in some], **deepcopy(spec)))
        if is_card:
            slices.append(counter_slice(f"{pool}-counters", {"card": {f"m{i}": "1" for i in range(COUNTERS)}}, **spec))
    return slices


def _device(one: Device) -> Manifest:
    attributes = {"kind": one.kind, "numa": one.numa, "size": len(one.slices), "id": f"{one.pool}-{one.name}"}
    counters = {"card": {f"m{i}": "1" for i in sorted(one.slices)}} if one.slices else {}
    if one.kind == "shared":
        return device(one.name, attributes, shared=True, capacity={"memory": str(MEMORY)}, counters=counters)
    return device(one.name, attributes, counters=counters)


def waiting(asks: Sequence[Ask], *, match: bool, name: str = "x", only: Device | None = None) -> Manifest:
    requests = []
    for number, ask in enumerate(asks):
        rules = [f"device.attributes['gpu.io'].kind == '{ask.kind}'"]
        rules += [f"device.attributes['gpu.io'].size == {ask.size}"] if ask.size else []
        rules += [f"device.attributes['gpu.io'].id == '{only.pool}-{only.name}'"] if only else []
        amounts = {"memory": str(ask.memory)} if ask.memory else None
        requests.append(request(f"r{number}", ask.count, *rules, amounts=amounts))
    return claim(*requests, name=name, match="gpu.io/numa" if match else None)


def holder(name: str, items: Sequence[Held]) -> Manifest:
    results = []
    for number, item in enumerate(items):
        result = {"request": f"r{number}", "driver": "gpu.io", "pool": item.device.pool, "device": item.device.name}
        if item.device.kind == "shared":
            result |= {"shareID": f"{name}-{number}", "consumedCapacity": {"memory": str(item.memory)}}
        results.append(result)
    spec = claim(*(request(f"r{number}") for number in range(len(items))), name=name)
    return spec | {"status": {"allocation": {"devices": {"results": results}}}}


def cold(case: Case, gone: Iterable[str] = (), pending: Manifest | None = None) -> Manifest:
    """The answer of a solve of the whole cluster."""
    answers = solve_manifests(_documents(case, gone, pending or waiting(case.asks, match=case.match)))["claims"]
    return dict(next(one for one in answers if one["name"] == "x"))


def _documents(case: Case, gone: Iterable[str], pending: Manifest) -> list[Manifest]:
    held = [holder(name, items) for name, items in case.holders if name not in {*gone}]
    return [*map(node, case.nodes), ANY, *slices_of(case), *held, pending]


def warm(case: Case) -> Manifest:
    """The answer of a fleet that has been asked before."""
    *documents, pending = _documents(case, (), waiting(case.asks, match=case.match))
    fleet = ResourceClaimFleet.from_manifests(documents)
    fleet.allocate({**deepcopy(pending), "metadata": {"namespace": "default", "name": "before"}})
    if fleet.holds("default", "before"):
        fleet.release("default", "before")
    return fleet.allocate(pending)


def on_a_node(case: Case) -> Manifest:
    """What ``explain`` says of a case of one node."""
    held = [holder(name, items) for name, items in case.holders]
    pending = waiting(case.asks, match=case.match)
    explanation = explain(case.nodes[0], [*held, pending], [ANY], slices_of(case))
    (own,) = (one for one in explanation["claims"] if one["name"] == "x")
    return {**explanation, "allocated": explanation["reason"] is None, "funnel": own["requests"]}


# -- what holds --------------------------------------------------------------------------------------------------------


def faults(case: Case, answer: Manifest) -> list[str]:
    """What is not true of an answer."""
    if answer["allocated"] != fits(case):
        return [f"allocated is {answer['allocated']}"]
    if answer["allocated"]:
        return []
    problems = [*wrong_rows(case, answer["funnel"])]
    everyone = [name for name, _ in case.holders]
    if not fits(case, everyone):
        return problems  # no release helps, and what else must change is judged elsewhere
    if answer["reason"] != "DevicesInUse":
        return [*problems, f"reason {answer['reason']}"]
    named = [blocker["name"] for blocker in answer["blockers"] if blocker["kind"] == "claim"]
    if len(named) != len(answer["blockers"]) or not named:
        return [*problems, f"blockers {answer['blockers']}"]
    alone = [name for name in everyone if fits(case, [name])]
    if alone and (len(named) > 1 or named[0] not in alone):
        problems.append(f"{named} in place of one of {alone}")
    if not fits(case, named):
        problems.append(f"the release of {named} does not help")
    problems += [f"{name} of {named} can stay" for name in named if fits(case, {*named} - {name})]
    if not cold(case, named)["allocated"]:
        problems.append(f"the solver does not see that the release of {named} helps")
    return problems


def wrong_rows(case: Case, funnels: Sequence[Manifest]) -> Iterator[str]:
    for ask, funnel in zip(case.asks, funnels, strict=True):
        rows = Counter(row(case, ask, one) for one in case.devices if ask.takes(one))
        # ``explain`` of one node has a step for devices that are in use, before it asks what else they are.
        names = ["free", "excluded"] + (["inUse"] if funnel["matching"] == rows.total() else [])
        shown, true = ({name: some[name] for name in names} for some in (funnel, rows))
        if shown != true:
            yield f"{ask}: the funnel has {shown}, true is {true}"


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_blockers_and_funnels_of_a_cluster_are_true(first: int) -> None:
    _judge(first, cold, None)


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_blockers_and_funnels_of_a_fleet_that_was_asked_before_are_true(first: int) -> None:
    _judge(first, warm, None)


@pytest.mark.parametrize("first", range(0, EXAMPLES, BATCH))
def test_blockers_and_funnels_of_a_node_are_true(first: int) -> None:
    _judge(first, on_a_node, 1)


def _judge(first: int, answer: Any, nodes: int | None) -> None:
    by_seed, lost = {}, 0
    for seed in range(first, first + BATCH):
        case = drawn(Random(seed), nodes=nodes)
        given = answer(case)
        lost += not given["allocated"]
        by_seed[seed] = faults(case, given)
    assert {seed: problems for seed, problems in by_seed.items() if problems} == {}
    assert lost > BATCH // 4


@pytest.mark.parametrize("seed", range(0, EXAMPLES, 10))
def test_what_the_funnel_calls_free_can_be_had_alone_and_nothing_else(seed: int) -> None:
    """Judged by the solver itself, device by device."""
    case = drawn(Random(seed))
    ask = replace(case.asks[0], count=1)
    taken = [one for one in case.devices if ask.takes(one)]
    can = sum(cold(case, (), waiting([ask], match=False, only=one))["allocated"] for one in taken)
    hopeless = replace(case, asks=(replace(ask, count=12),), match=False)

    (funnel,) = cold(hopeless)["funnel"]

    assert (funnel["matching"], funnel["free"]) == (len(taken), can)


@pytest.mark.parametrize("answer", [cold, warm, on_a_node])
def test_one_holder_of_two_is_named_in_place_of_two_holders_of_one(answer: Any) -> None:
    """It comes after more holders than there are questions about sets of them."""
    devices = tuple(Device("n0", "n0-whole", f"w{number}", "whole", 0) for number in range(82))
    holders = [(f"h{number:02}", (Held(one),)) for number, one in enumerate(devices[2:])]
    two = ("z", tuple(Held(one) for one in devices[:2]))

    given = answer(Case(("n0",), devices, (*holders, two), (Ask("whole", 2),), match=False))

    assert [blocker["name"] for blocker in given["blockers"]] == ["z"]
