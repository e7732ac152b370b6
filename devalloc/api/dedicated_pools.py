"""Pools of resource.k8s.io that are dedicated to devalloc's controller: kube-scheduler does not allocate from them.

The API server does not ensure that a device has only one owner, so each device must have only one allocator. Nodes that
are set aside publish their devices in pools whose names end in ``.devalloc``, with a taint that keeps kube-scheduler
off; a policy allows only the controller to allocate from such pools (``deploy``). The claims that the controller
allocates have a label of the same name.
"""

from __future__ import annotations

ALLOCATOR_KEY = "devalloc.io/allocator"
"""Label of claims, and key of taints."""
DEVALLOC = "devalloc"
"""The label's value."""
KUBE_SCHEDULER = "kube-scheduler"
"""The value of a claim in a labelled namespace that is kube-scheduler's all the same."""
DEDICATED_SUFFIX = ".devalloc"
TAINT = {"key": ALLOCATOR_KEY, "value": DEVALLOC, "effect": "NoSchedule"}


FOR_LABELLED_CLAIMS = f"are only for claims with the label {ALLOCATOR_KEY}={DEVALLOC}"
"""Of devices with that taint: why a claim without the label gets none of them."""


def dedicated_pool_name(pool: str) -> str:
    """The name of a pool as published by a node that is set aside."""
    return pool + DEDICATED_SUFFIX


def is_dedicated(pool: str) -> bool:
    return pool.endswith(DEDICATED_SUFFIX)


def base_pool_name(pool: str) -> str:
    """The pool's name without the suffix."""
    return pool.removesuffix(DEDICATED_SUFFIX)
