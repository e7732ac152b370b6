"""A DRA driver that is not ours, on a node with a real kubelet: it publishes GPUs, and prepares them by CDI.

Its slices, and the variables that containers get, are those of the example driver of kubernetes-sigs. It knows nothing
of devalloc.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from devalloc_node.pb import dra_v1_pb2 as pb
from devalloc_node.pb import dra_v1_pb2_grpc as services
from devalloc_node.pb import registration_pb2_grpc
from devalloc_node.service.kubelet_sockets import Registration
from tests.support.kube_claims import FOREIGN_DRIVER, RESOURCE, Space
from tests.support.kube_node import Node
from tests.support.waiting import until


class ForeignDriver(services.DRAPluginServicer):
    """What the kubelet calls."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.prepared: dict[str, list[str]] = {}
        """Devices by the UID of a claim."""

    def NodePrepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            path = f"{RESOURCE}/namespaces/{claim.namespace}/resourceclaims/{claim.name}"
            allocation = self._node.cluster.get(path).content["status"]["allocation"]
            results = [each for each in allocation["devices"]["results"] if each["driver"] == FOREIGN_DRIVER]
            entries = []
            for each in results:
                name = f"{claim.uid}-{each['device']}"
                variable = f"GPU_DEVICE_{each['device'].removeprefix('gpu-')}={each['device']}"
                entries.append({"name": name, "containerEdits": {"env": [variable]}})
                answer.claims[claim.uid].devices.add(
                    request_names=[each["request"]],
                    pool_name=each["pool"],
                    device_name=each["device"],
                    cdi_device_ids=[f"{FOREIGN_DRIVER}/gpu={name}"],
                )
            spec = {"cdiVersion": "0.6.0", "kind": f"{FOREIGN_DRIVER}/gpu", "devices": entries}
            (self._node.cdi_folder / f"{FOREIGN_DRIVER}-{claim.uid}.json").write_text(json.dumps(spec))
            self.prepared[claim.uid] = [each["device"] for each in results]
        return answer

    def NodeUnprepareResources(self, request: Any, context: grpc.ServicerContext) -> Any:
        answer = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            (self._node.cdi_folder / f"{FOREIGN_DRIVER}-{claim.uid}.json").unlink(missing_ok=True)
            self.prepared.pop(claim.uid, None)
            answer.claims[claim.uid].error = ""
        return answer


@contextmanager
def foreign_driver(node: Node, space: Space, devices: int) -> Iterator[ForeignDriver]:
    """It runs, the kubelet has registered it, and its devices are published."""
    folder = node.kubelet_folder / "plugins" / FOREIGN_DRIVER
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = folder / "dra.sock"
    socket = node.kubelet_folder / "plugins_registry" / f"{FOREIGN_DRIVER}-reg.sock"
    driver, registration = ForeignDriver(node), Registration(FOREIGN_DRIVER, endpoint, ["v1.DRAPlugin"])
    server, registry = (grpc.server(ThreadPoolExecutor(2)) for _ in range(2))
    services.add_DRAPluginServicer_to_server(driver, server)
    registration_pb2_grpc.add_RegistrationServicer_to_server(registration, registry)
    server.add_insecure_port(f"unix://{endpoint}")
    registry.add_insecure_port(f"unix://{socket}")
    server.start()
    registry.start()
    try:
        until(lambda: registration.status[0], "the kubelet registers the driver")
        space.foreign_slice(node.name, devices)
        yield driver
    finally:
        for each in (registry, server):
            each.stop(1).wait()
        socket.unlink(missing_ok=True)
