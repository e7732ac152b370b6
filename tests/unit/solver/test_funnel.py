"""A funnel calls those devices free that a claim of one such device could have by itself right now (S19)."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from devalloc_solver.dialects.resource_k8s.fleet_explainer import ClusterExplainer, ClusterFunnels
from devalloc_solver.dra import explain
from devalloc_solver.dra import solve_manifests as solve_resource_claims
from devalloc_solver.explain.joint_counts import best_on_node
from devalloc_solver.fleet.funnels import RefinedKinds
from tests.support import dra_builders
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
        dra_builders.device(f"d{index}", {"id": index}, counters={"card": {"memory": str(random.randint(1, 6))}})
        for index in range(random.randint(1, 5))
    ]
    slices = [
        dra_builders.counter_slice("counters", {"card": {"memory": "8"}}, count=2),
        dra_builders.slice_("devices", content, count=2),
    ]
    held = (
        [{"driver": "gpu.io", "pool": "p", "device": random.choice(content)["name"]}] if random.random() < 0.8 else []
    )
    classes = [{"metadata": {"name": "any"}, "spec": {}}]
    state = {"allocated": {"devices": held}}

    pending = dra_builders.claim(dra_builders.request("r", MORE_THAN_ALL))
    (funnel,) = explain("n1", [pending], classes, slices, **state)["claims"][0]["requests"]

    could = 0
    for index in range(len(content)):
        one = dra_builders.claim(dra_builders.request("r", 1, f"device.attributes['gpu.io'].id == {index}"))
        could += explain("n1", [one], classes, slices, **state)["reason"] is None
    assert funnel["free"] == could
    assert funnel["matching"] == funnel["inUse"] + funnel["excluded"] + funnel["free"]
    assert funnel["devices"] == funnel["matching"] + sum(step["count"] for step in funnel["steps"])


def test_an_empty_fleet_has_no_use() -> None:
    devices = [device(f"g{i}", attributes={"size": "b"}) for i in range(2)]
    holder = allocated(claim("a", {"deviceClass": "gpu", "requests": {"count": 1}}), [entry("p", "g0")], node="n1")

    answers = solve_manifests([GPU, pool("p", devices=devices), holder, _wants("c", 3, "device.size == 'b'")])["claims"]

    message = next(c for c in answers if c["name"] == "c")["message"]
    assert message.startswith("no node has 3 devices (at most 2); ")


# -- of a fleet that is kept -------------------------------------------------------------------------------------------

NODES = 24


def _calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[Any]:
    """Filled with what a method is called with from now on."""
    calls: list[Any] = []
    method = getattr(owner, name)

    def record(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return method(*given, **named)

    monkeypatch.setattr(owner, name, record)
    return calls


def _cards() -> list[dict[str, Any]]:
    """On every node a card, in two halves or as a whole, each with a name of its own; some are held."""
    documents = [GPU]
    for node in range(NODES):
        sizes = {"whole": 8, "half-0": 4, "half-1": 4}
        devices = [
            device(name, attributes={"serial": f"{name}-{node}", "memory": size}, requests={"memory": str(size)})
            for name, size in sizes.items()
        ]
        documents.append(pool(f"card-{node}", f"n{node}", devices=devices, resources={"memory": "8"}))
    for node, name in ((0, "whole"), (1, "half-0"), (2, "half-1"), (3, "half-0")):
        held = claim(f"held-{node}", {"deviceClass": "gpu", "requests": {"count": 1}})
        documents.append(allocated(held, [entry(f"card-{node}", name)], node=f"n{node}"))
    return documents


@pytest.mark.parametrize(
    ("constraint", "count", "numbers"),
    [
        # n0 is held whole, so its halves are excluded; a half that is held excludes the whole card.
        ("device.serial == 'whole-1'", 1, (1, 0, 1, 0)),
        ("device.serial in ['whole-0', 'whole-1', 'whole-9']", 4, (3, 1, 1, 1)),
        ("device.serial in ['half-0-0', 'half-0-1', 'half-1-1']", 4, (3, 1, 1, 1)),
        ("device.serial in ['half-0-0', 'half-1-0']", 1, (2, 0, 2, 0)),
        ("device.serial != 'half-0-1' && device.memory == 4", 4, (47, 2, 2, 43)),
    ],
)
def test_devices_that_are_named_are_counted_one_by_one(
    constraint: str, count: int, numbers: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _calls(monkeypatch, RefinedKinds, "excluded")
    documents, wanted = _cards(), _wants("c", count, constraint)
    fleet = Fleet.from_manifests(documents)

    warm = fleet.allocate(wanted)

    funnel = warm["funnel"][0]
    assert (funnel["matching"], funnel["inUse"], funnel["excluded"], funnel["free"]) == numbers
    assert made, "the fleet was not counted in parts"
    assert warm == next(c for c in solve_manifests([*documents, wanted])["claims"] if c["name"] == "c")


def test_users_of_named_devices_are_counted_again_after_a_release() -> None:
    documents, wanted = _cards(), _wants("c", 1, "device.serial in ['whole-1', 'whole-0']")
    fleet = Fleet.from_manifests(documents)
    before = fleet.allocate(wanted)["funnel"][0]
    assert [user["name"] for user in before["usedBy"]] == ["held-0"]

    fleet.release("default", "held-1")

    assert fleet.allocate(wanted)["allocated"]
    after = fleet.allocate(_wants("d", 1, "device.serial in ['whole-1', 'whole-0']"))["funnel"][0]
    assert ([user["name"] for user in after["usedBy"]], after["excluded"], after["free"]) == (["c", "held-0"], 0, 0)


def _slices() -> list[dict[str, Any]]:
    """The same as ResourceSlices."""
    documents = [dra_builders.ANY]
    for node in range(NODES):
        sizes = {"whole": 8, "half-0": 4, "half-1": 4}
        content = [
            dra_builders.device(
                name, {"serial": f"{name}-{node}", "memory": size}, counters={"card": {"memory": str(size)}}
            )
            for name, size in sizes.items()
        ]
        spec = {"pool": f"card-{node}", "nodeName": f"n{node}", "count": 2}
        documents += [
            dra_builders.slice_(f"card-{node}", content, **spec),
            dra_builders.counter_slice(f"memory-{node}", {"card": {"memory": "8"}}, **spec),
        ]
    for node, name in ((0, "whole"), (1, "half-0"), (2, "half-1"), (3, "half-0")):
        owner = dra_builders.claim(dra_builders.request(), name=f"held-{node}")
        documents.append(dra_builders.held(owner, name, pool=f"card-{node}"))
    return documents


def _asks(name: str, count: int, *selectors: str) -> dict[str, Any]:
    return dra_builders.claim(dra_builders.request("r", count, *selectors), name=name)


SERIAL = "device.attributes['gpu.io'].serial"
MEMORY = "device.attributes['gpu.io'].memory"


@pytest.mark.parametrize(
    ("selector", "count", "numbers"),
    [
        (f"{MEMORY} == 8", 2, (24, 1, 3, 20)),
        (f"{MEMORY} == 4", 3, (48, 3, 2, 43)),
        (f"{SERIAL} == 'whole-1'", 1, (1, 0, 1, 0)),
        (f"{SERIAL} in ['half-0-0', 'half-0-1', 'half-1-1']", 4, (3, 1, 1, 1)),
    ],
)
def test_what_is_excluded_is_the_same_warm_as_cold(
    selector: str, count: int, numbers: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = _calls(monkeypatch, ClusterFunnels, "make")
    asked_of_all = _calls(monkeypatch, ClusterExplainer, "explain_on_whole")
    documents, wanted = _slices(), _asks("x", count, selector)
    fleet = ResourceClaimFleet.from_manifests(documents)

    warm = fleet.allocate(wanted)

    (funnel,) = warm["funnel"]
    assert (funnel["matching"], funnel["inUse"], funnel["excluded"], funnel["free"]) == numbers
    assert counted
    assert not asked_of_all
    assert warm == next(c for c in solve_resource_claims([*documents, wanted])["claims"] if c["name"] == "x")


def test_what_is_excluded_changes_warm_with_what_is_held() -> None:
    documents = _slices()
    fleet = ResourceClaimFleet.from_manifests(documents)
    before = fleet.allocate(_asks("x", 2, f"{MEMORY} == 8"))["funnel"][0]
    fleet.release("default", "held-1")
    assert fleet.allocate(_asks("half", 1, f"{SERIAL} == 'half-0-7'"))["allocated"]
    assert fleet.allocate(_asks("other", 1, f"{SERIAL} == 'half-0-8'"))["allocated"]

    after = fleet.allocate(_asks("x", 2, f"{MEMORY} == 8"))["funnel"][0]

    assert [(one["inUse"], one["excluded"], one["free"]) for one in (before, after)] == [(1, 3, 20), (1, 4, 19)]


@pytest.mark.parametrize(("pin", "most"), [(None, 4), ("n1", 3), ("n2", 4)])
def test_the_most_that_a_node_has_includes_the_devices_that_several_nodes_reach(pin: str | None, most: int) -> None:
    slices = [
        dra_builders.slice_("s1", dra_builders.devices("a", "b"), pool="n1", nodeName="n1"),
        dra_builders.slice_("s2", dra_builders.devices("a", "b", "c"), pool="n2", nodeName="n2"),
        dra_builders.slice_("s3", dra_builders.devices("x"), pool="all", allNodes=True),
    ]
    wanted = _asks("x", 5)
    if pin:
        wanted["metadata"]["annotations"] = {"devalloc.io/node": pin}

    (answer,) = solve_resource_claims([dra_builders.ANY, *slices, wanted])["claims"]

    who = f"node {pin} does not have" if pin else "no node has"
    assert f"{who} 5 devices for request r (at most {most})" in answer["message"]


@pytest.mark.parametrize("seed", range(200))
def test_the_best_node_counts_its_own_devices_and_those_of_the_network_that_it_reaches(seed: int) -> None:
    random = Random(seed)
    nodes = [f"n{number}" for number in range(random.randint(0, 4))]
    pools = [SimpleNamespace(index=number, node=random.choice([None, *nodes])) for number in range(4)]
    reaches = [None, *(frozenset(random.sample(nodes, random.randint(0, len(nodes)))) for _ in range(3))]
    devices = [SimpleNamespace(pool=random.randrange(4), reach=random.choice(reaches)) for _ in range(8)]
    snapshot: Any = SimpleNamespace(pools=pools, nodes=nodes, devices=devices)
    some, pin = random.sample(range(8), random.randint(0, 8)), random.choice([None, *nodes])

    def is_reached(index: int, node: str) -> bool:
        own = pools[devices[index].pool].node
        return own == node if own is not None else devices[index].reach is None or node in devices[index].reach

    def count(indexes: Sequence[int]) -> int:
        return len({index % 3 for index in indexes})

    anywhere = nodes or [""]  # where no node is known, a claim for devices of the network may be
    expected = [count([i for i in some if is_reached(i, node)]) for node in anywhere if pin in (None, node)]
    assert (best_on_node(snapshot, some, pin, count) or 0) == max(expected, default=0)
