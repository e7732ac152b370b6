"""Machines as a part of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from prometheus_client import Metric

from devalloc.inventory import pci
from devalloc.inventory.capacity import CapacityConfig, HostCapacity
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.settings import Network
from devalloc_machines.agent.settings import ScalingSettings
from devalloc_machines.qemu import lifecycle
from devalloc_machines.qemu.attachment import AttachmentKind
from devalloc_machines.qemu.lifecycle import MachineLifecycle
from devalloc_machines.qemu.records import MachineAmounts
from devalloc_machines.qemu.resources import HostUses
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import SandboxProvider
from devalloc_machines.service.metrics import guest_metrics, machine_metrics
from devalloc_machines.service.operations import MachineOperations, runs
from devalloc_machines.service.service import MachineService
from devalloc_machines.vms.guest_reports import GuestReports, ReportPorts
from devalloc_machines.vms.qemu_events import QemuEvents
from devalloc_machines.vms.requests import RequestLoop
from devalloc_node.errors import NodeError
from devalloc_node.model.grant import ClaimRef
from devalloc_node.model.step import ATTACHMENT, PreparedDevice, StepKind
from devalloc_node.node import ClaimSource, Node
from devalloc_node.operations.change_feed import machine_change
from devalloc_node.parts import Loop, MakePart, NodePart
from devalloc_node.service.server import Service
from devalloc_node.settings import NodeSettings


class MachineHomes(NodePart):
    """A part that has places where machines start at once. A node has one at most, before its machines."""

    homes: SandboxProvider = SandboxProvider()
    """Who gives them."""
    lent: Path | None = None
    """The folder of machines that wait there, which who takes such a place may adopt."""

    def uses(self) -> Iterable[MachineUsage]:
        """Return what all that waits or lives there takes of the host."""
        return ()


@dataclass(frozen=True, slots=True)
class MachineSource(ClaimSource):
    """Where this node's claims are found, and the objects of its machines."""

    permitted: Callable[[], Mapping[str, MachineAmounts]] = dict
    """What machines of the node are permitted, by key. Raises Failed."""
    settle: Callable[[MachineOperations], None] = lambda operations: None
    """As ``NodePart.settle``."""
    has_machine: Callable[[MachineOperations, str, str, str], bool] = lambda operations, key, uid, node_name: True
    """Whether the machine with this key, which was made for the object with this UID, belongs to the node with this
    name, which this node had before. Raises Failed."""
    settle_previous_name: Callable[[MachineOperations, str], None] = lambda operations, previous: None
    """As ``NodePart.settle_previous_name``."""


class Machines(NodePart):
    """All that runs machines on a node."""

    def __init__(self, node: Node, settings: MachineSettings) -> None:
        self._node = node
        self.settings = settings
        source = node.source
        fields = (source.kind, source.grants, source.uid_of)
        self.source = source if isinstance(source, MachineSource) else MachineSource(*fields)
        """Of their objects; without those it says that all of them are this node's."""
        warm = next((part for part in node.parts if isinstance(part, MachineHomes)), MachineHomes())
        self.homes = warm.homes
        host, changed = node.host, self._changed
        self.machines = MachineLifecycle(
            replace(settings.machines, lent=warm.lent, devices=node.devices, dry_run=settings.dry_run),
            node.journal,
            changed=changed,
            ended=node.metrics.ended,
            host=settings.capacity,
            homes=self.homes,
            uses=HostUses(warm.uses, self.source.permitted),
        )
        attachments = AttachmentKind(self.machines, host, lambda functions: pci.bar_sizes(host.tree(), functions))
        self._attachments = attachments
        self.operations = MachineOperations(
            node.held, self.machines, attachments, node_name=settings.node_name, changed=node.claims_changed
        )
        ports = ReportPorts(node.journal, self.machines.config)
        self.guest_reports = GuestReports(ports, self.operations.finish, changed=changed)
        self.operations.guest_report = self.guest_reports.report
        node.notifier.follow(self.guest_reports.hear)
        ports = ReportPorts(node.journal, self.machines.config, of_qemu=True)
        self.requests = RequestLoop(self.operations, node.notifier, resync=settings.resync)
        self._qemu_events = QemuEvents(ports, self._cpus_changed)
        node.notifier.follow(self._qemu_events.hear)

    def kinds(self) -> Mapping[str, StepKind]:
        return {ATTACHMENT: self._attachments}

    def lives(self, user: str) -> bool:
        return runs(self.machines, user)

    def address_of(self, ref: ClaimRef, device: PreparedDevice) -> str | None:
        """Return that of a machine in a warm setup."""
        with suppress(NodeError):  # a machine whose record cannot be read
            for plug in self._node.held.plugs_of(ref):
                record = self.machines.find(plug.machine) if plug.device == device.name else None
                network = self.homes.network(plug.machine, record.run) if record is not None else None
                if network is not None:
                    return network.address
        return None

    def kept_for(self, node_name: str) -> Sequence[str]:
        owners = [(key, uid) for key, uid in sorted(self.machines.owners().items()) if uid]
        has = partial(self.source.has_machine, self.operations)
        return [f"machine {key}" for key, uid in owners if has(key, uid, node_name)]

    def settle_previous_name(self, previous: str) -> None:
        self.source.settle_previous_name(self.operations, previous)

    def recover(self) -> None:
        self.machines.recover()

    def settle(self) -> None:
        self.source.settle(self.operations)

    def close(self) -> None:
        self.machines.close()

    def services(self) -> Sequence[Service]:
        return [MachineService(self.operations, self._node.metrics, self._node.streams).service()]

    def loops(self) -> Sequence[Loop]:
        return [
            partial(lifecycle.run_maintenance, self.machines),
            self.requests.run,
            self.guest_reports.run,
            self._qemu_events.run,
        ]

    def metrics(self) -> Iterable[Metric]:
        guests = self.guest_reports
        return chain(machine_metrics(self.machines.list()), guest_metrics(guests.metrics(), guests.dropped))

    def _changed(self, key: str) -> None:
        self._node.notifier.beat(machine_change(key))

    def _cpus_changed(self, key: str) -> None:
        """CPUs of a machine have stopped, or run again, without a command of ours."""
        self.machines.forget_look(key)
        self._changed(key)


def machines_of(node: Node) -> Machines:
    """Return the machines of a node that has some."""
    return next(part for part in node.parts if isinstance(part, Machines))


def machines_part(node: Node) -> Machines:
    """Make the part, for ``NodeSettings.parts`` of a node with MachineSettings."""
    assert isinstance(node.settings, MachineSettings), "its machines have no settings"
    return Machines(node, node.settings)


@dataclass(frozen=True, slots=True)
class MachineSettings(NodeSettings):
    """All settings of a node that has machines."""

    parts: tuple[MakePart, ...] = (machines_part,)
    machines: MachineConfig = field(default_factory=MachineConfig)
    """Where machines are on this host, and what of the host they may name."""
    capacity: HostCapacity | None = None
    """What all machines together may have of the host; the plugin starts none that does not fit. None: no limit."""
    limits: CapacityConfig = field(default_factory=CapacityConfig)
    """What the host may promise to machines, as it is configured; its permit server counts with it."""
    scaling: ScalingSettings | None = None
    """How machines with spec.scaling follow the load of their guests. None: they do not."""
    runners: tuple[Network, ...] = ()
    """Networks in which runners of machines may listen, for every client there. Empty: no runners."""
