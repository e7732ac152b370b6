"""ResourceSlices as the controller allocates from them: those set aside, with the taints of DeviceTaintRules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.dedicated_pools import ALLOCATOR_KEY, is_dedicated

Object = dict[str, Any]

NODE_DOMAIN, NODE_ATTRIBUTE = "controller.devalloc.io", "node"
"""An attribute that only the solver sees: the number of the device's node."""


def is_dedicated_slice(content: Mapping[str, Any]) -> bool:
    """Whether a slice is of a pool that is set aside, and of one node."""
    spec = content["spec"]
    return is_dedicated(spec["pool"]["name"]) and bool(spec.get("nodeName"))


def effective_slice(content: Object, rules: Iterable[Mapping[str, Any]], number: int) -> Object:
    """A slice without the taint that keeps others off, with those of rules, and its node's number on each device."""
    spec = content["spec"]
    matching = [rule["spec"] for rule in rules if _rule_matches(rule["spec"].get("deviceSelector"), spec)]
    if "devices" not in spec:
        return content
    devices = [_effective_device(device, matching, number) for device in spec["devices"]]
    return {**content, "spec": {**spec, "devices": devices}}


def _effective_device(device: Object, rules: Sequence[Mapping[str, Any]], number: int) -> Object:
    taints = [taint for taint in device.get("taints") or () if taint.get("key") != ALLOCATOR_KEY]
    taints += (rule["taint"] for rule in rules if _matches_name(rule["deviceSelector"].get("device"), device["name"]))
    attributes = {**(device.get("attributes") or {}), f"{NODE_DOMAIN}/{NODE_ATTRIBUTE}": {"int": number}}
    rest = {name: value for name, value in device.items() if name != "taints"}
    return {**rest, "attributes": attributes} | ({"taints": taints} if taints else {})


def _rule_matches(selector: Mapping[str, Any] | None, spec: Mapping[str, Any]) -> bool:
    """A rule without a selector is for no device, one with an empty selector for all."""
    if selector is None:
        return False
    return _matches_name(selector.get("driver"), spec["driver"]) and _matches_name(
        selector.get("pool"), spec["pool"]["name"]
    )


def _matches_name(value: str | None, name: str) -> bool:
    return value is None or value == name


def node_expression(numbers: Iterable[int]) -> str:
    """The expression that holds for the devices of these nodes."""
    node_list = ", ".join(str(number) for number in sorted(numbers))
    return f'device.attributes["{NODE_DOMAIN}"].{NODE_ATTRIBUTE} in [{node_list}]'
