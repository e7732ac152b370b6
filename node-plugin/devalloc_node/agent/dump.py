"""The state of an agent as JSON, for people who want to know why."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from devalloc.scaling.resources import Resources
from devalloc.scaling.scalars import bytes_to_json, cpu_to_json
from devalloc.scaling.state import State
from devalloc_node.agent.report import Report


def dump(state: State | None, report: Report | None, errors: dict[str, str]) -> dict[str, Any]:
    """One machine: its state (instants in milliseconds of the agent's own clock), what is told of it, and how the last
    request of each channel failed, if it did."""
    return {"state": _json(state), "report": _json(report), "errors": dict(errors)}


def _json(value: Any) -> Any:
    if isinstance(value, Resources):
        return {"cpus": cpu_to_json(value.cpu), "memory": bytes_to_json(value.memory)}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_json(each) for each in value]
    return value
