"""Pool resources as counters, so that a card, its VFs and its profiles exclude each other in Kubernetes too.

A counter set holds 32 counters, and a device draws on two sets at most. Most cards need one set; where there are more
resources than that, those that the most devices draw on come into one set, and what remains falls apart into parts of
which each device touches one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.pool import DevicePool
from devalloc.api.quantity import Quantity, ceil_blocks, floor_blocks
from devalloc_node.kube.names import dns_label

COUNTERS_PER_SET = 32
SETS_PER_DEVICE = 2

Blocks = dict[str, int]


@dataclass(frozen=True, slots=True)
class CounterPlan:
    """The counters of a pool."""

    sets: tuple[dict[str, Any], ...] = ()
    """CounterSets."""
    consumed: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    """By device: its consumesCounters."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Devices whose draws cannot be told, and why."""


def plan_counters(pool: DevicePool) -> CounterPlan:
    """Counters for a pool; resources that cannot run short are not told."""
    blocks = {resource.name: resource.block for resource in pool.spec.resources}
    usable = {resource.name: floor_blocks(resource.capacity, resource.block) for resource in pool.spec.resources}
    draws, left_out = _draws(pool, blocks)
    binding = {name: draw for name, draw in usable.items() if sum(d.get(name, 0) for d in draws.values()) > draw}
    draws = {device: {name: n for name, n in drawn.items() if name in binding} for device, drawn in draws.items()}

    homes = {name: number for number, names in enumerate(_sets(binding, draws)) for name in names}
    consumed: dict[str, list[dict[str, Any]]] = {}
    for device, drawn in draws.items():
        touched = sorted({homes[name] for name in drawn})
        if len(touched) > SETS_PER_DEVICE:
            left_out[device] = f"draws on {len(drawn)} resources, more than two counter sets can express"
        elif touched:
            consumed[device] = [
                _counters("counterSet", number, {n: v for n, v in drawn.items() if homes[n] == number}, blocks)
                for number in touched
            ]
    sets = [
        _counters("name", number, {name: usable[name] for name in binding if homes[name] == number}, blocks)
        for number in sorted(set(homes.values()))
    ]
    return CounterPlan(tuple(sets), consumed, left_out)


def compatible_devices(pool: DevicePool, unavailable: Collection[str]) -> tuple[set[str], dict[str, str]]:
    """Without counters: devices that can all be had at once, and why the others not. Those that draw least come first,
    and those that are ``unavailable`` last: they must not keep others from being offered."""
    blocks = {resource.name: resource.block for resource in pool.spec.resources}
    left = {resource.name: floor_blocks(resource.capacity, resource.block) for resource in pool.spec.resources}
    draws, left_out = _draws(pool, blocks)
    total = dict(left)
    offered = set()

    def order(device: str) -> tuple[bool, float]:
        return device in unavailable, max((n / (total[name] or 1) for name, n in draws[device].items()), default=0)

    for device in sorted(draws, key=order):
        if all(n <= left[name] for name, n in draws[device].items()):
            for name, n in draws[device].items():
                left[name] -= n
            offered.add(device)
        else:
            left_out[device] = (
                "excludes other devices, which the cluster cannot express: DRAPartitionableDevices is off"
            )
    return offered, left_out


def _draws(pool: DevicePool, blocks: Mapping[str, Quantity]) -> tuple[dict[str, Blocks], dict[str, str]]:
    """What each device draws, in blocks, and which devices draw on what the pool does not have."""
    draws: dict[str, Blocks] = {}
    left_out = {}
    for device in pool.spec.devices:
        if unknown := [name for name in device.requests if name not in blocks]:
            left_out[device.name] = f"draws on {unknown[0]}, which the pool does not have"
        else:
            drawn = {name: ceil_blocks(amount, blocks[name]) for name, amount in device.requests.items()}
            draws[device.name] = {name: n for name, n in drawn.items() if n}
    return draws, left_out


def _counters(key: str, number: int, amounts: Mapping[str, int], blocks: Mapping[str, Quantity]) -> dict[str, Any]:
    return {
        key: f"set-{number}",
        "counters": {dns_label(name): {"value": str(blocks[name].times(n))} for name, n in amounts.items()},
    }


def _sets(names: Iterable[str], draws: Mapping[str, Blocks]) -> list[list[str]]:
    """The resources by the set they are in."""
    packed: list[list[str]] = []
    heads = []
    for part in _parts(list(names), draws.values()):
        if len(part) <= COUNTERS_PER_SET:
            _pack(part, packed)
            continue
        uses = Counter(name for drawn in draws.values() for name in drawn)
        by_use = sorted(part, key=lambda name: -uses[name])
        heads.append(by_use[:COUNTERS_PER_SET])
        for rest in _parts(by_use[COUNTERS_PER_SET:], draws.values()):
            _pack(rest, packed)
    return heads + packed


def _pack(part: Sequence[str], packed: list[list[str]]) -> None:
    """Into the first set with room; what is larger than a set is cut."""
    for start in range(0, len(part), COUNTERS_PER_SET):
        piece = part[start : start + COUNTERS_PER_SET]
        home = next((names for names in packed if len(names) + len(piece) <= COUNTERS_PER_SET), None)
        if home is None:
            packed.append(list(piece))
        else:
            home.extend(piece)


def _parts(names: Sequence[str], draws: Iterable[Blocks]) -> list[list[str]]:
    """The names, split so that each device draws on names of one part; in the order given."""
    leader = {name: name for name in names}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for drawn in draws:
        roots = [find(name) for name in drawn if name in leader]
        for other in roots[1:]:
            leader[find(other)] = find(roots[0])
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(find(name), []).append(name)
    return list(parts.values())
