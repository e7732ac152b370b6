"""A Fleet answers the same bytes in every process."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.repository import REPO

_SAME_BYTES = """
import json, random, sys
from devalloc_solver import Fleet
from tests.unit.solver.test_fleet import fleet_of, wants
documents = fleet_of(6)
random.Random(int(sys.argv[1])).shuffle(documents)
fleet = Fleet.from_manifests(documents)
told = []
for n in range(12):
    told.append(fleet.allocate(wants(f"c{n}", 1 + n % 3, match="numa" if n % 2 else None)))
    if n % 4 == 3:
        fleet.release("default", f"c{n - 3}")
print(json.dumps(told))
"""


def test_the_same_calls_give_the_same_bytes() -> None:
    """In any order of the input, with any seed of hashing."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _SAME_BYTES, str(seed)],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join([str(REPO), *sys.path])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(outputs) == 1
    assert len(json.loads(outputs.pop())) == 12
