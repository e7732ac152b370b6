"""VirtualMachine: a machine on one node, and how far it scales."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from devalloc.api import host_pool_names
from devalloc.api.claim import DeviceAllocation, priority_fault
from devalloc.api.fields import (
    RELATED,
    AmountField,
    ApiModel,
    Bytes,
    BytesPerSecond,
    Cpus,
    FieldFault,
    Int64,
    Mac,
    PlainName,
    Positive,
    SubdomainName,
    Text,
    Unit,
    name_fault,
    quote_value,
    raise_faults,
    unique_by,
)
from devalloc.api.host_names import InterfaceName, SocketPath
from devalloc.api.machine_start import MAX_NUMA_NODES, MachineStart
from devalloc.api.meta import DEVALLOC, LAST_NODE, PRIORITY
from devalloc.api.object_meta import Condition, ObjectMeta
from devalloc.api.problems import Problem
from devalloc.api.quantity import NANO, Quantity, QuantityError

MIB = 2**20
GIB = 2**30
MEMORY_BLOCK = 2 * MIB
"""Block size of virtio-mem in bytes."""
SLOT_BLOCK = 128 * MIB
"""Bytes of a block of DIMM memory that a guest brings online."""
MAX_SLOTS = 255
"""Maximum DIMM slots of a machine."""
MAX_CPUS = 1024
MIN_CPU = NANO // 100
"""The minimum share of a CPU, in nano: kernels limit CPU time in steps of at least 1 ms per 100 ms."""


def _bounds_faults(least: Quantity, most: Quantity, use: Quantity | None) -> list[FieldFault]:
    """The violations of min <= use <= max."""
    if most < least:
        return [(("max",), f"must not be below min ({least}), but is {most}")]
    if use is not None and use < least:
        return [(("use",), f"must not be below min ({least}), but is {use}")]
    if use is not None and most < use:
        return [(("use",), f"must not be above max ({most}), but is {use}")]
    return []


class CpuBounds(ApiModel):
    """CPUs of a machine: the guest sees whole CPUs, and gets the CPU time of ``use``, which may be a fraction such as
    500m."""

    min: Cpus
    """The minimum, at least 10m."""
    max: Cpus
    """The maximum. The machine starts with room for that many CPUs, rounded up."""
    use: Cpus | None = None
    """The current amount; min by default."""

    @model_validator(mode="after")
    def _ordered(self) -> CpuBounds:
        faults = _bounds_faults(self.min, self.max, self.use)
        if self.min.nano < MIN_CPU:
            faults.append(
                (("min",), f"must be at least 10m, the smallest limit that a host can enforce, but is {self.min}")
            )
        if self.max.nano > MAX_CPUS * NANO:
            faults.append((("max",), f"must not be above {MAX_CPUS}, but is {self.max}"))
        raise_faults(faults, RELATED)
        return self

    @property
    def wanted(self) -> Quantity:
        """``use``, or min."""
        return self.use or self.min

    @property
    def slots(self) -> int:
        """The maximum, as whole CPUs."""
        return whole_cpus(self.max)


def whole_cpus(amount: Quantity) -> int:
    """The whole CPUs that a guest needs for an amount."""
    return -(-amount.nano // NANO)


class MemoryBounds(ApiModel):
    """Bytes of memory of a machine. It starts with min; memory above min is added and removed by the method."""

    min: Bytes
    """The minimum, a multiple of 2Mi."""
    max: Bytes
    """The maximum."""
    use: Bytes | None = None
    """The current amount; min by default."""
    method: Literal["virtio-mem", "dimm"] = "virtio-mem"
    """How memory is added: in blocks of 2Mi (virtio-mem), or in DIMMs of slotSize, which older guests support."""
    slot_size: Bytes | None = None
    """The size of a DIMM, a multiple of 128Mi; only with method dimm."""
    huge_pages: Literal["2Mi", "1Gi"] | None = None
    """The size of the huge pages that all of its memory comes from; ordinary pages by default. The host must have set
    them aside. All amounts of memory are then multiples of this size."""

    @model_validator(mode="after")
    def _fit(self) -> MemoryBounds:
        faults: list[FieldFault] = []
        block, size = (GIB, "1Gi") if self.huge_pages == "1Gi" else (MEMORY_BLOCK, "2Mi")
        amounts = (("min", self.min), ("max", self.max), ("use", self.use), ("slotSize", self.slot_size))
        for name, amount in amounts if self.huge_pages == "1Gi" else amounts[:3]:
            if amount is not None and not _is_multiple(amount, block):
                faults.append(((name,), _multiple_words(amount, block, size)))
        raise_faults(faults or _bounds_faults(self.min, self.max, self.use) or self._slot_faults(), RELATED)
        return self

    def _slot_faults(self) -> list[FieldFault]:
        slot = self.slot_size
        if self.method != "dimm":
            return [] if slot is None else [(("slotSize",), "needs method dimm")]
        if slot is None:
            return [(("slotSize",), "is required with method dimm")]
        if not _is_multiple(slot, SLOT_BLOCK):
            return [(("slotSize",), _multiple_words(slot, SLOT_BLOCK, "128Mi"))]
        above = [("max", self.max - self.min)] + ([] if self.use is None else [("use", self.use - self.min)])
        faults: list[FieldFault] = [
            ((name,), f"must be min ({self.min}) plus a multiple of slotSize ({slot})")
            for name, amount in above
            if amount.nano % slot.nano
        ]
        if above[0][1].nano // slot.nano > MAX_SLOTS:
            faults.append((("max",), f"must be at most {MAX_SLOTS} times slotSize ({slot}) above min ({self.min})"))
        return faults

    @property
    def wanted(self) -> Quantity:
        """``use``, or min."""
        return self.use or self.min

    @property
    def resource(self) -> str:
        """What a host's pool calls the memory that it comes from."""
        return host_pool_names.MEMORY if self.huge_pages is None else host_pool_names.HUGE_PAGES[self.huge_pages]

    @property
    def slots(self) -> int:
        """The number of DIMM slots; 0 with virtio-mem."""
        return (self.max - self.min).nano // self.slot_size.nano if self.slot_size is not None else 0


