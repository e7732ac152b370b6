"""The manifests that a Fleet holds, by name, and what is valid among them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from devalloc.api.claim import DeviceClaim
from devalloc.api.content import writable
from devalloc.api.decode import decode
from devalloc.api.deviceclass import DeviceClass
from devalloc.api.fields import ApiModel, with_fields
from devalloc.api.pool import DevicePool
from devalloc.api.problems import Problem
from devalloc_solver.holdings import Key
from devalloc_solver.intake import Intake, Refused, note_invalid, without_duplicates

Name = tuple[str, str, str]
"""(kind, namespace, name); the namespace is "" for kinds that have none"""

_CLUSTER_SCOPED = ("DevicePool", "DeviceClass")


class Document(NamedTuple):
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


def read(content: object) -> Document:
    """Read one manifest, valid or not."""
    decoded = decode(content)
    manifest = content if isinstance(content, Mapping) else {}
    name = name_of(manifest)
    spec = manifest.get("spec")
    node = spec.get("nodeName") if isinstance(spec, Mapping) and name[0] == "DevicePool" else None
    kept = manifest if decoded.object is None else None
    node = node if isinstance(node, str) and node else None
    return Document(name, node, decoded.object, kept, tuple(decoded.problems))


def without_status(document: Document) -> Document:
    """The manifest of a claim that is released, valid or not."""
    if document.manifest is not None:
        return read({field: value for field, value in document.manifest.items() if field != "status"})
    claim = document.object
    assert isinstance(claim, DeviceClaim)
    return document if claim.status is None else document._replace(object=with_fields(claim, {"status": None}))


def name_of(manifest: Mapping[str, Any]) -> Name:
    """What a manifest is called, as far as it says so."""
    metadata = manifest.get("metadata")
    marks = metadata if isinstance(metadata, Mapping) else {}
    kind, name, namespace = (
        writable(value) if isinstance(value, str) else ""
        for value in (manifest.get("kind"), marks.get("name"), marks.get("namespace"))
    )
    return full_name(kind, namespace, name)


def full_name(kind: str, namespace: str | None, name: str) -> Name:
    """The name under which a manifest is kept: "default" stands for no namespace, of kinds that have one."""
    return kind, "" if kind in _CLUSTER_SCOPED else namespace or "default", name


@dataclass(slots=True)
class Documents:
    """All manifests; several of one name are kept as such, for they make each other invalid (S2, S4a)."""

    by_name: dict[Name, list[Document]] = field(default_factory=dict)

    def add(self, document: Document) -> None:
        self.by_name.setdefault(document.name, []).append(document)

    def replace(self, document: Document) -> None:
        """The manifest takes the place of those of its name, as in a store; of pools, of the one on its node, if any.

        Pools of one name on several nodes come from files (S2), and each is replaced on its own.
        """
        old = self.by_name.get(document.name, [])
        elsewhere = [each for each in old if each.node != document.node]
        kept = elsewhere if document.kind == "DevicePool" and len(elsewhere) < len(old) else []
        self.by_name[document.name] = [*kept, document]

    def remove(self, name: Name) -> bool:
        return self.by_name.pop(name, None) is not None

    def of_kind(self, *kinds: str) -> Iterator[Document]:
        return (document for name, same in self.by_name.items() if name[0] in kinds for document in same)

    def by_name_except(self, kind: str) -> list[Document]:
        return [document for name, same in self.by_name.items() if name[0] != kind for document in same]

    def others(self) -> Iterator[Document]:
        """All but claims and pools: classes, configuration objects, and what is of no kind."""
        return (
            document
            for name, same in self.by_name.items()
            if name[0] not in ("DeviceClaim", "DevicePool")
            for document in same
        )


def sort_out(documents: Iterable[Document]) -> Intake:
    """What is valid among some manifests, in an order that does not depend on theirs."""
    objects: list[ApiModel] = []
    problems: list[Problem] = []
    invalid_classes: dict[str, str] = {}
    refused: list[Refused] = []
    warnings: dict[Key, list[str]] = {}
    for document in sorted(documents, key=lambda d: (d.name, d.node or "")):
        if document.object is not None:
            objects.append(document.object)
        if isinstance(document.object, DeviceClaim):
            warnings.setdefault(document.object.key, []).extend(p.message for p in document.problems)
            continue
        problems += document.problems
        if document.manifest is not None:
            errors = [p for p in document.problems if p.severity == "error"]
            note_invalid(document.manifest, errors, invalid_classes, refused)
    return without_duplicates(objects, problems, invalid_classes, refused, warnings)


def pools_of(documents: Iterable[Document]) -> list[DevicePool]:
    return [d.object for d in documents if isinstance(d.object, DevicePool)]


def class_of(document: Document) -> DeviceClass | None:
    return document.object if isinstance(document.object, DeviceClass) else None
