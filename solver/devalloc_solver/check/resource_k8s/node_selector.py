"""Where the allocated devices can be used: the node selector of a result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from devalloc_solver.check.resource_k8s.claim import AnsweredClaim
from devalloc_solver.check.resource_k8s.pools import PublishedPools

Manifest = Mapping[str, Any]
Requirement = tuple[str, str, str, tuple[str, ...]]
"""kind, key, operator, values"""


def node_selector_violations(answered: AnsweredClaim, offer: PublishedPools) -> Iterator[str]:
    """One node when a device is local to it or binds to it, else what the selectors of all devices demand."""
    wanted: set[Requirement] = set()
    for one in answered.taken:
        place = one.device.place
        if place.get("nodeName") or one.device.manifest.get("bindsToNode"):
            wanted = {("matchFields", "metadata.name", "In", (offer.node["metadata"]["name"],))}
            break
        for term in (place.get("nodeSelector") or {}).get("nodeSelectorTerms") or ():
            wanted |= _requirements(term)
    terms = (answered.result.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    given = {requirement for term in terms for requirement in _requirements(term)}
    if given != wanted or len(terms) > 1:
        yield f"has the node selector {sorted(given)} in {len(terms)} terms instead of {sorted(wanted)}"


def _requirements(term: Manifest) -> set[Requirement]:
    return {
        (kind, one["key"], one["operator"], tuple(sorted(set(_values(one)))))
        for kind in ("matchFields", "matchExpressions")
        for one in term.get(kind) or ()
    }


def _values(requirement: Manifest) -> Iterable[str]:
    values: Iterable[str] = requirement.get("values") or ()
    return values