def _is_multiple(amount: Quantity, of: int) -> bool:
    return amount.nano % (of * NANO) == 0


def _multiple_words(amount: Quantity, block: int, size: str) -> str:
    """That an amount is not a multiple of ``block``, which is written ``size``; and what was meant by M for Mi."""
    try:
        meant = Quantity.parse(f"{amount}i".replace("k", "K"))
        hint = f"; did you mean {meant}?" if _is_multiple(meant, block) else ""
    except QuantityError:
        hint = ""
    return f"must be a multiple of {size}, but is {amount}{hint}"


class MachineAdopt(ApiModel):
    """A QEMU that is already running."""

    qmp_socket: SocketPath
    """Its QMP socket, below one of the folders that the node's admin lists, and owned by the plugin's user."""


class MachineNic(ApiModel):
    """An emulated network card, in addition to the devices of claims."""

    model: Literal["virtio", "e1000e"] = "virtio"
    """The card that the guest sees."""
    backend: Literal["user", "tap", "warm"] = "user"
    """``user``: through the host's own sockets; nothing can reach the guest from outside. ``tap``: a TAP interface.
    ``warm``: the TAP interface of one of the node's warm setups, in whose network namespace the machine runs."""
    interface: InterfaceName | None = None
    """The TAP interface, which must exist."""
    bandwidth: BytesPerSecond | None = None
    """The rate in each direction that its node reserves for it, and that a card on a TAP interface cannot exceed. By
    default it has no limit and shares the unreserved bandwidth."""
    mac: Mac | None = None
    """A unicast MAC address; by default one that is derived from the machine's identity and never changes."""

    @model_validator(mode="after")
    def _interface_of_tap(self) -> MachineNic:
        if self.backend == "tap" and self.interface is None:
            raise_faults([(("interface",), "is required with backend tap")], RELATED)
        if self.backend != "tap" and self.interface is not None:
            raise_faults([(("interface",), "needs backend tap")], RELATED)
        return self


MAX_MINUTES = 24 * 60
"""Guests report one working set per minute, for at most a day."""


def _address(value: object) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        if not isinstance(value, str) or "%" in value:
            raise ValueError
        return ipaddress.ip_address(value)
    except ValueError:
        raise ValueError(f"must be an IPv4 or IPv6 address, not {quote_value(value)}") from None


def _guest_address(value: object) -> object:
    address = _address(value)
    if address.is_loopback or address.is_unspecified or address.is_multicast or address.is_link_local:
        raise ValueError(f"must be an address that only a guest can have, not {address}")
    return str(address)


def _own_address(value: object) -> object:
    address = _address(value)
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"must be an address of the node, not {address}")
    return str(address)


