"""What an event does to what is known of a machine, where no history of peers tells. Histories: tests/conformance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devalloc.scaling import state as agent
from devalloc.scaling.config import ScalingConfig
from devalloc.scaling.metrics import LfcMetrics
from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc.scaling.state import PermitError, ScalingRules, ScalingState, ScalingTiming

UNIT = Resources(250, 2**30)
BEGIN = ScalingState(
    ScalingRules(UNIT), ScalingBounds(UNIT, UNIT * 6), ScalingConfig(enable_lfc_metrics=True), using=UNIT * 3
)


def test_a_permit_below_what_a_change_in_flight_will_use_is_none() -> None:
    started = agent.plugin_started(agent.machine_started(BEGIN, UNIT * 5), 0, UNIT * 5)
    with pytest.raises(PermitError, match="less than what is in use: 1000m CPU"):
        agent.plugin_permitted(started, UNIT * 4)
    assert agent.plugin_permitted(started, UNIT * 5).plugin.permit == UNIT * 5
    failed = agent.machine_failed(started, 0)
    with pytest.raises(PermitError, match="less than what is in use"):
        agent.plugin_permitted(failed, UNIT * 4)
    assert agent.plugin_permitted(agent.machine_observed(failed, UNIT * 3), UNIT * 4).plugin.permit == UNIT * 4


@pytest.mark.parametrize("permit", [Resources(0, 2**40), Resources(250 * 100, 0)])
def test_a_permit_without_cpu_or_without_memory_says_so(permit: Resources) -> None:
    with pytest.raises(PermitError, match="must grant some CPU and some memory"):
        agent.plugin_permitted(agent.plugin_started(BEGIN, 0, UNIT * 6), permit)


@pytest.mark.parametrize("permit", [Resources(0, 2**30), Resources(250, 0), UNIT * 7, UNIT * 2])
def test_a_permit_of_nothing_more_than_asked_for_or_less_than_used_is_none(permit: Resources) -> None:
    with pytest.raises(PermitError):
        agent.plugin_permitted(agent.plugin_started(BEGIN, 0, UNIT * 6), permit)


def test_a_monitor_that_connects_approves_only_what_the_machine_is_sure_to_have() -> None:
    assert agent.monitor_connected(BEGIN).monitor.approved == UNIT * 3
    down = agent.machine_started(BEGIN, UNIT * 2)
    assert agent.monitor_connected(down).monitor.approved == UNIT * 2
    in_doubt = agent.machine_failed(down, 0)
    assert agent.monitor_connected(in_doubt).monitor.approved == UNIT * 2
    assert agent.monitor_connected(agent.machine_observed(in_doubt, UNIT * 3)).monitor.approved == UNIT * 3
    up = agent.machine_failed(agent.machine_started(BEGIN, UNIT * 5), 0)
    assert agent.monitor_connected(up).monitor.approved == UNIT * 3
    assert (up.lower_bound, up.upper_bound) == (UNIT * 3, UNIT * 5)


def test_changes_that_failed_one_after_the_other_leave_all_in_doubt_that_they_could_have_made() -> None:
    state = BEGIN
    for target in (UNIT * 5, UNIT * 2):
        state = agent.machine_failed(agent.machine_started(state, target), 0)
    assert (state.lower_bound, state.upper_bound) == (UNIT * 2, UNIT * 5)


def test_an_upscale_that_a_guest_may_have_heard_counts_until_the_next_answer() -> None:
    connected = replace(agent.monitor_connected(BEGIN), using=UNIT * 5)
    perhaps = agent.upscale_failed(agent.upscale_started(connected, UNIT * 5), 0)
    assert (perhaps.monitor.approved, perhaps.monitor.counted) == (UNIT * 3, UNIT * 5)
    confirmed = agent.upscale_done(agent.upscale_started(perhaps, UNIT * 4))
    assert (confirmed.monitor.approved, confirmed.monitor.counted) == (UNIT * 4, UNIT * 4)
    less = agent.downscale_allowed(agent.downscale_started(perhaps, UNIT * 2))
    assert (less.monitor.approved, less.monitor.counted) == (UNIT * 2, UNIT * 2)
    refused = agent.downscale_denied(agent.downscale_started(perhaps, UNIT * 4), 7)
    assert refused.monitor.counted == UNIT * 5
    assert refused.monitor.denied is not None
    assert (refused.monitor.denied.current, refused.monitor.denied.requested) == (UNIT * 5, UNIT * 4)


def test_what_was_taken_without_the_guests_word_is_neither_approved_nor_refused_any_more() -> None:
    connected = agent.monitor_connected(BEGIN)
    refused = agent.downscale_denied(agent.downscale_started(connected, UNIT * 2), 0)
    taken = agent.machine_done(agent.machine_started(agent.maximum_enforced(refused, True), UNIT * 2), 1)
    assert (taken.monitor.approved, taken.monitor.denied) == (UNIT * 2, None)
    lowered = agent.machine_done(agent.machine_started(refused, UNIT * 2), 1)
    assert lowered.monitor == refused.monitor


def test_cache_metrics_go_when_they_are_not_wanted_any_more() -> None:
    measured = agent.lfc_metrics_received(BEGIN, LfcMetrics(0, 0, 0, (1.0,)))
    assert agent.bounds_changed(measured, BEGIN.bounds, BEGIN.config).lfc is not None
    assert agent.bounds_changed(measured, BEGIN.bounds, ScalingConfig()).lfc is None


def test_only_the_change_sets_the_amounts_of_a_machine_being_changed() -> None:
    changing = agent.machine_started(BEGIN, UNIT * 5)
    assert agent.machine_observed(changing, UNIT * 4) == changing
    assert agent.machine_observed(BEGIN, UNIT * 4).using == UNIT * 4


def test_of_two_tellings_that_may_have_been_heard_the_larger_counts() -> None:
    state = replace(agent.monitor_connected(BEGIN), using=UNIT * 5)
    for target in (UNIT * 5, UNIT * 4):
        state = agent.upscale_failed(agent.upscale_started(state, target), 0)
    assert state.monitor.counted == UNIT * 5


def test_a_compute_unit_has_some_of_each_and_no_wait_is_negative() -> None:
    for unit in (Resources(0, 1), Resources(1, 0)):
        with pytest.raises(ValueError, match="some of each"):
            ScalingRules(unit)
    with pytest.raises(ValueError, match="monitor_retry cannot be negative"):
        ScalingTiming(monitor_retry=-1)
