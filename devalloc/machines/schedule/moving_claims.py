"""Claims that are to move with their machine, in the solver's input: for each of them another claim that asks for the
same on the target, and what its answer means for the claim itself. Pure.

The target gets as many devices for each request as the claim has, for the alternative that was chosen, and of the same
kind: the guest goes on with their state.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from devalloc.api import meta
from devalloc.api.claim import COUNT
from devalloc.api.moved_claims import MovedDevices, labels_of
from devalloc.api.node_rules import NODE_RULES, Restrictions, ValueRestriction
from devalloc.api.owner_names import owner_document
from devalloc.api.views import ClaimKey, ClaimView, as_mapping, as_mappings
from devalloc.controller.reconcile.pool_attributes import PoolAttributes
from devalloc.store import Object

IDENTITY = ("kind", "function", "vendorID", "deviceID", "profile")
"""Attributes, of those that have a text there, in which a device on the target is like the one it stands in for."""
_INHERITED_NOTES = (meta.NODE, *(rule.annotation for rule in NODE_RULES), meta.GROUP_MATCH)


def target_claim(claim: Object, name: tuple[str, str], notes: Mapping[str, str], attributes: PoolAttributes) -> Object:
    """What asks for the devices of a claim on the target.

    ``claim``: as it counts, with the spec that its allocation answers. ``name``: namespace and name of the new claim.
    ``notes``: its annotations, in addition to those of the claim that restrict which devices fit.
    """
    own = ClaimView(claim).metadata.get("annotations") or {}
    inherited = {note: own[note] for note in _INHERITED_NOTES if note in own}
    if meta.GROUP_MATCH in inherited and meta.GROUP_MATCH in notes:
        inherited[meta.GROUP_MATCH] += f",{notes[meta.GROUP_MATCH]}"
    answered = _answered_requests(claim)
    spec = {**ClaimView(claim).spec, "claims": [request for request, _ in answered]}
    kinds = tuple(kind for index, (_, held) in enumerate(answered) for kind in _same_kind(index, held, attributes))
    return owner_document(name, claim, {**notes, **inherited}, spec, Restrictions(values=kinds))


def half_written_claims(
    claims: Mapping[ClaimKey, Object], arriving: Mapping[ClaimKey, MovedDevices], documents: Iterable[Object]
) -> dict[ClaimKey, Object]:
    """Claims whose annotations say already that their devices are where their machine has moved, and whose status has
    the old ones still: with the node of these. A cluster writes the two one after the other; until the second the claim
    counts as it did before."""
    half = {
        key: claims[key]
        for key, devices in arriving.items()
        if key in claims and ClaimView(claims[key]).node == devices.node and not devices.is_given(claims[key])
    }
    pools = (doc for doc in documents if half and doc.get("kind") == "DevicePool")
    nodes = {doc["metadata"]["name"]: as_mapping(doc.get("spec")).get("nodeName") for doc in pools}
    return {key: _on_node(claim, nodes) for key, claim in half.items()}


def _on_node(claim: Object, nodes: Mapping[str, Any]) -> Object:
    entries = as_mappings(ClaimView(claim).entries)
    named = {node for entry in entries if (node := nodes.get(str(entry.get("devicePoolName")))) is not None}
    metadata = claim["metadata"]
    notes = {name: text for name, text in metadata["annotations"].items() if name != meta.ALLOCATED_NODE}
    notes |= {meta.ALLOCATED_NODE: named.pop()} if len(named) == 1 else {}
    return {**claim, "metadata": {**metadata, "annotations": notes}}


def _answered_requests(claim: Object) -> Sequence[tuple[Object, Sequence[Mapping[str, Any]]]]:
    """The requests of a claim as they were answered, each with what it was given; none if that cannot be told, which
    the solver refuses."""
    labels = labels_of(claim) or []
    by_request: dict[tuple[int, int | None], list[Mapping[str, Any]]] = defaultdict(list)
    for entry, label in zip(ClaimView(claim).entries, labels, strict=False):
        by_request[label].append(entry)
    listed, requests = as_mappings(ClaimView(claim).spec.get("claims")), []
    for (index, alternative), entries in sorted(by_request.items(), key=lambda one: one[0][0]):
        detail = listed[index] if alternative is None else as_mappings(listed[index].get("oneOf"))[alternative]
        exact, amounts = {COUNT: str(len(entries))}, as_mapping(detail.get("requests"))
        bounds = {"limits": {**as_mapping(detail.get("limits")), **exact}}
        if COUNT in amounts or not amounts:  # with a count shares would become whole devices (S10)
            bounds["requests"] = {**amounts, **exact}
        requests.append(({**detail, **bounds}, entries))
    return requests


def _same_kind(
    request: int, entries: Iterable[Mapping[str, Any]], attributes: PoolAttributes
) -> Iterator[ValueRestriction]:
    """What holds for the devices of these entries, and for others of their kind."""
    devices = [attributes.texts(str(entry.get("devicePoolName")), str(entry.get("deviceName"))) for entry in entries]
    for name in IDENTITY:
        if all(name in texts for texts in devices):
            yield ValueRestriction(request, name, frozenset(texts[name] for texts in devices))


def has_same_order(claim: Object, answer: Mapping[str, Any]) -> bool:
    """Whether the devices of an answer to ``target_claim`` are for the same requests as those of the claim, one by one:
    all that is noted on the claim then holds for them, too."""
    labels, text = labels_of(claim), as_mapping(answer.get("annotations")).get(meta.ALLOCATION_DETAILS)
    given = json.loads(text) if isinstance(text, str) else None
    return labels is not None and given == [str(index) for index, _ in labels]
