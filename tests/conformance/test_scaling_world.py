"""Whatever goes wrong once, at whichever call of a channel: no machine uses more than it is permitted, no guest loses
what it counts on, and in the end each machine has what it should have.

The suite takes every twelfth call; ``DEVALLOC_FUZZ_EXAMPLES`` of ``make fuzz`` takes all, and several faults at a time.
"""

from __future__ import annotations

import logging
import random

import pytest

from tests.support.examples import IS_FUZZ, examples
from tests.support.scaling_world import EXPECTED, FAULTS, Fault, restless, run_scaling_course
from tests.support.virtual_time import run

STRIDE = 1 if IS_FUZZ else 12


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong is meant to, and hundreds of courses log it."""
    caplog.set_level(logging.CRITICAL, "devalloc.agent")


def test_without_faults_the_machines_get_what_their_load_needs() -> None:
    outcome = run(run_scaling_course(), sockets=False)
    assert outcome.complaints == []
    assert outcome.has == EXPECTED
    assert outcome.calls > 60


@pytest.mark.parametrize("kind", FAULTS)
def test_one_fault_at_any_call_heals(kind: str) -> None:
    calls = run(run_scaling_course(seconds=100.0), sockets=False).calls
    for at in range(FAULTS.index(kind) % STRIDE, calls, STRIDE):
        outcome = run(run_scaling_course([Fault(kind, at)]), sockets=False)
        assert outcome.struck, (kind, at)
        assert outcome.complaints == []


def test_several_faults_heal_though_loads_change_faster_than_machines() -> None:
    for seed in range(examples(4)):
        rng = random.Random(seed)
        faults = [Fault(rng.choice(FAULTS), rng.randrange(100)) for _ in range(rng.randint(2, 6))]
        until, change = 120.0, rng.choice([0.4, 3.0, 9.0])
        outcome = run(run_scaling_course(faults, 400.0, loads=restless(rng, until), change=change), sockets=False)
        assert outcome.complaints == [], (seed, faults)


def test_the_rules_of_peers_use_more_than_is_permitted_in_the_same_world() -> None:
    """The world tells, and what devalloc does differently is needed."""
    wrong = []
    for seed in range(6):
        loads = restless(random.Random(seed), 60.0)
        wrong += run(run_scaling_course((), 60.0, loads=loads, change=6.0, as_peers=True), sockets=False).wrong
        assert run(run_scaling_course((), 60.0, loads=loads, change=6.0), sockets=False).wrong == [], seed
    assert any("permitted" in complaint for complaint in wrong)
