"""The wire code in devalloc_node/pb is what its .proto files say, and those say what the kubelet speaks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor

from devalloc_node.pb import dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, health_v1alpha1_pb2, registration_pb2

ROOT = Path(__file__).parents[3] / "node-plugin"
PB = ROOT / "devalloc_node" / "pb"


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    protos = sorted(str(path) for path in PB.glob("*.proto"))
    # A process of its own: the compiler and OR-Tools do not live together in one.
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outs, *protos], check=True)
    fresh = {path.name: path.read_text() for path in (tmp_path / "devalloc_node" / "pb").iterdir()}
    committed = {path.name: path.read_text() for path in PB.glob("*_pb2*.py*")}
    assert sorted(fresh) == sorted(committed), "run: make protos"
    assert [name for name in fresh if fresh[name] != committed[name]] == [], "run: make protos"


STRING, BOOL, INT64 = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BOOL, FieldDescriptor.TYPE_INT64
MESSAGE, ENUM = FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_ENUM

DRA = {
    "NodePrepareResourcesRequest": {"claims": (1, MESSAGE)},
    "NodePrepareResourcesResponse": {"claims": (1, MESSAGE)},
    "NodePrepareResourceResponse": {"devices": (1, MESSAGE), "error": (2, STRING)},
    "Device": {
        "request_names": (1, STRING),
        "pool_name": (2, STRING),
        "device_name": (3, STRING),
        "cdi_device_ids": (4, STRING),
    },
    "NodeUnprepareResourcesRequest": {"claims": (1, MESSAGE)},
    "NodeUnprepareResourcesResponse": {"claims": (1, MESSAGE)},
    "NodeUnprepareResourceResponse": {"error": (1, STRING)},
    "Claim": {"namespace": (1, STRING), "uid": (2, STRING), "name": (3, STRING)},
}
HEALTH = {
    "NodeWatchResourcesRequest": {},
    "NodeWatchResourcesResponse": {"devices": (1, MESSAGE)},
    "DeviceHealth": {
        "device": (1, MESSAGE),
        "health": (2, ENUM),
        "last_updated_time": (3, INT64),
        "health_check_timeout_seconds": (4, INT64),
        "message": (5, STRING),
    },
    "DeviceIdentifier": {"pool_name": (1, STRING), "device_name": (2, STRING)},
}
REGISTRATION = {
    "InfoRequest": {},
    "PluginInfo": {
        "type": (1, STRING),
        "name": (2, STRING),
        "endpoint": (3, STRING),
        "supported_versions": (4, STRING),
    },
    "RegistrationStatus": {"plugin_registered": (1, BOOL), "error": (2, STRING)},
    "RegistrationStatusResponse": {},
}
WIRE = [
    (registration_pb2, "pluginregistration", "Registration", REGISTRATION),
    (
        dra_v1_pb2,
        "k8s.io.kubelet.pkg.apis.dra.v1",
        "DRAPlugin",
        DRA | {"Device": DRA["Device"] | {"share_id": (5, STRING)}},
    ),
    (dra_v1beta1_pb2, "k8s.io.kubelet.pkg.apis.dra.v1beta1", "DRAPlugin", DRA),
    (health_v1_pb2, "v1", "DRAResourceHealth", HEALTH),
    (health_v1alpha1_pb2, "v1alpha1", "DRAResourceHealth", HEALTH),
]
METHODS = {
    "Registration": {"GetInfo": False, "NotifyRegistrationStatus": False},
    "DRAPlugin": {"NodePrepareResources": False, "NodeUnprepareResources": False},
    "DRAResourceHealth": {"NodeWatchResources": True},
}


@pytest.mark.parametrize(("module", "package", "service", "messages"), WIRE, ids=[each[1] for each in WIRE])
def test_the_kubelets_wire_facts(module, package, service, messages) -> None:
    file = module.DESCRIPTOR
    assert file.package == package
    assert {
        name: {field.name: (field.number, field.type) for field in message.fields}
        for name, message in file.message_types_by_name.items()
    } == messages
    assert {
        name: {method.name: method.server_streaming for method in each.methods}
        for name, each in file.services_by_name.items()
    } == {service: METHODS[service]}
