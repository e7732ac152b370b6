"""``devalloc.node.v1``: the node plugin's own service, for platforms that run virtual machines.

The reference of the service is its .proto file. This module reads requests, ``MachineOperations`` does the work, and
the result goes to the caller, the audit log and the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import grpc

from devalloc.api.pool import DevicePool
from devalloc_node.binding.binding import HealthState
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal.audit_log import audit
from devalloc_node.machine import console
from devalloc_node.machine.records import MachineView
from devalloc_node.machine.spec import locking_seconds
from devalloc_node.machine_service.operations import MachineOperations
from devalloc_node.metrics.registry import NodeMetrics
from devalloc_node.model.step import PluggedDevice
from devalloc_node.operations.change_feed import ChangeKind, ChangeNotifier, WatcherSlots, watch_changes
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb import node_pb2_grpc
from devalloc_node.service import calls, replies, request_fields
from devalloc_node.service.peer_credentials import caller_of
from devalloc_node.service.server import Service

NAME = "devalloc.node.v1.Node"
WATCHERS = 8
"""Streams at a time; each takes one of the server's threads."""
CONSOLES = 16
"""Consoles and logs that are read at a time; each takes one of the server's threads."""
WATCH_SECONDS = 1.0
"""How often a watcher looks, when nothing tells that something changed."""

Key = TypeVar("Key")
Value = TypeVar("Value")
_CHANGES = {ChangeKind.IS: pb.CHANGE_IS, ChangeKind.GONE: pb.CHANGE_GONE, ChangeKind.SYNCED: pb.CHANGE_SYNCED}


