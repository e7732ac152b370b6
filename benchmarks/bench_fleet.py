"""How long a warm Fleet takes: to load, to answer one claim of a fleet in use, and one of a shape never seen."""

from __future__ import annotations

import copy
import gc
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from benchmarks.harness import Row, benchmark
from devalloc.api.meta import DEVMGMT
from devalloc_solver import Fleet

Manifest = dict[str, Any]

SIZES = (500, 5_000, 50_000)
"""Nodes; 16 devices each on most of them."""
DEVICES = 8
"""GPUs of a node, and as many NICs; two NUMA nodes, four PCIe roots."""
MODELS = ("a100", "h100", "l4")
OPERATIONS = 6_000
USED = 0.6
"""The part of all GPUs that is in use while claims come and go."""
REFUSALS = 5
PROFILES = {"1g": 1, "2g": 2, "3g": 4}
"""Slices of a MIG profile, of 8; it starts at a multiple of its size."""


@benchmark(
    "fleet",
    "A warm fleet: one claim at a time",
    method="A Fleet of nodes with 8 GPUs and 8 NICs each (six attributes a device, two of them unique) or, every "
    "eighth node, 8 partitioned GPUs (14 MIG devices each). Claims come and go at 60 % use: 1, 2, 4 or 8 GPUs, on one "
    "NUMA node where there are several, a GPU and a NIC on one PCIe root, a model, MIG profiles. Each is one call, "
    "its answer checked and committed; a new shape is the first claim of its kind. A refused claim gets its reason, "
    "with other claims coming and going in between. The garbage collector is as it is. "
    "Runs are calls here, one each for loads and new shapes, and",
    packages=("pydantic",),
)
def fleet(runs: int) -> Iterator[Row]:
    for nodes in SIZES:
        yield from _rows(nodes)


def _rows(nodes: int) -> Iterator[Row]:
    documents = manifests(nodes)
    devices = sum(len(d["spec"]["devices"]) for d in documents if d["kind"] == "DevicePool")
    gc.collect()
    before, start = memory(), time.perf_counter()
    warm = Fleet.from_manifests(documents)
    took = time.perf_counter() - start
    what: dict[str, str | int] = {"nodes": nodes, "devices": devices}
    yield Row({**what, "what": f"load, {memory() - before} MB beyond the manifests", "p99": ""}, (took,))
    del documents
    dialect = Dialect(claim, mix, unseen, refused, lambda answer: len(answer["allocations"]))
    yield from claim_rows(warm, nodes, what, dialect)
    yield from refusal_rows(warm, what, dialect)


class Dialect(NamedTuple):
    """What runs differ in from one dialect to the other."""

    claim: Callable[[str, Manifest], Manifest]
    mix: Callable[[], Iterator[Manifest]]
    unseen: Callable[[int], Iterator[tuple[str, Manifest]]]
    refused: Callable[[], Iterator[tuple[str, Manifest]]]
    size: Callable[[Manifest], int]
    """devices of an answer"""


def claim_rows(warm: Fleet, nodes: int, what: dict[str, str | int], dialect: Dialect) -> Iterator[Row]:
    """Claims that come and go, and new shapes."""
    times = _churn(warm, nodes, dialect)
    for name in sorted(times):
        slow = sorted(times[name])[int(len(times[name]) * 0.99)]
        yield Row({**what, "what": name, "p99": f"{slow * 1000:.3f}"}, tuple(times[name]))
    for name, spec in dialect.unseen(nodes):
        yield Row({**what, "what": f"new shape: {name}", "p99": ""}, (_once(warm, dialect.claim("once", spec)),))


def refusal_rows(warm: Fleet, what: dict[str, str | int], dialect: Dialect) -> Iterator[Row]:
    """Claims that fit nowhere."""
    for name, spec in dialect.refused():
        first, *again = _refusals(warm, spec, dialect)
        yield Row({**what, "what": f"refused, new shape: {name}", "p99": ""}, (first,))
        yield Row({**what, "what": f"refused, known shape: {name}", "p99": ""}, tuple(again))


