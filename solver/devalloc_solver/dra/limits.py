"""What the API server refuses and an allocator would take: sizes of lists, and names that mean two things.

``allocate`` answers such objects as upstream's allocator does. Whoever plans for a cluster is told, since the object
would never get there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devalloc.api.quantity import type_name
from devalloc_solver.dra.fields import FieldError
from devalloc_solver.dra.objects import Claim, Class, Constraint, Request, Slice

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


def check_claim(claim: Claim) -> None:
    """Raises FieldError for a claim that the API server refuses."""
    path = "spec.devices"
    _at_most(claim.requests, MOST_REQUESTS, f"{path}.requests")
    _at_most(claim.constraints, MOST_CONSTRAINTS, f"{path}.constraints")
    _at_most(claim.config, MOST_CONFIGS, f"{path}.config")
    _once([request.name for request in claim.requests], f"{path}.requests", "requests")
    for number, constraint in enumerate(claim.constraints):
        _check_name(constraint, f"{path}.constraints[{number}]")
    for number, request in enumerate(claim.requests):
        _check_request(request, f"{path}.requests[{number}]")
    names = {name for request in claim.requests for name in (request.name, *(ask.name for ask in request.asks))}
    for number, config in enumerate(claim.config):
        _check_names(config, names, f"{path}.config[{number}].requests")
        _check_config(config, f"{path}.config[{number}]")


def _check_name(constraint: Constraint, path: str) -> None:
    """Upstream's validation wants a domain before the identifier: a constraint may be about several drivers."""
    domain, slash, identifier = constraint.attribute.partition("/")
    if not (domain and slash and identifier):
        field = "distinctAttribute" if constraint.distinct else "matchAttribute"
        told = f"{constraint.attribute!r} is not a qualified name: write its domain too, such as"
        raise FieldError(f"{path}.{field}", f"{told} resource.kubernetes.io/pcieRoot or <driver>/<attribute>")


def _check_request(request: Request, path: str) -> None:
    if request.is_list:
        _at_most(request.asks, MOST_CHOICES, f"{path}.firstAvailable")
        _once([ask.name for ask in request.asks], f"{path}.firstAvailable", "subrequests")
    for ask in request.asks:
        _check_selectors(ask.selectors, ask.path)
        _at_most(ask.tolerations, MOST_TOLERATIONS, f"{ask.path}.tolerations")


def _check_names(config: Mapping[str, Any], names: Iterable[str], path: str) -> None:
    missing = next((name for name in config.get("requests") or () if name not in names), None)
    if missing is not None:
        raise FieldError(path, f"names {missing!r}, which is no request of this claim")


def _check_config(config: Mapping[str, Any], path: str) -> None:
    opaque = config.get("opaque")
    if opaque is None:
        raise FieldError(f"{path}.opaque", "is missing: it is the only kind of configuration")
    driver, parameters = opaque.get("driver"), opaque.get("parameters")
    if driver is None or driver == "":
        raise FieldError(f"{path}.opaque.driver", "is missing: name the driver that the parameters are for")
    if not isinstance(driver, str) or len(driver) > MOST_DRIVER or not _DRIVER.fullmatch(driver.lower()):
        told = repr(driver) if isinstance(driver, str) else type_name(driver)
        wanted = f"must be the name of a driver, a DNS subdomain such as gpu.example.com of at most {MOST_DRIVER}"
        raise FieldError(f"{path}.opaque.driver", f"{wanted} characters, not {told[:80]}")
    where = f"{path}.opaque.parameters"
    if parameters is None:
        raise FieldError(where, "is missing: write {} where the driver needs none")
    if not isinstance(parameters, Mapping):
        raise FieldError(where, f"must be an object, not {type_name(parameters)}")
    # That it is JSON was seen when it was read.
    text = json.dumps(parameters, ensure_ascii=False, separators=(",", ":"))
    if (size := len(text.encode())) > MOST_PARAMETERS:
        raise FieldError(where, f"has {size} bytes, and the API server takes at most {MOST_PARAMETERS}; shorten it")


def check_class(found: Class) -> None:
    """Raises FieldError for a class that the API server refuses."""
    _check_selectors(found.selectors, "spec")
    _at_most(found.config, MOST_CONFIGS, "spec.config")
    for number, config in enumerate(found.config):
        _check_config(config, f"spec.config[{number}]")


def _check_selectors(selectors: Sequence[str], path: str) -> None:
    _at_most(selectors, MOST_SELECTORS, f"{path}.selectors")
    for number, expression in enumerate(selectors):
        if len(expression) > MOST_EXPRESSION:
            told = f"has {len(expression)} characters, and the API server takes at most {MOST_EXPRESSION}; shorten it"
            raise FieldError(f"{path}.selectors[{number}].cel.expression", told)


def check_slice(found: Slice) -> None:
    """Raises FieldError for a slice that the API server refuses."""
    _at_most(found.devices, MOST_DEVICES, "spec.devices")
    _at_most(found.counter_sets, MOST_COUNTER_SETS, "spec.sharedCounters")
    for number, (_, counters) in enumerate(found.counter_sets):
        _at_most(counters, MOST_COUNTERS, f"spec.sharedCounters[{number}].counters")
    for number, device in enumerate(found.devices):
        path = f"spec.devices[{number}]"
        _at_most([*device.attributes, *device.capacity], MOST_PROPERTIES, f"{path}.attributes and capacity")
        _at_most(device.taints, MOST_TAINTS, f"{path}.taints")
        _at_most(device.consumes, MOST_CONSUMPTIONS, f"{path}.consumesCounters")


def _at_most(found: Sequence[object] | Mapping[str, object], most: int, path: str) -> None:
    if len(found) > most:
        raise FieldError(path, f"has {len(found)} entries, and the API server takes at most {most}; split it")


def _once(names: Sequence[str], path: str, what: str) -> None:
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise FieldError(path, f"has two {what} named {twice.rpartition('/')[2]!r}; rename one")
