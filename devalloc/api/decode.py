"""Decoding manifest content to API objects, and reporting every problem.

Labels and annotations under ``devalloc.io/`` that no module declares are noticed as misspelled; tests compare the
warning policies of ``deploy`` and the guides with the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from devalloc.api import adopted_pools, dedicated_pools, meta
from devalloc.api.api_kind import ApiKind
from devalloc.api.claim import DeviceClaim, DeviceClaimDetail
from devalloc.api.content_cache import ContentCache
from devalloc.api.device_class import ConfigObject
from devalloc.api.fast_pool import read_fast
from devalloc.api.fields import ApiModel, describe_value, quote_value
from devalloc.api.json_content import ContentError, content_faults
from devalloc.api.kinds import API_KINDS
from devalloc.api.meta import DEVMGMT, MetadataField
from devalloc.api.node_rules import FIELD, Restrictions, restrictions_of
from devalloc.api.object_meta import ObjectMeta
from devalloc.api.owner_names import as_of_object, is_object, owner_of
from devalloc.api.problems import Problem, Severity, closest_match
from devalloc.api.quantity import Quantity, type_name
from devalloc.api.validation.errors import validation_errors
from devalloc.api.validation.lenient import Finding, read_leniently, repair_places
from devalloc.api.validation.schema import RAW, Loc, format_path, model_schema

DOMAIN: Final = meta.DOMAIN


METADATA_KEYS: Final = (*dedicated_pools.KEYS, *meta.KEYS, *adopted_pools.KEYS)


def key_names(kind: str, place: MetadataField, *, by_users: bool = False) -> tuple[str, ...]:
    """The labels or annotations of a kind. ``by_users``: only those that users write."""
    chosen = (each for each in METADATA_KEYS if each.place == place and kind in each.kinds)
    return tuple(each.name for each in chosen if each.by_users or not by_users)


ANNOTATIONS: Final = tuple(each.name for each in METADATA_KEYS if each.place == "annotations")
LABELS: Final = tuple(each.name for each in METADATA_KEYS if each.place == "labels")


def misspelled_keys(
    annotations: Iterable[str], labels: Iterable[str], kind: str | None = None
) -> Iterator[tuple[str, str]]:
    """The path of each annotation and label that looks like devalloc's but is not, with a message.

    ``kind``: accept only those of this kind; without it, those of every kind.
    """
    places: tuple[tuple[MetadataField, tuple[str, ...]], ...] = (("annotations", ANNOTATIONS), ("labels", LABELS))
    for place, right in places:
        for name in filter(_looks_like_ours, annotations if place == "annotations" else labels):
            chosen = right if kind is None else key_names(kind, place)
            if name not in chosen:
                yield f"metadata.{place}[{name}]", f"{name!r} is unknown and has no effect{_advice(name, chosen)}"


def _looks_like_ours(name: str) -> bool:
    """Whether the domain of a name is ours, or ours with a slip: most names are of other domains."""
    domain, slash, _ = name.partition("/")
    if not slash or abs(len(domain) - len(DOMAIN)) > 2:
        return False
    return domain == DOMAIN or closest_match(domain, [DOMAIN], alike=0.8) is not None


def _advice(name: str, right: Iterable[str]) -> str:
    """The end of the message."""
    near = closest_match(name.partition("/")[2], [name.partition("/")[2] for name in right])
    if near is not None:
        return f"; did you mean {DOMAIN}/{near}?"
    return f"; known names: {', '.join(sorted(right))}" if right else ""


_ANNOTATIONS = {kind: frozenset(key_names(kind, "annotations")) for kind in API_KINDS}
_LABELS = {kind: frozenset(key_names(kind, "labels")) for kind in API_KINDS}
"""Our annotations of each kind: most objects have no others, and need no closer look."""


def metadata_slips(kind: str, annotations: Mapping[str, str], labels: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """List the ``misspelled_keys`` of an object of ours."""
    notes, marks = annotations.keys() - _ANNOTATIONS[kind], labels.keys() - _LABELS[kind]
    return [*misspelled_keys(sorted(notes), sorted(marks), kind)] if notes or marks else ()


MAX_PROBLEMS = 500
"""How many problems of one document are kept; others are only counted."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """An object, or None with at least one error among the problems; warnings may come with either."""

    object: ApiModel | None
    problems: list[Problem]

    @property
    def error(self) -> Problem | None:
        """The first problem that kept the object from being read."""
        return next((problem for problem in self.problems if problem.is_error), None)


def decode(manifest: object) -> Decoded:
    """Read one manifest (JSON-like content). Never raises for content.

    Unknown kinds of other API groups become ConfigObject.
    """
    if not isinstance(manifest, dict):
        return Decoded(None, [Problem(f"must be an object with apiVersion and kind, not {describe_value(manifest)}")])
    plain = _fast_pool(manifest)
    if plain is not None:
        return Decoded(plain, [])
    if (restrictions := restrictions_of(manifest)) is not None:
        return _decode_restricted(manifest, restrictions)
    about = _Subject.of(manifest)
    try:
        faults = content_faults(manifest)
    except ContentError as error:
        return Decoded(None, about.problems([Finding(format_path(RAW, error.loc), error.message)], "error"))
    kind = _kind_of(manifest)
    if isinstance(kind, list):
        return Decoded(None, about.problems(kind, "error"))
    model = ConfigObject if kind is None else kind.model
    if faults:
        return Decoded(None, about.problems(_explain_unfit(manifest, model, faults), "error"))
    obj = _validated(model, manifest) if _is_canonical(manifest, kind) else None
    if obj is not None:
        return Decoded(obj, about.problems(_advisories(obj), "warning"))
    return _decode_leniently(manifest, model, kind, about)


def _decode_restricted(manifest: dict[str, Any], restrictions: Restrictions) -> Decoded:
    """Read what a caller of the solver made or changed: with rules beside it, and names that may be of no object."""
    given = manifest["metadata"]
    plain = {name: value for name, value in manifest.items() if name != FIELD}
    decoded = decode({**plain, "metadata": as_of_object(given)})
    key, problems = (given.get("namespace") or "default", given["name"]), decoded.problems
    if not is_object(key):
        # No user wrote it: warnings, and errors of names and times, are the object's own, which is read as well.
        owner = owner_of(key)
        own = (each for each in problems if each.is_error and not each.path.startswith("metadata"))
        problems = [replace(each, kind=owner.kind, name=owner.name) for each in own]
    if not isinstance(claim := decoded.object, DeviceClaim):
        return replace(decoded, problems=problems)
    names = {"name": given["name"], "annotations": given.get("annotations") or {}}
    return Decoded(claim.restricted(restrictions, claim.metadata.model_copy(update=names)), problems)


def normalize(manifest: dict[str, Any]) -> dict[str, Any]:
    """The content that ``decode`` validates: without nulls that count as not set, in the API's own spelling.

    For callers that read plain content before it is decoded, or when it cannot be decoded. Returns the manifest itself
    if it needs no changes, has no known kind, or is not JSON content.
    """
    try:
        if content_faults(manifest) or isinstance(kind := _kind_of(manifest), list):
            return manifest
    except ContentError:
        return manifest
    content, _ = _normalize_with_findings(manifest, ConfigObject if kind is None else kind.model, kind)
    return manifest if content == manifest else content


def _fast_pool(manifest: dict[str, Any]) -> ApiModel | None:
    """A DevicePool of the common form, read quickly."""
    if manifest.get("kind") != "DevicePool" or manifest.get("apiVersion") != DEVMGMT:
        return None
    spec = manifest.get("spec")
    if type(spec) is not dict or type(spec.get("devices")) is not list:
        return None
    shell = {**manifest, "spec": {key: value for key, value in spec.items() if key != "devices"}}
    fit = _fit_shells.get(_without_names(shell), _is_fit)
    return read_fast(shell, spec["devices"]) if fit else None


_fit_shells = ContentCache[bool]()
"""of pools without names and devices, which are all that differs among pools that were read from files"""


def _without_names(shell: dict[str, Any]) -> dict[str, Any]:
    """The shell of a pool without names that are plain texts, in which nothing can be wrong."""
    nameless = {**shell}
    for part, name in (("metadata", "name"), ("spec", "nodeName")):
        content = shell.get(part)
        if type(content) is dict and type(content.get(name)) is str and content[name].isascii():
            nameless[part] = {**content, name: ""}
    return nameless


def _is_fit(shell: dict[str, Any]) -> bool:
    try:
        return not content_faults(shell) and _is_canonical(shell, API_KINDS["DevicePool"])
    except ContentError:
        return False


def _decode_leniently(
    manifest: dict[str, Any], model: type[ApiModel], kind: ApiKind | None, about: _Subject
) -> Decoded:
    content, findings = _normalize_with_findings(manifest, model, kind)
    obj = _validated(model, content)
    if obj is None:
        errors = about.problems(validation_errors(content, model), "error")
        return Decoded(None, errors + about.problems(findings, "warning"))
    return Decoded(obj, about.problems([*findings, *_advisories(obj)], "warning"))


def _normalize_with_findings(
    manifest: dict[str, Any], model: type[ApiModel], kind: ApiKind | None
) -> tuple[dict[str, Any], list[Finding]]:
    content, findings = read_leniently(manifest, model)
    if kind is not None and not kind.namespaced:
        findings += _drop_namespace(content, kind)
    return content, findings


def _explain_unfit(manifest: dict[str, Any], model: type[ApiModel], faults: list[tuple[Loc, str]]) -> list[Finding]:
    places = [loc for loc, _ in faults]
    content, _ = read_leniently(repair_places(manifest, model, places), model)
    shape = model_schema(model)
    return [Finding(format_path(shape, loc), message) for loc, message in faults] + validation_errors(
        content, model, places
    )


def _validated(model: type[ApiModel], content: dict[str, Any]) -> ApiModel | None:
    try:
        return model.model_validate(content, by_alias=True, by_name=False)
    except ValidationError:
        return None


def _is_canonical(manifest: dict[str, Any], kind: ApiKind | None) -> bool:
    """Whether valid content contains nothing that is read leniently: no nulls, no misplaced namespace."""
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


def _drop_namespace(content: dict[str, Any], kind: ApiKind) -> list[Finding]:
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or "namespace" not in metadata:
        return []
    del metadata["namespace"]
    return [Finding("metadata.namespace", f"is ignored: a {kind.kind} has no namespace")]


def _advisories(obj: ApiModel) -> Iterator[Finding]:
    """Warnings about valid content that is most likely not what its author meant (S5)."""
    if isinstance(metadata := getattr(obj, "metadata", None), ObjectMeta):
        for path, message in metadata_slips(type(obj).__name__, metadata.annotations, metadata.labels):
            yield Finding(path, message)
    if not isinstance(obj, DeviceClaim):
        return
    for i, entry in enumerate(obj.spec.claims):
        details = [(f"spec.claims[{i}].oneOf[{j}]", detail) for j, detail in enumerate(entry.one_of)]
        for path, detail in details or [(f"spec.claims[{i}]", entry)]:
            if not _names_something(detail):
                yield Finding(
                    path, "names neither deviceClass nor deviceType, so it matches every device of every driver"
                )
            memory = detail.requests.get("memory")
            if memory is not None and 0 < memory.nano < _LEAST_MEMORY.nano:
                yield Finding(f"{path}.requests[memory]", f"is {memory} bytes; did you mean {memory}Gi?")


_LEAST_MEMORY = Quantity.parse("1Mi")
"""A request for less was most likely written without its unit."""


def _names_something(detail: DeviceClaimDetail) -> bool:
    return bool(detail.device_class or detail.device_type)


# -- which kind ------------------------------------------------------------------------------------------------------


def _kind_of(manifest: dict[str, Any]) -> ApiKind | list[Finding] | None:
    """Our kind, None for a kind of another API, or the errors."""
    api_version, kind = manifest.get("apiVersion"), manifest.get("kind")
    ours = API_KINDS.get(kind) if isinstance(kind, str) else None
    hints = {} if ours is None else {"apiVersion": f": {ours.api_version} for a {kind}"}
    missing = [
        Finding(
            name,
            f"is required{hints.get(name, '')}" if value in (None, "") else f"must be a string, not {type_name(value)}",
        )
        for name, value in (("apiVersion", api_version), ("kind", kind))
        if not isinstance(value, str) or not value
    ]
    if missing:
        return missing
    assert isinstance(api_version, str)
    assert isinstance(kind, str)
    if ours is not None and ours.api_version == api_version:
        return ours
    group = api_version.partition("/")[0]
    if any(group == candidate.group for candidate in API_KINDS.values()):
        return [_unknown_in_group(api_version, kind, group)]
    if ours is not None and ("/" not in api_version or closest_match(group, [ours.group])):
        return [Finding("apiVersion", f"must be {ours.api_version} for a {kind}, not {quote_value(api_version)}")]
    return None


def _unknown_in_group(api_version: str, kind: str, group: str) -> Finding:
    ours = API_KINDS.get(kind)
    if ours is not None:
        return Finding("apiVersion", f"must be {ours.api_version} for a {kind}, not {quote_value(api_version)}")
    kinds = [name for name, candidate in API_KINDS.items() if candidate.group == group]
    near = closest_match(kind, kinds)
    advice = f"did you mean {near}?" if near else f"the kinds are {', '.join(kinds)}"
    return Finding("kind", f"{quote_value(kind)} is not a kind of {group}; {advice}")


# -- problems --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Subject:
    """The identity of a document's object, as far as it is readable."""

    kind: str | None
    namespace: str | None
    name: str | None

    @classmethod
    def of(cls, manifest: dict[str, Any]) -> _Subject:
        metadata = manifest.get("metadata")
        names = metadata if isinstance(metadata, dict) else {}
        return cls(
            _text_or_none(manifest.get("kind")), _text_or_none(names.get("namespace")), _text_or_none(names.get("name"))
        )

    def problems(self, findings: Iterable[Finding], severity: Severity) -> list[Problem]:
        problems = [
            Problem(finding.message, finding.path, self.kind, self.namespace, self.name, severity=severity)
            for finding in findings
        ]
        if len(problems) <= MAX_PROBLEMS:
            return problems
        more = f"has {len(problems) - MAX_PROBLEMS} more problems like these"
        return [*problems[:MAX_PROBLEMS], Problem(more, "", self.kind, self.namespace, self.name, severity=severity)]


def _text_or_none(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if value.isprintable() and len(value) <= 253 else quote_value(value)
