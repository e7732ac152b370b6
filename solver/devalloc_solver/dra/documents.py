"""Manifests of a cluster sorted out: slices, classes, claims and nodes, and what is wrong with the rest.

Nothing raises here: an object that is wrong is left out and reported, and everything else goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.fields import described
from devalloc.api.meta import GROUP, NODE, PRIORITY, parse_time
from devalloc.api.problems import Problem
from devalloc_solver.budget import Bound
from devalloc_solver.dra import features as gate
from devalloc_solver.dra.decode import API_VERSION, check_version, read_claim, read_class, read_node, read_slice
from devalloc_solver.dra.fields import FieldError, Fields, shown
from devalloc_solver.dra.limits import check_claim, check_class, check_slice
from devalloc_solver.dra.objects import Claim, Class, Node, Slice
from devalloc_solver.reasons import Reason

Manifest = Mapping[str, Any]
Key = tuple[str, str]

KINDS = ("ResourceSlice", "DeviceClass", "ResourceClaim", "Node")


@dataclass(frozen=True, slots=True)
class Refused:
    """A claim that is not solved, and why."""

    key: Key
    reason: Reason
    message: str
    group: str | None = None
    allocation: Mapping[str, Any] | None = None
    """what it keeps all the same"""
    exceeded: Bound | None = None
    """what its expressions exceeded"""


@dataclass(slots=True)
class Intake:
    """The objects of a cluster by kind."""

    slices: list[Manifest] = field(default_factory=list)
    read: dict[int, Slice] = field(default_factory=dict)
    """the same as they were read, by the id of the manifest"""
    nodes: dict[str, Node] = field(default_factory=dict)
    node_manifests: dict[str, Manifest] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    class_manifests: dict[str, Manifest] = field(default_factory=dict)
    broken_classes: dict[str, str] = field(default_factory=dict)
    """class -> what is wrong with it"""
    claims: list[Claim] = field(default_factory=list)
    manifests: dict[Key, Manifest] = field(default_factory=dict)
    """the claims as they were given, with the API server's defaults"""
    refused: list[Refused] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_documents(
    documents: Iterable[object], gates: frozenset[str], read: Mapping[int, Slice] | None = None
) -> Intake:
    """Sort manifests out. Every problem says which object it is about.

    ``read``: slices among them that were read before, by the id of the manifest.
    """
    intake = Intake(read=dict(read or {}))
    objects = [content for document in documents for content in _flat(document)]
    count = Counter((_kind(content), key_of(content)) for content in objects if isinstance(content, Mapping))
    for content in objects:
        if not isinstance(content, Mapping):
            told = f"must be an object with apiVersion, kind and metadata, not {described(content)}"
            intake.problems.append(Problem(told))
            continue
        kind, key = _kind(content), key_of(content)
        twice = count[kind, key] > 1 and kind in KINDS
        try:
            _read(intake, content, gates, twice=twice)
        except FieldError as error:
            namespace = (key[0] or None) if kind == "ResourceClaim" else None
            problem = Problem(error.message, error.path, kind=kind, namespace=namespace, name=key[1])
            if problem not in intake.problems:
                intake.problems.append(problem)
    return intake


def _flat(document: object) -> Iterator[Any]:
    """The objects of a list, or the object itself."""
    if isinstance(document, Mapping) and document.get("kind") not in KINDS and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _flat(item)
    else:
        yield document


def _kind(content: Manifest) -> str:
    return shown(content.get("kind"))


def key_of(content: Manifest) -> Key:
    """(namespace, name), as well as they can be told."""
    metadata = content.get("metadata")
    told = metadata if isinstance(metadata, Mapping) else {}
    namespace = shown(told.get("namespace") or "default") if content.get("kind") == "ResourceClaim" else ""
    return namespace, shown(told.get("name") or "")


def _read(intake: Intake, content: Manifest, gates: frozenset[str], *, twice: bool) -> None:
    kind, key = _kind(content), key_of(content)
    if kind not in KINDS:
        told = f"{kind!r} has no part in this: {', '.join(KINDS)} are read"
        intake.problems.append(Problem(told, kind=kind, name=key[1], severity="warning"))
        return
    if kind == "ResourceClaim":
        _read_claim(intake, content, gates, twice=twice)
        return
    if twice:
        if kind == "DeviceClass":
            intake.broken_classes[key[1]] = "exists twice"
        raise FieldError("metadata.name", f"is the name of two objects of kind {kind}: both are left out, rename one")
    if kind == "Node":
        node = read_node(content)
        intake.nodes[node.name], intake.node_manifests[node.name] = node, content
    elif kind == "DeviceClass":
        try:
            found = read_class(content)
            check_class(found)
        except FieldError as error:
            intake.broken_classes[key[1]] = str(error)
            raise
        intake.classes[found.name], intake.class_manifests[found.name] = found, content
    else:
        _read_slice(intake, content, gates)


