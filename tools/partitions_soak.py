"""All points of the partitions: python -m tools.partitions_soak [--every N] [--from N] [--jobs N]

With ``--several N [--seed N]``: so many random courses of two to four points each.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter

from tests.support.partition_world import Cut, Fault, points, run_course

Faults = tuple[Fault, ...]


def judged(faults: Faults) -> tuple[Faults, list[str]]:
    """What is wrong of a course with them."""
    logging.disable(logging.CRITICAL)
    try:
        outcome = run_course(*faults)
    except Exception as error:
        return faults, [f"{faults}: {error!r}"]
    return faults, outcome.complaints if outcome.struck else [f"{faults}: it never came to that"]


def what(faults: Faults) -> str:
    """As a row."""
    if len(faults) > 1:
        return f"{len(faults)} at a time"
    (fault,) = faults
    return f"cut: {fault.link}, {fault.seconds:g} s" if isinstance(fault, Cut) else f"killed: {fault.party}"


def main() -> int:
    """Exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.partitions_soak", description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take each so many-th point (default: 1)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="from this one on (default: 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one for each CPU)")
    parser.add_argument("--several", type=int, default=0, help="random courses with several points (default: none)")
    parser.add_argument("--seed", type=int, default=None, help="of those; default: another one each time")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, steps = time.monotonic(), run_course().steps
    every = points(steps)
    chosen: list[Faults] = [(point,) for point in every[options.first :: options.every]]
    print(f"{len(every)} points, at the {len(steps)} steps of an undisturbed course", flush=True)
    if options.several:
        seed = random.randrange(2**31) if options.seed is None else options.seed
        print(f"{options.several} times several of them, seed {seed}", flush=True)
        rng = random.Random(seed)
        chosen = [tuple(rng.sample(every, rng.randint(2, 4))) for _ in range(options.several)]
    done, wrong = Counter[str](), Counter[str]()
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for faults, complaints in pool.imap_unordered(judged, chosen, chunksize=8):
            done[what(faults)] += 1
            wrong[what(faults)] += bool(complaints)
            if done.total() % 200 == 0:
                print(f"  {done.total()} of {len(chosen)}", flush=True)
            for complaint in complaints[:3]:
                print(f"WRONG: {complaint}", flush=True)
    for row in sorted(done):
        print(f"{done[row]:5}  {wrong[row]:5} wrong  {row}")
    print(f"{done.total()} courses, {wrong.total()} wrong; {time.monotonic() - began:.0f} s")
    return 1 if wrong.total() else 0


if __name__ == "__main__":
    sys.exit(main())
