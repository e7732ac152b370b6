"""Questions that are small and hard: nothing fits, or only the last of many ways does.

A depth-first allocator tries the ways one by one. Each question here is one node and one claim, asked from manifests,
nothing cached but imports.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.harness import Row, benchmark, timed
from devalloc.api.meta import DEVMGMT
from devalloc_solver import solve_manifests

Manifest = dict[str, Any]

MOST_DETAILS = 64
"""of a claim"""
GPU, NIC, PART = "gpu", "nic", "part"
MIG = {"1g": (1, 1), "2g": (2, 2), "3g": (3, 4), "4g": (4, 4), "7g": (7, 8)}
"""profile -> (compute slices of 7, memory slices of 8)"""
EIGHTHS = {"1": (1, 1), "2": (2, 2), "4": (4, 4), "8": (8, 8)}
PLACES = {
    "1g": [(i, 1) for i in range(7)],
    "1g.10gb": [(i, 2) for i in (0, 2, 4, 6)],
    "2g": [(i, 2) for i in (0, 2, 4)],
    "3g": [(0, 4), (4, 4)],
    "4g": [(0, 4)],
    "7g": [(0, 8)],
}
"""profile -> (first memory slice, memory slices) of each place that it may have on a card"""


@dataclass(frozen=True)
class Question:
    """A node with devices, a claim, and whether it fits."""

    family: str
    name: str
    fits: bool
    documents: tuple[Manifest, ...]


@benchmark(
    "hard",
    "Small questions that are hard for a search",
    method="One `solve_manifests()` from manifests to the checked answer, reasons included where there is none. "
    "One node, one claim; nothing is kept between calls but imports.",
    packages=("ortools", "pydantic"),
)
def hard(runs: int) -> Iterator[Row]:
    for question in (*questions(), *competing()):
        documents = [*question.documents]
        answer = solve_manifests(documents)
        if answer["claims"][0]["allocated"] is not question.fits:
            raise AssertionError(f"{question.family}, {question.name}: the answer is wrong")
        what: dict[str, str | int] = {
            "question": question.family,
            "size": question.name,
            "fits": "yes" if question.fits else "no",
        }
        yield Row(what, timed(partial(solve_manifests, documents), runs))


def questions() -> Iterator[Question]:
    """All that are settled without CP-SAT, family by family."""
    yield from one_too_many()
    yield from one_root()
    yield from partitions()
    yield from placed_partitions()
    yield from singles()
    yield from two_levels()
    yield from many_alternatives()


def one_too_many() -> Iterator[Question]:
    """n + 1 of n devices, as a count and as single requests."""
    for count in (8, 16, 31, 63, 64):
        devices = [_device(f"d{number}") for number in range(count)]
        for wanted, fits in ((count, True), (count + 1, False)):
            one = [{"deviceClass": GPU, "requests": {"count": wanted}}]
            yield _question("n + 1 of n, a count", f"{wanted} of {count}", fits, {GPU: devices}, one)
            each = [{"deviceClass": GPU}] * wanted
            if wanted > MOST_DETAILS:
                continue
            yield _question("n + 1 of n, single requests", f"{wanted} of {count}", fits, {GPU: devices}, each)


def one_root() -> Iterator[Question]:
    """8 of 32 GPUs and a NIC on one PCIe root: there is none, there is one on every root, or only on the last."""
    for per_root in (8, 12):
        gpus = [_device(f"g{number}", root=f"r{number % 4}") for number in range(4 * per_root)]
        for where, roots in (("nowhere", ("r8", "r9")), ("everywhere", ("r0", "r1", "r2", "r3")), ("last", ("r3",))):
            nics = [_device(f"n{number}", root=root) for number, root in enumerate(roots)]
            wanted: list[Manifest] = [{"deviceClass": GPU, "requests": {"count": 8}}, {"deviceClass": NIC}]
            name = f"8 of {len(gpus)}, {where}"
            yield _question(
                "GPUs and a NIC on one root", name, where != "nowhere", {GPU: gpus, NIC: nics}, wanted, ["root"]
            )
            each = [{"deviceClass": GPU}] * 8 + [{"deviceClass": NIC}]
            yield _question(
                "the same, single requests", name, where != "nowhere", {GPU: gpus, NIC: nics}, each, ["root"]
            )


def partitions() -> Iterator[Question]:
    """Partitions of 1 to 8 GPUs, each GPU a pool of its own or all in one."""
    for gpus in range(1, 9):
        for together in (True, False):
            where = "one pool" if together else "a pool each"
            name = f"{gpus} GPUs, {where}"
            too_many = {"1": 7 * gpus, "4": 2}
            yield _parts("7 eighths a GPU and 2 halves", name, gpus == 8, EIGHTHS, gpus, together, too_many)
            half = {"1": 7 * gpus, "4": 1}
            yield _parts("7 eighths a GPU and a half", name, gpus >= 4, EIGHTHS, gpus, together, half)
            full = {"3g": gpus, "2g": gpus, "1g": 2 * gpus}
            yield _parts("MIG: 3g, 2g, 1g, 1g a GPU", name, True, MIG, gpus, together, full)
            yield _parts("MIG: that and 1g more", name, False, MIG, gpus, together, full | {"1g": 2 * gpus + 1})
            wide = {"4g": gpus, "3g": gpus}
            yield _parts("MIG: 4g and 3g a GPU", name, True, MIG, gpus, together, wide)
            yield _parts("MIG: 3g twice a GPU and 1g", name, False, MIG, gpus, together, {"3g": 2 * gpus, "1g": 1})
            third = gpus // 3
            unequal = {"7g": third, "4g": third, "3g": third, "2g": 2 * third, "1g": third}
            if third:
                yield _parts("MIG: unequal", name, True, MIG, gpus, together, unequal)


def placed_partitions() -> Iterator[Question]:
    """Partitions that name the memory slices they take, as the NVIDIA DRA driver publishes them: no two are alike."""
    eighths = {p: [(i, size) for i in range(0, 8, size)] for p, (_, size) in EIGHTHS.items()}
    for gpus in range(1, 9):
        full = {"1": 2 * gpus, "2": gpus, "4": gpus}
        name = f"{gpus} GPUs"
        yield _placed("Positions: 2, 1, 1 of 1/8, 1/4, 1/2 a GPU", name, True, eighths, gpus, full)
        yield _placed("Positions: that and 1/8 more", name, False, eighths, gpus, full | {"1": 2 * gpus + 1})
        mix = {"3g": gpus, "2g": gpus, "1g": gpus, "1g.10gb": gpus // 2}
        yield _placed("Positions, MIG: 3g, 2g, 1g a GPU, 1g.10gb on half", name, True, PLACES, gpus, mix)
        yield _placed(
            "Positions, MIG: 3g, 2g, 1g.10gb a GPU", name, True, PLACES, gpus, mix | {"1g": 0, "1g.10gb": gpus}
        )
        wide = {"4g": gpus, "2g": gpus, "1g.10gb": gpus + 1}
        yield _placed("Positions, MIG: 4g, 2g a GPU, 1g.10gb too many", name, False, PLACES, gpus, wide)
        some = {"7g": gpus // 4, "4g": gpus // 4, "2g": gpus // 2, "1g.10gb": gpus // 2, "1g": gpus}
        yield _placed("Positions, MIG: half of all", name, True, PLACES, gpus, some)


def singles() -> Iterator[Question]:
    """Single requests that fit, and an impossible one after them."""
    devices = [_device(f"d{number}") for number in range(8)]
    for count in (3, 5, 7):
        wanted = [{"deviceClass": GPU}] * count + [{"deviceClass": GPU, "constraints": "device.serial == 'd99'"}]
        yield _question("singles and one impossible", f"{count} of 8", False, {GPU: devices}, wanted)
    apart = [_device(f"d{number}", serial=f"d{number}") for number in range(8)]
    choosy = [{"deviceClass": GPU, "constraints": f"device.serial != 'd{number}'"} for number in range(9)]
    yield _question("singles, each refuses another", "9 of 8", False, {GPU: apart}, choosy)
    yield _question("singles, each refuses another", "8 of 8", True, {GPU: apart}, choosy[:8])


def two_levels() -> Iterator[Question]:
    """Pairs on a root, all of them on one NUMA node."""
    gpus = [_device(f"g{number}", numa=number // 16, root=f"r{number // 4}") for number in range(32)]
    pair = {"deviceClass": GPU, "requests": {"count": 3}, "matchAttributes": ["root"]}
    nics = [_device(f"n{number}", numa=number // 2, root=f"r{number // 2 * 4}") for number in range(4)]
    for pairs, fits in ((4, True), (5, False)):
        wanted = [pair] * pairs
        yield _question("threes on a root, all on one NUMA node", f"{pairs} of 4", fits, {GPU: gpus}, wanted, ["numa"])
        both = [*wanted, {"deviceClass": NIC, "requests": {"count": 2}}]
        name = f"{pairs} of 4, 2 NICs"
        yield _question("the same and NICs", name, fits, {GPU: gpus, NIC: nics}, both, ["numa"])


def many_alternatives() -> Iterator[Question]:
    """Eight details of eight alternatives each; the last detail contradicts, or there is one device too few."""
    devices = [_device(f"d{number}", kind=f"k{number % 8}", root=f"r{number // 8}") for number in range(16)]

    def entry(least: int, count: int = 1) -> Manifest:
        kinds = [f"device.kind == 'k{(least + number) % 8}'" for number in range(8)]
        return {"oneOf": [{"deviceClass": GPU, "constraints": k, "requests": {"count": count}} for k in kinds]}

    good = [entry(0) for _ in range(7)]
    impossible = {"oneOf": [{"deviceClass": GPU, "constraints": f"device.kind == 'x{n}'"} for n in range(8)]}
    scarce = entry(0, 3)
    yield _question("8 oneOf of 8", "fit", True, {GPU: devices}, [*good, entry(0)])
    yield _question("8 oneOf of 8", "none for the last", False, {GPU: devices}, [*good, impossible])
    yield _question("8 oneOf of 8", "too few for the last", False, {GPU: devices}, [*good, scarce])
    few = [d for d in devices if d["name"] in {f"d{n}" for n in range(7)}]
    yield _question("8 oneOf of 8", "7 devices", False, {GPU: few}, [*good, entry(0)])
    rooted = [{**e, "oneOf": [{**a, "matchAttributes": ["root"]} for a in e["oneOf"]]} for e in [*good, entry(0, 2)]]
    yield _question("8 oneOf of 8", "a pair across roots", False, {GPU: devices}, rooted)
    same = [{"oneOf": [{"deviceClass": GPU, "constraints": f"device.kind == 'k{n}'"} for n in range(8)]}] * 17
    yield _question("17 oneOf of 8", "16 devices", False, {GPU: devices}, same)


def competing() -> Iterator[Question]:
    """64 requests that each want at least a value, and so compete for devices of several pools: CP-SAT decides."""
    order = random.Random(3).sample(range(MOST_DETAILS), MOST_DETAILS)
    wanted = [{"deviceClass": GPU, "constraints": f"device.i >= {least}"} for least in order]
    devices = [_device(f"d{number}", i=value) for number, value in enumerate(v for v in order for _ in range(2))]
    for count in (5, 10):
        size = len(devices) // count
        pools = [_pool(f"n1-{n}", GPU, devices[n * size : (n + 1) * size]) for n in range(count)]
        name = f"{MOST_DETAILS} of {count * size}, {count} pools"
        yield Question("each wants at least a value", name, True, (*pools, *_classes(), _claim(wanted, ())))


# -- manifests -------------------------------------------------------------------------------------------------------


def _question(
    family: str,
    name: str,
    fits: bool,
    pools: Mapping[str, Sequence[Manifest]],
    wanted: Sequence[Manifest],
    match: Sequence[str] = (),
) -> Question:
    made = [_pool(f"n1-{kind}", kind, devices) for kind, devices in pools.items()]
    return Question(family, name, fits, (*made, *_classes(), _claim(wanted, match)))


def _parts(
    family: str,
    name: str,
    fits: bool,
    profiles: Mapping[str, tuple[int, int]],
    gpus: int,
    together: bool,
    wanted: Mapping[str, int],
) -> Question:
    """Partitions by profile, each a request of its own."""
    details = [
        {"deviceClass": PART, "constraints": f"device.profile == '{profile}'"}
        for profile, count in wanted.items()
        for _ in range(count)
    ]
    size = max(compute for compute, _ in profiles.values())
    cards = []
    for gpu in range(gpus):
        devices = []
        for profile, (compute, memory) in profiles.items():
            for number in range(size // compute):
                devices.append(
                    _device(f"gpu{gpu}-{profile}-{number}", profile=profile)
                    | {"requests": {f"gpu{gpu}-compute": str(compute), f"gpu{gpu}-memory": str(memory)}}
                )
        cards.append((devices, [(f"gpu{gpu}-compute", size), (f"gpu{gpu}-memory", 8)]))
    if together:
        cards = [([d for devices, _ in cards for d in devices], [r for _, resources in cards for r in resources])]
    pools = [_pool(f"n1-card{number}", PART, devices, resources) for number, (devices, resources) in enumerate(cards)]
    return Question(family, name, fits, (*pools, *_classes(), _claim(details, ())))


def _placed(
    family: str,
    name: str,
    fits: bool,
    profiles: Mapping[str, Sequence[tuple[int, int]]],
    gpus: int,
    wanted: Mapping[str, int],
) -> Question:
    """Partitions by profile and place, a request with a count for each profile; a pool for each card."""
    slices = {**{p: compute for p, (compute, _) in (MIG | EIGHTHS).items()}, "1g.10gb": 1}
    devices = [
        _device(f"{profile}-{first}", profile=profile)
        | {"requests": {"compute": str(slices[profile])} | {f"m{i}": "1" for i in range(first, first + size)}}
        for profile, places in profiles.items()
        for first, size in places
    ]
    compute = max(slices[profile] for profile in profiles)
    resources = [("compute", compute), *((f"m{i}", 1) for i in range(8))]
    details = [
        {"deviceClass": PART, "constraints": f"device.profile == '{profile}'", "requests": {"count": count}}
        for profile, count in wanted.items()
        if count
    ]
    pools = [_pool(f"n1-card{number}", PART, devices, resources) for number in range(gpus)]
    return Question(family, name, fits, (*pools, *_classes(), _claim(details, ())))


def _pool(name: str, driver: str, devices: Sequence[Manifest], resources: Sequence[tuple[str, int]] = ()) -> Manifest:
    spec: Manifest = {"nodeName": "n1", "driver": f"{driver}.devalloc.io", "devices": [*devices]}
    if resources:
        spec["resources"] = [{"name": n, "capacity": str(size), "blockSize": "1"} for n, size in resources]
    return {"apiVersion": DEVMGMT, "kind": "DevicePool", "metadata": {"name": name}, "spec": spec}


def _device(name: str, **attributes: str | int) -> Manifest:
    values = [
        {"name": key, ("intValue" if isinstance(value, int) else "stringValue"): value}
        for key, value in attributes.items()
    ]
    return {"name": name, "attributes": values}


def _classes() -> list[Manifest]:
    return [
        {
            "apiVersion": DEVMGMT,
            "kind": "DeviceClass",
            "metadata": {"name": kind},
            "spec": {"driver": f"{kind}.devalloc.io", "deviceType": kind},
        }
        for kind in (GPU, NIC, PART)
    ]


def _claim(details: Sequence[Manifest], match: Sequence[str]) -> Manifest:
    spec: Manifest = {"claims": [*details]} | ({"matchAttributes": [*match]} if match else {})
    return {
        "apiVersion": DEVMGMT,
        "kind": "DeviceClaim",
        "metadata": {"name": "c", "namespace": "default"},
        "spec": spec,
    }
