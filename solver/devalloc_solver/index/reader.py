"""Reads the manifests of claims, each spec once: most claims ask for what others have asked for before."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any, NamedTuple

from devalloc.api.claim import DeviceClaim, check_annotations
from devalloc.api.fields import label_name, subdomain_name, with_fields
from devalloc.api.meta import DEVMGMT, ObjectMeta
from devalloc.api.problems import Problem
from devalloc_solver.index.documents import Document, read

MAX_SPECS = 4_096
"""Specs remembered; when there are more, all are forgotten."""

Read = tuple[Document, DeviceClaim | None, str | None]
"""The document, the claim where it is valid, and its shape: equal for claims that ask for the same"""


class _Known(NamedTuple):
    """A spec that was read before."""

    claim: DeviceClaim
    """has it, and is otherwise as plain as claims are"""
    shape: str
    told: tuple[tuple[str, str], ...]
    """(message, path) of each warning"""


_FIELDS = {"apiVersion", "kind", "metadata", "spec"}
_NAMING = {"name", "namespace", "annotations", "labels", "uid", "creationTimestamp", "resourceVersion", "generation"}
_PLAIN_NAMING = {"name", "namespace", "annotations"}
_NAMELESS = ObjectMeta(name="x")


class ClaimReader:
    """Remembers the specs it has read."""

    def __init__(self) -> None:
        self._specs: dict[bytes, _Known] = {}

    def read(self, manifest: Mapping[str, Any]) -> Read:
        """Read a manifest, valid or not."""
        key = _spec_key(manifest)
        known = None if key is None else self._specs.get(key)
        if known is not None:
            found = _with_known_spec(manifest, known)
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
                plain = DeviceClaim(metadata=_NAMELESS, spec=document.object.spec)
                self._specs[key] = _Known(plain, shape, told)
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


def _with_known_spec(manifest: Mapping[str, Any], known: _Known) -> Read | None:
    """A claim whose spec is known: only its metadata are read. None when these are not of the common form."""
    metadata = manifest.get("metadata")
    if type(metadata) is not dict or not metadata.keys() <= _NAMING or not _is_ascii(metadata):
        return None
    try:
        claim = with_fields(known.claim, {"metadata": _read_metadata(metadata)})
        check_annotations(claim.metadata.annotations)
    except ValueError:  # pydantic's own error among them
        return None
    namespace, name = claim.key
    problems = tuple(
        [
            Problem(message, path, "DeviceClaim", metadata.get("namespace"), name, severity="warning")
            for message, path in known.told
        ]
    )
    return Document(("DeviceClaim", namespace, name), None, claim, None, problems), claim, known.shape


def _read_metadata(content: dict[str, Any]) -> ObjectMeta:
    """Plain ones are copied, which is validation's own answer to them. Raises ValueError."""
    name, annotations = content.get("name"), content.get("annotations", {})
    if not content.keys() <= _PLAIN_NAMING or type(annotations) is not dict:
        return ObjectMeta.model_validate(content, by_alias=True, by_name=False)
    subdomain_name(name)
    if "namespace" in content:
        label_name(content["namespace"])
    if not all(type(value) is str for value in annotations.values()):
        raise ValueError("annotations are texts")
    own = {**content, "annotations": {**annotations}} if "annotations" in content else content
    return with_fields(_NAMELESS, own)


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
