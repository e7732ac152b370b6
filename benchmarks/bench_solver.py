"""How long an allocation takes, by the size of the fleet and of the batch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.harness import Row, benchmark, timed
from devalloc.api.meta import DEVMGMT
from devalloc_solver import solve_manifests

Manifest = dict[str, Any]

SIZES = ((1, 1), (10, 1), (100, 1), (1000, 1), (10, 10), (100, 10), (1000, 10), (100, 100), (1000, 100))
"""(nodes, claims)"""
DEVICES = 8
"""GPUs of a node, and as many NICs; two NUMA nodes, four PCIe roots."""
MODELS = ("a100", "h100", "l4")


@benchmark(
    "solver",
    "Time to allocate by size of fleet and batch",
    method="One `solve_manifests()`: decoding the manifests, CEL, the search, the independent check and the reasons. "
    f"Nodes have {DEVICES} GPUs and {DEVICES} NICs; claims are a mix of whole GPUs, pairs on one NUMA node, a GPU and "
    "a NIC on one PCIe root, and oneOf. There is no peer in this table yet; upstream's allocator joins it with the "
    "resource.k8s.io dialect.",
    packages=("ortools", "pydantic"),
)
def solver(runs: int) -> Iterator[Row]:
    for nodes, count in SIZES:
        documents = [*fleet(nodes), *classes(), *claims(count)]
        answer = solve_manifests(documents)
        satisfied = sum(claim["allocated"] for claim in answer["claims"])
        seconds = timed(partial(solve_manifests, documents), min(runs, 3 if count >= 100 else runs))
        what: dict[str, str | int] = {
            "nodes": nodes,
            "devices": nodes * DEVICES * 2,
            "claims": count,
            "satisfied": satisfied,
            "counts proven": "yes" if answer["optimal"] else "no",
        }
        yield Row(what, seconds)


def fleet(nodes: int) -> list[Manifest]:
    """Two pools a node."""
    return [
        {
            "apiVersion": DEVMGMT,
            "kind": "DevicePool",
            "metadata": {"name": f"node-{node}-{kind}"},
            "spec": {
                "nodeName": f"node-{node}",
                "driver": f"{kind}.devalloc.io",
                "attributes": [{"name": "model", "stringValue": MODELS[node % len(MODELS)]}],
                "devices": [_device(node, number) for number in range(DEVICES)],
            },
        }
        for node in range(nodes)
        for kind in ("gpu", "nic")
    ]


def _device(node: int, number: int) -> Manifest:
    return {
        "name": f"d{number}",
        "attributes": [
            {"name": "numa", "intValue": number // (DEVICES // 2)},
            {"name": "pcieRoot", "stringValue": f"pci0000:{number // 2:02x}"},
            {"name": "pciBusID", "stringValue": f"{node:04x}:{number:02x}:00.0"},
        ],
    }


def classes() -> list[Manifest]:
    return [
        {
            "apiVersion": DEVMGMT,
            "kind": "DeviceClass",
            "metadata": {"name": kind},
            "spec": {"driver": f"{kind}.devalloc.io", "deviceType": kind},
        }
        for kind in ("gpu", "nic")
    ]


def claims(count: int, seed: int = 1) -> list[Manifest]:
    """A mix of shapes and three priorities, the same for the same seed."""
    rng = random.Random(seed)
    return [
        {
            "apiVersion": DEVMGMT,
            "kind": "DeviceClaim",
            "metadata": {
                "name": f"c{number}",
                "namespace": "default",
                "annotations": {"devalloc.io/priority": str(rng.randrange(3))},
            },
            "spec": _spec(rng),
        }
        for number in range(count)
    ]


def _spec(rng: random.Random) -> Manifest:
    shapes: list[Manifest] = [
        {"claims": [{"deviceClass": "gpu", "requests": {"count": rng.choice([1, 2, 4])}}]},
        {"claims": [{"deviceClass": "gpu", "requests": {"count": 2}, "matchAttributes": ["numa"]}]},
        {"matchAttributes": ["pcieRoot"], "claims": [{"deviceClass": "gpu"}, {"deviceClass": "nic"}]},
        {"claims": [{"oneOf": [_of_model("h100", 8), _of_model("a100", 2)]}]},
    ]
    return rng.choice(shapes)


def _of_model(model: str, count: int) -> Manifest:
    return {"deviceClass": "gpu", "constraints": f"device.model == '{model}'", "requests": {"count": count}}
