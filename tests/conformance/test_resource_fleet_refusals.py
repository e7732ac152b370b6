"""What a warm cluster tells of a claim that gets nothing is what the whole would tell, and comes from a few nodes."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import pytest

from devalloc_solver.dialects.resource_k8s.fleet import ResourceClaimFleet
from devalloc_solver.dialects.resource_k8s.fleet_explainer import ClusterExplainer
from devalloc_solver.dra import solve_manifests
from devalloc_solver.fleet import equal_devices, explainer
from devalloc_solver.problem.answer import ClaimAnswer
from devalloc_solver.problem.demand import PlacementUnit
from tests.support.dra_builders import claim, counter_slice, device, device_class, first_of, request, slice_
from tests.support.examples import IS_FUZZ

NODES = 44
ROOT = "resource.kubernetes.io/pcieRoot"
Manifest = dict[str, Any]


def class_(name: str) -> Manifest:
    return device_class(name, f"device.driver == '{name}.io'")


def whole(node: int, kind: str, count: int, rng: Random) -> Manifest:
    """Devices of one model on two NUMA nodes, and now and then one with a taint."""
    content = [
        device(
            f"{kind}-{number}",
            {
                "model": ("a100", "h100", "l4")[node % 3],
                "numa": number * 2 // count,
                ROOT: f"pci{number // 2}",
                "uuid": f"{kind}-{node}-{number}",
            },
            capacity={"memory": "80Gi"},
        )
        for number in range(count)
    ]
    if rng.random() < 0.1:
        rng.choice(content)["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
    slices = 2 if rng.random() < 0.05 else 1
    name = f"node-{node}"
    spec = {"pool": name, "nodeName": name, "driver": f"{kind}.io", "count": slices}
    return slice_(f"{kind}-{node}", content, **spec)


def parted(node: int) -> list[Manifest]:
    """Two cards, each as two halves or four quarters."""
    name = f"node-{node}"
    spec = {"pool": name, "nodeName": name, "driver": "mig.io", "count": 2}
    parts = [
        device(
            f"c{card}-{size}-{start}",
            {"size": size, "card": card},
            counters={f"c{card}": {f"s{n}": "1" for n in taken}},
        )
        for card in range(2)
        for size in (1, 2)
        for start in range(0, 4, size)
        for taken in [range(start, start + size)]
    ]
    counters = {f"c{card}": {f"s{n}": "1" for n in range(4)} for card in range(2)}
    return [
        slice_(f"mig-{node}", parts, **spec),
        counter_slice(f"counters-{node}", counters, **spec),
    ]


def cluster(rng: Random) -> list[Manifest]:
    documents = [class_(kind) for kind in ("gpu", "nic", "mig")]
    for node in range(NODES):
        if node % 4 == 3:
            documents += parted(node)
        else:
            documents += [whole(node, "gpu", 2 if node % 8 == 0 else 4, rng), whole(node, "nic", 2, rng)]
    rng.shuffle(documents)
    return documents


def fabric() -> list[Manifest]:
    """Devices that all nodes reach, before those of the nodes in the order of drivers, and after them."""
    content = [device(f"port-{number}", {"speed": 100}, capacity={"lanes": "4"}) for number in range(40)]
    spec = {"pool": "all", "allNodes": True}
    return [
        class_("fabric"),
        slice_("fabric", content, driver="fabric.io", **spec),
        slice_("tape", content[:2], driver="tape.io", **spec),
    ]


def kind_request(kind: str, count: int | None, *selectors: str, **fields: Any) -> Manifest:
    return request(kind, count, *selectors, class_name=kind, **fields)


def some(kind: str, name: str, value: object) -> str:
    return f"device.attributes['{kind}.io'].{name} == {value!r}"


FITTING = [
    claim(kind_request("gpu", 1)),
    claim(kind_request("gpu", 2), match="gpu.io/numa"),
    claim(kind_request("gpu", 3)),
    claim(kind_request("gpu", 4)),
    claim(kind_request("gpu", 1), kind_request("nic", 1), match=ROOT),
    claim(kind_request("gpu", 2, some("gpu", "model", "h100")), match="gpu.io/numa"),
    claim(kind_request("gpu", 2), distinct=ROOT),
    claim(kind_request("nic", 2)),
    claim(kind_request("mig", 1, some("mig", "size", 2))),
    claim(kind_request("mig", 3, some("mig", "size", 1)), match="mig.io/card"),
    claim(kind_request("nic", None)),
]
"""What an empty cluster has."""
HOPELESS = [
    claim(kind_request("gpu", 1, some("gpu", "model", "h10O"))),
    claim(kind_request("gpu", 1, some("gpu", "modle", "h100"))),
    claim(kind_request("gpu", 5)),
    claim(kind_request("gpu", 3), match=ROOT),
    claim(kind_request("gpu", 3), distinct=ROOT),
    claim(kind_request("gpu", 4), match="gpu.io/nuna"),
    claim(kind_request("gpu", 4), kind_request("nic", 3), match="gpu.io/numa"),
    claim(kind_request("mig", 5, some("mig", "size", 2))),
    claim(kind_request("mig", 3, some("mig", "size", 2)), match="mig.io/card"),
    claim(kind_request("gpu", 1, capacity={"requests": {"memroy": "90Gi"}})),
    claim(first_of("any", {**kind_request("gpu", 6)["exactly"]}, {**kind_request("nic", 4)["exactly"]})),
    claim(kind_request("gpu", 7, adminAccess=True)),
]
"""What it has not."""
UUID = "device.attributes['gpu.io'].uuid"
H100 = some("gpu", "model", "h100")
NAMED = [
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-1-0'")),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-2-3' && {H100}")),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-2-3'", H100)),
    claim(kind_request("gpu", 1, H100, f"'gpu-2-2' == {UUID}")),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-1-77'")),
    claim(kind_request("gpu", 1, f"{UUID} == 'nothing like it'")),
    claim(kind_request("gpu", 1, "device.attributes['gpu.io'].uiud == 'gpu-1-0'")),
    claim(kind_request("gpu", 1, f"{UUID} in ['gpu-4-0', 'gpu-5-1']")),
    claim(kind_request("gpu", 2, f"{UUID} in ['gpu-4-0', 'gpu-5-1', 'gpu-99-0']")),
    claim(kind_request("gpu", 2, f"{UUID} in ['gpu-0-0', 'gpu-0-1']"), distinct=ROOT),
    claim(kind_request("gpu", 3, f"{UUID} in ['gpu-6-0', 'gpu-6-1', 'gpu-6-3']"), match="gpu.io/numa"),
    claim(kind_request("gpu", 2, f"{UUID} == 'gpu-1-1'")),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-4-0' || 'gpu-5-2' == {UUID} || {UUID} in ['gpu-99-0']")),
    claim(kind_request("gpu", 2, f"{H100} && ({UUID} == 'gpu-2-1' || {UUID} == 'gpu-4-2')")),
    claim(
        kind_request("gpu", 1, f"{UUID} == 'gpu-1-3' && device.attributes['gpu.io'].absent == 1 || {UUID} == 'gpu-2-4'")
    ),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-8-1'"), kind_request("nic", 2), match="gpu.io/numa"),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-9-2'"), kind_request("nic", 3)),
    claim(kind_request("gpu", 4), {**kind_request("gpu", 1, f"{UUID} == 'gpu-9-0'"), "name": "one"}),
    claim(kind_request("nic", 1, f"{UUID} == 'gpu-1-0'")),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-10-0'", capacity={"requests": {"memory": "90Gi"}})),
    claim(kind_request("gpu", 1, f"{UUID} == 'gpu-12-0' && device.attributes['gpu.io'].absent == 1")),
    claim(
        kind_request("gpu", 1, f"{UUID} == 'gpu-1-2'"),
        {**kind_request("gpu", 1, f"{UUID} == 'gpu-5-2'"), "name": "other"},
    ),
    claim(
        first_of(
            "any",
            kind_request("gpu", 2, f"{UUID} == 'gpu-1-0'")["exactly"],
            kind_request("gpu", 1, f"{UUID} == 'gpu-4-1'")["exactly"],
        )
    ),
    claim(
        first_of("any", kind_request("gpu", 1, f"{UUID} == 'gpu-4-1'")["exactly"], kind_request("nic", 3)["exactly"])
    ),
]
"""What names devices, many of which are in use after a while."""


def whole_cluster_asked(monkeypatch: pytest.MonkeyPatch) -> list[PlacementUnit]:
    """Filled in with what the whole cluster is asked."""
    asked_of_all: list[PlacementUnit] = []
    explain = ClusterExplainer.explain_on_whole

    def explain_all(explainer: ClusterExplainer, unit: PlacementUnit) -> ClaimAnswer:
        asked_of_all.append(unit)
        return explain(explainer, unit)

    monkeypatch.setattr(ClusterExplainer, "explain_on_whole", explain_all)
    return asked_of_all


@pytest.mark.parametrize(("seed", "has_fabric"), [(0, False), (1, True)])
def test_refusals_of_named_devices_are_those_of_the_whole_cluster(
    seed: int, has_fabric: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_of_all = whole_cluster_asked(monkeypatch)
    rng = Random(f"named {seed}")
    documents = cluster(rng) + (fabric() if has_fabric else [])
    fleet = ResourceClaimFleet.from_manifests(deepcopy(documents))
    held: dict[str, Manifest] = {}
    reasons: dict[str, int] = {}
    # Many of the claims before these are there to be in the way.
    for number in range(40 + 4 * len(NAMED)):
        name = f"c{number}"
        waiting = deepcopy(rng.choice(FITTING) if number < 40 else NAMED[number % len(NAMED)])
        waiting["metadata"]["name"] = name
        if rng.random() < 0.1:
            waiting["metadata"]["annotations"] = {"devalloc.io/node": f"node-{rng.randrange(12)}"}

        answer = fleet.allocate(deepcopy(waiting))

        if answer["allocated"]:
            held[name] = {**waiting, "status": {"allocation": answer["allocations"]}}
            continue
        if number < 40:
            continue
        reasons[answer["reason"]] = reasons.get(answer["reason"], 0) + 1
        if IS_FUZZ or Random(number).random() < 0.4:
            everything = solve_manifests([*documents, *held.values(), waiting])["claims"]
            assert answer == next(one for one in everything if one["name"] == name)
        if held and rng.random() < 0.3:
            fleet.delete(held.pop(rng.choice(sorted(held))))

    assert {"DevicesInUse", "NoMatchingDevices", "NotEnoughDevices", "MatchAttributesConflict"} <= reasons.keys()
    assert len(asked_of_all) <= sum(reasons.values()) // (4 if has_fabric else 10)


@pytest.mark.parametrize("seed", range(2))
def test_refusals_are_those_of_the_whole_cluster(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:
        monkeypatch.setattr(equal_devices, "VARIED_ABOVE", 40)
        monkeypatch.setattr(explainer, "FEW_NODES", 1)
    asked_of_all = whole_cluster_asked(monkeypatch)
    rng = Random(seed)
    documents, fitting = cluster(rng), FITTING
    if seed % 2:
        documents += fabric()
        fitting = [*FITTING, claim(kind_request("fabric", 1))]
    fleet = ResourceClaimFleet.from_manifests(deepcopy(documents))
    held: dict[str, Manifest] = {}
    reasons: dict[str, int] = {}
    for number in range(180):
        name = f"c{number}"
        waiting = deepcopy(rng.choice(fitting) if number % 6 else HOPELESS[number // 6 % len(HOPELESS)])
        waiting["metadata"]["name"] = name
        if rng.random() < 0.1:
            pin = rng.choice([f"node-{rng.randrange(NODES)}", "nowhere"])
            waiting["metadata"]["annotations"] = {"devalloc.io/node": pin}

        answer = fleet.allocate(deepcopy(waiting))

        if answer["allocated"]:
            held[name] = {**waiting, "status": {"allocation": answer["allocations"]}}
            continue
        reasons[answer["reason"]] = reasons.get(answer["reason"], 0) + 1
        if IS_FUZZ or Random(number).random() < 0.4:
            everything = solve_manifests([*documents, *held.values(), waiting])["claims"]
            assert answer == next(one for one in everything if one["name"] == name)
        if held and rng.random() < 0.6:
            gone = rng.choice(sorted(held))
            fleet.delete(held.pop(gone))
        if rng.random() < 0.1:
            changed = rng.choice([one for one in documents if one["metadata"]["name"].startswith("gpu-")])
            changed["spec"]["devices"][0]["taints"] = [{"key": "odd", "effect": "NoSchedule"}]
            fleet.update(deepcopy(changed))

    assert {"DevicesInUse", "NoMatchingDevices", "NotEnoughDevices", "MatchAttributesConflict"} <= reasons.keys()
    # Which nodes reach the fabric may matter to what is tried last, so that is asked of all.
    assert len(asked_of_all) <= sum(reasons.values()) // (4 if seed % 2 else 10)
