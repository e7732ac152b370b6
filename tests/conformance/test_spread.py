"""Goal 5 of S17: devices in use are spread over nodes, then over pools, in every way to an answer; or packed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from itertools import product
from operator import ge
from random import Random
from typing import Any

import pytest

from devalloc.api.meta import NODE
from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.pipeline import strategy as ways
from devalloc_solver.problem import placement_policy
from devalloc_solver.problem.loads import UNIT, Measure, growth, unevenness
from devalloc_solver.problem.placement_policy import SPREAD
from tests.support import dra_builders, oracle, random_fleets, spread_situations
from tests.support.answer_verifier import complaints
from tests.support.examples import examples
from tests.support.manifests import allocated, claim, device, device_class, entry, pool
from tests.support.oracle_instance import read
from tests.support.spread_situations import as_device_claims, as_resources, measure, mixed

Manifest = dict[str, Any]
EXAMPLES = examples(16)


def fleet(nodes: int, pools: int, gpus: int = 1) -> list[Manifest]:
    devices = [device(f"gpu{number}") for number in range(gpus)]
    pools_made = [pool(f"n{n}-p{p}", f"n{n}", devices=devices) for n in range(nodes) for p in range(pools)]
    return [device_class("gpu", driver="gpu"), *pools_made]


def claims(number: int) -> list[Manifest]:
    return [claim(f"c{position:03}", {"deviceClass": "gpu"}) for position in range(number)]


def nodes_of(answers: Iterable[Manifest]) -> list[int]:
    """How many claims each node got, the most first."""
    return sorted(Counter(answer["node"] for answer in answers).values(), reverse=True)


def one_by_one(documents: Sequence[Manifest], waiting: Sequence[Manifest]) -> list[Manifest]:
    warm = Fleet.from_manifests(documents, placement="spread")
    return [warm.allocate(each) for each in waiting]


def test_six_claims_go_to_three_nodes_evenly_in_every_way() -> None:
    documents, waiting = fleet(3, 3), claims(6)
    warm = Fleet.from_manifests(documents, placement="spread")
    assert nodes_of(solve_manifests([*documents, *waiting], placement="spread")["claims"]) == [2, 2, 2]
    assert nodes_of(one_by_one(documents, waiting)) == [2, 2, 2]
    assert nodes_of(warm.allocate_all(waiting)["claims"]) == [2, 2, 2]
    assert nodes_of(solve_manifests([*documents, *waiting])["claims"]) == [3, 3]


def test_spreading_counts_devices_in_use() -> None:
    held = [
        allocated(claim(f"h{node}{number}", {"deviceClass": "gpu"}), [entry(f"n{node}-p{number}", "gpu0")])
        for node, count in enumerate((3, 1, 2))
        for number in range(count)
    ]
    documents, waiting = [*fleet(3, 8), *held], claims(6)
    answers = solve_manifests([*documents, *waiting], placement="spread")["claims"]
    together = [each for each in answers if each["name"].startswith("c")]
    for answered in (together, one_by_one(documents, waiting)):
        assert Counter(each["node"] for each in answered) == {"n0": 1, "n1": 3, "n2": 2}


@pytest.mark.parametrize("first", [(2, 2), (3, 3), (1, 2, 1)])
@pytest.mark.parametrize("second", [(2,), (3,), (2, 2)])
def test_a_claim_for_several_devices_gets_the_same_cold_and_warm(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """Nodes tie where equal parts of each would be in use: then their names decide, in every way."""
    pools = [
        pool(f"n{node}-p{number}", f"n{node}", devices=[device(f"gpu{n}") for n in range(devices)])
        for node, sizes in enumerate((first, second))
        for number, devices in enumerate(sizes)
    ]
    documents = [device_class("gpu", driver="gpu"), *pools]
    warm = Fleet.from_manifests(documents, placement="spread")
    held: list[Manifest] = []
    for number, count in enumerate((1, 2, 2)):
        wanted = claim(f"c{number}", {"deviceClass": "gpu", "requests": {"count": count}})
        answers = solve_manifests([*documents, *held, wanted], placement="spread")["claims"]
        cold = next(each for each in answers if each["name"] == f"c{number}")
        again = warm.allocate(wanted)
        assert (again["node"], again["allocations"]) == (cold["node"], cold["allocations"])
        if cold["allocated"]:
            held.append(allocated(wanted, cold["allocations"]))


def test_pools_of_a_node_are_spread_over_as_well() -> None:
    held = [
        allocated(claim(f"h{number}", {"deviceClass": "gpu"}), [entry(name, f"gpu{number}")])
        for number, name in enumerate(("n0-p0", "n0-p0", "n0-p1"))
    ]
    documents = [*fleet(1, 2, 4), *held]
    (answer,) = one_by_one(documents, claims(1))
    assert answer["allocations"][0]["devicePoolName"] == "n0-p1"
    (again,) = (
        one for one in solve_manifests([*documents, *claims(1)], placement="spread")["claims"] if one["name"] < "h"
    )
    assert again["allocations"] == answer["allocations"]


def test_a_large_batch_is_spread_by_columns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "EXACT_SIZE", 0)
    documents, waiting = fleet(12, 8), claims(48)
    assert nodes_of(solve_manifests([*documents, *waiting], placement="spread")["claims"]) == [4] * 12


def test_fewest_pools_come_before_spreading() -> None:
    """200 claims need 50 pools of four: 40 nodes have one of them, and ten of these a second."""
    answer = solve_manifests([*fleet(40, 2, 4), *claims(200)], placement="spread")
    assert nodes_of(answer["claims"]) == [8] * 10 + [4] * 30


def whole_devices(random: Random) -> list[Manifest]:
    """A few nodes, some of their devices in use, and claims for whole devices."""
    documents = [device_class("gpu", driver="gpu"), device_class("new", driver="gpu", constraints="device.gen == 2")]
    for node in range(random.choice([2, 3])):
        for number in range(random.choice([1, 2])):
            gpus = [
                device(f"gpu{n}", attributes={"gen": random.choice([1, 2])}) for n in range(random.choice([1, 2, 3]))
            ]
            documents.append(pool(f"n{node}-p{number}", f"n{node}", devices=gpus))
            for gpu in gpus:
                if random.random() < 0.3:
                    name = f"h-{node}-{number}-{gpu['name']}"
                    documents.append(
                        allocated(claim(name, {"deviceClass": "gpu"}), [entry(f"n{node}-p{number}", gpu["name"])])
                    )
    for number in range(random.choice([2, 3, 4])):
        wanted = {"deviceClass": random.choice(["gpu", "gpu", "new"]), "requests": {"count": random.choice([1, 1, 2])}}
        documents.append(claim(f"c{number}", wanted))
    return documents


@pytest.mark.parametrize("seed", range(EXAMPLES // 3))
def test_small_batches_are_spread_as_well_as_can_be(seed: int) -> None:
    documents = whole_devices(Random(seed))
    best = oracle.solve(documents, policy="spread")
    answer = solve_manifests(deepcopy(documents), placement="spread")
    assert complaints(documents, answer) == []
    assert measure(read(documents), answer["claims"]) == best.unevenness


def test_each_search_asks_the_policy_by_what_it_weighs_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that takes from the node with the most free devices, one by one and jointly; to spread, each of these
    nodes gets two."""
    most = 64 * UNIT
    policy = type("MostFree", (type(SPREAD),), {"name": "most-free"})()
    policy.measure = lambda load, capacity: (most - UNIT * capacity + load) ** 2 // UNIT
    monkeypatch.setattr(placement_policy, "POLICIES", (*placement_policy.POLICIES, policy))
    large = [pool(f"n0-p{number}", "n0", devices=[device("gpu")]) for number in range(8)]
    small = [pool(f"n1-p{number}", "n1", devices=[device("gpu")]) for number in range(3)]
    held = [
        allocated(claim(f"h{number}", {"deviceClass": "gpu"}), [entry(f"n0-p{number}", "gpu")]) for number in range(2)
    ]
    documents, waiting = [device_class("gpu", driver="gpu"), *large, *small, *held], claims(4)

    for placement, expected in (("most-free", [4]), ("spread", [2, 2])):
        warm, at_once = (Fleet.from_manifests(documents, placement=placement) for _ in range(2))
        assert nodes_of(warm.allocate(each) for each in waiting) == expected
        together = solve_manifests([*documents, *waiting], placement=placement)["claims"]
        for answers in (at_once.allocate_all(waiting)["claims"], together):
            assert nodes_of(each for each in answers if each["name"] < "h") == expected


