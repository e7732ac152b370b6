"""The state of an agent as JSON, for people who want to know why."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from devalloc.scaling.guest_report import GuestReport
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources
from devalloc.scaling.state import ScalingState, ScalingTiming
from devalloc.scaling.wire_amounts import bytes_to_json, cpu_to_json
from devalloc_node.agent.report import ScalingReport

_INSTANT = re.compile(r"(?:(.*)_)?at")
_UNITS = {
    (SystemMetrics, "memory_usage"): "bytes",
    (SystemMetrics, "memory_cached"): "bytes",
    (LfcMetrics, "working_sets"): "pages",
}


def state_dump(
    state: ScalingState | None, report: ScalingReport | None, errors: dict[str, str], now: int
) -> dict[str, Any]:
    """One machine: its state, its report, and how the last request of each channel failed, if it did.

    Names and amounts are as in objects; other names end with their unit, and instants are
    given as their age. ``now``: on the agent's own clock, in milliseconds.
    """
    return {"state": _json(state, now), "report": _json(report, now), "errors": dict(errors)}


def _json(value: Any, now: int) -> Any:
    if isinstance(value, Resources):
        return {"cpus": cpu_to_json(value.cpu), "memory": bytes_to_json(value.memory)}
    if isinstance(value, GuestReport):
        return {"cpus": value.cpus, "memory": None if value.memory is None else bytes_to_json(value.memory)}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return dict(_field(value, field.name, now) for field in fields(value))
    if isinstance(value, (list, tuple)):
        return [_json(each, now) for each in value]
    return value


def _field(of: Any, name: str, now: int) -> tuple[str, Any]:
    value = getattr(of, name)
    if isinstance(of, ScalingTiming):
        return _camel(f"{name}_seconds"), value / 1000
    if (instant := _INSTANT.fullmatch(name)) is not None:
        ago = "_".join(filter(None, (instant[1], "seconds_ago")))
        return _camel(ago), None if value is None else (now - value) / 1000
    unit = _UNITS.get((type(of), name))
    return _camel(name if unit is None else f"{name}_{unit}"), _json(value, now)


def _camel(name: str) -> str:
    first, *more = name.replace("plugin_", "permit_").replace("plugin", "permits").split("_")
    return first + "".join("LFC" if each == "lfc" else each.capitalize() for each in more)
