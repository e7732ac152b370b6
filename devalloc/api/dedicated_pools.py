"""Pools of resource.k8s.io that are dedicated to devalloc's controller: kube-scheduler does not allocate from them.

The API server does not ensure that a device has only one owner, so each device must have only one allocator. Nodes that
are set aside publish their devices in pools whose names end in ``.devalloc``, with a taint that keeps kube-scheduler
off; a policy allows only the controller to allocate from such pools (``deploy``). The claims that the controller
allocates have a label of the same name.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from devalloc.api.meta import MetadataKey
from devalloc.api.views import as_mapping

ALLOCATOR_KEY = "devalloc.io/allocator"
"""Label of claims, and key of taints."""
DEVALLOC = "devalloc"
"""The label's value."""
KUBE_SCHEDULER = "kube-scheduler"
"""The value of a claim in a labelled namespace that is kube-scheduler's all the same."""
KEYS = (
    MetadataKey(
        "labels", ALLOCATOR_KEY, ("ResourceClaim", "Namespace"), by_users=True, values=(DEVALLOC, KUBE_SCHEDULER)
    ),
)
"""See ``meta.KEYS``."""
NOT_ANSWERED = (
    "devalloc's controller allocates no ResourceClaims: devalloc install --resource-claims, or remove the label"
)
"""The answer to labelled claims, where its option is off."""
DEDICATED_SUFFIX = ".devalloc"
TAINT = {"key": ALLOCATOR_KEY, "value": DEVALLOC, "effect": "NoSchedule"}


def dedicated_pool_name(pool: str) -> str:
    """The name of a pool as published by a node that is set aside."""
    return pool + DEDICATED_SUFFIX


def is_dedicated(pool: str) -> bool:
    return pool.endswith(DEDICATED_SUFFIX)


def base_pool_name(pool: str) -> str:
    """The pool's name without the suffix."""
    return pool.removesuffix(DEDICATED_SUFFIX)


def is_for_devalloc(obj: Mapping[str, Any]) -> bool:
    """Whether a ResourceClaim asks for devalloc's controller, or all of a Namespace do."""
    return as_mapping(obj["metadata"].get("labels")).get(ALLOCATOR_KEY) == DEVALLOC


def namespaces_for_devalloc(objects: Iterable[dict[str, Any]]) -> frozenset[str]:
    """The Namespaces among objects whose claims ask for devalloc's controller unless their own label says otherwise."""
    return frozenset(one["metadata"]["name"] for one in objects if one["kind"] == "Namespace" and is_for_devalloc(one))


def with_namespace_default(claim: dict[str, Any], namespaces: Container[str]) -> dict[str, Any]:
    """The claim with the label that it has by its namespace; itself if it has one of its own."""
    metadata = claim["metadata"]
    labels = as_mapping(metadata.get("labels"))
    if metadata.get("namespace") not in namespaces or ALLOCATOR_KEY in labels:
        return claim
    return {**claim, "metadata": {**metadata, "labels": {**labels, ALLOCATOR_KEY: DEVALLOC}}}
