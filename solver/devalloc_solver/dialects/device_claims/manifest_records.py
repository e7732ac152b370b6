"""Manifests as they are read, and what is valid among them: a known spec of a claim is not validated again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from devalloc.api.claim import DeviceClaim, DeviceClaimSpec, DeviceClaimStatus, check_annotations
from devalloc.api.decode import decode, metadata_slips
from devalloc.api.fields import INT64_MAX, ApiModel, is_label, is_subdomain_name, plain_name
from devalloc.api.meta import DEVICE_RECORDS, DEVMGMT, GROUP, NODE, PRIORITY, parse_time
from devalloc.api.node_rules import FIELD, NodeRestriction, node_restrictions, restrictions_of
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.owner_names import as_of_object, is_object, read_name
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc_solver.dialects.device_claims.answers import CONFIG_FIELDS, repeated
from devalloc_solver.dialects.device_claims.manifests import (
    ProblemInput,
    invalid_claim,
    record_clashing_pools,
    record_invalid_pool,
    without_duplicates,
)
from devalloc_solver.fleet.claim_reader import ClaimReader
from devalloc_solver.fleet.state import Name
from devalloc_solver.pipeline.units import RejectedClaim
from devalloc_solver.problem.allocations import Key

_CLUSTER_SCOPED = ("DevicePool", "DeviceClass")


class ManifestRecord:
    """One manifest as it was read."""

    __slots__ = ("_object", "_problems", "key", "manifest", "name", "node", "refused")

    def __init__(
        self,
        name: Name,
        node: str | None,
        content: ApiModel | None,
        manifest: Mapping[str, Any] | None,
        problems: tuple[Problem, ...],
    ) -> None:
        self.name = name
        self.key: Key = name[1:]
        """namespace and name"""
        self.node = node
        """of a pool"""
        self.manifest = manifest
        """only of one that is invalid, for what it says all the same"""
        self.refused: RejectedClaim | None = None
        """what counts of a claim that is invalid"""
        self._object = content
        self._problems: tuple[Problem, ...] | None = problems

    @property
    def object(self) -> ApiModel | None:
        """What it is, if it is valid."""
        return self._object

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is wrong with it."""
        assert self._problems is not None
        return self._problems

    @property
    def kind(self) -> str:
        return self.name[0]

    @property
    def valid(self) -> ClaimRecord:
        assert isinstance(self, ClaimRecord)
        return self

    @property
    def errors(self) -> list[str]:
        """What makes it invalid."""
        errors = (problem for problem in self.problems if problem.severity == "error")
        return [f"{each.path}: {each.message}" if each.path else each.message for each in errors]

    @property
    def is_allocated(self) -> bool:
        """Whether it is a claim with devices, valid or not."""
        return self.refused is not None and self.refused.status is not None

    @property
    def group(self) -> str | None:
        return None if self.refused is None else self.refused.group

    @property
    def pinned_node(self) -> str | None:
        return None

    @property
    def restrictions(self) -> tuple[NodeRestriction, ...]:
        return ()

    @property
    def priority(self) -> int:
        return 0

    @property
    def shape(self) -> Hashable | None:
        return None

    warnings: Sequence[str] = ()
    """the messages of the problems of a valid claim"""

    @property
    def repeated(self) -> Mapping[str, Any]:
        """What an answer repeats of a valid claim."""
        return {}


class _CachedSpec(NamedTuple):
    """A spec that was read before."""

    claim: DeviceClaim
    """has it, and is otherwise as plain as claims are"""
    shape: str
    warnings: tuple[tuple[str, str], ...]
    """(message, path) of each warning"""
    messages: tuple[str, ...]
    given: tuple[NodeRestriction, ...]
    """rules for its nodes that no user wrote"""


