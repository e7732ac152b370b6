"""Whether a host has room for one more machine, and the room that is kept for those that are being made.

Between the moment a machine is admitted and the moment it shows up in the list of machines, nothing but its
*reservation* says that its room is taken. So the maker of a machine holds a reservation in the meantime::

    with admission.reserved(machine_id, request):   # raises Insufficient
        ...                                         # make the machine; from here on it is listed

**Threads.** One lock makes one step of it: list the machines, add what is reserved, compare, write down. A machine
that is listed *and* reserved counts once, with the larger of each amount, so it does not matter how long after it is
listed its reservation ends. The list is read inside the lock, as a list read before could lack a machine whose
reservation has ended since. It must therefore be quick, and must not ask for admission itself.

**Processes and crashes.** Reservations live in the one process that makes machines on a host, and end with it: a
machine that was made is in the next list, one that was not holds nothing. Nothing has to be cleaned up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from devalloc.inventory.capacity.config import RESOURCES, Capacity, Resource, format_size
from devalloc.inventory.capacity.gpus import GpuStatus
from devalloc.inventory.capacity.host import HostCapacity
from devalloc.inventory.capacity.machines import MachineUsage
from devalloc.inventory.capacity.status import (
    NO_AMOUNTS,
    DiskUsageSources,
    ResourceAmounts,
    cpu_number,
    list_machines,
    machine_amounts,
    stored_bytes,
    sum_amounts,
)

_NAMES: dict[Resource, str] = {
    "cpu": "CPU",
    "memory": "memory",
    "disk": "disk",
    "network": "network bandwidth",
    "disk_io": "disk I/O",
    "hugepages-2Mi": "huge pages of 2Mi",
    "hugepages-1Gi": "huge pages of 1Gi",
}
_RATES = frozenset({"network", "disk_io"})


@dataclass(frozen=True, slots=True)
class Request:
    """What a machine is to take of its host in all, whatever it has already. What is 0 is not asked for and not looked
    at, however little is left."""

    cpu: int = 0
    """Thousandths of a CPU."""
    memory: int = 0
    """Bytes in ordinary pages: huge ones are looked for on the host itself when a machine takes them."""
    disk: int = 0
    """Bytes."""
    download: int = 0
    """Bytes per second to the machine."""
    upload: int = 0
    """Bytes per second from it."""
    disk_io: int = 0
    """Bytes per second."""
    gpus: int = 0
    """vGPUs, or cards where there are none."""
    profile: str | None = None
    """Of which profile the vGPUs are to be, by name or id; of any where nothing is said."""

    def __post_init__(self) -> None:
        for name in ("cpu", "memory", "disk", "download", "upload", "disk_io", "gpus"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} cannot be negative, and is {getattr(self, name)}")

    @property
    def amounts(self) -> ResourceAmounts:
        """Both ways share the uplink, so of the two the larger counts."""
        return ResourceAmounts(self.cpu, self.memory, self.disk, max(self.download, self.upload), self.disk_io)


class Insufficient(Exception):
    """A request that the host has no room for. Nothing is wrong: it may fit later, or elsewhere."""

    def __init__(self, message: str, resource: str) -> None:
        super().__init__(message)
        self.resource = resource
        """The first that is short: one of RESOURCES, or ``gpu``."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What counts against one resource."""

    capacity: Capacity
    allocated: int
    """By machines that are listed, and for the disk by what else lies there."""
    reserved: int = 0
    """By reservations, beyond that."""

    @property
    def available(self) -> int:
        return max(0, self.capacity.effective_limit - self.allocated - self.reserved)


