"""Verdicts of selectors: computed once for all devices that agree in what is read, and the same as one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from devalloc_solver.dialects.resource_k8s.decode import read_slice
from devalloc_solver.dialects.resource_k8s.device_properties import DeviceReader, make_snapshot
from devalloc_solver.dialects.resource_k8s.feature_gates import DEFAULT_GATES
from devalloc_solver.dialects.resource_k8s.pools import PoolStatus, ResourcePool
from devalloc_solver.dialects.resource_k8s.published_devices import PublishedDevice
from devalloc_solver.dialects.resource_k8s.selectors import selector_language
from devalloc_solver.dra import AllocationError, allocate
from devalloc_solver.eligibility.judge import MAX_EXHAUSTED, Judge
from devalloc_solver.problem.snapshot import Device
from tests.support.dra_builders import claim, device, device_class, request, slice_


def devices(*content: dict[str, Any]) -> Sequence[Device]:
    content_slice = read_slice(slice_("s", content))
    pool = ResourcePool("gpu.io", "p", 1, PoolStatus.COMPLETE, "", (content_slice,), (), {})
    offers = [
        PublishedDevice(i, pool, content_slice, one, one.allow_multiple, frozenset())
        for i, one in enumerate(content_slice.devices)
    ]
    return make_snapshot(offers, (), DeviceReader(DEFAULT_GATES)).devices


def verdicts(expression: str, *content: dict[str, Any]) -> list[bool | str]:
    judge = Judge(selector_language(DEFAULT_GATES))
    return [judge.verdict(expression, one) for one in devices(*content)]


VALUES: list[object] = [
    1,
    True,
    "1",
    0,
    False,
    [1],
    [1, 2],
    {"bools": [True]},
    {"version": "1.0.0"},
    {"strings": ["1"]},
    {"versions": ["1.0.0"]},
]


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes['gpu.io'].x == 1",
        "device.attributes['gpu.io'].x == true",
        "device.attributes['gpu.io'].x == '1'",
        "1 in device.attributes['gpu.io'].x",
        "type(device.attributes['gpu.io'].x) == bool",
        "has(device.attributes['gpu.io'].x)",
        "device.capacity['gpu.io'].m.compareTo(quantity('1Ki')) == 0",
        "device.allowMultipleAllocations",
    ],
)
def test_what_was_computed_for_one_device_is_never_taken_for_another_that_differs(expression: str) -> None:
    """Python takes True for 1 and 1 for 1.0; selectors do not."""
    content = [device(f"d{i}", {"x": value}) for i, value in enumerate(VALUES)]
    content += [device("c1", capacity={"m": "1Ki"}), device("c2", capacity={"m": "1024"}, shared=True), device("c3")]

    for order in (content, content[::-1]):
        together = dict(zip((one["name"] for one in order), verdicts(expression, *order), strict=True))
        alone = {one["name"]: verdicts(expression, one)[0] for one in order}
        assert together == alone


def test_an_attribute_that_cannot_be_read_spoils_every_selector() -> None:
    beyond = str(2**64)

    verdict_list = [
        verdicts("true", device("d", {"odd": odd}))[0]
        for odd in ({}, {"version": "1"}, {"versions": ["1.0.0", "x"]}, {"version": f"{beyond}.0.0"}, {"future": 1})
    ]

    assert [str(one).split(":")[0] for one in verdict_list] == ["attribute odd"] * 5
    assert verdicts("true", device("d", {"fine": {"version": f"1.0.0+{beyond}"}})) == [True]


def test_an_expression_that_is_too_expensive_is_given_up_after_a_few_devices() -> None:
    letters = "[" + ",".join(f"'{letter}'" for letter in "abcdefghijklmnopqrst") + "]"
    costly = "a + b + c + d + e + device.attributes['gpu.io'].x != ''"
    for name in "edcba":
        costly = f"{letters}.all({name}, {costly})"

    verdict_list = verdicts(costly, *(device(f"d{i}", {"x": str(i)}) for i in range(MAX_EXHAUSTED + 3)))

    assert all("not evaluated" in str(one) for one in verdict_list[MAX_EXHAUSTED:])
    assert not any("not evaluated: the expression was too" in str(one) for one in verdict_list[:MAX_EXHAUSTED])


def test_what_does_not_compile_says_where_it_stands() -> None:
    with pytest.raises(AllocationError, match=r"class x: selector #0: CEL compile error: .*; correct the expression"):
        allocate("n", [claim(request("r", class_name="x"))], [device_class("x", "1 +")], [slice_("s", [device("d")])])


def test_names_with_and_without_domain_are_one_attribute_and_the_full_name_counts() -> None:
    content = [device("d", dict(order)) for order in itertools.permutations([("x", 1), ("gpu.io/x", 2)])]

    assert verdicts("device.attributes['gpu.io'].x == 2", *content) == [True, True]
