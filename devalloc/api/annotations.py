"""The annotations and labels of devalloc's own domain, so that a misspelled one is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from devalloc.api import aside, meta
from devalloc.api.nearest import nearest

DOMAIN = meta.DEVALLOC.partition("/")[0]
FOR_USERS = (meta.PRIORITY, meta.GROUP, meta.GROUP_MATCH, meta.NODE)
"""Annotations that people write."""
ANNOTATIONS = (
    *FOR_USERS,
    meta.ALLOCATED_NODE,
    meta.ALLOCATED_DEVICES,
    meta.ALLOCATION_DETAILS,
    meta.ALLOCATED_SPEC,
    meta.ADMIN_CLASSES,
    meta.REASON,
    meta.MESSAGE,
    meta.PREPARED_ON,
    meta.RELEASE,
    meta.LEADER,
    meta.TRANSACTION,
    meta.CORDONED,
    meta.CORDONED_NODE,
)
LABELS = (meta.ADMIN_ACCESS, meta.PUBLISHED_BY, meta.TRANSACTION, aside.ALLOCATOR, f"{DOMAIN}/publish")


def misspelled(annotations: Iterable[str], labels: Iterable[str]) -> Iterator[tuple[str, str]]:
    """For each annotation and label that looks like one of devalloc and is none: its path, and what to say."""
    for part, names, right in (("annotations", annotations, ANNOTATIONS), ("labels", labels, LABELS)):
        for name in names:
            if (advice := _advice(name, right)) is not None:
                yield f"metadata.{part}[{name}]", f"{name!r} is not known and has no effect{advice}"


def _advice(name: str, right: Iterable[str]) -> str | None:
    """The end of the sentence; None for a name that is right, or somebody else's."""
    if "/" not in name or name in right:
        return None
    domain, _, rest = name.partition("/")
    if domain != DOMAIN and (abs(len(domain) - len(DOMAIN)) > 2 or nearest(domain, [DOMAIN], alike=0.8) is None):
        return None
    near = nearest(rest, [name.partition("/")[2] for name in right])
    return f"; did you mean {DOMAIN}/{near}?" if near is not None else f"; known here: {', '.join(sorted(right))}"
