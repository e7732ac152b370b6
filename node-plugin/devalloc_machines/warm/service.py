"""``devalloc.node.v1.WarmPool``: warm setups for platforms that run machines. Its reference is the .proto file."""

from __future__ import annotations

import grpc

from devalloc_machines.warm.pool import OWNER, Pool
from devalloc_machines.warm.setup import TakenSetup
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied
from devalloc_node.metrics.registry import NodeMetrics
from devalloc_node.pb import warm_pb2 as pb
from devalloc_node.pb import warm_pb2_grpc
from devalloc_node.service import calls
from devalloc_node.service.request_fields import BadField
from devalloc_node.service.server import Service

NAME = "devalloc.node.v1.WarmPool"
MOST_VCPUS = 1 << 16
_ID_SHOWN = 80


class WarmService(warm_pb2_grpc.WarmPoolServicer):
    """Safe for threads."""

    def __init__(self, pool: Pool | None, metrics: NodeMetrics) -> None:
        """``pool``: None if this node keeps none."""
        self._pool = pool
        self._calls = calls.CallHandler(metrics)

    def service(self) -> Service:
        """For the server."""
        return Service(NAME, lambda server: warm_pb2_grpc.add_WarmPoolServicer_to_server(self, server))

    def TakeSetup(self, request: pb.TakeSetupRequest, context: grpc.ServicerContext) -> pb.TakeSetupReply:
        def work(due: Deadline, caller: str) -> pb.TakeSetupReply:
            if request.vcpus > MOST_VCPUS:
                raise BadField("vcpus", f"must be at most {MOST_VCPUS}")
            if request.owner.startswith(OWNER):
                raise BadField("owner", f"must not begin with {OWNER}: the plugin names this node's machines so")
            taken = self._served().take(
                request.owner, request.request, vcpus=request.vcpus, one_node=request.one_numa_node
            )
            return pb.TakeSetupReply(setup=_setup(taken))

        about = {"owner": request.owner[:_ID_SHOWN]}
        return self._calls.change(context, "TakeSetup", about, pb.TakeSetupReply, work)

    def ReturnSetup(self, request: pb.ReturnSetupRequest, context: grpc.ServicerContext) -> pb.ReturnSetupReply:
        def work(due: Deadline, caller: str) -> pb.ReturnSetupReply:
            pool = self._served()
            _check_not_of_a_machine(pool, request.id)
            pool.give_back(request.id, due)
            return pb.ReturnSetupReply()

        about = {"setup": request.id[:_ID_SHOWN]}
        return self._calls.change(context, "ReturnSetup", about, pb.ReturnSetupReply, work)

    def GetPool(self, request: pb.GetPoolRequest, context: grpc.ServicerContext) -> pb.GetPoolReply:
        with self._calls.failures_as_status(context, "GetPool"):
            status = self._served().status()
            return pb.GetPoolReply(
                target=status.target,
                most=status.most,
                ready=status.ready,
                making=status.making,
                removing=status.removing,
                taken=[
                    pb.TakenSetup(setup=_setup(each), owner=each.owner, request=each.request, taken_ms=each.since_ms)
                    for each in status.taken
                ],
                made=status.made,
                failures=status.failures,
                problem=status.problem,
            )

    def _served(self) -> Pool:
        if self._pool is None:
            raise Denied(
                "PoolMissing",
                "this node keeps no warm setups; start its plugin with --warm (0: only setups that are requested, "
                "and those still taken since an earlier run)",
            )
        return self._pool


def _check_not_of_a_machine(pool: Pool, setup: str) -> None:
    """One that is just about to start does not live there yet. Raises Denied ``SetupInUse``."""
    for taken in pool.taken():
        if taken.setup.id == setup and taken.owner.startswith(OWNER):
            key = taken.owner.removeprefix(OWNER)
            raise Denied(
                "SetupInUse",
                f"setup {setup} belongs to machine {key} of this node, which gives it back when it ends: stop it "
                "(spec.running: false) or delete it",
                retryable=False,
            )


def _setup(taken: TakenSetup) -> pb.Setup:
    setup, pin = taken.setup, taken.pin
    return pb.Setup(
        id=setup.id,
        namespace_path=str(setup.namespace),
        tap=setup.tap,
        mac=setup.mac,
        folder=str(setup.folder),
        cpus=() if pin is None else pin.cpus,
        numa_nodes=() if pin is None else pin.nodes,
        qmp_socket="" if setup.qmp is None else str(setup.qmp),
        address="" if setup.network is None else setup.network.interface,
        gateway="" if setup.network is None else setup.network.gateway,
        nameservers=() if setup.network is None else setup.network.nameservers,
    )
