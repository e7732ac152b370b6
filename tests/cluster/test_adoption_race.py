"""kube-scheduler and devalloc's controller on the devices of one driver, while it is adopted and given back, processes
die, and two API servers have their own copies of the rules. More claims: ``make adoption-race``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.adoption_race import race_cluster
from tests.support.go_build import Unavailable

pytestmark = pytest.mark.timeout(600)


def test_no_device_has_two_owners_while_a_driver_is_adopted_and_given_back() -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="race-") as folder, race_cluster(Path(folder)) as race:
            result = race.run(240, seed=11)
    except Unavailable as reason:
        pytest.skip(f"no Kubernetes: {reason}")
    assert result.twice == [], result.in_words
    assert min(result.granted_ours, result.granted_theirs) > 60, result.in_words
    assert sum(result.disturbances.values()) >= 4, result.in_words
