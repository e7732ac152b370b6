"""A host's pools, its capacity and its machines as tables, and amounts as they are written on the command line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from devalloc.api.quantity import NANO, Quantity
from devalloc.api.views import effective_attributes
from devalloc.cli.render.cells import amounts_cell, format_cores, format_size, state_cell
from devalloc.cli.render.output import Cell, StyledText, enum_text, print_table
from devalloc.cli.terminal import print_heading, print_line, print_note
from devalloc.device_kinds import DEVICE_KINDS, DeviceKind, offered_plurals
from devalloc.inventory.capacity.config import HUGE_PAGES
from devalloc.inventory.capacity.cpus import format_cpu_list

if TYPE_CHECKING:
    from devalloc.inventory.capacity.status import HostStatus, ResourceStatus
    from devalloc_node.pb.node_pb2 import Amounts, Machine, MachineDevice

HEADERS = ("NAME", "PHASE", "VCPUS", "MEMORY", "DEVICES", "CLAIMS", "REASON")
WIDE = ("PLUGGED IN", "PID", "ID", "QMP SOCKET", "MESSAGE")


def phase_text(machine: Machine) -> Cell:
    return state_cell(enum_text(machine.DESCRIPTOR.enum_types_by_name["Phase"], machine.phase))


def full_name(machine: Machine) -> str:
    """``namespace/name``."""
    return f"{machine.machine.namespace}/{machine.machine.name}"


def machine_row(machine: Machine, *, wide: bool, namespaces: bool) -> list[Cell]:
    """Cells under HEADERS, and WIDE."""
    name = full_name(machine) if namespaces else machine.machine.name
    cells: list[Cell] = [
        name,
        phase_text(machine),
        vcpus_text(machine.wanted, machine.observed),
        memory_text(machine.wanted, machine.observed),
        str(len(machine.devices)),
        ", ".join(claim_names(machine)),
        machine.reason,
    ]
    if wide:
        plain = "; ".join(f"{each.name}: {plugged_device_text(each)}" for each in machine.devices if each.name)
        cells += [plain, str(machine.pid or ""), machine.machine_id, machine.qmp_socket, machine.message]
    return cells


def machine_headers(*, wide: bool) -> list[str]:
    return [*HEADERS, *(WIDE if wide else ())]


def claim_names(machine: Machine) -> Sequence[str]:
    """Names of the claims whose devices are in it."""
    return list(dict.fromkeys(device.claim.name for device in machine.devices if device.HasField("claim")))


def plugged_device_text(device: MachineDevice) -> str:
    """A device without a claim, as text: ``/images/d (raw, virtio, read-only)``, ``tap0 52:54:00:00:00:01``."""
    disk, nic = device.disk, device.nic
    if device.HasField("disk"):
        return f"{disk.path} ({disk.format}, {disk.device}{', read-only' if disk.read_only else ''})"
    return f"{nic.interface or 'user network'} {nic.mac}".rstrip()


def vcpus_text(wanted: Amounts, observed: Amounts) -> str:
    """``2``, or ``2 of 4`` if it has less than wanted; ``(4)`` if it has none, or the number is unknown.

    ``2 at 1500m`` if their CPU time is limited.
    """
    want = str(wanted.vcpus) if wanted.HasField("vcpus") else ""
    text = _of_wanted(str(observed.vcpus) if observed.HasField("vcpus") else "", want)
    return f"{text} at {format_cores(observed.cpu_milli)}" if is_bounded(observed) else text


def memory_text(wanted: Amounts, observed: Amounts) -> str:
    """``2Gi``, or ``1Gi of 2Gi`` if it has less than wanted."""
    want = format_size(wanted.memory_bytes) if wanted.HasField("memory_bytes") else ""
    return _of_wanted(format_size(observed.memory_bytes) if observed.HasField("memory_bytes") else "", want)


def amounts_text(of: Amounts) -> str:
    """CPU time (vCPUs if the time is unknown) and memory, as ``amounts_cell``."""
    cpu = format_cores(of.cpu_milli) if of.HasField("cpu_milli") else str(of.vcpus) if of.HasField("vcpus") else ""
    memory = format_size(of.memory_bytes) if of.HasField("memory_bytes") else ""
    return amounts_cell(cpu, memory)


def is_bounded(amounts: Amounts) -> bool:
    """Whether the CPU time of its vCPUs is limited."""
    return amounts.HasField("cpu_milli") and amounts.cpu_milli < amounts.vcpus * 1000


def _of_wanted(have: str, want: str) -> str:
    if not have:
        return f"({want})" if want else ""
    return f"{have} of {want}" if want and want != have else have


def parse_bytes(text: str) -> int:
    """``2Gi`` as a number of bytes. Raises BadParameter."""
    return _whole(text, 1, "bytes, such as 512Mi or 2Gi")


def parse_milli(text: str) -> int:
    """``1500m`` or ``1.5`` as thousandths of a core. Raises BadParameter."""
    return _whole(text, 1000, "cores, such as 2 or 1500m")


def parse_bounds(text: str, amount: str) -> tuple[int, int]:
    """``512Mi..2Gi``, or one amount for both. ``amount`` is memory or cpu. Raises BadParameter."""
    parse = parse_bytes if amount == "memory" else parse_milli
    least, dots, most = text.partition("..")
    return (parse(least), parse(most)) if dots else (parse(text), parse(text))


def _whole(text: str, per: int, what: str) -> int:
    try:
        nano = Quantity.parse(text).nano * per
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not an amount of {what}: {error}") from None
    if nano % NANO or nano < 0 or nano >= NANO << 62:
        raise click.BadParameter(f"{text!r} is not an amount of {what}")
    return nano // NANO


Object = dict[str, Any]
_RATED = ("network", "disk_io")


def print_pools(
    pools: Sequence[Object], *, wide: bool, looked_for: Collection[DeviceKind] = DEVICE_KINDS.values()
) -> None:
    """Print a row for each card, or (wide) for each device."""
    if not pools:
        print_line(f"no {offered_plurals(looked_for)} found")
    elif wide:
        print_table(
            ["POOL", "DEVICE", "KIND", "FUNCTION", "MODEL OR PROFILE", "DRIVER", "NUMA", "IOMMU", "STATE"],
            [_device_row(pool, device) for pool in pools for device in pool["spec"].get("devices", [])],
            wide=True,
        )
    else:
        print_table(["POOL", "KIND", "MODEL", "DRIVER", "NUMA", "OFFERS", "NOTE"], [_pool_row(pool) for pool in pools])


def attribute_texts(pool: Object, device: Object) -> defaultdict[str, str]:
    """The effective attributes of a device as texts; "" of one that it does not have."""
    return defaultdict(
        str,
        {
            name: next((str(value) for key, value in entry.items() if key != "name"), "")
            for name, entry in effective_attributes(pool, device).items()
        },
    )


def _pool_row(pool: Object) -> list[Cell]:
    from devalloc.api.pool import unavailability

    devices = [attribute_texts(pool, device) for device in pool["spec"].get("devices", [])]
    functions = Counter(device["function"] for device in devices if unavailability(device) is None)
    offers = ", ".join(f"{count} {function}" if count > 1 else function for function, count in functions.items())
    reasons = dict.fromkeys(map(unavailability, devices))
    reason = "; ".join(text for text in reasons if text)

    def common(name: str) -> str:
        values = dict.fromkeys(device[name] for device in devices)
        return ", ".join(text for text in values if text)

    note: Cell = StyledText(reason, "yellow") if reason else ""
    return [
        pool["metadata"]["name"],
        common("kind"),
        next((device["model"] for device in devices if device["model"]), ""),
        common("driver"),
        common("numa"),
        offers or "-",
        note,
    ]


def _device_row(pool: Object, device: Object) -> list[Cell]:
    from devalloc.api.pool import unavailability

    own = attribute_texts(pool, device)
    reason = unavailability(own)
    return [
        pool["metadata"]["name"],
        device["name"],
        own["kind"],
        own["function"],
        own["profile"] or own["model"],
        own["driver"],
        own["numa"],
        own["iommuGroup"],
        StyledText(reason, "yellow") if reason else own["state"],
    ]


def print_status(report: HostStatus) -> None:
    """Print tables on stdout, and problems on stderr."""
    rows = [_row(each) for name, each in report.resources.items() if name not in HUGE_PAGES or each.is_there]
    if (limit := report.host.image_limit) > 0:
        used = report.disk.images + report.disk.cache
        taken = (
            [format_size(used), format_size(max(0, limit - used))] if report.counts_content else ["not counted", "-"]
        )
        rows.append(["images", "-", "-", format_size(limit), *taken, "of the disk"])
    if report.gpu is not None and (memory := report.gpu.memory) is not None:
        total = format_size(memory.total)
        rows.append(
            ["gpu memory", total, "1", total, format_size(memory.used), format_size(memory.available), "detected"]
        )
    print_table(["RESOURCE", "CAPACITY", "RATIO", "LIMIT", "ALLOCATED", "AVAILABLE", "SOURCE"], rows)
    if report.host.nodes:
        print_line()
        has_pages = any(node.huge_pages for node in report.host.nodes)
        print_table(
            ["NUMA NODE", "CPUS", "MEMORY", *(["HUGE PAGES"] if has_pages else [])],
            [
                [str(node.id), format_cpu_list(node.cpus) or "-", format_size(node.memory)]
                + ([_pages_text(node.huge_pages)] if has_pages else [])
                for node in report.host.nodes
            ],
        )
    if report.gpu is not None:
        print_line()
        _show_gpus(report)
    if report.machines:
        print_line()
        print_table(
            ["MACHINE", "STATE", "CPU", "MEMORY", "DISK", "DOWN", "UP", "DISK I/O"],
            [
                [use.id, use.state, f"{use.cpu / 1000:g}", *map(format_size, (use.memory, use.disk + use.volumes))]
                + [f"{format_size(rate)}/s" for rate in (use.download, use.upload, use.disk_io)]
                for use in report.machines
            ],
        )
    for problem in (*report.host.problems, *report.problems):
        print_note(str(problem))


def _pages_text(pages: Mapping[int, int]) -> str:
    """``4Gi of 2Mi``: what there is in pages of each size."""
    return ", ".join(f"{format_size(total)} of {format_size(size)}" for size, total in pages.items()) or "-"


def _show_gpus(report: HostStatus) -> None:
    gpu = report.gpu
    assert gpu is not None
    kind = "vGPUs" if gpu.mode == "vgpu" else "GPUs"
    text = f"{kind}: {gpu.total} slots, {gpu.used} used, {gpu.allocatable} available"
    print_heading(text + (f" ({gpu.quarantined} quarantined)" if gpu.quarantined else ""))
    if gpu.profiles:
        print_table(
            ["PROFILE", "FRAMEBUFFER", "AVAILABLE"],
            [
                [each.name, format_size(each.framebuffer) if each.framebuffer else "-", str(each.available)]
                for each in gpu.profiles
            ],
        )
    if gpu.devices:
        rows: list[list[Cell]] = [
            [each.name, each.model, "yes" if each.available else StyledText(each.reason, "yellow")]
            for each in gpu.devices
        ]
        print_table(["DEVICE", "MODEL", "AVAILABLE"], rows)


def _row(status: ResourceStatus) -> list[Cell]:
    host_capacity = status.capacity
    amounts = [host_capacity.capacity, host_capacity.effective_limit, status.allocated, status.available]
    capacity, limit, allocated, available = _texts(host_capacity.resource, amounts)
    source: Cell = (
        StyledText(host_capacity.source, "yellow") if host_capacity.source == "unknown" else host_capacity.source
    )
    return [host_capacity.resource, capacity, f"{float(host_capacity.ratio):g}", limit, allocated, available, source]


def _texts(resource: str, amounts: list[int]) -> Iterator[str]:
    for amount in amounts:
        if resource == "cpu":
            yield f"{amount / 1000:g}"
        else:
            yield format_size(amount) + ("/s" if resource in _RATED else "")
