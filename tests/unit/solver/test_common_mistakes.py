"""What users of other schedulers write first, and what the message says instead.

Situations of https://github.com/Azure/AKS/pull/5697 (full names as keys), of examples that select by memory
(https://github.com/kubernetes/website, resourceclaim.yaml), and of device plugins (`nvidia.com/gpu: 1`).
"""

from __future__ import annotations

from typing import Any

import pytest

from devalloc.api.decode import decode
from devalloc_solver import Fleet, solve_manifests
from devalloc_solver.dra import solve_manifests as solve_resource_claims
from devalloc_solver.testing import claim, device, device_class, pool
from devalloc_solver.testing import request as wants
from tests.support.dra_builders import ANY, Manifest, request, slice_
from tests.support.dra_builders import claim as resource_claim
from tests.support.dra_builders import device as slice_device

GPU = device("gpu-0", attributes={"model": "H100", "function": "whole"}, resources={"memory": "80Gi"})
DOCUMENTS = [device_class("gpu"), pool("card", node="a", devices=[GPU])]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (wants("gpu", 1, constraints="device.memory >= '40Gi'"), "write requests: {memory: …}"),
        (wants("gpu", requests={"model": "1"}), "`model` is an attribute; write device.model == … in constraints"),
        (
            wants("gpu", requests={"nvidia.com/gpu": "1"}),
            "no device offers shares of `nvidia.com/gpu`",
        ),
        (wants("gpu", requests={"memroy": "1Gi"}), "did you mean `memory`?"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_amounts_and_attributes_of_a_device_claim(wanted: Manifest, words: str) -> None:
    given = claim("c", wanted)
    for answer in (solve_manifests([*DOCUMENTS, given])["claims"][0], Fleet.from_manifests(DOCUMENTS).allocate(given)):
        assert words in str(answer["message"])


@pytest.mark.parametrize(
    ("selector", "words"),
    [
        (
            "device.attributes['gpu.io'].memory.compareTo(quantity('1Gi')) >= 0",
            "`gpu.io/memory` is a capacity; write device.capacity['gpu.io'].memory",
        ),
        (
            "device.capacity['gpu.io'].model.compareTo(quantity('1')) >= 0",
            "`gpu.io/model` is an attribute; write device.attributes['gpu.io'].model",
        ),
        ("device.attributes['gpu.io/model'].value == 'H100'", "`gpu.io/model` is not a domain; write ['gpu.io'].model"),
        ("device.attributes['gpu.io'].modle == 'H100'", "did you mean `gpu.io/model`?"),
    ],
    ids=lambda value: value[:40],
)
def test_amounts_and_attributes_of_a_selector(selector: str, words: str) -> None:
    gpu = slice_device("d", {"model": "H100"}, capacity={"memory": "80Gi"})
    documents = [ANY, slice_("s", [gpu]), resource_claim(request("r", 1, selector))]
    fleet = Fleet.from_manifests(documents[:-1])

    for answer in (solve_resource_claims(documents)["claims"][0], fleet.allocate(documents[-1])):
        assert words in str(answer["message"])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"claims": [{"deviceClass": "gpu", "selectors": []}]}, "write constraints, one CEL expression"),
        ({"claims": [{"deviceClass": "gpu", "firstAvailable": []}]}, "write oneOf"),
        ({"devices": {"requests": []}}, "it is of a ResourceClaim (resource.k8s.io); a DeviceClaim has spec.claims"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_of_a_resource_claim_in_a_device_claim(spec: dict[str, Any], words: str) -> None:
    problems = decode({**claim("c", wants("gpu", 1)), "spec": spec}).problems

    assert any(words in problem.message for problem in problems)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"bool": True}, "bool: unknown field; write intValue: 0 or 1"),
        ({"boolValue": True}, "boolValue: unknown field; write intValue: 0 or 1"),
        ({"int": 1}, "int: unknown field; write intValue"),
        ({"string": "a"}, "string: unknown field; write stringValue"),
        ({"version": "1.2.3"}, "version: unknown field; write semVerValue"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attributes_of_a_resource_slice_in_a_pool(value: dict[str, Any], words: str) -> None:
    card = pool("card", node="a", devices=[GPU])
    card["spec"]["devices"] = [{"name": "gpu-0", "attributes": [{"name": "rdma", **value}]}]

    problems = decode(card).problems

    assert any(words in f"{problem.path}: {problem.message}" for problem in problems)
