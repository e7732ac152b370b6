"""CEL selectors of resource.k8s.io: what they read and see of devices as these were published."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any

from devalloc.api.semver import SemVer
from devalloc_solver.cel.kubernetes import COST_LIMIT, CelDevice, DeviceField, Program, compile
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice, find_qualified, published_device
from devalloc_solver.dialects.resource_k8s.slices import DeviceAttribute, UnusualAttribute
from devalloc_solver.eligibility.predicate import Language, Literals, Operand, Predicate
from devalloc_solver.problem.snapshot import Device

compile("true", DEFAULT_GATES)  # loads the CEL runtime together with the dialect, so that no claim has to wait for it


MAX_VERDICTS = 200_000
"""Verdicts of an expression that are cached; when there are more, all are forgotten."""


def selector_language(gates: frozenset[str]) -> Language:
    """Make the language of selectors under a set of feature gates."""
    return Language(
        partial(_compile, gates=gates),
        "skip",
        most=COST_LIMIT,
        max_verdicts=MAX_VERDICTS,
        fault=_unreadable_attribute,
        is_certain=_is_certain,
    )


def _compile(text: str, gates: frozenset[str]) -> Predicate:
    program = compile(text, gates)
    only = next(iter(_names(program.reads) or ()), None) if len(program.reads or ()) == 1 else None
    operands = tuple(map(_operand, program.operands or (program,)))
    return Predicate(text, operands, _names_read(program), only, partial(_literals, program), program.drivers)


def _names(fields: Iterable[DeviceField] | None) -> frozenset[str] | None:
    """The full names of the attributes among parts of a device."""
    return None if fields is None else frozenset(f"{one.domain}/{one.id}" for one in fields if one.kind == "attribute")


def _names_read(program: Program) -> frozenset[str] | None:
    """The attributes that an expression reads, those of lists also in their order; None if that is not known."""
    names = _names(program.reads)
    return None if names is None else names | {order_attribute(name) for name in names}


def order_attribute(name: str) -> str:
    """The attribute under which the members of a list attribute stand in their order."""
    return f"order of {name}"


def has_type(device: Device, name: str, values: Iterable[tuple[str, object]]) -> bool:
    """Whether the attribute of a device is a single value of the type of these."""
    value = device.attributes.get(name)
    return isinstance(value, tuple) and {value[0]} == {type_ for type_, _ in values}


def _is_certain(device: Device, name: str, values: Iterable[tuple[str, object]]) -> bool:
    """Whether to compare an attribute with values is false, not an error, for devices that have another one."""
    return has_type(device, name, values) and not published_device(device).device.has_fault


_TYPES = {str: "string", int: "int", bool: "bool"}


def _literals(program: Program) -> Literals:
    return tuple(
        (f"{one.domain}/{one.id}", frozenset((_TYPES[type(value)], value) for value in one.values))
        for one in program.equalities
    )


def _operand(program: Program) -> Operand:
    reads, own = program.reads, partial(Operand, program, program.matches, program.cost)
    texts = _names(program.safe_texts)
    if reads is None:
        return own(attrgetter("source.device"), lambda device: cel_device(published_device(device)), None, None, texts)
    fields = sorted(reads, key=attrgetter("kind", "domain", "id"))
    readers = [_reader(read) for read in fields]
    key: _Reader = readers[0] if len(readers) == 1 else lambda device: tuple([read(device) for read in readers])
    only = fields[0] if len(fields) == 1 and fields[0].kind == "attribute" else None
    by_key = None if fields and only is None else _views_of_one(only)
    return own(key, partial(_device_of, fields), by_key, _names_read(program), texts)


def _views_of_one(attribute: DeviceField | None) -> Callable[[Any], CelDevice]:
    """What shows a device by its one attribute, or a device with nothing; the same object whenever it is asked."""
    values: dict[str, Any] = {}
    there = CelDevice("", {} if attribute is None else {attribute.domain: values}, {})
    absent = CelDevice("", {}, {})

    def view(value: DeviceAttribute | None) -> CelDevice:
        if attribute is None or value is None:
            return absent
        values[attribute.id] = _value(value)
        return there

    return view


_Reader = Callable[[Device], object]


def _reader(read: DeviceField) -> _Reader:
    """How to read one part of a device, such that equal parts are of one type."""
    if read.kind == "driver":
        return attrgetter("source.pool.driver")
    if read.kind == "allow_multiple":
        return attrgetter("source.device.allow_multiple")
    name = f"{read.domain}/{read.id}"
    if read.kind == "capacity":

        def capacity(device: Device) -> object:
            offer = published_device(device)
            there = find_qualified(offer, offer.device.capacity, name)
            return None if there is None else (there.value.nano, there.value.format)

        return capacity
    domain, short = read.domain, read.id

    def attribute(device: Device) -> object:
        attributes = device.source.device.attributes
        value = attributes.get(name)
        return attributes.get(short) if value is None and device.source.pool.driver == domain else value

    return attribute


def _device_of(reads: Sequence[DeviceField], device: Device) -> CelDevice:
    """A device of which selectors see no more than some parts."""
    offer = published_device(device)
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, dict[str, Any]] = {}
    for read in reads:
        name = f"{read.domain}/{read.id}"
        if read.kind == "attribute":
            attribute = find_qualified(offer, offer.device.attributes, name)
            if attribute is not None:
                attributes.setdefault(read.domain, {})[read.id] = _value(attribute)
        elif read.kind == "capacity":
            amount = find_qualified(offer, offer.device.capacity, name)
            if amount is not None:
                capacity.setdefault(read.domain, {})[read.id] = amount.value.quantity
    return CelDevice(offer.pool.driver, attributes, capacity, offer.device.allow_multiple)


def _unreadable_attribute(device: Device) -> str | None:
    """Why no selector can read a device, or None."""
    offer = published_device(device)
    return str(cel_device(offer)) if offer.device.has_fault else None


def cel_device(offer: PublishedDevice) -> CelDevice | str:
    """A device as selectors see it, or which attribute cannot be read."""
    device, driver = offer.device, offer.pool.driver
    attributes: dict[str, dict[str, Any]] = {}
    for name, domain, identifier in _by_domain(tuple(device.attributes), driver):
        attribute = device.attributes[name]
        if isinstance(attribute, UnusualAttribute) and attribute.fault is not None:
            return f"attribute {name}: {attribute.fault}"
        attributes.setdefault(domain, {})[identifier] = _value(attribute)
    capacity: dict[str, dict[str, Any]] = {}
    for name, domain, identifier in _by_domain(tuple(device.capacity), driver):
        capacity.setdefault(domain, {})[identifier] = device.capacity[name].value.quantity
    return CelDevice(driver, attributes, capacity, device.allow_multiple)


@lru_cache(maxsize=1024)
def _by_domain(names: tuple[str, ...], driver: str) -> Sequence[tuple[str, str, str]]:
    """Names with their domains and identifiers: many devices have the same. Full names come after short ones: if a
    device has both, the full name counts, as in constraints."""
    ordered = sorted(names, key=lambda name: ("/" in name, name))
    return [(name, *_split(name, driver)) for name in ordered]


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _value(attribute: DeviceAttribute) -> Any:
    if isinstance(attribute, UnusualAttribute):
        return tuple(_value((attribute.kind, value)) for value in attribute.values)
    kind, value = attribute
    return SemVer(value) if kind == "version" else value
