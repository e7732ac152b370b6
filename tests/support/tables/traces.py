"""Histories of one machine: after each event, what the agent does on each channel and for how long it waits."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from devalloc.scaling import state as agent
from devalloc.scaling.actions import Actions, ResourceChange, next_actions
from devalloc.scaling.resources import ResourceFlags, ScalingBounds
from devalloc.scaling.state import ScalingState, ScalingTiming
from tests.support.peer_rules import PeerRules
from tests.support.tables.table_form import CaseVerdict, Failure, TableForm, differences, each, explained, has_cases
from tests.support.tables.values import amounts_as_table, config, lfc, number, resources, system

Event = dict[str, Any]


def _traces(content: dict[str, Any]) -> Iterator[CaseVerdict]:
    yield from each(content["cases"], _trace)


def _trace(case: dict[str, Any]) -> CaseVerdict:
    state = begin(case["config"])
    failures = []
    for index, step in enumerate(case["steps"]):
        event, now = step["event"], step["t_ms"]
        where = f"step {index}, {event['type']} at {now} ms"
        try:
            state, refused = after(state, now, event)
            got = actions_as_table(next_actions(state, now))
        except Exception as error:
            # Whatever comes after it would only be noise.
            failures.append(Failure(step["actions"], explained(error), where))
            break
        if refused is not bool(step.get("refused", False)):
            failures.append(Failure(step.get("refused", False), refused, f"{where}: the permit was refused"))
        failures += differences(step["actions"], got, where)
    return CaseVerdict(case["name"], failures)


def begin(content: dict[str, Any]) -> ScalingState:
    """A machine at its minimum."""
    unit = resources(content["computeUnit"])
    timing = ScalingTiming(
        plugin_tick=content["pluginTick_ms"],
        plugin_retry=content["pluginRetry_ms"],
        plugin_denied_retry=content["pluginDeniedRetry_ms"],
        machine_retry=content["neonvmRetry_ms"],
        monitor_retry=content["monitorRetry_ms"],
        monitor_denied=content["monitorDeniedDownscaleCooldown_ms"],
        upscale_valid=content["monitorRequestedUpscaleValid_ms"],
    )
    least, most = int(number(content["minCU"])), int(number(content["maxCU"]))
    bounds = ScalingBounds(unit * least, unit * most)
    using = unit * int(number(content.get("startCU", least)))
    return ScalingState(PeerRules(unit, timing), bounds, config(content["scaling"]), using)


def after(state: ScalingState, now: int, event: Event) -> tuple[ScalingState, bool]:
    """The state after an event, and whether the event was a permit that cannot be."""
    if event["type"] != "pluginPermit":
        if event["type"] not in _EVENTS:
            raise ValueError(f"no such event: {event['type']!r}")
        return _EVENTS[event["type"]](state, now, event), False
    try:
        return agent.plugin_permitted(state, resources(event["permit"])), False
    except agent.PermitError:
        return agent.plugin_failed(state, now), True


def _system(state: ScalingState, now: int, event: Event) -> ScalingState:
    metrics = system(event)
    assert metrics is not None
    return agent.metrics_received(state, metrics)


def _lfc(state: ScalingState, now: int, event: Event) -> ScalingState:
    metrics = lfc(event["workingSetSizeBuckets"])
    assert metrics is not None
    return agent.lfc_metrics_received(state, metrics)


_EVENTS: dict[str, Callable[[ScalingState, int, Event], ScalingState]] = {
    "start": lambda state, now, event: state,
    "systemMetrics": _system,
    "lfcMetrics": _lfc,
    "pluginStart": lambda state, now, event: agent.plugin_started(state, now, resources(event["resources"])),
    "pluginFailed": lambda state, now, event: agent.plugin_failed(state, now),
    "neonvmStart": lambda state, now, event: agent.machine_started(state, resources(event["resources"])),
    "neonvmDone": lambda state, now, event: agent.machine_done(state, now),
    "neonvmFailed": lambda state, now, event: agent.machine_failed(state, now),
    "monitorActive": lambda state, now, event: agent.monitor_connected(state),
    "monitorReset": lambda state, now, event: agent.monitor_lost(state),
    "monitorUpscaleRequested": lambda state, now, event: agent.upscale_requested(
        state, now, ResourceFlags(event["cpu"], event["memory"])
    ),
    "monitorUpscaleStart": lambda state, now, event: agent.upscale_started(state, resources(event["resources"])),
    "monitorUpscaleDone": lambda state, now, event: agent.upscale_done(state),
    "monitorUpscaleFailed": lambda state, now, event: agent.upscale_failed(state, now),
    "monitorDownscaleStart": lambda state, now, event: agent.downscale_started(state, resources(event["resources"])),
    "monitorDownscaleAllowed": lambda state, now, event: agent.downscale_allowed(state),
    "monitorDownscaleDenied": lambda state, now, event: agent.downscale_denied(state, now),
    "monitorDownscaleFailed": lambda state, now, event: agent.downscale_failed(state, now),
}


def actions_as_table(actions: Actions) -> dict[str, Any]:
    """Actions as tables have them: what there is none of is absent."""
    content: dict[str, Any] = {}
    if actions.wait is not None:
        content["wait_ms"] = actions.wait
    if (request := actions.plugin) is not None:
        metrics = None if request.metrics is None else {"loadAvg1M": _single(request.metrics.load1)}
        content["plugin"] = {
            "lastPermit": amounts_as_table(request.last_permit),
            "target": amounts_as_table(request.target),
            "metrics": metrics,
        }
    changes: dict[str, ResourceChange | None] = {
        "neonvm": actions.machine,
        "monitorUpscale": actions.upscale,
        "monitorDownscale": actions.downscale,
    }
    for name, change in changes.items():
        if change is not None:
            content[name] = {"current": amounts_as_table(change.current), "target": amounts_as_table(change.target)}
    return content


def _single(number: float) -> float:
    """As peers write it: the shortest decimal of its single precision."""
    single = struct.pack("<f", number)
    [rounded] = struct.unpack("<f", single)
    texts = (f"{rounded:.{digits}g}" for digits in range(1, 10))
    return next(float(text) for text in texts if struct.pack("<f", float(text)) == single)


FORMS = [TableForm("histories", lambda content: has_cases(content, "config.computeUnit", "steps"), _traces)]
