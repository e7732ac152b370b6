"""From manifests to ``objects``: strict where a field is unknown, since a field that is ignored may change the answer.

Raises FieldError; ``fields`` says what is checked. Content that an allocation does not need (metadata,
status of slices, opaque parameters) is not decoded.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from devalloc.api.json_content import INVALID_UNICODE, is_valid_unicode
from devalloc.api.quantity import type_name
from devalloc.api.semver import SemVer, SemVerError
from devalloc_solver.dialects.resource_k8s import feature_gates as gate
from devalloc_solver.dialects.resource_k8s.fields import FieldError, Fields, read_amount, short_text
from devalloc_solver.dialects.resource_k8s.node_selectors import read_selector
from devalloc_solver.dialects.resource_k8s.objects import (
    CapacityRange,
    CapacityRequestPolicy,
    ClusterNode,
    CounterConsumption,
    DeviceAttribute,
    DeviceCapacity,
    DeviceConstraint,
    DeviceRequest,
    DeviceTaint,
    DeviceToleration,
    NodeAccess,
    ResourceClaim,
    ResourceDeviceClass,
    ResourceSlice,
    SliceDevice,
    SubRequest,
)
from devalloc_solver.dialects.resource_k8s.quantities import MAX_INT64, Amount

API_VERSION = "resource.k8s.io/v1"
OPTIONAL_NODE_OPERATIONS = ("NodePrepareResources", "NodeUnprepareResources", "*")

_PLACES = frozenset(("nodeName", "allNodes", "nodeSelector"))
_UNSPECIFIED = NodeAccess()
_SCALARS = {"int": int, "bool": bool, "string": str, "version": str}
_LISTS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}


def check_version(content: Mapping[str, Any]) -> None:
    """Raises FieldError for another version of the API: its fields are shaped differently."""
    version = content.get("apiVersion")
    if version not in (None, API_VERSION):
        raise FieldError("apiVersion", f"{short_text(version)!r} is not supported; convert the object to {API_VERSION}")


def read_node(content: Mapping[str, Any] | str) -> ClusterNode:
    """A Node object, or the name of one without labels."""
    if isinstance(content, str):
        return ClusterNode(content)
    metadata = Fields(content, "").within("metadata")
    labels = {key: short_text(value) for key, value, _ in metadata.pairs("labels")}
    return ClusterNode(metadata.needed("name"), labels)


# -- slices ------------------------------------------------------------------------------------------------------------


def read_slice(content: Mapping[str, Any]) -> ResourceSlice:
    """A ResourceSlice. Raises FieldError for what cannot be read, and for a field that is not known here."""
    check_version(content)
    spec = Fields(content.get("spec"), "spec")
    pool = spec.within("pool")
    resource_slice = ResourceSlice(
        name=Fields(content.get("metadata"), "metadata").text("name"),
        driver=spec.needed("driver"),
        pool=pool.needed("name"),
        generation=pool.number("generation", 0),
        slice_count=pool.number("resourceSliceCount", 0),
        reach=_reach(spec),
        per_device=spec.flag("perDeviceNodeSelection"),
        counter_sets=tuple(_counter_set(item, path) for item, path in spec.items("sharedCounters")),
        devices=tuple(_device(item, path) for item, path in spec.items("devices")),
        skip_node_operations=spec.texts("skipNodeOperations"),
    )
    spec.skip("partitionTypeAttribute")  # labels partitions for reports
    spec.finish()
    pool.finish()
    if resource_slice.counter_sets and resource_slice.devices:
        raise FieldError("spec", "has devices and sharedCounters: counter sets need a slice of their own")
    if resource_slice.per_device and resource_slice.reach.is_specified:
        raise FieldError(
            "spec", "selects nodes and sets perDeviceNodeSelection, which leaves that to its devices; keep one"
        )
    for index, operation in enumerate(resource_slice.skip_node_operations):
        if operation not in OPTIONAL_NODE_OPERATIONS:
            raise FieldError(f"spec.skipNodeOperations[{index}]", f"{operation!r} is not supported")
    return resource_slice


def _reach(fields: Fields) -> NodeAccess:
    if _PLACES.isdisjoint(fields.content):
        return _UNSPECIFIED
    reach = NodeAccess(
        fields.text("nodeName") or None,
        bool(fields.flag("allNodes")),
        fields.given("nodeSelector", read_selector),
    )
    if sum((reach.node_name is not None, reach.all_nodes, reach.selector is not None)) > 1:
        raise FieldError(fields.path, "sets more than one of nodeName, nodeSelector, allNodes; keep one")
    return reach


def _counter_set(content: object, path: str) -> tuple[str, Mapping[str, Amount]]:
    fields = Fields(content, path)
    named_counters = fields.needed("name"), _counters(fields)
    fields.finish()
    return named_counters


def _counters(fields: Fields) -> dict[str, Amount]:
    amounts = {}
    for name, value, path in fields.pairs("counters"):
        counter = Fields(value, path)
        amounts[name] = read_amount(counter.content.get("value"), counter.at("value"))
    return amounts


_PLAIN_FIELDS = frozenset(("name", "attributes", "capacity", "consumesCounters"))


def _plain_device(content: Any) -> SliceDevice | None:
    """What ``_device`` would read, of the form that most devices have; None for any other form, valid or not.

    A cluster has devices by the hundred thousand, and most of what they say is said by many of them.
    """
    if type(content) is not dict or not content.keys() <= _PLAIN_FIELDS:
        return None
    name, named = content.get("name"), content.get("attributes", {})
    if type(name) is not str or not name or not name.isascii() or type(named) is not dict:
        return None
    if not _are_ascii(tuple(named)):
        return None
    attributes: dict[str, DeviceAttribute] = {}
    for key, value in named.items():
        if type(value) is not dict or len(value) != 1:
            return None
        ((kind, given),) = value.items()
        if _SCALARS.get(kind) is not type(given) or (type(given) is str and not given.isascii()):
            return None
        attributes[key] = _shared_attribute(kind, given)
    try:
        amounts = marshal.dumps((content.get("capacity"), content.get("consumesCounters")), 0)
    except ValueError:
        return None
    shared = _plain_amounts(amounts)
    if shared is None:
        return None
    return SliceDevice(name, attributes, *shared, _UNSPECIFIED, (), False, (), (), False, False, False)


@lru_cache(maxsize=1024)
def _are_ascii(names: tuple[object, ...]) -> bool:
    return all(type(name) is str and name.isascii() for name in names)


@lru_cache(maxsize=4096)
def _plain_amounts(text: bytes) -> tuple[Mapping[str, DeviceCapacity], tuple[CounterConsumption, ...]] | None:
    """Capacities and consumed counters of a device; None if they are invalid, or not plain."""
    capacity, consumes = marshal.loads(text)
    try:
        device = _read_device({"name": "any", "capacity": capacity, "consumesCounters": consumes}, "")
    except FieldError:
        return None
    return None if device.uses_groups else (device.capacity, device.consumes)


def _device(content: object, path: str) -> SliceDevice:
    return _plain_device(content) or _read_device(content, path)


def _read_device(content: object, path: str) -> SliceDevice:
    fields = Fields(content, path)
    consumes = [Fields(item, at) for item, at in fields.items("consumesCounters")]
    groups = [one.texts("compatibilityGroups") for one in consumes]
    device = SliceDevice(
        name=fields.needed("name"),
        attributes={name: read_attribute(value, at) for name, value, at in fields.pairs("attributes")},
        capacity={name: _capacity(value, at) for name, value, at in fields.pairs("capacity")},
        consumes=tuple(CounterConsumption(one.needed("counterSet"), _counters(one)) for one in consumes),
        reach=_reach(fields),
        taints=tuple(_taint(item, at) for item, at in fields.items("taints")),
        binds_to_node=bool(fields.flag("bindsToNode")),
        binding_conditions=fields.texts("bindingConditions"),
        binding_failure_conditions=fields.texts("bindingFailureConditions"),
        allow_multiple=bool(fields.flag("allowMultipleAllocations")),
        uses_groups=any(groups),
        uses_allocatable=fields.has("nodeAllocatableResources"),
    )
    fields.skip("nodeAllocatableResources")
    fields.finish()
    for one in consumes:
        one.finish()
    return device


def read_attribute(content: object, path: str) -> DeviceAttribute:
    """An attribute. Its content may be unreadable; the reader of the attribute reports that."""
    if type(content) is dict and len(content) == 1:
        ((name, given),) = content.items()
        if _SCALARS.get(name) is type(given) and (type(given) is not str or is_valid_unicode(given)):
            return _shared_attribute(name, given)
    fields = Fields(content, path)
    named = [name for name in fields.content if fields.content[name] is not None]
    if len(named) != 1 or (named[0] not in _SCALARS and named[0] not in _LISTS):
        kinds = f" ({', '.join(sorted(map(short_text, named)))})" if named else ""
        return DeviceAttribute("none", (), fault=f"unsupported attribute value{kinds}")
    name = named[0]
    kind = _LISTS.get(name, name)
    given = fields.content[name]
    values = tuple(given) if name in _LISTS and isinstance(given, list) else (given,)
    for value in values:
        if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            raise FieldError(fields.at(name), f"must be of type {name}, not {type_name(value)}")
        if isinstance(value, str) and not is_valid_unicode(value):
            raise FieldError(fields.at(name), INVALID_UNICODE)
    return DeviceAttribute(kind, values, name in _LISTS, _attribute_error(kind, values))


@lru_cache(maxsize=4096)
def _shared_attribute(kind: str, value: int | bool | str) -> DeviceAttribute:
    """Devices have much the same attributes: most of them share one object."""
    return DeviceAttribute(kind, (value,), False, _attribute_error(kind, (value,)))


def _attribute_error(kind: str, values: tuple[Any, ...]) -> str | None:
    if kind == "int" and any(not -MAX_INT64 - 1 <= value <= MAX_INT64 for value in values):
        return "unsupported attribute value: beyond 64 bits"
    if kind == "version":
        try:
            for value in values:
                _check_numbers(SemVer.parse(value))
        except SemVerError as error:
            return f"parse semantic version: {error}"
    return None


def _check_numbers(version: SemVer) -> None:
    """Raises SemVerError for a number that selectors cannot compare: one beyond 64 bits."""
    numbers = version.text.partition("+")[0].replace("-", ".", 1).split(".")
    if any(part.isdigit() and int(part) >= 2**64 for part in numbers):
        raise SemVerError(f"has a number beyond 64 bits: {version.text[:60]!r}")


def _capacity(content: object, path: str) -> DeviceCapacity:
    fields = Fields(content, path)
    value = read_amount(fields.content.get("value"), fields.at("value"))
    fields.skip("value")
    policy = fields.given("requestPolicy", _policy)
    fields.finish()
    return DeviceCapacity(value, policy)


def _policy(fields: Fields) -> CapacityRequestPolicy:
    values = tuple(read_amount(item, path) for item, path in fields.items("validValues"))
    policy = CapacityRequestPolicy(fields.amount("default"), values, fields.given("validRange", _range))
    fields.finish()
    return policy


def _range(fields: Fields) -> CapacityRange:
    least, most, step = fields.amount("min"), fields.amount("max"), fields.amount("step")
    fields.finish()
    if least is None:
        raise FieldError(fields.at("min"), "is missing: a range begins somewhere")
    if step is not None and step.nano <= 0:
        raise FieldError(fields.at("step"), f"must be greater than zero, not {step}")
    return CapacityRange(least, most, step)


def _taint(content: object, path: str) -> DeviceTaint:
    fields = Fields(content, path)
    taint = DeviceTaint(fields.text("key"), fields.text("value"), fields.text("effect"))
    fields.skip("timeAdded")
    fields.finish()
    return taint


# -- classes and claims ------------------------------------------------------------------------------------------------


def read_class(content: Mapping[str, Any]) -> ResourceDeviceClass:
    """A DeviceClass. Raises FieldError as above; whether its selectors compile is found out where they are used."""
    check_version(content)
    spec = Fields(content.get("spec"), "spec")
    name = Fields(content.get("metadata"), "metadata").needed("name")
    device_class = ResourceDeviceClass(name, _selectors(spec), _configs(spec))
    spec.skip("extendedResourceName")  # for the resources of pods
    spec.finish()
    return device_class


def _selectors(fields: Fields) -> tuple[str, ...]:
    expressions = []
    for item, path in fields.items("selectors"):
        selector = Fields(item, path)
        cel = selector.within("cel")
        expression = cel.text("expression")
        cel.finish()
        selector.finish()
        if not expression:
            raise FieldError(path, "has no CEL expression; write cel.expression, the only supported kind of selector")
        expressions.append(expression)
    return tuple(expressions)


def _configs(fields: Fields) -> tuple[Mapping[str, Any], ...]:
    """Configurations of a class, which are for every request of it."""
    return tuple(_config(item, path) for item, path in fields.items("config"))


def _config(content: object, path: str) -> Mapping[str, Any]:
    fields = Fields(content, path)
    fields.texts("requests")
    fields.within("opaque")
    fields.copied("opaque")
    fields.finish()
    return fields.content


def read_claim(content: Mapping[str, Any], gates: frozenset[str]) -> ResourceClaim:
    """A ResourceClaim, with the API server's defaults. ``gates``: the features that are on.

    Parts of the API that are switched off raise FieldError, so that no claim gets less than it requested.
    """
    check_version(content)
    metadata = Fields(content.get("metadata"), "metadata")
    spec = Fields(content.get("spec"), "spec")
    devices = spec.within("devices")
    requests = tuple(_request(item, path, gates) for item, path in devices.items("requests"))
    claim = ResourceClaim(
        namespace=metadata.text("namespace"),
        name=metadata.text("name"),
        uid=metadata.text("uid"),
        requests=requests,
        constraints=tuple(_constraint(item, path, requests, gates) for item, path in devices.items("constraints")),
        config=tuple(_config(item, path) for item, path in devices.items("config")),
        allocation=Fields(content.get("status"), "status").within("allocation").content or None,
        annotations=metadata.labels("annotations"),
        created=metadata.optional("creationTimestamp"),
        is_deleting=metadata.has("deletionTimestamp"),
        spec=spec.content,
    )
    devices.finish()
    spec.finish()
    return claim


def _request(content: object, path: str, gates: frozenset[str]) -> DeviceRequest:
    fields = Fields(content, path)
    name = fields.needed("name")
    subs = [Fields(item, at) for item, at in fields.items("firstAvailable")]
    if subs and gate.PRIORITIZED_LIST not in gates:
        raise FieldError(fields.at("firstAvailable"), _gate_off_message("has subrequests", gate.PRIORITIZED_LIST))
    if subs and fields.has("exactly"):
        raise FieldError(path, "sets both exactly and firstAvailable; keep one")
    if subs:
        asks = tuple(_subrequest(sub, f"{name}/{sub.needed('name')}", gates) for sub in subs)
    else:
        asks = (_subrequest(fields.within("exactly"), name, gates),)
    fields.skip("exactly")
    fields.finish()
    return DeviceRequest(name, asks, bool(subs))


def _subrequest(fields: Fields, name: str, gates: frozenset[str]) -> SubRequest:
    if "/" in name:
        fields.skip("name")
    elif fields.has("adminAccess") and gate.ADMIN_ACCESS not in gates:
        raise FieldError(fields.at("adminAccess"), _gate_off_message("admin access is requested", gate.ADMIN_ACCESS))
    if fields.has("capacity") and gate.CONSUMABLE_CAPACITY not in gates:
        raise FieldError(fields.at("capacity"), _gate_off_message("has capacity requests", gate.CONSUMABLE_CAPACITY))
    if fields.content.get("derivedAttributes"):
        raise FieldError(
            fields.at("derivedAttributes"), f"is an alpha feature ({gate.DERIVED_ATTRIBUTES}) that is not supported"
        )
    class_name = fields.text("deviceClassName")
    if not class_name:
        raise FieldError(fields.at("deviceClassName"), "is missing: device class name (unsupported request type?)")
    mode = fields.text("allocationMode")
    if mode not in ("ExactCount", "All"):
        raise FieldError(
            fields.at("allocationMode"), f"has the unsupported count mode {mode!r}; write ExactCount or All"
        )
    if mode == "ExactCount" and not fields.has("count"):
        raise FieldError(fields.at("count"), "is missing: the API server sets 1 by default; write count: 1")
    tolerations = list(fields.items("tolerations"))
    capacity = fields.within("capacity")
    ask = SubRequest(
        name=name,
        class_name=class_name,
        selectors=_selectors(fields),
        is_all=mode == "All",
        count=fields.number("count", 1),
        admin="/" not in name and bool(fields.flag("adminAccess")),
        tolerations=tuple(_toleration(item, at) for item, at in tolerations),
        toleration_manifests=tuple(item for item, _ in tolerations),
        capacity=capacity.amounts("requests"),
        path=fields.path,
    )
    capacity.finish()
    fields.skip("derivedAttributes")
    fields.finish()
    if not ask.is_all and not 0 < ask.count <= MAX_INT64:
        raise FieldError(fields.at("count"), f"must be greater than zero and within 64 bits, not {ask.count}")
    for which, amount in ask.capacity.items():
        if amount.nano < 0:
            raise FieldError(f"{fields.path}.capacity.requests[{which!r}]", f"is negative: {amount}")
    return ask


def _toleration(content: object, path: str) -> DeviceToleration:
    fields = Fields(content, path)
    toleration = DeviceToleration(
        fields.text("key"), fields.text("operator") or "Equal", fields.text("value"), fields.text("effect")
    )
    fields.number("tolerationSeconds", 0)
    fields.finish()
    if toleration.operator not in ("Equal", "Exists"):
        raise FieldError(fields.at("operator"), f"{toleration.operator!r} is not supported; use Equal or Exists")
    return toleration


def _constraint(
    content: object, path: str, requests: tuple[DeviceRequest, ...], gates: frozenset[str]
) -> DeviceConstraint:
    fields = Fields(content, path)
    match, distinct = fields.optional("matchAttribute"), fields.optional("distinctAttribute")
    names = fields.texts("requests")
    fields.finish()
    if (match is None) == (distinct is None):
        raise FieldError(path, "must set one of matchAttribute and distinctAttribute (unsupported constraint type?)")
    if distinct is not None and gate.CONSUMABLE_CAPACITY not in gates:
        raise FieldError(fields.at("distinctAttribute"), _gate_off_message("is used", gate.CONSUMABLE_CAPACITY))
    request_names = {name for request in requests for name in (request.name, *(ask.name for ask in request.asks))}
    if missing := next((name for name in names if name not in request_names), None):
        raise FieldError(fields.at("requests"), f"names {missing!r}, but this claim has no such request")
    return DeviceConstraint(match if match is not None else distinct or "", distinct is not None, frozenset(names))


def _gate_off_message(what: str, name: str) -> str:
    return f"{what}, but the {name} feature is disabled; switch it on, or leave the field out"
