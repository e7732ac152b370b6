"""From manifest content to API objects, with every problem named."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from devalloc.api.annotations import misspelled, names
from devalloc.api.claim import DeviceClaim, DeviceClaimDetail
from devalloc.api.configobject import ConfigObject
from devalloc.api.content import ContentError, unfit
from devalloc.api.explain import explain
from devalloc.api.fields import ApiModel, described, shown
from devalloc.api.kinds import KINDS, Kind
from devalloc.api.lenient import Finding, read_leniently
from devalloc.api.meta import DEVMGMT, ObjectMeta
from devalloc.api.nearest import nearest
from devalloc.api.plainpool import read_plainly
from devalloc.api.problems import Problem, Severity
from devalloc.api.quantity import type_name
from devalloc.api.repair import repaired
from devalloc.api.shapes import RAW, Loc, model_shape, path_of

_ANNOTATIONS = {kind: frozenset(names(kind, "annotations")) for kind in KINDS}
_LABELS = {kind: frozenset(names(kind, "labels")) for kind in KINDS}
"""By kind those of ours that its objects may have: most objects have no others, and need no closer look."""
MAX_PROBLEMS = 500
"""Problems kept of one document; more are only counted."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An object, or None with at least one error among the problems; warnings may come with either."""

    object: ApiModel | None
    problems: list[Problem]


def decode(manifest: object) -> Decoded:
    """Read one manifest (JSON-like content). Never raises for content.

    Unknown kinds of API groups that are not ours come back as ConfigObject.
    """
    if not isinstance(manifest, dict):
        return Decoded(None, [Problem(f"must be an object with apiVersion and kind, not {described(manifest)}")])
    about = _Subject.of(manifest)
    plain = _plain_pool(manifest)
    if plain is not None:
        return Decoded(plain, [])
    try:
        faults = unfit(manifest)
    except ContentError as error:
        return Decoded(None, about.problems([Finding(path_of(RAW, error.loc), error.message)], "error"))
    kind = _kind_of(manifest)
    if isinstance(kind, list):
        return Decoded(None, about.problems(kind, "error"))
    model = ConfigObject if kind is None else kind.model
    if faults:
        return Decoded(None, about.problems(_explain_unfit(manifest, model, faults), "error"))
    obj = _validated(model, manifest) if _needs_no_care(manifest, kind) else None
    if obj is not None:
        return Decoded(obj, about.problems(_advice(obj), "warning"))
    return _decode_with_care(manifest, model, kind, about)


def as_read(manifest: dict[str, Any]) -> dict[str, Any]:
    """The content that ``decode`` validates: without nulls that count as not set, in the API's own spelling.

    For those who look at plain content before it is decoded, or when it cannot be: they see what ``decode`` sees. The
    manifest itself if all of it is read as it is written, or if it is of no known kind or no JSON content.
    """
    try:
        if unfit(manifest) or isinstance(kind := _kind_of(manifest), list):
            return manifest
    except ContentError:
        return manifest
    content, _ = _read_with_care(manifest, ConfigObject if kind is None else kind.model, kind)
    return manifest if content == manifest else content


def _plain_pool(manifest: dict[str, Any]) -> ApiModel | None:
    """A DevicePool that is of the common form, read quickly."""
    if manifest.get("kind") != "DevicePool" or manifest.get("apiVersion") != DEVMGMT:
        return None
    spec = manifest.get("spec")
    if type(spec) is not dict or type(spec.get("devices")) is not list:
        return None
    shell = {**manifest, "spec": {key: value for key, value in spec.items() if key != "devices"}}
    try:
        fit = not unfit(shell) and _needs_no_care(shell, KINDS["DevicePool"])
    except ContentError:
        return None
    return read_plainly(shell, spec["devices"]) if fit else None


def _decode_with_care(manifest: dict[str, Any], model: type[ApiModel], kind: Kind | None, about: _Subject) -> Decoded:
    content, findings = _read_with_care(manifest, model, kind)
    obj = _validated(model, content)
    if obj is None:
        errors = about.problems(explain(content, model), "error")
        return Decoded(None, errors + about.problems(findings, "warning"))
    return Decoded(obj, about.problems([*findings, *_advice(obj)], "warning"))


def _read_with_care(
    manifest: dict[str, Any], model: type[ApiModel], kind: Kind | None
) -> tuple[dict[str, Any], list[Finding]]:
    content, findings = read_leniently(manifest, model)
    if kind is not None and not kind.namespaced:
        findings += _drop_namespace(content, kind)
    return content, findings


def _explain_unfit(manifest: dict[str, Any], model: type[ApiModel], faults: list[tuple[Loc, str]]) -> list[Finding]:
    places = [loc for loc, _ in faults]
    content, _ = read_leniently(repaired(manifest, model, places), model)
    shape = model_shape(model)
    return [Finding(path_of(shape, loc), message) for loc, message in faults] + explain(content, model, places)


