"""Read claims as a store has them: raw content, which may be malformed; and objects that devalloc stores and ignores.

Those are other groups' kinds that share a name with one of ours, and what only pods need of resource.k8s.io. They must
not hold up others. ResourceClaims have an allocator of their own (``resource_claims``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, TypeVar

from devalloc.api import meta
from devalloc.api.claim import DeviceClaim
from devalloc.api.cordon import apply_all_cordons, is_node
from devalloc.api.decode import decode
from devalloc.api.kinds import API_KINDS, qualified_kind
from devalloc.api.reasons import Reason
from devalloc.api.views import ClaimView, admin_class_names
from devalloc.controller.reconcile.snapshot import Memo
from devalloc.store import Change, Object
from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

ALLOCATION_ANNOTATIONS = (
    meta.ALLOCATED_NODE,
    meta.ALLOCATED_DEVICES,
    meta.ALLOCATION_DETAILS,
    meta.ALLOCATED_IDENTITIES,
    meta.DEVICE_RECORDS,
    meta.ALLOCATED_SPEC,
    meta.ADMIN_CLASSES,
    meta.REASON,
    meta.MESSAGE,
)
"""The annotations that the allocator writes, and takes away again."""


ClaimUnit = tuple[str, str, str]
"""Equal for claims that are answered together: their namespace, and their group or the name of the one."""
_T = TypeVar("_T")


class DisjointSets(Generic[_T]):
    """Sets of claims and what else belongs together, which grow as they are joined (union-find)."""

    def __init__(self) -> None:
        self._set_of: dict[_T, set[_T]] = {}

    def join(self, one: _T, other: _T) -> None:
        small, large = sorted((self._set_of.setdefault(each, {each}) for each in (one, other)), key=len)
        if small is not large:
            large |= small
            for member in small:
                self._set_of[member] = large

    def set_of(self, member: _T) -> set[_T] | None:
        """The set of a member; None if it was never joined."""
        return self._set_of.get(member)

    def sets(self) -> list[set[_T]]:
        return [*{id(each): each for each in self._set_of.values()}.values()]


def key_of_claim(claim: Object) -> tuple[str, str]:
    """Namespace and name."""
    metadata = claim["metadata"]
    return metadata.get("namespace") or "default", metadata["name"]


def unit_of_claim(claim: Object) -> ClaimUnit:
    """The unit to which a claim belongs."""
    (namespace, name), group = key_of_claim(claim), ClaimView(claim).group
    return (namespace, "", name) if group is None else (namespace, group, "")


def by_unit(claims: Iterable[Object]) -> dict[ClaimUnit, list[Object]]:
    """Claims that are answered together."""
    units: dict[ClaimUnit, list[Object]] = {}
    for claim in claims:
        units.setdefault(unit_of_claim(claim), []).append(claim)
    return units


def canonical_spec(claim: Object) -> str:
    """The claim's spec for the annotation ALLOCATED_SPEC."""
    return json.dumps(claim.get("spec"), sort_keys=True, separators=(",", ":"))


def allocated_spec(claim: Object) -> Any:
    """The spec that the allocation answers; the claim's own if none is recorded."""
    text = ClaimView(claim).annotation(meta.ALLOCATED_SPEC)
    if text is None or not ClaimView(claim).entries:
        return claim.get("spec")
    try:
        return json.loads(text)
    except ValueError:
        return claim.get("spec")  # others wrote there


def class_names(claim: Mapping[str, Any]) -> frozenset[str]:
    """The classes that the claim's details name; none for a claim that cannot be read."""
    read = decode(claim).object
    if not isinstance(read, DeviceClaim):
        return frozenset()
    details = (detail for entry in read.spec.claims for detail in entry.alternatives)
    return frozenset(detail.device_class for detail in details if detail.device_class)


_FORMER_ADMIN_CLASS: Object = {
    "apiVersion": meta.DEVMGMT,
    "kind": "DeviceClass",
    "metadata": {"name": "had-admin-access.devalloc.io"},
    "spec": {"adminAccess": True},
}
"""Stands for the classes that had admin access when a claim was allocated, and have it no more."""


def effective_documents(documents: Sequence[Object], memo: Memo | None = None) -> list[Object]:
    """The documents as they count: what allocated claims are, is fixed until they are released (S18).

    Were an edit of the claim, or admin access given to its class later, to count, a claim would look as if it held
    nothing while it still does; and were admin access taken from its class to count, as if it held what others have.
    """
    admin, memo = admin_class_names(documents), memo or Memo()
    counted, once_admin = [], False
    for doc in documents:
        if doc.get("kind") == "DeviceClaim":
            as_it_counts, had_admin = memo.of("as-allocated", doc, partial(_effective_claim, doc, admin), admin)
            counted.append(as_it_counts)
            once_admin = once_admin or had_admin
        else:
            counted.append(doc)
    return [*counted, _FORMER_ADMIN_CLASS] if once_admin else counted


def _admin_when_allocated(claim: Object) -> frozenset[str]:
    """The classes the claim names that had admin access when it was allocated."""
    try:
        return frozenset(json.loads(ClaimView(claim).annotation(meta.ADMIN_CLASSES) or "[]"))
    except (ValueError, TypeError):
        return frozenset()  # others wrote there


