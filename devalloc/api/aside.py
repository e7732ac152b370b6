"""Devices of resource.k8s.io that devalloc's controller gives out, and not kube-scheduler.

The API server does not see to it that a device has one owner: who allocates must know of all who do. So it has one
allocator. Nodes that are set aside publish theirs in pools whose names end in ``.devalloc``, with a taint that keeps
kube-scheduler off; a policy refuses every allocation from such pools that is not the controller's (``deploy``). The
claims that the controller answers carry a label of the same name.
"""

from __future__ import annotations

ALLOCATOR = "devalloc.io/allocator"
"""Label of claims, and key of taints."""
DEVALLOC = "devalloc"
"""Its value."""
SUFFIX = ".devalloc"
TAINT = {"key": ALLOCATOR, "value": DEVALLOC, "effect": "NoSchedule"}


def set_aside(pool: str) -> str:
    """The name under which a node that is set aside publishes a pool."""
    return pool + SUFFIX


def is_aside(pool: str) -> bool:
    return pool.endswith(SUFFIX)


def plain(pool: str) -> str:
    """The name that a pool has without that."""
    return pool.removesuffix(SUFFIX)
