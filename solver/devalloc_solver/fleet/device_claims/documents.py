"""The manifests that a Fleet holds, by name, and claims as they are read: a known spec is not validated again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

from devalloc.api.claim import DeviceClaim, check_annotations
from devalloc.api.decode import decode
from devalloc.api.device_class import DeviceClass
from devalloc.api.fields import ApiModel, label_name, subdomain_name
from devalloc.api.json_content import escape_invalid_unicode
from devalloc.api.meta import DEVMGMT, ObjectMeta
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc_solver.dialects.device_claims.manifests import (
    ProblemInput,
    is_config,
    record_clashing_pools,
    record_invalid,
    record_invalid_pool,
    without_duplicates,
)
from devalloc_solver.dialects.units import RejectedClaim
from devalloc_solver.fleet.backend import Name
from devalloc_solver.fleet.claim_reader import ClaimReader
from devalloc_solver.problem.allocations import Key

_CLUSTER_SCOPED = ("DevicePool", "DeviceClass")


class ManifestRecord(NamedTuple):
    """One manifest as it was read."""

    name: Name
    node: str | None
    """of a pool"""
    object: ApiModel | None
    manifest: Mapping[str, Any] | None
    """only of one that is invalid, for what it says all the same"""
    problems: tuple[Problem, ...]

    @property
    def kind(self) -> str:
        return self.name[0]

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.name[1], self.name[2]


def read_manifest(content: object) -> ManifestRecord:
    """Read one manifest, valid or not."""
    decoded = decode(content)
    manifest = content if isinstance(content, Mapping) else {}
    name = name_of(manifest)
    spec = manifest.get("spec")
    node = spec.get("nodeName") if isinstance(spec, Mapping) and name[0] == "DevicePool" else None
    undecoded = manifest if decoded.object is None else None
    node = node if isinstance(node, str) and node else None
    return ManifestRecord(name, node, decoded.object, undecoded, tuple(decoded.problems))


def without_status(document: ManifestRecord) -> ManifestRecord:
    """The manifest of a claim that is released, valid or not."""
    if document.manifest is not None:
        return read_manifest({field: value for field, value in document.manifest.items() if field != "status"})
    claim = document.object
    assert isinstance(claim, DeviceClaim)
    return document if claim.status is None else document._replace(object=claim.model_copy(update={"status": None}))


def name_of(manifest: Mapping[str, Any]) -> Name:
    """What a manifest is called, as far as it says so."""
    metadata = manifest.get("metadata")
    marks = metadata if isinstance(metadata, Mapping) else {}
    kind, name, namespace = (
        escape_invalid_unicode(value) if isinstance(value, str) else ""
        for value in (manifest.get("kind"), marks.get("name"), marks.get("namespace"))
    )
    return full_name(kind, namespace, name)


def full_name(kind: str, namespace: str | None, name: str) -> Name:
    """The name under which a manifest is kept: "default" stands for no namespace, of kinds that have one."""
    return kind, "" if kind in _CLUSTER_SCOPED else namespace or "default", name


@dataclass(slots=True)
class ManifestStore:
    """All manifests; several of one name are kept as such, for they make each other invalid (S2, S4a)."""

    by_name: dict[Name, list[ManifestRecord]] = field(default_factory=dict)

    def add(self, document: ManifestRecord) -> None:
        self.by_name.setdefault(document.name, []).append(document)

    def replace(self, document: ManifestRecord) -> None:
        """The manifest takes the place of those of its name, as in a store; of pools, of the one on its node, if any.

        Pools of one name on several nodes come from files (S2), and each is replaced on its own.
        """
        old = self.by_name.get(document.name, [])
        elsewhere = [each for each in old if each.node != document.node]
        remaining = elsewhere if document.kind == "DevicePool" and len(elsewhere) < len(old) else []
        self.by_name[document.name] = [*remaining, document]

    def remove(self, name: Name) -> bool:
        return self.by_name.pop(name, None) is not None

    def of_kind(self, *kinds: str) -> Iterator[ManifestRecord]:
        wanted = [same for name, same in self.by_name.items() if name[0] in kinds]
        return chain.from_iterable(wanted)

    def all_but_claims(self) -> list[ManifestRecord]:
        """What there is beside claims; of objects that no class or claim can name only those that are wrong."""
        return [
            document
            for name, same in self.by_name.items()
            if name[0] != "DeviceClaim"
            for document in same
            if document.problems or name[0] == "DevicePool" or is_rule(document)
        ]


def is_rule(document: ManifestRecord) -> bool:
    """Whether it is a class, valid or not, or a configuration object: what claims may take depends on these."""
    return document.kind == "DeviceClass" or (document.object is not None and is_config(document.object))


def select_valid(documents: Iterable[ManifestRecord]) -> ProblemInput:
    """What is valid among some manifests, in an order that does not depend on theirs."""
    objects: list[ApiModel] = []
    problems: list[Problem] = []
    invalid_classes: dict[str, str] = {}
    refused: list[RejectedClaim] = []
    warnings: dict[Key, list[str]] = {}
    in_order = sorted(documents, key=lambda d: (d.name, d.node or ""))
    for document in in_order:
        if document.object is not None:
            objects.append(document.object)
        if isinstance(document.object, DeviceClaim):
            warnings.setdefault(document.object.key, []).extend(p.message for p in document.problems)
            continue
        problems += document.problems
        if document.manifest is not None:
            errors = [p for p in document.problems if p.severity == "error"]
            record_invalid(document.manifest, errors, invalid_classes, refused)
    valid = without_duplicates(objects, problems, invalid_classes, refused, warnings)
    return replace(valid, invalid_pools=invalid_pools(in_order))


def invalid_pools(documents: Sequence[ManifestRecord]) -> dict[str, str]:
    """Of pools that are left out: driver -> the first one by name, and why."""
    described: dict[str, str] = {}
    for document in documents:
        if document.manifest is not None:
            errors = [problem for problem in document.problems if problem.severity == "error"]
            record_invalid_pool(document.manifest, errors, described)
    record_clashing_pools(pools_of(documents), described)
    return described


def pools_of(documents: Iterable[ManifestRecord]) -> list[DevicePool]:
    return [d.object for d in documents if isinstance(d.object, DevicePool)]


def class_of(document: ManifestRecord) -> DeviceClass | None:
    return document.object if isinstance(document.object, DeviceClass) else None


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
