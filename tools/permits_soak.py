"""The long form of the storm: python -m tools.permits_soak [--requests N] [--seed N] [--cluster]"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

from tests.support.fake_tree import memory_folder
from tests.support.permit_bench import NODE
from tests.support.permit_storm import PermitStorm, PermitTally


def main() -> int:
    """Exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.permits_soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="how many in all (default: 100000)")
    parser.add_argument("--between-kills", type=int, default=1000, help="requests from one to the next (default: 1000)")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--cluster", action="store_true", help="controllers of a real API server")
    options = parser.parse_args()
    seed = random.randrange(2**31) if options.seed is None else options.seed
    print(f"20 machines on a node with room for their least and little more, seed {seed}", flush=True)
    began = time.monotonic()
    with memory_folder() as name:
        if options.cluster:
            tally = _on_a_cluster(Path(name), seed, options.requests, options.between_kills)
        else:
            tally = PermitStorm(Path(name) / "store.db", seed).run(
                options.requests, between_kills=options.between_kills
            )
    print(f"{tally}; {time.monotonic() - began:.0f} s")
    for text in tally.wrong[:20]:
        print(f"WRONG: {text}")
    return 1 if tally.wrong else 0


def _on_a_cluster(folder: Path, seed: int, requests: int, between_kills: int) -> PermitTally:
    from tests.support import kube_build
    from tests.support.kube_api import running
    from tests.support.permit_storm_cluster import ClusterStorm, prepared_cluster

    (folder / "server").mkdir()
    with running(kube_build.binaries(print), folder / "server") as cluster, prepared_cluster(cluster, NODE):
        storm = ClusterStorm(cluster, folder, seed)
        try:
            return storm.run(requests, between_kills=between_kills)
        finally:
            storm.close()
            print(f"{storm.states} states of machines looked at", flush=True)


if __name__ == "__main__":
    sys.exit(main())