OwnAddress = Annotated[str, BeforeValidator(_own_address), WithJsonSchema({"type": "string", "maxLength": 45})]
GuestAddress = Annotated[str, BeforeValidator(_guest_address), WithJsonSchema({"type": "string", "maxLength": 45})]
Port = Annotated[int, Field(ge=1, le=65535)]


def _between_zero_and(most: int | None) -> Callable[[Quantity], Quantity]:
    def check(amount: Quantity) -> Quantity:
        if amount.nano <= 0 or (most is not None and amount.nano >= most * NANO):
            bound = "" if most is None else f" and less than {most}"
            raise ValueError(f"must be more than 0{bound}, but is {amount}")
        return amount

    return check


Fraction = Annotated[Positive, AfterValidator(_between_zero_and(1))]


class MachineScaling(ApiModel):
    """CPUs and memory follow the guest's load, between min and max, as far as permits allow. The guest runs
    ``devalloc guest-monitor``, or another monitor and exporter with the same protocols.

    Fields without a value take it from the node's settings."""

    address: GuestAddress | None = None
    """The address at which the node reaches the guest. With a network card with backend warm, it can be left out: it is
    then the one that the guest has in the network of its node's warm setups."""
    protocol: Literal["monitor", "informant"] = "monitor"
    """The guest's protocol: that of the guest monitor, or that of informants, which older guests run. An informant also
    sends requests to the node, so it must be able to reach it."""
    monitor_port: Port = 10301
    """The port of the guest's monitor or informant. It must agree before memory is removed, and can request more."""
    metrics_port: Port = 9100
    """The port of the guest's metrics: load and memory. An informant names this port itself."""
    load_average_fraction_target: Annotated[Positive, AfterValidator(_between_zero_and(2))] | None = None
    """The load average to aim for, as a fraction of its CPUs, below 2, such as 900m."""
    memory_usage_fraction_target: Fraction | None = None
    """The memory usage to aim for, as a fraction of its memory, below 1."""
    memory_total_fraction_target: Fraction | None = None
    """The sum of memory usage and the cached part of its cache's working set to aim for, as a fraction of its memory,
    below 1."""
    enable_lfc_metrics: Annotated[bool | None, Field(alias="enableLFCMetrics")] = None
    """Whether to include its local file cache (LFC), whose metrics are then read."""
    lfc_metrics_port: Port = 9499
    """The port of the metrics of its local file cache."""
    lfc_to_memory_ratio: Annotated[Positive, AfterValidator(_between_zero_and(None))] | None = None
    """The fraction of its memory that its local file cache may use."""
    lfc_window_size_minutes: Annotated[int, Field(ge=2, le=MAX_MINUTES), Unit("minutes")] | None = None
    """The width of the windows for comparing the growth of the cache's working set."""
    lfc_min_wait_before_downscale_minutes: Annotated[int, Field(ge=1, le=MAX_MINUTES), Unit("minutes")] | None = None
    """The minimum time for which a working set counts; at least the window, if windows are compared."""
    lfc_use_largest_window: bool | None = None
    """Use the working set of the longest known time, instead of comparing windows."""
    cpu_stable_zone_ratio: AmountField | None = None
    """Ignore the load over 1 minute while it differs from the load over 5 minutes by at most this fraction."""
    cpu_mixed_zone_ratio: AmountField | None = None
    """The range beyond the stable zone, as a fraction of the load over 5 minutes, in which the two are mixed."""

    @model_validator(mode="after")
    def _window_within_wait(self) -> MachineScaling:
        window, wait = self.lfc_window_size_minutes, self.lfc_min_wait_before_downscale_minutes
        if window is not None and wait is not None and wait < window and not self.lfc_use_largest_window:
            what = f"must be at least lfcWindowSizeMinutes ({window}), but is {wait}"
            raise_faults([(("lfcMinWaitBeforeDownscaleMinutes",), what)], RELATED)
        return self


class MachineRunner(ApiModel):
    """A controller sets the CPU time of its CPUs with the protocol of runners: ``/cpu_change`` and ``/cpu_current``."""

    address: OwnAddress
    """An address of the node, for this machine alone, in a network that the node's admin lists. The runner obeys
    everyone who can connect."""
    port: Port = 25183
    """The port of the protocol at that address."""


class MachineAmounts(ApiModel):
    """CPUs and bytes of memory, as far as known."""

    cpus: Annotated[AmountField, Unit("CPUs")] | None = None
    """CPU time, in CPUs."""
    memory: Annotated[AmountField, Unit("bytes")] | None = None
    """Memory."""


