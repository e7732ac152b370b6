"""The settings of an agent: shipped by era, and read from the files that agents in use are configured with.

The file is JSON, with times in whole or fractional seconds. What it leaves out is as it is shipped. Every problem is
told with its path, and so is what is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from devalloc.api.problems import Problem, Read, closest_match
from devalloc.api.quantity import type_name
from devalloc.scaling.config import ScalingConfig, read_defaults
from devalloc.scaling.health import HealthLimits
from devalloc.scaling.peer_json import bytes_from_json, cpu_from_json
from devalloc.scaling.permits import PORT
from devalloc.scaling.resources import DEFAULT_COMPUTE_UNIT, Resources
from devalloc.scaling.state import ScalingTiming
from devalloc.scaling.versions import ProtocolEra

MAX_SECONDS = 7 * 24 * 3600
DEFAULT_SCALING = ScalingConfig()
_ValueForm = Literal["seconds", "port", "count", "text", "unit"]


def _at(path: str, default: Any, form: _ValueForm = "seconds") -> Any:
    """A setting that the file has at ``path``."""
    return field(default=default, metadata={"path": path, "form": form})


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything that configures an agent. Times are in milliseconds; the defaults are those that the newest era
    ships."""

    unit: Resources = field(default=DEFAULT_COMPUTE_UNIT, metadata={"path": "scaling.computeUnit", "form": "unit"})
    """One compute unit."""
    scaling: ScalingConfig = DEFAULT_SCALING
    """For machines that say nothing else."""
    scheduler_name: str = _at("scheduler.schedulerName", "autoscale-scheduler", "text")
    plugin_port: int = _at("scheduler.requestPort", PORT, "port")
    plugin_timeout: int = _at("scheduler.requestTimeoutSeconds", 2_000)
    plugin_tick: int = _at("scheduler.requestAtLeastEverySeconds", 15_000)
    plugin_retry: int = _at("scheduler.retryFailedRequestSeconds", 3_000)
    plugin_denied_retry: int = _at("scheduler.retryDeniedUpscaleSeconds", 2_000)
    plugin_window: int = _at("scheduler.maxFailedRequestRate.intervalSeconds", 120_000)
    plugin_failures: int = _at("scheduler.maxFailedRequestRate.threshold", 5, "count")
    monitor_port: int = _at("monitor.serverPort", 10301, "port")
    monitor_response: int = _at("monitor.responseTimeoutSeconds", 5_000)
    monitor_connect: int = _at("monitor.connectionTimeoutSeconds", 4_000)
    monitor_reconnect: int = _at("monitor.connectionRetryMinWaitSeconds", 5_000)
    monitor_unhealthy: int = _at("monitor.maxHealthCheckSequentialFailuresSeconds", 30_000)
    """The connection is given up when health checks fail for longer."""
    monitor_silence: int = _at("monitor.unhealthyAfterSilenceDurationSeconds", 20_000)
    """A monitor that has not been heard of for longer is stuck."""
    monitor_grace: int = _at("monitor.unhealthyStartupGracePeriodSeconds", 20_000)
    """The same, from its beginning."""
    monitor_denied: int = _at("monitor.retryDeniedDownscaleSeconds", 5_000)
    upscale_valid: int = _at("monitor.requestedUpscaleValidSeconds", 10_000)
    monitor_retry: int = _at("monitor.retryFailedRequestSeconds", 3_000)
    monitor_window: int = _at("monitor.maxFailedRequestRate.intervalSeconds", 120_000)
    monitor_failures: int = _at("monitor.maxFailedRequestRate.threshold", 2, "count")
    system_port: int = _at("metrics.system.port", 9100, "port")
    system_timeout: int = _at("metrics.system.requestTimeoutSeconds", 2_000)
    system_interval: int = _at("metrics.system.secondsBetweenRequests", 5_000)
    lfc_port: int = _at("metrics.lfc.port", 9499, "port")
    lfc_timeout: int = _at("metrics.lfc.requestTimeoutSeconds", 5_000)
    lfc_interval: int = _at("metrics.lfc.secondsBetweenRequests", 15_000)
    machine_timeout: int = _at("neonvm.requestTimeoutSeconds", 10_000)
    machine_retry: int = _at("neonvm.retryFailedRequestSeconds", 5_000)
    machine_window: int = _at("neonvm.maxFailedRequestRate.intervalSeconds", 120_000)
    machine_failures: int = _at("neonvm.maxFailedRequestRate.threshold", 2, "count")
    dump_port: int = _at("dumpState.port", 10300, "port")
    dump_timeout: int = _at("dumpState.timeoutSeconds", 5_000)

    @property
    def timing(self) -> ScalingTiming:
        """The waits of the state machine."""
        return ScalingTiming(
            plugin_tick=self.plugin_tick,
            plugin_retry=self.plugin_retry,
            plugin_denied_retry=self.plugin_denied_retry,
            machine_retry=self.machine_retry,
            monitor_retry=self.monitor_retry,
            monitor_denied=self.monitor_denied,
            upscale_valid=self.upscale_valid,
        )

    @property
    def limits(self) -> HealthLimits:
        """When scaling counts as stuck. The longest of the windows holds for all."""
        return HealthLimits(
            silence=max(self.monitor_silence, self.monitor_grace),
            window=max(self.plugin_window, self.monitor_window, self.machine_window),
            monitor_failures=self.monitor_failures,
            plugin_failures=self.plugin_failures,
            machine_failures=self.machine_failures,
        )


