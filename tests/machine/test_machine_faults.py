"""Must show: wherever a plugin is killed, the power fails, or a second plugin begins, a real machine is as its object
says in the end, and nothing of another one is left."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.images import Image
from tests.support.machine_faults import HOWS_OF_MACHINES, MachineFaults
from tests.support.machine_scenarios import SCENARIOS
from tests.support.machines import short_folder

WHOLE = os.environ.get("MIGRATION_FAULTS", "")
STEP = int(WHOLE) if WHOLE.isdecimal() else 1 if WHOLE else 61
"""One of so many points is tried; ``make migration-faults`` tries all."""
NAMES = ("machine-restarted", *(name for name, one in SCENARIOS.items() if one.has_object))
FEW = ("machine-restarted", "object-host-reboot", "object-fence")


@pytest.mark.parametrize("name", NAMES if WHOLE else FEW)
def test_a_fault_anywhere_leaves_a_real_machine_as_it_should_be(open_image: Image, name: str) -> None:
    scenario = replace(SCENARIOS[name], claims=(), build=lambda host: None)
    with short_folder() as folder, MachineFaults(scenario, folder, open_image) as faults:
        points = [point for point in faults.points() if point.how in HOWS_OF_MACHINES[1:]]
        points = random.Random(name).sample(points, max(1, len(points) // STEP))
        for point in points:
            faults.check(point)
    print(f"{name}: {len(points)} points: {dict(Counter(point.how for point in points))}")
