"""Our own gRPC service on a real socket, over the real engine, a toy host and toy machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import grpc

from devalloc.api.pool import DevicePool
from devalloc.store import Store
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.lifecycle import MachineLifecycle as RealMachines
from devalloc_machines.service.operations import MachineOperations, runs
from devalloc_machines.service.service import MachineService
from devalloc_machines.vms import LoopExecution, MachineControls, VirtualMachineLoop
from devalloc_node.binding.binding import HealthState
from devalloc_node.claims.steps import planned_steps
from devalloc_node.metrics.registry import NodeMetrics
from devalloc_node.operations.change_feed import ChangeNotifier
from devalloc_node.operations.claim_registry import ClaimRegistry
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from devalloc_node.service.calls import ChangeStreams
from devalloc_node.service.node_service import NodeService, ServiceInfo
from devalloc_node.service.peer_credentials import PeerCredentialProxy, open_proxy
from devalloc_node.service.server import Service
from tests.support.machines import NoDeviceOwner
from tests.support.toy_host import EngineBench
from tests.support.toy_machines import ToyMachineAttachment, ToyMachines
from tests.support.vm_rounds import full_round


@dataclass
class Served:
    """A node plugin without a host, and a client of it."""

    bench: EngineBench
    machines: ToyMachines
    operations: MachineOperations
    metrics: NodeMetrics
    notifier: ChangeNotifier
    pools: list[DevicePool]
    health: dict[tuple[str, str], HealthState]
    door: PeerCredentialProxy
    node: NodeStub

    @property
    def socket(self) -> Path:
        return self.door.path


def platform_of(
    bench: EngineBench,
    machines: ToyMachines | RealMachines,
    notifier: ChangeNotifier | None = None,
    *,
    attachments: AttachmentKind | None = None,
) -> MachineOperations:
    """The platform of a bench that was made with the machines' attachments; toy machines are those themselves."""

    def uid_of(namespace: str, name: str) -> str | None:
        grants = bench.grants.grants.values()
        return next((g.ref.uid for g in grants if (g.ref.namespace, g.ref.name) == (namespace, name)), None)

    changed = notifier.beat if notifier is not None else lambda *changed: None
    held = ClaimRegistry(
        bench.claims,
        uid_of=uid_of,
        exclusive=bench.claims.locks.named,
        plan=lambda ref, due: planned_steps(bench.grants.get, lambda granted: bench.binding, bench.journal, ref, due),
        changed=changed,
        lives=lambda key: runs(cast(RealMachines, machines), key),
    )
    attached = cast(AttachmentKind, machines) if attachments is None else attachments
    return MachineOperations(held, cast(RealMachines, machines), attached, node_name="node-a", changed=changed)


def toy_bench(folder: Path, machines: ToyMachines) -> EngineBench:
    """An engine whose claims can be attached to toy machines."""
    return EngineBench(folder / "state", extra={"kinds": {"attachment": ToyMachineAttachment(machines)}})


class ToyLoop:
    """A store, machines in memory, and the loop between them, driven by hand."""

    def __init__(self, folder: Path, store: Store, controls: MachineControls | None = None) -> None:
        self.store, self.machines, self.now = store, ToyMachines(), 0.0
        self.bench = toy_bench(folder, self.machines)
        self.bench.start()
        self.operations = platform_of(self.bench, self.machines)
        self.operations.node_name = "node-a"
        self.loop = self.new_loop(controls)

    def new_loop(self, controls: MachineControls | None = None) -> VirtualMachineLoop:
        return VirtualMachineLoop(
            self.store,
            self.operations,
            ChangeNotifier(),
            execution=LoopExecution(lambda: self.now, lambda work: work()),
            controls=controls,
        )

    def round(self) -> None:
        self.now += 400.0
        full_round(self.loop)

    def status(self) -> Any:
        return self.store.get("VirtualMachine", "default", "web")["status"]


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """A service with its state and its socket in the folder."""
    machines, notifier, metrics = ToyMachines(), ChangeNotifier(), NodeMetrics()
    bench = toy_bench(folder, machines)
    operations = platform_of(bench, machines, notifier)
    pools: list[DevicePool] = []
    health: dict[tuple[str, str], HealthState] = {}
    door = open_proxy(folder / "node.sock", _services(operations, _about(bench, pools, health), metrics, notifier))
    channel = grpc.insecure_channel(f"unix:{door.path}")
    try:
        node = NodeStub(channel)
        yield Served(bench, machines, operations, metrics, notifier, pools, health, door, node)
    finally:
        channel.close()
        door.stop(0.5)


@contextmanager
def serving(folder: Path, machines: RealMachines, *claims: tuple[str, str]) -> Iterator[Path]:
    """The service of real machines: its socket. ``claims``: names of claims, each with the device of the toy host that
    it has (``pool/device``); what that is in a machine the test says."""
    notifier = ChangeNotifier()
    attachments = AttachmentKind(machines, NoDeviceOwner())
    bench = EngineBench(folder / "claims", extra={"kinds": {"attachment": attachments}})
    for name, device in claims:
        bench.grants.add(f"uid-{name}", device, name=name)
    operations = platform_of(bench, machines, notifier, attachments=attachments)
    door = open_proxy(folder / "node.sock", _services(operations, _about(bench, [], {}), NodeMetrics(), notifier))
    try:
        yield door.path
    finally:
        door.stop(0.5)


def _services(
    operations: MachineOperations, about: ServiceInfo, metrics: NodeMetrics, notifier: ChangeNotifier
) -> list[Service]:
    streams = ChangeStreams(notifier)
    claims = NodeService(operations.claims, about, metrics, streams)
    return [claims.service(), MachineService(operations, metrics, streams).service()]


def _about(bench: EngineBench, pools: list[DevicePool], health: dict[tuple[str, str], HealthState]) -> ServiceInfo:
    return ServiceInfo(
        version="1.2.3",
        node_name="node-a",
        boot_id="boot-1",
        started_ms=1_700_000_000_000,
        journal=lambda: pb.Journal(path=str(bench.folder), prepared_claims=len(bench.claims.prepared())),
        pools=lambda: pools,
        rescan=lambda due: pools,
        health=lambda: health,
    )