def default_agent_config(era: ProtocolEra = ProtocolEra.NEWEST) -> AgentConfig:
    """What an agent of the era is shipped with."""
    return AgentConfig() if era is ProtocolEra.NEWEST else replace(AgentConfig(), plugin_tick=5_000, lfc_port=9399)


def read_agent_config(content: object, era: ProtocolEra = ProtocolEra.NEWEST) -> Read[AgentConfig]:
    """Read the configuration of an agent of this era from decoded JSON. Never raises for content."""
    if not isinstance(content, dict):
        return Read(None, [Problem(f"must be an object, not {type_name(content)}")])
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    settings = {setting.path: setting for setting in AGENT_SETTINGS}
    for path, value in _leaves(content, set(settings)):
        if path.partition(".")[0] in UNUSED_SETTINGS:
            continue
        setting = settings.get(path)
        if setting is None:
            near = closest_match(path, settings)
            advice = f"; did you mean {near}?" if near else ""
            problems.append(Problem(f"is ignored: there is no such setting{advice}", path[:80], severity="warning"))
            continue
        try:
            values[setting.attribute] = _READERS[setting.form](value)
        except ValueError as error:
            problems.append(Problem(str(error), path))
    scaling = content.get("scaling")
    if isinstance(scaling, dict):
        if "defaultConfig" in scaling:
            read = read_defaults(scaling["defaultConfig"], era, "scaling.defaultConfig")
            problems += read.problems
            values["scaling"] = read.value
        else:
            problems.append(Problem("is required", "scaling.defaultConfig"))
    else:
        problems.append(Problem("is required", "scaling"))
    broken = any(problem.is_error for problem in problems)
    return Read(None if broken else replace(default_agent_config(era), **values), problems)


# -- settings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentSetting:
    """One setting of the file, by its path."""

    path: str
    attribute: str
    form: _ValueForm


AGENT_SETTINGS = tuple(
    AgentSetting(each.metadata["path"], each.name, each.metadata["form"])
    for each in fields(AgentConfig)
    if each.metadata
)
UNUSED_SETTINGS = {"billing", "refereshStateIntervalSeconds", "informant", "scalingEvents", "reporting"}
"""Settings of other parts, or of none here. The odd spelling is theirs."""


def _leaves(content: dict[str, Any], settings: set[str], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in content.items():
        path = f"{prefix}{name}"
        if path == "scaling.defaultConfig":
            continue
        if isinstance(value, dict) and path not in settings and path.count(".") < 3:
            yield from _leaves(value, settings, f"{path}.")
        else:
            yield path, value


def _seconds(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"must be a number of seconds, not {type_name(value)}")
    if not (math.isfinite(value) and 0 < value <= MAX_SECONDS):
        raise ValueError(f"must be more than 0 and at most {MAX_SECONDS} seconds")
    milliseconds = round(value * 1000)
    if milliseconds == 0:
        raise ValueError("must be at least 0.001 seconds")
    return milliseconds


def _whole(value: object, what: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be {what}, not {type_name(value)}")
    if not least <= value <= most:
        raise ValueError(f"must be {least} to {most}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 253:
        raise ValueError("must be a string of 1 to 253 characters")
    return value


def _unit(value: object) -> Resources:
    if not isinstance(value, dict) or set(value) != {"vCPUs", "mem"}:
        raise ValueError("must be an object with vCPUs and mem")
    unit = Resources(cpu_from_json(value["vCPUs"]), bytes_from_json(value["mem"]))
    if unit.cpu == 0 or unit.memory == 0:
        raise ValueError("must have some of each")
    return unit


_READERS: dict[_ValueForm, Callable[[object], Any]] = {
    "seconds": _seconds,
    "port": lambda value: _whole(value, "a port", 1, 65_535),
    "count": lambda value: _whole(value, "a whole number", 0, 1_000_000),
    "text": _text,
    "unit": _unit,
}
