"""Values that tables are made of, to devalloc's own and back."""

from __future__ import annotations

from typing import Any

from devalloc.scaling.config import ScalingConfig, read_defaults
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources

GIB = 2**30


def resources(content: dict[str, Any]) -> Resources:
    """Amounts of CPU in thousandths and of memory in bytes or GiB."""
    memory = number(content["mem_bytes"]) if "mem_bytes" in content else number(content["mem_gib"]) * GIB
    return Resources(int(number(content["vCPU_milli"])), int(memory))


def number(value: object) -> float:
    """A number of a table, which may hold anything. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"must be a number, not {value!r}")
    return value


def amounts_as_table(amounts: Resources | None, *, gib: bool = False) -> dict[str, Any] | None:
    """The way back."""
    if amounts is None:
        return None
    if gib and amounts.memory % GIB == 0:
        return {"vCPU_milli": amounts.cpu, "mem_gib": amounts.memory // GIB}
    return {"vCPU_milli": amounts.cpu, "mem_bytes": amounts.memory}


def config(content: dict[str, Any], **more: Any) -> ScalingConfig:
    """A scaling configuration that must be readable; what a table leaves out is as it is shipped."""
    shipped = {
        "loadAverageFractionTarget": 0.9,
        "memoryUsageFractionTarget": 0.75,
        "memoryTotalFractionTarget": 0.9,
        "enableLFCMetrics": False,
        "lfcToMemoryRatio": 0.75,
        "lfcWindowSizeMinutes": 5,
        "lfcMinWaitBeforeDownscaleMinutes": 5,
        "cpuStableZoneRatio": 0,
        "cpuMixedZoneRatio": 0,
    }
    read = read_defaults({**shipped, **content, **more})
    if read.value is None:
        raise ValueError("; ".join(str(problem) for problem in read.problems))
    return read.value


def system(content: dict[str, Any] | None) -> SystemMetrics | None:
    """Load and memory by the names of either table form."""
    if content is None:
        return None
    usage = content.get("memoryUsageBytes", content.get("mem_usage", 0))
    cached = content.get("memoryCachedBytes", content.get("mem_cached", 0))
    return SystemMetrics(content["load1"], content.get("load5", 0.0), usage, cached)


def lfc(buckets: list[float] | None) -> LfcMetrics | None:
    """The cache's working sets in pages, one a minute."""
    return None if buckets is None else LfcMetrics(0, 0, 0, tuple(buckets))