class MachinePermit(MachineAmounts):
    """The maximum that the machine may have, and the source of the permit. A permit is for one run of the machine."""

    given_by: Text = ""
    """The server that granted the permit; empty if only the machine's own bounds limit it."""
    machine_id: Annotated[Text, Field(alias="machineID")] = ""
    """The run of the machine to which it was granted; any run if that was not known."""
    kept: MachineAmounts | None = None
    """The previous permit, if it was larger and the agent has not yet confirmed the new one; the machine counts with
    the larger amount until then."""


class MachineDevice(ApiModel):
    """A device that is plugged into the machine."""

    claim: SubdomainName
    """The claim that has it."""
    pool: PlainName
    """Its DevicePool."""
    device: PlainName
    """Its name in that pool."""
    id: Text = ""
    """Its id in QEMU."""
    address: Text = ""
    """Its PCI address in the guest, such as 0000:01:00.0, if known."""


class MachineEnd(ApiModel):
    """The end of a run of the machine that no one asked for."""

    time: Text
    """When its node noticed it; RFC 3339."""
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    """The exit code of QEMU, if it ended by itself and the host's kernel tells."""
    signal: Annotated[int, Field(ge=1, le=255)] | None = None
    """The signal that ended QEMU, if one did and the host's kernel tells: 9 also if the host had no memory left."""
    message: Annotated[str, Field(max_length=2048)] = ""
    """The last lines that QEMU wrote."""


class MachineNumaNode(ApiModel):
    """A NUMA node of the machine's guest, which stands for one of the host."""

    host_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)]
    """The NUMA node of the host that its CPUs and memory come from."""
    cpus: Annotated[AmountField, Unit("CPUs")]
    """The CPU time that was reserved there when the machine started. CPUs that come and go are shared out alike."""
    memory: Annotated[AmountField, Unit("bytes")]
    """The memory that was reserved there when the machine started. Memory that comes and goes is shared out alike."""


class MovedClaim(ApiModel):
    """A claim of the machine, and the devices that it gets on another node. They count as used, like those it has."""

    name: SubdomainName
    """The DeviceClaim, in the machine's namespace."""
    uid: PlainName
    """Its UID: a claim that got the name later has none of these devices."""
    allocations: list[DeviceAllocation] = Field(min_length=1, max_length=256)
    """What its status.allocations become: as many entries as it has, in the same order, for the same requests."""


MAX_CLAIMS = 32
MovedClaims = Annotated[list[MovedClaim], Field(max_length=MAX_CLAIMS), AfterValidator(unique_by("name"))]


class MachineMigrationState(ApiModel):
    """What a migration of the machine reserves on its target. The controller writes it. The machine moves with the
    write that removes this and makes the target its node; until then, removing it withdraws the migration."""

    migration_name: SubdomainName
    """The VirtualMachineMigration, in the machine's namespace."""
    migration_uid: Annotated[PlainName, Field(alias="migrationUID")]
    """Its UID."""
    source_node: PlainName
    """The node that the machine leaves."""
    target_node: PlainName
    """The node to which it moves."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """What numaNode becomes when it has moved."""
    allocations: list[DeviceAllocation] = Field(default_factory=list, max_length=256)
    """What the target reserves for it, and what allocations becomes when it has moved. It counts as used, too."""
    claims: MovedClaims = Field(default_factory=list)
    """Its claims with devices of the node that it leaves, and their devices on the target. They count as used, too, and
    become movedClaims when it has moved."""


MachinePhase = Literal["Pending", "Starting", "Running", "Paused", "Stopping", "Stopped", "Failed", "Unknown"]


class VirtualMachineStatus(ApiModel):
    """The state of the machine, as its node's plugin last saw it."""

    phase: MachinePhase = "Pending"
    """What the machine is doing."""
    node_name: PlainName | None = None
    """The node on which it was placed. It stays there until it is deleted or its spec names another node."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """The NUMA node of that node, if its policy is to be on one."""
    numa_nodes: list[MachineNumaNode] = Field(default_factory=list, max_length=MAX_NUMA_NODES)
    """The NUMA nodes of its guest, in the guest's order, while it runs on several of the host; empty otherwise."""
    allocations: list[DeviceAllocation] = Field(default_factory=list, max_length=256)
    """What its node reserves for it, from the pool with the node's CPUs, memory and bandwidth; empty while it is
    stopped."""
    migration_state: MachineMigrationState | None = None
    moved_claims: MovedClaims = Field(default_factory=list)
    """Claims that came along when it moved, and their devices on this node. The controller gives them to a claim, and
    removes its entry, once the node that the machine left has given up the claim's old devices."""
    wanted: MachineAmounts | None = None
    """The amounts that the spec asks for."""
    permitted: MachinePermit | None = None
    """The maximum that it may have now."""
    applied: MachineAmounts | None = None
    """The amounts that were last set in QEMU."""
    observed: MachineAmounts | None = None
    """The amounts that QEMU reports."""
    guest_observed: MachineAmounts | None = None
    """The amounts that the guest reports."""
    reason: Text = ""
    """A code for why it differs from the spec."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """The same as a sentence."""
    pid: Int64 | None = None
    """The process id of QEMU on the node."""
    machine_id: Annotated[Text, Field(alias="machineID")] = ""
    """The plugin's identifier of this run of the machine; it changes when the machine is started again."""
    start_time: Text = ""
    """When this run of the machine began, on whichever node; RFC 3339."""
    restarts: Annotated[int, Field(ge=0)] | None = None
    """How often it was started again on its node because it had ended without a request. A machine that moves while it
    runs takes this number, startTime and lastEnd along."""
    last_end: MachineEnd | None = None
    """The last time when it ended without a request."""
    network_address: Text = ""
    """The address of its guest in the network of warm setups, such as 10.88.0.2, if it has one."""
    runner_pod: Text = ""
    """The pod that runs it, if any; agents may use its name to ask for permits."""
    devices: Annotated[
        list[MachineDevice], Field(max_length=256), AfterValidator(unique_by("claim", "pool", "device"))
    ] = Field(default_factory=list)
    """The devices of claims that are plugged in."""
    conditions: Annotated[list[Condition], Field(max_length=16), AfterValidator(unique_by("type"))] = Field(
        default_factory=list
    )
    """Observations of the machine's state."""


