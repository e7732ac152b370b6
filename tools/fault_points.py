"""`python -m tools.fault_points [SCENARIO ...]`: every fault point of the node plugin, counted and tried.

Exits with 1 where one of them left anything that is not as it should be.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from devalloc_node.errors import NodeError
from tests.support.fake_tree import memory_folder
from tests.support.fault_points import FaultPoint, FaultPoints
from tests.support.fault_scenarios import SCENARIOS
from tests.support.machine_faults import MachineFaults
from tests.support.machine_scenarios import SCENARIOS as MACHINES

COLUMNS = {"journal": 9, "host": 6, "netlink": 9, "qmp": 5, "spawn": 7, "cgroup": 8, "files": 7, "store": 7}
COLUMNS |= {"object": 8}
"""The parts of a point's call, and how wide they are shown."""


@dataclass(frozen=True)
class Run:
    """A scenario that was tried."""

    name: str
    points: tuple[FaultPoint, ...]
    wrong: str
    """What was not as it should be, at the first point where anything was; empty where nothing."""
    wall: float
    """Seconds."""
    cpu: float
    """Seconds of all processes that took part."""


def opened(name: str, folder: Path) -> FaultPoints:
    """A scenario of either kind, set up."""
    return MachineFaults(MACHINES[name], folder) if name in MACHINES else FaultPoints(SCENARIOS[name], folder)


def run(name: str) -> Run:
    """Try all points of a scenario."""
    logging.disable(logging.CRITICAL)  # the plugin says what is made to fail
    start, used = time.perf_counter(), sum(os.times()[:4])
    points: list[FaultPoint] = []
    wrong, at = "", "undisturbed"
    try:
        with memory_folder() as folder, closing(opened(name, Path(folder))) as faults:
            points = faults.points()
            for point in points:
                at = str(point)
                faults.check(point)
    except (AssertionError, NodeError) as error:  # what it left would be in the way of the others
        wrong = f"{at}: {error}"
    return Run(name, tuple(points), wrong, time.perf_counter() - start, sum(os.times()[:4]) - used)


def main(names: Sequence[str]) -> int:
    total, failed = Counter[str](), 0
    heads = "".join(f"{part:>{width}}" for part, width in COLUMNS.items())
    print(f"{'scenario':28}{'points':>8}{heads}{'wall s':>9}{'CPU s':>8}")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("fork")) as pool:
        for done in pool.map(run, names or [*SCENARIOS, *MACHINES]):
            parts = Counter(point.call.partition(".")[0] for point in done.points)
            total += parts
            counts = "".join(f"{parts[part]:>{width}}" for part, width in COLUMNS.items())
            print(f"{done.name:28}{len(done.points):>8}{counts}{done.wall:>9.1f}{done.cpu:>8.1f}", flush=True)
            if done.wrong:
                print(f"    {done.wrong}")
                failed += 1
    print(f"{total.total()} fault points, {failed} scenarios wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
