"""A client that speaks to a plugin as the kubelet does: raw calls, by the paths that the kubelet dials."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc

from devalloc_node.model.grant import ClaimRef
from devalloc_node.pb import dra_v1_pb2, dra_v1beta1_pb2, health_v1_pb2, health_v1alpha1_pb2, registration_pb2

DRA: dict[str, ModuleType] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
HEALTH: dict[str, ModuleType] = {"v1": health_v1_pb2, "v1alpha1": health_v1alpha1_pb2}


@dataclass(frozen=True)
class KubeletClient:
    """Calls of the kubelet over one connection."""

    channel: grpc.Channel
    timeout: float = 45.0

    def raw(self, method: str, content: bytes) -> bytes:
        """Any call: bytes out, bytes in. Raises grpc.RpcError."""
        return self.channel.unary_unary(method)(content, timeout=self.timeout)

    def prepare(self, claims: Iterable[ClaimRef], version: str = "v1") -> dict[str, Any]:
        return self._claims("NodePrepareResources", claims, version)

    def unprepare(self, claims: Iterable[ClaimRef], version: str = "v1") -> dict[str, Any]:
        return self._claims("NodeUnprepareResources", claims, version)

    def _claims(self, call: str, claims: Iterable[ClaimRef], version: str) -> dict[str, Any]:
        pb = DRA[version]
        messages = [pb.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid) for ref in claims]
        request = getattr(pb, f"{call}Request")(claims=messages)
        answer = self.raw(f"/k8s.io.kubelet.pkg.apis.dra.{version}.DRAPlugin/{call}", request.SerializeToString())
        return dict(getattr(pb, f"{call}Response").FromString(answer).claims)

    def watch(self, version: str = "v1") -> Any:
        """The stream of health lists; has ``cancel``."""
        pb = HEALTH[version]
        call = self.channel.unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=pb.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=pb.NodeWatchResourcesResponse.FromString,
        )
        return call(pb.NodeWatchResourcesRequest())

    def info(self) -> Any:
        answer = self.raw("/pluginregistration.Registration/GetInfo", b"")
        return registration_pb2.PluginInfo.FromString(answer)

    def notify(self, *, registered: bool, error: str = "") -> None:
        status = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        self.raw("/pluginregistration.Registration/NotifyRegistrationStatus", status.SerializeToString())


@contextmanager
def kubelet_client(path: Path, timeout: float = 45.0) -> Iterator[KubeletClient]:
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.max_send_message_length", -1)]) as channel:
        yield KubeletClient(channel, timeout)