def _validated(model: type[ApiModel], content: dict[str, Any]) -> ApiModel | None:
    try:
        return model.model_validate(content, by_alias=True, by_name=False)
    except ValidationError:
        return None


def _needs_no_care(manifest: dict[str, Any], kind: Kind | None) -> bool:
    """True when content that validates has nothing that is read leniently: no nulls, no misplaced namespace."""
    metadata = manifest.get("metadata")
    if isinstance(metadata, dict) and "namespace" in metadata and kind is not None and not kind.namespaced:
        return False
    stack: list[Any] = [manifest]
    while stack:
        value = stack.pop()
        for entry in value.values() if isinstance(value, dict) else value:
            if entry is None:
                return False
            if type(entry) is dict or type(entry) is list:
                stack.append(entry)
    return True


def _drop_namespace(content: dict[str, Any], kind: Kind) -> list[Finding]:
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or "namespace" not in metadata:
        return []
    del metadata["namespace"]
    return [Finding("metadata.namespace", f"is ignored: a {kind.kind} belongs to no namespace")]


def _advice(obj: ApiModel) -> Iterator[Finding]:
    """What is valid, and most likely not what its author had in mind (S5)."""
    if isinstance(metadata := getattr(obj, "metadata", None), ObjectMeta):
        kind = type(obj).__name__
        annotations, labels = metadata.annotations.keys() - _ANNOTATIONS[kind], metadata.labels.keys() - _LABELS[kind]
        if annotations or labels:
            for path, message in misspelled(sorted(annotations), sorted(labels), kind):
                yield Finding(path, message)
    if not isinstance(obj, DeviceClaim):
        return
    for i, entry in enumerate(obj.spec.claims):
        details = [(f"spec.claims[{i}].oneOf[{j}]", detail) for j, detail in enumerate(entry.one_of)]
        for path, detail in details or [(f"spec.claims[{i}]", entry)]:
            if not _names_something(detail):
                yield Finding(path, "names neither deviceClass nor deviceType, so any device of any driver will do")


def _names_something(detail: DeviceClaimDetail) -> bool:
    return bool(detail.device_class or detail.device_type)


# -- which kind ------------------------------------------------------------------------------------------------------


def _kind_of(manifest: dict[str, Any]) -> Kind | list[Finding] | None:
    """Our kind, None for a kind of somebody else's API, or what is wrong."""
    api_version, kind = manifest.get("apiVersion"), manifest.get("kind")
    missing = [
        Finding(name, "is required" if value in (None, "") else f"must be a text, not {type_name(value)}")
        for name, value in (("apiVersion", api_version), ("kind", kind))
        if not isinstance(value, str) or not value
    ]
    if missing:
        return missing
    assert isinstance(api_version, str)
    assert isinstance(kind, str)
    ours = KINDS.get(kind)
    if ours is not None and ours.api_version == api_version:
        return ours
    group = api_version.partition("/")[0]
    if any(group == known.group for known in KINDS.values()):
        return [_unknown_in_group(api_version, kind, group)]
    if ours is not None and ("/" not in api_version or nearest(group, [ours.group])):
        return [Finding("apiVersion", f"must be {ours.api_version} for a {kind}, not {shown(api_version)}")]
    return None


def _unknown_in_group(api_version: str, kind: str, group: str) -> Finding:
    ours = KINDS.get(kind)
    if ours is not None:
        return Finding("apiVersion", f"must be {ours.api_version} for a {kind}, not {shown(api_version)}")
    known = [name for name, candidate in KINDS.items() if candidate.group == group]
    near = nearest(kind, known)
    advice = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
    return Finding("kind", f"{shown(kind)} is no kind of {group}; {advice}")


# -- problems --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Subject:
    """Who a document is about, as far as it can be told."""

    kind: str | None
    namespace: str | None
    name: str | None

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> _Subject:
        metadata = manifest.get("metadata")
        names = metadata if isinstance(metadata, dict) else {}
        return cls(_word(manifest.get("kind")), _word(names.get("namespace")), _word(names.get("name")))

    def problems(self, findings: Iterable[Finding], severity: Severity) -> list[Problem]:
        found = [
            Problem(finding.message, finding.path, self.kind, self.namespace, self.name, severity=severity)
            for finding in findings
        ]
        if len(found) <= MAX_PROBLEMS:
            return found
        more = f"has {len(found) - MAX_PROBLEMS} more problems like these"
        return [*found[:MAX_PROBLEMS], Problem(more, "", self.kind, self.namespace, self.name, severity=severity)]


def _word(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if value.isprintable() and len(value) <= 253 else shown(value)
