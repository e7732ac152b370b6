"""The long form of the storm: python -m tools.controllers_soak [--claims N] [--minutes N] [--seed N] [--no-machines]"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.support import kube_build, kube_crds
from tests.support.claim_storm import SERVER, ClaimStorm
from tests.support.controller_processes import DEVMGMT
from tests.support.fleet_manifests import gpu_class
from tests.support.kube_api import running


def main() -> int:
    """Exit code 1 where anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.controllers_soak", description=__doc__)
    parser.add_argument("--claims", type=int, default=500, help="how many in all, machines included (default: 500)")
    parser.add_argument("--minutes", type=float, default=10.0, help="for so long (default: 10)")
    parser.add_argument("--away", type=float, default=120.0, help="seconds without API server, once (default: 120)")
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    parser.add_argument("--no-machines", action="store_true", help="only claims and pods: what holds devices may rest")
    options = parser.parse_args()
    seed = random.randrange(2**31) if options.seed is None else options.seed
    say = partial(print, flush=True)
    say(f"two controllers, 4 nodes with 32 devices and 16 CPUs, 2 set aside with 8 devices, seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "server").mkdir()
        with running(kube_build.binaries(say), folder / "server", *SERVER) as cluster:
            kube_crds.install(cluster)
            assert cluster.create(f"{DEVMGMT}/deviceclasses", gpu_class()).ok
            began = time.monotonic()
            tell = lambda text: say(f"{time.monotonic() - began:5.0f} s  {text}")  # noqa: E731
            storm = ClaimStorm(cluster, folder, seed, tell, has_machines=not options.no_machines)
            tally = storm.run(options.claims, options.minutes * 60, away=options.away)
        say(f"{tally}; {time.monotonic() - began:.0f} s")
        for text in tally.wrong[:20]:
            say(f"WRONG: {text}")
        if tally.wrong:
            for log in sorted(folder.glob("*.log")):
                say(f"--- {log.name}\n{log.read_text(errors='replace')[-20_000:]}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
