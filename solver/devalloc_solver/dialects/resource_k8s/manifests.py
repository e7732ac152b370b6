"""Sort manifests of a cluster: slices, classes, claims and nodes, and what is wrong with the rest.

Nothing raises here: an object that is wrong is left out and reported, and everything else goes on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from devalloc.api.fields import describe_value, is_subdomain_name, label_name, quote_value, subdomain_name
from devalloc.api.findings import BEING_DELETED, text_fact
from devalloc.api.json_content import MAPPINGS
from devalloc.api.meta import GROUP, PRIORITY, parse_time
from devalloc.api.node_rules import restrictions_of
from devalloc.api.object_lists import flatten_lists
from devalloc.api.owner_names import read_name
from devalloc.api.problems import Problem
from devalloc.api.quantity import type_name
from devalloc.api.reasons import Reason
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s import taint_rules
from devalloc_solver.dialects.resource_k8s.claims import (
    DeviceConstraint,
    DeviceRequest,
    NamedObject,
    ResourceClaim,
    ResourceDeviceClass,
    request_names,
)
from devalloc_solver.dialects.resource_k8s.decode import (
    check_version,
    read,
    read_claim,
    read_class,
    read_node,
    read_slice,
    selected_node,
)
from devalloc_solver.dialects.resource_k8s.fields import FieldError, short_text
from devalloc_solver.dialects.resource_k8s.slice_check import check_length, find_refusal
from devalloc_solver.dialects.resource_k8s.slices import ClusterNode, ResourceSlice
from devalloc_solver.dialects.resource_k8s.versions import API_VERSION, as_v1
from devalloc_solver.pipeline.units import RejectedClaim

MOST_REQUESTS = 32
MOST_CONSTRAINTS = 32
MOST_CONFIGS = 32
MOST_SELECTORS = 32
MOST_CHOICES = 8
MOST_TOLERATIONS = 16
MOST_EXPRESSION = 10 * 1024
"""characters of a selector"""
MOST_DRIVER = 63
"""characters of a driver's name"""
MOST_PARAMETERS = 10 * 1024
"""bytes of opaque parameters, as JSON"""


def check_claim(claim: ResourceClaim) -> None:
    """Raises FieldError for a claim that the API server refuses."""
    check_names(*claim.key)
    path = "spec.devices"
    check_length(claim.requests, MOST_REQUESTS, f"{path}.requests")
    check_length(claim.constraints, MOST_CONSTRAINTS, f"{path}.constraints")
    check_length(claim.config, MOST_CONFIGS, f"{path}.config")
    check_unique([request.name for request in claim.requests], f"{path}.requests", "requests")
    for number, constraint in enumerate(claim.constraints):
        _check_name(constraint, f"{path}.constraints[{number}]")
    for number, request in enumerate(claim.requests):
        _check_request(request, f"{path}.requests[{number}]")
    names = request_names(claim.requests)
    for number, config in enumerate(claim.config):
        _check_names(config, names, f"{path}.config[{number}].requests")
        _check_config(config, f"{path}.config[{number}]")


def check_names(namespace: str, name: str) -> None:
    """Raises FieldError for names that no claim, template or pod can have."""
    for field_name, text, check in (("name", name, subdomain_name), ("namespace", namespace or "default", label_name)):
        try:
            check(text)
        except ValueError as error:
            raise FieldError(f"metadata.{field_name}", str(error)) from None


def _check_name(constraint: DeviceConstraint, path: str) -> None:
    """Upstream's validation wants a domain before the identifier: a constraint may be about several drivers."""
    domain, slash, identifier = constraint.attribute.partition("/")
    if not (domain and slash and identifier):
        field = "distinctAttribute" if constraint.distinct else "matchAttribute"
        message = f"{constraint.attribute!r} is not a qualified name: write its domain too, such as"
        raise FieldError(f"{path}.{field}", f"{message} resource.kubernetes.io/pcieRoot or <driver>/<attribute>")


def _check_request(request: DeviceRequest, path: str) -> None:
    if request.is_list:
        check_length(request.subrequests, MOST_CHOICES, f"{path}.firstAvailable")
        check_unique([subrequest.name for subrequest in request.subrequests], f"{path}.firstAvailable", "subrequests")
    for subrequest in request.subrequests:
        _check_selectors(subrequest.selectors, subrequest.path)
        check_length(subrequest.tolerations, MOST_TOLERATIONS, f"{subrequest.path}.tolerations")


def _check_names(config: Mapping[str, Any], names: Iterable[str], path: str) -> None:
    missing = next((name for name in config.get("requests") or () if name not in names), None)
    if missing is not None:
        raise FieldError(path, f"names {missing!r}, but this claim has no such request")


