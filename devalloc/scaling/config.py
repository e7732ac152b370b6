"""The scaling configuration of a machine: the default for all, overrides of one, and both put together.

Overrides come in the annotation ``autoscaling.neon.tech/config``, defaults from the agent's own settings. Reading tells
every problem with its path, never only the first. Where eras differ (T21), an era knows fewer fields than the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from devalloc.api.problems import Problem, Read, closest_match
from devalloc.api.quantity import type_name
from devalloc.scaling.versions import ProtocolEra

ANNOTATION = "autoscaling.neon.tech/config"
ANNOTATION_PATH = f"metadata.annotations[{ANNOTATION}]"
"""Where a manifest has it."""
MAX_ANNOTATION = 16 * 1024
"""Characters of the annotation; more is refused unread."""
MAX_MINUTES = 24 * 60
"""A window or wait is a number of samples, one a minute."""


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """How the goal of a machine is computed. All fractions are of 1; the defaults are those that are shipped."""

    load_average_fraction_target: float = 0.9
    """The part of the CPUs that the load average should come to."""
    memory_usage_fraction_target: float = 0.75
    """The part of the memory that usage should come to."""
    enable_lfc_metrics: bool = False
    """Whether the metrics of the guest's local file cache (LFC) are fetched and count."""
    memory_total_fraction_target: float = 0.9
    """The part of the memory that usage and the cached working set together should come to."""
    lfc_to_memory_ratio: float = 0.75
    """The part of the memory that the local file cache may take."""
    lfc_window_size_minutes: int = 5
    """Width of the windows in which growth of the working set is compared."""
    lfc_min_wait_before_downscale_minutes: int = 5
    """How long a working set counts at least."""
    lfc_use_largest_window: bool = False
    """Estimate the working set as that of the longest time known."""
    cpu_stable_zone_ratio: float = 0.0
    """Up to this part of the 5 minute load, a different 1 minute load does not count."""
    cpu_mixed_zone_ratio: float = 0.0
    """The part of the 5 minute load, beyond the stable zone, over which the two are mixed."""


@dataclass(frozen=True, slots=True)
class ScalingOverrides:
    """What one machine has different; None is "as the default"."""

    load_average_fraction_target: float | None = None
    memory_usage_fraction_target: float | None = None
    enable_lfc_metrics: bool | None = None
    memory_total_fraction_target: float | None = None
    lfc_to_memory_ratio: float | None = None
    lfc_window_size_minutes: int | None = None
    lfc_min_wait_before_downscale_minutes: int | None = None
    lfc_use_largest_window: bool | None = None
    cpu_stable_zone_ratio: float | None = None
    cpu_mixed_zone_ratio: float | None = None


def read_defaults(content: object, era: ProtocolEra = ProtocolEra.NEWEST, path: str = "") -> Read[ScalingConfig]:
    """Read the configuration that machines have by default: what the era requires must be there.

    ``content`` is decoded JSON. Fields that the era does not know keep what is shipped. Never raises for content.
    """
    values, problems = _read(content, era, path)
    if isinstance(content, dict):
        problems += [
            Problem("is required", _join(path, field.name))
            for field in _known_fields(era)
            if field.required and field.attribute not in values and _given(content, field.name) is None
        ]
    config = replace(ScalingConfig(), **values)
    if not {_join(path, _WAIT), _join(path, _WINDOW)} & {problem.path for problem in problems}:
        problems += _conflicts(config, path)
    return Read(None if _errors(problems) else config, problems)


def read_overrides(content: object, era: ProtocolEra = ProtocolEra.NEWEST, path: str = "") -> Read[ScalingOverrides]:
    """Read what one machine has different. ``content`` is decoded JSON. Never raises for content."""
    values, problems = _read(content, era, path)
    return Read(None if _errors(problems) else ScalingOverrides(**values), problems)


def read_config_annotation(text: str, era: ProtocolEra = ProtocolEra.NEWEST, path: str = "") -> Read[ScalingOverrides]:
    """Read overrides from the annotation's text. Never raises for content."""
    if len(text) > MAX_ANNOTATION:
        return Read(None, [Problem(f"must be at most {MAX_ANNOTATION} characters, not {len(text)}", path)])
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Read(None, [Problem(f"is not valid JSON: {error}", path)])
    if content is None:
        return Read(ScalingOverrides(), [])
    return read_overrides(content, era, path)


def merge_overrides(defaults: ScalingConfig, overrides: ScalingOverrides | None, path: str = "") -> Read[ScalingConfig]:
    """The configuration of one machine: what is set replaces the default. Problems: what clashes only now."""
    if overrides is None:
        return Read(defaults, [])
    config = apply_overrides(defaults, overrides)
    problems = _conflicts(config, path)
    return Read(None if problems else config, problems)


def apply_overrides(defaults: ScalingConfig, overrides: ScalingOverrides) -> ScalingConfig:
    """The same, where what clashes is of no interest yet."""
    return replace(defaults, **{name: value for name, value in asdict(overrides).items() if value is not None})


