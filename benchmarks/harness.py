"""What every benchmark shares: the registry, the clock, the table and what it was measured on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from devalloc.version import VERSION

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One line of the table: what was measured (column to value) and how long each run took, in seconds."""

    what: dict[str, str | int]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Benchmark:
    """A named measurement. `rows(runs)` yields as it measures; every row has the same columns."""

    name: str
    title: str
    method: str
    """What is inside the measured time and what is not, in a sentence or two."""
    packages: tuple[str, ...]
    """Distributions whose versions matter."""
    rows: Callable[[int], Iterable[Row]]


REGISTRY: dict[str, Benchmark] = {}


def benchmark(
    name: str, title: str, *, method: str, packages: tuple[str, ...] = ()
) -> Callable[[Callable[[int], Iterable[Row]]], Callable[[int], Iterable[Row]]]:
    """Register a function of the number of runs as a benchmark."""

    def register(rows: Callable[[int], Iterable[Row]]) -> Callable[[int], Iterable[Row]]:
        REGISTRY[name] = Benchmark(name, title, method, packages, rows)
        return rows

    return register


def timed(act: Callable[[], object], runs: int) -> tuple[float, ...]:
    """Seconds of each of `runs` runs, after one that is not counted."""
    act()
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return tuple(seconds)


def report(bench: Benchmark, runs: int, say: Callable[[str], None]) -> str:
    """Run a benchmark, saying each line of its table as it comes; the whole page as Markdown."""
    lines = [
        f"# {bench.title}",
        "",
        f"{bench.method} {runs} runs a row after one to warm up; milliseconds.",
        "",
        f"Measured {datetime.now(UTC):%Y-%m-%d} on {machine()}; {', '.join(_versions(bench.packages))}.",
        "",
    ]
    for line in lines:
        say(line)
    for line in _table(bench.rows(runs)):
        lines.append(line)
        say(line)
    return "\n".join(lines) + "\n"


def machine() -> str:
    """CPU model, cores this process may use, memory, kernel, and how busy it was with other things."""
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    cpu = names[0] if names else platform.machine()
    return f"{cpu}, {cores} cores (load {os.getloadavg()[0]:.1f}), {memory:.0f} GiB, Linux {platform.release()}"


def _versions(packages: tuple[str, ...]) -> Iterator[str]:
    yield f"Python {platform.python_version()}"
    yield f"devalloc {VERSION}"
    for package in packages:
        yield f"{package} {version(package)}"


def _table(rows: Iterable[Row]) -> Iterator[str]:
    for number, row in enumerate(rows):
        if number == 0:
            yield "| " + " | ".join([*row.what, "median", "min", "max"]) + " |"
            yield "|" + "---:|" * (len(row.what) + 3)
        times = (statistics.median(row.seconds), min(row.seconds), max(row.seconds))
        yield "| " + " | ".join([*map(str, row.what.values()), *map(_milliseconds, times)]) + " |"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f}" if seconds >= 0.001 else f"{seconds * 1000:.3f}"
