"""What the solver calls owners of devices beside claims: a machine, a part of it, and what asks on another node
for the devices of a claim that moves; and the groups that machines are with their claims, and the claims of a pod.

No object can have such a name, and no manifest that is read, valid or not: what separates its parts is escaped there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from devalloc.api.json_content import escape_invalid_unicode
from devalloc.api.meta import DEVMGMT, GROUP
from devalloc.api.node_rules import FIELD, Restrictions

CLAIM, MACHINE, POD = "DeviceClaim", "VirtualMachine", "Pod"
_SEPARATOR = "\x1f"


class Owner(NamedTuple):
    """An object that has devices, or asks for them."""

    kind: str
    namespace: str
    name: str


def owner_name(kind: str, name: str, part: str = "") -> str:
    """Name what asks or holds for an object; ``part``: which part of that, if there are several."""
    return _SEPARATOR.join((kind, name, part) if part else (kind, name))


def owner_document(
    key: tuple[str, str],
    of: Mapping[str, Any],
    notes: Mapping[str, str],
    spec: Mapping[str, Any],
    restrictions: Restrictions,
    entries: Sequence[Any] = (),
) -> dict[str, Any]:
    """Write what asks for devices for an object, or holds these entries, as solvers read it: like a DeviceClaim with
    these annotations that is as old as the object, and comes at its turn."""
    metadata: dict[str, Any] = {"namespace": key[0], "name": key[1], "annotations": dict(notes)}
    if (created := of["metadata"].get("creationTimestamp")) is not None:
        metadata["creationTimestamp"] = created
    held = {"status": {"allocations": [*entries]}} if entries else {}
    return {"apiVersion": DEVMGMT, "kind": CLAIM, "metadata": metadata, "spec": spec, **held, FIELD: restrictions}


def owner_of(key: tuple[str, str], kind: str = CLAIM) -> Owner:
    """Find the object whose devices an owner has. ``key``: of the owner in the solver, namespace and name; ``kind``: of
    the claims that it knows by their own names."""
    of, *names = key[1].split(_SEPARATOR)
    return Owner(of, key[0], names[0]) if names else Owner(kind, *key)


def read_name(text: str) -> str:
    """The name of an object or group as a manifest has it, which is never that of something else."""
    return escape_invalid_unicode(text).replace(_SEPARATOR, repr(_SEPARATOR)[1:-1])


def as_of_object(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an owner, or of a claim in the group of one, with names that objects and groups can have."""
    own, notes = dict(metadata), metadata.get("annotations")
    if isinstance(name := own.get("name"), str):
        own["name"] = owner_of(("", name)).name
    if isinstance(notes, Mapping) and isinstance(group := notes.get(GROUP), str):
        own["annotations"] = {**notes, GROUP: owner_of(("", group)).name}
    return own


def is_object(key: tuple[str, str]) -> bool:
    """Whether an owner is a claim that a user made."""
    return _SEPARATOR not in key[1]
