"""A partition goes where the largest device stays whole, and of such places where most others stay possible (S17, goal
5): against an oracle that knows the places of profiles on real cards, and nothing of the solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from tests.support import resource_manifests as kubernetes
from tests.support.manifests import Manifest, claim, device, device_class, pool

SEEDS = range(12)
Place = tuple[str, int]
"""a profile, and its first memory slice"""

OF_AMPERE = {
    "1g": (1, 1, (0, 1, 2, 3, 4, 5, 6)),
    "1g.double": (1, 2, (0, 2, 4, 6)),
    "2g": (2, 2, (0, 2, 4)),
    "3g": (3, 4, (0, 4)),
    "4g": (4, 4, (0,)),
    "7g": (7, 8, (0,)),
}
CARDS: Mapping[str, Mapping[str, tuple[int, int, tuple[int, ...]]]] = {
    "A100": {profile: OF_AMPERE[profile] for profile in ("1g", "2g", "3g", "4g", "7g")},
    "H100": OF_AMPERE,
    "A30": {"1g": (1, 1, (0, 1, 2, 3)), "2g": (2, 2, (0, 2)), "4g": (4, 4, (0,))},
}
"""profile -> (compute slices, memory slices, where it may begin), as NVIDIA's guide has them"""


def places(card: str) -> list[Place]:
    return [(profile, start) for profile, (_, _, starts) in CARDS[card].items() for start in starts]


def counters_of(card: str, place: Place) -> dict[str, str]:
    compute, memory, _ = CARDS[card][place[0]]
    return {"compute": str(compute), **{f"memory-{place[1] + n}": "1" for n in range(memory)}}


def counters_of_all(card: str) -> dict[str, str]:
    (compute, memory, _) = max(CARDS[card].values())
    return {"compute": str(compute), **{f"memory-{n}": "1" for n in range(memory)}}


def device_claims(card: str) -> list[Manifest]:
    devices = [
        device(name_of(place), attributes={"profile": place[0], "start": place[1]}, requests=counters_of(card, place))
        for place in places(card)
    ]
    return [device_class("gpu"), pool("card", "n0", resources=counters_of_all(card), devices=devices)]


def device_claim(name: str, profile: str, start: int | None = None) -> Manifest:
    at = "" if start is None else f" && device.start == {start}"
    return claim(name, {"deviceClass": "gpu", "constraints": f"device.profile == '{profile}'{at}"})


def resource_claims(card: str) -> list[Manifest]:
    devices = [
        kubernetes.device(name_of(place), draws=counters_of(card, place), profile=place[0], start=place[1])
        for place in places(card)
    ]
    shared = [kubernetes.counters(**counters_of_all(card))]
    gpu = {"apiVersion": kubernetes.API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
    slices = [
        kubernetes.slice_of("card", "n0", devices, of=2, name="devices"),
        kubernetes.slice_of("card", "n0", of=2, name="counters", sharedCounters=shared),
    ]
    return [gpu, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}}, *slices]


def resource_claim(name: str, profile: str, start: int | None = None) -> Manifest:
    of = f'device.attributes["{kubernetes.DRIVER}"]'
    at = "" if start is None else f" && {of}.start == {start}"
    wanted = kubernetes.resource_claim(name)
    exactly = wanted["spec"]["devices"]["requests"][0]["exactly"]
    exactly["selectors"] = [{"cel": {"expression": f'{of}.profile == "{profile}"{at}'}}]
    return wanted


def name_of(place: Place) -> str:
    return f"{place[0].replace('.', '-')}-{place[1]}"


def given(answer: Mapping[str, Any]) -> str:
    """The device of a claim of either kind."""
    given = answer["allocations"]
    return str(given["devices"]["results"][0]["device"] if isinstance(given, dict) else given[0]["deviceName"])


DIALECTS = {"DeviceClaim": (device_claims, device_claim), "ResourceClaim": (resource_claims, resource_claim)}


# -- the oracle --------------------------------------------------------------------------------------------------------


