"""Claims are read strictly: what is unknown, contradictory or switched off is an error that names it (settled D3)."""

from __future__ import annotations

from random import Random
from typing import Annotated, Any

import pytest
from pydantic import PlainValidator, TypeAdapter, ValidationError

from devalloc_solver.dialects.resource_k8s import decode, slices
from devalloc_solver.dialects.resource_k8s.fields import FieldError, Text
from devalloc_solver.dialects.resource_k8s.manifests import check_unique
from devalloc_solver.dialects.resource_k8s.slices import (
    DeviceAttribute,
    SliceDevice,
    read_attribute,
    share_attributes,
)
from devalloc_solver.dra import AllocationError
from tests.support.dra_builders import answer, ask, claim, devices, first_of, request, slice_

SLICE = slice_("s", devices("d1", "d2"))
OFF: list[str] = []


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (claim(request(class_name="")), "request r: spec.devices.requests[0].exactly.deviceClassName is missing"),
        (claim(request(class_name="gone")), "could not retrieve device class gone"),
        (claim(request(allocationMode="")), "unsupported count mode ''"),
        (claim(request(allocationMode="Some")), "unsupported count mode 'Some'"),
        (claim(request(count=0)), "count must be greater than zero"),
        (claim(request(count=-1)), "count must be greater than zero"),
        (claim(request(count=2**63)), "within 64 bits"),
        (claim(request(selectors=[{}])), "selectors[0] has no CEL expression"),
        (claim(request(selectors=[{"regex": "x"}])), "selectors[0].regex is not a known field"),
        (claim(request(future=1)), "exactly.future is not a known field"),
        (claim({"name": "r", "deviceClassName": "any"}), "deviceClassName: move these fields below `exactly`"),
        (claim({"name": "r", "exactly": ask(), "firstAvailable": [{"name": "s", **ask()}]}), "both exactly and"),
        (claim(request(), constraints=[{}]), "constraints[0] must set one of"),
        (claim(request(), constraints=[{"futureAttribute": "a/b"}]), "constraints[0].futureAttribute is not"),
        (claim(request(), constraints=[{"matchAttribute": "a/b", "distinctAttribute": "a/b"}]), "must set one of"),
        (
            claim(request(), constraints=[{"matchAttribute": "a/b", "requests": ["x"]}]),
            "names 'x', but this claim has no",
        ),
        (claim(request(amounts={"m": "-1"})), "capacity.requests['m'] is negative"),
        (claim(request(amounts={"m": "1GB"})), "unknown suffix 'GB'"),
        (claim(request(tolerations=[{"operator": "Like"}])), "tolerations[0].operator 'Like' is not supported"),
        (claim(request(derivedAttributes=[{"name": "a/b", "expression": "1"}])), "DRADerivedAttributes"),
        (claim(request(count="1")), "count must be a whole number, not a string"),
        ({**claim(request()), "apiVersion": "resource.k8s.io/v1alpha3"}, "'resource.k8s.io/v1alpha3' is not supported"),
    ],
)
def test_an_error_names_claim_request_field_and_what_is_wrong(wanted: Any, message: str) -> None:
    with pytest.raises(AllocationError) as caught:
        answer(wanted, SLICE)

    assert str(caught.value).startswith("claim default/c")
    assert message in str(caught.value)
    assert not caught.value.node_local


@pytest.mark.parametrize(
    ("wanted", "gate"),
    [
        (claim(request(adminAccess=True)), "DRAAdminAccess"),
        (claim(request(adminAccess=False)), "DRAAdminAccess"),
        (claim(first_of("r", ask())), "DRAPrioritizedList"),
        (claim(request(amounts={"m": "1"})), "DRAConsumableCapacity"),
        (claim(request(), distinct="a/b"), "DRAConsumableCapacity"),
    ],
)
def test_what_is_switched_off_is_an_error_that_names_the_gate(wanted: Any, gate: str) -> None:
    with pytest.raises(AllocationError, match=gate):
        answer(wanted, SLICE, features=OFF)


def test_expressions_are_compiled_even_if_no_device_would_be_judged_by_them() -> None:
    with pytest.raises(AllocationError, match="request r: selector #0: CEL compile error"):
        answer(claim(request("r", 1, "noSuchVariable")))


