"""A valid claim stays valid however large the fleet is: what expressions cost, operand by operand, in both dialects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import pytest

from devalloc_solver import Fleet, dra, solve_manifests
from devalloc_solver.cel import budget
from devalloc_solver.cel.device_claims import compile as compile_constraints
from devalloc_solver.cel.errors import EvaluationError
from tests.support.manifests import claim, device, device_class, pool

Manifest = dict[str, Any]
DRIVER = "gpu.example.com"
NODES, EACH = 30, 8
_API = "resource.k8s.io/v1"
A = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'
UUIDS = [f"GPU-{node:05}-{number}" for node in range(NODES) for number in range(4)]

SELECTORS = {
    "one uuid less, a product by pattern, memory": f'{A}.uuid != "GPU-00000-0" && '
    f'{A}.product.lowerAscii().matches("^.*h100.*$") && {MEMORY}.compareTo(quantity("40Gi")) >= 0',
    "one of five prefixes": f'["GPU-a","GPU-b","GPU-c","GPU-d","GPU-0"].exists(p, {A}.uuid.startsWith(p))',
    "one of 120 uuids": f"{UUIDS}.exists(u, u == {A}.uuid)".replace("'", '"'),
    "none of 120 uuids": f"{UUIDS}.all(u, u != {A}.uuid)".replace("'", '"'),
    "a pattern of the uuid": f'{A}.uuid.matches("^GPU-0.*-[0-9]+$")',
}
CONSTRAINTS = {
    "one uuid less, a product by pattern, memory": "device.uuid != 'GPU-00000-0' && "
    "device.product.lowerAscii().matches('^.*h100.*$') && device.memory >= '40Gi'",
    "one of five prefixes": "['GPU-a','GPU-b','GPU-c','GPU-d','GPU-0'].exists(p, device.uuid.startsWith(p))",
    "one of 120 uuids": f"{UUIDS}.exists(u, u == device.uuid)",
    "none of 120 uuids": f"{UUIDS}.all(u, u != device.uuid)",
    "a pattern of the uuid": "device.uuid.matches('^GPU-0.*-[0-9]+$')",
}


def pools() -> list[Manifest]:
    made = []
    for node in range(NODES):
        devices = [
            device(
                f"g{n}",
                attributes={
                    "uuid": f"GPU-{node:05}-{n}",
                    "product": "NVIDIA H100 80GB HBM3",
                    "memory": {"quantityValue": "80Gi"},
                },
            )
            for n in range(EACH)
        ]
        made.append(pool(f"p{node}", f"n{node}", DRIVER, devices=devices))
    return [device_class("gpu", driver=DRIVER), *made]


def slices() -> list[Manifest]:
    made: list[Manifest] = [{"apiVersion": _API, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}]
    for node in range(NODES):
        devices = [
            {
                "name": f"g{n}",
                "attributes": {
                    "uuid": {"string": f"GPU-{node:05}-{n}"},
                    "product": {"string": "NVIDIA H100 80GB HBM3"},
                },
                "capacity": {"memory": {"value": "80Gi"}},
            }
            for n in range(EACH)
        ]
        own = {"name": f"n{node}", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": f"n{node}", "pool": own, "devices": devices}
        made.append({"apiVersion": _API, "kind": "ResourceSlice", "metadata": {"name": f"s{node}"}, "spec": spec})
    return made


def resource_claim(expression: str) -> Manifest:
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]}
    return {
        "apiVersion": _API,
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "default", "uid": "c"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}},
    }


def answers(documents: list[Manifest], wanted: Manifest) -> list[Mapping[str, Any]]:
    """By one solve, by a warm fleet alone, and by a warm fleet jointly."""
    solve: Callable[..., Any] = dra.solve_manifests if wanted["kind"] == "ResourceClaim" else solve_manifests
    return [
        solve([*documents, wanted])["claims"][0],
        Fleet.from_manifests(documents).allocate(wanted),
        Fleet.from_manifests(documents).allocate_all([wanted])["claims"][0],
    ]


@pytest.mark.parametrize("name", SELECTORS)
def test_everyday_expressions_are_answered_although_all_devices_differ(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two units for each device beyond what is free: what a fleet of 140,000 devices leaves of the bound is more."""
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 35 * NODES * EACH)
    monkeypatch.setattr(budget, "FREE_STEPS", 100)
    of_claims = answers(pools(), claim("c", {"deviceClass": "gpu", "constraints": CONSTRAINTS[name]}))
    of_resources = answers(slices(), resource_claim(SELECTORS[name]))
    assert [each["reason"] for each in (*of_claims, *of_resources)] == [None] * 6
    assert len({each["node"] for each in of_claims}) == len({each["node"] for each in of_resources}) == 1


def test_what_is_too_expensive_says_how_expensive_and_is_not_called_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "EXPRESSION_BUDGET", 20_000)
    numbers = str([*range(99)])
    costly = f"{numbers}.exists(a, [1, 2].exists(b, a + b >= 0 && device.uuid.startsWith('none')))"
    of_claims = answers(pools(), claim("c", {"deviceClass": "gpu", "constraints": costly}))
    of_resources = answers(slices(), resource_claim(costly.replace("device.uuid", f"{A}.uuid")))
    for answer in (*of_claims, *of_resources):
        assert (answer["reason"], answer["exceeded"]) == ("ExpressionTooExpensive", "expression")
        assert re.search(r"up to \d+ units for each device", answer["message"])
        assert re.search(r"the bound of 20000 units is enough for \d+ of them", answer["message"])


# -- apart means the same as together ----------------------------------------------------------------------------------

OPERANDS = ("device.a == 1", "device.b == 'x'", "device.c > 3", "device.a + device.b == 2")
"""On a device without an attribute, or with one of another type, an operand is an error."""


@pytest.mark.parametrize("count", [2, 3])
def test_operands_apart_decide_what_the_whole_does_whatever_fails(count: int) -> None:
    values: list[dict[str, int | str]] = [{"a": 1}, {"a": 2}, {"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 5}]
    values += [{}, {"b": "y"}, {"c": 4, "b": "x"}, {"a": 1, "c": 1}]
    for chosen in product(OPERANDS, repeat=count):
        expression = " && ".join(chosen)
        program = compile_constraints(expression)
        made = [device(f"d{n}", attributes=each) for n, each in enumerate(values)]
        documents = [device_class("gpu"), pool("p", "n", devices=made)]
        wanted = claim("c", {"deviceClass": "gpu", "constraints": expression})
        (answer,) = solve_manifests([*documents, wanted])["claims"]
        given = {each["deviceName"] for each in answer["allocations"]}
        accepted = {f"d{n}" for n, each in enumerate(values) if _holds(program, each)}
        assert given <= accepted
        assert bool(given) == bool(accepted)


def _holds(program: Any, attributes: Mapping[str, int | str]) -> bool:
    try:
        return bool(program.evaluate(attributes, budget.Budget(10_000)))
    except EvaluationError:
        return False