def _check_config(config: Mapping[str, Any], path: str) -> None:
    opaque = config.get("opaque")
    if opaque is None:
        raise FieldError(f"{path}.opaque", "is missing: it is the only kind of configuration")
    driver, parameters = opaque.get("driver"), opaque.get("parameters")
    if driver is None or driver == "":
        raise FieldError(f"{path}.opaque.driver", "is missing: name the driver that the parameters are for")
    if not isinstance(driver, str) or len(driver) > MOST_DRIVER or not is_subdomain_name(driver.lower()):
        written = repr(driver) if isinstance(driver, str) else type_name(driver)
        wanted = f"must be the name of a driver, a DNS subdomain such as gpu.example.com of at most {MOST_DRIVER}"
        raise FieldError(f"{path}.opaque.driver", f"{wanted} characters, not {written[:80]}")
    where = f"{path}.opaque.parameters"
    if parameters is None:
        raise FieldError(where, "is missing: write {} if the driver needs none")
    if not isinstance(parameters, Mapping):
        raise FieldError(where, f"must be an object, not {type_name(parameters)}")
    # That it is JSON was seen when it was read.
    text = json.dumps(parameters, ensure_ascii=False, separators=(",", ":"))
    if (size := len(text.encode())) > MOST_PARAMETERS:
        raise FieldError(where, f"has {size} bytes, and the API server accepts at most {MOST_PARAMETERS}; shorten it")


def check_class(device_class: ResourceDeviceClass) -> None:
    """Raises FieldError for a class that the API server refuses."""
    _check_selectors(device_class.selectors, "spec")
    check_length(device_class.config, MOST_CONFIGS, "spec.config")
    for number, config in enumerate(device_class.config):
        _check_config(config, f"spec.config[{number}]")


def _check_selectors(selectors: Sequence[str], path: str) -> None:
    check_length(selectors, MOST_SELECTORS, f"{path}.selectors")
    for number, expression in enumerate(selectors):
        if len(expression) > MOST_EXPRESSION:
            text = f"has {len(expression)} characters, and the API server accepts at most {MOST_EXPRESSION}; shorten it"
            raise FieldError(f"{path}.selectors[{number}].cel.expression", text)


def check_unique(names: Sequence[str], path: str, what: str) -> None:
    """Raises FieldError for a name that is there twice."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise FieldError(path, f"has two {what} named {twice.rpartition('/')[2]!r}; rename one")


Manifest = Mapping[str, Any]
Key = tuple[str, str]

TEMPLATE = "ResourceClaimTemplate"
KINDS = ("ResourceSlice", "DeviceClass", "ResourceClaim", taint_rules.KIND, "Node")


@dataclass(slots=True)
class ClusterInput:
    """The objects of a cluster by kind."""

    slices: list[Manifest] = field(default_factory=list)
    read: dict[int, ResourceSlice] = field(default_factory=dict)
    """the same as they were read, by the id of the manifest"""
    checked: dict[ResourceSlice, FieldError | None] = field(default_factory=dict)
    """what the API server refuses of them; None if nothing"""
    left_out: dict[str, str] = field(default_factory=dict)
    """driver -> one of its slices that is left out, and why"""
    nodes: dict[str, ClusterNode] = field(default_factory=dict)
    node_manifests: dict[str, Manifest] = field(default_factory=dict)
    classes: dict[str, ResourceDeviceClass] = field(default_factory=dict)
    class_manifests: dict[str, Manifest] = field(default_factory=dict)
    broken_classes: dict[str, str] = field(default_factory=dict)
    """class -> what is wrong with it"""
    claims: list[ResourceClaim] = field(default_factory=list)
    rules: list[Manifest] = field(default_factory=list)
    """DeviceTaintRules, in the order of their names; their taints are in the slices already"""
    manifests: dict[Key, Manifest] = field(default_factory=dict)
    """the claims as they were given, with the API server's defaults"""
    refused: list[RejectedClaim] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_documents(
    documents: Iterable[object],
    gates: frozenset[str],
    read: Mapping[int, ResourceSlice] | None = None,
    checked: dict[ResourceSlice, FieldError | None] | None = None,
) -> ClusterInput:
    """Sort manifests out. Every problem says which object it is about.

    Args:
        read: slices among them that were read before, by the id of the manifest.
        checked: what the API server refuses of slices that were checked before; those of this call are added.
    """
    problem_input = ClusterInput(read=dict(read or {}), checked={} if checked is None else checked)
    objects = [as_v1(content) for document in documents for content in flatten_lists(document)]
    count = Counter((_kind(content), key_of(content)) for content in objects if isinstance(content, Mapping))
    for content in objects:
        if not isinstance(content, Mapping):
            message = f"must be an object with apiVersion, kind and metadata, not {describe_value(content)}"
            problem_input.problems.append(Problem(message))
            continue
        kind, key = _kind(content), key_of(content)
        twice = count[kind, key] > 1 and kind in KINDS
        try:
            _read(problem_input, content, gates, twice=twice)
        except FieldError as error:
            namespace = (key[0] or None) if kind == "ResourceClaim" else None
            if kind == "ResourceSlice":
                record_left_out(problem_input.left_out, content, error)
            problem = Problem(error.message, error.path, kind=kind, namespace=namespace, name=key[1])
            if problem not in problem_input.problems:
                problem_input.problems.append(problem)
    _check_slices(problem_input)
    _apply_rules(problem_input)
    return problem_input


