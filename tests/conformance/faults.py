"""`python -m tests.conformance.faults [SCENARIO ...]`: every fault point of the node plugin, counted and tried."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from pathlib import Path

from tests.support.faketree import memory_folder
from tests.support.fault_scenarios import SCENARIOS
from tests.support.faults import Faults, Point


def run(name: str) -> tuple[list[Point], list[str], float]:
    """All points of a scenario, what went wrong, and how long it took in seconds."""
    start = time.perf_counter()
    wrong: list[str] = []
    with memory_folder() as folder:
        faults = Faults(SCENARIOS[name], Path(folder))
        points = faults.points()
        for point in points:
            try:
                faults.check(point)
            except AssertionError as error:
                wrong.append(str(error))
                break  # what it left would be in the way of the others
    return points, wrong, time.perf_counter() - start


def main(names: list[str]) -> int:
    logging.disable(logging.CRITICAL)  # the plugin says what is made to fail
    total, failed = Counter[str](), 0
    print(f"{'scenario':28}{'points':>8}{'journal':>9}{'host':>6}{'netlink':>9}{'qmp':>5}{'store':>7}{'seconds':>9}")
    for name in names or list(SCENARIOS):
        points, wrong, seconds = run(name)
        parts = Counter(point.call.partition(".")[0] for point in points)
        total += parts
        counts = "".join(
            f"{parts[part]:>{width}}"
            for part, width in (("journal", 9), ("host", 6), ("netlink", 9), ("qmp", 5), ("store", 7))
        )
        print(f"{name:28}{len(points):>8}{counts}{seconds:>9.1f}", flush=True)
        for text in wrong:
            print(f"    {text}")
            failed += 1
    print(f"{total.total()} fault points, {failed} scenarios wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
