"""Report a machine's scaling: wanted, permitted, applied and observed amounts, and why they differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from devalloc.scaling.actions import Actions
from devalloc.scaling.health import ScalingReport, StuckReason
from devalloc.scaling.metrics import GuestReport, LfcMetrics, SystemMetrics
from devalloc.scaling.peer_json import bytes_to_json, cpu_to_json
from devalloc.scaling.resources import Resources
from devalloc.scaling.state import Direction, ScalingState, ScalingTiming


def scaling_report(
    state: ScalingState,
    actions: Actions,
    observed: Resources | None,
    errors: Mapping[str, str],
    stuck: list[StuckReason],
    guest: GuestReport | None = None,
    behind: StuckReason | None = None,
) -> ScalingReport:
    """``errors``: how the last request of a channel failed (``permits``, ``machine``, ``monitor``), if it did.
    ``behind``: why the guest has not what the machine has."""
    reason = _reason(state, actions.desired, errors) or behind
    permit = state.plugin.permit
    return ScalingReport(actions.desired, permit, state.using, observed, reason, tuple(stuck), guest, state.system)


def _reason(state: ScalingState, wanted: Resources, errors: Mapping[str, str]) -> StuckReason | None:
    """The first in the order in which things are done that is not as far as what is wanted."""
    if state.machine.doubt is not None:
        return StuckReason(
            "MachineUnknown", f"cannot observe what the machine has: {errors.get('machine', 'not seen yet')}"
        )
    if wanted.exceeds(state.using):
        return _why_not_more(state, wanted, errors)
    if state.using.exceeds(wanted):
        return _why_not_less(state, wanted, errors)
    if state.plugin.permit is None:
        return StuckReason("PermitPending", errors.get("permits", "the permit server has granted no permit yet"))
    if state.plugin.permit != state.using:
        what = f"the permit is {amounts_text(state.plugin.permit)} and the machine has {amounts_text(state.using)}"
        return StuckReason("PermitPending", f"{what}: {errors['permits']}" if "permits" in errors else what)
    return None


def _why_not_more(state: ScalingState, wanted: Resources, errors: Mapping[str, str]) -> StuckReason:
    permit, last = state.plugin.permit, state.plugin.last
    if permit is None or wanted.exceeds(permit):
        # A retry of a request that failed or fell short keeps the reason: each change of it is a write.
        if "permits" in errors:
            return StuckReason("PermitFailed", errors["permits"])
        if permit is not None and last is not None and last.resources == state.plugin.short_of:
            what = (
                f"the agent asked for {amounts_text(last.resources)}; {amounts_text(permit)} is permitted: the "
                "node has no more room"
            )
            return StuckReason("PermitShort", what)
        return StuckReason("PermitPending", f"waiting for a permit for {amounts_text(wanted)}")
    return _changing(state, errors)


def _why_not_less(state: ScalingState, wanted: Resources, errors: Mapping[str, str]) -> StuckReason:
    monitor = state.monitor
    if monitor.approved is None and not state.insisting:
        why = errors.get("monitor", "not connected")
        return StuckReason("GuestMonitorMissing", f"cannot ask the guest whether less is enough: {why}")
    if monitor.counted is not None and monitor.counted.exceeds(wanted) and not state.insisting:
        if monitor.in_flight is not None and monitor.in_flight.way is Direction.DOWN:
            return StuckReason(
                "GuestAsked", f"waiting for the guest to accept {amounts_text(monitor.in_flight.target)}"
            )
        if monitor.downscale_failed_at is not None and "monitor" in errors:
            return StuckReason("GuestMonitorFailed", errors["monitor"])
    return _changing(state, errors)


def _changing(state: ScalingState, errors: Mapping[str, str]) -> StuckReason:
    if state.machine.in_flight is not None:
        return StuckReason("MachineChanging", f"changing it to {amounts_text(state.machine.in_flight)}")
    if state.machine.failed_at is not None and "machine" in errors:
        return StuckReason("MachineFailed", errors["machine"])
    return StuckReason("MachineChanging", "the change is about to begin")


def amounts_text(amounts: Resources) -> str:
    """Amounts for people."""
    return f"{cpu_to_json(amounts.cpu)} CPU and {bytes_to_json(amounts.memory)}"


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
