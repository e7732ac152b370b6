"""Fleets as they are at work: GPU and NIC nodes, some with partitions, half full of earlier jobs; and claims that wait.

A node has 8 GPUs and 8 NICs on 2 NUMA nodes with 2 PCIe roots each; the first four GPUs of some nodes can be
partitioned instead of being given away whole. What is held is job-shaped: whole roots, NUMA nodes and machines go
together, as claims allocated earlier. The same seed gives the same manifests.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.meta import ALLOCATED_NODE, ALLOCATION_DETAILS, DEVMGMT, PRIORITY

Manifest = dict[str, Any]

GPUS = 8
"""GPUs of a node, and as many NICs."""
ROOTS = 4
MODELS = {"l4": "24Gi", "a30": "24Gi", "a100": "80Gi", "h100": "80Gi"}
PARTITIONABLE = ("a100", "h100")
PROFILES = {"1g": (7, 1, 1), "2g": (3, 2, 2), "3g": (2, 3, 4)}
"""profile -> how many a GPU has at most, slices, eighths of memory"""
SLICES, EIGHTHS = 7, 8
DRIVERS = {"gpu": "gpu.devalloc.io", "nic": "nic.devalloc.io"}
ANY, BIG, BEST = "", "device.model in ['a100', 'h100']", "device.model == 'h100'"
CREATED = "2026-01-01T{:02}:{:02}:{:02}Z"


@dataclass(slots=True)
class Node:
    """A node that is being filled."""

    name: str
    model: str
    partitioned: bool
    gpus: list[int] = field(default_factory=lambda: [*range(GPUS)])
    """free ones"""
    nics: list[int] = field(default_factory=lambda: [*range(GPUS)])
    slices: dict[int, int] = field(default_factory=dict)
    """of GPUs in parts: how many slices are left"""

    def take(self, kind: str, scope: range, count: int) -> list[str] | None:
        """Names of so many free devices out of a scope, which are free no longer; None where there are fewer."""
        free = self.gpus if kind == "gpu" else self.nics
        numbers = [number for number in free if number in scope][:count]
        if len(numbers) < count:
            return None
        free[:] = [number for number in free if number not in numbers]
        return [f"{kind}-{number}" for number in numbers]


def scenario(
    nodes: int, claims: int, *, seed: int = 1, fill: float = 0.5, idle: float = 0.1, partitioned: float = 0.2
) -> list[Manifest]:
    """The manifests of a whole instance: classes, pools, what is held, and the claims that wait.

    Args:
        nodes: how many.
        claims: how many wait.
        seed: of everything that is random.
        fill: mean part of a node's devices that is held already.
        idle: part of the nodes where nothing is held.
        partitioned: part of the nodes with an a100 or h100 whose GPUs can be partitioned.
    """
    rng = random.Random(seed)
    fleet = [_node(rng, number, partitioned) for number in range(nodes)]
    held = [claim for node in fleet for claim in _occupy(rng, node, fill if rng.random() >= idle else 0.0)]
    return [*device_classes(), *(p for node in fleet for p in _pools(node)), *held, *waiting(claims, seed + 1)]


def device_classes() -> list[Manifest]:
    return [
        _class("gpu", "gpu", "device.kind == 'gpu'"),
        _class("nic", "nic", "device.kind == 'nic'"),
        *(
            _class(f"mig-{profile}", "gpu", f"device.kind == 'mig' && device.profile == '{profile}'")
            for profile in PROFILES
        ),
    ]


def _class(name: str, driver: str, constraints: str) -> Manifest:
    spec = {"driver": DRIVERS[driver], "deviceType": name, "constraints": constraints}
    return {"apiVersion": DEVMGMT, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


# -- pools -----------------------------------------------------------------------------------------------------------


def _node(rng: random.Random, number: int, partitioned: float) -> Node:
    model = rng.choice(sorted(MODELS))
    return Node(f"node-{number}", model, model in PARTITIONABLE and rng.random() < partitioned)


def _pools(node: Node) -> Iterator[Manifest]:
    gpus, resources = [], []
    for number in range(GPUS):
        place = _place(number)
        in_parts = node.partitioned and number < GPUS // 2
        whole = _device(f"gpu-{number}", {"kind": "gpu", "uuid": f"GPU-{node.name}-{number}"} | place)
        gpus.append(whole | ({"requests": _draws(number, SLICES, EIGHTHS)} if in_parts else {}))
        if in_parts:
            resources += [
                {"name": f"gpu-{number}-slices", "capacity": str(SLICES)},
                {"name": f"gpu-{number}-memory", "capacity": str(EIGHTHS)},
            ]
        for profile, (most, slices, eighths) in PROFILES.items() if in_parts else ():
            for part in range(most):
                device = _device(f"gpu-{number}-{profile}-{part}", {"kind": "mig", "profile": profile} | place)
                gpus.append(device | {"requests": _draws(number, slices, eighths)})
    nics = [_device(f"nic-{number}", {"kind": "nic"} | _place(number)) for number in range(GPUS)]
    yield _pool(node, "gpu", gpus, {"model": node.model}, resources)
    yield _pool(node, "nic", nics, {}, [])


def _place(number: int) -> dict[str, Any]:
    return {"numa": number // (GPUS // 2), "pcieRoot": f"pci0000:{number // (GPUS // ROOTS):02x}"}


def _draws(number: int, slices: int, eighths: int) -> dict[str, str]:
    return {f"gpu-{number}-slices": str(slices), f"gpu-{number}-memory": str(eighths)}


def _device(name: str, attributes: dict[str, Any]) -> Manifest:
    return {"name": name, "attributes": _attributes(attributes)}


def _attributes(values: dict[str, Any]) -> list[Manifest]:
    return [
        {"name": name, "intValue" if isinstance(value, int) else "stringValue": value} for name, value in values.items()
    ]


def _pool(
    node: Node, kind: str, devices: list[Manifest], attributes: dict[str, Any], resources: list[Manifest]
) -> Manifest:
    spec: Manifest = {"nodeName": node.name, "driver": DRIVERS[kind], "attributes": _attributes(attributes)}
    if resources:
        spec["resources"] = resources
    name = f"{node.name}-{kind}"
    return {
        "apiVersion": DEVMGMT,
        "kind": "DevicePool",
        "metadata": {"name": name},
        "spec": spec | {"devices": devices},
    }


# -- what is held ----------------------------------------------------------------------------------------------------


def _occupy(rng: random.Random, node: Node, fill: float) -> Iterator[Manifest]:
    """Jobs until the node is as full as it happens to be: 1, 2 or 4 GPUs that stand together, or all of them."""
    target = 2 * GPUS * fill * 2 * rng.random()
    used, number = 0.0, 0
    while used < target:
        size = rng.choice((1, 1, 2, 2, 4, 8))
        scope = range(GPUS)
        if size <= 4:
            width = max(size, 2)
            scope = range(start := rng.randrange(GPUS // width) * width, start + width)
        if node.partitioned and size == 1 and rng.random() < 0.5 and (part := _take_part(rng, node)):
            yield _held(node, number, [part], [])
            used, number = used + 0.5, number + 1
            continue
        gpus = node.take("gpu", scope, size)
        if gpus is None:
            used += 1
            continue
        nics = node.take("nic", scope, rng.choice((0, size)) if size < 4 else 1) or []
        yield _held(node, number, gpus, nics)
        used, number = used + len(gpus) + len(nics), number + 1


def _take_part(rng: random.Random, node: Node) -> str | None:
    """The name of a partition of a GPU that is in parts already, or can be."""
    profile = rng.choice(sorted(PROFILES))
    most, slices, _ = PROFILES[profile]
    whole = [gpu for gpu in node.gpus if gpu < GPUS // 2]
    gpu = next((g for g, left in sorted(node.slices.items()) if left == SLICES - slices), whole[0] if whole else None)
    if gpu is None:
        return None
    if gpu in node.gpus:
        node.gpus.remove(gpu)
        node.slices[gpu] = SLICES
    number = (SLICES - node.slices[gpu]) // slices
    if number >= most:
        return None
    node.slices[gpu] -= slices
    return f"gpu-{gpu}-{profile}-{number}"


def _held(node: Node, number: int, gpus: list[str], nics: list[str]) -> Manifest:
    """A claim that has these devices."""
    names = {"gpu": gpus, "nic": nics}
    kinds = [kind for kind, devices in names.items() if devices]
    classes = {"gpu": "gpu" if len(gpus[0]) == len("gpu-0") else f"mig-{gpus[0].split('-')[2]}", "nic": "nic"}
    details = [_detail(classes[kind], len(names[kind])) for kind in kinds]
    entries = [(index, kind, device) for index, kind in enumerate(kinds) for device in names[kind]]
    indexes = ",".join(f'"{index}"' for index, _, _ in entries)
    manifest = _claim(f"job-{node.name}-{number}", {"claims": details}, "running")
    manifest["metadata"]["annotations"] = {ALLOCATED_NODE: node.name, ALLOCATION_DETAILS: f"[{indexes}]"}
    allocations = [{"devicePoolName": f"{node.name}-{kind}", "deviceName": device} for _, kind, device in entries]
    return manifest | {"status": {"allocations": allocations}}


# -- claims that wait ------------------------------------------------------------------------------------------------


def waiting(count: int, seed: int = 2) -> list[Manifest]:
    """Claims of three priorities, six, three and one in ten."""
    rng = random.Random(seed)
    weighted = shapes()
    specs, weights = [spec for _, spec in weighted], [weight for weight, _ in weighted]
    manifests = []
    for number in range(count):
        spec = rng.choices(specs, weights)[0]
        priority = rng.choices((0, 1, 2), (6, 3, 1))[0]
        manifest = _claim(f"c{number}", spec, "default")
        manifest["metadata"]["annotations"] = {PRIORITY: str(priority)} if priority else {}
        seconds = rng.randrange(86_400)
        manifest["metadata"]["creationTimestamp"] = CREATED.format(seconds // 3600, seconds // 60 % 60, seconds % 60)
        manifests.append(manifest)
    return manifests


def shapes() -> list[tuple[float, Manifest]]:
    """(weight, spec): GPUs by the dozen, with NICs beside them, on a NUMA node or a root, partitions, alternatives."""
    weighted: list[tuple[float, Manifest]] = []
    for models in (ANY, BIG, BEST):
        weighted += [
            (1, {"claims": [_detail("gpu", 1, models)]}),
            (1, {"claims": [_detail("gpu", 2, models, "numa")]}),
            (0.6, {"claims": [_detail("gpu", 4, models, "numa")]}),
            (0.3, {"claims": [_detail("gpu", 8, models)]}),
            (1, _together("pcieRoot", _detail("gpu", 1, models), _detail("nic", 1))),
            (0.6, _together("numa", _detail("gpu", 2, models), _detail("nic", 2))),
            (0.3, _together("numa", _detail("gpu", 4, models), _detail("nic", 4))),
            (1, _together("numa", _detail("gpu", 2, models), _detail("nic", 1))),
            (0.4, {"claims": [_detail("gpu", 4, models), _detail("nic", 2)]}),
        ]
    weighted += [
        (1, {"claims": [_detail("nic", 1)]}),
        (1, {"claims": [_detail("nic", 2, ANY, "numa")]}),
        (1, {"claims": [{"oneOf": [_detail("gpu", 1, BEST), _detail("gpu", 2, BIG, "numa")]}]}),
        (0.6, {"claims": [{"oneOf": [_detail("gpu", 4, BIG, "numa"), _detail("gpu", 4, ANY)]}, _detail("nic", 2)]}),
    ]
    weighted += [(0.7, {"claims": [_detail(f"mig-{profile}", 1)]}) for profile in PROFILES]
    return weighted


def _together(attribute: str, *details: Manifest) -> Manifest:
    return {"matchAttributes": [attribute], "claims": [*details]}


def _detail(device_class: str, count: int, constraints: str = ANY, match: str | None = None) -> Manifest:
    detail: Manifest = {"deviceClass": device_class, "requests": {"count": count}}
    if constraints:
        detail["constraints"] = constraints
    if match:
        detail["matchAttributes"] = [match]
    return detail


def _claim(name: str, spec: Manifest, namespace: str) -> Manifest:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": DEVMGMT, "kind": "DeviceClaim", "metadata": metadata, "spec": spec}
