"""No call of the plugin can fail, and no instruction be its last, so that anything is left half-way (settled T18).

All fault points of every binding are enumerated, none is sampled. `make faults` prints how many there are, and fails
every call of every binding in all ways.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faketree import memory_folder
from tests.support.fault_scenarios import SCENARIOS
from tests.support.faults import Faults

ONCE = ("fail", "before", "after")


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_fails_or_dies_all_of_it_is_done_or_nothing(name: str) -> None:
    with memory_folder() as folder:
        faults = Faults(SCENARIOS[name], Path(folder))
        points = faults.points(ONCE)
        calls = {point.call.partition(".")[0] for point in points}
        assert {"journal", "host", "store", "qmp"} <= calls
        assert len(points) > 15 * len(ONCE)
        for point in points:
            faults.check(point)


@pytest.mark.parametrize("how", ["late", "down"])
def test_nor_is_it_left_where_a_failure_is_no_failure_or_stays(how: str) -> None:
    with memory_folder() as folder:
        faults = Faults(SCENARIOS["vf-with-settings"], Path(folder))
        for point in faults.points([how]):
            faults.check(point)


@pytest.mark.parametrize("name", ["vfio-with-audio", "vf-to-be-created"])
def test_killed_again_while_it_recovers_it_recovers_all_the_same(name: str) -> None:
    with memory_folder() as folder:
        faults = Faults(SCENARIOS[name], Path(folder))
        points = faults.points(["after"])
        assert sum(faults.check_twice(point) for point in points[::4]) > 50
