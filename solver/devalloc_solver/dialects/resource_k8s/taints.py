"""Taints: which requests tolerate those of a device."""

from __future__ import annotations

from collections.abc import Iterable

from devalloc_solver.dialects.resource_k8s.objects import DeviceTaint, DeviceToleration

_BLOCKING = ("NoSchedule", "NoExecute")
"""Effects that keep a device from being allocated; None and effects of the future do not."""


def tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    """An empty key or effect of a toleration stands for all."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def blocking_taint(taints: Iterable[DeviceTaint], tolerations: Iterable[DeviceToleration]) -> DeviceTaint | None:
    """The first taint that blocks and is not tolerated."""
    tolerations = tuple(tolerations)
    return next(
        (t for t in taints if t.effect in _BLOCKING and not any(tolerates(one, t) for one in tolerations)),
        None,
    )
