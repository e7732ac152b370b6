"""Read ResourceClaim manifests; a spec that was read before is not decoded again."""

from __future__ import annotations

import marshal
from collections.abc import Hashable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from devalloc.api.meta import PRIORITY, parse_time
from devalloc_solver.dialects.resource_k8s.decode import API_VERSION
from devalloc_solver.dialects.resource_k8s.manifests import (
    Manifest,
    RejectedResourceClaim,
    read_documents,
    with_defaults,
)
from devalloc_solver.dialects.resource_k8s.objects import ResourceClaim

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""


class ReadResourceClaim(NamedTuple):
    """A claim as it was read."""

    claim: ResourceClaim | RejectedResourceClaim
    manifest: Manifest
    """with the API server's defaults"""
    shape: Hashable | None
    """equal for claims that ask for the same; None where nobody can tell"""


_FIELDS = {"apiVersion", "kind", "metadata", "spec"}
_METADATA_FIELDS = {
    "name",
    "namespace",
    "uid",
    "annotations",
    "labels",
    "creationTimestamp",
    "resourceVersion",
    "generation",
}


class ResourceClaimReader:
    """Remembers the specs it has read."""

    def __init__(self, gates: frozenset[str]) -> None:
        self._gates = gates
        self._specs: dict[bytes, ReadResourceClaim] = {}

    def read(self, manifest: Manifest) -> ReadResourceClaim:
        """Read a manifest, valid or not."""
        key = _spec_key(manifest)
        cached = None if key is None else self._specs.get(key)
        if cached is not None:
            outcome = _with_known_spec(manifest, cached)
            if outcome is not None:
                return outcome
        intake = read_documents([manifest], self._gates)
        filled = with_defaults(manifest)
        if not intake.claims:
            return ReadResourceClaim(intake.refused[0], filled, None)
        claim = intake.claims[0]
        outcome = ReadResourceClaim(claim, filled, _shape(filled))
        if key is not None and not intake.problems and claim.allocation is None:
            if len(self._specs) >= MAX_SPECS:
                self._specs.clear()
            own = deepcopy(dict(manifest))  # the caller may write on theirs
            (claim,) = read_documents([own], self._gates).claims
            self._specs[key] = ReadResourceClaim(claim, with_defaults(own), outcome.shape)
        return outcome


def _spec_key(manifest: Manifest) -> bytes | None:
    """A text of the spec; None when it has what no text tells apart, or the claim is of an uncommon form."""
    if type(manifest) is not dict or not manifest.keys() <= _FIELDS or manifest.get("apiVersion") != API_VERSION:
        return None
    return _spec_text(manifest.get("spec"))


def _spec_text(content: Any) -> bytes | None:
    try:
        return marshal.dumps(content, 0)
    except ValueError:
        return None


def _shape(filled: Manifest) -> Hashable | None:
    devices = (filled.get("spec") or {}).get("devices") or {}
    return _spec_text((devices.get("requests"), devices.get("constraints")))


def _with_known_spec(manifest: Manifest, template: ReadResourceClaim) -> ReadResourceClaim | None:
    """A claim whose spec is known: only its metadata are read. None when these are not of the common form."""
    metadata = manifest.get("metadata")
    if type(metadata) is not dict or not metadata.keys() <= _METADATA_FIELDS:
        return None
    name, namespace, uid = metadata.get("name"), metadata.get("namespace", "default"), metadata.get("uid", "")
    annotations, created = metadata.get("annotations", {}), metadata.get("creationTimestamp")
    if not (type(name) is type(namespace) is type(uid) is str and name and namespace):
        return None
    if type(annotations) is not dict or not _is_plain(annotations) or not _is_time(created):
        return None
    own = {**metadata, "namespace": namespace}
    assert isinstance(template.claim, ResourceClaim)
    claim = _with_metadata(template.claim, namespace, name, uid, {**annotations}, created)
    return ReadResourceClaim(claim, {**template.manifest, "metadata": own}, template.shape)


def _with_metadata(
    template: ResourceClaim, namespace: str, name: str, uid: str, annotations: Mapping[str, str], created: str | None
) -> ResourceClaim:
    """A claim that asks for the same; ``dataclasses.replace`` takes longer than all else that is read of it."""
    return ResourceClaim(
        namespace,
        name,
        uid,
        template.requests,
        template.constraints,
        template.config,
        None,
        annotations,
        created,
        False,
        template.spec,
    )


def _is_plain(annotations: Mapping[Any, Any]) -> bool:
    priority = annotations.get(PRIORITY, "0")
    return (
        type(priority) is str
        and priority.isascii()
        and priority.isdecimal()
        and len(priority) <= 18
        and all(type(key) is type(value) is str for key, value in annotations.items())
    )


def _is_time(created: object) -> bool:
    if created is None:
        return True
    if type(created) is not str:
        return False
    try:
        parse_time(created)
    except ValueError:
        return False
    return True
