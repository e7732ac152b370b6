"""Limits of a host, beside the tables (``cases/scaling/capacity.yaml``, which `tools.judge_scaling` judges)."""

from __future__ import annotations

from fractions import Fraction

from devalloc.inventory.capacity import Capacity


def test_ratios_that_binary_has_exactly_or_rounds_up_give_what_a_product_of_floats_gives() -> None:
    """That is how the reference computes limits."""
    for ratio in ("1", "1.5", "2", "2.25", "4", "0.2", "1.1"):
        for capacity in [*range(3000), 75 << 30, 10**12 + 7, (1 << 40) - 1]:
            exact = Capacity("memory", capacity, Fraction(ratio), "detected").effective_limit
            assert exact == int(float(capacity) * float(ratio)), (capacity, ratio)
