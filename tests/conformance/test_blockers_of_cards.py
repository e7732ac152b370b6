"""Blockers show what cards lack for a claim by slice: as much as fits stays within the cards, only the rest needs more.

DEVALLOC_FUZZ_EXAMPLES sets how many instances of each kind.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from devalloc_solver import solve_manifests
from tests.support.apply_blockers import with_blockers_applied
from tests.support.examples import examples
from tests.support.manifests import Manifest, claim, device, device_class, pool
from tests.support.mig_cards import A100, SMALL, Layout

EXAMPLES = examples(40)
PART = device_class("part", driver="gpu", deviceType="part")


def cards(layout: Layout, count: int, node: str = "n1", *, together: bool = False) -> list[Manifest]:
    """So many cards, each a pool of its own or all in one; every memory slice is a resource."""
    memory = max(place.stop for _, places in layout.values() for place in places)
    compute = max(slices for slices, _ in layout.values())
    pools: list[tuple[list[Manifest], dict[str, int]]] = []
    for card in range(count):
        prefix = f"card{card}-" if together else ""
        devices = [
            device(
                f"{prefix}{profile}-{place.start}",
                attributes={"profile": profile, "card": card},
                requests={f"{prefix}compute": str(slices)} | {f"{prefix}m{i}": "1" for i in place},
            )
            for profile, (slices, places) in layout.items()
            for place in places
        ]
        pools.append((devices, {f"{prefix}compute": compute} | {f"{prefix}m{i}": 1 for i in range(memory)}))
    if together:
        pools = [([d for devices, _ in pools for d in devices], {k: v for _, r in pools for k, v in r.items()})]
    return [
        pool(f"{node}-p{number}", node, devices=devices, resources={k: f"{v}/1" for k, v in resources.items()})
        for number, (devices, resources) in enumerate(pools)
    ]


def part(profile: str, count: int) -> Manifest:
    return {"deviceClass": "part", "constraints": f"device.profile == '{profile}'", "requests": {"count": count}}


def answer(documents: list[Manifest]) -> dict[str, Any]:
    (given,) = solve_manifests(documents)["claims"]
    return dict(given)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_one_partition_more_than_full_cards_have_needs_its_slices_only(count: int, together: bool) -> None:
    """4g, 2g and 1g+ fill a card; another 1g+ is a slice of compute and two of memory, of one card."""
    wanted = [part("4g", count), part("2g", count), part("1g+", count + 1)]
    refusal = answer([PART, *cards(A100, count, together=together), claim("c", *wanted)])
    assert refusal["reason"] == "PoolResourcesExhausted"
    assert {b["pool"] for b in refusal["blockers"]} == {refusal["blockers"][0]["pool"]}
    names = [b["resource"].rpartition("-")[2] for b in refusal["blockers"]]
    assert [name[0] for name in names] == ["c", "m", "m"]
    assert {b["missing"] for b in refusal["blockers"]} == {"1"}
    assert "notSmallest" not in refusal.get("caveats", ())


def test_blockers_count_no_more_as_missing_than_all_cards_lack() -> None:
    """Seven 1g leave the last memory slice of every card unused; an eighth needs compute beside its slice."""
    refusal = answer([PART, *cards(A100, 2), claim("c", part("1g", 8), part("3g", 2), part("2g", 1))])
    assert refusal["reason"] == "PoolResourcesExhausted"
    assert sum(int(b["missing"]) for b in refusal["blockers"] if b["resource"] == "compute") == 2  # of 16 there are 14
    assert "notSmallest" not in refusal.get("caveats", ())


def test_what_is_named_suffices_and_nothing_less_does() -> None:
    several = 0
    for seed in range(EXAMPLES):
        random = Random(seed)
        documents = [PART, *some_cards(random), some_claim(random)]
        refusal = answer(documents)
        requests = len(documents[-1]["spec"]["claims"])
        if refusal["allocated"] or [b["kind"] for b in refusal["blockers"]] == ["request"] * requests:
            continue  # a claim that asks for nothing is none
        blockers = refusal["blockers"]
        several += len(blockers) > 1
        key = ("default", "c")
        assert answer(with_blockers_applied(documents, key, blockers))["allocated"], (seed, refusal["message"])
        if "notSmallest" in refusal.get("caveats", ()):
            continue
        for left in blockers:
            rest = [other for other in blockers if other is not left]
            assert not answer(with_blockers_applied(documents, key, rest))["allocated"], (
                seed,
                refusal["message"],
                left,
            )
    assert several > EXAMPLES // 10


def some_cards(random: Random) -> list[Manifest]:
    """One or two nodes with up to three small cards each."""
    together = random.random() < 0.5
    nodes = ["n1", "n2"][: random.choice([1, 1, 2])]
    return [card for node in nodes for card in cards(SMALL, random.randint(1, 3), node, together=together)]


def some_claim(random: Random) -> Manifest:
    """About as much as the cards have, in counts or one by one, with a choice or on one card now and then."""
    details: list[Manifest] = []
    for _ in range(random.randint(1, 4)):
        profile, other = random.sample([*SMALL], 2)
        count = random.randint(1, 3)
        if random.random() < 0.2:
            details.append({"oneOf": [part(profile, count), part(other, count)]})
        elif random.random() < 0.3:
            details += [part(profile, 1) for _ in range(count)]
        else:
            details.append(part(profile, count))
    if random.random() < 0.15:
        details[0] = {**details[0], "matchAttributes": ["card"]} if "oneOf" not in details[0] else details[0]
    return claim("c", *details, match=["card"] if random.random() < 0.1 else [])
