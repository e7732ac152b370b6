"""Who has devices on a cluster: looked at before anything that serves them is taken away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.kinds import KINDS
from devalloc.install.apply import found
from devalloc.install.kustomize import Object
from devalloc.install.manifests import DRIVER
from devalloc.store.kubernetes.client import Client

CLAIMS = "/apis/resource.k8s.io/v1/resourceclaims"
OURS = ("VirtualMachine", "DeviceClaim")
"""Kinds whose devices nodes hold by a finalizer, in the order in which they let go."""


@dataclass(frozen=True, slots=True)
class Holder:
    """An object that has devices of devalloc."""

    kind: str
    title: str
    """What it is called in messages, with its node or its pods."""
    node: str | None
    """None: its node cannot be told."""
    is_prepared: bool
    """A node has prepared its devices, and must put them back. Else they are only allocated."""


def holders(client: Client) -> Iterator[Holder]:
    """All of them, of both dialects. Raises NotInstalled."""
    for name in OURS:
        kind = KINDS[name]
        for one in listed(client, f"/apis/{kind.api_version}/{kind.plural}"):
            is_prepared = meta.NODE_FINALIZER in one["metadata"].get("finalizers", ())
            status: dict[str, Any] = one.get("status") or {}
            if is_prepared or status.get("allocations") or status.get("nodeName"):
                yield Holder(name, f"{kind.singular} {place_of(one)}", _node(one), is_prepared)
    for one in listed(client, CLAIMS):
        allocation = (one.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        if any(result["driver"] == DRIVER for result in results):
            users = [user["name"] for user in one["status"].get("reservedFor") or ()]
            title = f"resourceclaim {one['metadata']['namespace']}/{one['metadata']['name']}"
            told = f"{title} of pod {', '.join(users)}" if users else title
            yield Holder("ResourceClaim", told, _selected(allocation), bool(users))


def some(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def listed(client: Client, path: str, **params: str) -> Iterator[Object]:
    """Objects of a collection; none where nobody serves their kind. Raises NotInstalled."""
    answer = found(client, path, **params)
    yield from answer["items"] if answer else ()


def place_of(one: Object) -> str:
    """Its namespace and name, and the node that prepared it."""
    metadata = one["metadata"]
    node = metadata.get("annotations", {}).get(meta.PREPARED_ON)
    return f"{metadata['namespace']}/{metadata['name']}" + (f" on node {node}" if node else "")


def _node(one: Object) -> str | None:
    annotations = one["metadata"].get("annotations", {})
    named = (
        annotations.get(meta.PREPARED_ON),
        (one.get("status") or {}).get("nodeName"),
        annotations.get(meta.ALLOCATED_NODE),
    )
    return next(filter(None, named), None)


def _selected(allocation: Object) -> str | None:
    """The one node that an allocation of resource.k8s.io is for."""
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return None