# -- fields ----------------------------------------------------------------------------------------------------------

_Read = Callable[[object], float | int | bool]
"""Gives the value, or raises ValueError with a message that completes the sentence "<path> ..."."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    attribute: str
    since: ProtocolEra
    required: bool
    read: _Read


def _number(
    *, above: float = -math.inf, below: float = math.inf, least: float = -math.inf, form: str = "a number"
) -> _Read:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"must be {form}, not {type_name(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.nan
        if not (above < number < below and number >= least):
            raise ValueError(f"must be {form}, not {_shown(value)}")
        return number

    return read


def _minutes(least: int) -> _Read:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number of minutes, not {type_name(value)}")
        if not least <= value <= MAX_MINUTES:
            raise ValueError(f"must be {least} to {MAX_MINUTES} minutes, not {_shown(value)}")
        return value

    return read


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {type_name(value)}")
    return value


def _shown(value: float) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if abs(value) < 10**20 else "a huge number"


_WINDOW = "lfcWindowSizeMinutes"
_WAIT = "lfcMinWaitBeforeDownscaleMinutes"
_PART = _number(above=0, below=1, form="a number above 0 and below 1")
_RATIO = _number(least=0, form="a number that is 0 or more")
_FIELDS = (
    _Field(
        "loadAverageFractionTarget",
        "load_average_fraction_target",
        ProtocolEra.V0_31,
        True,
        _number(above=0, below=2, form="a number above 0 and below 2"),
    ),
    _Field("memoryUsageFractionTarget", "memory_usage_fraction_target", ProtocolEra.V0_31, True, _PART),
    _Field("enableLFCMetrics", "enable_lfc_metrics", ProtocolEra.V0_31, True, _flag),
    _Field("memoryTotalFractionTarget", "memory_total_fraction_target", ProtocolEra.NEWEST, True, _PART),
    _Field(
        "lfcToMemoryRatio", "lfc_to_memory_ratio", ProtocolEra.NEWEST, True, _number(above=0, form="a number above 0")
    ),
    _Field(_WINDOW, "lfc_window_size_minutes", ProtocolEra.NEWEST, True, _minutes(2)),
    _Field(_WAIT, "lfc_min_wait_before_downscale_minutes", ProtocolEra.NEWEST, True, _minutes(1)),
    _Field("lfcUseLargestWindow", "lfc_use_largest_window", ProtocolEra.NEWEST, False, _flag),
    _Field("cpuStableZoneRatio", "cpu_stable_zone_ratio", ProtocolEra.NEWEST, True, _RATIO),
    _Field("cpuMixedZoneRatio", "cpu_mixed_zone_ratio", ProtocolEra.NEWEST, True, _RATIO),
)
_ORDER = list(ProtocolEra)

assert {field.attribute for field in _FIELDS} == {field.name for field in fields(ScalingConfig)}


def _known_fields(era: ProtocolEra) -> list[_Field]:
    return [field for field in _FIELDS if _ORDER.index(field.since) <= _ORDER.index(era)]


def _read(content: object, era: ProtocolEra, path: str) -> tuple[dict[str, Any], list[Problem]]:
    """The values that can be read, by attribute, and the problems of the others. null is the same as absent."""
    if not isinstance(content, dict):
        return {}, [Problem(f"must be an object, not {type_name(content)}", path)]
    by_name = {field.name: field for field in _known_fields(era)}
    by_folded = {name.lower(): field for name, field in by_name.items()}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in content.items():
        # Peers match the names of fields without regard to case, and ignore the ones that they do not know.
        field = by_name.get(name) or by_folded.get(str(name).lower())
        if field is None:
            problems.append(_unknown(str(name), era, path))
        elif value is not None:
            try:
                values[field.attribute] = field.read(value)
            except ValueError as error:
                problems.append(Problem(str(error), _join(path, field.name)))
    return values, problems


def _unknown(name: str, era: ProtocolEra, path: str) -> Problem:
    shown = name if len(name) <= 60 else name[:57] + "..."
    if name in {field.name for field in _FIELDS}:
        return Problem(f"is ignored: {era.value} does not know it", _join(path, shown), severity="warning")
    near = closest_match(name, [field.name for field in _known_fields(era)])
    advice = f"; did you mean {near}?" if near else ""
    return Problem(f"is ignored: there is no such field{advice}", _join(path, shown), severity="warning")


def _given(content: dict[Any, Any], name: str) -> object:
    return next((value for key, value in content.items() if str(key).lower() == name.lower()), None)


def _conflicts(config: ScalingConfig, path: str) -> list[Problem]:
    """Fields that are valid by themselves and not together: a window must lie within the time that always counts,
    unless windows are not compared at all."""
    wait, window = config.lfc_min_wait_before_downscale_minutes, config.lfc_window_size_minutes
    if wait >= window or config.lfc_use_largest_window:
        return []
    return [Problem(f"must be at least {_WINDOW}, which is {window}, not {wait}", _join(path, _WAIT))]


def _errors(problems: list[Problem]) -> bool:
    return any(problem.is_error for problem in problems)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
