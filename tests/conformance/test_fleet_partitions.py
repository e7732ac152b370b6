"""A warm Fleet chooses among partitions as solve_manifests does: goals 5 and 6 of S17 mean the same to both."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from tests.support.examples import examples
from tests.support.manifests import Manifest, claim, device, device_class, pool

SEEDS = range(examples(24, 0.15))
RULES = device_class("any")


def cards(random: Random) -> list[Manifest]:
    """Pools of one or two cards each, with whole devices among the partitions."""
    pools = []
    for number in range(random.randint(1, 5)):
        count, capacity = random.choice([1, 1, 2]), random.choice([4, 7])
        devices = []
        for each in range(random.randint(1, 6)):
            size = random.choice([0, 1, 2, 3, capacity])
            draws = {f"card-{random.randrange(count)}": size} if size else None
            attributes = {"size": size, "model": random.choice("ab")}
            devices.append(device(f"d{each}", attributes=attributes, requests=draws))
        resources = {f"card-{card}": capacity for card in range(count)}
        pools.append(pool(f"p{number}", random.choice(["n0", "n1", "n2"]), resources=resources, devices=devices))
    return pools


def detail(random: Random) -> dict[str, Any]:
    content: dict[str, Any] = {"deviceClass": "any"}
    if random.random() < 0.5:
        content["constraints"] = random.choice(["device.size >= 2", "device.size == 1", "device.model == 'a'"])
    if random.random() < 0.3:
        content["requests"] = {"count": random.randint(1, 3)}
    return content


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fleet_gives_what_solve_manifests_gives(seed: int) -> None:
    random = Random(seed)
    documents, placement = [RULES, *cards(random)], random.choice(["pack", "pack", "spread"])
    fleet = Fleet.from_manifests(documents, placement=placement)
    for number in range(4):
        one, other = detail(random), detail(random)
        pending = claim(f"c{number}", random.choice([one, {"oneOf": [one, other]}]))
        answer = fleet.allocate(copy.deepcopy(pending))
        answers = solve_manifests([*copy.deepcopy(documents), pending], placement=placement)["claims"]
        (expected,) = [each for each in answers if each["name"] == f"c{number}"]
        for each in ("allocated", "node", "oneOf", "allocations"):
            assert answer[each] == expected[each], (seed, number)
        if answer["allocated"]:
            pending["metadata"]["annotations"] = answer["annotations"]
            documents.append({**pending, "status": {"allocations": answer["allocations"]}})


def test_the_only_size_of_partitions_is_worth_no_more_than_any_device() -> None:
    card = pool("p1", "n0", resources={"slices": 4}, devices=[device("x", requests={"slices": 3})])
    documents = [RULES, card, pool("p2", "n1", devices=[device("x")])]
    pending = claim("c", {"deviceClass": "any"})
    assert Fleet.from_manifests(documents).allocate(pending)["node"] == "n0", "the first in order (goal 6)"
    assert solve_manifests([*documents, pending])["claims"][0]["node"] == "n0"


def test_a_node_that_loses_less_is_found_behind_one_with_equal_devices_to_offer() -> None:
    """What a claim may have is alike on both; that its device breaks up a card is not."""
    small = [device(f"small-{n}", attributes={"size": 1}, requests={"slices": 1}) for n in range(2)]
    large = device("large", attributes={"size": 4}, requests={"slices": 4})
    broken = pool("p1", "n0", resources={"slices": 4}, devices=[*small, large])
    spare = pool("p2", "n1", resources={"slices": 4}, devices=small)
    two = {"constraints": "device.size == 1", "matchAttributes": ["size"], "requests": {"count": 2}}
    pending = claim("c", {"deviceClass": "any", **two})
    documents = [RULES, broken, spare]
    assert Fleet.from_manifests(documents).allocate(pending)["node"] == "n1"
    assert solve_manifests([*documents, pending])["claims"][0]["node"] == "n1"


def equal_cards(random: Random) -> list[Manifest]:
    """Cards of one node that differ in their names alone, each with physical and virtual functions, in any order."""
    count, functions, virtual = random.choice([2, 2, 3]), random.choice([1, 1, 2]), random.choice([2, 2, 3])
    made = []
    for card in range(count):
        devices = []
        for pf in range(functions):
            of_pf = {"kind": "pf", "numa": 0}
            devices.append(device(f"pf{pf}", attributes=of_pf, requests={f"vfs{pf}": virtual}))
            devices += [
                device(f"pf{pf}vf{vf}", attributes={"kind": "vf", "numa": 0}, requests={f"vfs{pf}": 1})
                for vf in range(virtual)
            ]
        resources = {f"vfs{pf}": virtual for pf in range(functions)}
        made.append(pool(f"nic{card}", "node", "nic", resources=resources, devices=devices))
    random.shuffle(made)
    return made


@pytest.mark.parametrize("seed", SEEDS)
def test_of_equal_cards_a_fleet_gives_the_same_as_solve_manifests(seed: int) -> None:
    """Three of four virtual functions of two cards: two of the first card and one of the second, in every way."""
    random = Random(seed)
    documents = [device_class("vf", driver="nic", constraints="device.kind == 'vf'"), *equal_cards(random)]
    wanted: dict[str, Any] = {"deviceClass": "vf", "requests": {"count": random.randint(1, 4)}}
    if random.random() < 0.5:
        wanted["matchAttributes"] = ["numa"]
    wish = claim("c", wanted)
    for placement in ("pack", "spread"):
        (cold,) = solve_manifests([*documents, wish], placement=placement)["claims"]
        assert Fleet.from_manifests(documents, placement=placement).allocate(wish) == cold
        (joint,) = Fleet.from_manifests(documents, placement=placement).allocate_all([wish])["claims"]
        assert joint == cold
        pools = [each["devicePoolName"] for each in cold["allocations"]]
        counts = [pools.count(name) for name in dict.fromkeys(pools)]
        assert counts == sorted(counts, reverse=True), "the first cards have the most of it"
