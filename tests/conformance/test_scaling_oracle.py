"""The agent's arithmetic against an oracle that is written from the specification alone, on random machines."""

from __future__ import annotations

import math
import random
from fractions import Fraction

from devalloc.scaling.config import read_defaults
from devalloc.scaling.goals import compute_goal
from devalloc.scaling.metrics import LfcMetrics
from tests.support import scaling_oracle as oracle
from tests.support.examples import examples
from tests.support.random_scaling_histories import (
    UNITS,
    ScalingHistory,
    actions_as_oracle,
    random_config,
    random_series,
    random_system,
    system_metrics,
)

GOALS, HISTORIES = examples(600, 5.0), examples(50, 0.375)
"""How many are drawn."""


def test_goals_are_what_exact_fractions_give() -> None:
    rng = random.Random(1)
    decided = 0
    for number in range(GOALS):
        unit, content = rng.choice(UNITS), random_config(rng)
        config = read_defaults(content).value
        assert config is not None
        system = random_system(rng, unit, 12) if rng.random() < 0.85 else None
        series = random_series(rng, unit, 12) if rng.random() < 0.6 else None
        lfc = None if series is None else LfcMetrics(0, 0, 0, tuple(series))
        got = compute_goal(unit, config, None if system is None else system_metrics(system), lfc)
        parts = oracle.goal((unit.cpu, unit.memory), content, system, series)
        assert got.complete is parts["complete"], number
        assert bool(got.warnings) is parts["short"], number
        for name, value in (("cpu", got.cpu), ("memory", got.memory), ("cache", got.lfc)):
            exact = parts[name]
            assert (value is None) is (exact is None), (number, name)
            assert value is None or math.isclose(value, float(exact), rel_tol=1e-9), (number, name)
        if not _on_the_edge(parts):
            decided += 1
            assert got.units == oracle.units(parts), number
    assert decided > GOALS * 95 // 100


def _on_the_edge(parts: dict[str, Fraction | None]) -> bool:
    """Whether an exact value is so near to where it would be rounded otherwise that floats may differ."""
    cpu, others = parts["cpu"] or Fraction(0), [parts["memory"] or Fraction(0), parts["cache"] or Fraction(0)]
    return abs(cpu % 1 - Fraction(1, 2)) < Fraction(1, 10**9) or any(
        0 < min(value % 1, 1 - value % 1) < Fraction(1, 10**9) for value in others
    )


def test_random_histories_lead_to_the_same_actions() -> None:
    acted = {"plugin": 0, "machine": 0, "up": 0, "down": 0}
    for seed in range(HISTORIES):
        rng = random.Random(seed)
        walk = ScalingHistory.begin(rng)
        history = []
        for _ in range(60):
            history.append((walk.step(rng), walk.now))
            got = actions_as_oracle(walk.actions())
            assert got == walk.oracle.next(walk.now), (seed, history[-12:])
            for name in acted.keys() & got.keys():
                acted[name] += 1
    assert min(acted.values()) > HISTORIES * 3 // 2, acted