_ANSWER = {"conditions", "reason"}
"""Parts of the status that say why a claim waits."""


def _effective_claim(claim: Object, admin: frozenset[str]) -> tuple[Object, bool]:
    """The claim as it counts, and whether a class that it names has lost admin access since."""
    recorded = _admin_when_allocated(claim) if claim.get("apiVersion") == meta.DEVMGMT else frozenset()
    once_admin = bool(recorded - admin)
    status = ClaimView(claim).status
    if status and status.keys() <= _ANSWER:  # it says why it waits: for the solver it has no status
        return {name: part for name, part in claim.items() if name != "status"}, once_admin
    if not ClaimView(claim).entries or ClaimView(claim).annotation(meta.ALLOCATED_SPEC) is None:
        return claim, once_admin
    recorded = _admin_when_allocated(claim)
    instead = {
        **dict.fromkeys(admin - recorded),
        **dict.fromkeys(recorded - admin, _FORMER_ADMIN_CLASS["metadata"]["name"]),
    }
    spec = _replace_classes(allocated_spec(claim), instead)
    return claim if spec == claim.get("spec") else {**claim, "spec": spec}, once_admin


def _replace_classes(content: Any, instead: Mapping[str, str | None]) -> Any:
    """A spec in which details name other classes, or (None) no class, instead of some."""
    if isinstance(content, list):
        return [_replace_classes(item, instead) for item in content]
    if not isinstance(content, dict):
        return content
    changed = {
        name: _replace_classes(value, instead) if name in ("claims", "oneOf") else value
        for name, value in content.items()
    }
    named = content.get("deviceClass")
    if isinstance(named, str) and named in instead:
        changed["deviceClass"] = instead[named]
    return {name: value for name, value in changed.items() if name != "deviceClass" or value is not None}


_MARKED_KINDS = {"DeviceClaim", "VirtualMachine"}
"""Kinds that say so themselves: a user may wait for them."""


def is_foreign(obj: Any) -> bool:
    """Whether a manifest is of Kubernetes' own claims, or of another group's kind with the name of one of ours."""
    version, kind = (obj.get("apiVersion"), obj.get("kind")) if isinstance(obj, dict) else (None, None)
    return isinstance(version, str) and _is_foreign(version, kind if isinstance(kind, str) else "")


@lru_cache(maxsize=1024)
def _is_foreign(api_version: str, kind: str) -> bool:
    is_resource = api_group_of({"apiVersion": api_version}) == RESOURCE_CLAIMS
    return is_resource or (kind in API_KINDS and qualified_kind(kind, api_version) != kind)


def is_left_aside(obj: Any) -> bool:
    """Whether nothing in the store's programs answers a manifest, or reads it to answer others."""
    if not is_foreign(obj):
        return False
    return api_group_of(obj) != RESOURCE_CLAIMS or obj.get("kind") not in _READ_KINDS


_READ_KINDS = frozenset({"ResourceClaim", "ResourceSlice", "DeviceClass", "DeviceTaintRule"})
"""Kinds of resource.k8s.io that the allocator of ResourceClaims reads."""


def ignored_messages(objects: Iterable[Object]) -> list[str]:
    """What to say of the foreign objects: a sentence for each group."""
    kinds: dict[str, set[str]] = {}
    for obj in filter(is_left_aside, objects):
        kinds.setdefault(api_group_of(obj), set()).add(obj["kind"])
    return [f"{', '.join(sorted(kinds[group]))} of {group}: {ignored_reason(group)}" for group in sorted(kinds)]


def ignored_reason(group: str) -> str:
    """Why objects of a group are left aside, and what to do."""
    if group == RESOURCE_CLAIMS:
        return "of this API group, `devalloc up` reads claims, classes, slices and taint rules; apply it to a cluster"
    return "this API group is not devalloc's, and has kinds of the same names; delete it, or apply it to a cluster"


def ignored_changes(objects: Iterable[Object]) -> list[Change]:
    """What to write so that claims and machines that are left aside say so."""
    changes = []
    for obj in objects:
        marking = {meta.REASON: Reason.LEFT_ASIDE.value, meta.MESSAGE: ignored_reason(api_group_of(obj))}
        annotations = obj["metadata"].get("annotations") or {}
        if obj["kind"] not in _MARKED_KINDS or not is_left_aside(obj):
            continue
        if any(annotations.get(name) != text for name, text in marking.items()):
            changes.append(Change.of(obj, obj.get("status"), marking))
    return changes


def solver_documents(objects: Iterable[Object], *, with_nodes: bool = False) -> list[Object]:
    """Objects of a store as the allocator sees them: without foreign ones and Nodes.

    Allocated claims come with the spec that their allocation answers, and what is cordoned is unavailable.
    ``with_nodes``: also by Nodes among the objects, as on a cluster.
    """
    own = [obj for obj in objects if not is_foreign(obj) and (with_nodes or not is_node(obj))]
    return [obj for obj in apply_all_cordons(effective_documents(own)) if not is_node(obj)]