def test_a_class_is_read_only_when_it_is_named() -> None:
    broken = {"metadata": {"name": "broken"}, "spec": {"future": 1}}

    assert answer(claim(request()), SLICE, classes=[{"metadata": {"name": "any"}}, broken]) is not None
    with pytest.raises(AllocationError, match=r"class broken: spec\.future is not a known field"):
        answer(claim(request(class_name="broken")), SLICE, classes=[broken])


PARTS: dict[str, list[Any]] = {
    "name": ["d", "d", "", None, 1, "ü", "\ud800"],
    "attributes": [
        None,
        {},
        {"x": {"string": "a"}, "d/y": {"int": 1}},
        {"x": {"bool": True}, "v": {"version": "1.0.0"}},
        {"v": {"version": "one"}},
        {"x": {"int": True}},
        {"x": {"int": 2**70}},
        {"x": {"string": "\ud800"}},
        {"x": {"strings": ["a"]}},
        {"x": {"string": "a", "int": 1}},
        {"x": None},
        {1: {"string": "a"}},
        [],
    ],
    "capacity": [
        None,
        {"m": {"value": "80Gi"}},
        {"m": {"value": 1}},
        {"m": {"value": "1GB"}},
        {"m": {"value": "1Gi", "requestPolicy": {"default": "1Gi"}}},
        [],
    ],
    "consumesCounters": [
        None,
        [],
        [{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
        [{"counterSet": "s", "counters": {"c": {"value": "x"}}}],
        [{"counterSet": "s", "counters": {}, "compatibilityGroups": ["g"]}],
        {},
    ],
    "taints": [None, [{"key": "k", "effect": "NoSchedule"}]],
    "future": [None, 1],
}


def test_attributes_of_the_usual_form_are_read_as_all_others() -> None:
    read = TypeAdapter(dict[Text, Annotated[DeviceAttribute, PlainValidator(read_attribute)]]).validate_python
    others = 0

    def read_others(content: Any) -> dict[str, DeviceAttribute]:
        nonlocal others
        others += 1
        return read(content)

    for content in PARTS["attributes"]:
        try:
            expected: object = read(content)
        except ValidationError as error:
            expected = error.errors(include_url=False)
        try:
            attributes: object = share_attributes(content, read_others)
        except ValidationError as error:
            attributes = error.errors(include_url=False)
        assert attributes == expected, content
    assert 0 < others < len(PARTS["attributes"])


def test_parts_that_devices_share_are_read_as_all_others() -> None:
    random, equal, errors = Random(1), 0, 0
    for _ in range(3000):
        likely = random.random() < 0.5
        content = {
            name: values[random.randrange(min(4, len(values)) if likely else len(values))]
            for name, values in PARTS.items()
            if name == "name" or random.random() < (0.7 if name in ("attributes", "capacity") else 0.3)
        }
        in_slice = {"spec": {"driver": "d", "pool": {"name": "p"}, "devices": [content, content]}}
        slices._capacities.clear()
        slices._consumption.clear()
        slices._attributes.clear()
        try:
            expected: object = described(decode.read(SliceDevice, content, "spec.devices[0]"))
        except FieldError as error:
            expected = str(error)
        try:
            actual: list[object] = [described(device) for device in decode.read_slice(in_slice).devices]
        except FieldError as error:
            actual = [str(error)] * 2
            errors += 1
        assert actual == [expected] * 2, content
        equal += 1
    assert equal - errors > 200
    assert errors > 200


def test_devices_are_equal_only_to_themselves() -> None:
    one, other = decode.read_slice(slice_("s", devices("d1", "d2"))).devices

    assert one != other
    assert len({one, other, one}) == 2


def described(device: Any) -> list[object]:
    values = [(name, getattr(device, name)) for name in device.__slots__ if name != "consumes"]
    return [*values, [(one.counter_set, one.counters, one.groups) for one in device.consumes]]


class _Compared(str):
    """A name that counts how often it is compared."""

    times = 0

    def __eq__(self, other: object) -> bool:
        _Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_name_is_not_compared_with_each_other_one() -> None:
    check_unique([_Compared(f"x{number}") for number in range(1000)], "claims", "entries")
    assert _Compared.times < 10_000
    with pytest.raises(FieldError, match="has two entries named 'x'; rename one"):
        check_unique(["x", "y", "x"], "claims", "entries")
