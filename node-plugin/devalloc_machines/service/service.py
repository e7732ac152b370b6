"""``devalloc.node.v1``: the methods of the node's own service for machines, and for claims in them.

This module reads requests, ``MachineOperations`` does the work, and the result goes to the caller, the audit log and
the metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import grpc

from devalloc.api.virtual_machine import VirtualMachine
from devalloc_machines.qemu import console
from devalloc_machines.qemu.records import MachineView
from devalloc_machines.qemu.spec import locking_seconds
from devalloc_machines.service import replies, request_fields
from devalloc_machines.service.operations import MachineOperations
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, NodeError
from devalloc_node.journal.audit_log import audit
from devalloc_node.metrics.registry import NodeMetrics
from devalloc_node.model.step import PluggedDevice
from devalloc_node.operations.change_feed import ChangeKind, WatcherSlots
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb import node_pb2_grpc
from devalloc_node.service import calls
from devalloc_node.service.node_service import NAME
from devalloc_node.service.peer_credentials import caller_of
from devalloc_node.service.replies import done, result
from devalloc_node.service.request_fields import about_claim, about_force, claim_ref, namespace_filter
from devalloc_node.service.server import Service, part_of_service

CONSOLES = 16
"""Consoles and logs that are read at a time; each takes one of the server's threads."""


