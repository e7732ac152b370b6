"""What a guest tells of its load and memory: Prometheus text, read for the few gauges that scaling needs.

The text comes from a guest and is hostile: its size and lines are bounded, only lines of the wanted names are looked
at, and an amount that no machine can have is refused. What is wanted and cannot be read fails the whole text, so that
a goal is never computed from half of it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from devalloc.scaling.versions import ProtocolEra

MAX_TEXT = 1 << 20
"""Bytes of one reply."""
MAX_LINE = 4096
"""Characters of a line that is read; others may be as long as they like."""
MAX_LOAD = 1e6
MAX_AMOUNT = float(1 << 62)
"""Bytes, pages or events."""
MAX_CPUS = 4096.0
MAX_WINDOWS = 24 * 60
"""Working sets, one a minute."""
MEMORY_OVERHEAD = 100 * 2**20
"""Bytes that are added to what a guest uses: its kernel's own."""
CPUS = "devalloc_guest_cpus_online"
MEMORY = "host_memory_total_bytes"
"""The gauges by which the guest monitor reports them."""
_MAX_DIFFERENCE = 128 * 2**20
"""Bytes: a block of memory, the least that a kernel brings online."""


@dataclass(frozen=True, slots=True)
class GuestReport:
    """What a guest uses: ``cpus`` that are online, and ``memory`` in bytes, without what its kernel keeps from boot.
    None: it does not say."""

    cpus: int | None
    memory: int | None

    def is_behind(self, cpus: int, memory: int) -> bool:
        """Whether it has not brought online what its machine has. A kernel keeps a 64th of its memory for the table of
        its pages, and some more for itself; what is within twice that is not told apart from it."""
        overhead = min(memory // 8, _MAX_DIFFERENCE) + memory // 32
        few = self.cpus is not None and self.cpus < cpus
        return few or (self.memory is not None and self.memory + overhead < memory)


class MetricsError(ValueError):
    """A text without the metrics that are wanted. The message names each one that is missing or wrong."""


@dataclass(frozen=True, slots=True)
class SystemMetrics:
    """Load and memory of a guest. What an era does not read is 0."""

    load1: float
    """Load average of one minute."""
    load5: float = 0.0
    memory_usage: float = 0.0
    """Bytes, with what the kernel itself needs."""
    memory_cached: float = 0.0
    """Bytes of the page cache."""
    guest: GuestReport | None = None
    """What the guest says that it has; no goal is computed from it. None where it says nothing."""


@dataclass(frozen=True, slots=True)
class LfcMetrics:
    """The local file cache (LFC) of a guest's database."""

    hits: float
    misses: float
    writes: float
    working_sets: tuple[float, ...] = ()
    """Pages of 8 KiB that were touched in the last 1, 2, 3 ... minutes. Empty where the era does not read it."""


def read_system_metrics(text: bytes | str, era: ProtocolEra = ProtocolEra.NEWEST) -> SystemMetrics:
    """Load and memory from a guest's node metrics. Raises MetricsError."""
    wanted = {
        ProtocolEra.V0_31: ("load1", "memory_total_bytes", "memory_available_bytes"),
        ProtocolEra.NEWEST: ("load1", "load5", "memory_total_bytes", "memory_available_bytes", "memory_cached_bytes"),
    }[era]
    limits = {f"host_{name}": MAX_LOAD if name.startswith("load") else MAX_AMOUNT for name in wanted}
    families = _families(_decoded(text), (*limits, CPUS))
    gauges = _single_gauges(families, limits)
    total, available = (gauges[f"host_memory_{name}_bytes"] for name in ("total", "available"))
    if available > total:
        raise MetricsError("host_memory_available_bytes is more than host_memory_total_bytes")
    return SystemMetrics(
        load1=gauges["host_load1"],
        load5=gauges.get("host_load5", 0.0),
        memory_usage=total - available + MEMORY_OVERHEAD,
        memory_cached=gauges.get("host_memory_cached_bytes", 0.0),
        guest=_guest(families, total),
    )


def _guest(families: dict[str, _Family], total: float) -> GuestReport:
    """Only the guest monitor tells of its CPUs: an exporter that does not, or not well, is good enough for goals."""
    try:
        cpus: int | None = int(_single_gauges(families, {CPUS: MAX_CPUS})[CPUS])
    except MetricsError:
        cpus = None
    return GuestReport(cpus, int(total))


def read_lfc_metrics(text: bytes | str, era: ProtocolEra = ProtocolEra.NEWEST) -> LfcMetrics:
    """The local file cache's metrics from a guest's database exporter. Raises MetricsError."""
    decoded = _decoded(text)
    names = ("lfc_hits", "lfc_misses", "lfc_writes")
    families = _families(decoded, (*names, _WINDOWS) if era is ProtocolEra.NEWEST else names)
    gauges = _single_gauges(families, dict.fromkeys(names, MAX_AMOUNT))
    working_sets = _working_sets(families[_WINDOWS]) if era is ProtocolEra.NEWEST else ()
    return LfcMetrics(gauges["lfc_hits"], gauges["lfc_misses"], gauges["lfc_writes"], working_sets)


# -- gauges ----------------------------------------------------------------------------------------------------------

_LABEL = re.compile(r'[ \t]*([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*', re.ASCII)
_VALUE = re.compile(r"[ \t]+([^ \t]+)(?:[ \t]+-?[0-9]+)?[ \t]*", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WINDOWS = "lfc_approximate_working_set_size_windows"
_DURATION = "duration_seconds"


@dataclass(frozen=True, slots=True)
class _Sample:
    labels: dict[str, str]
    value: float


def _decoded(text: bytes | str) -> str:
    if len(text) > MAX_TEXT:
        raise MetricsError(f"the text has more than {MAX_TEXT} bytes")
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise MetricsError(f"the text is not UTF-8: byte {error.start}") from None


def _single_gauges(families: dict[str, _Family], limits: dict[str, float]) -> dict[str, float]:
    """The value of each gauge, which must have exactly one sample; ``limits`` is the most that each may be."""
    values: dict[str, float] = {}
    problems: list[str] = []
    for name, limit in limits.items():
        try:
            samples = _samples(name, families[name], limit, most=1)
            values[name] = samples[0].value
        except MetricsError as error:
            problems.append(str(error))
    if problems:
        raise MetricsError("; ".join(problems))
    return values


def _working_sets(family: _Family) -> tuple[float, ...]:
    by_duration: dict[int, float] = {}
    for sample in _samples(_WINDOWS, family, MAX_AMOUNT, most=MAX_WINDOWS):
        label = sample.labels.get(_DURATION, "")
        if not re.fullmatch(r"[0-9]{1,6}", label, re.ASCII):
            raise MetricsError(f"{_WINDOWS} has a sample whose label {_DURATION} is not a whole number of seconds")
        duration = int(label)
        if duration in by_duration:
            raise MetricsError(f"{_WINDOWS} has two samples of {duration} seconds")
        by_duration[duration] = sample.value
    durations = sorted(by_duration)
    for minute, duration in enumerate(durations, 1):
        if duration != 60 * minute:
            raise MetricsError(
                f"{_WINDOWS} must have one sample a minute: expected {60 * minute} seconds, got {duration}"
            )
    return tuple(by_duration[duration] for duration in durations)


@dataclass(slots=True)
class _Family:
    types: list[str]
    lines: list[str]
    """What follows the name in each line of a sample."""

    @property
    def is_too_long(self) -> bool:
        return len(self.lines) + len(self.types) > MAX_WINDOWS + 1


@lru_cache(maxsize=16)
def _lines_of(names: tuple[str, ...]) -> re.Pattern[str]:
    """Lines of samples and types of these names, each after the end of the one before: what begins with a character is
    searched for several times as fast as what begins a line. The line's rest is bounded only when it is read."""
    either = "|".join(re.escape(name) for name in names)
    return re.compile(rf"\n[ \t]*(#[ \t]*TYPE[ \t]+)?({either})(?![a-zA-Z0-9_:])([^\n]*)")


def _families(text: str, names: tuple[str, ...]) -> dict[str, _Family]:
    families = {name: _Family([], []) for name in names}
    for comment, name, rest in _lines_of(names).findall("\n" + text):
        family = families[name]
        if family.is_too_long:  # whether that matters is for who reads it
            continue
        (family.types if comment else family.lines).append(rest.rstrip("\r"))
    return families


def _samples(name: str, family: _Family, limit: float, *, most: int) -> list[_Sample]:
    if family.is_too_long:
        raise MetricsError(f"{name} has more than {MAX_WINDOWS} samples")
    if not family.lines:
        raise MetricsError(f"{name} is missing")
    if len(family.types) != 1 or family.types[0].strip() != "gauge":
        raise MetricsError(f"{name} is not declared to be a gauge" if not family.types else f"{name} is not one gauge")
    if len(family.lines) > most:
        raise MetricsError(f"{name} has {len(family.lines)} samples, not {'one' if most == 1 else f'{most} or fewer'}")
    return [_sample(name, line, limit) for line in family.lines]


def _sample(name: str, line: str, limit: float) -> _Sample:
    if len(line) > MAX_LINE:
        raise MetricsError(f"{name} has a line of more than {MAX_LINE} characters")
    labels, end = _labels(name, line)
    value = _VALUE.fullmatch(line, end)
    if value is None:
        raise MetricsError(f"{name} has a line that cannot be read")
    if not _NUMBER.fullmatch(value[1]):
        raise MetricsError(f"{name} is not a finite number")
    number = float(value[1])
    if not (0 <= number <= limit) or math.copysign(1, number) < 0:
        raise MetricsError(f"{name} must be 0 to {limit:g}, not {number:g}")
    return _Sample(labels, number)


def _labels(name: str, line: str) -> tuple[dict[str, str], int]:
    """The labels of a line's rest, and where its value begins."""
    start = len(line) - len(line.lstrip(" \t"))
    if not line.startswith("{", start):
        return {}, 0
    labels: dict[str, str] = {}
    position = start + 1
    while (label := _LABEL.match(line, position)) is not None:
        labels[label[1]] = label[2]
        position = label.end()
        if not line.startswith(",", position):
            break
        position += 1
    end = len(line) - len(line[position:].lstrip(" \t"))
    if not line.startswith("}", end):
        raise MetricsError(f"{name} has labels that cannot be read")
    return labels, end + 1
