"""Pools that are published again while claims have their devices, in both dialects, by cold solves and by a warm fleet.

    python -m tools.fuzz_pools --events 100000 --seed 1

``tests.support.republished_pools`` has the histories and the oracle. A history that gives something twice is named by
its seed and number.
"""

from __future__ import annotations

import argparse
import sys

from tests.support.republished_pools import run

WAYS = [(dialect, is_warm) for dialect in ("DeviceClaim", "ResourceClaim") for is_warm in (False, True)]


def main() -> int:
    """Run the histories, and print what is in use twice. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=20_000, help="of all four ways together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wrong = 0
    for dialect, is_warm in WAYS:
        problems = run(dialect, given.seed, given.events // len(WAYS), is_warm=is_warm)
        way = f"{dialect}s, {'warm' if is_warm else 'cold'}"
        print(f"{way}: {given.events // len(WAYS)} events, {len(problems)} wrong", *problems, sep="\n  ", flush=True)
        wrong += len(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
