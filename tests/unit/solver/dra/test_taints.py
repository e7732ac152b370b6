"""Who may have a tainted device."""

from __future__ import annotations

import itertools

import pytest

from devalloc_solver.dialects.resource_k8s.candidates import blocking_taint, tolerates
from devalloc_solver.dialects.resource_k8s.claims import DeviceToleration
from devalloc_solver.dialects.resource_k8s.slices import DeviceTaint

TAINT = DeviceTaint("broken", "fan", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (DeviceToleration("broken", "Equal", "fan", "NoSchedule"), True),
        (DeviceToleration("broken", "Equal", "fan", ""), True),
        (DeviceToleration("broken", "Equal", "psu", "NoSchedule"), False),
        (DeviceToleration("broken", "Exists", "", "NoSchedule"), True),
        (DeviceToleration("", "Exists", "", ""), True),
        (DeviceToleration("", "Equal", "fan", ""), True),
        (DeviceToleration("", "Equal", "", ""), False),
        (DeviceToleration("hot", "Exists", "", ""), False),
        (DeviceToleration("broken", "Exists", "", "NoExecute"), False),
    ],
)
def test_tolerations(toleration: DeviceToleration, expected: bool) -> None:
    assert tolerates(toleration, TAINT) is expected


def test_only_noschedule_and_noexecute_keep_a_device_away() -> None:
    taints = [DeviceTaint("k", "", effect) for effect in ("None", "NoSchedule", "NoExecute", "FromTheFuture")]

    assert [taint.effect for taint in taints if blocking_taint([taint], [])] == ["NoSchedule", "NoExecute"]


def test_every_blocking_taint_needs_a_toleration() -> None:
    taints = [DeviceTaint(key, "", effect) for key, effect in itertools.product("ab", ("NoSchedule", "NoExecute"))]
    tolerations = [DeviceToleration("a", "Exists", "", ""), DeviceToleration("b", "Exists", "", "NoSchedule")]

    assert blocking_taint(taints, tolerations) == DeviceTaint("b", "", "NoExecute")
