"""Distinguish the two dialects by the API group of manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from devalloc.api.json_content import MAPPINGS, escape_invalid_unicode
from devalloc.api.meta import DEVMGMT
from devalloc.api.object_lists import flatten_lists
from devalloc.api.problems import Problem

DEVICE_CLAIMS = DEVMGMT.partition("/")[0]
"""our own: DevicePool, DeviceClass, DeviceClaim"""
RESOURCE_CLAIMS = "resource.k8s.io"
"""Kubernetes' own: ResourceSlice, DeviceClass, ResourceClaim"""


def api_group_of(document: object) -> str:
    """The API group of a manifest; empty where there is none."""
    version = document.get("apiVersion") if isinstance(document, MAPPINGS) else None
    return version.partition("/")[0] if isinstance(version, str) else ""


def as_manifest_list(documents: Iterable[Any], name: str = "documents") -> list[Any]:
    """A list of what was given as manifests, by the argument of that name; lists of objects are taken apart.

    Raises ValueError for one manifest, or a text, which can be iterated over and is no list of manifests.
    """
    if isinstance(documents, Mapping):
        raise ValueError(f"{name} must be a list of manifests, not one manifest: put it into a list")
    if isinstance(documents, str | bytes):
        raise ValueError(f"{name} must be a list of manifests, not a string: parse it first, for example with yaml")
    return [one for document in documents for one in flatten_lists(document)]


def is_resource_k8s(documents: Iterable[object]) -> bool:
    """Whether manifests are of resource.k8s.io, and none of our own dialect."""
    groups = {api_group_of(document) for document in documents}
    return RESOURCE_CLAIMS in groups and DEVICE_CLAIMS not in groups


def foreign_manifests(documents: Iterable[object]) -> Iterator[Problem]:
    """Manifests of resource.k8s.io among DeviceClaims, which one call does not solve together."""
    for document in documents:
        if isinstance(document, Mapping) and api_group_of(document) == RESOURCE_CLAIMS:
            metadata = document.get("metadata")
            name = metadata.get("name") if isinstance(metadata, Mapping) else None
            yield Problem(
                "belongs to resource.k8s.io, which is solved separately: solve manifests of that group on their own",
                path="apiVersion",
                kind=escape_invalid_unicode(str(document.get("kind"))),
                name=escape_invalid_unicode(name) if isinstance(name, str) else None,
                group=RESOURCE_CLAIMS,
            )
