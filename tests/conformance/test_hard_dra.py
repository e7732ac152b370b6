"""Allocations of resource.k8s.io that take upstream's allocator seconds, or its time limit: the right answer, checked.

How long they take is measured by ``python -m benchmarks upstream``.
"""

from __future__ import annotations

import pytest

from tests.support.dra_differential import ours, violations
from tests.support.dra_hard_instances import HardInstance, everyday, hard


@pytest.mark.parametrize("one", [pytest.param(one, id=one.name) for one in hard()])
def test_hard_instance_is_answered(one: HardInstance) -> None:
    answer = ours(one.instance)
    assert answer.outcome == ("allocated" if one.feasible else "not-allocated"), answer.error
    if answer.results is not None:
        assert violations(one.instance, answer.results) == []


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_everyday_instance_is_answered(gpus: int) -> None:
    instance = everyday(3, gpus)
    answer = ours(instance)
    assert answer.outcome == "allocated", answer.error
    assert violations(instance, answer.results or []) == []