class ClaimRecord(ManifestRecord):
    """A valid DeviceClaim, with what is asked of each. One that shares a spec which was read before makes its model,
    and the entries of its warnings, when these are first asked for: most claims need neither."""

    __slots__ = (
        *("_cached", "_granted", "_metadata", "_shape"),
        *("annotations", "is_allocated", "is_deleting", "spec", "warnings"),
        *("group", "pinned_node", "priority", "restrictions"),
    )

    _object: DeviceClaim | None
    annotations: Mapping[str, str]
    is_allocated: bool
    is_deleting: bool
    spec: DeviceClaimSpec
    warnings: Sequence[str]
    group: str | None
    pinned_node: str | None
    priority: int
    restrictions: tuple[NodeRestriction, ...]
    _cached: _CachedSpec | None
    _metadata: dict[str, Any]
    _shape: str | None
    _granted: tuple[ClaimRecord, Mapping[str, Any]] | None
    """the claim as it came in, and what its answer writes on it; None of one that is as it came in"""

    @classmethod
    def of(cls, name: Name, claim: DeviceClaim, problems: tuple[Problem, ...]) -> ClaimRecord:
        """That of a claim that was read in full."""
        record = cls(name, None, claim, None, problems)
        record._shape, record._cached, record._metadata, record._granted = None, None, {}, None
        record.annotations, record.restrictions = claim.metadata.annotations, claim.restrictions
        record._read_annotations()
        record.spec = claim.spec
        record.is_allocated, record.is_deleting = claim.is_allocated, claim.is_deleting
        record.warnings = tuple([problem.message for problem in problems])
        return record

    @classmethod
    def of_cached(cls, metadata: dict[str, Any], cached: _CachedSpec) -> ClaimRecord:
        """That of one with a spec that was read before and valid metadata of the usual form, which may change later."""
        record = cls.__new__(cls)
        record.key = namespace, name = metadata.get("namespace", "default"), metadata["name"]
        record.name = "DeviceClaim", namespace, name
        record.node, record.manifest, record._object, record._problems = None, None, None, None
        record.refused = record._granted = None
        record.is_allocated = record.is_deleting = False
        record._metadata, record._cached = own, cached = {**metadata}, cached
        record._shape, record.spec, record.warnings = cached.shape, cached.claim.spec, cached.messages
        record.annotations, record.restrictions = NO_ANNOTATIONS, cached.given
        record.group, record.pinned_node, record.priority = None, None, 0
        if "annotations" in own:
            record.annotations = own["annotations"] = {**own["annotations"]}
            record.restrictions = node_restrictions(record.annotations) + cached.given
            record._read_annotations()
        if "labels" in own:
            own["labels"] = {**own["labels"]}
        return record

    def _read_annotations(self) -> None:
        """Read what annotations say of how it is solved, but for the rules for its nodes."""
        annotations = self.annotations
        self.group, self.pinned_node = annotations.get(GROUP) or None, annotations.get(NODE) or None
        self.priority = int(annotations.get(PRIORITY, "0"))

    def with_answer(self, written: Mapping[str, Any]) -> ClaimRecord:
        """The same with an answer written on it."""
        record = ClaimRecord.__new__(ClaimRecord)
        record.name, record.key = self.name, self.key
        record.node, record.manifest, record.refused = None, None, None
        record._object, record._problems, record._granted = None, self._problems, (self, written)
        record._cached, record._metadata, record._shape = self._cached, self._metadata, self._shape
        record.annotations, record.spec, record.warnings = self.annotations, self.spec, self.warnings
        record.group, record.pinned_node = self.group, self.pinned_node
        record.priority, record.restrictions = self.priority, self.restrictions
        record.is_allocated, record.is_deleting = True, self.is_deleting
        return record

    @property
    def object(self) -> DeviceClaim:
        return self.model

    @property
    def model(self) -> DeviceClaim:
        """The claim with all its fields."""
        if self._object is None and self._granted is not None:
            self._object = _with_status(self._granted[0].model, self._granted[1])
        elif self._object is None:
            assert self._cached is not None
            plain = {**self._metadata, "name": "x"}
            metadata = ObjectMeta.model_validate(plain, by_alias=True, by_name=False)
            metadata = metadata.model_copy(update={"name": self.name[2]})
            self._object = self._cached.claim.model_copy(update={"metadata": metadata})
        return self._object

    @property
    def problems(self) -> tuple[Problem, ...]:
        if self._problems is None:
            assert self._cached is not None
            kind, _, name = self.name
            namespace = self._metadata.get("namespace")
            self._problems = tuple(
                [
                    Problem(message, path, kind, namespace, name, severity="warning")
                    for message, path in self._cached.warnings
                ]
            )
        return self._problems

    @property
    def shape(self) -> str:
        """Equal for claims that ask for the same."""
        if self._shape is None:
            self._shape = self.spec.shape
        return self._shape

    @property
    def repeated(self) -> Mapping[str, Any]:
        return repeated(self.spec, self.warnings)

    def without_status(self) -> ClaimRecord:
        """The same once its devices are released."""
        if self._granted is not None:
            return self._granted[0]
        if self._cached is not None or self.model.status is None:
            return self
        return ClaimRecord.of(self.name, self.model.model_copy(update={"status": None}), self.problems)

    @property
    def namespace(self) -> str:
        return self.name[1]


