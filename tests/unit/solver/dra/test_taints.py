"""Who may have a tainted device."""

from __future__ import annotations

import itertools

import pytest

from devalloc_solver.dra.objects import Taint, Toleration
from devalloc_solver.dra.taints import objection, tolerates

TAINT = Taint("broken", "fan", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration("broken", "Equal", "fan", "NoSchedule"), True),
        (Toleration("broken", "Equal", "fan", ""), True),
        (Toleration("broken", "Equal", "psu", "NoSchedule"), False),
        (Toleration("broken", "Exists", "", "NoSchedule"), True),
        (Toleration("", "Exists", "", ""), True),
        (Toleration("", "Equal", "fan", ""), True),
        (Toleration("", "Equal", "", ""), False),
        (Toleration("hot", "Exists", "", ""), False),
        (Toleration("broken", "Exists", "", "NoExecute"), False),
    ],
)
def test_tolerations(toleration: Toleration, expected: bool) -> None:
    assert tolerates(toleration, TAINT) is expected


def test_only_noschedule_and_noexecute_keep_a_device_away() -> None:
    taints = [Taint("k", "", effect) for effect in ("None", "NoSchedule", "NoExecute", "FromTheFuture")]

    assert [taint.effect for taint in taints if objection([taint], [])] == ["NoSchedule", "NoExecute"]


def test_every_blocking_taint_needs_a_toleration() -> None:
    taints = [Taint(key, "", effect) for key, effect in itertools.product("ab", ("NoSchedule", "NoExecute"))]
    tolerations = [Toleration("a", "Exists", "", ""), Toleration("b", "Exists", "", "NoSchedule")]

    assert objection(taints, tolerations) == Taint("b", "", "NoExecute")
