"""Instances of resource.k8s.io that an exhaustive search finds hard, by family and size; and everyday ones.

They have the form of ``dra_instances``. Each family is a pattern that upstream's allocator takes exponential time for:
nothing tells it that devices are alike, that they are too few, or that a later request has no candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.support.dra_instances import FEATURES, Instance
from tests.support.dra_random_pools import Manifest

DRIVER = "gpu.example.com"
NODE = "node-0"
API = "resource.k8s.io/v1"
NUMA = f"{DRIVER}/numa"
ROOT = "resource.kubernetes.io/pcieRoot"
SLICES = {"whole": 8, "half": 4, "quarter": 2, "eighth": 1}
"""Memory slices that a partition of a GPU draws, of eight."""


@dataclass(frozen=True)
class HardInstance:
    """An instance whose outcome is known by construction."""

    family: str
    size: int
    instance: Instance
    feasible: bool

    @property
    def name(self) -> str:
        return f"{self.family}, {self.size}"


def hard() -> Iterator[HardInstance]:
    """All families, small sizes first."""
    for devices in (5, 10, 15, 20, 23, 31):
        yield HardInstance("one device too few", devices, too_few(devices), False)
    for gpus in (8, 16, 24, 32):
        yield HardInstance("GPUs and a NIC on one root, none", gpus, on_one_root(gpus, ["other"]), False)
        yield HardInstance("GPUs and a NIC on one root", gpus, on_one_root(gpus, ["other", "root-1"]), True)
    for gpus in (1, 2, 3, 4):
        yield HardInstance(
            "eighths and two halves too many", gpus, partitions(gpus, {"eighth": 7 * gpus, "half": 2}), False
        )
    for gpus in range(1, 9):
        full = {"half": gpus, "quarter": gpus, "eighth": 2 * gpus}
        yield HardInstance("partitions that fill all GPUs", gpus, partitions(gpus, full), True)
        one_more = {"half": gpus, "quarter": gpus + 1, "eighth": 2 * gpus - 1}
        yield HardInstance("partitions, one slice too many", gpus, partitions(gpus, one_more), False)
    for requests in (3, 5, 7):
        yield HardInstance("single requests and an impossible one", requests, and_an_impossible_one(requests), False)


def too_few(devices: int) -> Instance:
    """One request for a device more than there are, all equal."""
    return _instance([_slice([_device(number) for number in range(devices)])], [_request("gpus", devices + 1)])


def on_one_root(gpus: int, nic_roots: Sequence[str]) -> Instance:
    """A quarter of the GPUs and a NIC on one PCIe root; half of the GPUs are on each of two roots."""
    devices = [_device(number, kind="gpu", root=f"root-{number * 2 // gpus}") for number in range(gpus)]
    devices += [_device(gpus + number, kind="nic", root=root) for number, root in enumerate(nic_roots)]
    requests = [_request("gpus", gpus // 4, kind="gpu"), _request("nic", 1, kind="nic")]
    return _instance([_slice(devices)], requests, [{"matchAttribute": ROOT}])


def partitions(gpus: int, wanted: dict[str, int]) -> Instance:
    """Partitions of GPUs with eight slices each: all profiles at all places, shared counters exclude each other."""
    devices: list[Manifest] = []
    for gpu in range(gpus):
        for profile, slices in SLICES.items():
            draw = [{"counterSet": f"gpu-{gpu}", "counters": {"slices": {"value": str(slices)}}}]
            for _ in range(8 // slices):
                devices.append({**_device(len(devices), kind=profile), "consumesCounters": draw})
    sets = [{"name": f"gpu-{gpu}", "counters": {"slices": {"value": "8"}}} for gpu in range(gpus)]
    # The API allows 64 devices that draw on counters, and eight counter sets, in a slice.
    parts = [devices[start : start + 64] for start in range(0, len(devices), 64)]
    slices_ = [_slice([], number=0) | {}] + [_slice(part, number=number + 1) for number, part in enumerate(parts)]
    del slices_[0]["spec"]["devices"]
    slices_[0]["spec"]["sharedCounters"] = sets
    for one in slices_:
        one["spec"]["pool"]["resourceSliceCount"] = len(slices_)
    return _instance(slices_, [_request(profile, count, kind=profile) for profile, count in wanted.items()])


def and_an_impossible_one(requests: int) -> Instance:
    """So many requests for one of eight GPUs each, and a last one for what there is none of."""
    devices = [_device(number, kind="gpu") for number in range(8)]
    gpu_requests = [_request(f"gpu-{number}", 1, kind="gpu") for number in range(requests)]
    return _instance([_slice(devices)], [*gpu_requests, _request("nic", 1, kind="nic")])


def everyday(nodes: int, gpus: int, *, full: bool = False) -> Instance:
    """Some of the eight GPUs of a node: selectors of the class and the request, a constraint.

    With `full`, all GPUs of all nodes but the last are in use.
    """
    slices = [
        _slice([_everyday_device(number) for number in range(8)], node=f"node-{node}", pool=f"node-{node}")
        for node in range(nodes)
    ]
    request = _request("gpus", gpus)
    request["exactly"]["selectors"] = [
        _cel(
            f'device.attributes["{DRIVER}"].model == "a100" && '
            f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0 && '
            f'device.attributes["{DRIVER}"].driverVersion.isGreaterThan(semver("1.0.0"))'
        )
    ]
    match = NUMA if gpus <= 4 else f"{DRIVER}/model"
    instance = _instance(slices, [request], [{"matchAttribute": match}])
    if full:
        instance["input"]["allocatedDevices"] = [
            {"driver": DRIVER, "pool": f"node-{node}", "device": f"device-{number}"}
            for node in range(nodes - 1)
            for number in range(8)
        ]
    return instance


def as_documents(instance: Instance) -> list[Manifest]:
    """Slices, classes, nodes, and what is in use as an allocated claim a node; without the claims that wait."""
    given = instance["input"]
    held: dict[str, list[Manifest]] = {}
    for one in given["allocatedDevices"]:
        held.setdefault(one["pool"], []).append({"request": "gpus", **one})
    nodes = sorted({one["spec"]["nodeName"] for one in given["slices"]})
    return [
        *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in nodes),
        *({"apiVersion": API, "kind": "ResourceSlice", **one} for one in given["slices"]),
        *({"apiVersion": API, "kind": "DeviceClass", **one} for one in given["classes"]),
        *(_held_claim(name, results) for name, results in held.items()),
    ]


def _held_claim(node: str, results: list[Manifest]) -> Manifest:
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {"name": f"held-{node}", "namespace": "default"},
        "spec": {"devices": {"requests": [_request("gpus", len(results))]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }


def _everyday_device(number: int) -> Manifest:
    device = _device(number)
    device["attributes"] |= {
        "model": {"string": "a100"},
        "numa": {"int": number // 4},
        "driverVersion": {"version": "1.2.3"},
    }
    return {**device, "capacity": {"memory": {"value": "80Gi"}}}


def _device(number: int, kind: str = "gpu", root: str = "root-0") -> Manifest:
    return {"name": f"device-{number}", "attributes": {"kind": {"string": kind}, ROOT: {"string": root}}}


def _slice(devices: list[Manifest], *, number: int = 0, node: str = NODE, pool: str = NODE) -> Manifest:
    about = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "pool": about, "nodeName": node, "devices": devices}
    return {"metadata": {"name": f"{pool}-{number}"}, "spec": spec}


def _request(name: str, count: int, kind: str = "gpu") -> Manifest:
    exactly: Manifest = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
    if kind != "gpu" or name != "gpus":
        exactly["selectors"] = [_cel(f'device.attributes["{DRIVER}"].kind == "{kind}"')]
    return {"name": name, "exactly": exactly}


def _instance(slices: list[Manifest], requests: list[Manifest], constraints: list[Manifest] | None = None) -> Instance:
    devices: Manifest = {"requests": requests}
    if constraints:
        devices["constraints"] = constraints
    selector = _cel(f'device.driver == "{DRIVER}"')
    return {
        "features": dict.fromkeys(FEATURES, True),
        "input": {
            "claimsToAllocate": [{"metadata": {"name": "claim", "namespace": "default"}, "spec": {"devices": devices}}],
            "classes": [{"metadata": {"name": "gpu"}, "spec": {"selectors": [selector]}}],
            "slices": slices,
            "node": {"metadata": {"name": NODE}},
            "allocatedDevices": [],
            "allocatedSharedDeviceIDs": [],
            "aggregatedCapacity": [],
        },
    }


def _cel(expression: str) -> Manifest:
    return {"cel": {"expression": expression}}
