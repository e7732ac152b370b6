"""What a machine should have: a number of compute units by the load of its guest, and the amounts that follow from
that, from the guest's requests and refusals, and from its bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import ResourceFlags, Resources
from devalloc.scaling.versions import ProtocolEra

INCREASE_FACTOR = 3.0
"""A window that grows by more than this many times the one before it reaches another workload."""
LOOK_AHEAD = 0.5
"""Minutes by which the latest growth is drawn on."""


def estimate_working_set(series: Sequence[float], offset: int, window: int, factor: float = INCREASE_FACTOR) -> float:
    """The working set, in the unit of the series: the last value before growth speeds up, or the last of all.

    ``series[t]`` is what was touched in the last t+1 minutes. Values before ``offset`` always belong to the working
    set. Growth is compared between two windows of ``window`` values that share one. Raises ValueError for a series or
    an offset that is too short for that.
    """
    if window < 2 or offset < window - 1 or len(series) < offset + window:
        raise ValueError(f"{len(series)} values are too few for windows of {window} from {offset} on")
    step = window - 1
    for t in range(offset, len(series) - step):
        before = max(0.0, series[t] - series[t - step])
        after = max(0.0, series[t + step] - series[t])
        if after > factor * before:
            return series[t]
    return series[-1]


def values_of_estimate(series: Sequence[float], offset: int, estimated: float) -> Sequence[float]:
    """The values that belong to an estimate: up to the first from ``offset`` on that exceeds it."""
    end = offset
    while end < len(series) and series[end] <= estimated:
        end += 1
    return series[:end]


def projected_growth(series: Sequence[float], ahead: float = LOOK_AHEAD) -> float:
    """The most that will have been touched in ``ahead`` minutes, if a growth seen goes on. 0 for an empty series."""
    highest = series[0] if series else 0.0
    for earlier, later in pairwise(series):
        reached = max(earlier, later)
        highest = max(highest, reached + ahead * (reached - earlier))
    return highest


MAX_UNITS = 2**32 - 1
PAGE = 8192
"""Bytes of a page, the unit of working sets."""


@dataclass(frozen=True, slots=True)
class ScalingGoal:
    """Compute units that a machine should have, and the part of each kind of use in it (None: not known)."""

    units: int
    complete: bool
    """Whether all metrics that the configuration wants were there."""
    cpu: float | None = None
    memory: float | None = None
    lfc: float | None = None
    warnings: tuple[str, ...] = ()


def compute_goal(
    unit: Resources,
    config: ScalingConfig,
    system: SystemMetrics | None,
    lfc: LfcMetrics | None = None,
    era: ProtocolEra = ProtocolEra.NEWEST,
) -> ScalingGoal:
    """The goal of one machine. ``unit`` is one compute unit; metrics that are not known yet are None."""
    if era is ProtocolEra.NEWEST:
        return _newest(unit, config, system, lfc)
    if system is None:
        return ScalingGoal(0, complete=False)
    return _v0_31(unit, config, system)


def _v0_31(unit: Resources, config: ScalingConfig, system: SystemMetrics) -> ScalingGoal:
    cpu = system.load1 / config.load_average_fraction_target / (unit.cpu / 1000)
    wanted = min(_rounded(system.memory_usage / config.memory_usage_fraction_target), float(MAX_UNITS * unit.memory))
    whole = int(wanted) // unit.memory
    return ScalingGoal(max(_units(_rounded(cpu)), whole), complete=True, cpu=cpu, memory=float(whole))


def _newest(
    unit: Resources, config: ScalingConfig, system: SystemMetrics | None, lfc: LfcMetrics | None
) -> ScalingGoal:
    warnings: tuple[str, ...] = ()
    cpu = memory = cache = working_set = None
    if lfc is not None:
        working_set = _working_set(config, lfc)
        if working_set is None:
            warnings = ("not enough working set sizes to estimate the working set",)
        cache = 0.0 if working_set is None else working_set / config.lfc_to_memory_ratio / unit.memory
    if system is not None:
        cpu = _load(config, system) / config.load_average_fraction_target / (unit.cpu / 1000)
        memory = _rounded(system.memory_usage / config.memory_usage_fraction_target) / unit.memory
        if working_set is not None:
            total = min(working_set, system.memory_cached) + system.memory_usage
            memory = max(memory, total / config.memory_total_fraction_target / unit.memory)
    units = _units(math.ceil(min(max(_rounded(cpu or 0.0), memory or 0.0, cache or 0.0), MAX_UNITS)))
    complete = system is not None and (lfc is not None or not config.enable_lfc_metrics)
    return ScalingGoal(units, complete, cpu, memory, cache, warnings)


def _load(config: ScalingConfig, system: SystemMetrics) -> float:
    """The load of one and of five minutes, mixed: the more they differ, the more counts the former."""
    stable = config.cpu_stable_zone_ratio * system.load5
    mixed = stable + config.cpu_mixed_zone_ratio * system.load5
    difference = abs(system.load1 - system.load5)
    if difference <= stable:
        share = 0.0
    elif difference >= mixed:
        share = 1.0
    else:
        share = (difference - stable) / (mixed - stable + 1e-6)
    return share * system.load1 + (1 - share) * system.load5


def _working_set(config: ScalingConfig, lfc: LfcMetrics) -> float | None:
    """Bytes that the cache's working set will soon have; None where the series is too short to tell."""
    series, offset = lfc.working_sets, config.lfc_min_wait_before_downscale_minutes - 1
    if len(series) < offset + config.lfc_window_size_minutes:
        return None
    estimated = (
        series[-1]
        if config.lfc_use_largest_window
        else estimate_working_set(series, offset, config.lfc_window_size_minutes)
    )
    return projected_growth(values_of_estimate(series, offset, estimated)) * PAGE


