"""Manifests of v1beta1 and v1beta2 mean what they mean to the API server, which converts them to v1."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from devalloc_solver import Fleet, dra
from devalloc_solver.dialects.resource_k8s.versions import as_v1
from devalloc_solver.dra import solve_manifests
from tests.support.sentences import at_length

V1, V1BETA1, V1BETA2 = (f"resource.k8s.io/{version}" for version in ("v1", "v1beta1", "v1beta2"))
Manifest = dict[str, Any]

CLASS = {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "true"}}]}}
PARTS = {"attributes": {"model": {"string": "a"}}, "capacity": {"memory": {"value": "40Gi"}}}
POOL = {"name": "p", "generation": 1, "resourceSliceCount": 1}
ASKS = {
    "deviceClassName": "gpu",
    "allocationMode": "ExactCount",
    "count": 2,
    "selectors": [{"cel": {"expression": "device.attributes['gpu.io'].model == 'a'"}}],
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "capacity": {"requests": {"memory": "1Gi"}},
}
CHOICE = {"name": "either", "firstAvailable": [{"name": "s0", "deviceClassName": "gpu"}]}


def slice_of(version: str) -> Manifest:
    devices = [
        {"name": name, "basic": PARTS} if version == V1BETA1 else {"name": name, **PARTS} for name in ("d1", "d2", "d3")
    ]
    spec = {"driver": "gpu.io", "pool": POOL, "nodeName": "n1", "devices": devices}
    return {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}


def claim_spec(version: str) -> Manifest:
    asks = ASKS if version == V1BETA1 else {"exactly": ASKS}
    return {
        "devices": {"requests": [{"name": "r", **asks}, CHOICE], "constraints": [{"matchAttribute": "gpu.io/model"}]}
    }


def documents(version: str) -> list[Manifest]:
    claim = {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"}, "spec": claim_spec(version)}
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t"}, "spec": {"spec": claim_spec(version)}}
    return [{"apiVersion": version, **deepcopy(one)} for one in (CLASS, slice_of(version), claim, template)]


@pytest.mark.parametrize("version", [V1BETA1, V1BETA2])
def test_older_versions_become_v1(version: str) -> None:
    given = documents(version)
    before = deepcopy(given)

    assert [as_v1(one) for one in given] == documents(V1)
    assert given == before


def test_v1_stays_the_same_object() -> None:
    assert all(as_v1(one) is one for one in documents(V1))
    assert as_v1(5) == 5


@pytest.mark.parametrize("version", [V1BETA1, V1BETA2])
def test_every_way_to_ask_takes_them(version: str) -> None:
    device_class, resource_slice, claim, _ = documents(version)
    expected = documents(V1)

    once = solve_manifests([device_class, resource_slice, claim])
    assert once["problems"] == []
    assert once["claims"] == solve_manifests(expected[:3])["claims"]
    assert once["claims"][0]["allocated"]
    for ask in (lambda fleet, one: fleet.allocate(one), lambda fleet, one: fleet.allocate_all([one])["claims"][0]):
        assert ask(Fleet.from_manifests([device_class, resource_slice]), claim)["allocated"]
    fleet = Fleet.from_manifests([])
    assert fleet.update(device_class) == fleet.update(resource_slice) == []
    assert fleet.allocate(claim)["allocated"]
    assert dra.allocate("n1", [_with_defaults(claim)], [device_class], [resource_slice]) is not None


def _with_defaults(claim: Manifest) -> Manifest:
    changed = deepcopy(claim)
    changed["spec"]["devices"]["requests"][1]["firstAvailable"][0] |= {"allocationMode": "ExactCount", "count": 1}
    return changed


@pytest.mark.parametrize(
    ("version", "request_fields", "message"),
    [
        (
            V1,
            {"deviceClassName": "gpu"},
            "spec.devices.requests[0] has deviceClassName: move these fields below `exactly`",
        ),
        (
            V1BETA2,
            {"deviceClassName": "gpu", "count": 2, "selectors": []},
            "spec.devices.requests[0] has deviceClassName, selectors, count: move these fields below `exactly`",
        ),
        (
            V1BETA1,
            {"exactly": {"deviceClassName": "gpu"}},
            "spec.devices.requests[0].exactly is a field of v1, not of v1beta1: write apiVersion: resource.k8s.io/v1",
        ),
        (V1BETA1, {"deviceClassName": "gpu", "cuont": 2}, "spec.devices.requests[0].cuont is not a known field"),
    ],
)
def test_a_field_at_the_place_of_another_version_is_named(version: str, request_fields: Manifest, message: str) -> None:
    spec = {"devices": {"requests": [{"name": "r", **request_fields}]}}
    claim = {"apiVersion": version, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}

    answer = solve_manifests([*documents(V1)[:2], claim])["claims"][0]

    assert answer["reason"] == "ClaimInvalid"
    assert answer["message"].startswith(message)


@pytest.mark.parametrize(
    ("version", "device", "problem"),
    [
        (V1, {"name": "d", "basic": {}}, ("spec.devices[0].basic", "move what is below it up to the device")),
        (V1BETA1, {"name": "d", "attributes": {}}, ("spec.devices[0].attributes", "is below `basic` in v1beta1")),
        (V1BETA1, {"name": "d", "basic": {"nmae": 1}}, ("spec.devices[0].nmae", "is not a known field")),
    ],
)
def test_so_is_one_of_a_device(version: str, device: Manifest, problem: tuple[str, str]) -> None:
    wrong = {"apiVersion": version, **slice_of(version)}
    wrong["spec"]["devices"] = [device]

    (reported,) = solve_manifests([wrong])["problems"]

    assert reported["path"] == problem[0]
    assert problem[1] in reported["message"]


@pytest.mark.parametrize(
    ("version", "advice"), [("v1alpha2", "convert the object to resource.k8s.io/v1"), ("v1alpha3", f"write {V1BETA1}")]
)
def test_an_unsupported_version_is_refused_before_any_field(version: str, advice: str) -> None:
    version = f"resource.k8s.io/{version}"
    as_it_has_them = [{**one, "apiVersion": version} for one in documents(V1BETA1)[:3]]

    problems = solve_manifests(as_it_has_them)["problems"]

    assert [(one["kind"], one["path"], one["message"]) for one in problems if one["severity"] == "error"] == [
        (kind, "apiVersion", f"{version!r} is not supported; {advice}")
        for kind in ("DeviceClass", "ResourceSlice", "ResourceClaim")
    ]


TOLERATION = {"key": "dra.example.com/unhealthy", "operator": "Exists"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        # https://github.com/openshift/openshift-docs/pull/119869
        (
            {"resourceClassName": "gpu", "tolerations": [TOLERATION]},
            "spec.resourceClassName is not a known field of resource.k8s.io/v1 there: it is of v1alpha2; name a "
            "DeviceClass in spec.devices.requests[].exactly.deviceClassName",
        ),
        ({"tolerations": [TOLERATION]}, "there: move it below spec.devices.requests[].exactly"),
        ({"requests": [{"name": "r", "exactly": ASKS}]}, "there: move it below spec.devices"),
        ({"devices": {"requests": [], "selectors": []}}, "there: move it below spec.devices.requests[].exactly"),
        ({"devices": {"matchAttribute": "a/b"}}, "there: move it below spec.devices.constraints[]"),
        (
            {"devices": {"requests": [{"name": "r", "exactly": ASKS, "matchAttribute": "a/b"}]}},
            "there: move it below spec.devices.constraints[]",
        ),
        (
            {"devices": {"requests": [{"name": "r", "exactly": {**ASKS, "firstAvailable": []}}]}},
            "there: move it up, in place of exactly",
        ),
        (
            {"devices": {"requests": [{"name": "r", "exactly": {**ASKS, "selectors": [{"expression": "true"}]}}]}},
            "selectors[0].expression is not a known field of resource.k8s.io/v1 there: write it below cel",
        ),
        (
            {"devices": {"requests": [{"name": "r", "exactly": {**ASKS, "capacity": {"memory": "1Gi"}}}]}},
            "capacity.memory is not a known field of resource.k8s.io/v1 there: move it below capacity.requests",
        ),
        (
            {"devices": {"requests": [{"name": "r", "exactly": {**ASKS, "capacity": {"request": {}}}}]}},
            "capacity.request is not a known field of resource.k8s.io/v1: did you mean requests?",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_of_another_place_is_named_with_its_place(spec: Manifest, message: str) -> None:
    claim = {"apiVersion": V1, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": spec}

    (answer,) = solve_manifests([claim])["claims"]

    assert answer["reason"] == "ClaimInvalid"
    assert message in at_length(answer)
