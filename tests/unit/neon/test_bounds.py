"""Bounds of a machine: what is read, and every problem with its path."""

from __future__ import annotations

import json
from typing import Any

import pytest

from devalloc.scaling.resources import Resources, ScalingBounds
from devalloc_neon.vm_info import read_bounds_annotation, size_problems

GIB = 2**30


def problems(content: Any, slot_size: int = GIB) -> dict[str, str]:
    text = content if isinstance(content, str) else json.dumps(content)
    read = read_bounds_annotation(text, slot_size, "bounds")
    assert read.value is None
    return {problem.path: problem.message for problem in read.problems}


def test_bounds_are_quantities() -> None:
    read = read_bounds_annotation(
        '{"min":{"cpu":"250m","mem":"1Gi"},"MAX":{"CPU":4,"Mem":17179869184,"x":0},"y":1}', GIB
    )
    assert (read.value, read.problems) == (ScalingBounds(Resources(250, GIB), Resources(4000, 16 * GIB)), [])


def test_all_wrong_values_are_listed_with_their_paths() -> None:
    by_path = problems({"min": {"cpu": "-1", "mem": "1.5Gi"}, "max": {"cpu": "much", "mem": 0}})
    assert by_path == {
        "bounds.min.cpu": "must not be negative: '-1'",
        "bounds.min.mem": "must be a multiple of the memory slot size (1Gi), at most 65535 times it, not 1536Mi",
        "bounds.max.cpu": "is not a quantity: 'much' (write a number and a suffix, such as 2, '500m' or '10Gi')",
        "bounds.max.mem": "must not be zero",
    }
    everything = dict.fromkeys(["bounds.min.cpu", "bounds.min.mem", "bounds.max.cpu", "bounds.max.mem"], "is required")
    assert problems({}) == problems({"min": None, "max": {"cpu": None}}) == everything


def test_more_slots_than_a_peer_can_count_are_refused() -> None:
    ends = {"cpu": 1, "mem": 65536}
    assert list(problems({"min": ends, "max": ends}, slot_size=1)) == ["bounds.min.mem", "bounds.max.mem"]
    ends["mem"] = 65535
    assert read_bounds_annotation(json.dumps({"min": ends, "max": ends}), 1).problems == []


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 4000, '{"min":1}', "{} {}", "x" * 5000, '{"min":NaN}'])
def test_a_value_that_is_no_bounds_is_a_problem(text: str) -> None:
    assert list(problems(text)) == ["bounds"]


@pytest.mark.parametrize(("cpu", "fine"), [(49, False), (50, True), (512_000, True), (512_001, False)])
def test_a_cpu_amount_is_reasonable_up_to_both_ends(cpu: int, fine: bool) -> None:
    assert [problem.path for problem in size_problems(Resources(cpu, 0), "max")] == ([] if fine else ["max.cpu"])
