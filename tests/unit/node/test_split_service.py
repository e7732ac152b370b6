"""One gRPC service of several servicers: the rooms of devices and of machines each serve their methods of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from devalloc_machines.service.service import MachineService
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb import node_pb2_grpc
from devalloc_node.pb.node_pb2_grpc import NodeStub
from devalloc_node.service.node_service import NAME, NodeService
from devalloc_node.service.peer_credentials import open_proxy
from devalloc_node.service.server import part_of_service
from tests.support.node_service import Served, served

METHODS = {method.name for method in pb.DESCRIPTOR.services_by_name["Node"].methods}


def own(servicer: type) -> set[str]:
    return {name for name in vars(servicer) if name in METHODS}


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as plugin:
        yield plugin


def test_each_method_has_one_servicer() -> None:
    assert own(NodeService) | own(MachineService) == METHODS
    assert own(NodeService) & own(MachineService) == set()


def test_both_servicers_answer_under_the_name_of_the_service(plugin: Served) -> None:
    assert plugin.node.GetNode(pb.GetNodeRequest()).node_name == "node-a"
    assert plugin.node.ListClaims(pb.ListClaimsRequest()).claims == []
    assert plugin.node.ListMachines(pb.ListMachinesRequest()).machines == []
    assert next(plugin.node.WatchMachines(pb.WatchMachinesRequest())).change == pb.CHANGE_SYNCED
    assert next(plugin.node.WatchDevices(pb.WatchDevicesRequest())).change == pb.CHANGE_SYNCED


def test_reflection_lists_the_service_once_with_all_methods(plugin: Served) -> None:
    with grpc.insecure_channel(f"unix:{plugin.socket}") as channel:
        reflected = ProtoReflectionDescriptorDatabase(channel)
        services = list(reflected.get_services())
        (service,) = (DescriptorPool(reflected).FindServiceByName(name) for name in services if name == NAME)
        assert {method.name for method in service.methods} == METHODS


def test_a_method_that_no_servicer_has_is_unimplemented(tmp_path: Path) -> None:
    class Few(node_pb2_grpc.NodeServicer):
        def GetNode(self, request: pb.GetNodeRequest, context: grpc.ServicerContext) -> pb.GetNodeReply:
            return pb.GetNodeReply(node_name="few")

    door = open_proxy(tmp_path / "node.sock", [part_of_service(NAME, node_pb2_grpc.add_NodeServicer_to_server, Few())])
    try:
        with grpc.insecure_channel(f"unix:{door.path}") as channel:
            assert NodeStub(channel).GetNode(pb.GetNodeRequest()).node_name == "few"
            with pytest.raises(grpc.RpcError) as refused:
                NodeStub(channel).ListMachines(pb.ListMachinesRequest())
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    finally:
        door.stop(0.5)