def name_clash(kind: str) -> FieldError:
    """Why two objects of one kind and name are left out."""
    return FieldError("metadata.name", f"is the name of two objects of kind {kind}: both are ignored; rename one")


def record_left_out(slices: dict[str, str], content: Manifest, why: FieldError) -> None:
    """Remember a slice that is left out, the first by name of each driver: reasons of claims name it."""
    spec = content.get("spec")
    driver = spec.get("driver") if isinstance(spec, Mapping) else None
    text = f"ResourceSlice {key_of(content)[1]} is left out, {f'{why.path}: ' if why.path else ''}{why.message}"
    name = short_text(driver or "")
    slices[name] = min(text, slices.get(name, text))


def _check_slices(problem_input: ClusterInput) -> None:
    """Warn of slices that the API server refuses, in the order of their names."""
    for parsed in sorted((problem_input.read[id(one)] for one in problem_input.slices), key=lambda one: one.name):
        if parsed not in problem_input.checked:
            problem_input.checked[parsed] = find_refusal(parsed)
        if (error := problem_input.checked[parsed]) is not None:
            message = f"{error.message} (the slice is used all the same)"
            problem_input.problems.append(
                Problem(message, error.path, kind="ResourceSlice", name=parsed.name, severity="warning")
            )


def _apply_rules(problem_input: ClusterInput) -> None:
    """Put the taints of DeviceTaintRules onto the devices that they select."""
    problem_input.rules.sort(key=lambda rule: str(rule["metadata"]["name"]))
    for number, content in enumerate(problem_input.slices if problem_input.rules else ()):
        tainted = taint_rules.with_rule_taints(content, problem_input.rules)
        if tainted is not content:
            problem_input.slices[number] = tainted
            problem_input.read[id(tainted)] = read_slice(tainted)


def _kind(content: Manifest) -> str:
    return short_text(content.get("kind"))


def key_of(content: Manifest) -> Key:
    """(namespace, name), as well as they can be told."""
    metadata = content.get("metadata")
    fields = metadata if isinstance(metadata, MAPPINGS) else {}
    namespace = short_text(fields.get("namespace") or "default") if content.get("kind") == "ResourceClaim" else ""
    return namespace, read_name(short_text(fields.get("name") or ""))


def group_of(content: Manifest) -> str | None:
    """The group of a claim, valid or not."""
    metadata = content.get("metadata")
    marks = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    group = marks.get(GROUP) if isinstance(marks, Mapping) else None
    if not group:
        return None
    return read_name(short_text(group)) if restrictions_of(content) is None else str(group)


def _read(problem_input: ClusterInput, content: Manifest, gates: frozenset[str], *, twice: bool) -> None:
    kind, key = _kind(content), key_of(content)
    if kind not in KINDS:
        problem_input.problems.append(Problem(_why_ignored(content), kind=kind, name=key[1], severity="warning"))
        return
    if kind == "ResourceClaim":
        _read_claim(problem_input, content, gates, twice=twice)
        return
    if twice:
        if kind == "DeviceClass":
            problem_input.broken_classes[key[1]] = "exists twice"
        raise name_clash(kind)
    if kind == taint_rules.KIND:
        taint_rules.check_rule(content)
        problem_input.rules.append(content)
    elif kind == "Node":
        node = read_node(content)
        problem_input.nodes[node.name], problem_input.node_manifests[node.name] = node, content
    elif kind == "DeviceClass":
        try:
            device_class = read_class(content)
            check_class(device_class)
        except FieldError as error:
            problem_input.broken_classes[key[1]] = str(error)
            raise
        problem_input.classes[device_class.name], problem_input.class_manifests[device_class.name] = (
            device_class,
            content,
        )
    else:
        _read_slice(problem_input, content, gates)


def _why_ignored(content: Manifest) -> str:
    """Why an object of another kind does not count, and what to do if it is about claims."""
    kind, spec = _kind(content), content.get("spec")
    if kind == TEMPLATE:
        return "is not a claim: `devalloc explain resourceclaimtemplate/NAME` shows what one of it gets"
    claims = spec.get("resourceClaims") if kind == "Pod" and isinstance(spec, Mapping) else None
    entries = [one for one in claims if isinstance(one, Mapping)] if isinstance(claims, list) else []
    if any("resourceClaimTemplateName" in one for one in entries):
        return "is ignored: its claims are not made; `devalloc solve -f` makes them from templates among the files"
    if isinstance(claims, list) and len(claims) > 1:
        return f"is ignored: its claims may get different nodes; give them the same annotation {GROUP}"
    return f"kind {kind!r} is ignored: the solver reads {', '.join(KINDS)}"


