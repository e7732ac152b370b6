"""Goal 6 of S17: wherever it was searched, the first devices of a pool go to the first claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from devalloc_solver import solve_manifests
from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.pipeline import natural_order, strategy
from devalloc_solver.pipeline.natural_order import in_natural_order
from devalloc_solver.pipeline.strategy import search_parts
from devalloc_solver.problem.placement import Placement
from devalloc_solver.problem.placement_policy import PACK, POLICIES, PlacementPolicy
from devalloc_solver.testing import device, device_class, pool
from tests.support import dra_builders as dra
from tests.support import random_fleets
from tests.support.examples import examples
from tests.support.manifests import claim

Manifest = dict[str, Any]
CLASSES = [device_class("gpu", driver="g"), device_class("even", driver="g", constraints="device.odd == 0")]


def node(size: int = 6, half: int = 3) -> Manifest:
    attributes = [{"numa": number // half, "odd": number % 2} for number in range(size)]
    return pool("p", "n", "g", devices=[device(f"d{n}", attributes=own) for n, own in enumerate(attributes)])


def wants(name: str, count: int, kind: str = "gpu", priority: int = 0, match: str | None = None) -> Manifest:
    detail = {"deviceClass": kind, "requests": {"count": count}, **({"matchAttributes": [match]} if match else {})}
    wanted = claim(name, detail)
    wanted["metadata"]["annotations"] = {"devalloc.io/priority": str(priority)}
    return wanted


def solved(*documents: Manifest) -> tuple[Any, list[Placement]]:
    problem = prepare(read_documents([*CLASSES, *documents]))
    outcome = search_parts(problem.snapshot, problem.allocations, problem.units, policy=PACK, ends=None)
    return problem, outcome.placements


def named(placements: list[Placement]) -> dict[str, list[str]]:
    return {one.demand.key[1]: [entry.device.name for entry in one.entries] for one in placements}


def test_the_first_devices_go_to_the_claim_that_comes_first() -> None:
    _, placements = solved(node(), wants("b", 1), wants("a", 2), wants("urgent", 1, priority=1))
    assert named(placements) == {"urgent": ["d0"], "a": ["d1", "d2"], "b": ["d3"]}


def test_a_later_claim_keeps_devices_that_agree() -> None:
    _, placements = solved(node(4, 2), wants("a", 1), wants("b", 1), wants("c", 2, match="numa"))
    assert named(placements) == {"a": ["d0"], "b": ["d1"], "c": ["d2", "d3"]}


def test_a_later_claim_keeps_devices_of_its_class() -> None:
    _, placements = solved(node(4), wants("a", 2), wants("b", 2, "even"))
    assert named(placements) == {"a": ["d1", "d3"], "b": ["d0", "d2"]}


def renamed(placed: Placement, problem: Any, other: Callable[[int], int]) -> Placement:
    """The same on other devices."""
    devices = [problem.snapshot.devices[other(entry.device.index)] for entry in placed.entries]
    entries = [replace(entry, device=one) for entry, one in zip(placed.entries, devices, strict=True)]
    return replace(placed, entries=tuple(entries))


def sharing(*amounts: str) -> list[Manifest]:
    """Claims that share devices: each a device of its own, or what others left."""
    details = [{"deviceClass": "gpu", "requests": {"memory": amount}, "limits": {"count": 1}} for amount in amounts]
    return [claim(name, detail) for name, detail in zip("abcd", details, strict=False)]


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_shares_of_a_device_stay_together_on_the_first_one(order: tuple[int, ...]) -> None:
    devices = [device(f"d{number}", resources={"memory": "8Gi"}) for number in range(3)]
    problem, placements = solved(pool("p", "n", "g", devices=devices), *sharing("5Gi", "7Gi", "3Gi"))
    others = [renamed(placed, problem, order.__getitem__) for placed in placements]
    again = in_natural_order(problem.snapshot, problem.allocations, others)
    assert named(again) == {"a": ["d0"], "b": ["d1"], "c": ["d0"]}


def test_devices_that_draw_something_else_are_dealt_too() -> None:
    """Of those that claims get together: which ones these are the search decides."""
    devices = [{"name": f"d{number}", "requests": {"slots": number % 2}} for number in range(3)]
    drawn_on = pool("p", "n", "g", devices=devices)
    drawn_on["spec"]["resources"] = [{"name": "slots", "capacity": "2"}]
    problem, placements = solved(drawn_on, wants("a", 1), wants("b", 2))
    for others in (placements, [renamed(placed, problem, [1, 0, 2].__getitem__) for placed in placements]):
        again = in_natural_order(problem.snapshot, problem.allocations, others)
        assert named(again) == {"a": ["d0"], "b": ["d1", "d2"]}


def test_many_claims_get_the_first_devices_of_a_large_pool() -> None:
    problem, placements = solved(node(1500, 750), *(wants(f"c{number:04}", 1) for number in range(1100)))
    last = len(problem.snapshot.devices) - 1
    backwards = [renamed(placed, problem, lambda index: last - index) for placed in placements]
    again = in_natural_order(problem.snapshot, problem.allocations, backwards)
    assert named(again) == {f"c{number:04}": [f"d{number}"] for number in range(1100)}


def test_what_takes_too_long_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, placements = solved(node(), wants("a", 2), wants("b", 2, match="numa"))
    backwards = exchanged(Random(1), problem, placements)
    monkeypatch.setattr(natural_order, "MAX_STEPS", 1)
    assert named(in_natural_order(problem.snapshot, problem.allocations, backwards)) == named(backwards)


def exchanged(random: Random, problem: Any, placements: list[Placement]) -> list[Placement]:
    """Another answer that is as good: claims, drawn in turn, get devices of their pools anew."""
    order = [*problem.snapshot.devices]
    for _ in range(200):
        random.shuffle(order)
        free, others = [*order], []
        for placed in sorted(placements, key=lambda _: random.random()):
            (request,) = {entry.request for entry in placed.entries}
            able = [one for one in free if one.index in request.candidates.accepted]
            if request.match:
                first = random.choice(able or order).attributes["numa"]
                able = [one for one in able if one.attributes["numa"] == first]
            given = sorted(able[: len(placed.entries)], key=lambda one: one.index)
            if len(given) < len(placed.entries):
                break
            free = [one for one in free if one not in given]
            entries = tuple(type(placed.entries[0])(request, one) for one in given)
            others.append(Placement(placed.demand, placed.node, entries))
        else:
            return others
    return placements


@pytest.mark.parametrize("seed", range(60))
def test_it_does_not_matter_how_devices_were_dealt_before(seed: int) -> None:
    random = Random(seed)
    claims = [
        wants(f"c{number}", random.choice([1, 1, 2]), random.choice(["gpu", "gpu", "even"]), random.randrange(2), match)
        for number in range(random.choice([2, 3, 4]))
        for match in [random.choice([None, None, "numa"])]
    ]
    problem, placements = solved(node(8, 4), *claims)
    others = exchanged(random, problem, placements)

    again = in_natural_order(problem.snapshot, problem.allocations, others)

    assert named(again) == named(placements)
    used = [entry.device.index for placed in again for entry in placed.entries]
    assert len(used) == len({*used})
    for placed in again:
        for entry in placed.entries:
            assert entry.device.index in entry.request.candidates.accepted
            assert len({one.device.attributes["numa"] for one in placed.entries}) == 1 or not entry.request.match


def counts(placements: list[Placement]) -> object:
    """What goals 1 to 5 of S17 see of claims, and of all of them together."""
    of_claims = {
        one.demand.key: sorted((entry.request.label, entry.device.pool, entry.amounts) for entry in one.entries)
        for one in placements
    }
    devices = {entry.device.index: entry.device for one in placements for entry in one.entries}
    in_use = [(one.pool, one.draws, sorted(one.resources.items(), key=str)) for one in devices.values()]
    return of_claims, sorted(in_use, key=str)


@pytest.mark.parametrize("seed", range(70, 70 + examples(25, 0.5)))
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_claims_keep_how_many_devices_they_have_and_pools_what_is_drawn(seed: int, policy: PlacementPolicy) -> None:
    """And the check, which solving calls, finds nothing wrong."""
    documents = random_fleets.documents(Random(seed))
    solve_manifests(documents, placement=policy.name)
    problem = prepare(read_documents(documents))
    with patch.object(strategy, "in_natural_order", lambda _snapshot, _holdings, placements: [*placements]):
        outcome = search_parts(problem.snapshot, problem.allocations, problem.units, policy=policy, ends=None)
    again = in_natural_order(problem.snapshot, problem.allocations, outcome.placements)
    assert counts(again) == counts(outcome.placements)
    assert in_natural_order(problem.snapshot, problem.allocations, again) == again


@pytest.mark.parametrize("order", [*permutations("abc")], ids="".join)
def test_no_other_device_is_taken_than_the_one_that_an_admin_looks_at(order: tuple[str, ...]) -> None:
    """One device more would be one too many (goal 4)."""
    watch = device_class("watch", driver="g")
    watch["spec"]["adminAccess"] = True
    _, placements = solved(watch, node(), wants(order[0], 1, "watch"), wants(order[1], 1), wants(order[2], 1))
    assert len({name for names in named(placements).values() for name in names}) == 2


def test_devices_of_a_claim_whose_values_must_differ_have_values() -> None:
    devices = [dra.device("d0"), dra.device("d1", {"id": "a"}), dra.device("d2", {"id": "b"})]
    claims = [dra.claim(dra.request("r", 1), name="a", distinct="gpu.io/id"), dra.claim(dra.request("r", 1), name="b")]
    answers: Any = solve_manifests([dra.device_class("any"), dra.slice_("s", devices), *claims])["claims"]
    given = [[entry["device"] for entry in each["allocations"]["devices"]["results"]] for each in answers]
    assert given == [["d1"], ["d0"]]
