"""Goals by era, and what a working set comes to. Recorded and random inputs are in tests/conformance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.goals import (
    MAX_UNITS,
    ScalingGoal,
    compute_goal,
    estimate_working_set,
    projected_growth,
    values_of_estimate,
)
from devalloc.scaling.metrics import LfcMetrics, SystemMetrics
from devalloc.scaling.resources import Resources
from devalloc.scaling.versions import ProtocolEra

GIB = 2**30
UNIT = Resources(250, GIB)
HALF = ScalingConfig(load_average_fraction_target=0.5, memory_usage_fraction_target=0.5)


def test_without_metrics_there_is_no_goal_in_any_era() -> None:
    for era in ProtocolEra:
        assert compute_goal(UNIT, HALF, None, era=era) == ScalingGoal(0, complete=False)


def test_cache_metrics_count_only_where_they_are_wanted_and_are_missed_there() -> None:
    wanted = ScalingConfig(enable_lfc_metrics=True)
    assert compute_goal(UNIT, HALF, SystemMetrics(0.0)).complete
    assert not compute_goal(UNIT, wanted, SystemMetrics(0.0)).complete
    assert compute_goal(UNIT, wanted, SystemMetrics(0.0), LfcMetrics(0, 0, 0, (1.0,) * 9)).complete
    short = compute_goal(UNIT, wanted, SystemMetrics(0.0), LfcMetrics(0, 0, 0, (1.0,) * 8))
    assert (short.lfc, short.complete, len(short.warnings)) == (0.0, True, 1)


@given(
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 2.0**62),
    st.lists(st.floats(0, 2.0**62), max_size=14).map(tuple),
    st.booleans(),
)
@settings(max_examples=40)
def test_whatever_a_guest_says_there_is_a_goal(
    load1: float, load5: float, usage: float, working_sets: tuple[float, ...], largest: bool
) -> None:
    config = ScalingConfig(
        load_average_fraction_target=1e-300,
        memory_usage_fraction_target=1e-300,
        lfc_to_memory_ratio=1e-300,
        cpu_stable_zone_ratio=1e300,
        cpu_mixed_zone_ratio=1e300,
        lfc_use_largest_window=largest,
    )
    for era in ProtocolEra:
        got = compute_goal(
            UNIT, config, SystemMetrics(load1, load5, usage, usage), LfcMetrics(0, 0, 0, working_sets), era
        )
        assert 0 <= got.units <= MAX_UNITS


def test_working_set_ends_where_growth_speeds_up() -> None:
    # Grows by 10, then by 31: more than three times as much.
    series = [10, 20, 30, 40, 71, 102, 133, 164]
    assert estimate_working_set(series, 1, 2) == 40
    assert list(values_of_estimate(series, 1, 40)) == [10, 20, 30, 40]
    assert projected_growth([10, 20, 30, 40]) == 45
    assert projected_growth([]) == 0


@pytest.mark.parametrize(("offset", "window", "length"), [(4, 5, 8), (3, 5, 20), (4, 1, 20), (0, 2, 20)])
def test_too_short_a_series_has_no_estimate(offset: int, window: int, length: int) -> None:
    with pytest.raises(ValueError, match="too few"):
        estimate_working_set([1.0] * length, offset, window)
