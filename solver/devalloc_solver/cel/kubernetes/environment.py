"""The environment of selectors: what ``device`` gives, and how values compare in Kubernetes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from devalloc.api.quantity import Quantity
from devalloc_solver.cel import field_access, values
from devalloc_solver.cel.environment import Environment, Run
from devalloc_solver.cel.errors import EvaluationError
from devalloc_solver.cel.kubernetes.reads import PLACES
from devalloc_solver.cel.library import (
    addresses,
    conversions,
    formats,
    formatting,
    lists,
    operators,
    optionals,
    quantities,
    strings,
    times,
    urls,
    versions,
)
from devalloc_solver.cel.library.quantities import CelQuantity
from devalloc_solver.cel.library.strings import PatternBounds, pattern_functions
from devalloc_solver.cel.reads import Place, is_optional, place_of
from devalloc_solver.cel.registry import functions_by_name
from devalloc_solver.cel.syntax_tree import Call, ListOf, Node, Select
from devalloc_solver.cel.values import Frame, MapWithDefault

_EMPTY: dict[str, Any] = {}


def _device_attributes(frame: Frame) -> MapWithDefault:
    """``device.attributes`` as a value."""
    return MapWithDefault({domain: dict(values) for domain, values in frame.device.attributes.items()})


def _device_capacity(frame: Frame) -> MapWithDefault:
    """``device.capacity`` as a value."""
    return MapWithDefault({domain: _amounts(values) for domain, values in frame.device.capacity.items()})


def _amounts(values: Mapping[str, Quantity]) -> dict[str, CelQuantity]:
    return {name: CelQuantity(quantity.nano) for name, quantity in values.items()}


def _reader(place: Place) -> Run | None:
    """How to read a place in the device directly; None for a whole map. A missing identifier is an error."""
    match place.path:
        case ("attribute", domain):
            return lambda frame: dict(frame.device.attributes.get(domain, _EMPTY))
        case ("attribute", domain, name):

            def attribute(frame: Frame) -> Any:
                try:
                    return frame.device.attributes[domain][name]
                except KeyError:
                    raise EvaluationError(f"no such key: {name}") from None

            return attribute
        case ("capacity", domain):
            return lambda frame: _amounts(frame.device.capacity.get(domain, _EMPTY))
        case ("capacity", domain, name):

            def amount(frame: Frame) -> CelQuantity:
                try:
                    return CelQuantity(frame.device.capacity[domain][name].nano)
                except KeyError:
                    raise EvaluationError(f"no such key: {name}") from None

            return amount
    return None


def _direct(node: Node, _: Collection[str]) -> Run | None:
    """How to read a place in the device without going through its maps; None for anything else."""
    match node:
        case Select() | Call(function="_[_]"):
            place = place_of(node, PLACES)
            return None if place is None or is_optional(node) else _reader(place)
        case Call(function="@in", arguments=(_, ListOf(elements=()))):
            return lambda _: False  # nothing is in it, not even what cannot be computed
    return None


PATTERNS = PatternBounds(memory=8 << 20, too_large=40_000, instruction=1)
FUNCTIONS = functions_by_name(
    operators.FUNCTIONS,
    conversions.FUNCTIONS,
    strings.FUNCTIONS,
    formatting.FUNCTIONS,
    lists.FUNCTIONS,
    optionals.FUNCTIONS,
    quantities.FUNCTIONS,
    versions.FUNCTIONS,
    times.FUNCTIONS,
    addresses.FUNCTIONS,
    urls.FUNCTIONS,
    formats.FUNCTIONS,
    pattern_functions(PATTERNS),
    lists.comparing_functions(values.equal_or_false, values.order_keys),
)


@lru_cache(maxsize=2)
def environment(allow_multiple: bool) -> Environment:
    """The environment; ``allow_multiple``: whether a device has the field ``allowMultipleAllocations``."""
    fields: dict[str, Run] = {
        "driver": lambda frame: frame.device.driver,
        "attributes": _device_attributes,
        "capacity": _device_capacity,
        "allowMultipleAllocations": lambda frame: frame.device.allow_multiple,
    }
    variables = {f"device.{name}": read for name, read in fields.items()}
    if not allow_multiple:
        del fields["allowMultipleAllocations"]
    return Environment(
        functions=FUNCTIONS,
        variables={**variables, "device": lambda frame: {name: read(frame) for name, read in fields.items()}},
        direct=_direct,
        equal=values.equal,
        unequal=values.unequal,
        contains=values.contains,
        order_keys=values.order_keys,
        get=field_access.get,
        has=field_access.has,
        map_key=values.map_key,
        unique_keys=False,
        no_overload=values.no_overload,
    )
