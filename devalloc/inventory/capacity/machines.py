"""Resource usage of machines, as it counts against the limits of their host, and the shape of their bandwidth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devalloc.api.claim import DeviceAllocation
from devalloc.api.host_pool_names import CPU, DISK, DISK_IO, NETWORK
from devalloc.api.quantity import NANO, Quantity
from devalloc.api.virtual_machine import VirtualMachine
from devalloc.inventory.capacity.config import MILLI, Resource, resource_named

if TYPE_CHECKING:
    from devalloc.inventory.capacity.host import HostCapacity

BURST = 4
"""How many times its sustained rate a machine may use for a moment."""
_TBF_PERIODS = 250
"""A token bucket holds what comes in a tick of 4 ms."""
_MIN_BUCKET = 1540
"""Bytes: less than a frame in the bucket would let nothing through."""
TBF_LATENCY_MS = 50
"""Milliseconds that a packet may wait for its tokens before it is dropped."""


@dataclass(frozen=True, slots=True)
class DefaultRates:
    """Bytes per second, for a machine that asks for none; 0: its host's capacity is not known."""

    network: int
    """In each direction."""
    disk_io: int


def default_rates(host: HostCapacity, cpus: int) -> DefaultRates:
    """A machine's part of what its host really has, by its part of the host's CPUs: not of what may be promised, which
    would give all machines together more than there is. ``cpus``: thousandths of a CPU."""

    def part_of(capacity: int) -> int:
        return min(capacity, capacity * max(0, cpus) // host.cpu.capacity) if host.cpu.capacity else 0

    return DefaultRates(part_of(host.network.capacity), part_of(host.disk_io.capacity))


def bucket_bytes(rate: int, burst: int = BURST) -> int:
    """Bytes that a TBF bucket holds, in each direction: what passes at once after a pause."""
    return max(_MIN_BUCKET, rate * burst // _TBF_PERIODS)


ACTIVE = frozenset({"Running", "Paused", "Created", "Starting", "Stopping"})
"""States, letter for letter, in which a machine takes anything of its host. In all others (Stopped, Standby, Shutdown,
Unknown, …) it has given back all but what lies on the disk, which is counted with images and volumes."""


@dataclass(frozen=True, slots=True)
class MachineUsage:
    """What one machine takes of its host while it is active."""

    id: str
    name: str
    state: str
    cpu: int = 0
    """Thousandths of a CPU."""
    memory: int = 0
    """Bytes: what it may not be refused, which is more than what it has at the moment where it reserves its most."""
    overlay: int = 0
    """Bytes that its disks may take beyond the images below them."""
    volume_overlays: int = 0
    """The same for its volumes."""
    stored: int = 0
    """Bytes of its own disks that are counted with images, their cache or volumes: they do not count again."""
    volumes: int = 0
    """Bytes of the volumes themselves. They are counted with all volumes, not with their machine."""
    download: int = 0
    """Bytes per second to the machine."""
    upload: int = 0
    """Bytes per second from it."""
    disk_io: int = 0
    """Bytes per second to and from its disks."""
    gpus: int = 0
    """vGPUs and GPUs that it has already."""
    pages: Resource = "memory"
    """Where its memory comes from: ordinary pages, or huge ones of a size."""

    def __post_init__(self) -> None:
        amounts = (self.cpu, self.memory, self.overlay, self.volume_overlays, self.volumes, self.download, self.upload)
        if min(*amounts, self.disk_io, self.gpus, self.stored) < 0:
            raise ValueError(f"machine {self.id} cannot take less than nothing")

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    @property
    def disk(self) -> int:
        """Bytes of the disk that are its own, beyond what is counted with images, their cache and volumes."""
        return max(0, self.overlay - self.stored) + self.volume_overlays

    @property
    def network(self) -> int:
        """Bytes per second of the uplink: both ways share it."""
        return max(self.download, self.upload)


def minimum_usage(machine: VirtualMachine) -> tuple[int, int]:
    """Thousandths of a CPU and bytes of memory that a VirtualMachine counts for at least: its least, or its most where
    it reserves that from the start, so that no permit of it is ever refused (T25)."""
    spec = machine.spec
    cpus, memory = (spec.cpu.max, spec.memory.max) if spec.reserve_max else (spec.cpu.min, spec.memory.min)
    return _rounded_up(cpus, NANO // MILLI), _rounded_up(memory, NANO)


def machine_usage(machine: VirtualMachine) -> MachineUsage:
    """What a VirtualMachine takes: its floor, or what is kept for it, permitted, or was seen of it where that is more.

    A machine that does not answer counts as it was last seen, one that is placed and not begun as created.
    """
    status = machine.status
    cpu, memory = minimum_usage(machine)
    previous = None if status is None or status.permitted is None else status.permitted.kept
    for amounts in (status.permitted, previous, status.applied, status.observed) if status else ():
        if amounts is not None:
            cpu = max(cpu, _rounded_up(amounts.cpus, NANO // MILLI)) if amounts.cpus else cpu
            memory = max(memory, _rounded_up(amounts.memory, NANO)) if amounts.memory else memory
    placed = _reserved_amounts(machine)
    cpu = max(cpu, placed.get(CPU, 0) // (NANO // MILLI))
    memory = max(memory, placed.get(machine.spec.memory.resource, 0) // NANO)
    state: str = status.phase if status else "Pending"
    if state == "Pending" and placed:
        state = "Created"
    if state == "Unknown" and status is not None and (status.pid is not None or status.observed is not None):
        state = "Running"
    spec = machine.spec
    pages: Resource = resource_named(spec.memory.resource)
    network, disk_io, disk = (
        max(placed.get(name, 0) // NANO, _rounded_up(requested, NANO) if requested and not placed else 0)
        for name, requested in ((NETWORK, spec.network), (DISK_IO, spec.disk_io), (DISK, spec.disk))
    )
    return MachineUsage(
        id="/".join(machine.key),
        name=machine.metadata.name,
        state=state,
        cpu=cpu,
        memory=memory,
        overlay=disk,
        download=network,
        upload=network,
        disk_io=disk_io,
        pages=pages,
    )


def booking_usage(machine: VirtualMachine) -> MachineUsage | None:
    """What a migration reserves for a VirtualMachine on the node to which it is moving; None without one."""
    state = None if machine.status is None else machine.status.migration_state
    if state is None:
        return None
    amounts = _sum_by_resource(state.allocations)
    network = amounts.get(NETWORK, 0) // NANO
    return MachineUsage(
        id="/".join(machine.key),
        name=machine.metadata.name,
        state="Created",
        cpu=amounts.get(CPU, 0) // (NANO // MILLI),
        memory=amounts.get(machine.spec.memory.resource, 0) // NANO,
        overlay=amounts.get(DISK, 0) // NANO,
        download=network,
        upload=network,
        disk_io=amounts.get(DISK_IO, 0) // NANO,
        pages=resource_named(machine.spec.memory.resource),
    )


def _reserved_amounts(machine: VirtualMachine) -> dict[str, int]:
    """Nano units that its node keeps for it, by resource."""
    return _sum_by_resource((machine.status.allocations or ()) if machine.status else ())


def _sum_by_resource(entries: Iterable[DeviceAllocation]) -> dict[str, int]:
    by_resource: dict[str, int] = {}
    for entry in entries:
        for amount in entry.allocations or ():
            by_resource[amount.name] = by_resource.get(amount.name, 0) + amount.allocation.nano
    return by_resource


def _rounded_up(amount: Quantity, unit: int) -> int:
    """In units of so many nano, never less than the amount."""
    return max(0, -(-amount.nano // unit))
