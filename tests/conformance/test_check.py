"""The solver's check of answers against a second judge, on right answers and on damaged ones.

DEVALLOC_FUZZ_EXAMPLES sets how many instances; `make fuzz` looks at more.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from devalloc.api.claim import DeviceClaim
from devalloc.api.device_class import DeviceClass
from devalloc.api.pool import DevicePool
from devalloc_solver import solve_manifests
from devalloc_solver.check import check
from tests.support import random_fleets
from tests.support.answer_damage import damaged
from tests.support.answer_verifier import broken_rules
from tests.support.examples import examples
from tests.support.oracle_instance import read

EXAMPLES = examples(50)
Documents = list[dict[str, Any]]


def _valid_documents(seed: int) -> Documents | None:
    """A random instance in which every object is valid: what the check is given."""
    documents = random_fleets.documents(Random(seed))
    try:
        _objects(documents)
    except ValidationError:
        return None
    return None if read(documents).reasons else documents


def _objects(documents: Documents) -> tuple[list[DevicePool], list[DeviceClass], list[DeviceClaim]]:
    return (
        [DevicePool.model_validate(document) for document in documents if document["kind"] == "DevicePool"],
        [DeviceClass.model_validate(document) for document in documents if document["kind"] == "DeviceClass"],
        [DeviceClaim.model_validate(document) for document in documents if document["kind"] == "DeviceClaim"],
    )


@pytest.mark.parametrize("first", range(0, EXAMPLES, 50))
def test_check_and_second_judge_refuse_the_same_answers(first: int) -> None:
    refused = passed = 0
    for seed in range(first, first + 50):
        documents = _valid_documents(seed)
        if documents is None:
            continue
        claims = solve_manifests(documents)["claims"]
        assert check(*_objects(documents), claims) == []
        names = [d["name"] for p in documents if p["kind"] == "DevicePool" for d in p["spec"]["devices"]]
        for attempt in range(10):
            wrong = damaged(claims, Random(f"{seed}/{attempt}"), names)
            theirs, ours = check(*_objects(documents), wrong), broken_rules(documents, wrong)
            assert bool(theirs) == bool(ours), (seed, attempt, theirs, ours)
            refused, passed = refused + bool(ours), passed + (not ours)
    assert refused > 20
    assert passed > 20