@dataclass(frozen=True, slots=True)
class ServiceInfo:
    """What the service tells of the plugin and of the host. The functions are called for each request."""

    version: str
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
    """Safe for threads."""

    def __init__(
        self, operations: MachineOperations, about: ServiceInfo, metrics: NodeMetrics, notifier: ChangeNotifier
    ) -> None:
        """``notifier`` beats when something changed that watchers want to know."""
        self._operations = operations
        self._about = about
        self._calls = calls.CallHandler(metrics)
        self._change, self._read = self._calls.change, self._calls.read
        self._notifier = notifier
        self._places = WatcherSlots(WATCHERS)
        self._consoles = WatcherSlots(CONSOLES, "consoles and logs")

    def service(self) -> Service:
        """For the server."""
        return Service(NAME, lambda server: node_pb2_grpc.add_NodeServicer_to_server(self, server))

    # Claims.

    def PrepareClaim(self, request: pb.PrepareClaimRequest, context: grpc.ServicerContext) -> pb.PrepareClaimReply:
        def work(due: Deadline, caller: str) -> pb.PrepareClaimReply:
            ref = self._operations.claims.named(request_fields.claim_ref(request.claim), prepared=False)
            if request.dry_run:
                steps = [replies.step(step) for step in self._operations.claims.plan(ref, due)]
                return pb.PrepareClaimReply(claim=pb.Claim(claim=replies.ref(ref), steps=steps))
            return pb.PrepareClaimReply(
                claim=replies.claim(self._operations.claims.prepare(ref, due, caller=caller), steps=True)
            )

        return self._change(context, "PrepareClaim", _named(request.claim), pb.PrepareClaimReply, work)

    def UnprepareClaim(
        self, request: pb.UnprepareClaimRequest, context: grpc.ServicerContext
    ) -> pb.UnprepareClaimReply:
        def work(due: Deadline, caller: str) -> pb.UnprepareClaimReply:
            requested = request_fields.claim_ref(request.claim)
            try:
                ref = self._operations.claims.named(requested, prepared=True)
            except Denied as error:
                if error.code != "ClaimNotFound":
                    raise
                return pb.UnprepareClaimReply()  # unknown, and nothing of that name is prepared (T9)
            if request.dry_run:
                steps = [
                    replies.step_of_record(step)
                    for held in self._operations.claims.held(ref.uid)
                    for step in held.steps
                ]
                return pb.UnprepareClaimReply(steps=reversed(steps), found=bool(self._operations.claims.held(ref.uid)))
            was_prepared = bool(self._operations.claims.held(ref.uid))
            ended = self._operations.claims.unprepare(ref, due, force=request.force, caller=caller)
            return pb.UnprepareClaimReply(ended_machines=ended, found=was_prepared)

        about = _named(request.claim) | _forced(request.force)
        return self._change(context, "UnprepareClaim", about, pb.UnprepareClaimReply, work)

    def ListClaims(self, request: pb.ListClaimsRequest, context: grpc.ServicerContext) -> pb.ListClaimsReply:
        def read() -> pb.ListClaimsReply:
            space = request_fields.namespace_filter(request.namespace)
            matching = [held for held in self._operations.claims.held() if space in ("", held.record.ref.namespace)]
            matching.sort(key=lambda held: held.record.ref)
            return pb.ListClaimsReply(claims=[replies.claim(held, steps=request.steps) for held in matching])

        return self._read(context, "ListClaims", read)

    def AttachClaim(self, request: pb.AttachClaimRequest, context: grpc.ServicerContext) -> pb.AttachClaimReply:
        def work(due: Deadline, caller: str) -> pb.AttachClaimReply:
            key = request_fields.machine_key(request.machine)
            ref = self._operations.claims.named(request_fields.claim_ref(request.claim), prepared=False)
            plugs = self._operations.attach(ref, key, due, caller=caller)
            return pb.AttachClaimReply(devices=[replies.plugged_device(plug) for plug in plugs])

        about = _named(request.claim) | _machine(request.machine)
        return self._change(context, "AttachClaim", about, pb.AttachClaimReply, work, takes_back=True)

    def DetachClaim(self, request: pb.DetachClaimRequest, context: grpc.ServicerContext) -> pb.DetachClaimReply:
        def work(due: Deadline, caller: str) -> pb.DetachClaimReply:
            key = request_fields.machine_key(request.machine)
            ref = self._operations.claims.named(request_fields.claim_ref(request.claim), prepared=True)
            ended = self._operations.detach(ref, key, due, force=request.force, caller=caller)
            return pb.DetachClaimReply(ended_machine=bool(ended), found=ended is not None)

        about = _named(request.claim) | _machine(request.machine) | _forced(request.force)
        return self._change(context, "DetachClaim", about, pb.DetachClaimReply, work)

    # Machines.

    def CreateMachine(self, request: pb.CreateMachineRequest, context: grpc.ServicerContext) -> pb.CreateMachineReply:
        def work(due: Deadline, caller: str) -> pb.CreateMachineReply:
            machine = request_fields.machine_to_start(request, self._operations.node_name)
            self._operations.check_offered(machine)
            refs = [
                self._operations.claims.named(ref, prepared=False) for ref in request_fields.claim_refs(request.claims)
            ]
            self._operations.create(machine, refs, due, caller=caller)
            return pb.CreateMachineReply(machine=self._machine_message("/".join(machine.key)))

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
            self._operations.check_offered(machine)
            refs = [
                self._operations.claims.named(ref, prepared=False) for ref in request_fields.claim_refs(request.claims)
            ]
            self._operations.create(machine, refs, due, caller=caller)
            return pb.AdoptMachineReply(machine=self._machine_message("/".join(machine.key)))

        about = _machine(request.machine) | {"socket": request.qmp_socket}
        return self._change(context, "AdoptMachine", about, pb.AdoptMachineReply, work)

    def StopMachine(self, request: pb.StopMachineRequest, context: grpc.ServicerContext) -> pb.StopMachineReply:
        def work(due: Deadline, caller: str) -> pb.StopMachineReply:
            key = request_fields.machine_key(request.machine)
            self._operations.stop(key, _seconds(request.grace_ms), due, force=request.force, caller=caller)
            return pb.StopMachineReply(machine=self._machine_message(key))

        about = _machine(request.machine) | _forced(request.force)
        longer = request.grace_ms / 1000
        return self._change(context, "StopMachine", about, pb.StopMachineReply, work, longer=longer)

    def DeleteMachine(self, request: pb.DeleteMachineRequest, context: grpc.ServicerContext) -> pb.DeleteMachineReply:
        def work(due: Deadline, caller: str) -> pb.DeleteMachineReply:
            key = request_fields.machine_key(request.machine)
            grace = _seconds(request.grace_ms)
            existed = self._operations.delete(key, grace, due, force=request.force, caller=caller)
            return pb.DeleteMachineReply(found=existed)

        about = _machine(request.machine) | _forced(request.force)
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
                    results[what] = replies.done()
                except NodeError as error:
                    results[what] = replies.result(error)
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
            machines = self._machines(request_fields.namespace_filter(request.namespace))
            return pb.ListMachinesReply(machines=[machines[key] for key in sorted(machines)])

        return self._read(context, "ListMachines", read)

    def WatchMachines(
        self, request: pb.WatchMachinesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.MachineEvent]:
        with self._calls.failures_as_status(context, "WatchMachines"):
            space = request_fields.namespace_filter(request.namespace)
            for change, key, machine in self._watch(context, lambda: self._machines(space)):
                if change is ChangeKind.GONE and key is not None:
                    machine = pb.Machine(machine=replies.machine_ref(key))
                yield pb.MachineEvent(change=_CHANGES[change], machine=machine)

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

    # The node.

    def GetNode(self, request: pb.GetNodeRequest, context: grpc.ServicerContext) -> pb.GetNodeReply:
        def read() -> pb.GetNodeReply:
            try:
                journal = self._about.journal()
            except Failed as error:
                journal = pb.Journal(message=error.message)
            return pb.GetNodeReply(
                version=self._about.version,
                node_name=self._operations.node_name,
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
            for change, key, device in self._watch(context, lambda: self._devices(pool)):
                if change is ChangeKind.GONE and key is not None:
                    device = pb.Device(pool=key[0], device=key[1])
                yield pb.DeviceEvent(change=_CHANGES[change], device=device)

    def Rescan(self, request: pb.RescanRequest, context: grpc.ServicerContext) -> pb.RescanReply:
        def work(due: Deadline, caller: str) -> pb.RescanReply:
            pools = self._about.rescan(due)
            self._notifier.beat()
            return pb.RescanReply(pools=len(pools), devices=sum(len(pool.spec.devices) for pool in pools))

        return self._change(context, "Rescan", {}, pb.RescanReply, work)

    # Within.

    def _watch(
        self, context: grpc.ServicerContext, read: Callable[[], Mapping[Key, Value]]
    ) -> Iterator[tuple[ChangeKind, Key | None, Value | None]]:
        with self._places.one():
            context.add_callback(self._notifier.beat)  # so that one who leaves is not waited with
            yield from watch_changes(read, self._notifier, context.is_active, interval=WATCH_SECONDS)

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

    def _devices(self, pool: str) -> dict[tuple[str, str], pb.Device]:
        pools = [one for one in self._about.pools() if pool in ("", one.metadata.name)]
        return replies.devices(pools, self._operations.claims.held(), self._about.health())


def _named(claim: pb.ClaimRef) -> dict[str, str]:
    return {"claim": claim.uid[:64], "name": f"{claim.namespace[:64] or 'default'}/{claim.name[:253]}"}


def _machine(machine: pb.MachineRef) -> dict[str, str]:
    return {"machine": f"{machine.namespace[:64] or 'default'}/{machine.name[:253]}"}


def _forced(force: bool) -> dict[str, bool]:
    return {"forced": True} if force else {}


def _seconds(milliseconds: int) -> float | None:
    return milliseconds / 1000 if milliseconds else None
