"""Our own gRPC service on a real socket, over the real engine, a toy host and toy machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from devalloc.api.pool import DevicePool
from devalloc_node.binding.binding import Health
from devalloc_node.held import HeldClaims
from devalloc_node.machine.attachment import AttachmentKind
from devalloc_node.machine.machines import Machines as RealMachines
from devalloc_node.metrics import Metrics
from devalloc_node.parts import Attachments, Machines
from devalloc_node.pb import node_pb2 as pb
from devalloc_node.pb.node_pb2_grpc import NodeStub
from devalloc_node.plan import planned
from devalloc_node.platform import Platform
from devalloc_node.service.door import Door, open_door
from devalloc_node.service.node import About, NodeService
from devalloc_node.service.watching import Pulse
from tests.support.machines import NoNodes
from tests.support.toyhost import Bench
from tests.support.toymachines import ToyAttachment, ToyMachines


@dataclass
class Served:
    """A node plugin without a host, and a client of it."""

    bench: Bench
    machines: ToyMachines
    platform: Platform
    metrics: Metrics
    pulse: Pulse
    pools: list[DevicePool]
    health: dict[tuple[str, str], Health]
    door: Door
    node: NodeStub

    @property
    def socket(self) -> Path:
        return self.door.path


def platform_of(
    bench: Bench, machines: Machines, pulse: Pulse | None = None, *, attachments: Attachments | None = None
) -> Platform:
    """The platform of a bench that was made with the machines' attachments; toy machines are those themselves."""

    def uid_of(namespace: str, name: str) -> str | None:
        grants = bench.grants.grants.values()
        return next((g.ref.uid for g in grants if (g.ref.namespace, g.ref.name) == (namespace, name)), None)

    held = HeldClaims(
        bench.claims,
        cast(Attachments, machines) if attachments is None else attachments,
        uid_of=uid_of,
        exclusive=bench.claims.locks.named,
        plan=lambda ref, due: planned(bench.grants.get, lambda granted: bench.binding, bench.journal, ref, due),
    )
    return Platform(
        held,
        machines,
        node_name="node-a",
        changed=pulse.beat if pulse is not None else lambda *changed: None,
    )


def toy_bench(folder: Path, machines: ToyMachines) -> Bench:
    """An engine whose claims can be attached to toy machines."""
    return Bench(folder / "state", extra={"kinds": {"attachment": ToyAttachment(machines)}})


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """A service with its state and its socket in the folder."""
    machines, pulse, metrics = ToyMachines(), Pulse(), Metrics()
    bench = toy_bench(folder, machines)
    platform = platform_of(bench, machines, pulse)
    pools: list[DevicePool] = []
    health: dict[tuple[str, str], Health] = {}
    service = NodeService(platform, _about(bench, pools, health), metrics, pulse)
    door = open_door(folder / "node.sock", [service.service()])
    channel = grpc.insecure_channel(f"unix:{door.path}")
    try:
        node = NodeStub(channel)
        yield Served(bench, machines, platform, metrics, pulse, pools, health, door, node)
    finally:
        channel.close()
        door.stop(0.5)


@contextmanager
def serving(folder: Path, machines: RealMachines, *claims: tuple[str, str]) -> Iterator[Path]:
    """The service of real machines: its socket. ``claims``: names of claims, each with the device of the toy host that
    it has (``pool/device``); what that is in a machine the test says."""
    pulse = Pulse()
    attachments = AttachmentKind(machines, NoNodes())
    bench = Bench(folder / "claims", extra={"kinds": {"attachment": attachments}})
    for name, device in claims:
        bench.grants.add(f"uid-{name}", device, name=name)
    platform = platform_of(bench, machines, pulse, attachments=attachments)
    service = NodeService(platform, _about(bench, [], {}), Metrics(), pulse)
    door = open_door(folder / "node.sock", [service.service()])
    try:
        yield door.path
    finally:
        door.stop(0.5)


def _about(bench: Bench, pools: list[DevicePool], health: dict[tuple[str, str], Health]) -> About:
    return About(
        version="1.2.3",
        boot_id="boot-1",
        started_ms=1_700_000_000_000,
        journal=lambda: pb.Journal(path=str(bench.folder), prepared_claims=len(bench.claims.prepared())),
        pools=lambda: pools,
        rescan=lambda due: pools,
        health=lambda: health,
    )
