"""Foreign objects, which devalloc stores and ignores: ResourceClaims, and other groups' kinds that share a name with
one of ours.

ResourceClaims need what only a cluster has (pods, nodes, slices that drivers publish), so the embedded store keeps them
and nothing answers them there. They must not hold up others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devalloc.api import meta
from devalloc.api.cordon import apply_all_cordons, is_node
from devalloc.api.kinds import KINDS, qualified_kind
from devalloc.controller.reconcile.claims import effective_documents
from devalloc.store import Change, Key, Object
from devalloc_solver.dialects.api_groups import RESOURCE_CLAIMS, api_group_of

LEFT_ASIDE = "LeftAside"
"""Reason on a claim, or a machine, of another group: nothing answers it here."""
_MARKED_KINDS = {"ResourceClaim", "DeviceClaim", "VirtualMachine"}
"""Kinds that say so themselves: a user may wait for them."""


def is_foreign(obj: Any) -> bool:
    """Whether a manifest is of Kubernetes' own claims, or of another group's kind with the name of one of ours."""
    group = api_group_of(obj)
    if group == RESOURCE_CLAIMS:
        return True
    kind = obj.get("kind") if isinstance(obj, dict) else None
    return isinstance(kind, str) and kind in KINDS and qualified_kind(kind, obj.get("apiVersion")) != kind


def ignored_messages(objects: Iterable[Object]) -> list[str]:
    """What to say of the foreign objects: a sentence for each group."""
    kinds: dict[str, set[str]] = {}
    for obj in objects:
        kinds.setdefault(api_group_of(obj), set()).add(obj["kind"])
    return [f"{', '.join(sorted(kinds[group]))} of {group}: {ignored_reason(group)}" for group in sorted(kinds)]


def ignored_reason(group: str) -> str:
    """Why objects of a group are left aside, and what to do."""
    if group == RESOURCE_CLAIMS:
        return (
            "`devalloc up` allocates DeviceClaims, but nothing of this API group; use `devalloc dra allocate -f`, "
            "or apply it to a cluster (`devalloc install --resource-claims`)"
        )
    return "devalloc ignores this API group; some of its kinds have the same names as devalloc's"


def ignored_changes(objects: Iterable[Object]) -> list[Change]:
    """What to write so that claims and machines that are left aside say so."""
    changes = []
    for obj in objects:
        marking = {meta.REASON: LEFT_ASIDE, meta.MESSAGE: ignored_reason(api_group_of(obj))}
        annotations = obj["metadata"].get("annotations") or {}
        if obj["kind"] in _MARKED_KINDS and any(annotations.get(name) != text for name, text in marking.items()):
            changes.append(Change(Key.of(obj), obj["metadata"]["resourceVersion"], obj.get("status"), marking))
    return changes


def solver_documents(objects: Iterable[Object], *, with_nodes: bool = False) -> list[Object]:
    """Objects of a store as the allocator sees them: without foreign ones and Nodes.

    Allocated claims come with the spec that their allocation answers, and what is cordoned is unavailable.
    ``with_nodes``: also by Nodes among the objects, as on a cluster.
    """
    own = [obj for obj in objects if not is_foreign(obj) and (with_nodes or not is_node(obj))]
    return [obj for obj in apply_all_cordons(effective_documents(own)) if not is_node(obj)]