def possible(card: str, held: list[Place]) -> list[Place]:
    """The places that are left beside those that are held."""

    def drawn(place: Place) -> tuple[int, set[int]]:
        compute, memory, _ = CARDS[card][place[0]]
        return compute, {*range(place[1], place[1] + memory)}

    compute = max(CARDS[card].values())[0] - sum(drawn(place)[0] for place in held)
    taken = {number for place in held for number in drawn(place)[1]}
    return [place for place in places(card) if drawn(place)[0] <= compute and taken.isdisjoint(drawn(place)[1])]


def worth(card: str, held: list[Place]) -> tuple[tuple[int, int], int, int]:
    """The largest partition that is left, by memory and compute; how many profiles are left; and how many places."""
    left = possible(card, held)
    sizes = [(CARDS[card][profile][1], CARDS[card][profile][0]) for profile, _ in left]
    return max(sizes, default=(0, 0)), len({profile for profile, _ in left}), len(left)


def some_in_use(random: Random, card: str) -> list[Place]:
    held: list[Place] = []
    for _ in range(random.randrange(4)):
        if fitting := [place for place in possible(card, held) if place[0] != max(CARDS[card])]:
            held.append(random.choice(fitting))
    return held


# -- the answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_partition_rules_out_as_little_as_any_could(dialect: str, card: str, seed: int) -> None:
    random = Random(seed)
    fleet_of, claim_of = DIALECTS[dialect]
    held = some_in_use(random, card)
    profiles = sorted({profile for profile, _ in possible(card, held)})
    if not profiles:
        return
    wanted = "1g" if "1g" in profiles and seed % 3 else random.choice(profiles)
    pending = claim_of("wanted", wanted)

    device_of_fleet, documents = warm(fleet_of(card), claim_of, held, pending)
    together = {given(one) for one in solve_manifests([*documents, pending])["claims"] if one["name"] == "wanted"}
    assert together == {device_of_fleet}, "cold and warm give the same"

    options = {name_of(place): worth(card, [*held, place]) for place in possible(card, held) if place[0] == wanted}
    assert options[device_of_fleet] == max(options.values()), (held, options)


def warm(
    documents: list[Manifest], claim_of: Callable[[str, str, int], Manifest], held: list[Place], pending: Manifest
) -> tuple[str, list[Manifest]]:
    """What a warm fleet gives the claim beside those places, and all documents with what is held."""
    fleet = Fleet.from_manifests(documents)
    for number, place in enumerate(held):
        holder = claim_of(f"held-{number}", *place)
        answer: Any = fleet.allocate(holder)
        assert given(answer) == name_of(place)
        part = "allocation" if isinstance(answer["allocations"], dict) else "allocations"
        holder["metadata"]["annotations"] = answer["annotations"]
        documents = [*documents, {**holder, "status": {part: answer["allocations"]}}]
    answer = fleet.allocate(pending)
    return given(answer), documents


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_partitions_that_come_together_leave_no_less_than_one_by_one(dialect: str, card: str, seed: int) -> None:
    random = Random(seed)
    fleet_of, claim_of = DIALECTS[dialect]
    wanted = some_in_use(random, card) or [("1g", 0), ("1g", 0)]
    claims = [claim_of(f"c{number}", profile) for number, (profile, _) in enumerate(wanted)]
    fleet = Fleet.from_manifests(fleet_of(card))

    one_by_one = [answer for each in claims if (answer := fleet.allocate(each))["allocated"]]
    together = [answer for answer in solve_manifests([*fleet_of(card), *claims])["claims"] if answer["allocated"]]
    assert len(together) >= len(one_by_one)
    if len(together) == len(one_by_one):
        assert worth(card, [*map(place_of, together)]) >= worth(card, [*map(place_of, one_by_one)])


def place_of(answer: Mapping[str, Any]) -> Place:
    profile, _, start = given(answer).rpartition("-")
    return profile.replace("-", "."), int(start)
