"""The fault harness in short: a few points of each kind; all of them are tried by the conformance tier."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from devalloc_node.claims.steps import StepRunner, UndoResult
from tests.support.fake_tree import memory_folder
from tests.support.fault_points import FaultPoint, FaultPoints
from tests.support.fault_scenarios import SCENARIOS


@pytest.mark.parametrize("name", ["vfio-with-audio", "vf-to-be-created", "vgpu"])
def test_a_few_of_the_fault_points_drawn_by_a_seed(name: str) -> None:
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS[name], Path(folder))
        for point in random.Random(7).sample(faults.points(), 6):
            faults.check(point)


def test_the_harness_notices_what_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that forgets a claim without undoing it is found out at the first point."""
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS["vgpu"], Path(folder))
        (point,) = (p for p in faults.points() if (p.act, p.how) == ("prepare", "after") and "current_vgpu" in p.call)
        monkeypatch.setattr(StepRunner, "undo", lambda *arguments, **options: UndoResult())
        with pytest.raises(AssertionError, match="not undone"):
            faults.check(point)


def test_the_harness_notices_a_point_that_is_not_reached() -> None:
    with memory_folder() as folder:
        faults = FaultPoints(SCENARIOS["vgpu"], Path(folder))
        with pytest.raises(AssertionError, match="was not reached"):
            faults.check(FaultPoint("prepare", 1000, "before"))
