"""Batches of 10 to 1,000 claims of many kinds, for the sweep of ``bench_batch``: the same ones each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import bench_solver, fleets
from devalloc.api.meta import DEVMGMT, GROUP, PRIORITY

Manifest = dict[str, Any]

RESOURCE = "resource.k8s.io/v1"
CLAIMS = (10, 20, 30, 50, 100, 200, 500, 1000)
"""Claims of a batch."""
ROOMY, TIGHT = 1, 10
"""Claims for each node: all of them fit, or the devices are contended for."""
DOMAIN = "node.example.com"


@dataclass(frozen=True)
class BatchCase:
    """A batch by its size and kind."""

    kind: str
    nodes: int
    claims: int

    def documents(self) -> list[Manifest]:
        """Its manifests."""
        return KINDS[self.kind](self.nodes, self.claims)

    @property
    def is_resource_claims(self) -> bool:
        """Whether it is in the dialect of resource.k8s.io."""
        return KINDS[self.kind] is resource_claims


def cases(most: int = CLAIMS[-1]) -> Iterator[BatchCase]:
    """All batches of up to ``most`` claims: each kind, with as many nodes as claims and with a tenth of that."""
    for claims in (count for count in CLAIMS if count <= most):
        for kind in KINDS:
            for per_node in (ROOMY, TIGHT):
                yield BatchCase(kind, max(1, claims // per_node), claims)


# -- DeviceClaims ----------------------------------------------------------------------------------------------------


def mixed(nodes: int, claims: int) -> list[Manifest]:
    """Whole GPUs, pairs on a NUMA node, a GPU and a NIC on a root, oneOf; three priorities."""
    return [*bench_solver.fleet(nodes), *bench_solver.classes(), *bench_solver.claims(claims)]


def one_priority(nodes: int, claims: int) -> list[Manifest]:
    """The same without priorities."""
    documents = mixed(nodes, claims)
    for document in documents:
        document["metadata"].pop("annotations", None)
    return documents


def half_full(nodes: int, claims: int) -> list[Manifest]:
    """The fleet of ``fleets``: 70 % is held, 22 shapes of claims, partitions among them."""
    return fleets.scenario(nodes, claims, fill=0.7)


def equal(nodes: int, claims: int) -> list[Manifest]:
    """Claims that all ask for three GPUs."""
    spec = {"claims": [{"deviceClass": "gpu", "requests": {"count": 3}}]}
    wanted = [_claim(number, spec) for number in range(claims)]
    return [*bench_solver.fleet(nodes), *bench_solver.classes(), *wanted]


def unlike(nodes: int, claims: int) -> list[Manifest]:
    """No two claims are alike: each refuses two roots or models and has a count of its own; ten priorities."""
    rng = random.Random(3)
    wanted = []
    for number in range(claims):
        root, model = rng.randrange(4), rng.choice(bench_solver.MODELS)
        where = f"device.pcieRoot != 'pci0000:{root:02x}' && device.model != '{model}'"
        details: list[Manifest] = [
            {"deviceClass": "gpu", "constraints": where, "requests": {"count": rng.randint(1, 4)}},
            {"deviceClass": "nic", "requests": {"count": rng.randint(1, 2)}},
        ]
        spec: Manifest = {"claims": details[: rng.randint(1, 2)]}
        if rng.random() < 0.5:
            spec["matchAttributes"] = ["numa"]
        wanted.append(_claim(number, spec, priority=rng.randrange(10)))
    return [*bench_solver.fleet(nodes), *bench_solver.classes(), *wanted]


def grouped(nodes: int, claims: int) -> list[Manifest]:
    """Groups of one to four claims of several shapes."""
    rng = random.Random(4)
    wanted = bench_solver.claims(claims, seed=4)
    number = 0
    while number < claims:
        size = rng.randint(1, 4)
        members = wanted[number : number + size]
        for member in members if len(members) > 1 else ():
            member["metadata"]["annotations"] = {PRIORITY: str(number % 2), GROUP: f"group-{number}"}
        number += size
    return [*bench_solver.fleet(nodes), *bench_solver.classes(), *wanted]


def alternatives(nodes: int, claims: int) -> list[Manifest]:
    """Each claim has two entries with two or three alternatives each."""
    rng = random.Random(5)

    def entry() -> Manifest:
        models = rng.sample(bench_solver.MODELS, rng.randint(2, 3))
        choices = [
            {
                "deviceClass": "gpu",
                "constraints": f"device.model == '{model}'",
                "requests": {"count": rng.randint(1, 3)},
            }
            for model in models
        ]
        return {"oneOf": choices}

    wanted = [_claim(number, {"claims": [entry(), entry()]}, priority=rng.randrange(2)) for number in range(claims)]
    return [*bench_solver.fleet(nodes), *bench_solver.classes(), *wanted]


def partitions(nodes: int, claims: int) -> list[Manifest]:
    """Partitions of GPUs: 1g, 2g and 3g, one to three of them, some with a NIC on their NUMA node."""
    rng = random.Random(6)
    documents = fleets.scenario(nodes, 0, fill=0.4, partitioned=1.0)
    for number in range(claims):
        profile = rng.choice(sorted(fleets.PROFILES))
        spec: Manifest = {"claims": [{"deviceClass": f"mig-{profile}", "requests": {"count": rng.randint(1, 3)}}]}
        if rng.random() < 0.3:
            spec = {"matchAttributes": ["numa"], "claims": [*spec["claims"], {"deviceClass": "nic"}]}
        documents.append(_claim(number, spec, priority=rng.randrange(3)))
    return documents


def shares(nodes: int, claims: int) -> list[Manifest]:
    """Parts of the memory of GPUs of 80Gi, on one GPU each or on several."""
    rng = random.Random(7)
    pools: list[Manifest] = []
    for node in range(nodes):
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": [{"name": "numa", "intValue": number // 2}],
                "resources": [{"name": "memory", "capacity": "80Gi", "blockSize": "1Gi"}],
            }
            for number in range(4)
        ]
        spec = {"nodeName": f"node-{node}", "driver": "gpu.devalloc.io", "devices": devices}
        pools.append(
            {"apiVersion": DEVMGMT, "kind": "DevicePool", "metadata": {"name": f"node-{node}-gpu"}, "spec": spec}
        )
    wanted = []
    for number in range(claims):
        detail: Manifest = {"deviceClass": "gpu", "requests": {"memory": f"{rng.choice((5, 10, 20, 40, 60))}Gi"}}
        if rng.random() < 0.7:
            detail["limits"] = {"count": 1}
        wanted.append(_claim(number, {"claims": [detail]}, priority=rng.randrange(3)))
    return [*pools, *bench_solver.classes(), *wanted]


def _claim(number: int, spec: Manifest, *, priority: int = 0) -> Manifest:
    metadata: Manifest = {"name": f"c{number}", "namespace": "default"}
    if priority:
        metadata["annotations"] = {PRIORITY: str(priority)}
    return {"apiVersion": DEVMGMT, "kind": "DeviceClaim", "metadata": metadata, "spec": spec}


# -- ResourceClaims --------------------------------------------------------------------------------------------------


def resource_claims(nodes: int, claims: int) -> list[Manifest]:
    """The mix of DeviceClaims as ResourceClaims: counts, matchAttribute, firstAvailable."""
    rng = random.Random(8)
    slices = [_slice(node, kind) for node in range(nodes) for kind in ("gpu", "nic")]
    classes = [
        {
            "apiVersion": RESOURCE,
            "kind": "DeviceClass",
            "metadata": {"name": kind},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{kind}.example.com'"}}]},
        }
        for kind in ("gpu", "nic")
    ]
    wanted = [
        {
            "apiVersion": RESOURCE,
            "kind": "ResourceClaim",
            "metadata": {
                "name": f"c{number}",
                "namespace": "default",
                "annotations": {PRIORITY: str(rng.randrange(3))},
            },
            "spec": {"devices": _requests(rng)},
        }
        for number in range(claims)
    ]
    return [*slices, *classes, *wanted]


def _requests(rng: random.Random) -> Manifest:
    shape = rng.randrange(4)
    if shape == 0:
        return {"requests": [_request("gpu", "gpu", rng.choice((1, 2, 4)))]}
    if shape == 1:
        match = [{"requests": ["gpu"], "matchAttribute": f"{DOMAIN}/numa"}]
        return {"requests": [_request("gpu", "gpu", 2)], "constraints": match}
    if shape == 2:
        match = [{"requests": ["gpu", "nic"], "matchAttribute": f"{DOMAIN}/pcieRoot"}]
        return {"requests": [_request("gpu", "gpu", 1), _request("nic", "nic", 1)], "constraints": match}
    choices = []
    for model, count in (("h100", 8), ("a100", 2)):
        selector = {"cel": {"expression": f"device.attributes['{DOMAIN}'].model == '{model}'"}}
        choices.append({"name": model, "deviceClassName": "gpu", "count": count, "selectors": [selector]})
    return {"requests": [{"name": "gpu", "firstAvailable": choices}]}


def _request(name: str, kind: str, count: int) -> Manifest:
    return {"name": name, "exactly": {"deviceClassName": kind, "count": count}}


def _slice(node: int, kind: str) -> Manifest:
    model = bench_solver.MODELS[node % len(bench_solver.MODELS)]
    devices = [
        {
            "name": f"{kind}-{number}",
            "attributes": {
                f"{DOMAIN}/model": {"string": model},
                f"{DOMAIN}/numa": {"int": number // 4},
                f"{DOMAIN}/pcieRoot": {"string": f"pci0000:{number // 2:02x}"},
            },
        }
        for number in range(bench_solver.DEVICES)
    ]
    name = f"node-{node}-{kind}"
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "nodeName": f"node-{node}",
            "driver": f"{kind}.example.com",
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


KINDS: dict[str, Callable[[int, int], list[Manifest]]] = {
    "mixed": mixed,
    "one priority": one_priority,
    "half full": half_full,
    "equal": equal,
    "unlike": unlike,
    "groups": grouped,
    "oneOf": alternatives,
    "partitions": partitions,
    "shares": shares,
    "ResourceClaims": resource_claims,
}
