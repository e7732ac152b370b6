"""Whether a detail may have a part of a device: a virtual function or a vGPU (S6b)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from devalloc_solver.check.pools import CheckedDevice, KnownPools
from devalloc_solver.check.specs import RequestTerms

MAX_WHOLES = 100
"""Whole devices of a driver that are judged for a claim. By these, a solver that gives parts wrongly is seen; and no
expression of a claim is evaluated on a whole fleet once more."""


def part_violations(
    term: RequestTerms, devices: Sequence[CheckedDevice], pin: str | None, fleet: KnownPools
) -> Iterator[str]:
    """What is wrong with parts that a detail has although it does not say that it wants one: a whole device would do.

    ``pin``: the node to which the claim is bound. Raises budget.BudgetExceeded.
    """
    parts = {pooled.pool.spec.driver: pooled for pooled in reversed(devices) if pooled.is_part}
    for driver, pooled in parts.items():
        for whole in islice(fleet.whole_devices(driver, pin), MAX_WHOLES):
            has_all = all(name in whole.attributes for name in term.detail.match_attributes)
            if has_all and term.rule.refusal(whole) is None:
                yield f"device {pooled} is a part, which the claim does not ask for: {whole} is offered whole (S6b)"
                return
