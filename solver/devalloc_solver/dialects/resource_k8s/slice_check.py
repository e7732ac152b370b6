"""What the API server refuses of ResourceSlices, as Kubernetes 1.37 does (pkg/apis/resource/validation).

Such a slice is used all the same if it can be read: in files it may be what a driver is about to publish.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from devalloc.api.fields import is_label
from devalloc_solver.dialects.resource_k8s.fields import Amount, FieldError
from devalloc_solver.dialects.resource_k8s.slices import (
    CapacityRange,
    CapacityRequestPolicy,
    ResourceSlice,
    SliceDevice,
    UnusualAttribute,
)

MOST_TAINTS = 16
MOST_DEVICES = 128
MOST_SPECIAL_DEVICES = 64
"""devices of a slice in which any has taints or draws counters"""
MOST_PROPERTIES = 32
"""attributes and capacities of a device together"""
MOST_COUNTER_SETS = 8
MOST_COUNTERS = 32
MOST_CONSUMPTIONS = 2
MOST_VALUES = 10
"""valid values of a policy"""
MOST_TEXT = 64
"""characters of an attribute's string or version"""

_is_label = lru_cache(maxsize=4096)(is_label)


def check_length(entries: Sequence[object] | Mapping[str, object], most: int, path: str) -> None:
    """Raises FieldError for too many entries."""
    if len(entries) > most:
        raise FieldError(path, f"has {len(entries)} entries, and the API server accepts at most {most}; split it")


def find_refusal(resource_slice: ResourceSlice) -> FieldError | None:
    """Why the API server refuses a slice; None if it does not."""
    try:
        check_slice(resource_slice)
        return None
    except FieldError as error:
        return error


def check_slice(resource_slice: ResourceSlice) -> None:
    """Raises FieldError for a slice that the API server refuses."""
    spec = resource_slice.spec
    is_special = any(device.taints or device.consumes for device in spec.devices)
    check_length(spec.devices, MOST_SPECIAL_DEVICES if is_special else MOST_DEVICES, "spec.devices")
    check_length(spec.counter_sets, MOST_COUNTER_SETS, "spec.sharedCounters")
    for number, own in enumerate(spec.counter_sets):
        _check_counters(own.counters, f"spec.sharedCounters[{number}].counters")
    for number, device in enumerate(spec.devices):
        _check_device(device, number)


def _check_counters(counters: Mapping[str, object], path: str) -> None:
    if not counters:
        raise FieldError(path, "is missing or empty, and the API server wants at least one counter; name them")
    check_length(counters, MOST_COUNTERS, path)


def _check_device(device: SliceDevice, place: int) -> None:
    # A fleet has many thousands, and hardly any is refused: the path of one is written when it is.
    if not _is_label(device.name):
        wanted = "a DNS label: lower case, digits and '-', at most 63 characters"
        message = f"{device.name[:80]!r} is refused by the API server; it must be {wanted}"
        raise FieldError(f"spec.devices[{place}].name", message)
    if len(device.attributes) + len(device.capacity) > MOST_PROPERTIES:
        where = f"spec.devices[{place}].attributes and capacity"
        check_length([*device.attributes, *device.capacity], MOST_PROPERTIES, where)
    for attribute, value in device.attributes.items():
        if type(value) is not tuple or (value[0] == "string" and len(value[1]) > MOST_TEXT):
            _check_attribute(device, attribute, f"spec.devices[{place}].attributes[{attribute!r}]")
    if len(device.taints) > MOST_TAINTS:
        check_length(device.taints, MOST_TAINTS, f"spec.devices[{place}].taints")
    if len(device.consumes) > MOST_CONSUMPTIONS:
        check_length(device.consumes, MOST_CONSUMPTIONS, f"spec.devices[{place}].consumesCounters")
    for number, use in enumerate(device.consumes):
        if not 0 < len(use.counters) <= MOST_COUNTERS:
            _check_counters(use.counters, f"spec.devices[{place}].consumesCounters[{number}].counters")
    for name, capacity in device.capacity.items():
        if capacity.policy is not None:
            where = f"spec.devices[{place}].capacity[{name!r}].requestPolicy"
            if not device.allow_multiple:
                raise FieldError(where, "needs allowMultipleAllocations: true; the API server refuses it without")
            for part, message in _policy_faults(capacity.value, capacity.policy):
                raise FieldError(f"{where}.{part}", message)


def _check_attribute(device: SliceDevice, name: str, path: str) -> None:
    value = device.attributes[name]
    kind, content = value.typed if isinstance(value, UnusualAttribute) else value
    texts = content if isinstance(content, tuple) else (content,)
    if (long := next((text for text in texts if isinstance(text, str) and len(text) > MOST_TEXT), None)) is not None:
        what = f"has {len(long)} characters, and the API server accepts at most {MOST_TEXT}; shorten it"
        raise FieldError(f"{path}.{kind}", what)
    fault = value.fault if isinstance(value, UnusualAttribute) else None
    if fault is not None and kind != "none":  # a value of no kind may be of a later API
        raise FieldError(path, f"{fault}; the API server refuses the slice, and selectors that read it fail")


def _policy_faults(value: Amount, policy: CapacityRequestPolicy) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it)"""
    if policy.values and policy.range is not None:
        yield "validRange", "and validValues cannot both be set; keep one"
    named = "validValues" if policy.values else "validRange" if policy.range is not None else ""
    if named and policy.default is None:
        yield "default", f"is missing: the API server wants it beside {named}"
    default = policy.default
    if default is None:
        return
    if policy.values:
        yield from _values_faults(value, policy.values, default)
    elif policy.range is not None:
        yield from _range_faults(value, policy.range, default)


def _values_faults(value: Amount, values: Sequence[Amount], default: Amount) -> Iterator[tuple[str, str]]:
    if len(values) > MOST_VALUES:
        yield "validValues", f"has {len(values)} entries, and the API server accepts at most {MOST_VALUES}"
    if any(first.nano > second.nano for first, second in pairwise(values)):
        yield "validValues", "must be in ascending order"
    if values and max(one.nano for one in values) > value.nano:
        yield "validValues", f"has more than the capacity, {value}"
    if default.nano not in {one.nano for one in values}:
        yield "default", f"{default} is not one of validValues"


def _range_faults(value: Amount, span: CapacityRange, default: Amount) -> Iterator[tuple[str, str]]:
    if span.least.nano > value.nano:
        yield "validRange.min", f"{span.least} is more than the capacity, {value}"
    if span.most is not None and span.most.nano > value.nano:
        yield "validRange.max", f"{span.most} is more than the capacity, {value}"
    if span.most is not None and span.least.nano > span.most.nano:
        yield "validRange.min", f"{span.least} is more than max, {span.most}"
    if default.nano < span.least.nano or (span.most is not None and default.nano > span.most.nano):
        yield "default", f"{default} is outside of validRange"
    if span.step is not None and span.least.nano + span.step.nano > value.nano:
        yield "validRange.step", f"one step above min is more than the capacity, {value}"
    for name, one in (("default", default), ("validRange.max", span.most)):
        if span.step is not None and one is not None and (one.nano - span.least.nano) % span.step.nano:
            yield name, f"{one} is not min and whole steps of {span.step}"
