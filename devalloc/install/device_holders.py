"""Objects of a cluster that hold devices: checked before anything that serves them is removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from devalloc.api import meta
from devalloc.api.kinds import KINDS
from devalloc.install.apply import get_or_none
from devalloc.install.kustomize import Object
from devalloc.install.manifests import DRIVER
from devalloc.store.kubernetes.client import Client

CLAIMS_PATH = "/apis/resource.k8s.io/v1/resourceclaims"
OWN_KINDS = ("VirtualMachine", "DeviceClaim")
"""Kinds for which nodes set a finalizer, in the order in which to delete them."""


@dataclass(frozen=True, slots=True)
class HoldingObject:
    """An object that has devices of devalloc."""

    kind: str
    title: str
    """Its name in messages, with its node or pods."""
    node: str | None
    """None if the node is unknown."""
    is_prepared: bool
    """Whether a node has prepared its devices and must release them; otherwise they are only allocated."""


def holding_objects(client: Client) -> Iterator[HoldingObject]:
    """All holders, of both dialects. Raises NotInstalled."""
    for name in OWN_KINDS:
        kind = KINDS[name]
        for one in list_objects(client, f"/apis/{kind.api_version}/{kind.plural}"):
            is_prepared = meta.NODE_FINALIZER in one["metadata"].get("finalizers", ())
            status: dict[str, Any] = one.get("status") or {}
            if is_prepared or status.get("allocations") or status.get("nodeName"):
                yield HoldingObject(name, f"{kind.singular} {describe_location(one)}", _node(one), is_prepared)
    for one in list_objects(client, CLAIMS_PATH):
        allocation = (one.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        if any(result["driver"] == DRIVER for result in results):
            users = [user["name"] for user in one["status"].get("reservedFor") or ()]
            title = f"resourceclaim {one['metadata']['namespace']}/{one['metadata']['name']}"
            label = f"{title} of pod {', '.join(users)}" if users else title
            yield HoldingObject("ResourceClaim", label, _selected(allocation), bool(users))


def format_names(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def list_objects(client: Client, path: str, **params: str) -> Iterator[Object]:
    """Objects of a collection; none if their kind is not served. Raises NotInstalled."""
    answer = get_or_none(client, path, **params)
    yield from answer["items"] if answer else ()


def describe_location(one: Object) -> str:
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
    """The only node for which an allocation of resource.k8s.io is."""
    for term in (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name" and len(field.get("values") or ()) == 1:
                return str(field["values"][0])
    return None