def read_manifest(content: object) -> ManifestRecord:
    """Read one manifest, valid or not."""
    decoded = decode(content)
    manifest = content if isinstance(content, Mapping) else {}
    name, problems = name_of(manifest), tuple(decoded.problems)
    if isinstance(decoded.object, DeviceClaim):
        return ClaimRecord.of(name, decoded.object, problems)
    spec = manifest.get("spec")
    node = spec.get("nodeName") if isinstance(spec, Mapping) and name[0] == "DevicePool" else None
    undecoded = manifest if decoded.object is None else None
    node = node if isinstance(node, str) and node else None
    record = ManifestRecord(name, node, decoded.object, undecoded, problems)
    if undecoded is not None:
        record.refused = invalid_claim(undecoded, "; ".join(record.errors[:5]))
    return record


def without_status(document: ManifestRecord) -> ManifestRecord:
    """The manifest of a claim that is released, valid or not."""
    if document.manifest is not None:
        return read_manifest({field: value for field, value in document.manifest.items() if field != "status"})
    assert isinstance(document, ClaimRecord)
    return document.without_status()


def _with_status(claim: DeviceClaim, answer: Mapping[str, Any]) -> DeviceClaim:
    """The claim as it is once its answer is written on it."""
    content = {
        "allocations": answer["allocations"],
        **{name: answer[name] for name in CONFIG_FIELDS if name in answer},
    }
    status = DeviceClaimStatus.model_validate(content, by_alias=True, by_name=False)
    annotations = {name: text for name, text in claim.metadata.annotations.items() if name != DEVICE_RECORDS}
    annotations |= answer["annotations"]
    metadata = claim.metadata.model_copy(update={"annotations": annotations})
    return claim.model_copy(update={"status": status, "metadata": metadata})


def name_of(manifest: Mapping[str, Any]) -> Name:
    """What a manifest is called, as far as it says so."""
    metadata = manifest.get("metadata")
    marks = metadata if isinstance(metadata, Mapping) else {}
    read = read_name if restrictions_of(manifest) is None else str
    kind, name, namespace = (
        read(value) if isinstance(value, str) else ""
        for value in (manifest.get("kind"), marks.get("name"), marks.get("namespace"))
    )
    return full_name(kind, namespace, name)


def full_name(kind: str, namespace: str | None, name: str) -> Name:
    """The name under which a manifest is kept: "default" stands for no namespace, of kinds that have one."""
    return kind, "" if kind in _CLUSTER_SCOPED else namespace or "default", name


