"""A funnel calls those devices free that a claim of one such device could have by itself right now (S19)."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dra import explain
from tests.support import dra
from tests.support.manifests import allocated, claim, device, device_class, entry, pool

GPU = device_class("gpu", driver="gpu", deviceType="gpu")
MORE_THAN_ALL = 30


def _wants(name: str, count: int, constraints: str) -> dict[str, Any]:
    return claim(name, {"deviceClass": "gpu", "constraints": constraints, "requests": {"count": count}})


def _fleet(random: Random) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """Cards with partitions that draw on shared memory, some of them held; and the names of all devices."""
    documents, names = [GPU], []
    for number in range(random.randint(1, 3)):
        card = f"card-{number}"
        devices = []
        for index in range(random.randint(1, 4)):
            attributes: dict[str, Any] = {"id": f"{number}-{index}", "size": random.choice("bbs")}
            if random.random() < 0.4:
                attributes["devalloc.io/compatibilityGroup"] = random.choice("ab")
            devices.append(device(f"d{index}", attributes=attributes, requests={"memory": str(random.randint(1, 6))}))
        documents.append(pool(card, devices=devices, resources={"memory": str(random.randint(4, 8))}))
        taken = [d["name"] for d in devices if random.random() < 0.3]
        for name in taken:
            held = claim(f"{card}-{name}", {"deviceClass": "gpu", "requests": {"count": 1}})
            documents.append(allocated(held, [entry(card, name)], node="n1"))
        names += [(card, d["name"]) for d in devices]
    return documents, names


@pytest.mark.parametrize("seed", range(60))
def test_free_are_the_devices_that_a_claim_could_have_alone(seed: int) -> None:
    documents, names = _fleet(Random(seed))
    wanted = _wants("c", MORE_THAN_ALL, "device.size == 'b'")

    cold = next(c for c in solve_manifests([*documents, wanted])["claims"] if c["name"] == "c")["funnel"][0]
    warm = Fleet.from_manifests(documents).allocate(wanted)["funnel"][0]

    single = [
        _wants("one", 1, f"device.size == 'b' && device.id == '{card.removeprefix('card-')}-{name.removeprefix('d')}'")
        for card, name in names
    ]
    could = sum(
        next(c for c in solve_manifests([*documents, one])["claims"] if c["name"] == "one")["allocated"]
        for one in single
    )
    assert cold["free"] == could
    assert cold["matching"] == cold["inUse"] + cold["excluded"] + cold["free"]
    assert cold["devices"] == cold["matching"] + sum(step["count"] for step in cold["steps"]) == len(names)
    assert warm == cold


@pytest.mark.parametrize("seed", range(60))
def test_free_are_the_devices_that_a_resource_claim_could_have_alone(seed: int) -> None:
    random = Random(seed)
    content = [
        dra.device(f"d{index}", {"id": index}, counters={"card": {"memory": str(random.randint(1, 6))}})
        for index in range(random.randint(1, 5))
    ]
    slices = [
        dra.counter_slice("counters", {"card": {"memory": "8"}}, count=2),
        dra.slice_("devices", content, count=2),
    ]
    held = (
        [{"driver": "gpu.io", "pool": "p", "device": random.choice(content)["name"]}] if random.random() < 0.8 else []
    )
    classes = [{"metadata": {"name": "any"}, "spec": {}}]
    state = {"allocated": {"devices": held}}

    asked = dra.claim(dra.request("r", MORE_THAN_ALL))
    (funnel,) = explain("n1", [asked], classes, slices, **state)["claims"][0]["requests"]

    could = 0
    for index in range(len(content)):
        one = dra.claim(dra.request("r", 1, f"device.attributes['gpu.io'].id == {index}"))
        could += explain("n1", [one], classes, slices, **state)["reason"] is None
    assert funnel["free"] == could
    assert funnel["matching"] == funnel["inUse"] + funnel["excluded"] + funnel["free"]
    assert funnel["devices"] == funnel["matching"] + sum(step["count"] for step in funnel["steps"])


def test_an_empty_fleet_has_no_use() -> None:
    devices = [device(f"g{i}", attributes={"size": "b"}) for i in range(2)]
    holder = allocated(claim("a", {"deviceClass": "gpu", "requests": {"count": 1}}), [entry("p", "g0")], node="n1")

    answers = solve_manifests([GPU, pool("p", devices=devices), holder, _wants("c", 3, "device.size == 'b'")])["claims"]

    message = next(c for c in answers if c["name"] == "c")["message"]
    assert message.startswith("impossible even on an empty fleet: all 2 devices match; no node has 3 devices")
    assert "used by" not in message
