"""The time that a fleet which stays in memory takes for what happens every day, in this checkout and another one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.everyday import MEASURED
from benchmarks.harness import Row, benchmark

BEFORE = "EVERYDAY_BEFORE"
ROOT = Path(__file__).parents[1]


@benchmark(
    "everyday",
    "What happens every day, in CPU time",
    method="CPU time of the thread that answers: claims that come and go on 5,000 nodes of 8 GPUs and 8 NICs, half of "
    "the GPUs in use; two claims together when 60 nodes have two GPUs left; a VirtualMachine that changes; and rounds "
    "of the controller on 100 nodes while 10,000 claims of another tenant wait. `before`: the checkout that the "
    f"environment variable {BEFORE} names, in turns. Runs are calls here, and",
    packages=("pydantic",),
)
def everyday(_: int) -> Iterator[Row]:
    trees = {"before": Path(os.environ[BEFORE])} if BEFORE in os.environ else {}
    trees["now"] = ROOT
    for name in MEASURED:
        for when, tree in trees.items():
            for what, seconds in _measured(name, tree):
                p99 = sorted(seconds)[int(len(seconds) * 0.99)] * 1000
                columns: dict[str, str | int] = {"what": what, "tree": when, "calls": len(seconds)}
                yield Row({**columns, "p99": f"{p99:.3f}"}, tuple(seconds))


def _measured(name: str, tree: Path) -> Iterator[tuple[str, list[float]]]:
    parts = [tree, tree / "solver", tree / "node-plugin"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, parts))}
    command = [sys.executable, str(ROOT / "benchmarks" / "everyday.py"), name]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        what, seconds = json.loads(line)
        yield what, seconds