def read_documents(documents: Iterable[object]) -> ProblemInput:
    """Read manifests of all kinds and sort them out."""
    return select_valid(map(read_manifest, documents))


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
        if isinstance(document, ClaimRecord):
            warnings.setdefault(document.key, []).extend(document.warnings)
            continue
        problems += document.problems
        if document.refused is not None:
            refused.append(document.refused)
        elif document.manifest is not None and document.kind == "DeviceClass":
            invalid_classes.setdefault(document.name[2], "; ".join(document.errors[:5]))
    valid = without_duplicates(objects, problems, invalid_classes, refused, warnings)
    return replace(valid, invalid_pools=invalid_pools(in_order))


def invalid_pools(documents: Sequence[ManifestRecord]) -> dict[str, str]:
    """Of pools that are left out: driver -> the first one by name, and why."""
    described: dict[str, str] = {}
    for document in documents:
        if document.manifest is not None:
            record_invalid_pool(document.manifest, "".join(document.errors[:1]), described)
    record_clashing_pools(pools_of(documents), described)
    return described


def pools_of(documents: Iterable[ManifestRecord]) -> list[DevicePool]:
    return [d.object for d in documents if isinstance(d.object, DevicePool)]


NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})


class DeviceClaimReader(ClaimReader[ManifestRecord, _CachedSpec]):
    """Of DeviceClaims."""

    api_version = DEVMGMT
    fields = ClaimReader.fields | {FIELD}

    def _spec_key(self, manifest: Mapping[str, Any]) -> Hashable | None:
        text = super()._spec_key(manifest)
        if text is None or FIELD not in manifest:
            return text
        given = restrictions_of(manifest)
        return None if given is None else (text, given, is_object(name_of(manifest)[1:]))

    def _read_anew(self, manifest: Mapping[str, Any], *, is_kept: bool) -> tuple[ManifestRecord, _CachedSpec | None]:
        document = read_manifest(manifest)
        if not is_kept or not isinstance(document, ClaimRecord):
            return document, None
        if not all(problem.path.startswith("spec.") for problem in document.problems):
            return document, None
        warnings = tuple((p.message, p.path) for p in document.problems)
        claim = document.model.model_copy(update={"metadata": _MINIMAL_METADATA})
        return document, _CachedSpec(claim, document.shape, warnings, tuple(document.warnings), claim.restrictions)

    def _with_metadata(
        self, manifest: Mapping[str, Any], metadata: dict[str, Any], template: _CachedSpec
    ) -> ManifestRecord | None:
        try:
            plain = as_of_object(metadata) if FIELD in manifest else metadata
            for name, value in plain.items():
                if not _IS_PLAIN[name](value):
                    return None
            annotations, labels = plain.get("annotations") or {}, plain.get("labels") or {}
            if annotations:
                check_annotations(annotations)
            if (annotations or labels) and metadata_slips("DeviceClaim", annotations, labels):
                return None
        except ValueError:  # pydantic's own error among them
            return None
        return ClaimRecord.of_cached(metadata, template) if "name" in metadata else None


_MINIMAL_METADATA = ObjectMeta(name="x")


def _is_text(value: object) -> bool:
    return type(value) is str and value.isascii()


def _is_map_of_texts(value: object) -> bool:
    return type(value) is dict and all(map(_is_text, value)) and all(map(_is_text, value.values()))


def _is_time(value: object) -> bool:
    return type(value) is str and bool(parse_time(value))


_IS_PLAIN: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda value: type(value) is str and is_subdomain_name(value),
    "namespace": lambda value: type(value) is str and is_label(value),
    "annotations": _is_map_of_texts,
    "labels": _is_map_of_texts,
    "uid": lambda value: _is_text(value) and bool(plain_name(value)),
    "creationTimestamp": _is_time,
    "resourceVersion": _is_text,
    "generation": lambda value: type(value) is int and abs(value) <= INT64_MAX,
}
"""Whether a field of metadata is valid and of the usual form: plain text or a whole number. Of any other, validation
tells."""
