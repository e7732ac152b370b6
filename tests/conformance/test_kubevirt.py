"""Machines of KubeVirt get devices of devalloc's driver: the guide's manifests, from the solver to its reader."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from devalloc_node.claims.claim_files import metadata_files
from devalloc_node.model.grant import ClaimRef, Grant
from devalloc_node.model.step import PreparedDevice
from devalloc_solver import dra
from tests.support import kubevirt_reader
from tests.support.kubevirt_reader import Refused
from tests.support.repository import REPO

Object = dict[str, Any]
GUIDE = REPO / "docs" / "kubevirt.md"
OBJECTS: list[Object] = [
    obj
    for block in re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    for obj in yaml.safe_load_all(block)
]
MACHINES = [obj for obj in OBJECTS if obj["kind"] == "VirtualMachineInstance"]
CLASSES = [obj for obj in OBJECTS if obj["kind"] == "DeviceClass"]
TEMPLATES = {obj["metadata"]["name"]: obj for obj in OBJECTS if obj["kind"] == "ResourceClaimTemplate"}
DEVICES = {
    "0000-41-00-0": ("gpu", "whole", "0000:41:00.0"),
    "0000-42-00-1": ("nic", "vf", "0000:42:00.1"),
}
SLICE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "node-a"},
    "spec": {
        "driver": "devalloc.io",
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": name,
                "attributes": {
                    "kind": {"string": kind},
                    "function": {"string": function},
                    "resource.kubernetes.io/pciBusID": {"string": address},
                    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:40"},
                },
            }
            for name, (kind, function, address) in DEVICES.items()
        ],
    },
}


def claim_of(template: Object) -> Object:
    metadata = {"name": "claim", "namespace": "default", "uid": "u-1"}
    return {"apiVersion": template["apiVersion"], "kind": "ResourceClaim", "metadata": metadata, **template["spec"]}


def pod_files(pod_claim: str | None, *devices: PreparedDevice) -> dict[str, bytes]:
    """The metadata files by their paths in the pod, as the CDI devices mount them."""
    grant = Grant(ClaimRef("default", "claim", "u-1"), "ResourceClaim", (), pod_claim_name=pod_claim)
    rendered = metadata_files(grant, devices, driver="devalloc.io", data="/plugins", folder="/cdi").files
    mounted = {}
    for content in (content for path, content in rendered.items() if path.startswith("/cdi")):
        for device in yaml.safe_load(content)["devices"]:
            for mount in device["containerEdits"]["mounts"]:
                mounted[mount["containerPath"]] = rendered[mount["hostPath"]]
    return mounted


def prepared(request: str, address: str, **more: Any) -> PreparedDevice:
    attributes = {"resource.kubernetes.io/pciBusID": address}
    name = address.replace(":", "-").replace(".", "-")
    return PreparedDevice((request,), "node-a", name, "vfio", functions=(address,), attributes=attributes, **more)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine["metadata"]["name"])
def test_a_machine_of_the_guide_gets_the_devices_that_it_asks_for(machine: Object) -> None:
    (reference,) = machine["spec"]["resourceClaims"]
    template = TEMPLATES[reference["resourceClaimTemplateName"]]
    (answer,) = dra.solve_manifests([SLICE, *CLASSES, claim_of(template)])["claims"]
    assert answer["allocated"], answer["message"]
    results = {result["request"]: result["device"] for result in answer["allocations"]["devices"]["results"]}
    wishes = list(kubevirt_reader.wishes(machine))
    assert {request for _, request in wishes} == results.keys(), "each request is a device of the machine"

    devices = [prepared(request, DEVICES[name][2]) for request, name in results.items()]
    files = pod_files(reference["name"], *devices)
    for claim, request in wishes:
        given = kubevirt_reader.device_of(files, machine, claim, request)
        assert given == ("pci", DEVICES[results[request]][2])


def machine_with(claim: Object, *requests: str) -> Object:
    gpus = [{"name": request, "claimName": claim["name"], "requestName": request} for request in requests]
    return {"spec": {"resourceClaims": [claim], "domain": {"devices": {"gpus": gpus}}}}


def test_a_claim_that_was_there_before_and_a_mediated_device_are_read_too() -> None:
    machine = machine_with({"name": "gpu", "resourceClaimName": "claim"}, "slice")
    mdev = replace(prepared("slice", "0000:08:00.4"), binding="mdev", mdev_uuid="5f5c4d8e-0000-4000-8000-000000000001")
    mdev = replace(mdev, attributes={**mdev.attributes, "mdevUUID": str(mdev.mdev_uuid)})
    given = kubevirt_reader.device_of(pod_files(None, mdev), machine, "gpu", "slice")
    assert given == ("mdev", "5f5c4d8e-0000-4000-8000-000000000001")


def test_two_devices_of_one_request_are_what_the_guide_warns_of() -> None:
    machine = machine_with({"name": "gpu", "resourceClaimTemplateName": "two"}, "gpu")
    files = pod_files("gpu", prepared("gpu", "0000:41:00.0"), prepared("gpu", "0000:42:00.0"))
    with pytest.raises(Refused, match="has 2 devices"):
        kubevirt_reader.device_of(files, machine, "gpu", "gpu")


def test_there_are_two_machines_and_all_classes_are_those_of_the_guide() -> None:
    assert len(MACHINES) == 2
    named = {
        request["exactly"]["deviceClassName"]
        for template in TEMPLATES.values()
        for request in template["spec"]["spec"]["devices"]["requests"]
    }
    assert named == {each["metadata"]["name"] for each in CLASSES}