def _once(warm: Fleet, pending: Manifest) -> float:
    seconds, answer = timed(lambda: warm.allocate(pending))
    if not answer["allocated"]:
        raise RuntimeError(f"nothing fits {pending['spec']}: {answer['message']}")
    warm.delete(pending)
    return seconds


def _refusals(warm: Fleet, spec: Manifest, dialect: Dialect) -> list[float]:
    """The first time is that of a new shape. Another claim comes or goes before each, so that no answer is at hand."""
    seconds = []
    for number in range(1 + REFUSALS):
        other = dialect.claim(f"other-{number}", next(dialect.mix()))
        warm.allocate(other)
        took, answer = timed(lambda: warm.allocate(dialect.claim("refused", spec)))
        if answer["allocated"]:
            raise RuntimeError(f"there is room for {spec}")
        seconds.append(took)
        warm.delete(other)
    return seconds


def _churn(warm: Fleet, nodes: int, dialect: Dialect) -> dict[str, list[float]]:
    """Fill the fleet half-way, then let claims come and go. Releasing is timed, too."""
    rng = random.Random(1)
    specs = list(dialect.mix())
    live: list[tuple[str, int]] = []
    used, number = 0, 0
    times: dict[str, list[float]] = {"allocate, check, commit": [], "release": []}
    capacity = USED * DEVICES * nodes
    while number < capacity / 3 + OPERATIONS:
        is_timed = number > capacity / 3
        if used > capacity or (is_timed and live and rng.random() < 0.4):
            position = rng.randrange(len(live))
            live[position], live[-1] = live[-1], live[position]
            name, size = live.pop()
            seconds, _ = timed(partial(warm.release, "default", name))
            warm.delete(dialect.claim(name, {}))
            used -= size
            times["release"].append(seconds)
            continue
        number += 1
        pending = dialect.claim(f"c{number}", rng.choice(specs))
        seconds, answer = timed(partial(warm.allocate, pending))
        if not answer["allocated"]:
            raise RuntimeError(f"nothing fits: {answer['message']}")
        size = dialect.size(answer)
        live.append((pending["metadata"]["name"], size))
        used += size
        if is_timed:
            times["allocate, check, commit"].append(seconds)
    return times


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = act()
    return time.perf_counter() - start, result