class Admission:
    """Who may still be made on a host. All methods may be called from any thread."""

    def __init__(
        self,
        host: HostCapacity,
        machines: Callable[[], Iterable[MachineUsage]],
        stores: DiskUsageSources | None = None,
        gpus: Callable[[], GpuStatus | None] = lambda: None,
    ) -> None:
        """``machines``: the machines of the host as they are now, those included whose reservation has just ended."""
        self._host, self._machines, self._stores, self._gpus = host, machines, stores or DiskUsageSources(), gpus
        self._lock = threading.Lock()
        self._reservations: dict[str, Request] = {}
        self._ended = 0
        """Reservations that have ended: what was known of the GPUs before one did may lack what it was for."""

    def reserve(self, machine_id: str, request: Request) -> None:
        """Keep room for a machine until ``finish``. Another reservation of the same machine is replaced, not added to.

        Raises Insufficient, and then a former reservation of the machine stands as it was; UsageUnknown when what
        counts cannot be told.
        """
        if not machine_id:
            raise ValueError("a reservation needs the machine's id")
        self._admit(machine_id, request, keep=True)

    def finish(self, machine_id: str) -> None:
        """End a machine's reservation: the machine is listed by now, or is not going to be. Fine when there is none."""
        with self._lock:
            if self._reservations.pop(machine_id, None) is not None:
                self._ended += 1

    @contextmanager
    def reserved(self, machine_id: str, request: Request) -> Iterator[None]:
        """Room for a machine while it is made. Raises as ``reserve``; ends the reservation in any case."""
        self.reserve(machine_id, request)
        try:
            yield
        finally:
            self.finish(machine_id)

    def validate(self, request: Request, machine_id: str = "") -> None:
        """Whether a machine would be admitted now; nothing is kept. What the machine itself has does not count.

        Raises as ``reserve``."""
        self._admit(machine_id, request, keep=False)

    def can_allocate(self, resource: str, amount: int) -> bool:
        """Whether so much of one resource is left beside all machines and reservations; exactly what is left is.

        Raises ValueError for a resource that admission does not know, or a negative amount; UsageUnknown.
        """
        supported = next((each for each in RESOURCES if each == resource), None)
        if supported is None:
            raise ValueError(f"unsupported admission resource type: {resource} (there are {', '.join(RESOURCES)})")
        if amount < 0:
            raise ValueError(f"{resource} cannot be negative, and is {amount}")
        with self._lock:
            return amount <= self._rooms("", {supported})[supported].available

    @property
    def reservations(self) -> dict[str, Request]:
        """What is kept at the moment, by machine."""
        with self._lock:
            return dict(self._reservations)

    def _admit(self, machine_id: str, request: Request, *, keep: bool) -> None:
        # Looking at the GPUs takes long, so it is done before, and again only when it may be out of date by now.
        seen = self._ended
        gpus = self._look() if request.gpus else None
        with self._lock:
            amounts = request.amounts
            wanted = {resource for resource in RESOURCES if amounts.of(resource) > 0}
            rooms = self._rooms(machine_id, wanted) if wanted else {}
            for resource in RESOURCES:
                if resource in wanted and amounts.of(resource) > rooms[resource].available:
                    raise Insufficient(shortage_message(rooms[resource], amounts.of(resource)), resource)
            if gpus is not None:
                gpus = gpus if seen == self._ended else self._look()
                if (message := self._gpu_shortage(*gpus, request, machine_id)) is not None:
                    raise Insufficient(message, "gpu")
            if keep:
                self._reservations[machine_id] = request

    def _look(self) -> tuple[GpuStatus | None, dict[str, int]]:
        """The GPUs, and how many of them each machine has. In this order the GPUs of a machine that gets them just now
        count twice at worst, and never not at all."""
        have = {machine.id: machine.gpus for machine in list_machines(self._machines) if machine.is_active}
        return self._gpus(), have

    def _rooms(self, without: str, wanted: Iterable[Resource]) -> Mapping[Resource, Headroom]:
        """What counts for some resources, but for one machine. Under the lock."""
        listed = dict[str, ResourceAmounts]()
        for machine in list_machines(self._machines):
            if machine.id != without:
                taken = machine_amounts(machine)
                listed[machine.id] = sum_amounts((listed[machine.id], taken)) if machine.id in listed else taken
        both = {
            machine_id: listed.get(machine_id, NO_AMOUNTS).most(request.amounts)
            for machine_id, request in self._reservations.items()
            if machine_id != without
        }
        allocated, counted = sum_amounts(listed.values()), sum_amounts((listed | both).values())
        rooms = {}
        for resource in wanted:
            own, all_of_it = allocated.of(resource), counted.of(resource)
            elsewhere = stored_bytes(self._stores) if resource == "disk" else 0
            rooms[resource] = Headroom(self._host.of(resource), own + elsewhere, all_of_it - own)
        return rooms

    def _gpu_shortage(
        self, gpus: GpuStatus | None, have: Mapping[str, int], request: Request, machine_id: str
    ) -> str | None:
        """Why there are not as many GPUs beside all that are reserved; None when there are. Under the lock."""
        if gpus is None:
            return "insufficient GPU: no GPU available on this host"
        if gpus.disabled:
            return f"insufficient GPU: vGPU placement is disabled: {gpus.disabled}"
        rooms = gpus.remaining_gpus()
        for other, reservation in self._reservations.items():
            if other != machine_id:
                rooms.take(reservation.profile, max(0, reservation.gpus - have.get(other, 0)))
        more = max(0, request.gpus - have.get(machine_id, 0))
        free = rooms.take(request.profile, more)
        if free >= more:
            return None
        slots = f"{gpus.mode} slots"
        if request.profile is not None and gpus.mode == "vgpu":
            slots = f"{slots} of {request.profile}"
        counts = f"{gpus.total} total, {gpus.used} in use"
        if free == 0:
            return f"insufficient GPU: no allocatable {slots} available ({counts})"
        return f"insufficient GPU: requested {more} {slots}, but only {free} available ({counts})"


def shortage_message(room: Headroom, requested: int) -> str:
    """The refusal of a request for more of a resource than is available, for people."""
    resource, limit = room.capacity.resource, room.capacity.effective_limit
    reserved = f", reserved for machines being made: {_text(resource, room.reserved)}" if room.reserved else ""
    available, allocated = _text(resource, room.available), _text(resource, room.allocated)
    text = (
        f"insufficient {_NAMES[resource]}: requested {_text(resource, requested)}, but only {available} available "
        f"(currently allocated: {allocated}{reserved}, "
        f"effective limit: {_text(resource, limit)} with {float(room.capacity.ratio):.1f}x oversubscription)"
    )
    if room.capacity.source == "unknown":
        return f"{text}; the capacity of this host is unknown: configure its limit"
    return text


def _text(resource: Resource, amount: int) -> str:
    if resource == "cpu":
        return f"{cpu_number(amount)} vCPU{'' if amount == 1000 else 's'}"
    return format_size(amount) + ("/s" if resource in _RATES else "")
