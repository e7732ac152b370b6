"""Random instances of resource.k8s.io: ours against upstream's released allocator, the oracle and the check.

    python -m tools.fuzz_resource_claims --count 20000 --seed 1 --out build

Each instance with an undocumented difference is made smaller and saved as ``differs-<seed>.json`` with its complaints.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from tests.support import upstream_allocator
from tests.support.dra_differential import compare, kind, shrink
from tests.support.dra_instances import Instance, instance
from tests.support.go_build import Unavailable
from tests.support.upstream_allocator import UpstreamPeer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="instances (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first instance (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"), help="folder of differences (%(default)s)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        peer = upstream_allocator.running(_say)
    except Unavailable as reason:
        print(f"no peer to compare with: {reason}", file=sys.stderr)
        return 2
    outcomes, differences, wrong = Counter[str](), Counter[str](), Counter[str]()
    start = shown = time.monotonic()
    with peer:
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            drawn = instance(Random(seed))
            comparison = compare(drawn, peer)
            outcomes[comparison.outcome] += 1
            differences[comparison.difference or "none"] += 1
            if comparison.complaints:
                wrong[kind(comparison.complaints[0])] += 1
                path = _save(arguments.out, seed, drawn, comparison.complaints[0], peer)
                print(f"{path}: {comparison.complaints[0]}", flush=True)
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                _say(f"{seed + 1 - arguments.seed} of {arguments.count} instances, {wrong.total()} wrong")
    print(f"{arguments.count} instances in {time.monotonic() - start:.0f} s: {dict(outcomes)}")
    for name, number in sorted(differences.items()):
        print(f"  upstream's difference: {name}: {number}")
    for name, number in wrong.items():
        print(f"  WRONG: {name}: {number}")
    return 1 if wrong else 0


def _save(folder: Path, seed: int, drawn: Instance, complaint: str, peer: UpstreamPeer) -> Path:
    wanted = kind(complaint)

    def fails(smaller: Instance) -> bool:
        try:
            return any(kind(one) == wanted for one in compare(smaller, peer).complaints)
        except (KeyError, ValueError, AssertionError, IndexError, TypeError):
            return False  # cut until it is no instance any more

    small = shrink(drawn, fails)
    path = folder / f"differs-{seed}.json"
    complaints = compare(small, peer).complaints
    path.write_text(json.dumps({"seed": seed, "complaints": complaints, **small}, indent=1))
    return path


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
