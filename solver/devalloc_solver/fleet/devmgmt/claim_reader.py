"""Read DeviceClaim manifests; a spec that was read before is not validated again."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any, NamedTuple

from devalloc.api.claim import DeviceClaim, check_annotations
from devalloc.api.fields import copy_with, label_name, subdomain_name
from devalloc.api.meta import DEVMGMT, ObjectMeta
from devalloc.api.problems import Problem
from devalloc_solver.fleet.devmgmt.documents import ManifestRecord, read_manifest

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""

ReadDeviceClaim = tuple[ManifestRecord, DeviceClaim | None, str | None]
"""The document, the claim where it is valid, and its shape: equal for claims that ask for the same"""


class _CachedSpec(NamedTuple):
    """A spec that was read before."""

    claim: DeviceClaim
    """has it, and is otherwise as plain as claims are"""
    shape: str
    warnings: tuple[tuple[str, str], ...]
    """(message, path) of each warning"""


_FIELDS = {"apiVersion", "kind", "metadata", "spec"}
_METADATA_FIELDS = {
    "name",
    "namespace",
    "annotations",
    "labels",
    "uid",
    "creationTimestamp",
    "resourceVersion",
    "generation",
}
_PLAIN_METADATA = {"name", "namespace", "annotations"}
_MINIMAL_METADATA = ObjectMeta(name="x")


class DeviceClaimReader:
    """Remembers the specs it has read."""

    def __init__(self) -> None:
        self._specs: dict[bytes, _CachedSpec] = {}

    def read(self, manifest: Mapping[str, Any]) -> ReadDeviceClaim:
        """Read a manifest, valid or not."""
        key = _spec_key(manifest)
        cached = None if key is None else self._specs.get(key)
        if cached is not None:
            outcome = _with_known_spec(manifest, cached)
            if outcome is not None:
                return outcome
        document = read_manifest(manifest)
        outcome = self.again(document)
        shape = outcome[2]
        if key is not None and isinstance(document.object, DeviceClaim) and shape is not None:
            if len(self._specs) >= MAX_SPECS:
                self._specs.clear()
            if all(problem.path.startswith("spec.") for problem in document.problems):
                warnings = tuple((p.message, p.path) for p in document.problems)
                plain = DeviceClaim(metadata=_MINIMAL_METADATA, spec=document.object.spec)
                self._specs[key] = _CachedSpec(plain, shape, warnings)
        return outcome

    def again(self, document: ManifestRecord) -> ReadDeviceClaim:
        """The same of a document that was read before."""
        claim = document.object if isinstance(document.object, DeviceClaim) else None
        return document, claim, None if claim is None else claim.spec.model_dump_json()


def _spec_key(manifest: Mapping[str, Any]) -> bytes | None:
    """A text of the spec; None when it has what no text tells apart, such as numbers that remember their digits."""
    if type(manifest) is not dict or not manifest.keys() <= _FIELDS or manifest.get("apiVersion") != DEVMGMT:
        return None
    try:
        return marshal.dumps(manifest.get("spec"), 0)
    except ValueError:
        return None


def _with_known_spec(manifest: Mapping[str, Any], cached: _CachedSpec) -> ReadDeviceClaim | None:
    """A claim whose spec is known: only its metadata are read. None when these are not of the common form."""
    metadata = manifest.get("metadata")
    if type(metadata) is not dict or not metadata.keys() <= _METADATA_FIELDS or not _is_ascii(metadata):
        return None
    try:
        claim = copy_with(cached.claim, {"metadata": _read_metadata(metadata)})
        check_annotations(claim.metadata.annotations)
    except ValueError:  # pydantic's own error among them
        return None
    namespace, name = claim.key
    problems = tuple(
        [
            Problem(message, path, "DeviceClaim", metadata.get("namespace"), name, severity="warning")
            for message, path in cached.warnings
        ]
    )
    return ManifestRecord(("DeviceClaim", namespace, name), None, claim, None, problems), claim, cached.shape


def _read_metadata(content: dict[str, Any]) -> ObjectMeta:
    """Plain ones are copied, which is validation's own answer to them. Raises ValueError."""
    name, annotations = content.get("name"), content.get("annotations", {})
    if not content.keys() <= _PLAIN_METADATA or type(annotations) is not dict:
        return ObjectMeta.model_validate(content, by_alias=True, by_name=False)
    subdomain_name(name)
    if "namespace" in content:
        label_name(content["namespace"])
    if not all(type(value) is str for value in annotations.values()):
        raise ValueError("annotations must be strings")
    own = {**content, "annotations": {**annotations}} if "annotations" in content else content
    return copy_with(_MINIMAL_METADATA, own)


def _is_ascii(content: dict[str, Any]) -> bool:
    """Whether all is plain text, or whole numbers, and there are no nulls: then validation alone tells the rest."""
    for key, value in content.items():
        if type(value) is dict:
            if not _is_ascii(value):
                return False
        elif type(value) is not int and not (type(value) is str and value.isascii()):
            return False
        if type(key) is not str or not key.isascii():
            return False
    return True
