"""Where the API server has the objects of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from devalloc.api.kinds import KINDS, kind_in_store
from devalloc.store.errors import Invalid
from devalloc.store.key import Key, Object
from devalloc.store.kubernetes.client import segment


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, and how the API server calls it."""

    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool
    has_status: bool
    """It has a status, which is written by requests of its own."""
    namespace: str | None = None
    """The only one whose objects are looked at; None: all."""
    fields: str = ""
    """A field selector, such as ``spec.nodeName=a``: only these objects are looked at. Of kinds that are
    written here it has one field."""
    without: tuple[tuple[str, ...], ...] = ()
    """Paths of fields that are not kept, for kinds that are only read: who may write them should not fill this
    process's memory."""

    @property
    def store_kind(self) -> str:
        """The kind in keys of its objects."""
        return kind_in_store(self.kind, f"{self.group}/{self.version}")

    @property
    def params(self) -> dict[str, str]:
        """With which they are listed and watched."""
        return {"fieldSelector": self.fields} if self.fields else {}

    @property
    def path(self) -> str:
        """Of all its objects, to list and watch them."""
        return self.within(self.namespace)

    def covers(self, obj: Object) -> bool:
        """Whether it is among those that are looked at."""
        if self.namespace not in (None, obj["metadata"].get("namespace")):
            return False
        field, _, value = self.fields.partition("=")
        found: Any = obj
        for part in filter(None, field.split(".")):
            found = found.get(part) if isinstance(found, dict) else None
        return not field or (found or "") == value

    def within(self, namespace: str | None) -> str:
        """Of the objects of a namespace; None: of all, or of those that have none."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{root}/{self.plural}" if namespace is None else f"{root}/namespaces/{segment(namespace)}/{self.plural}"

    def of(self, key: Key) -> str:
        """Of one object."""
        return f"{self.within(key.namespace)}/{segment(key.name)}"


OURS = tuple(
    Resource(kind.kind, kind.group, kind.version, kind.plural, kind.namespaced, "status" in kind.model.model_fields)
    for kind in KINDS.values()
)
"""What is meant by all kinds: those of devalloc's own API."""


AROUND = (
    Resource("Namespace", "", "v1", "namespaces", False, False),
    Resource("ResourceQuota", "", "v1", "resourcequotas", True, True),
    Resource(
        "Node",
        "",
        "v1",
        "nodes",
        False,
        False,
        without=tuple(
            ("status", name)
            for name in ("addresses", "daemonEndpoints", "images", "nodeInfo", "volumesAttached", "volumesInUse")
        ),
    ),
)
"""What else a controller decides by: only who names these kinds needs the right to read them."""


def lease(namespace: str) -> Resource:
    """Leases, of one namespace: each node renews one of its own in another, every few seconds."""
    return Resource("Lease", "coordination.k8s.io", "v1", "leases", True, False, namespace)


class Resources:
    """The kinds that a store knows."""

    def __init__(self, resources: Iterable[Resource]) -> None:
        self._by_kind = {resource.store_kind: resource for resource in resources}

    def of(self, kind: str) -> Resource:
        """Raises Invalid."""
        if (found := self._by_kind.get(kind)) is None:
            raise Invalid(f"{kind!r:.60}: the cluster's store knows {', '.join(sorted(self._by_kind))}")
        return found

    def at(self, key: Key) -> Resource:
        """Of an object, which has a namespace or none as its kind wants it. Raises Invalid."""
        found = self.of(key.kind)
        if found.namespaced and key.namespace is None:
            raise Invalid(f"{key}: metadata.namespace must say where; a {key.kind} is in a namespace")
        if not found.namespaced and key.namespace is not None:
            raise Invalid(f"{key}: metadata.namespace must not be set; a {key.kind} is in none")
        return found

    def named(self, kinds: str | Iterable[str] | None) -> frozenset[str]:
        """The kinds that are meant. Raises Invalid."""
        if kinds is None:
            return frozenset(resource.kind for resource in OURS)
        return frozenset(self.of(kind).store_kind for kind in ([kinds] if isinstance(kinds, str) else kinds))
