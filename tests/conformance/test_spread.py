"""Goal 5 of S17: devices in use are spread over nodes, then over pools, in every way to an answer; or packed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.pipeline import strategy as ways
from tests.support import oracle, random_fleets
from tests.support.answer_verifier import complaints
from tests.support.manifests import allocated, claim, device, device_class, entry, pool
from tests.support.oracle_instance import ADMIN, Instance, read

Manifest = dict[str, Any]
EXAMPLES = int(os.environ.get("DEVALLOC_FUZZ_EXAMPLES", "150"))


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


def measure(instance: Instance, answers: Iterable[Manifest], policy: str = "spread") -> tuple[int, int]:
    """The squares of an answer, or the places that it brings into use; what admin details look at is not in use."""
    position = {each.key: index for index, each in enumerate(instance.devices)}
    by_place = {(node, pool, name): index for (node, _, pool, name), index in position.items()}
    details = {one.key: one.entries for group in instance.groups for one in group.claims}
    given = set()
    for answer in answers:
        key = answer["namespace"], answer["name"]
        if not answer["allocated"] or key not in details:
            continue
        for number, chosen in enumerate(answer["oneOf"] or [None] * len(details[key])):
            if details[key][number][chosen or 0].mode == ADMIN:
                break
        else:
            for got in answer["allocations"]:
                place = got["devicePoolName"], got["deviceName"]
                given.add(by_place.get((answer["node"], *place), by_place.get((None, *place))))
    of_policy = oracle.squares if policy == "spread" else oracle.new_places
    return of_policy(instance, [index for index in given if index is not None])


def test_six_claims_go_to_three_nodes_evenly_in_every_way() -> None:
    documents, waiting = fleet(3, 3), claims(6)
    warm = Fleet.from_manifests(documents, placement="spread")
    assert nodes_of(solve_manifests([*documents, *waiting], placement="spread")["claims"]) == [2, 2, 2]
    assert nodes_of(one_by_one(documents, waiting)) == [2, 2, 2]
    assert nodes_of(warm.allocate_all(waiting)["claims"]) == [2, 2, 2]
    assert nodes_of(solve_manifests([*documents, *waiting])["claims"]) == [3, 3]


def test_what_is_in_use_counts_by_how_much_it_is() -> None:
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
    assert measure(read(documents), answer["claims"]) == best.squares


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