def memory() -> int:
    """MB that the process has had at most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // (2**20 if sys.platform == "darwin" else 2**10)


# -- manifests -------------------------------------------------------------------------------------------------------


def manifests(nodes: int) -> list[Manifest]:
    documents: list[Manifest] = []
    for node in range(nodes):
        if node % 8 == 7:
            documents += [_partitioned(node, card) for card in range(DEVICES)]
        else:
            documents += [_whole(node, kind) for kind in ("gpu", "nic")]
    documents += [_object("DeviceClass", kind, {"driver": f"{kind}.devalloc.io"}) for kind in ("gpu", "nic", "mig")]
    return documents


def mix() -> Iterator[Manifest]:
    """What claims ask for."""
    yield _spec(_detail("gpu"))
    yield _spec(_detail("gpu", 2, match=["numa"]))
    yield _spec(_detail("gpu", 4, match=["numa"]))
    yield _spec(_detail("gpu", 8))
    yield _spec(_detail("gpu"), _detail("nic"), match=["pcieRoot"])
    yield _spec(_detail("gpu", 2, "device.model == 'h100'", match=["numa"]))
    for profile in PROFILES:
        yield _spec(_detail("mig", 1, f"device.profile == '{profile}'"))


def unseen(nodes: int) -> Iterator[tuple[str, Manifest]]:
    """Shapes that `mix` has not."""
    yield "an expression", _spec(_detail("gpu", 3, "device.memory >= '40Gi' && device.numa == 1"))
    last = nodes - 2
    yield "a uuid", _spec(_detail("gpu", 1, f"device.uuid == 'gpu-{last:06d}-7'"))
    ids = ", ".join(f"'gpu-{last:06d}-{n}'" for n in range(4, 8))
    yield "one of four uuids", _spec(_detail("gpu", 1, f"device.uuid in [{ids}]"))
    yield "match over three attributes", _spec(_detail("gpu", 2, match=["memory", "pcieRoot"]), match=["model"])
    yield "a whole node", _spec(_detail("gpu", 8), _detail("nic", 8))
    one_of = {"oneOf": [_detail("gpu", 8, match=["numa"]), _detail("gpu", 3, match=["numa"])]}
    yield "oneOf", _spec(one_of)
    yield "two requests for the same GPUs", _spec(_detail("gpu", 2, match=["numa"]), _detail("gpu"))
    yield (
        "three partitions of one card",
        _spec(*(_detail("mig", 1, f"device.profile == '{profile}'") for profile in PROFILES), match=["card"]),
    )


def refused() -> Iterator[tuple[str, Manifest]]:
    """What no node of the fleet has, in use or not."""
    yield "a model that is nowhere", _spec(_detail("gpu", 1, "device.model == 'h10O'"))
    yield "one GPU too many", _spec(_detail("gpu", DEVICES + 1))
    yield "three GPUs on one PCIe root", _spec(_detail("gpu", 3, match=["pcieRoot"]))
    yield "a whole node and a partition", _spec(_detail("gpu", 8), _detail("nic", 8), _detail("mig"))


def claim(name: str, spec: Manifest) -> Manifest:
    return _object("DeviceClaim", name, copy.deepcopy(spec), namespace="default")


def _spec(*details: Manifest, match: list[str] | None = None) -> Manifest:
    return {"claims": list(details), **({"matchAttributes": match} if match else {})}


def _detail(
    device_class: str, count: int = 1, constraints: str | None = None, match: list[str] | None = None
) -> Manifest:
    return {
        "deviceClass": device_class,
        "requests": {"count": count},
        **({"constraints": constraints} if constraints else {}),
        **({"matchAttributes": match} if match else {}),
    }


def _object(kind: str, name: str, spec: Manifest, **metadata: Any) -> Manifest:
    return {"apiVersion": DEVMGMT, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def _whole(node: int, kind: str) -> Manifest:
    devices = [
        {
            "name": f"d{number}",
            "attributes": [
                {"name": "model", "stringValue": MODELS[node % len(MODELS)]},
                {"name": "memory", "quantityValue": "80Gi"},
                {"name": "numa", "intValue": number // (DEVICES // 2)},
                {"name": "pcieRoot", "stringValue": f"pci0000:{number // 2:02x}"},
                {"name": "pciBusID", "stringValue": f"{node:06x}:{number:02x}:{kind == 'gpu':d}0.0"},
                {"name": "uuid", "stringValue": f"{kind}-{node:06d}-{number}"},
            ],
        }
        for number in range(DEVICES)
    ]
    spec = {"nodeName": f"node-{node}", "driver": f"{kind}.devalloc.io", "devices": devices}
    return _object("DevicePool", f"node-{node}-{kind}", spec)


def _partitioned(node: int, card: int) -> Manifest:
    """A GPU in MIG mode: each profile at each place where it may start, which draws on the slices there."""
    devices: list[Manifest] = []
    for profile, size in PROFILES.items():
        devices += [
            {
                "name": f"{profile}-{start}",
                "attributes": [{"name": "profile", "stringValue": profile}],
                "requests": {f"slice{place}": 1 for place in range(start, start + size)},
            }
            for start in range(0, 8, size)
        ]
    spec = {
        "nodeName": f"node-{node}",
        "driver": "mig.devalloc.io",
        "attributes": [{"name": "numa", "intValue": card // 4}, {"name": "card", "intValue": card}],
        "resources": [{"name": f"slice{place}", "capacity": 1} for place in range(8)],
        "devices": devices,
    }
    return _object("DevicePool", f"node-{node}-mig{card}", spec)
