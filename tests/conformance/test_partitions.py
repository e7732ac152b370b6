"""Must show: whichever part is cut off or killed, at whichever step of a machine's way up and down, no
more is permitted or used than there is, the guest loses nothing that it counts on, and all comes right afterwards.

The suite takes some of the points, the same each time; ``make partitions`` takes all of them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from devalloc.scaling.actions import Actions, PluginRequest, ResourceChange, next_actions
from devalloc.scaling.state import ScalingState
from devalloc_machines.agent import scaler
from tests.support.examples import examples
from tests.support.partition_world import EXPECTED, LINKS, PARTIES, Cut, Kill, PartitionOutcome, points, run_course

SOME = examples(4, 0.04)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong is meant to, and hundreds of courses log it."""
    caplog.set_level(logging.CRITICAL)


@cache
def undisturbed() -> PartitionOutcome:
    return run_course()


def test_undisturbed_it_goes_up_and_down_and_its_guest_refuses_now_and_then() -> None:
    outcome = undisturbed()
    assert outcome.complaints == []
    assert outcome.has == EXPECTED
    assert outcome.denied >= 1
    kinds = {step.split(": ")[1].split(",")[0] for step in outcome.steps}
    assert kinds == {"ask", "change", "look", "upscale", "downscale", "metrics"}


def test_some_of_all_points_come_right() -> None:
    every = points(undisturbed().steps)
    assert {fault.link for fault in every if isinstance(fault, Cut)} == set(LINKS)
    assert {fault.party for fault in every if isinstance(fault, Kill)} == set(PARTIES)
    for fault in random.Random(1).sample(every, SOME):
        outcome = run_course(fault)
        assert outcome.struck, fault
        assert outcome.complaints == []


def test_two_at_a_time_come_right() -> None:
    every = points(undisturbed().steps)
    rng = random.Random(2)
    for _ in range(examples(2, 0.01)):
        assert run_course(*rng.sample(every, 2)).complaints == []


# The world tells.


def _plugs_before_the_permit(state: ScalingState, now: int) -> Actions:
    actions = next_actions(state, now)
    if actions.desired.exceeds(state.using) and state.machine.in_flight is None:
        return replace(actions, machine=ResourceChange(state.using, actions.desired))
    return actions


def _gives_back_before_it_unplugs(state: ScalingState, now: int) -> Actions:
    actions = next_actions(state, now)
    if state.using.exceeds(actions.desired) and not state.plugin.in_flight:
        return replace(actions, plugin=PluginRequest(state.plugin.permit, actions.desired, state.system))
    return actions


@pytest.mark.parametrize("planted", [_plugs_before_the_permit, _gives_back_before_it_unplugs])
def test_an_agent_that_does_it_the_other_way_round_is_found(
    monkeypatch: pytest.MonkeyPatch, planted: Callable[[ScalingState, int], Actions]
) -> None:
    monkeypatch.setattr(scaler, "next_actions", planted)
    assert any("permitted" in complaint for complaint in run_course(Cut("agent and server", 7, 0.0, 12.0)).wrong)


def test_the_judge_finds_an_agent_that_takes_more_than_a_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    def hopes(state: ScalingState, now: int) -> ScalingState:
        assert state.plugin.last is not None
        return replace(state, plugin=replace(state.plugin, in_flight=False, permit=state.plugin.last.resources))

    monkeypatch.setattr(scaler.now_known, "plugin_failed", hopes)
    assert any("permitted" in complaint for complaint in run_course(Cut("agent and server", 7, 0.0, 12.0)).wrong)
