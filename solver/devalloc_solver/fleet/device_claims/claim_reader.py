"""Read DeviceClaim manifests; a spec that was validated before is not validated again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from devalloc.api.claim import DeviceClaim, check_annotations
from devalloc.api.fields import label_name, subdomain_name
from devalloc.api.meta import DEVMGMT, ObjectMeta
from devalloc.api.problems import Problem
from devalloc_solver.fleet.claim_reader import ClaimReader
from devalloc_solver.fleet.device_claims.documents import ManifestRecord, read_manifest

ReadDeviceClaim = tuple[ManifestRecord, DeviceClaim | None, str | None]
"""The document, the claim where it is valid, and its shape: equal for claims that ask for the same"""


class _CachedSpec(NamedTuple):
    """A spec that was read before."""

    claim: DeviceClaim
    """has it, and is otherwise as plain as claims are"""
    shape: str
    warnings: tuple[tuple[str, str], ...]
    """(message, path) of each warning"""


_PLAIN_METADATA = {"name", "namespace", "annotations"}
_MINIMAL_METADATA = ObjectMeta(name="x")


class DeviceClaimReader(ClaimReader[ReadDeviceClaim, _CachedSpec]):
    """Of DeviceClaims."""

    api_version = DEVMGMT

    def again(self, document: ManifestRecord) -> ReadDeviceClaim:
        """What ``read`` gives for a document that was read before."""
        claim = document.object if isinstance(document.object, DeviceClaim) else None
        return document, claim, None if claim is None else claim.spec.model_dump_json()

    def _read_anew(self, manifest: Mapping[str, Any], *, is_kept: bool) -> tuple[ReadDeviceClaim, _CachedSpec | None]:
        document = read_manifest(manifest)
        outcome = self.again(document)
        _, claim, shape = outcome
        if not is_kept or claim is None or shape is None:
            return outcome, None
        if not all(problem.path.startswith("spec.") for problem in document.problems):
            return outcome, None
        warnings = tuple((p.message, p.path) for p in document.problems)
        return outcome, _CachedSpec(DeviceClaim(metadata=_MINIMAL_METADATA, spec=claim.spec), shape, warnings)

    def _with_metadata(self, metadata: dict[str, Any], template: _CachedSpec) -> ReadDeviceClaim | None:
        if not _is_ascii(metadata):
            return None
        try:
            claim = template.claim.model_copy(update={"metadata": _read_metadata(metadata)})
            check_annotations(claim.metadata.annotations)
        except ValueError:  # pydantic's own error among them
            return None
        namespace, name = claim.key
        problems = tuple(
            [
                Problem(message, path, "DeviceClaim", metadata.get("namespace"), name, severity="warning")
                for message, path in template.warnings
            ]
        )
        return ManifestRecord(("DeviceClaim", namespace, name), None, claim, None, problems), claim, template.shape


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
    return _MINIMAL_METADATA.model_copy(update=own)


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
