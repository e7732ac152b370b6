"""ResourceQuotas, as far as they are about devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from devalloc.controller.claims import as_allocated
from devalloc.controller.overview.facts import Quota
from devalloc.controller.overview.words import mapping, short
from devalloc.store import Object
from devalloc_solver import quota

THEIRS = ".deviceclass.resource.k8s.io/devices"
"""What Kubernetes' own quota controller counts, of ResourceClaims: `devalloc` only shows it."""


def quotas(documents: Sequence[Object]) -> tuple[list[Quota], bool]:
    """Those of DeviceClaims as they are now, those of ResourceClaims as their status says; and whether the status of
    the first says the same."""
    docs = [doc for doc in documents if quota.is_quota(doc)]
    ours = [(doc, bounds) for doc in docs if (bounds := quota.bounds_of(doc))]
    found = [each for doc in docs for each in _theirs(doc)]
    if ours:
        names = [bound for _, of in ours for bound in of]
        used = quota.held(as_allocated(documents), names, quota.classes_among(documents))
        found += [
            Quota(bound[0], bound[1], f"{bound[2]}{quota.SUFFIX}", str(used[bound]), str(most), used[bound] >= most)
            for _, of in ours
            for bound, most in of.items()
        ]
    found.sort(key=lambda each: (each.namespace, each.name, each.resource))
    return found, not quota.statuses(as_allocated(documents))


def _theirs(doc: Object) -> Iterable[Quota]:
    metadata, status = doc["metadata"], mapping(doc.get("status"))
    used = mapping(status.get("used"))
    for name, most in mapping(status.get("hard")).items():
        if isinstance(name, str) and name.endswith(THEIRS):
            namespace = metadata.get("namespace") or "default"
            now, hard = short(used.get(name, "")), short(most)
            is_full = now.isdecimal() and hard.isdecimal() and int(now[:18]) >= int(hard[:18])
            yield Quota(namespace, metadata["name"], short(name), now, hard, is_full)
