"""Objects of a store that devalloc keeps and leaves aside: those of Kubernetes' own claims, and those of other groups
whose kind has the name of one of ours.

ResourceClaims need what only a cluster has (pods, nodes, slices that drivers publish), so the embedded store keeps them
and nobody answers them there. They must not hold up anybody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from devalloc.api import meta
from devalloc.api.kinds import KINDS, kind_in_store
from devalloc.store import Change, Key, Object
from devalloc_solver.dialects import RESOURCE_CLAIMS, group_of

LEFT_ASIDE = "LeftAside"
"""Reason on a claim, or a machine, of another group: nobody answers it here."""
_WAITED_FOR = {"ResourceClaim", "DeviceClaim", "VirtualMachine"}
"""Kinds that say so themselves: somebody may wait for them."""


def is_foreign(obj: Any) -> bool:
    """Whether a manifest is of Kubernetes' own claims, or of another group's kind with the name of one of ours."""
    group = group_of(obj)
    if group == RESOURCE_CLAIMS:
        return True
    kind = obj.get("kind") if isinstance(obj, dict) else None
    return isinstance(kind, str) and kind in KINDS and kind_in_store(kind, obj.get("apiVersion")) != kind


def left_aside(objects: Iterable[Object]) -> list[str]:
    """What to say of the foreign objects: a sentence for each group."""
    kinds: dict[str, set[str]] = {}
    for obj in objects:
        kinds.setdefault(group_of(obj), set()).add(obj["kind"])
    return [f"{', '.join(sorted(kinds[group]))} of {group}: {why(group)}" for group in sorted(kinds)]


def why(group: str) -> str:
    """Why objects of a group are left aside, and what to do."""
    if group == RESOURCE_CLAIMS:
        return (
            "`devalloc up` allocates DeviceClaims, and nothing of this API group; ask with `devalloc dra allocate -f`, "
            "or apply it to a cluster (`devalloc install --resource-claims`)"
        )
    return "devalloc does nothing with this API group, some of whose kinds have the same names as devalloc's"


def marks(objects: Iterable[Object]) -> list[Change]:
    """What to write so that claims and machines that are left aside say so."""
    changes = []
    for obj in objects:
        said = {meta.REASON: LEFT_ASIDE, meta.MESSAGE: why(group_of(obj))}
        annotations = obj["metadata"].get("annotations") or {}
        if obj["kind"] in _WAITED_FOR and any(annotations.get(name) != text for name, text in said.items()):
            changes.append(Change(Key.of(obj), obj["metadata"]["resourceVersion"], obj.get("status"), said))
    return changes
