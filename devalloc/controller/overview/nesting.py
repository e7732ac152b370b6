"""Nesting of a card's devices: which one is a part of which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from devalloc_solver.problem.ordering import natural_key

_PARTS = ("vf", "mdev", "pf")


def nested_devices(names: Iterable[str], attributes: Mapping[str, Mapping[str, str]]) -> list[tuple[str, int]]:
    """The devices with their levels, the whole card first, each behind what it is a part of: functions behind their
    port, vGPUs behind their function."""
    at: dict[str, str] = {}
    names = list(names)
    for name in names:
        own = attributes[name]
        if own.get("function") != "mdev" and (address := own.get("pciBusID")):
            at.setdefault(address, name)
    below: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names, key=lambda name: (attributes[name].get("function") != "whole", natural_key(name))):
        own = attributes[name]
        addresses = [own.get("pciBusID"), own.get("pfPciBusID")] if own.get("function") in _PARTS else []
        above = (at.get(address) for address in addresses if address)
        below[next((other for other in above if other not in (None, name)), "") or ""].append(name)
    ordered: list[tuple[str, int]] = []
    waiting = [(name, 0) for name in reversed(below.pop("", []))]
    while waiting:
        name, level = waiting.pop()
        ordered.append((name, level))
        waiting += [(part, level + 1) for part in reversed(below.pop(name, []))]
    return ordered + [(name, 0) for parts in below.values() for name in parts]  # of a circle that somebody wrote


def device_kind(attributes: Mapping[str, str]) -> str:
    """What a device is, in a word or two."""
    words = [attributes.get("function", ""), attributes.get("profile", "")]
    return " ".join(filter(None, words))
