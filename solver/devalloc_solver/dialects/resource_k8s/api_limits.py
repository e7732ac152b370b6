"""Validation that the API server does and an allocator does not: sizes of lists, and ambiguous names.

``allocate`` answers such objects as upstream's allocator does. Planning for a cluster reports them, because the API
server would refuse the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.quantity import type_name
from devalloc_solver.dialects.resource_k8s.fields import FieldError
from devalloc_solver.dialects.resource_k8s.objects import (
    DeviceConstraint,
    DeviceRequest,
    ResourceClaim,
    ResourceDeviceClass,
    ResourceSlice,
)

MOST_REQUESTS = 32
MOST_CONSTRAINTS = 32
MOST_CONFIGS = 32
MOST_SELECTORS = 32
MOST_CHOICES = 8
MOST_TOLERATIONS = 16
MOST_TAINTS = 16
MOST_DEVICES = 128
MOST_PROPERTIES = 32
"""attributes and capacities of a device together"""
MOST_COUNTER_SETS = 8
MOST_COUNTERS = 32
MOST_CONSUMPTIONS = 2
MOST_EXPRESSION = 10 * 1024
"""characters of a selector"""
MOST_DRIVER = 63
"""characters of a driver's name"""
MOST_PARAMETERS = 10 * 1024
"""bytes of opaque parameters, as JSON"""

_DRIVER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def check_claim(claim: ResourceClaim) -> None:
    """Raises FieldError for a claim that the API server refuses."""
    path = "spec.devices"
    _check_length(claim.requests, MOST_REQUESTS, f"{path}.requests")
    _check_length(claim.constraints, MOST_CONSTRAINTS, f"{path}.constraints")
    _check_length(claim.config, MOST_CONFIGS, f"{path}.config")
    _check_unique([request.name for request in claim.requests], f"{path}.requests", "requests")
    for number, constraint in enumerate(claim.constraints):
        _check_name(constraint, f"{path}.constraints[{number}]")
    for number, request in enumerate(claim.requests):
        _check_request(request, f"{path}.requests[{number}]")
    names = {name for request in claim.requests for name in (request.name, *(ask.name for ask in request.asks))}
    for number, config in enumerate(claim.config):
        _check_names(config, names, f"{path}.config[{number}].requests")
        _check_config(config, f"{path}.config[{number}]")


def _check_name(constraint: DeviceConstraint, path: str) -> None:
    """Upstream's validation wants a domain before the identifier: a constraint may be about several drivers."""
    domain, slash, identifier = constraint.attribute.partition("/")
    if not (domain and slash and identifier):
        field = "distinctAttribute" if constraint.distinct else "matchAttribute"
        message = f"{constraint.attribute!r} is not a qualified name: write its domain too, such as"
        raise FieldError(f"{path}.{field}", f"{message} resource.kubernetes.io/pcieRoot or <driver>/<attribute>")


def _check_request(request: DeviceRequest, path: str) -> None:
    if request.is_list:
        _check_length(request.asks, MOST_CHOICES, f"{path}.firstAvailable")
        _check_unique([ask.name for ask in request.asks], f"{path}.firstAvailable", "subrequests")
    for ask in request.asks:
        _check_selectors(ask.selectors, ask.path)
        _check_length(ask.tolerations, MOST_TOLERATIONS, f"{ask.path}.tolerations")


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
    if not isinstance(driver, str) or len(driver) > MOST_DRIVER or not _DRIVER.fullmatch(driver.lower()):
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
    _check_length(device_class.config, MOST_CONFIGS, "spec.config")
    for number, config in enumerate(device_class.config):
        _check_config(config, f"spec.config[{number}]")


def _check_selectors(selectors: Sequence[str], path: str) -> None:
    _check_length(selectors, MOST_SELECTORS, f"{path}.selectors")
    for number, expression in enumerate(selectors):
        if len(expression) > MOST_EXPRESSION:
            text = f"has {len(expression)} characters, and the API server accepts at most {MOST_EXPRESSION}; shorten it"
            raise FieldError(f"{path}.selectors[{number}].cel.expression", text)


def check_slice(resource_slice: ResourceSlice) -> None:
    """Raises FieldError for a slice that the API server refuses."""
    _check_length(resource_slice.devices, MOST_DEVICES, "spec.devices")
    _check_length(resource_slice.counter_sets, MOST_COUNTER_SETS, "spec.sharedCounters")
    for number, (_, counters) in enumerate(resource_slice.counter_sets):
        _check_length(counters, MOST_COUNTERS, f"spec.sharedCounters[{number}].counters")
    for number, device in enumerate(resource_slice.devices):
        path = f"spec.devices[{number}]"
        _check_length([*device.attributes, *device.capacity], MOST_PROPERTIES, f"{path}.attributes and capacity")
        _check_length(device.taints, MOST_TAINTS, f"{path}.taints")
        _check_length(device.consumes, MOST_CONSUMPTIONS, f"{path}.consumesCounters")


def _check_length(entries: Sequence[object] | Mapping[str, object], most: int, path: str) -> None:
    if len(entries) > most:
        raise FieldError(path, f"has {len(entries)} entries, and the API server accepts at most {most}; split it")


def _check_unique(names: Sequence[str], path: str, what: str) -> None:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise FieldError(path, f"has two {what} named {twice.rpartition('/')[2]!r}; rename one")
