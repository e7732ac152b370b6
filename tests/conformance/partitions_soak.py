"""All points of the partitions: python -m tests.conformance.partitions_soak [--every N] [--from N] [--jobs N]"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter

from tests.support.partition_world import Cut, Fault, course, points


def judged(fault: Fault) -> tuple[Fault, list[str]]:
    """What is wrong of a course with it."""
    logging.disable(logging.CRITICAL)
    try:
        outcome = course(fault)
    except Exception as error:
        return fault, [f"{fault}: {error!r}"]
    return fault, outcome.complaints if outcome.struck else [f"{fault}: it never came to that"]


def what(fault: Fault) -> str:
    """As a row."""
    return f"cut: {fault.link}, {fault.seconds:g} s" if isinstance(fault, Cut) else f"killed: {fault.party}"


def main() -> int:
    """Exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.partitions_soak", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take each so many-th point (default: 1)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="from this one on (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each CPU)")
    options = parser.parse_args()
    began, steps = time.monotonic(), course().steps
    chosen = points(steps)[options.first :: options.every]
    print(f"{len(chosen)} of {len(points(steps))} points, at steps of {len(steps)}", flush=True)
    done, wrong = Counter[str](), Counter[str]()
    with multiprocessing.Pool(options.jobs) as pool:
        for fault, complaints in pool.imap_unordered(judged, chosen, chunksize=8):
            done[what(fault)] += 1
            wrong[what(fault)] += bool(complaints)
            for complaint in complaints[:3]:
                print(f"WRONG: {complaint}", flush=True)
    for row in sorted(done):
        print(f"{done[row]:5}  {wrong[row]:5} wrong  {row}")
    print(f"{done.total()} points, {wrong.total()} wrong; {time.monotonic() - began:.0f} s")
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    sys.exit(main())
