"""Taints: who may have a device all the same."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc_solver.dra.objects import Taint, Toleration

_BLOCKING = ("NoSchedule", "NoExecute")
"""Effects that keep a device from being allocated; None and effects of the future do not."""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty key or effect of a toleration stands for all."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def objection(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> Taint | None:
    """The first taint that blocks and is not tolerated."""
    tolerations = tuple(tolerations)
    return next(
        (t for t in taints if t.effect in _BLOCKING and not any(tolerates(one, t) for one in tolerations)),
        None,
    )
