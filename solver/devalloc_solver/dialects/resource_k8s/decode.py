"""From manifests to objects: pydantic reads them, and the first thing that is wrong becomes a FieldError.

The rules about several fields are here too, if a manifest that breaks them cannot be understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from devalloc.api.json_content import INVALID_UNICODE, ContentError, content_faults
from devalloc.api.node_rules import restrictions_of
from devalloc.api.problems import closest_match
from devalloc.api.quantity import type_name
from devalloc.api.validation.errors import Wording, first_error
from devalloc.api.validation.lenient import KEY
from devalloc.api.validation.schema import (
    RAW,
    NodeForm,
    SchemaNode,
    child_schema,
    field_schemas,
    format_path,
    model_schema,
)
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.claims import (
    AlternativeSpec,
    CapacityRequirements,
    DeviceClaimSpec,
    DeviceClassManifest,
    DeviceConstraint,
    DeviceRequest,
    DeviceRequestSpec,
    DeviceSelector,
    ExactRequestSpec,
    NodeManifest,
    PodClaimEntry,
    RequestSpec,
    ResourceClaim,
    ResourceClaimManifest,
    ResourceClaimSpec,
    ResourceDeviceClass,
    SubRequest,
    TemplateSpec,
    request_names,
)
from devalloc_solver.dialects.resource_k8s.fields import FieldError, SelectorError, Tolerant, short_text
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, NodeSelector, ResourceSlice, ResourceSliceSpec
from devalloc_solver.dialects.resource_k8s.versions import API_VERSION, OF_EXACTLY, V1ALPHA3, V1BETA1, misplaced_field

T = TypeVar("T")


def read(model: type[T], content: object, path: str = "") -> T:
    """Read a part of a manifest, which is at ``path``. Null means that a field is absent.

    Raises FieldError for the first thing that is wrong; SelectorError if that is inside a node selector.
    """
    reader = _reader(model)  # type: ignore[arg-type]  # mypy takes a type[T] for unhashable
    try:
        value: T = reader.validate_python(content)
        return value
    except ValidationError:
        pass
    try:  # few manifests have nulls, maps that are no dicts, and names that are no texts
        value = reader.validate_python(_in_usual_form(content, model_schema(model)))
        return value
    except ValidationError as error:
        loc, message = first_error(error, model, _WORDING)
    if "nodeSelector" in loc[:-1] or (model is NodeSelector and loc):
        raise SelectorError("", f"{_path_of(loc, model, path)} {message}")
    raise FieldError(_path_of(loc, model, path), message)


@cache
def _reader(model: type) -> TypeAdapter[Any]:
    return TypeAdapter(model)


def _in_usual_form(content: Any, shape: SchemaNode) -> Any:
    """Content that pydantic reads as Kubernetes does: without nulls, and with fields that have texts for names."""
    if content is None and shape.model is not None:
        return {}
    if isinstance(content, Mapping) and shape.model is not None:
        names = field_schemas(shape.model)
        fields = {k: _in_usual_form(v, child_schema(shape, k)) for k, v in content.items() if k in names}
        unknown = {} if issubclass(shape.model, Tolerant) else {short_text(k): None for k in content if k not in names}
        return {name: value for name, value in fields.items() if content[name] is not None} | unknown
    if isinstance(content, Mapping) and shape.item is not None and shape.form is NodeForm.MAP:
        entries = ((k, v) for k, v in content.items() if v is not None or shape.item.scalar is not str)
        return {k: _in_usual_form(v, shape.item) for k, v in entries}
    if isinstance(content, list) and shape.item is not None and shape.form is NodeForm.LIST:
        return [v if v is None else _in_usual_form(v, shape.item) for v in content]
    return content


def _path_of(loc: tuple[str | int, ...], model: type, path: str) -> str:
    shape = model_schema(model)
    for step in loc:
        if shape.form is NodeForm.MAP or (isinstance(step, int) and shape.form is not NodeForm.MODEL):
            path += f"[{step!r}]"
        else:
            path += f".{step}" if path else str(step)
        shape = child_schema(shape, step)
    return path


_MISSING = {
    "value": "must be a quantity such as 2, '500m' or '10Gi', not null",
    "min": "is missing: a range begins somewhere",
    "deviceClassName": "is missing: device class name (unsupported request type?)",
}


def _own_words(error: ErrorDetails) -> str | None:
    loc, value = error["loc"], error["input"]
    match error["type"]:
        case "string_type" if loc[-1] == KEY:
            return f"has the key {short_text(value)}, which must be a string: write it in quotes"
        case "string_unicode":
            return f"has a key that {INVALID_UNICODE}: {value!r}" if loc[-1] == KEY else INVALID_UNICODE
        case "dataclass_type" if value is None and isinstance(loc[-1], int):
            return "must not be null"
        case "missing" | "string_too_short":
            return _MISSING.get(str(loc[-1]), "is missing: every object of this kind has it")
        case "greater_than" | "less_than":
            return "must be a whole number within 64 bits"
    return None


_CLASSIC = "it is of v1alpha2; name a DeviceClass in spec.devices.requests[].exactly.deviceClassName"
_OF_CONSTRAINTS = dict.fromkeys(("matchAttribute", "distinctAttribute"), "move it below spec.devices.constraints[]")
_PLACES: Mapping[type, Mapping[str, str]] = {
    ResourceClaimSpec: {
        **dict.fromkeys(OF_EXACTLY, "move it below spec.devices.requests[].exactly"),
        **dict.fromkeys(("requests", "constraints", "config"), "move it below spec.devices"),
        **dict.fromkeys(("resourceClassName", "parametersRef", "controller"), _CLASSIC),
    },
    DeviceClaimSpec: {
        **dict.fromkeys(OF_EXACTLY, "move it below spec.devices.requests[].exactly"),
        **_OF_CONSTRAINTS,
    },
    DeviceRequestSpec: _OF_CONSTRAINTS,
    RequestSpec: {
        **_OF_CONSTRAINTS,
        "firstAvailable": "move it up, in place of exactly",
        "constraints": "move it below spec.devices",
        **dict.fromkeys(("cel", "expression"), "write selectors: [{cel: {expression: …}}]"),
    },
    TemplateSpec: {"devices": "move it below spec.spec"},
    PodClaimEntry: {"source": "write its field in the entry itself"},
    DeviceSelector: {"expression": "write it below cel"},
    CapacityRequirements: {"": "move it below capacity.requests"},
    ResourceSliceSpec: dict.fromkeys(
        ("attributes", "capacity", "consumesCounters", "taints", "allowMultipleAllocations"),
        "move it below spec.devices[]",
    ),
}
"""Hints by model, and by the name of a field that the model does not have ("": any): where the field belongs."""


def _unknown_field(name: str, names: list[str], model: type | None) -> str:
    """What to say of a field that no release up to 1.37 has there."""
    places = next((_PLACES[one] for one in getattr(model, "__mro__", ()) if one in _PLACES), {})
    near = closest_match(name, names)
    place = places.get(name) or ("" if near else places.get(""))
    hint = "the solver cannot know what it means" if near is None else f"did you mean {near}?"
    of = "a pod's claim" if model is PodClaimEntry else f"{API_VERSION}{' there' if place else ''}"
    return f"is not a known field of {of}: {place or hint}"


_WORDING = Wording(
    wanted={"str": "a string", "int": "a whole number", "bool": "a boolean", "map": "a map", "list": "a list"},
    describe=lambda _, value: type_name(value),
    unknown_field=_unknown_field,
    own=_own_words,
)


def check_version(content: Mapping[str, Any]) -> None:
    """Raises FieldError for another version of the API (``as_v1`` converts some), and for a field of another one."""
    version = content.get("apiVersion")
    if version not in (None, API_VERSION, V1BETA1):
        advice = f"write {V1BETA1}" if version == V1ALPHA3 else f"convert the object to {API_VERSION}"
        raise FieldError("apiVersion", f"{short_text(version)!r} is not supported; {advice}")
    if (misplaced := misplaced_field(content)) is not None:
        raise FieldError(*misplaced)


def read_node(content: Mapping[str, Any] | str) -> ClusterNode:
    """A Node object, or the name of one without labels. Raises FieldError."""
    return ClusterNode(content) if isinstance(content, str) else read(NodeManifest, content).metadata


def read_slice(content: Mapping[str, Any]) -> ResourceSlice:
    """A ResourceSlice. Raises FieldError for what cannot be read, and for a field that is not known here."""
    check_version(content)
    return read(ResourceSlice, content)


def read_node_selector(content: object, path: str = "") -> NodeSelector:
    """A node selector. Raises FieldError."""
    return read(NodeSelector, content, path)


def selected_node(allocation: Mapping[str, Any]) -> str | None:
    """The only node that the selector of an allocation selects by name."""
    try:
        terms = read_node_selector(allocation.get("nodeSelector")).terms
    except FieldError:
        return None
    for line in terms[0].fields if len(terms) == 1 else ():
        if line.key == "metadata.name" and line.operator == "In":
            return line.values[0]
    return None


def read_class(content: Mapping[str, Any]) -> ResourceDeviceClass:
    """A DeviceClass. Raises FieldError as above; whether its selectors compile is found out where they are used."""
    check_version(content)
    manifest = read(DeviceClassManifest, content)
    configs = _configs(content.get("spec"), "spec")
    return ResourceDeviceClass(manifest.metadata.name, _expressions(manifest.spec.selectors), configs)


def _expressions(selectors: tuple[DeviceSelector, ...]) -> tuple[str, ...]:
    return tuple(selector.cel.expression for selector in selectors)


def _configs(section: Mapping[str, Any] | None, path: str) -> tuple[Mapping[str, Any], ...]:
    """Configurations that were read before, as written: they go into answers, so they must be JSON content."""
    configs = tuple((section or {}).get("config") or ())
    for number, config in enumerate(configs):
        try:
            faults = content_faults(config.get("opaque"))
        except ContentError as error:
            faults = [(error.loc, error.message)]
        for loc, message in faults:
            raise FieldError(format_path(RAW, (f"{path}.config[{number}].opaque", *loc)), message)
    return configs


def read_claim(content: Mapping[str, Any], gates: frozenset[str]) -> ResourceClaim:
    """A ResourceClaim, with the API server's defaults. ``gates``: the features that are on.

    Parts of the API that are switched off raise FieldError, so that no claim gets less than it requested.
    """
    check_version(content)
    manifest = read(ResourceClaimManifest, content)
    devices = manifest.spec.devices
    spec, status = content.get("spec") or {}, content.get("status") or {}
    written = spec.get("devices") or {}
    requests = tuple(
        _request(request, own, f"spec.devices.requests[{number}]", gates)
        for number, (request, own) in enumerate(zip(devices.requests, written.get("requests") or (), strict=True))
    )
    names = request_names(requests)
    for number, constraint in enumerate(devices.constraints):
        _check_constraint(constraint, f"spec.devices.constraints[{number}]", names, gates)
    return ResourceClaim(
        metadata=manifest.metadata,
        requests=requests,
        constraints=devices.constraints,
        config=_configs(written, "spec.devices"),
        allocation=status.get("allocation") or None,
        spec=spec,
        given=restrictions_of(content),
    )


def _request(request: DeviceRequestSpec, written: Mapping[str, Any], path: str, gates: frozenset[str]) -> DeviceRequest:
    if request.alternatives:
        if gate.PRIORITIZED_LIST not in gates:
            raise FieldError(f"{path}.firstAvailable", _gate_off_message("has subrequests", gate.PRIORITIZED_LIST))
        if request.exactly is not None:
            raise FieldError(path, "sets both exactly and firstAvailable; keep one")
        subrequests = tuple(
            _subrequest(one, f"{request.name}/{one.name}", own, f"{path}.firstAvailable[{number}]", gates)
            for number, (one, own) in enumerate(zip(request.alternatives, written["firstAvailable"], strict=True))
        )
        return DeviceRequest(request.name, subrequests, is_list=True)
    assert request.exactly is not None
    subrequest = _subrequest(request.exactly, request.name, written["exactly"], f"{path}.exactly", gates)
    return DeviceRequest(request.name, (subrequest,), is_list=False)


def _subrequest(
    spec: ExactRequestSpec | AlternativeSpec, name: str, written: Mapping[str, Any], path: str, gates: frozenset[str]
) -> SubRequest:
    admin = spec.admin if isinstance(spec, ExactRequestSpec) else None
    if admin is not None and gate.ADMIN_ACCESS not in gates:
        raise FieldError(f"{path}.adminAccess", _gate_off_message("admin access is requested", gate.ADMIN_ACCESS))
    if spec.capacity is not None and gate.CONSUMABLE_CAPACITY not in gates:
        raise FieldError(f"{path}.capacity", _gate_off_message("has capacity requests", gate.CONSUMABLE_CAPACITY))
    if spec.derived:
        raise FieldError(
            f"{path}.derivedAttributes", f"is an alpha feature ({gate.DERIVED_ATTRIBUTES}) that is not supported"
        )
    return SubRequest(
        name=name,
        class_name=spec.class_name,
        selectors=_expressions(spec.selectors),
        is_all=spec.is_all,
        count=1 if spec.count is None else spec.count,
        admin=bool(admin),
        tolerations=spec.tolerations,
        toleration_manifests=tuple(written.get("tolerations") or ()),
        capacity={} if spec.capacity is None else spec.capacity.requests,
        path=path,
    )


def _check_constraint(constraint: DeviceConstraint, path: str, names: frozenset[str], gates: frozenset[str]) -> None:
    if (constraint.match_attribute is None) != constraint.distinct:
        raise FieldError(path, "must set one of matchAttribute and distinctAttribute (unsupported constraint type?)")
    if constraint.distinct and gate.CONSUMABLE_CAPACITY not in gates:
        raise FieldError(f"{path}.distinctAttribute", _gate_off_message("is used", gate.CONSUMABLE_CAPACITY))
    if missing := next((name for name in constraint.requests if name not in names), None):
        raise FieldError(f"{path}.requests", f"names {missing!r}, but this claim has no such request")


def _gate_off_message(what: str, name: str) -> str:
    return f"{what}, but the {name} feature is disabled; switch it on, or leave the field out"