def fewest_cards(load: int, capacity: int) -> int:
    """Grows with the capacity, evenly with the load."""
    return load * capacity


def fewest_cards_evenly(load: int, capacity: int) -> int:
    """Grows with the capacity, and more steeply with the load."""
    return load * load * capacity // UNIT


def cost(weigh: Measure, sizes: Sequence[int], used: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    """Pools, and what a measure of the node and that of its pools grow by when so many more devices are in use."""
    of_node = growth(UNIT * sum(used), sum(sizes), UNIT * sum(more), weigh)
    of_pools = (growth(UNIT * u, s, UNIT * m, weigh) for u, s, m in zip(used, sizes, more, strict=True))
    return sum(map(bool, more)), of_node, sum(of_pools)


@pytest.fixture(params=[unevenness, fewest_cards, fewest_cards_evenly])
def weigh(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """By what the policy ``own`` weighs loads."""
    chosen: Measure = request.param
    policy = type("Own", (type(SPREAD),), {"name": "own", "measure": staticmethod(chosen)})()
    monkeypatch.setattr(placement_policy, "POLICIES", (*placement_policy.POLICIES, policy))
    return chosen


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_one_claim_is_where_any_convex_measure_is_least_cold_and_warm(seed: int, weigh: Measure) -> None:
    """Also where devices of one request are of several pools."""
    random = Random(seed)
    sizes = [[random.randint(1, 4) for _ in range(random.randint(1, 2))] for _ in range(random.randint(2, 5))]
    documents = [
        pool(f"n{node}-p{number}", f"n{node}", devices=[device(f"gpu{n}") for n in range(size)])
        for node, pools in enumerate(sizes)
        for number, size in enumerate(pools)
    ]
    documents.append(device_class("gpu", driver="gpu"))
    warm, used, held = Fleet.from_manifests(documents, placement="own"), [[0] * len(each) for each in sizes], []
    for number in range(5):
        count = random.choice([1, 1, 2, 3, 4])
        wanted = claim(f"c{number}", {"deviceClass": "gpu", "requests": {"count": count}})
        costs = [
            cost(weigh, pools, busy, more)
            for pools, busy in zip(sizes, used, strict=True)
            for more in product(*(range(size - some + 1) for size, some in zip(pools, busy, strict=True)))
            if sum(more) == count
        ]
        answers = solve_manifests([*documents, *held, wanted], placement="own")["claims"]
        cold, again = next(each for each in answers if each["name"] == f"c{number}"), warm.allocate(wanted)
        assert (again["node"], again["allocations"]) == (cold["node"], cold["allocations"])
        assert cold["allocated"] == bool(costs)
        if costs:
            node, given = int(cold["node"][1:]), Counter(each["devicePoolName"] for each in cold["allocations"])
            more = [given[f"n{node}-p{number}"] for number in range(len(sizes[node]))]
            assert cost(weigh, sizes[node], used[node], more) == min(costs)
            used[node] = [*map(sum, zip(used[node], more, strict=True))]
            held.append(allocated(wanted, cold["allocations"]))


@pytest.mark.parametrize("sizes", [(70, 70), (70, 110), (60, 60, 60)])
def test_a_claim_of_many_devices_is_spread_over_the_pools_that_it_needs_cold_and_warm(sizes: Sequence[int]) -> None:
    """The search for all ways to split it would take too many steps."""
    documents = [
        pool(f"n0-p{number}", "n0", devices=[device(f"gpu{n}") for n in range(size)])
        for number, size in enumerate(sizes)
    ]
    held = [
        allocated(claim(f"h{n}", {"deviceClass": "gpu"}), [entry("n0-p0", f"gpu{n}")], node="n0") for n in range(10)
    ]
    documents += [device_class("gpu", driver="gpu"), *held]
    wanted = claim("c", {"deviceClass": "gpu", "requests": {"count": 120}})
    cold = next(
        each for each in solve_manifests([*documents, wanted], placement="spread")["claims"] if each["name"] == "c"
    )
    assert Fleet.from_manifests(documents, placement="spread").allocate(wanted)["allocations"] == cold["allocations"]
    given = Counter(each["devicePoolName"] for each in cold["allocations"])
    more = [given[f"n0-p{number}"] for number in range(len(sizes))]
    used = [10, *[0] * (len(sizes) - 1)]
    every = [
        some
        for some in product(*(range(size - u + 1) for size, u in zip(sizes, used, strict=True)))
        if sum(some) == 120
    ]
    assert cost(unevenness, sizes, used, more) == min(cost(unevenness, sizes, used, some) for some in every)


@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_a_claim_of_two_pools_is_where_any_convex_measure_is_least_cold_and_warm(seed: int, weigh: Measure) -> None:
    """All nodes are as large, so that only the measure of pools tells them apart."""
    random, kinds = Random(seed), ("gpu", "nic")
    sizes = [(gpus, 8 - gpus) for gpus in random.choices(range(1, 6), k=5)]
    documents = [device_class(kind, driver=kind) for kind in kinds]
    for node, both in enumerate(sizes):
        for kind, size in zip(kinds, both, strict=True):
            documents.append(pool(f"n{node}-{kind}", f"n{node}", kind, devices=[device(f"d{n}") for n in range(size)]))
    counts = random.choice([1, 1, 2]), random.choice([1, 2, 3])
    requests = [{"deviceClass": kind, "requests": {"count": n}} for kind, n in zip(kinds, counts, strict=True)]
    wanted = claim("c", *requests)
    (cold,) = solve_manifests([*documents, wanted], placement="own")["claims"]
    assert Fleet.from_manifests(documents, placement="own").allocate(wanted)["node"] == cold["node"]
    costs = [cost(weigh, both, (0, 0), counts) for both in sizes if all(map(ge, both, counts))]
    assert cost(weigh, sizes[int(cold["node"][1:])], (0, 0), counts) == min(costs)


def test_a_pool_is_in_use_by_the_share_of_what_it_has_also_of_devices_that_the_claim_cannot_take() -> None:
    """The nodes have as many devices and have the same ones for the claim; the pools of n1 have more of the others."""
    kinds = ("gpu", "nic", "disk")
    documents = [device_class(kind, driver="any", constraints=f"device.kind == '{kind}'") for kind in kinds]
    for name, own, others in (("n0-a", "gpu", 0), ("n0-b", "nic", 6), ("n1-a", "gpu", 3), ("n1-b", "nic", 3)):
        devices = [device(f"d{n}", attributes={"kind": kind}) for n, kind in enumerate([own] * 2 + ["disk"] * others)]
        documents.append(pool(name, name[:2], "any", devices=devices))
    answers = three_answers(documents, claim("a", {"deviceClass": "gpu"}, {"deviceClass": "nic"}))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == "n1"


@pytest.mark.parametrize("seed", range(EXAMPLES // 3))
def test_small_batches_are_packed_as_well_as_can_be(seed: int) -> None:
    documents = whole_devices(Random(seed))
    best = oracle.solve(documents, policy="pack")
    answer = solve_manifests(deepcopy(documents), placement="pack")
    assert complaints(documents, answer) == []
    assert measure(read(documents), answer["claims"], "pack") == best.new_places


@pytest.mark.parametrize("seed", range(EXAMPLES // 3))
def test_a_batch_is_never_spread_less_evenly_than_its_claims_one_by_one(seed: int) -> None:
    documents = random_fleets.documents(Random(seed))
    answer = solve_manifests(deepcopy(documents), placement="spread")
    assert complaints(documents, answer) == []
    waiting = [each for each in documents if each["kind"] == "DeviceClaim" and not each.get("status")]
    if any("devalloc.io/group" in each["metadata"].get("annotations", {}) for each in waiting):
        return
    keys = {(each["metadata"].get("namespace", "default"), each["metadata"]["name"]) for each in waiting}
    together = [each for each in answer["claims"] if (each["namespace"], each["name"]) in keys]
    rest = [each for each in documents if each not in waiting]
    turns = [each["name"] for each in together]
    alone = one_by_one(rest, sorted(waiting, key=lambda each: turns.index(each["metadata"]["name"])))
    if goals(alone) == goals(together):
        instance = read(documents)
        assert measure(instance, together) <= measure(instance, alone)


def goals(answers: Sequence[Manifest]) -> object:
    """Goals 1 to 4: who is satisfied, by which alternatives, from how many pools and devices."""
    devices = {
        (each["node"], got["devicePoolName"], got["deviceName"]) for each in answers for got in each["allocations"]
    }
    chosen = {each["name"]: each["oneOf"] for each in answers if each["allocated"]}
    return chosen, len({place[:2] for place in devices}), len(devices)


# -- amounts: how much of each node is in use, as a share of what it has ----------------------------------------------


def shared_fleet(*memory: Sequence[str]) -> list[Manifest]:
    """For each node the memory of its devices, each in a pool of its own, of which claims take shares."""
    pools = [
        pool(f"n{n}-p{p}", f"n{n}", devices=[device("g0", attributes={"kind": "shared"}, resources={"memory": size})])
        for n, sizes in enumerate(memory)
        for p, size in enumerate(sizes)
    ]
    of_class = device_class("shared", driver="gpu", constraints="device.kind == 'shared'")
    return [of_class, *pools]


def share(name: str, memory: str = "4Gi", **limits: int) -> Manifest:
    detail = {"deviceClass": "shared", "requests": {"memory": memory}}
    return claim(name, {**detail, "limits": limits} if limits else detail)


def held_share(name: str, node: str, memory: str = "4Gi") -> Manifest:
    return allocated(share(name, memory), [entry(f"{node}-p0", "g0", memory=memory)], node=node)


def three_answers(documents: Sequence[Manifest], wanted: Manifest) -> list[tuple[str | None, object]]:
    """(node, devices) by one solve, by a warm fleet alone, and by a warm fleet jointly."""
    solve: Callable[..., Any] = dra.solve_manifests if wanted["kind"] == "ResourceClaim" else solve_manifests
    name = wanted["metadata"]["name"]

    def one(answer: Any) -> Manifest:
        return next(each for each in answer["claims"] if each["name"] == name)

    answers = [
        one(solve([*documents, wanted], placement="spread")),
        Fleet.from_manifests(documents, placement="spread").allocate(wanted),
        one(Fleet.from_manifests(documents, placement="spread").allocate_all([wanted])),
    ]
    return [(each["node"], each["allocations"]) for each in map(_without_share_ids, answers)]


def _without_share_ids(answer: Manifest) -> Manifest:
    answer = deepcopy(answer)
    if isinstance(answer["allocations"], dict) and answer["allocated"]:
        for result in answer["allocations"]["devices"]["results"]:
            result.pop("shareID", None)
    return answer


@pytest.mark.parametrize("limits", [{}, {"count": 1}], ids=["split", "on one device"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("nodes", [2, 3])
def test_a_share_goes_to_the_node_of_which_least_is_in_use_in_every_way(
    nodes: int, devices: int, limits: dict[str, int]
) -> None:
    documents = shared_fleet(*[["24Gi"] * devices] * nodes)
    documents += [held_share(f"h{n}", f"n{n}") for n in range(nodes - 1)]
    answers = three_answers(documents, share("a", **limits))
    assert [node for node, _ in answers] == [f"n{nodes - 1}"] * 3
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("seed", range(EXAMPLES * 2))
def test_shares_that_meet_on_one_device_go_where_least_is_in_use_in_every_way(seed: int) -> None:
    """Of the pools of a node, too."""
    random = Random(seed)
    sizes = [[f"{random.randint(3, 8)}Gi/1Gi" for _ in range(random.randint(1, 3))] for _ in range(2)]
    documents = shared_fleet(*sizes)
    for node in range(2):
        if random.random() < 0.35:
            documents.append(held_share(f"h{node}", f"n{node}", "1Gi"))
    details = [share("a", f"{random.randint(1, 4)}Gi", count=1) for _ in range(random.choice([2, 2, 3]))]
    wanted = claim("a", *(each["spec"]["claims"][0] for each in details))
    best = oracle.solve([*documents, wanted], policy="spread")
    (answer,) = (
        each for each in solve_manifests([*documents, wanted], placement="spread")["claims"] if each["name"] == "a"
    )
    assert measure(read([*documents, wanted]), [answer]) == best.unevenness
    assert [node for node, _ in three_answers(documents, wanted)] == [answer["node"]] * 3


def test_shares_that_meet_need_no_cp_sat_where_no_fewer_devices_have_their_amounts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "solve_unit", lambda *_: pytest.fail("a node is searched by CP-SAT"))
    documents = shared_fleet(*(["6Gi", "5Gi", f"{5000 + n}Mi", "6Gi"] for n in range(12)))
    details = [share("a", count=1), share("a", "3Gi")]
    answers = three_answers(documents, claim("a", *(each["spec"]["claims"][0] for each in details)))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == "n0"


def test_shares_of_the_network_that_meet_on_one_device_leave_a_claim_on_its_node() -> None:
    memory = {"g0": "8Gi", "g1": "6Gi"}
    devices = [device(name, attributes={"kind": "shared"}, resources={"memory": size}) for name, size in memory.items()]
    documents = [*shared_fleet(["2Gi"]), pool("net", None, devices=devices)]
    details = [each["spec"]["claims"][0] for each in (share("a", count=1), share("a", "7Gi"))]
    for pin in ("n0", None):
        wanted = claim("a", *details)
        wanted["metadata"]["annotations"] = {} if pin is None else {NODE: pin}
        assert [node for node, _ in three_answers(documents, wanted)] == [pin] * 3


@pytest.mark.parametrize("placement", ["spread", "pack"])
def test_few_nodes_are_searched_by_cp_sat_where_shares_that_meet_must_be_split(
    placement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones in every way, also if they were searched before."""
    searched: list[object] = []
    solve = ways.solve_unit

    def search(*question: Any) -> Any:
        searched.append(question)
        return solve(*question)

    monkeypatch.setattr(ways, "solve_unit", search)
    documents = shared_fleet(*(["6Gi", "5Gi", f"{5000 + n}Mi", "6Gi"] for n in range(2 * ways.COMPARED_NODES)))
    details = [share("a", count=1), share("a", count=1), share("a", "3Gi")]
    wanted = claim("a", *(each["spec"]["claims"][0] for each in details))
    warm = Fleet.from_manifests(documents, placement=placement)
    (cold,) = solve_manifests([*documents, wanted], placement=placement)["claims"]
    for _ in range(2):
        answer = warm.allocate(wanted)
        assert (answer["node"], answer["allocations"]) == (cold["node"], cold["allocations"])
        assert len(searched) == 2 * ways.COMPARED_NODES  # half of them cold
        warm.release("default", "a")


def test_shares_that_come_one_by_one_are_spread_over_nodes() -> None:
    documents, waiting = shared_fleet(["24Gi"], ["24Gi"], ["24Gi"]), [share(f"a{n}") for n in range(6)]
    assert nodes_of(one_by_one(documents, waiting)) == [2, 2, 2]


def test_shares_that_come_together_are_on_the_fewest_devices_before_they_are_spread() -> None:
    documents = shared_fleet(["24Gi"], ["24Gi"], ["24Gi"])
    answer = solve_manifests([*documents, *(share(f"a{n}") for n in range(6))], placement="spread")
    assert nodes_of(answer["claims"]) == [6]
    answer = solve_manifests([*documents, *(share(f"a{n}", "14Gi") for n in range(3))], placement="spread")
    assert nodes_of(answer["claims"]) == [1, 1, 1]


def test_a_node_is_in_use_by_the_share_of_what_it_has() -> None:
    """4Gi of 24Gi in use, or 8Gi of 80Gi: that is less, although it is more."""
    documents = [*shared_fleet(["24Gi"], ["40Gi", "40Gi"]), held_share("h0", "n0"), held_share("h1", "n1", "8Gi")]
    assert {node for node, _ in three_answers(documents, share("a"))} == {"n1"}
    gpus = [device(f"gpu{n}") for n in range(8)]
    documents = [device_class("gpu", driver="gpu"), pool("p0", "n0", devices=gpus[:2]), pool("p1", "n1", devices=gpus)]
    documents.append(allocated(claim("h", {"deviceClass": "gpu"}), [entry("p1", "gpu0")], node="n1"))
    answers = one_by_one(documents, claims(8))
    assert Counter(each["node"] for each in answers) == {"n1": 6, "n0": 2}


def test_a_partition_counts_as_much_as_it_draws_of_its_card() -> None:
    """A quarter of one card and three quarters of another are in use: two quarters more go to the first."""
    sizes = {"quarter": 1, "half": 2, "most": 3}
    cards = [
        pool(
            f"n{n}-card",
            f"n{n}",
            resources={"slices": 4},
            devices=[
                device(f"{size}-{k}", attributes={"size": size}, requests={"slices": sizes[size]})
                for size in sizes
                for k in range(4 // sizes[size])
            ],
        )
        for n in range(2)
    ]
    classes = [device_class(size, driver="gpu", constraints=f"device.size == '{size}'") for size in sizes]
    held = [
        allocated(claim("h0", {"deviceClass": "most"}), [entry("n0-card", "most-0")], node="n0"),
        allocated(claim("h1", {"deviceClass": "quarter"}), [entry("n1-card", "quarter-0")], node="n1"),
    ]
    documents, wanted = [*classes, *cards, *held], claim("a", {"deviceClass": "quarter"})
    answers = three_answers(documents, wanted)
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == "n1"
    waiting = [claim(f"a{n}", {"deviceClass": "quarter"}) for n in range(3)]
    assert Counter(each["node"] for each in one_by_one(documents, waiting)) == {"n1": 2, "n0": 1}


@pytest.mark.parametrize("of_n1", [("d0", "d1", "d2"), ("d0", "d0", "d1", "d2")], ids=["valid", "names a device twice"])
def test_a_node_has_the_devices_of_an_invalid_pool_as_well(of_n1: Sequence[str]) -> None:
    """One of at least six devices of n1 is in use, and one of the four of n2."""

    def gpus(name: str, *names: str) -> Manifest:
        return dra_builders.slice_(name, dra_builders.devices(*names), pool=name, nodeName=name[:2])

    def wanted(name: str) -> Manifest:
        return dra_builders.claim(dra_builders.request(), name=name)

    own = [gpus("n1-b", "g0", "g1", "g2"), gpus("n2-b", "g0", "g1", "g2", "g3")]
    documents = [dra_builders.ANY, gpus("n1-a", *of_n1), *own]
    documents += [dra_builders.held(wanted(f"h{n}"), "g0", pool=f"n{n}-b") for n in (1, 2)]
    answers = three_answers(documents, wanted("a"))
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == "n1"


@pytest.mark.parametrize("dialect", ["DeviceClaims", "ResourceClaims"])
@pytest.mark.parametrize("seed", range(EXAMPLES // 2))
def test_one_claim_of_any_kind_is_spread_as_well_as_can_be_in_every_way(seed: int, dialect: str) -> None:
    documents = mixed(Random(seed), 1)
    instance, best = read(documents), oracle.solve(documents, policy="spread")
    *rest, wanted = documents if dialect == "DeviceClaims" else as_resources(documents)
    answers = three_answers(rest, wanted)
    assert answers[0] == answers[1] == answers[2]
    assert measure(instance, together(documents, dialect)) == best.unevenness


@pytest.mark.parametrize("dialect", ["DeviceClaims", "ResourceClaims"])
@pytest.mark.parametrize("seed", range(EXAMPLES // 2))
def test_a_batch_of_one_kind_is_spread_as_well_as_can_be(seed: int, dialect: str) -> None:
    random = Random(seed)
    documents = [*mixed(random, 0)]
    kind = random.choice(spread_situations.KINDS)
    documents += [spread_situations.waiting(f"c{n}", kind) for n in range(3)]
    instance, best = read(documents), oracle.solve(documents, policy="spread")
    assert measure(instance, together(documents, dialect)) == best.unevenness


@pytest.mark.parametrize("dialect", ["DeviceClaims", "ResourceClaims"])
@pytest.mark.parametrize("seed", range(EXAMPLES // 2))
def test_a_batch_of_all_kinds_is_spread_no_worse_than_its_claims_one_by_one(seed: int, dialect: str) -> None:
    documents = mixed(Random(seed), 4)
    waiting = [each for each in documents if each["kind"] == "DeviceClaim" and "status" not in each]
    rest = [each for each in documents if each not in waiting]
    answers = [each for each in together(documents, dialect) if each["name"].startswith("c")]
    if dialect == "ResourceClaims":
        rest, waiting = as_resources(rest), as_resources(waiting)
    alone = one_by_one(rest, waiting)
    alone = as_device_claims(alone) if dialect == "ResourceClaims" else alone
    if goals(alone) == goals(answers):
        instance = read(documents)
        assert measure(instance, answers) <= measure(instance, alone)


def together(documents: Sequence[Manifest], dialect: str) -> list[Manifest]:
    if dialect == "DeviceClaims":
        return list(solve_manifests(deepcopy([*documents]), placement="spread")["claims"])
    return as_device_claims(dra.solve_manifests(as_resources(documents), placement="spread")["claims"])
