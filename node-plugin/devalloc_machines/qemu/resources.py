"""CPU and memory of one machine: requested amounts, current amounts, and the room of the host."""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from devalloc.api.virtual_machine import MEMORY_BLOCK, VirtualMachine
from devalloc.inventory.capacity import RESOURCES, HostCapacity, Resource
from devalloc.inventory.capacity.config import resource_named
from devalloc.inventory.capacity.cpus import CpuTopology
from devalloc.inventory.capacity.machines import MachineUsage, minimum_usage
from devalloc.inventory.capacity.room import Admission, Insufficient, Request
from devalloc.inventory.capacity.status import DiskUsageSources, UsageUnknown
from devalloc.inventory.capacity.stored import LastCount, stored_of_machine, stores_of
from devalloc_machines.qemu import confinement, launch, memory, preflight, vcpu
from devalloc_machines.qemu.cpu_pinning import CpuHolder, NotEnoughCpus, choose_cpus, pin_vcpus
from devalloc_machines.qemu.guest_numa import cells_of_vcpus, cpu_places
from devalloc_machines.qemu.process import Process
from devalloc_machines.qemu.qmp import ANSWER_SECONDS, Monitor
from devalloc_machines.qemu.records import (
    MACHINES,
    UNKNOWN_AMOUNTS,
    MachineAmounts,
    MachineRecord,
    record_of,
)
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import CPU, MachineSpec, cpus_text, memory_text, whole_cpus
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed, NodeError
from devalloc_node.journal import Journal

LOG = logging.getLogger(__name__)
_NAMED_HOLDERS = 3
"""Machines that a message names as holders of CPUs."""


def requested_in_spec(spec: MachineSpec) -> MachineAmounts:
    """What the spec asks for."""
    return MachineAmounts(spec.cpus.use, whole_cpus(spec.cpus.use), spec.memory.use)


def wanted_while_running(record: MachineRecord) -> MachineAmounts:
    """What is wanted of it while it runs: what was requested last, or its configuration if nothing was."""
    applied = record.applied if record.applied != UNKNOWN_AMOUNTS else requested_in_spec(record.spec)
    requested = {name: amount for name, amount in asdict(record.requested).items() if amount is not None}
    return replace(applied, **requested)


