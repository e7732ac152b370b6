"""Units that ask for whole devices only: the flow answers as the search does."""

from __future__ import annotations

from random import Random

import pytest

from devalloc_solver.dialects.device_claims.manifest_records import read_documents
from devalloc_solver.dialects.device_claims.problem import prepare
from devalloc_solver.place import DEFAULT_STEPS, StepBudget, can_match, fits
from devalloc_solver.problem.allocations import Usage
from devalloc_solver.testing import claim, device, device_class, pool, request


def prepared(rng: Random, **changed: object):  # type: ignore[no-untyped-def]
    devices = [device(f"d{n}", attributes={"k": rng.randrange(4)}) for n in range(rng.randrange(9, 14))]
    details = [
        request("any", rng.choice((1, 1, 1, 2)), constraints=rng.choice(("true", "device.k < 2", "device.k != 1")))
        for _ in range(rng.randrange(9, 12))
    ]
    documents = [
        device_class("any", driver="example.com"),
        pool("p", node="n1", driver="example.com", devices=devices),
        claim("c", *details, **changed),  # type: ignore[arg-type]
    ]
    return prepare(read_documents(documents))


@pytest.mark.parametrize("seed", range(60))
def test_the_flow_finds_what_the_search_finds(seed: int) -> None:
    problem = prepared(Random(seed))
    (unit,) = problem.units
    usage = Usage(problem.snapshot)

    expected = fits(problem.snapshot, usage, unit, steps=StepBudget(20 * DEFAULT_STEPS))
    assert can_match(problem.snapshot, usage, unit, "n1") is expected


def test_units_with_relations_are_none_of_its_business() -> None:
    problem = prepared(Random(1), match=["k"])

    assert can_match(problem.snapshot, Usage(problem.snapshot), problem.units[0], "n1") is None
