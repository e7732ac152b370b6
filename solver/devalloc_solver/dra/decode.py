"""From manifests to ``objects``: strict where a field is unknown, since a field that is ignored may change the answer.

Raises FieldError; ``fields`` says what is checked. What an allocation has no use for (metadata, status of slices,
opaque parameters) is not looked into.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from devalloc.api.content import BROKEN, is_unicode
from devalloc.api.quantity import type_name
from devalloc.api.semver import SemVer, SemVerError
from devalloc_solver.dra import features as gate
from devalloc_solver.dra.amounts import MAX_INT64, Amount
from devalloc_solver.dra.fields import FieldError, Fields, read_amount, shown
from devalloc_solver.dra.nodes import read_selector
from devalloc_solver.dra.objects import (
    Ask,
    Attribute,
    Capacity,
    Claim,
    Class,
    Constraint,
    Consumption,
    Device,
    Node,
    Policy,
    Range,
    Reach,
    Request,
    Slice,
    Taint,
    Toleration,
)

API_VERSION = "resource.k8s.io/v1"
OPTIONAL_NODE_OPERATIONS = ("NodePrepareResources", "NodeUnprepareResources", "*")

_PLACES = frozenset(("nodeName", "allNodes", "nodeSelector"))
_UNTOLD = Reach()
_SCALARS = {"int": int, "bool": bool, "string": str, "version": str}
_LISTS = {"ints": "int", "bools": "bool", "strings": "string", "versions": "version"}


def check_version(content: Mapping[str, Any]) -> None:
    """Raises FieldError for another version of the API: its fields are shaped differently."""
    version = content.get("apiVersion")
    if version not in (None, API_VERSION):
        raise FieldError("apiVersion", f"{shown(version)!r} is not supported; convert the object to {API_VERSION}")


def read_node(content: Mapping[str, Any] | str) -> Node:
    """A Node object, or the name of one without labels."""
    if isinstance(content, str):
        return Node(content)
    metadata = Fields(content, "").within("metadata")
    labels = {key: shown(value) for key, value, _ in metadata.pairs("labels")}
    return Node(metadata.needed("name"), labels)


# -- slices --------------------------------------------------------------------------------------------------------


def read_slice(content: Mapping[str, Any]) -> Slice:
    """A ResourceSlice. Raises FieldError for what cannot be read, and for a field that is not known here."""
    check_version(content)
    spec = Fields(content.get("spec"), "spec")
    pool = spec.within("pool")
    found = Slice(
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
    if found.counter_sets and found.devices:
        raise FieldError("spec", "has devices and sharedCounters: counter sets need a slice of their own")
    if found.per_device and found.reach.is_told:
        raise FieldError("spec", "says twice where it is: perDeviceNodeSelection leaves that to its devices")
    for index, operation in enumerate(found.skip_node_operations):
        if operation not in OPTIONAL_NODE_OPERATIONS:
            raise FieldError(f"spec.skipNodeOperations[{index}]", f"{operation!r} is not known here")
    return found


def _reach(fields: Fields) -> Reach:
    if _PLACES.isdisjoint(fields.content):
        return _UNTOLD
    found = Reach(
        fields.text("nodeName") or None,
        bool(fields.flag("allNodes")),
        fields.given("nodeSelector", read_selector),
    )
    if sum((found.node_name is not None, found.all_nodes, found.selector is not None)) > 1:
        raise FieldError(fields.path, "sets more than one of nodeName, nodeSelector, allNodes; keep one")
    return found


def _counter_set(content: object, path: str) -> tuple[str, Mapping[str, Amount]]:
    fields = Fields(content, path)
    found = fields.needed("name"), _counters(fields)
    fields.finish()
    return found


def _counters(fields: Fields) -> dict[str, Amount]:
    found = {}
    for name, value, path in fields.pairs("counters"):
        counter = Fields(value, path)
        found[name] = read_amount(counter.content.get("value"), counter.at("value"))
    return found


def _device(content: object, path: str) -> Device:
    fields = Fields(content, path)
    consumes = [Fields(item, at) for item, at in fields.items("consumesCounters")]
    groups = [one.texts("compatibilityGroups") for one in consumes]
    found = Device(
        name=fields.needed("name"),
        attributes={name: read_attribute(value, at) for name, value, at in fields.pairs("attributes")},
        capacity={name: _capacity(value, at) for name, value, at in fields.pairs("capacity")},
        consumes=tuple(Consumption(one.needed("counterSet"), _counters(one)) for one in consumes),
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
    return found


def read_attribute(content: object, path: str) -> Attribute:
    """An attribute. What is in it may be unreadable, which is the matter of whoever reads it."""
    if type(content) is dict and len(content) == 1:
        ((name, given),) = content.items()
        if _SCALARS.get(name) is type(given) and (type(given) is not str or is_unicode(given)):
            return _single(name, given)
    fields = Fields(content, path)
    named = [name for name in fields.content if fields.content[name] is not None]
    if len(named) != 1 or (named[0] not in _SCALARS and named[0] not in _LISTS):
        told = f" ({', '.join(sorted(map(shown, named)))})" if named else ""
        return Attribute("none", (), fault=f"unsupported attribute value{told}")
    name = named[0]
    kind = _LISTS.get(name, name)
    given = fields.content[name]
    values = tuple(given) if name in _LISTS and isinstance(given, list) else (given,)
    for value in values:
        if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            raise FieldError(fields.at(name), f"must be of type {name}, not {type_name(value)}")
        if isinstance(value, str) and not is_unicode(value):
            raise FieldError(fields.at(name), BROKEN)
    return Attribute(kind, values, name in _LISTS, _fault(kind, values))


@lru_cache(maxsize=4096)
def _single(kind: str, value: int | bool | str) -> Attribute:
    """Devices have much the same attributes: most of them share one object."""
    return Attribute(kind, (value,), False, _fault(kind, (value,)))


def _fault(kind: str, values: tuple[Any, ...]) -> str | None:
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


def _capacity(content: object, path: str) -> Capacity:
    fields = Fields(content, path)
    value = read_amount(fields.content.get("value"), fields.at("value"))
    fields.skip("value")
    policy = fields.given("requestPolicy", _policy)
    fields.finish()
    return Capacity(value, policy)


def _policy(fields: Fields) -> Policy:
    values = tuple(read_amount(item, path) for item, path in fields.items("validValues"))
    found = Policy(fields.amount("default"), values, fields.given("validRange", _range))
    fields.finish()
    return found


def _range(fields: Fields) -> Range:
    least, most, step = fields.amount("min"), fields.amount("max"), fields.amount("step")
    fields.finish()
    if least is None:
        raise FieldError(fields.at("min"), "is missing: a range begins somewhere")
    if step is not None and step.nano <= 0:
        raise FieldError(fields.at("step"), f"must be greater than zero, not {step}")
    return Range(least, most, step)


def _taint(content: object, path: str) -> Taint:
    fields = Fields(content, path)
    found = Taint(fields.text("key"), fields.text("value"), fields.text("effect"))
    fields.skip("timeAdded")
    fields.finish()
    return found


# -- classes and claims --------------------------------------------------------------------------------------------


def read_class(content: Mapping[str, Any]) -> Class:
    """A DeviceClass. Raises FieldError as above; whether its selectors compile is found out where they are used."""
    check_version(content)
    spec = Fields(content.get("spec"), "spec")
    name = Fields(content.get("metadata"), "metadata").needed("name")
    found = Class(name, _selectors(spec), _configs(spec))
    spec.skip("extendedResourceName")  # for the resources of pods
    spec.finish()
    return found


def _selectors(fields: Fields) -> tuple[str, ...]:
    found = []
    for item, path in fields.items("selectors"):
        selector = Fields(item, path)
        cel = selector.within("cel")
        expression = cel.text("expression")
        cel.finish()
        selector.finish()
        if not expression:
            raise FieldError(path, "has no CEL expression; write cel.expression, the only kind of selector known here")
        found.append(expression)
    return tuple(found)


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


def read_claim(content: Mapping[str, Any], gates: frozenset[str]) -> Claim:
    """A ResourceClaim, with the API server's defaults. ``gates``: the features that are on.

    Parts of the API that are switched off raise FieldError, so that nobody gets less than was asked for.
    """
    check_version(content)
    metadata = Fields(content.get("metadata"), "metadata")
    spec = Fields(content.get("spec"), "spec")
    devices = spec.within("devices")
    requests = tuple(_request(item, path, gates) for item, path in devices.items("requests"))
    found = Claim(
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
    return found


def _request(content: object, path: str, gates: frozenset[str]) -> Request:
    fields = Fields(content, path)
    name = fields.needed("name")
    subs = [Fields(item, at) for item, at in fields.items("firstAvailable")]
    if subs and gate.PRIORITIZED_LIST not in gates:
        raise FieldError(fields.at("firstAvailable"), _off("has subrequests", gate.PRIORITIZED_LIST))
    if subs and fields.has("exactly"):
        raise FieldError(path, "sets both exactly and firstAvailable; keep one")
    if subs:
        asks = tuple(_ask(sub, f"{name}/{sub.needed('name')}", gates) for sub in subs)
    else:
        asks = (_ask(fields.within("exactly"), name, gates),)
    fields.skip("exactly")
    fields.finish()
    return Request(name, asks, bool(subs))


def _ask(fields: Fields, name: str, gates: frozenset[str]) -> Ask:
    if "/" in name:
        fields.skip("name")
    elif fields.has("adminAccess") and gate.ADMIN_ACCESS not in gates:
        raise FieldError(fields.at("adminAccess"), _off("admin access is requested", gate.ADMIN_ACCESS))
    if fields.has("capacity") and gate.CONSUMABLE_CAPACITY not in gates:
        raise FieldError(fields.at("capacity"), _off("has capacity requests", gate.CONSUMABLE_CAPACITY))
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
        raise FieldError(
            fields.at("count"), "is missing: the API server writes 1 where nothing is said; write count: 1"
        )
    tolerations = list(fields.items("tolerations"))
    capacity = fields.within("capacity")
    found = Ask(
        name=name,
        class_name=class_name,
        selectors=_selectors(fields),
        is_all=mode == "All",
        count=fields.number("count", 1),
        admin="/" not in name and bool(fields.flag("adminAccess")),
        tolerations=tuple(_toleration(item, at) for item, at in tolerations),
        told_tolerations=tuple(item for item, _ in tolerations),
        capacity=capacity.amounts("requests"),
        path=fields.path,
    )
    capacity.finish()
    fields.skip("derivedAttributes")
    fields.finish()
    if not found.is_all and not 0 < found.count <= MAX_INT64:
        raise FieldError(fields.at("count"), f"must be greater than zero and within 64 bits, not {found.count}")
    for which, amount in found.capacity.items():
        if amount.nano < 0:
            raise FieldError(f"{fields.path}.capacity.requests[{which!r}]", f"is negative: {amount}")
    return found


def _toleration(content: object, path: str) -> Toleration:
    fields = Fields(content, path)
    found = Toleration(
        fields.text("key"), fields.text("operator") or "Equal", fields.text("value"), fields.text("effect")
    )
    fields.number("tolerationSeconds", 0)
    fields.finish()
    if found.operator not in ("Equal", "Exists"):
        raise FieldError(fields.at("operator"), f"{found.operator!r} is not known here; use Equal or Exists")
    return found


def _constraint(content: object, path: str, requests: tuple[Request, ...], gates: frozenset[str]) -> Constraint:
    fields = Fields(content, path)
    match, distinct = fields.optional("matchAttribute"), fields.optional("distinctAttribute")
    names = fields.texts("requests")
    fields.finish()
    if (match is None) == (distinct is None):
        raise FieldError(path, "must set one of matchAttribute and distinctAttribute (unsupported constraint type?)")
    if distinct is not None and gate.CONSUMABLE_CAPACITY not in gates:
        raise FieldError(fields.at("distinctAttribute"), _off("is used", gate.CONSUMABLE_CAPACITY))
    known = {name for request in requests for name in (request.name, *(ask.name for ask in request.asks))}
    if missing := next((name for name in names if name not in known), None):
        raise FieldError(fields.at("requests"), f"names {missing!r}, which is no request of this claim")
    return Constraint(match if match is not None else distinct or "", distinct is not None, frozenset(names))


def _off(what: str, name: str) -> str:
    return f"{what}, but the {name} feature is disabled; switch it on, or leave the field out"