class MachineService(node_pb2_grpc.NodeServicer):
    """Safe for threads."""

    def __init__(self, operations: MachineOperations, metrics: NodeMetrics, streams: calls.ChangeStreams) -> None:
        self._operations = operations
        self._calls = calls.CallHandler(metrics)
        self._change, self._read = self._calls.change, self._calls.read
        self._streams = streams
        self._consoles = WatcherSlots(CONSOLES, "consoles and logs")

    def service(self) -> Service:
        """For the server."""
        return part_of_service(NAME, node_pb2_grpc.add_NodeServicer_to_server, self)

    # Claims in machines.

    def AttachClaim(self, request: pb.AttachClaimRequest, context: grpc.ServicerContext) -> pb.AttachClaimReply:
        def work(due: Deadline, caller: str) -> pb.AttachClaimReply:
            key = request_fields.machine_key(request.machine)
            ref = self._operations.claims.named(claim_ref(request.claim), prepared=False)
            plugs = self._operations.attach(ref, key, due, caller=caller)
            return pb.AttachClaimReply(devices=[replies.plugged_device(plug) for plug in plugs])

        about = about_claim(request.claim) | _machine(request.machine)
        return self._change(context, "AttachClaim", about, pb.AttachClaimReply, work, takes_back=True)

    def DetachClaim(self, request: pb.DetachClaimRequest, context: grpc.ServicerContext) -> pb.DetachClaimReply:
        def work(due: Deadline, caller: str) -> pb.DetachClaimReply:
            key = request_fields.machine_key(request.machine)
            ref = self._operations.claims.named(claim_ref(request.claim), prepared=True)
            ended = self._operations.detach(ref, key, due, force=request.force, caller=caller)
            return pb.DetachClaimReply(ended_machine=bool(ended), found=ended is not None)

        about = about_claim(request.claim) | _machine(request.machine) | about_force(request.force)
        return self._change(context, "DetachClaim", about, pb.DetachClaimReply, work)

    # Machines.

    def CreateMachine(self, request: pb.CreateMachineRequest, context: grpc.ServicerContext) -> pb.CreateMachineReply:
        def work(due: Deadline, caller: str) -> pb.CreateMachineReply:
            machine = request_fields.machine_to_start(request, self._operations.node_name)
            return pb.CreateMachineReply(machine=self._create(machine, request.claims, due, caller))

        about = _machine(request.machine) | {"claims": [claim.name for claim in request.claims]}
        memory = request.spec.memory.use_bytes or request.spec.memory.min_bytes
        takes_longer = bool(request.claims or request.spec.memory.huge_pages)
        longer = min(calls.MOST_SECONDS, locking_seconds(memory)) if takes_longer else 0.0
        return self._change(
            context, "CreateMachine", about, pb.CreateMachineReply, work, longer=longer, takes_back=True
        )

    def AdoptMachine(self, request: pb.AdoptMachineRequest, context: grpc.ServicerContext) -> pb.AdoptMachineReply:
        def work(due: Deadline, caller: str) -> pb.AdoptMachineReply:
            machine = request_fields.machine_to_adopt(request, self._operations.node_name)
            return pb.AdoptMachineReply(machine=self._create(machine, request.claims, due, caller))

        about = _machine(request.machine) | {"socket": request.qmp_socket}
        return self._change(context, "AdoptMachine", about, pb.AdoptMachineReply, work)

    def StopMachine(self, request: pb.StopMachineRequest, context: grpc.ServicerContext) -> pb.StopMachineReply:
        def work(due: Deadline, caller: str) -> pb.StopMachineReply:
            key = request_fields.machine_key(request.machine)
            self._operations.stop(key, _seconds(request.grace_ms), due, force=request.force, caller=caller)
            return pb.StopMachineReply(machine=self._machine_message(key))

        about = _machine(request.machine) | about_force(request.force)
        longer = request.grace_ms / 1000
        return self._change(context, "StopMachine", about, pb.StopMachineReply, work, longer=longer)

    def DeleteMachine(self, request: pb.DeleteMachineRequest, context: grpc.ServicerContext) -> pb.DeleteMachineReply:
        def work(due: Deadline, caller: str) -> pb.DeleteMachineReply:
            key = request_fields.machine_key(request.machine)
            grace = _seconds(request.grace_ms)
            existed = self._operations.delete(key, grace, due, force=request.force, caller=caller)
            return pb.DeleteMachineReply(found=existed)

        about = _machine(request.machine) | about_force(request.force)
        longer = request.grace_ms / 1000
        return self._change(context, "DeleteMachine", about, pb.DeleteMachineReply, work, longer=longer)

    def ScaleMachine(self, request: pb.ScaleMachineRequest, context: grpc.ServicerContext) -> pb.ScaleMachineReply:
        def work(due: Deadline, caller: str) -> pb.ScaleMachineReply:
            key = request_fields.machine_key(request.machine)
            wanted = request_fields.requested_scaling(request)
            self._operations.machine(key)
            results = {}
            for number, (what, amount) in enumerate(wanted.items()):
                try:
                    if due.passed:
                        late = f"no time was left for the {what} of machine {key}; try again"
                        raise Denied("DeadlineExceeded", late)
                    # A guest that hangs over one amount leaves the others their time.
                    share = 1 / (len(wanted) - number)
                    self._operations.scale(key, what, amount, due, caller=caller, share=share)
                    results[what] = done()
                except NodeError as error:
                    results[what] = result(error)
            worst = calls.worst_result([*results.values()])
            # One that does not answer is not asked past the deadline.
            answers = worst.outcome != pb.Result.UNKNOWN
            observed = replies.amounts(self._operations.machine(key).observed) if answers else None
            return pb.ScaleMachineReply(result=worst, observed=observed, **results)

        about = _machine(request.machine) | {
            name: getattr(request, name) for name in ("vcpus", "cpu_milli", "memory_bytes") if request.HasField(name)
        }
        return self._change(context, "ScaleMachine", about, pb.ScaleMachineReply, work)

    def PlugDevice(self, request: pb.PlugDeviceRequest, context: grpc.ServicerContext) -> pb.PlugDeviceReply:
        def work(due: Deadline, caller: str) -> pb.PlugDeviceReply:
            key, device = request_fields.machine_key(request.machine), request_fields.plain_device(request)
            return pb.PlugDeviceReply(
                device=replies.emulated_device(self._operations.plug(key, device, due, caller=caller))
            )

        about = _machine(request.machine) | {"device": request.name[:64]}
        return self._change(context, "PlugDevice", about, pb.PlugDeviceReply, work, takes_back=True)

    def UnplugDevice(self, request: pb.UnplugDeviceRequest, context: grpc.ServicerContext) -> pb.UnplugDeviceReply:
        def work(due: Deadline, caller: str) -> pb.UnplugDeviceReply:
            key, name = request_fields.machine_key(request.machine), request_fields.plain_name(request.name)
            return pb.UnplugDeviceReply(found=self._operations.unplug(key, name, due, caller=caller))

        about = _machine(request.machine) | {"device": request.name[:64]}
        return self._change(context, "UnplugDevice", about, pb.UnplugDeviceReply, work)

    def GetMachine(self, request: pb.GetMachineRequest, context: grpc.ServicerContext) -> pb.Machine:
        return self._read(
            context, "GetMachine", lambda: self._machine_message(request_fields.machine_key(request.machine))
        )

    def ListMachines(self, request: pb.ListMachinesRequest, context: grpc.ServicerContext) -> pb.ListMachinesReply:
        def read() -> pb.ListMachinesReply:
            machines = self._machines(namespace_filter(request.namespace))
            return pb.ListMachinesReply(machines=[machines[key] for key in sorted(machines)])

        return self._read(context, "ListMachines", read)

    def WatchMachines(
        self, request: pb.WatchMachinesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.MachineEvent]:
        with self._calls.failures_as_status(context, "WatchMachines"):
            space = namespace_filter(request.namespace)
            for change, key, machine in self._streams.watch(context, lambda: self._machines(space)):
                if change is ChangeKind.GONE and key is not None:
                    machine = pb.Machine(machine=replies.machine_ref(key))
                yield pb.MachineEvent(change=calls.CHANGES[change], machine=machine)

    def OpenConsole(
        self, request_iterator: Iterator[pb.ConsoleInput], context: grpc.ServicerContext
    ) -> Iterator[pb.ConsoleOutput]:
        with self._calls.failures_as_status(context, "OpenConsole"), self._consoles.one():
            first = next(request_iterator, pb.ConsoleInput())
            key = request_fields.machine_key(first.machine)
            self._operations.machine(key)  # whose error names the node
            caller = caller_of(context)
            with self._operations.machines.open_console(key) as connection:
                audit("console", machine=key, done="opened", uid=caller.uid, pid=caller.pid, program=caller.program)
                yield pb.ConsoleOutput(data=console.prompt(self._operations.machines.log_file(key, "console")))
                typed = (each.data for each in chain([first], request_iterator))
                for data in console.relay(connection, typed, context.is_active):
                    yield pb.ConsoleOutput(data=data)

    def ReadLog(self, request: pb.ReadLogRequest, context: grpc.ServicerContext) -> Iterator[pb.LogChunk]:
        with self._calls.failures_as_status(context, "ReadLog"), self._consoles.one():
            key = request_fields.machine_key(request.machine)
            self._operations.machine(key)
            path = self._operations.machines.log_file(key, request_fields.log_name(request.log))
            chunks = console.read_log(
                path, key, lines=request.lines, follow=request.follow, is_active=context.is_active
            )
            for chunk in chunks:
                yield pb.LogChunk(data=chunk)

    # Within.

    def _create(self, machine: VirtualMachine, claims: Iterable[pb.ClaimRef], due: Deadline, caller: str) -> pb.Machine:
        """Start or adopt a machine with its claims. Raises BadField, NodeError."""
        self._operations.check_offered(machine)
        refs = [self._operations.claims.named(ref, prepared=False) for ref in request_fields.claim_refs(claims)]
        self._operations.create(machine, refs, due, caller=caller)
        return self._machine_message("/".join(machine.key))

    def _machine_message(self, key: str) -> pb.Machine:
        machine = self._operations.seen(key)
        return self._as_message(machine, self._operations.claims.plugs(key))

    def _as_message(self, machine: MachineView, plugs: Iterable[PluggedDevice]) -> pb.Machine:
        report, guest = self._operations.report(machine.key), self._operations.guest_report(machine.key, machine.id)
        return replies.machine(machine, plugs, report, guest)

    def _machines(self, namespace: str) -> dict[str, pb.Machine]:
        plugs = [plug for held in self._operations.claims.held() for plug in held.plugs]
        return {
            machine.key: self._as_message(machine, [plug for plug in plugs if plug.machine == machine.key])
            for machine in self._operations.all_machines()
            if namespace in ("", machine.key.partition("/")[0])
        }


def _machine(machine: pb.MachineRef) -> dict[str, str]:
    return {"machine": f"{machine.namespace[:64] or 'default'}/{machine.name[:253]}"}


def _seconds(milliseconds: int) -> float | None:
    return milliseconds / 1000 if milliseconds else None
