"""The labels and annotations below ``devalloc.io/``, and the kinds on which each has a meaning.

This is the one list of them, so that a misspelled one is noticed: the policies of ``deploy`` that warn, and the guides,
are held against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from devalloc.api import aside, meta
from devalloc.api.nearest import nearest

DOMAIN: Final = meta.DEVALLOC.partition("/")[0]
PUBLISH: Final = f"{DOMAIN}/publish"
"""A label of nodes: as what their devices are published. Pods of devalloc are placed by it (``deploy``)."""
Place = Literal["annotations", "labels"]


@dataclass(frozen=True, slots=True)
class Known:
    """A label or annotation, and the kinds of objects on which it has a meaning."""

    place: Place
    name: str
    kinds: tuple[str, ...]
    by_users: bool = False
    """Whether people write it; the others are written by devalloc itself."""
    values: tuple[str, ...] = ()
    """All values that it can have, where these are few. Any other has no effect."""


_CLAIM, _RESOURCE_CLAIM, _MACHINE = "DeviceClaim", "ResourceClaim", "VirtualMachine"
_WRITTEN = (_CLAIM, _RESOURCE_CLAIM, _MACHINE, "DevicePool", "DeviceClass", "ResourceQuota")
"""Kinds whose objects the controller may mark."""
KNOWN: Final = (
    Known("annotations", meta.PRIORITY, (_CLAIM, _RESOURCE_CLAIM, _MACHINE), by_users=True),
    Known("annotations", meta.GROUP, (_CLAIM, _RESOURCE_CLAIM), by_users=True),
    Known("annotations", meta.GROUP_MATCH, (_CLAIM,), by_users=True),
    Known("annotations", meta.NODE, (_CLAIM,), by_users=True),
    Known("annotations", meta.RELEASE, (_CLAIM,), by_users=True, values=meta.RELEASES),
    Known("annotations", meta.ALLOCATED_NODE, (_CLAIM,)),
    Known("annotations", meta.ALLOCATED_DEVICES, (_CLAIM,)),
    Known("annotations", meta.ALLOCATION_DETAILS, (_CLAIM,)),
    Known("annotations", meta.ALLOCATED_SPEC, (_CLAIM,)),
    Known("annotations", meta.ADMIN_CLASSES, (_CLAIM,)),
    Known("annotations", meta.REASON, (_CLAIM,)),
    Known("annotations", meta.MESSAGE, (_CLAIM,)),
    Known("annotations", meta.PREPARED_ON, (_CLAIM, _MACHINE)),
    Known("annotations", meta.LEADER, _WRITTEN),
    Known("annotations", meta.TRANSACTION, _WRITTEN),
    Known("annotations", meta.CORDONED, ("DevicePool",)),
    Known("annotations", meta.CORDONED_NODE, ("DevicePool",)),
    Known("annotations", meta.TOLERATED_TAINTS, ("Node",), by_users=True),
    Known("labels", aside.ALLOCATOR, (_RESOURCE_CLAIM,), by_users=True, values=(aside.DEVALLOC,)),
    Known("labels", PUBLISH, ("Node",), by_users=True, values=("slices", "pools", "host", "set-aside", "none")),
    Known("labels", meta.ADMIN_ACCESS, ("Namespace",), by_users=True, values=("true",)),
    Known("labels", meta.PUBLISHED_BY, ("DevicePool",)),
    Known("labels", meta.LEADER, _WRITTEN),
    Known("labels", meta.TRANSACTION, ("ConfigMap",)),
)


def names(kind: str, place: Place, *, by_users: bool = False) -> tuple[str, ...]:
    """What an object of the kind may have there. ``by_users``: only what people write."""
    chosen = (each for each in KNOWN if each.place == place and kind in each.kinds)
    return tuple(each.name for each in chosen if each.by_users or not by_users)


def values(kind: str, place: Place) -> Mapping[str, tuple[str, ...]]:
    """By name what those can have as their value that cannot have any."""
    return {each.name: each.values for each in KNOWN if each.place == place and kind in each.kinds and each.values}


FOR_USERS: Final = tuple(each.name for each in KNOWN if each.place == "annotations" and each.by_users)
"""Annotations that people write."""
ANNOTATIONS: Final = tuple(each.name for each in KNOWN if each.place == "annotations")
LABELS: Final = tuple(each.name for each in KNOWN if each.place == "labels")


def misspelled(annotations: Iterable[str], labels: Iterable[str], kind: str | None = None) -> Iterator[tuple[str, str]]:
    """For each annotation and label that looks like one of devalloc and is none: its path, and what to say.

    ``kind``: only what objects of that kind may have is right; without it what any may have.
    """
    places: tuple[tuple[Place, tuple[str, ...]], ...] = (("annotations", ANNOTATIONS), ("labels", LABELS))
    for place, right in places:
        chosen = right if kind is None else names(kind, place)
        for name in annotations if place == "annotations" else labels:
            if (advice := _advice(name, chosen)) is not None:
                yield f"metadata.{place}[{name}]", f"{name!r} is not known and has no effect{advice}"


def _advice(name: str, right: Iterable[str]) -> str | None:
    """The end of the sentence; None for a name that is right, or somebody else's."""
    if "/" not in name or name in right:
        return None
    domain, _, rest = name.partition("/")
    if domain != DOMAIN and (abs(len(domain) - len(DOMAIN)) > 2 or nearest(domain, [DOMAIN], alike=0.8) is None):
        return None
    near = nearest(rest, [name.partition("/")[2] for name in right])
    if near is not None:
        return f"; did you mean {DOMAIN}/{near}?"
    return f"; known here: {', '.join(sorted(right))}" if right else ""
