"""Slices that the API server refuses are used where they can be read, and a warning says what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from devalloc_solver.dra import solve_manifests
from tests.support.dra_builders import ANY, Manifest, claim, counter_slice, device, request, slice_

RANGE = {"default": "1", "validRange": {"min": "1", "max": "16", "step": "1"}}
VALUES = {"default": "2", "validValues": ["1", "2", "4"]}


def problems(*slices: Manifest) -> list[tuple[str, str]]:
    """(path, message) of what is text of slices."""
    answer = solve_manifests([ANY, *slices])
    assert {one["severity"] for one in answer["problems"]} <= {"warning"}
    return [(one["path"], one["message"]) for one in answer["problems"]]


def shared(policy: Manifest, **fields: Any) -> Manifest:
    capacity = {"cpu": {"value": "16", "requestPolicy": policy}}
    return slice_("s", [device("d", capacity=capacity, **{"shared": True, **fields})])


def test_slices_as_drivers_publish_them_have_no_problems() -> None:
    attributes = {"driverVersion": {"version": "6.19.4"}, "model": "x" * 64, "numa": 0, "roots": ["a", "b"]}
    assert not problems(
        counter_slice("c", {"gpu-0": {"memory": "40Gi"}}, count=2),
        slice_("s", [device("gpu-0", attributes, counters={"gpu-0": {"memory": "40Gi"}})], count=2),
    )
    assert not problems(shared(RANGE))
    assert not problems(shared(VALUES))


@pytest.mark.parametrize(
    ("given", "path", "text"),
    [
        # https://github.com/ROCm/gpu-operator/issues/609
        (
            slice_("s", [device("d", {"driverVersion": {"version": "6.19.14.31400000"}})]),
            "spec.devices[0].attributes['driverVersion']",
            "is not a semantic version: '6.19.14.31400000'",
        ),
        (
            slice_("s", [device("d"), device("e", {"model": "x" * 65})]),
            "spec.devices[1].attributes['model'].string",
            "has 65 characters",
        ),
        # https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/issues/1092
        (counter_slice("s", {"gpu-0": {}}), "spec.sharedCounters[0].counters", "wants at least one counter"),
        # https://github.com/kubernetes-sigs/dra-driver-cpu/issues/305
        (
            shared({"validRange": {"min": "1m", "step": "1m"}}),
            "spec.devices[0].capacity['cpu'].requestPolicy.default",
            "the API server wants it beside validRange",
        ),
        (shared({"validValues": ["1"]}), "spec.devices[0].capacity['cpu'].requestPolicy.default", "beside validValues"),
        (shared({**RANGE, **VALUES}), "spec.devices[0].capacity['cpu'].requestPolicy.validRange", "keep one"),
        (
            shared({**VALUES, "default": "3"}),
            "spec.devices[0].capacity['cpu'].requestPolicy.default",
            "3 is not one of validValues",
        ),
        (
            shared({**VALUES, "validValues": ["2", "1"]}),
            "spec.devices[0].capacity['cpu'].requestPolicy.validValues",
            "ascending",
        ),
        (
            shared({**VALUES, "validValues": ["2", "32"]}),
            "spec.devices[0].capacity['cpu'].requestPolicy.validValues",
            "has more than the capacity, 16",
        ),
        (
            shared({"default": "1", "validRange": {"min": "1", "max": "17"}}),
            "spec.devices[0].capacity['cpu'].requestPolicy.validRange.max",
            "17 is more than the capacity, 16",
        ),
        (
            shared({"default": "20", "validRange": {"min": "20"}}),
            "spec.devices[0].capacity['cpu'].requestPolicy.validRange.min",
            "20 is more than the capacity, 16",
        ),
        (
            shared({"default": "1", "validRange": {"min": "2"}}),
            "spec.devices[0].capacity['cpu'].requestPolicy.default",
            "1 is outside of validRange",
        ),
        (
            shared({"default": "2", "validRange": {"min": "1", "step": "2"}}),
            "spec.devices[0].capacity['cpu'].requestPolicy.default",
            "2 is not min and whole steps of 2",
        ),
        (
            shared({"default": "1", "validRange": {"min": "1", "step": "16"}}),
            "spec.devices[0].capacity['cpu'].requestPolicy.validRange.step",
            "more than the capacity",
        ),
        (
            shared(RANGE, shared=False),
            "spec.devices[0].capacity['cpu'].requestPolicy",
            "needs allowMultipleAllocations: true",
        ),
        (slice_("s", [device("GPU_0")]), "spec.devices[0].name", "it must be a DNS label"),
        (
            slice_(
                "s", [device(f"d{n}", taints=[{"key": "k", "effect": "None"}] if n == 64 else []) for n in range(65)]
            ),
            "spec.devices",
            "accepts at most 64",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_api_server_refuses_is_a_warning(given: Manifest, path: str, text: str) -> None:
    ((where, message),) = problems(given)

    assert where == path
    assert text in message
    assert message.endswith("(the slice is used all the same)")


def tainted(taints: int, devices: int = 1) -> Manifest:
    listed = [{"key": f"k{number}", "effect": "None"} for number in range(taints)]
    return slice_("s", [device(f"d{number}", taints=listed) for number in range(devices)])


@pytest.mark.parametrize(
    ("most", "made"),
    [
        (16, tainted),
        (64, lambda number: tainted(1, number)),
        (128, lambda number: slice_("s", [device(f"d{each}") for each in range(number)])),
        (32, lambda number: slice_("s", [device("d", {f"a{each}": each for each in range(number)})])),
        (8, lambda number: counter_slice("s", {f"set-{each}": {"c": "1"} for each in range(number)})),
        (32, lambda number: counter_slice("s", {"set": {f"c{each}": "1" for each in range(number)}})),
        (10, lambda number: shared({"default": "1", "validValues": [str(each + 1) for each in range(number)]})),
    ],
    ids=["taints", "devices with taints", "devices", "properties", "counter sets", "counters", "values"],
)
def test_a_slice_may_have_as_much_as_the_api_server_accepts(most: int, made: Callable[[int], Manifest]) -> None:
    """The limits of resource.k8s.io/v1."""
    assert not problems(made(most))
    ((_, message),) = problems(made(most + 1))
    assert f"accepts at most {most}" in message


def test_a_device_draws_at_least_one_counter() -> None:
    drawing = device("d") | {"consumesCounters": [{"counterSet": "gpu-0", "counters": {}}]}

    ((where, message),) = problems(
        counter_slice("c", {"gpu-0": {"memory": "40Gi"}}, count=2), slice_("s", [drawing], count=2)
    )

    assert where == "spec.devices[0].consumesCounters[0].counters"
    assert "wants at least one counter" in message


def test_warnings_come_in_the_order_of_names_whatever_that_of_documents_is() -> None:
    def refused(name: str, devices: int) -> Manifest:
        taints = [{"key": "k", "effect": "None"}]
        return slice_(name, [device(f"{name}{number}", taints=taints) for number in range(devices)], count=2)

    first, second = refused("a", 65), refused("b", 66)

    assert problems(first, second) == problems(second, first)
    assert len(problems(first, second)) == 2


def test_such_a_slice_is_used() -> None:
    answer = solve_manifests([ANY, slice_("s", [device("d", {"v": {"version": "1.2.3.4"}})]), claim(request(count=1))])

    assert answer["claims"][0]["allocated"]
