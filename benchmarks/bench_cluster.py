"""How long a warm Fleet of resource.k8s.io takes: to load, for one claim, to refuse one, and when a slice changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.bench_fleet import DEVICES, MODELS, PROFILES, Dialect, claim_rows, memory, refusal_rows, timed
from benchmarks.harness import Row, benchmark
from devalloc_solver import Fleet

Manifest = dict[str, Any]

API = "resource.k8s.io/v1"
SIZES = (500, 5_000)
"""Nodes; 16 devices each on most of them."""
CHANGES = 20
"""Slices that change."""
ROOT = "resource.kubernetes.io/pcieRoot"


@benchmark(
    "cluster",
    "A warm cluster of resource.k8s.io: one claim at a time",
    method="A Fleet of nodes with 8 GPUs and 8 NICs each (six attributes a device, two of them unique, and a capacity) "
    "or, every eighth node, 8 partitioned GPUs (14 MIG devices each, which draw on shared counters). Claims come and "
    "go at 60 % use: 1, 2, 4 or 8 GPUs, on one NUMA node where there are several, a GPU and a NIC on one PCIe root, "
    "a model, MIG profiles. Each is one call, its answer checked and committed; a new shape is the first claim of its "
    "kind. A slice changes by a taint, and back. A refused claim gets its reason, with other claims coming and going "
    "in between. The garbage collector is as it is. Runs are calls here, one each for loads and new shapes, and",
    packages=("cel-expr-python",),
)
def cluster(runs: int) -> Iterator[Row]:
    for nodes in SIZES:
        yield from _rows(nodes)


def _rows(nodes: int) -> Iterator[Row]:
    documents = manifests(nodes)
    devices = sum(len(d["spec"].get("devices", ())) for d in documents if d["kind"] == "ResourceSlice")
    what: dict[str, str | int] = {"nodes": nodes, "devices": devices}

    gc.collect()
    before = memory()
    took, warm = timed(partial(Fleet.from_manifests, documents))
    yield Row({**what, "what": f"load, {memory() - before} MB beyond the manifests", "p99": ""}, (took,))
    del documents
    dialect = Dialect(claim, mix, unseen, refused, lambda answer: len(answer["allocations"]["devices"]["results"]))
    yield from claim_rows(warm, nodes, what, dialect)
    for name, seconds in _changes(warm, nodes).items():
        yield Row({**what, "what": name, "p99": ""}, tuple(seconds))
    yield from refusal_rows(warm, what, dialect)


def _changes(warm: Fleet, nodes: int) -> dict[str, list[float]]:
    """A slice changes on one node after the other, each time with a claim after it."""
    times: dict[str, list[float]] = {"a slice changes": [], "allocate, after a slice has changed": []}
    for number in range(CHANGES):
        node = number * (nodes // CHANGES) // 8 * 8
        slice_ = _whole(node, "gpu")
        if number % 2:
            slice_["spec"]["devices"][0]["taints"] = [{"key": "broken", "effect": "NoSchedule"}]
        times["a slice changes"].append(timed(partial(warm.update, slice_))[0])
        pending = claim("after", next(mix()))
        times["allocate, after a slice has changed"].append(timed(partial(warm.allocate, pending))[0])
        warm.delete(pending)
    return times


# -- manifests -------------------------------------------------------------------------------------------------------


def manifests(nodes: int) -> list[Manifest]:
    documents = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{node}", "labels": {"zone": "a"}}}
        for node in range(nodes)
    ]
    for node in range(nodes):
        documents += _partitioned(node) if node % 8 == 7 else [_whole(node, kind) for kind in ("gpu", "nic")]
    for kind in ("gpu", "nic", "mig"):
        selector = {"cel": {"expression": f"device.driver == '{kind}.example.com'"}}
        documents.append(_object("DeviceClass", kind, {"selectors": [selector]}))
    return documents


def mix() -> Iterator[Manifest]:
    """What claims ask for."""
    numa = [{"matchAttribute": "gpu.example.com/numa"}]
    yield _spec(_request("gpu"))
    yield _spec(_request("gpu", 2), constraints=numa)
    yield _spec(_request("gpu", 4), constraints=numa)
    yield _spec(_request("gpu", 8))
    yield _spec(_request("gpu"), _request("nic"), constraints=[{"matchAttribute": ROOT}])
    yield _spec(_request("gpu", 2, "device.attributes['gpu.example.com'].model == 'h100'"), constraints=numa)
    for profile in PROFILES:
        yield _spec(_request("mig", 1, f"device.attributes['mig.example.com'].profile == '{profile}'"))


def unseen(nodes: int) -> Iterator[tuple[str, Manifest]]:
    """Shapes that `mix` has not."""
    gpu = "device.attributes['gpu.example.com']"
    yield "an expression", _spec(_request("gpu", 3, f"{gpu}.memory >= 40 && {gpu}.numa == 1"))
    last = nodes - 2
    yield "a uuid", _spec(_request("gpu", 1, f"{gpu}.uuid == 'gpu-{last:06d}-7'"))
    ids = ", ".join(f"'gpu-{last:06d}-{n}'" for n in range(4, 8))
    yield "one of four uuids", _spec(_request("gpu", 1, f"{gpu}.uuid in [{ids}]"))
    yield "a bus address by its end", _spec(_request("gpu", 1, f"{gpu}.pciBusID.endsWith(':07:10.0')"))
    yield "a whole node", _spec(_request("gpu", 8), _request("nic", 8))
    yield "all GPUs", _spec({"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}})
    alternatives = [{"name": f"n{count}", "deviceClassName": "gpu", "count": count} for count in (8, 3)]
    yield "firstAvailable", _spec({"name": "gpu", "firstAvailable": alternatives})
    yield "four GPUs on different roots", _spec(_request("gpu", 4), constraints=[{"distinctAttribute": ROOT}])
    yield (
        "three partitions of one card",
        _spec(
            *(
                {**_request("mig", 1, f"device.attributes['mig.example.com'].profile == '{p}'"), "name": p}
                for p in PROFILES
            ),
            constraints=[{"matchAttribute": "mig.example.com/card"}],
        ),
    )


def refused() -> Iterator[tuple[str, Manifest]]:
    """What no node of the fleet has, in use or not."""
    yield "a model that is nowhere", _spec(_request("gpu", 1, "device.attributes['gpu.example.com'].model == 'h10O'"))
    yield "one GPU too many", _spec(_request("gpu", DEVICES + 1))
    yield "three GPUs on one PCIe root", _spec(_request("gpu", 3), constraints=[{"matchAttribute": ROOT}])


def claim(name: str, spec: Manifest) -> Manifest:
    return _object("ResourceClaim", name, spec, namespace="default")


def _spec(*requests: Manifest, constraints: list[Manifest] | None = None) -> Manifest:
    return {"devices": {"requests": [*requests], **({"constraints": constraints} if constraints else {})}}


def _request(device_class: str, count: int = 1, expression: str | None = None) -> Manifest:
    exactly: Manifest = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    if expression:
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": device_class, "exactly": exactly}


def _object(kind: str, name: str, spec: Manifest, **metadata: Any) -> Manifest:
    return {"apiVersion": API, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def _slice(node: int, kind: str, name: str, number: int = 1, **content: Any) -> Manifest:
    pool = {"name": f"node-{node}", "generation": 1, "resourceSliceCount": number}
    spec = {"driver": f"{kind}.example.com", "nodeName": f"node-{node}", "pool": pool, **content}
    return _object("ResourceSlice", name, spec)


def _whole(node: int, kind: str) -> Manifest:
    devices = [
        {
            "name": f"{kind}-{number}",
            "attributes": {
                "model": {"string": MODELS[node % len(MODELS)]},
                "memory": {"int": 80},
                "numa": {"int": number // (DEVICES // 2)},
                ROOT: {"string": f"pci0000:{number // 2:02x}"},
                "pciBusID": {"string": f"{node:06x}:{number:02x}:{kind == 'gpu':d}0.0"},
                "uuid": {"string": f"{kind}-{node:06d}-{number}"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for number in range(DEVICES)
    ]
    return _slice(node, kind, f"node-{node}-{kind}", devices=devices)


def _partitioned(node: int) -> list[Manifest]:
    """Eight GPUs in MIG mode: each profile at each place where it may start, which draws on the slices there."""
    counters = [
        {"name": f"card-{card}", "counters": {f"slice{place}": {"value": "1"} for place in range(8)}}
        for card in range(DEVICES)
    ]
    devices = [
        {
            "name": f"card{card}-{profile}-{start}",
            "attributes": {"profile": {"string": profile}, "numa": {"int": card // 4}, "card": {"int": card}},
            "consumesCounters": [
                {
                    "counterSet": f"card-{card}",
                    "counters": {f"slice{place}": {"value": "1"} for place in range(start, start + size)},
                }
            ],
        }
        for card in range(DEVICES)
        for profile, size in PROFILES.items()
        for start in range(0, 8, size)
    ]
    return [
        _slice(node, "mig", f"node-{node}-mig-counters", 2, sharedCounters=counters),
        _slice(node, "mig", f"node-{node}-mig", 2, devices=devices),
    ]
