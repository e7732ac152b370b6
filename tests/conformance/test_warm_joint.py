"""A warm fleet answers as a cold solve does, to the last device, reason and blocker, whatever happened before.

DEVALLOC_FUZZ_EXAMPLES sets how many histories; `make fuzz` looks at more.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.support.examples import examples
from tests.support.mixed_fleets import DeviceClaimDialect, Dialect, History, ResourceClaimDialect

EXAMPLES = examples(3, 0.1)
DIALECTS = {"DeviceClaims": DeviceClaimDialect(), "ResourceClaims": ResourceClaimDialect()}


def differing_steps(dialect: Dialect, seed: int, steps: int) -> list[int]:
    history = History(dialect, Random(seed))
    return [number for number, step in enumerate(history.steps(steps)) if not step.is_same]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("seed", range(EXAMPLES))
def test_a_warm_fleet_answers_as_a_cold_solve(dialect: Dialect, seed: int) -> None:
    assert differing_steps(dialect, seed, 8) == []


@pytest.mark.parametrize(
    ("dialect", "seed", "steps"),
    [
        ("DeviceClaims", 910008, 4),
        ("DeviceClaims", 910014, 12),
        ("DeviceClaims", 910025, 1),
        ("DeviceClaims", 980004, 2),
        ("DeviceClaims", 980019, 3),
        ("ResourceClaims", 910003, 4),
        ("ResourceClaims", 910007, 1),
        ("ResourceClaims", 910010, 2),
        ("ResourceClaims", 910015, 3),
        ("ResourceClaims", 910019, 11),
    ],
)
def test_claims_and_nodes_that_do_not_matter_change_no_answer(dialect: str, seed: int, steps: int) -> None:
    """Claims that fit nowhere, and nodes where nothing fits: a warm fleet leaves them out, a cold solve has them all.

    They once changed which devices the others got, and so what was told as being in the way of those that got none.
    """
    assert differing_steps(DIALECTS[dialect], seed, steps) == []