def resources_at_start(record: MachineRecord) -> MachineAmounts:
    """What it is started with: what was asked of it before it ended, as far as it may have that; else what its spec
    asks for. ``cpu_milli`` is None if its CPU time is not to be bounded."""
    spec, requested = record.spec, record.requested
    vcpus, milli, memory_bytes = whole_cpus(spec.cpus.use), spec.cpus.use, spec.memory.use
    if requested.vcpus is not None:
        vcpus = _clamped(requested.vcpus, whole_cpus(spec.cpus.least), whole_cpus(spec.cpus.most))
        milli = milli if milli % CPU else vcpus * CPU  # a part of a CPU is a bound of its own
    if requested.cpu_milli is not None:
        milli = requested.cpu_milli and _clamped(requested.cpu_milli, spec.cpus.least, whole_cpus(spec.cpus.most) * CPU)
    if requested.memory_bytes is not None:
        unit = spec.dimm_bytes or max(
            MEMORY_BLOCK, spec.huge_page_bytes or 0
        )  # it is given as a scaled one is: in whole units
        more = -(-(_clamped(requested.memory_bytes, spec.memory.least, spec.memory.most) - spec.memory.least) // unit)
        memory_bytes = spec.memory.least + more * unit
    return MachineAmounts(milli or None, vcpus, memory_bytes)


def spec_started_with(spec: MachineSpec, now: MachineAmounts) -> MachineSpec:
    """The spec of a QEMU that has these vCPUs and this memory from its start."""
    cpus = replace(spec.cpus, use=min((now.vcpus or 0) * CPU, spec.cpus.most))
    return replace(spec, cpus=cpus, memory=replace(spec.memory, use=now.memory_bytes or 0))


def observe_resources(
    record: MachineRecord, config: MachineConfig, monitor: Monitor, process: Process | None, deadline: Deadline
) -> MachineAmounts:
    """What QEMU has, and the kernel gives it."""
    vcpus = vcpu.count(monitor, deadline)
    share = None if process is None else cpu_limit_of(record.spec, config, process)
    milli = vcpus * CPU if share is None else min(share, vcpus * CPU)
    return MachineAmounts(milli, vcpus, memory.observe_memory(monitor, deadline).total)


def pending_memory_bytes(
    record: MachineRecord, monitor: Monitor, seen: MachineAmounts, deadline: Deadline
) -> int | None:
    """Bytes of memory that QEMU was told to have, by its own word, if that is not settled: a plugin that ended in
    the middle of a change could not note what it told, and the guest goes on with it. None: as it is noted."""
    requested, applied = record.requested.memory_bytes, record.applied.memory_bytes
    if requested is None or requested == applied == seen.memory_bytes:
        return None
    return memory.requested_total(monitor, deadline)


def with_request(record: MachineRecord, monitor: Monitor, what: str, amount: int, deadline: Deadline) -> MachineRecord:
    """What is to be noted before ``apply_change``: what is asked, and what that does to its QEMU.

    Raises Denied (``OutOfBounds``, ``CpusEmulated``, ``AmountUnknown``, ``HugePagesTooFew``): then it is not to be
    applied. Unknown.
    """
    spec, before = record.spec, record.requested
    if what == "vcpus":
        _within(spec, amount, whole_cpus(spec.cpus.least), whole_cpus(spec.cpus.most), str, " vCPUs")
        if spec.secure_boot:
            vcpu.check_secure_boot(monitor, spec.key, amount, deadline)
        left = vcpu.has_lost_vcpu(monitor, spec.key, amount, record.cpus_left, deadline)
        return replace(record, requested=replace(before, vcpus=amount), cpus_left=left)
    if what == "cpu":
        if amount:
            _within(spec, amount, spec.cpus.least, whole_cpus(spec.cpus.most) * CPU, cpus_text, " CPUs")
        return replace(record, requested=replace(before, cpu_milli=amount))
    if what == "memory":
        _within(spec, amount, spec.memory.least, spec.memory.most, memory_text, " of memory")
        if spec.huge_page_bytes:
            preflight.check_huge_pages(spec, memory.observe_memory(monitor, deadline).total, amount)
        return replace(record, requested=replace(before, memory_bytes=amount))
    raise Denied("AmountUnknown", f"a machine has vcpus, cpu and memory, but no {what!r}")


def apply_change(
    record: MachineRecord,
    config: MachineConfig,
    monitor: Monitor,
    process: Process,
    what: str,
    amount: int,
    deadline: Deadline,
) -> MachineAmounts:
    """Change one amount that was noted before; what QEMU was told in sum. Raises Denied (``GuestRefused`` …)."""
    spec, applied = record.spec, record.applied
    if what == "vcpus":
        bounded = cpu_limit_of(spec, config, process) is not None or (applied.cpu_milli or 0) % CPU
        if record.cpus_left:
            vcpu.mark_unplugged(monitor, deadline)
        there = vcpu.scale(monitor, spec.key, amount, deadline)
        pin_vcpus(monitor, spec.key, process, vcpu_places(record), deadline)
        return replace(applied, vcpus=there, cpu_milli=applied.cpu_milli if bounded else there * CPU)
    if what == "cpu":
        limit_cpu(spec, config, process, amount, vcpu.count(monitor, deadline))
        return replace(applied, cpu_milli=amount or None)
    total = memory.scale(monitor, spec, amount, deadline)
    return replace(applied, memory_bytes=total)


def amounts_reached(record: MachineRecord, monitor: Monitor, what: str) -> MachineAmounts:
    """What QEMU was told in sum if it went no further with one amount. Raises NodeError."""
    applied, due = record.applied, Deadline.after(ANSWER_SECONDS)
    if what == "cpu":
        return applied
    if what == "vcpus":
        return replace(applied, vcpus=vcpu.count(monitor, due))
    return replace(applied, memory_bytes=memory.observe_memory(monitor, due).total)


def cpu_limit_of(spec: MachineSpec, config: MachineConfig, process: Process) -> int | None:
    """Thousandths of a CPU that its cgroup bounds it to; None if nothing but its vCPUs does."""
    group = _group(spec, config, process)
    return None if group is None else confinement.limit_of(group)


def limit_cpu(spec: MachineSpec, config: MachineConfig, process: Process, thousandths: int, vcpus: int) -> None:
    """Bound its CPU time (0: no bound), read back. Its vCPUs themselves bound it to as many CPUs as there are.

    Raises Denied (``CgroupShared``) for an adopted machine that is not alone in its cgroup; Failed.
    """
    wanted = thousandths if thousandths % CPU or 0 < thousandths < vcpus * CPU else None
    group = _group(spec, config, process)
    if group is None:
        if wanted is None:
            return
        raise Denied(
            "CgroupShared",
            f"machine {spec.key} (process {process.pid}) has no cgroup of its own, so its CPU time cannot be limited "
            f"to {cpus_text(thousandths)} CPUs; change its number of vCPUs",
        )
    if spec.adopt is None and launch.uses_systemd(config):
        _tell_systemd(spec, config, wanted)
    confinement.limit(group, wanted)


def _group(spec: MachineSpec, config: MachineConfig, process: Process) -> confinement.CpuGroup | None:
    """The cgroup that holds this machine and nothing else."""
    group = confinement.group_of(config.cgroups, process.pid)
    if group is None:
        return None
    if spec.adopt is None:
        # If it could not be given one, it is in the plugin's own, which is not to be slowed down.
        return group if group.folder.name in (config.group(spec.id), config.unit(spec.id)) else None
    try:
        return group if group.procs.read_text().split() == [str(process.pid)] else None
    except OSError:
        return None


def _tell_systemd(spec: MachineSpec, config: MachineConfig, thousandths: int | None) -> None:
    """It would set the kernel's value back to its own with the next reload."""
    quota = "" if thousandths is None else f"{max(1, thousandths // 10)}%"
    words = ["systemctl", "set-property", "--runtime", config.unit(spec.id), f"CPUQuota={quota}"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(
            "CgroupUnavailable", f"cannot set the CPU limit of machine {spec.key} in systemd: {error}"
        ) from None
    if done.returncode:
        words_of = done.stderr.decode(errors="replace").strip()
        raise Failed("CgroupUnavailable", f"systemd refuses the CPU limit of machine {spec.key}: {words_of}")


def _within(
    spec: MachineSpec, amount: int, least: int, most: int, text: Callable[[int], str], of: str, *, adopted: str = ""
) -> None:
    """``adopted``: the socket of a machine that is to be adopted and has that amount."""
    if least <= amount <= most:
        return
    bounds = f"{text(least)} to {text(most)}{of}"
    if adopted:
        raise Denied(
            "OutOfBounds",
            f"the QEMU at {adopted} has {text(amount)}{of}, but the bounds of machine {spec.key} are {bounds}; give "
            "bounds that contain what it has",
        )
    raise Denied(
        "OutOfBounds",
        f"machine {spec.key} was started with the bounds {bounds} and cannot have {text(amount)}; stop and start it "
        "to change its bounds",
    )


def _clamped(amount: int, least: int, most: int) -> int:
    return min(max(amount, least), most)


def check_adopted(spec: MachineSpec, now: MachineAmounts) -> None:
    """Raises Denied (``OutOfBounds``) if a machine that is to be adopted has other amounts than it may have."""
    where = str(spec.adopt)
    if now.vcpus is not None:
        least, most = whole_cpus(spec.cpus.least), whole_cpus(spec.cpus.most)
        _within(spec, now.vcpus, least, most, str, " vCPUs", adopted=where)
    if now.memory_bytes is not None:
        _within(spec, now.memory_bytes, spec.memory.least, spec.memory.most, memory_text, " of memory", adopted=where)


_FIELDS: Mapping[Resource, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "memory": ("memory",),
    "disk": ("disk",),
    "network": ("download", "upload"),
    "disk_io": ("disk_io",),
}
"""The fields of a request that ask for a resource."""
_COUNTED_STATES = ("starting", "running", "stopping", "incoming")
"""States in which a machine has what it was given: from before QEMU is started until it is known to have ended."""


_LIMIT_HINTS = {
    "disk": "name a folder (--data-dir), or configure a limit (--disk-limit)",
    "network": "configure a limit (--network-limit)",
}
"""What to do if the capacity of a resource is unknown."""


@dataclass(frozen=True, slots=True)
class HostUses:
    """What is taken of the host, beside what the records of machines say."""

    others: Callable[[], Iterable[MachineUsage]] = tuple
    """What runs here and is none of the machines that are kept."""
    permitted: Callable[[], Mapping[str, MachineAmounts]] = dict
    """By key what machines may have by now, whether or not they were told already. Raises Failed."""


class CapacityCheck:
    """Asked under the lock that starts take turns by, across processes, so that who is admitted is recorded before the
    next one is looked at."""

    def __init__(self, host: HostCapacity, records: Journal, uses: HostUses | None = None) -> None:
        self._records = records
        self._taken = uses or HostUses()
        self._host = host
        stores = stores_of(host)
        self._counts = (
            [] if stores is None else [LastCount(each) for each in (stores.images, stores.cache, stores.volumes)]
        )
        self._admission = Admission(host, self._uses, DiskUsageSources(*self._counts) if self._counts else None)
        for resource in RESOURCES:
            if host.of(resource).source == "unknown":
                hint = _LIMIT_HINTS.get(resource, "`devalloc capacity --host` shows why")
                LOG.warning(
                    "the capacity of this host for machines is unknown, so %s is not checked when a machine starts; %s",
                    resource,
                    hint,
                )

    def count_stored(self, spec: MachineSpec) -> None:
        """Count what lies on the disk, if it matters for a machine. Before the lock: a slow disk delays no other
        start."""
        if spec.disk_bytes:
            for count in self._counts:
                count.refresh()

    def check(self, machine: VirtualMachine, spec: MachineSpec) -> None:
        """Whether there is room for a machine as it is to be started by ``spec``, and for what it reserves. After
        ``count_stored``.

        Raises Denied (``HostFull``), which may pass; Failed if the records cannot be read."""
        cpu, memory = resources_taken(machine, spec)
        network = sum(filter(None, spec.rates.nics))
        disk = max(0, spec.disk_bytes - stored_of_machine(self._host, machine))
        request = Request(cpu, memory, disk, network, network, spec.rates.disk_io or 0)
        self._check(spec.key, request, f"machine {spec.key} does not fit on this host now")

    def check_more(self, before: MachineRecord, after: MachineRecord) -> None:
        """Whether there is room for what is asked of a machine that runs. What it is permitted has its room already.

        Raises as ``check``."""
        key = after.spec.key
        had, requested = _use(key, before), _use(key, after)
        names = ("cpu", "memory", "download", "upload", "disk_io")
        if all(getattr(requested, name) <= getattr(had, name) for name in names):
            return
        had = _use(key, before, self._taken.permitted().get(key, UNKNOWN_AMOUNTS))
        amounts = {name: getattr(requested, name) for name in names if name != "memory" or requested.pages == "memory"}
        more = {name: amount for name, amount in amounts.items() if amount > getattr(had, name)}
        self._check(key, Request(**more), f"machine {key} cannot grow on this host now")

    def _check(self, key: str, request: Request, what: str) -> None:
        """What is not known of the host bounds nothing here: the machines of a store have been placed by a node's pool,
        which promises nothing of it."""
        for resource, names in _FIELDS.items():
            if self._host.of(resource).source == "unknown":
                for name in names:
                    request = replace(request, **{name: 0})  # type: ignore[arg-type]
        try:
            self._admission.validate(request, key)
        except Insufficient as error:
            raise Denied("HostFull", f"{what}: {error}") from None
        except UsageUnknown as error:
            if isinstance(error.__cause__, NodeError):
                raise error.__cause__ from None
            raise Failed("HostUnreadable", f"{what}, as its use is not known: {error}") from None

    def _uses(self) -> Iterator[MachineUsage]:
        permitted = self._taken.permitted()
        for key, content in self._records.records(MACHINES).items():
            with suppress(Failed):  # what it is cannot be read, nor what it takes
                record = record_of(key, content)
                if record.state in _COUNTED_STATES:
                    use = _use(key, record, permitted.get(key, UNKNOWN_AMOUNTS))
                    yield replace(use, stored=stored_of_machine(self._host, record.machine))
        yield from self._taken.others()


def exclusive_cpus(records: Journal) -> Mapping[int, str]:
    """CPUs of the host that machines have for themselves, and the key of the machine: pinned ones, but for those whose
    CPUs a setup names."""
    cpus: dict[int, str] = {}
    for key, content in records.records(MACHINES).items():
        if not content.get("cpus"):  # nearly all: setups are given CPUs meanwhile, and wait
            continue
        with suppress(Failed):  # what cannot be read is left alone
            record = record_of(key, content)
            if record.state in _COUNTED_STATES and not record.spec.wants_sandbox:
                cpus.update(dict.fromkeys(record.cpus, key))
    return cpus


def vcpu_places(record: MachineRecord) -> Mapping[tuple[int, int], Collection[int]]:
    """CPUs of the host for each vCPU by its socket and core: its own, or those of the host's NUMA node that its guest
    node stands for; none for a machine whose vCPUs may run wherever QEMU may."""
    spec, cpus = record.spec, record.cpus
    if spec.wants_sandbox and spec.numa_cells:  # a setup's CPUs may be on other nodes than its machine's memory
        return {}
    return cpu_places(spec, cpus, {node: preflight.cpus_of(node) for node in spec.host_nodes} if not cpus else {})


def free_cpus(
    spec: MachineSpec, host: CpuTopology, in_setups: Mapping[int, Sequence[CpuHolder]], machines: Mapping[int, str]
) -> list[int]:
    """CPUs of the host that a machine is to have for itself, one for each vCPU that it may get. ``in_setups``: who has
    CPUs in setups, once for each vCPU; ``machines``: the machines that have CPUs for themselves, by CPU. Raises Denied
    (``CpusTooFew``, ``CpusInUse``)."""
    loads = {cpu: len(holders) for cpu, holders in in_setups.items()}
    nodes = [spec.numa_node] * whole_cpus(spec.cpus.most)
    if spec.numa_cells:
        nodes = [spec.numa_cells[cell].host_node for cell in cells_of_vcpus(spec)]
    try:
        chosen = {
            node: iter(choose_cpus(host, loads, count, most=1, only=node, exclusive=machines).cpus)
            for node, count in Counter(nodes).items()
        }
        return [next(chosen[node]) for node in nodes]
    except NotEnoughCpus as error:
        candidates = (
            host.usable if None in nodes else {cpu for node in host.nodes if node.id in nodes for cpu in node.cpus}
        )
        holders = {CpuHolder(key) for cpu, key in machines.items() if cpu in candidates}
        holders.update(holder for cpu in candidates for holder in in_setups.get(cpu, ()))
        raise NotEnoughCpus(
            f"machine {spec.key} is to run on CPUs of its own: {error.message}{_in_use_by(holders, spec.namespace)}, "
            f"or start machine {spec.key} without start.pinned"
        ) from None


def _in_use_by(holders: Collection[CpuHolder], namespace: str) -> str:
    """Who has the CPUs, and how they become free. Names no machines of other namespaces, and no setups, which are other
    owners': only the admin of the host can return them."""
    machines = {holder.machine for holder in holders if holder.machine}
    own = sorted(key for key in machines if key.startswith(f"{namespace}/"))
    setups = len({holder.setup for holder in holders if holder.setup})
    others = len(machines) - len(own)
    names = [f"machine {key}" for key in own[:_NAMED_HOLDERS]]
    if more := len(own[_NAMED_HOLDERS:]):
        names.append(f"{more} more")
    if others:
        names.append(f"{others} {'machine' if others == 1 else 'machines'} of other namespaces")
    if setups:
        names.append(f"{setups} {'setup' if setups == 1 else 'setups'} of other owners")
    way = f"stop {'this machine' if len(own) == 1 else 'one of your machines'}" if own else "wait until CPUs are free"
    return f"; CPUs are in use by {', '.join(names)}; {way}" if names else f"; {way}"


def resources_taken(machine: VirtualMachine, spec: MachineSpec) -> tuple[int, int]:
    """Thousandths of a CPU, and bytes in ordinary pages, that a machine takes that is started by ``spec``."""
    cpus, memory = _elementwise_max(minimum_usage(machine), requested_in_spec(spec))
    return cpus, 0 if spec.huge_page_bytes else memory


def _use(key: str, record: MachineRecord, permitted: MachineAmounts = UNKNOWN_AMOUNTS) -> MachineUsage:
    """What a machine was given or asked for since it was started, or is permitted, whichever is more."""
    applied, requested = (
        record.applied if record.applied != UNKNOWN_AMOUNTS else resources_at_start(record),
        wanted_while_running(record),
    )
    has = (applied.vcpus or 0) * CPU
    if (requested.vcpus or 0) * CPU > has and (applied.cpu_milli or has) >= has:
        # Nothing but their number bounds the time of its CPUs, so that more of them have more.
        requested = replace(requested, cpu_milli=max(requested.cpu_milli or 0, (requested.vcpus or 0) * CPU))
    rates = record.wanted_rates
    network = sum(filter(None, rates.nics))
    return MachineUsage(
        key,
        key,
        "Running",
        *_elementwise_max(minimum_usage(record.machine), applied.usable, requested.usable, permitted),
        overlay=record.spec.disk_bytes,
        download=network,
        upload=network,
        disk_io=rates.disk_io or 0,
        pages=resource_named(record.machine.spec.memory.resource),
    )


def without_object(records: Journal, gone: Container[str]) -> Iterator[MachineUsage]:
    """What those machines take that no VirtualMachine speaks for. ``gone``: UIDs of those that are not there."""
    for key, content in records.records(MACHINES).items():
        with suppress(Failed):
            record = record_of(key, content)
            uid = record.machine.metadata.uid
            if record.state in _COUNTED_STATES and (not uid or uid in gone):
                yield _use(key, record)


def _elementwise_max(floor: tuple[int, int], *amounts: MachineAmounts) -> tuple[int, int]:
    """Thousandths of a CPU and bytes: the largest of each."""
    cpus, memory = floor
    for each in amounts:
        # All of its vCPUs' time if nothing bounds that.
        cpus = max(cpus, each.cpu_milli or (each.vcpus or 0) * CPU)
        memory = max(memory, each.memory_bytes or 0)
    return cpus, memory
