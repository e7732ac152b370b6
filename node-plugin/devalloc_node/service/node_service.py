"""``devalloc.node.v1``: the node plugin's own service, for platforms that run virtual machines.

The reference of the service is its .proto file. This module has its methods for claims, devices and the node, and
``machine_service.service`` those for machines: it reads requests, ``ClaimRegistry`` does the work, and the result goes
to the caller, the audit log and the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import grpc

from devalloc.api.pool import DevicePool
from devalloc_node.binding.binding import HealthState
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed
from devalloc_node.metrics.registry import NodeMetrics
from devalloc_node.operations.change_feed import ChangeKind
from devalloc_node.operations.claim_registry import ClaimRegistry
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb import node_pb2_grpc
from devalloc_node.service import calls, replies, request_fields
from devalloc_node.service.server import Service, part_of_service

NAME = "devalloc.node.v1.Node"


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What the service tells of the plugin and of the host. The functions are called for each request."""

    version: str
    node_name: str
    boot_id: str
    started_ms: int
    journal: Callable[[], pb.Journal]
    """Raises Failed if it cannot be read."""
    pools: Callable[[], list[DevicePool]]
    """What this node publishes."""
    rescan: Callable[[Deadline], list[DevicePool]]
    """Look at the host now. Raises NodeError."""
    health: Callable[[], Mapping[tuple[str, str], HealthState]] = dict
    """By pool and device."""
    allowed_kinds: tuple[str, ...] = ()


class NodeService(node_pb2_grpc.NodeServicer):
    """Its methods for claims and devices. Safe for threads."""

    def __init__(
        self, claims: ClaimRegistry, about: ServiceInfo, metrics: NodeMetrics, streams: calls.ChangeStreams
    ) -> None:
        self._claims = claims
        self._about = about
        self._calls = calls.CallHandler(metrics)
        self._change, self._read = self._calls.change, self._calls.read
        self._streams = streams

    def service(self) -> Service:
        """For the server."""
        return part_of_service(NAME, node_pb2_grpc.add_NodeServicer_to_server, self)

    # Claims.

    def PrepareClaim(self, request: pb.PrepareClaimRequest, context: grpc.ServicerContext) -> pb.PrepareClaimReply:
        def work(due: Deadline, caller: str) -> pb.PrepareClaimReply:
            ref = self._claims.named(request_fields.claim_ref(request.claim), prepared=False)
            if request.dry_run:
                steps = [replies.step(step) for step in self._claims.plan(ref, due)]
                return pb.PrepareClaimReply(claim=pb.Claim(claim=replies.ref(ref), steps=steps))
            return pb.PrepareClaimReply(claim=replies.claim(self._claims.prepare(ref, due, caller=caller), steps=True))

        return self._change(
            context, "PrepareClaim", request_fields.about_claim(request.claim), pb.PrepareClaimReply, work
        )

    def UnprepareClaim(
        self, request: pb.UnprepareClaimRequest, context: grpc.ServicerContext
    ) -> pb.UnprepareClaimReply:
        def work(due: Deadline, caller: str) -> pb.UnprepareClaimReply:
            requested = request_fields.claim_ref(request.claim)
            try:
                ref = self._claims.named(requested, prepared=True)
            except Denied as error:
                if error.code != "ClaimNotFound":
                    raise
                return pb.UnprepareClaimReply()  # unknown, and nothing of that name is prepared (T9)
            if request.dry_run:
                steps = [replies.step_of_record(step) for held in self._claims.held(ref.uid) for step in held.steps]
                return pb.UnprepareClaimReply(steps=reversed(steps), found=bool(self._claims.held(ref.uid)))
            was_prepared = bool(self._claims.held(ref.uid))
            ended = self._claims.unprepare(ref, due, force=request.force, caller=caller)
            return pb.UnprepareClaimReply(ended_machines=ended, found=was_prepared)

        about = request_fields.about_claim(request.claim) | request_fields.about_force(request.force)
        return self._change(context, "UnprepareClaim", about, pb.UnprepareClaimReply, work)

    def ListClaims(self, request: pb.ListClaimsRequest, context: grpc.ServicerContext) -> pb.ListClaimsReply:
        def read() -> pb.ListClaimsReply:
            space = request_fields.namespace_filter(request.namespace)
            matching = [held for held in self._claims.held() if space in ("", held.record.ref.namespace)]
            matching.sort(key=lambda held: held.record.ref)
            return pb.ListClaimsReply(claims=[replies.claim(held, steps=request.steps) for held in matching])

        return self._read(context, "ListClaims", read)

    # The node.

    def GetNode(self, request: pb.GetNodeRequest, context: grpc.ServicerContext) -> pb.GetNodeReply:
        def read() -> pb.GetNodeReply:
            try:
                journal = self._about.journal()
            except Failed as error:
                journal = pb.Journal(message=error.message)
            return pb.GetNodeReply(
                version=self._about.version,
                node_name=self._about.node_name,
                boot_id=self._about.boot_id,
                started_ms=self._about.started_ms,
                journal=journal,
                allowed_kinds=self._about.allowed_kinds,
            )

        return self._read(context, "GetNode", read)

    def ListDevices(self, request: pb.ListDevicesRequest, context: grpc.ServicerContext) -> pb.ListDevicesReply:
        def read() -> pb.ListDevicesReply:
            devices = self._devices(request_fields.plain_filter(request.pool, "pool"))
            return pb.ListDevicesReply(devices=[devices[key] for key in sorted(devices)])

        return self._read(context, "ListDevices", read)

    def WatchDevices(self, request: pb.WatchDevicesRequest, context: grpc.ServicerContext) -> Iterator[pb.DeviceEvent]:
        with self._calls.failures_as_status(context, "WatchDevices"):
            pool = request_fields.plain_filter(request.pool, "pool")
            for change, key, device in self._streams.watch(context, lambda: self._devices(pool)):
                if change is ChangeKind.GONE and key is not None:
                    device = pb.Device(pool=key[0], device=key[1])
                yield pb.DeviceEvent(change=calls.CHANGES[change], device=device)

    def Rescan(self, request: pb.RescanRequest, context: grpc.ServicerContext) -> pb.RescanReply:
        def work(due: Deadline, caller: str) -> pb.RescanReply:
            pools = self._about.rescan(due)
            self._streams.notifier.beat()
            return pb.RescanReply(pools=len(pools), devices=sum(len(pool.spec.devices) for pool in pools))

        return self._change(context, "Rescan", {}, pb.RescanReply, work)

    def _devices(self, pool: str) -> dict[tuple[str, str], pb.Device]:
        pools = [one for one in self._about.pools() if pool in ("", one.metadata.name)]
        return replies.devices(pools, self._claims.held(), self._about.health())
