"""What slices say, judged by the rules of resource.k8s.io alone: which devices may be held together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.quantity import Quantity

Content = Mapping[str, Any]


def devices_of(slices: Iterable[Content]) -> dict[str, Content]:
    """By name."""
    return {device["name"]: device for content in slices for device in content.get("devices", [])}


def fits(slices: Sequence[Content], chosen: Iterable[str]) -> bool:
    """Whether claims without tolerations may hold these devices of a pool at once."""
    devices = devices_of(slices)
    totals = {
        (counters["name"], name): Quantity.parse(counter["value"]).nano
        for content in slices
        for counters in content.get("sharedCounters", [])
        for name, counter in counters["counters"].items()
    }
    used: Counter[tuple[str, str]] = Counter()
    groups: dict[str, list[set[str]]] = {}
    for name in chosen:
        if name not in devices or devices[name].get("taints"):
            return False
        for consumed in devices[name].get("consumesCounters", []):
            groups.setdefault(consumed["counterSet"], []).append(set(consumed.get("compatibilityGroups", [])))
            for counter, amount in consumed["counters"].items():
                used[consumed["counterSet"], counter] += Quantity.parse(amount["value"]).nano
    if any(any(values) and not set.intersection(*values) for values in groups.values()):
        return False
    return all(amount <= totals[counter] for counter, amount in used.items())


def beyond_limits(slices: Sequence[Content]) -> list[str]:
    """What the API server would refuse."""
    wrong = []
    sets = [counters for content in slices for counters in content.get("sharedCounters", [])]
    names = [counters["name"] for counters in sets]
    if len(set(names)) != len(names):
        wrong.append("counter sets of one name")
    for content in slices:
        devices = content.get("devices", [])
        more = any("taints" in device or "consumesCounters" in device for device in devices)
        if len(devices) > (64 if more else 128) or len(content.get("sharedCounters", [])) > 8 or len(content) > 1:
            wrong.append("a slice is too large")
        for device in devices:
            if len(device.get("attributes", {})) + len(device.get("capacity", {})) > 32:
                wrong.append(f"{device['name']} has too many attributes")
            if len(device.get("consumesCounters", [])) > 2:
                wrong.append(f"{device['name']} draws on too many sets")
            for consumed in device.get("consumesCounters", []):
                if consumed["counterSet"] not in names or not 1 <= len(consumed["counters"]) <= 32:
                    wrong.append(f"{device['name']} draws on {consumed}")
    wrong += (f"{counters['name']} is too large" for counters in sets if not 1 <= len(counters["counters"]) <= 32)
    return wrong
