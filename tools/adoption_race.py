"""Two allocators on the devices of one driver, while it is adopted and given back and processes die: no device twice.

``python -m tools.adoption_race --claims 1000 --seed 7`` (``make adoption-race``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.support.adoption_race import race_cluster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=1000, help="of both sides together")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--unsafe", action="store_true", help="the rule alone, without the policy: to see what it prevents"
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="race-") as folder,
        race_cluster(Path(folder), is_unsafe=options.unsafe) as race,
    ):
        result = race.run(options.claims, options.seed, lambda text: print(text, flush=True))
    print(result.in_words)
    for line in result.twice:
        print(line)
    return 1 if result.twice else 0


if __name__ == "__main__":
    sys.exit(main())
