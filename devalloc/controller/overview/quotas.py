"""ResourceQuotas, as far as they are about devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from devalloc.controller.overview.model import QuotaSummary, as_mapping, shorten
from devalloc.controller.reconcile.claims import effective_documents
from devalloc.store import Object
from devalloc_solver.pipeline import quota

RESOURCE_CLAIM_SUFFIX = ".deviceclass.resource.k8s.io/devices"
"""What Kubernetes' own quota controller counts, of ResourceClaims: `devalloc` only shows it."""


def summarize_quotas(documents: Sequence[Object]) -> tuple[list[QuotaSummary], bool]:
    """Those of DeviceClaims as they are now, those of ResourceClaims as their status says; and whether the status of
    the first says the same."""
    docs = [doc for doc in documents if quota.is_quota(doc)]
    ours = [(doc, bounds) for doc in docs if (bounds := quota.bounds_of(doc))]
    rows = [each for doc in docs for each in _resource_claim_quotas(doc)]
    if ours:
        names = [bound for _, of in ours for bound in of]
        used = quota.count_allocated(effective_documents(documents), names, quota.classes_among(documents))
        rows += [
            QuotaSummary(
                bound[0], bound[1], f"{bound[2]}{quota.SUFFIX}", str(used[bound]), str(most), used[bound] >= most
            )
            for _, of in ours
            for bound, most in of.items()
        ]
    rows.sort(key=lambda each: (each.namespace, each.name, each.resource))
    return rows, not quota.quota_statuses_to_write(effective_documents(documents))


def _resource_claim_quotas(doc: Object) -> Iterable[QuotaSummary]:
    metadata, status = doc["metadata"], as_mapping(doc.get("status"))
    used = as_mapping(status.get("used"))
    for name, most in as_mapping(status.get("hard")).items():
        if isinstance(name, str) and name.endswith(RESOURCE_CLAIM_SUFFIX):
            namespace = metadata.get("namespace") or "default"
            now, hard = shorten(used.get(name, "")), shorten(most)
            is_full = now.isdecimal() and hard.isdecimal() and int(now[:18]) >= int(hard[:18])
            yield QuotaSummary(namespace, metadata["name"], shorten(name), now, hard, is_full)
