"""The labels and annotations under ``devalloc.io/``, and the kinds for which each has a meaning.

This list is the only one, so that misspelled names are noticed; tests compare the warning policies of ``deploy`` and
the guides with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from devalloc.api import dedicated_pools, meta
from devalloc.api.suggest import closest_match

DOMAIN: Final = meta.DEVALLOC.partition("/")[0]
PUBLISH: Final = f"{DOMAIN}/publish"
"""A label of nodes: how to publish their devices. It also selects the nodes of devalloc's pods (``deploy``)."""
MetadataField = Literal["annotations", "labels"]


@dataclass(frozen=True, slots=True)
class MetadataKey:
    """A label or annotation, and the kinds of objects on which it has a meaning."""

    place: MetadataField
    name: str
    kinds: tuple[str, ...]
    by_users: bool = False
    """Whether users write it; devalloc itself writes the others."""
    values: tuple[str, ...] = ()
    """All valid values, if there are only a few. Others have no effect."""


_CLAIM, _RESOURCE_CLAIM, _MACHINE = "DeviceClaim", "ResourceClaim", "VirtualMachine"
_MARKED_KINDS = (_CLAIM, _RESOURCE_CLAIM, _MACHINE, "DevicePool", "DeviceClass", "ResourceQuota")
"""Kinds whose objects the controller may mark."""
METADATA_KEYS: Final = (
    MetadataKey("annotations", meta.PRIORITY, (_CLAIM, _RESOURCE_CLAIM, _MACHINE), by_users=True),
    MetadataKey("annotations", meta.GROUP, (_CLAIM, _RESOURCE_CLAIM), by_users=True),
    MetadataKey("annotations", meta.GROUP_MATCH, (_CLAIM,), by_users=True),
    MetadataKey("annotations", meta.NODE, (_CLAIM,), by_users=True),
    MetadataKey("annotations", meta.RELEASE, (_CLAIM,), by_users=True, values=meta.RELEASES),
    MetadataKey("annotations", meta.ALLOCATED_NODE, (_CLAIM,)),
    MetadataKey("annotations", meta.ALLOCATED_DEVICES, (_CLAIM,)),
    MetadataKey("annotations", meta.ALLOCATION_DETAILS, (_CLAIM,)),
    MetadataKey("annotations", meta.ALLOCATED_SPEC, (_CLAIM,)),
    MetadataKey("annotations", meta.ADMIN_CLASSES, (_CLAIM,)),
    MetadataKey("annotations", meta.REASON, (_CLAIM,)),
    MetadataKey("annotations", meta.MESSAGE, (_CLAIM,)),
    MetadataKey("annotations", meta.PREPARED_ON, (_CLAIM, _MACHINE)),
    MetadataKey("annotations", meta.LEADER, _MARKED_KINDS),
    MetadataKey("annotations", meta.TRANSACTION, _MARKED_KINDS),
    MetadataKey("annotations", meta.CORDONED, ("DevicePool",)),
    MetadataKey("annotations", meta.CORDONED_NODE, ("DevicePool",)),
    MetadataKey("annotations", meta.LABELS_NODES, ("Lease",)),
    MetadataKey("annotations", meta.TOLERATED_TAINTS, ("Node",), by_users=True),
    MetadataKey(
        "labels", dedicated_pools.ALLOCATOR_KEY, (_RESOURCE_CLAIM,), by_users=True, values=(dedicated_pools.DEVALLOC,)
    ),
    MetadataKey("labels", PUBLISH, ("Node",), by_users=True, values=("slices", "pools", "host", "set-aside", "none")),
    MetadataKey("labels", meta.ADMIN_ACCESS, ("Namespace",), by_users=True, values=("true",)),
    MetadataKey("labels", meta.PUBLISHED_BY, ("DevicePool",)),
    MetadataKey("labels", meta.LEADER, _MARKED_KINDS),
    MetadataKey("labels", meta.NODE_LABEL, (_CLAIM, _MACHINE)),
    MetadataKey("labels", meta.TRANSACTION, ("ConfigMap",)),
)


def key_names(kind: str, place: MetadataField, *, by_users: bool = False) -> tuple[str, ...]:
    """The labels or annotations of a kind. ``by_users``: only those that users write."""
    chosen = (each for each in METADATA_KEYS if each.place == place and kind in each.kinds)
    return tuple(each.name for each in chosen if each.by_users or not by_users)


ANNOTATIONS: Final = tuple(each.name for each in METADATA_KEYS if each.place == "annotations")
LABELS: Final = tuple(each.name for each in METADATA_KEYS if each.place == "labels")


def misspelled_keys(
    annotations: Iterable[str], labels: Iterable[str], kind: str | None = None
) -> Iterator[tuple[str, str]]:
    """The path of each annotation and label that looks like devalloc's but is not, with a message.

    ``kind``: accept only those of this kind; without it, those of every kind.
    """
    places: tuple[tuple[MetadataField, tuple[str, ...]], ...] = (("annotations", ANNOTATIONS), ("labels", LABELS))
    for place, right in places:
        chosen = right if kind is None else key_names(kind, place)
        for name in annotations if place == "annotations" else labels:
            if (advice := _advice(name, chosen)) is not None:
                yield f"metadata.{place}[{name}]", f"{name!r} is unknown and has no effect{advice}"


def _advice(name: str, right: Iterable[str]) -> str | None:
    """The end of the message; None for a valid name, or one of another domain."""
    if "/" not in name or name in right:
        return None
    domain, _, rest = name.partition("/")
    if domain != DOMAIN and (abs(len(domain) - len(DOMAIN)) > 2 or closest_match(domain, [DOMAIN], alike=0.8) is None):
        return None
    near = closest_match(rest, [name.partition("/")[2] for name in right])
    if near is not None:
        return f"; did you mean {DOMAIN}/{near}?"
    return f"; known names: {', '.join(sorted(right))}" if right else ""
