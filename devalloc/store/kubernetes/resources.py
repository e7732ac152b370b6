"""API resources: the paths of each kind, those that decisions use and those that are only displayed.

The part of Kubernetes' own claims that is shown to users who may see it; no decision depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from devalloc.api.kinds import API_KINDS, qualified_kind
from devalloc.store.errors import Invalid, Key, Object
from devalloc.store.kubernetes.client import path_segment


@dataclass(frozen=True, slots=True)
class ApiResource:
    """A kind, and its names at the API server."""

    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool
    has_status: bool
    """Whether it has a status, which separate requests write."""
    namespace: str | None = None
    """Select only objects of this namespace; None: all."""
    fields: str = ""
    """A field selector, such as ``spec.nodeName=a`` or ``status.phase!=Failed,status.phase!=Succeeded``: select only
    these objects."""
    labels: str = ""
    """A label selector of one label, with a value or without, such as ``devalloc.io/allocated-node=a``: select only
    these objects."""
    without: tuple[tuple[str, ...], ...] = ()
    """Paths of fields to drop, for kinds that are only read, so that their authors cannot fill this process's memory.
    """
    only: tuple[tuple[str, ...], ...] = ()
    """Paths of fields to keep, also in each item of a list; all others are dropped. Empty: keep all."""
    is_optional: bool = False
    """The cluster may not serve it; then there are no such objects."""

    @property
    def store_kind(self) -> str:
        """The kind in the keys of its objects."""
        return qualified_kind(self.kind, f"{self.group}/{self.version}")

    @property
    def params(self) -> dict[str, str]:
        """The parameters to list and watch them."""
        selectors = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in selectors.items() if value}

    @property
    def path(self) -> str:
        """The path to list and watch all its objects."""
        return self.within(self.namespace)

    def covers(self, obj: Object) -> bool:
        """Whether the object is selected."""
        if self.namespace not in (None, obj["metadata"].get("namespace")):
            return False
        label, has_value, value = self.labels.partition("=")
        labels = obj["metadata"].get("labels") or {}
        if label and (label not in labels or (has_value and labels[label] != value)):
            return False
        return all(_has_field(obj, term) for term in filter(None, self.fields.split(",")))

    def within(self, namespace: str | None) -> str:
        """The path of the objects of a namespace; None: of all namespaces, or cluster-scoped."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return (
            f"{root}/{self.plural}"
            if namespace is None
            else f"{root}/namespaces/{path_segment(namespace)}/{self.plural}"
        )

    def of(self, key: Key) -> str:
        """The path of one object."""
        return f"{self.within(key.namespace)}/{path_segment(key.name)}"


def _has_field(obj: Object, term: str) -> bool:
    """Whether an object meets one term of a field selector."""
    path, _, value = term.partition("=")
    current: Any = obj
    for part in path.removesuffix("!").split("."):
        current = current.get(part) if isinstance(current, dict) else None
    return ((current or "") == value) != path.endswith("!")


OWN_KINDS = tuple(
    ApiResource(
        kind.kind,
        kind.group,
        kind.version,
        kind.plural,
        kind.namespaced,
        kind.has_status,
        is_optional=kind.is_optional,
    )
    for kind in API_KINDS.values()
)
"""The kinds of devalloc's own API, which "all kinds" stands for."""


CORE_KINDS = (
    ApiResource("Namespace", "", "v1", "namespaces", False, False),
    ApiResource("ResourceQuota", "", "v1", "resourcequotas", True, True),
    ApiResource(
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
"""Other kinds on which a controller's decisions depend; only clients that use them need the right to read them."""


def lease_resource(namespace: str) -> ApiResource:
    """Leases of one namespace. In another namespace, each node renews its own every few seconds."""
    return ApiResource("Lease", "coordination.k8s.io", "v1", "leases", True, False, namespace)


class ResourceRegistry:
    """The kinds that a store supports."""

    def __init__(self, resources: Iterable[ApiResource]) -> None:
        self._by_kind = {resource.store_kind: resource for resource in resources}

    def put(self, resource: ApiResource) -> None:
        """Use this form of a kind from now on."""
        self._by_kind[resource.store_kind] = resource

    def of(self, kind: str) -> ApiResource:
        """The resource of a kind. Raises Invalid."""
        if (resource := self._by_kind.get(kind)) is None:
            raise Invalid(f"{kind!r:.60}: the cluster's store supports {', '.join(sorted(self._by_kind))}")
        return resource

    def at(self, key: Key) -> ApiResource:
        """The resource of an object. Raises Invalid if its namespace does not fit its kind."""
        resource = self.of(key.kind)
        if resource.namespaced and key.namespace is None:
            raise Invalid(f"{key}: metadata.namespace is required; a {key.kind} is namespaced")
        if not resource.namespaced and key.namespace is not None:
            raise Invalid(f"{key}: metadata.namespace must not be set; a {key.kind} is cluster-scoped")
        return resource

    def named(self, kinds: str | Iterable[str] | None) -> frozenset[str]:
        """The kinds as a set. Raises Invalid."""
        if kinds is None:
            return frozenset(resource.kind for resource in OWN_KINDS)
        return frozenset(self.of(kind).store_kind for kind in ([kinds] if isinstance(kinds, str) else kinds))


_API = "resource.k8s.io"
_ANNOTATIONS_PATH = ("metadata", "annotations")
DISPLAY_KINDS = (
    ApiResource(
        "ResourceSlice",
        _API,
        "v1",
        "resourceslices",
        False,
        False,
        fields="spec.driver=devalloc.io",
        without=(_ANNOTATIONS_PATH,),
    ),
    ApiResource(
        "ResourceClaim",
        _API,
        "v1",
        "resourceclaims",
        True,
        True,
        without=(
            _ANNOTATIONS_PATH,
            ("spec", "devices", "config"),
            ("spec", "devices", "constraints"),
            ("status", "allocation", "devices", "config"),
            ("status", "devices"),
        ),
    ),
    ApiResource(
        "DeviceTaintRule", _API, "v1", "devicetaintrules", False, False, without=(_ANNOTATIONS_PATH, ("status",))
    ),
    ApiResource(
        "Event",
        "events.k8s.io",
        "v1",
        "events",
        True,
        False,
        fields="regarding.kind=ResourceClaim,reportingController=devalloc.io/controller",
        without=(_ANNOTATIONS_PATH,),
    ),
)