def _rounded(value: float) -> float:
    """To the next whole number, halves away from zero. ``value`` is not negative, and may be infinite."""
    part, whole = math.modf(value)
    return whole + (part >= 0.5)


def _units(count: float) -> int:
    return int(min(count, MAX_UNITS))


@dataclass(frozen=True, slots=True)
class RequestedUpscale:
    """The guest asked for more at an instant, when ``base`` was what it had been told that it has."""

    at: int
    base: Resources
    more: ResourceFlags


@dataclass(frozen=True, slots=True)
class DeniedDownscale:
    """The guest, told that it has ``current``, refused at an instant to go down to ``requested``."""

    at: int
    current: Resources
    requested: Resources


@dataclass(frozen=True, slots=True)
class DesiredResources:
    """What a machine should have, and which of the guest's own words made it so."""

    resources: Resources
    by_request: bool = False
    """Without the requested upscale it would be (or come from) less."""
    by_denial: bool = False
    """Without the denied downscale it would be (or come from) less."""
    warnings: tuple[str, ...] = ()


def desired_resources(
    unit: Resources,
    minimum: Resources,
    maximum: Resources,
    using: Resources,
    goal: ScalingGoal,
    upscale: RequestedUpscale | None = None,
    denied: DeniedDownscale | None = None,
    era: ProtocolEra = ProtocolEra.NEWEST,
) -> DesiredResources:
    """What the machine should have. ``upscale`` and ``denied`` are given only as long as they count."""
    warnings = list(goal.warnings)
    requested = 0 if upscale is None else units_for_upscale(unit, upscale)
    refused = 0 if denied is None else units_for_denial(unit, denied)
    units = min(max(goal.units, requested, refused), MAX_UNITS)
    wanted = unit * units
    if era is ProtocolEra.NEWEST:
        if not goal.complete:
            wanted = wanted.most(using)
            # Before the first metrics there is nothing to decide, and nothing to warn of.
            if goal.cpu is not None or goal.lfc is not None:
                warnings.append("deciding without all required metrics, so nothing goes down")
    elif not goal.complete and units == 0:
        wanted = using
    result = wanted.least(maximum).most(minimum)
    by_denial = refused > goal.units
    if denied is not None:
        if not result.exceeds(denied.requested):
            warnings.append("cannot decrease to within the machine's maximum because of a denied downscale")
        raised = result.most(minimum_after_denial(unit, denied))
        by_denial, result = by_denial or raised != result, raised
    return DesiredResources(result, by_request=requested > goal.units, by_denial=by_denial, warnings=tuple(warnings))


def units_for_upscale(unit: Resources, upscale: RequestedUpscale) -> int:
    """The fewest units that are more than the guest had, of each resource that it asked for."""
    cpu = 1 + upscale.base.cpu // unit.cpu if upscale.more.cpu else 0
    memory = 1 + upscale.base.memory // unit.memory if upscale.more.memory else 0
    return max(cpu, memory)


def units_for_denial(unit: Resources, denied: DeniedDownscale) -> int:
    """The fewest units that are more than what was refused, of both resources."""
    return 1 + max(denied.requested.cpu // unit.cpu, denied.requested.memory // unit.memory)


def minimum_after_denial(unit: Resources, denied: DeniedDownscale) -> Resources:
    """Each resource by itself: one unit more than what was refused, and no more than there was."""
    cpu = unit.cpu * (1 + denied.requested.cpu // unit.cpu)
    memory = unit.memory * (1 + denied.requested.memory // unit.memory)
    return Resources(cpu, memory).least(denied.current)