MAX_PCI_SLOTS = 64
SPARE_PCI_SLOTS = 4
"""Root ports in addition to one per claim, if ``pciSlots`` is not set."""


def _unique(names: list[str]) -> list[str]:
    raise_faults(
        ((i,), f"is a duplicate of entry [{names.index(name)}]") for i, name in enumerate(names) if name in names[:i]
    )
    return names


class VirtualMachineSpec(ApiModel):
    """The desired state of the machine."""

    node_name: PlainName | None = None
    """The node that runs it. By default devalloc chooses a node with room for it together with its claims, among the
    nodes that publish their capacity for machines."""
    numa_policy: Literal["none", "single-numa-node"] = "none"
    """``single-numa-node``: its CPUs, its memory and the devices of its claims come from one NUMA node. Effective on
    nodes that publish their capacity for machines."""
    cpu: CpuBounds
    memory: MemoryBounds
    disk: Bytes | None = None
    """The part of its node's disk that is reserved for its images. Disks with clone cannot take more together."""
    disk_io: Annotated[BytesPerSecond | None, Field(alias="diskIO")] = None
    """The rate of reading and writing that its node reserves for it, and that its disks cannot exceed together; by
    default they have no limit."""
    scaling: MachineScaling | None = None
    """If set, ``use`` of cpu and memory is only the initial amount: from then on its load decides."""
    runner: MachineRunner | None = None
    """If set, ``use`` of cpu is only the number of CPUs and their initial CPU time: from then on a controller decides
    the time. Cannot be combined with scaling."""
    start: MachineStart | None = None
    """How to start it. Either start or adopt is required."""
    adopt: MachineAdopt | None = None
    """The running QEMU to adopt. Either start or adopt is required."""
    nics: list[MachineNic] = Field(default_factory=list, max_length=8)
    """Emulated network cards."""
    claims: Annotated[list[SubdomainName], Field(max_length=MAX_CLAIMS), AfterValidator(_unique)] = Field(
        default_factory=list
    )
    """DeviceClaims of the machine's namespace whose devices it gets; you can add and remove them while it runs."""
    pci_slots: Annotated[int, Field(ge=0, le=MAX_PCI_SLOTS)] | None = None
    """Root ports for devices, one for each device; by default the number of claims plus 4."""
    running: bool = True
    """False: it is stopped (powered down by its guest, then ended) and stays stopped."""
    paused: bool = False
    """True: while it runs, its CPUs stand still; it keeps its memory and devices, and nothing else of it changes."""
    restart_policy: Literal["Always", "Never"] = "Always"
    """Whether to start the machine again after it ended or its node was restarted."""
    powerdown_seconds: Annotated[int, Field(ge=0, le=3600), Unit("seconds")] = 30
    """How long to wait for its guest to power down before the machine is ended."""
    reserve_max: bool = False
    """Reserve all of max for it from its start on, not only min."""
    guest_reports: bool = False
    """Read what its guest reports on its second serial port: whether it is ready, that it has finished, and metrics.
    The machine then counts as ready when its guest says so, and is powered down when its guest has finished."""

    @model_validator(mode="after")
    def _started_or_adopted(self) -> VirtualMachineSpec:
        faults: list[FieldFault] = []
        if self.start is None and self.adopt is None:
            faults.append((("start",), "is required, or else adopt"))
        elif self.adopt is not None:
            if self.start is not None:
                faults.append((("adopt",), "cannot be combined with start; the machine is either started or adopted"))
            if self.nics:
                faults.append(
                    (("nics",), "need start; an adopted machine has the network cards with which it was started")
                )
            if self.node_name is None:
                faults.append((("nodeName",), "is required with adopt"))
            if self.pci_slots is not None:
                faults.append((("pciSlots",), "needs start; an adopted machine has its own"))
            if self.guest_reports:
                faults.append((("guestReports",), "needs start; an adopted machine has no port for reports"))
            if self.memory.huge_pages is not None:
                faults.append((("memory", "hugePages"), "needs start; an adopted machine has the memory it has"))
        warm = [i for i, nic in enumerate(self.nics) if nic.backend == "warm"]
        faults += [(("nics", i, "backend"), "is warm, but a machine can use only one warm setup") for i in warm[1:]]
        if self.scaling is not None and self.scaling.address is None and not warm:
            faults.append((("scaling", "address"), "is required without a network card with backend warm"))
        if self.scaling is not None and self.memory.huge_pages is not None:
            why = "cannot be combined with scaling: permits are for ordinary memory; set memory.use instead"
            faults.append((("memory", "hugePages"), why))
        if self.disk is None and self.start is not None and any(disk.clone for disk in self.start.disks):
            why = "is required with start.disks[].clone: the most that the machine's own disks can take on its node"
            faults.append((("disk",), why))
        if self.runner is not None and self.scaling is not None:
            faults.append((("runner",), "cannot be combined with scaling: either its guest decides or a controller"))
        if self.pci_slots is not None and self.pci_slots < len(self.claims):
            faults.append((("pciSlots",), f"must be at least one for each of the {len(self.claims)} claims"))
        raise_faults(faults, RELATED)
        return self

    @property
    def network(self) -> Quantity | None:
        """Bytes per second that are reserved for all its cards together; None if no card reserves any."""
        bandwidths = [nic.bandwidth for nic in self.nics if nic.bandwidth is not None]
        if not bandwidths:
            return None
        return Quantity.capped(sum(each.nano for each in bandwidths), bandwidths[0].format)

    @property
    def slots(self) -> int:
        """Root ports with which the machine starts."""
        return len(self.claims) + SPARE_PCI_SLOTS if self.pci_slots is None else self.pci_slots


