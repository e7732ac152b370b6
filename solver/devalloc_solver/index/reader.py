"""Reads the manifests of claims, each spec once: most claims ask for what others have asked for before."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from devalloc.api.claim import DeviceClaim, DeviceClaimSpec
from devalloc.api.meta import DEVMGMT, ObjectMeta
from devalloc.api.problems import Problem
from devalloc_solver.index.documents import Document, read

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""

Read = tuple[Document, DeviceClaim | None, str | None]
"""The document, the claim where it is valid, and its shape: equal for claims that ask for the same"""

_FIELDS = {"apiVersion", "kind", "metadata", "spec"}
_NAMING = {"name", "namespace", "annotations", "labels", "uid", "creationTimestamp", "resourceVersion", "generation"}


class ClaimReader:
    """Remembers the specs it has read."""

    def __init__(self) -> None:
        self._specs: dict[bytes, tuple[DeviceClaimSpec, str, tuple[tuple[str, str], ...]]] = {}

    def read(self, manifest: Mapping[str, Any]) -> Read:
        """Read a manifest, valid or not."""
        key = _spec_key(manifest)
        known = None if key is None else self._specs.get(key)
        if known is not None:
            found = _with_known_spec(manifest, *known)
            if found is not None:
                return found
        document = read(manifest)
        found = self.again(document)
        shape = found[2]
        if key is not None and isinstance(document.object, DeviceClaim) and shape is not None:
            if len(self._specs) >= MAX_SPECS:
                self._specs.clear()
            if all(problem.path.startswith("spec.") for problem in document.problems):
                told = tuple((p.message, p.path) for p in document.problems)
                self._specs[key] = document.object.spec, shape, told
        return found

    def again(self, document: Document) -> Read:
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


def _with_known_spec(manifest: Mapping[str, Any], spec: DeviceClaimSpec, shape: str, told: Any) -> Read | None:
    """A claim whose spec is known: only its metadata are read. None when these are not of the common form."""
    metadata = manifest.get("metadata")
    if type(metadata) is not dict or not metadata.keys() <= _NAMING or not _is_ascii(metadata):
        return None
    try:
        claim = DeviceClaim(metadata=ObjectMeta.model_validate(metadata, by_alias=True, by_name=False), spec=spec)
    except ValidationError:
        return None
    namespace, name = claim.key
    problems = tuple(
        Problem(message, path, "DeviceClaim", metadata.get("namespace"), name, severity="warning")
        for message, path in told
    )
    return Document(("DeviceClaim", namespace, name), None, claim, None, problems), claim, shape


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
