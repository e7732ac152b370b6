"""What is built once counts for no test's time."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.support.go_build import locked


def test_the_time_of_a_test_stands_still_while_it_builds(tmp_path: Path) -> None:
    before = signal.getitimer(signal.ITIMER_REAL)
    assert before[0] > 0, "pytest-timeout sets no alarm any more"
    with locked(tmp_path):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    after = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < after[0] <= before[0]
    assert after[1] == before[1]