class VirtualMachine(ApiModel):
    """A machine whose CPUs, memory and devices change while it runs. Namespaced."""

    api_version: Literal["devalloc.io/v1alpha1"] = DEVALLOC
    kind: Literal["VirtualMachine"] = "VirtualMachine"
    metadata: ObjectMeta
    spec: VirtualMachineSpec
    status: VirtualMachineStatus | None = None

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or "default"

    @property
    def node(self) -> str | None:
        """The node that runs it: that of its spec, or else the one that devalloc chose; None before that."""
        return self.spec.node_name or (self.status.node_name if self.status is not None else None)

    @property
    def key(self) -> tuple[str, str]:
        """(namespace, name)"""
        return self.namespace, self.metadata.name


_PLACING_NOTES: Mapping[str, Callable[[str], str]] = {
    PRIORITY: priority_fault,
    LAST_NODE: lambda text: name_fault(text) if text else "",
}


def annotation_problems(machine: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with annotations of a machine's manifest that decide where and when it is placed. Its node does not
    read them, and goes on with a machine that has such a problem."""
    metadata = machine["metadata"]
    for name, fault_of in _PLACING_NOTES.items():
        text = (metadata.get("annotations") or {}).get(name)
        if isinstance(text, str) and (fault := fault_of(text)):
            path = f"metadata.annotations[{name}]"
            yield Problem(fault, path, "VirtualMachine", metadata.get("namespace"), metadata["name"])