def _read_slice(problem_input: ClusterInput, content: Manifest, gates: frozenset[str]) -> None:
    parsed = problem_input.read.get(id(content)) or read_slice(content)
    if gate.COMPATIBILITY_GROUPS in gates and parsed.uses_groups:
        message = f"has compatibilityGroups, an alpha feature ({gate.COMPATIBILITY_GROUPS}) that is not supported"
        raise FieldError("spec.devices.consumesCounters", message)
    problem_input.slices.append(content)
    problem_input.read[id(content)] = parsed


def _read_claim(problem_input: ClusterInput, content: Manifest, gates: frozenset[str], *, twice: bool) -> None:
    """Read a claim, or record why it cannot be read."""
    key = key_of(content)
    filled = with_defaults(content)
    try:
        check_version(content)
        name = read(NamedObject, content).metadata.name
        if name != key[1]:
            raise FieldError("metadata.name", f"must not have a control character, but is {quote_value(name)}")
        if twice:
            raise FieldError("metadata.name", "is the name of two claims in this namespace; rename one")
        claim = read_claim(filled, gates)
        check_annotations(claim)
        if claim.allocation is None:
            check_claim(claim)
    except FieldError as error:
        status = content.get("status")
        allocation = status.get("allocation") if isinstance(status, Mapping) else None
        allocated = allocation if isinstance(allocation, Mapping) else None
        if not any(refused.key == key for refused in problem_input.refused):
            problem_input.refused.append(
                RejectedClaim(
                    key,
                    Reason.CLAIM_INVALID,
                    (text_fact(str(error)),),
                    group_of(content),
                    allocation=allocated,
                    node=None if allocated is None else selected_node(allocated),
                )
            )
        raise
    problem_input.manifests[key] = filled
    if claim.metadata.is_deleting and claim.allocation is None:
        causes = (text_fact(BEING_DELETED),)
        problem_input.refused.append(RejectedClaim(key, Reason.DELETING, causes, claim.group))
    else:
        problem_input.claims.append(claim)


def check_annotations(claim: ResourceClaim) -> None:
    """Raises FieldError for an annotation of ours that says nothing, and for a time that is none."""
    if (created := claim.metadata.creation_timestamp) is not None:
        try:
            parse_time(created)
        except ValueError as error:
            raise FieldError("metadata.creationTimestamp", str(error)) from None
    text = claim.annotations.get(PRIORITY, "0")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise FieldError(f"metadata.annotations[{PRIORITY!r}]", f"must be a whole number, not {text!r}")


def priority_of(claim: ResourceClaim) -> int:
    """The priority that the claim's annotation says, 0 without one; it has been found to be a number."""
    return int(claim.annotations.get(PRIORITY, "0"))


def with_defaults(content: Manifest) -> Manifest:
    """A claim with what the API server writes where its author wrote nothing: namespace, mode, count and operators."""
    spec = content.get("spec")
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    metadata = content.get("metadata")
    filled = dict(content)
    if isinstance(metadata, Mapping) and not metadata.get("namespace"):
        filled["metadata"] = {**metadata, "namespace": "default"}
    if not isinstance(spec, Mapping) or not isinstance(devices, Mapping):
        return filled
    requests = devices.get("requests")
    if isinstance(requests, list):
        devices = {**devices, "requests": [_request_with_defaults(request) for request in requests]}
    return {**filled, "apiVersion": content.get("apiVersion", API_VERSION), "spec": {**spec, "devices": devices}}


def _request_with_defaults(request: Any) -> Any:
    if not isinstance(request, Mapping):
        return request
    filled = dict(request)
    if isinstance(request.get("exactly"), Mapping):
        filled["exactly"] = _subrequest_with_defaults(request["exactly"])
    if isinstance(request.get("firstAvailable"), list):
        filled["firstAvailable"] = [
            _subrequest_with_defaults(sub) if isinstance(sub, Mapping) else sub for sub in request["firstAvailable"]
        ]
    return filled


def _subrequest_with_defaults(subrequest: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(subrequest)
    if not filled.get("allocationMode"):
        filled["allocationMode"] = "ExactCount"
    if filled["allocationMode"] == "ExactCount" and filled.get("count") is None:
        filled["count"] = 1
    if isinstance(filled.get("tolerations"), list):
        filled["tolerations"] = [
            {**one, "operator": one.get("operator") or "Equal"} if isinstance(one, Mapping) else one
            for one in filled["tolerations"]
        ]
    return filled