def _read_slice(intake: Intake, content: Manifest, gates: frozenset[str]) -> None:
    found = intake.read.get(id(content)) or read_slice(content)
    if gate.COMPATIBILITY_GROUPS in gates and any(device.uses_groups for device in found.devices):
        told = f"has compatibilityGroups, an alpha feature ({gate.COMPATIBILITY_GROUPS}) that is not supported"
        raise FieldError("spec.devices.consumesCounters", told)
    intake.slices.append(content)
    intake.read[id(content)] = found
    try:
        check_slice(found)
    except FieldError as error:
        told = f"{error.message} (it is read all the same)"
        intake.problems.append(Problem(told, error.path, kind="ResourceSlice", name=found.name, severity="warning"))


def _read_claim(intake: Intake, content: Manifest, gates: frozenset[str], *, twice: bool) -> None:
    key = key_of(content)
    filled = with_defaults(content)
    try:
        check_version(content)
        Fields(content.get("metadata"), "metadata").needed("name")
        if twice:
            raise FieldError("metadata.name", "is the name of two claims of this namespace: rename one")
        claim = read_claim(filled, gates)
        _marks(claim)
        if claim.allocation is None:
            check_claim(claim)
    except FieldError as error:
        metadata, status = content.get("metadata"), content.get("status")
        marks = metadata.get("annotations") if isinstance(metadata, Mapping) else None
        group = marks.get(GROUP) if isinstance(marks, Mapping) else None
        allocation = status.get("allocation") if isinstance(status, Mapping) else None
        known = allocation if isinstance(allocation, Mapping) else None
        if not any(refused.key == key for refused in intake.refused):
            intake.refused.append(
                Refused(key, Reason.CLAIM_INVALID, str(error), shown(group) if group else None, known)
            )
        raise
    intake.manifests[key] = filled
    if claim.is_deleting and claim.allocation is None:
        told = "the claim is being deleted"
        intake.refused.append(Refused(key, Reason.DELETING, told, claim.annotations.get(GROUP)))
    else:
        intake.claims.append(claim)


def _marks(claim: Claim) -> None:
    """Raises FieldError for an annotation of ours that says nothing, and for a time that is none."""
    if claim.created is not None:
        try:
            parse_time(claim.created)
        except ValueError as error:
            raise FieldError("metadata.creationTimestamp", str(error)) from None
    text = claim.annotations.get(PRIORITY, "0")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise FieldError(f"metadata.annotations[{PRIORITY!r}]", f"must be a whole number, not {text!r}")


def priority_of(claim: Claim) -> int:
    """The priority that the claim's annotation says, 0 without one; it has been found to be a number."""
    return int(claim.annotations.get(PRIORITY, "0"))


def pin_of(claim: Claim) -> str | None:
    """The only node whose devices may be used."""
    return claim.annotations.get(NODE) or None


def with_defaults(content: Manifest) -> Manifest:
    """A claim with what the API server writes where its author wrote nothing: namespace, mode, count and operators."""
    spec = content.get("spec")
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    metadata = content.get("metadata")
    filled = dict(content)
    if isinstance(metadata, Mapping) and not metadata.get("namespace"):
        filled["metadata"] = {**metadata, "namespace": "default"}
    if not isinstance(spec, Mapping) or not isinstance(devices, Mapping):
        return filled
    requests = devices.get("requests")
    if isinstance(requests, list):
        devices = {**devices, "requests": [_request_with_defaults(request) for request in requests]}
    return {**filled, "apiVersion": content.get("apiVersion", API_VERSION), "spec": {**spec, "devices": devices}}


def _request_with_defaults(request: Any) -> Any:
    if not isinstance(request, Mapping):
        return request
    filled = dict(request)
    if isinstance(request.get("exactly"), Mapping):
        filled["exactly"] = _ask_with_defaults(request["exactly"])
    if isinstance(request.get("firstAvailable"), list):
        filled["firstAvailable"] = [
            _ask_with_defaults(sub) if isinstance(sub, Mapping) else sub for sub in request["firstAvailable"]
        ]
    return filled


def _ask_with_defaults(ask: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(ask)
    if not filled.get("allocationMode"):
        filled["allocationMode"] = "ExactCount"
    if filled["allocationMode"] == "ExactCount" and filled.get("count") is None:
        filled["count"] = 1
    if isinstance(filled.get("tolerations"), list):
        filled["tolerations"] = [
            {**one, "operator": one.get("operator") or "Equal"} if isinstance(one, Mapping) else one
            for one in filled["tolerations"]
        ]
    return filled
