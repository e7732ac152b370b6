"""A host's pools, and its capacity for machines, as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from devalloc.api import meta
from devalloc.api.summaries import attribute_text
from devalloc.cli.render.machines import format_size
from devalloc.cli.render.output import Cell, StyledText, print_heading, print_note, print_table
from devalloc.device_kinds import offered_plurals

if TYPE_CHECKING:
    from devalloc.inventory.capacity.status import HostStatus, ResourceStatus

Object = dict[str, Any]
_RATED = ("network", "disk_io")


def print_pools(pools: Sequence[Object], *, wide: bool) -> None:
    """Print a row for each card, or (wide) for each device."""
    if not pools:
        click.echo(f"no {offered_plurals()} found")
    elif wide:
        print_table(
            ["POOL", "DEVICE", "KIND", "FUNCTION", "MODEL OR PROFILE", "DRIVER", "NUMA", "IOMMU", "STATE"],
            [_device_row(pool, device) for pool in pools for device in pool["spec"].get("devices", [])],
        )
    else:
        print_table(["POOL", "KIND", "MODEL", "DRIVER", "NUMA", "OFFERS", "NOTE"], [_pool_row(pool) for pool in pools])


def effective_attribute(pool: Object, device: Object, name: str) -> str:
    """An attribute of a device, or else of its pool."""
    return attribute_text(device, name) or attribute_text(pool["spec"], name)


def _pool_row(pool: Object) -> list[Cell]:
    devices = pool["spec"].get("devices", [])
    free = [device for device in devices if not effective_attribute(pool, device, meta.UNAVAILABLE)]
    functions = Counter(effective_attribute(pool, device, "function") for device in free)
    offers = ", ".join(f"{count} {function}" if count > 1 else function for function, count in functions.items())
    reasons = dict.fromkeys(effective_attribute(pool, device, meta.UNAVAILABLE) for device in devices)
    reason = "; ".join(text for text in reasons if text)

    def common(name: str) -> str:
        values = dict.fromkeys(effective_attribute(pool, device, name) for device in devices)
        return ", ".join(text for text in values if text)

    note: Cell = StyledText(reason, "yellow") if reason else ""
    model = dict.fromkeys(effective_attribute(pool, device, "model") for device in devices if device)
    return [
        pool["metadata"]["name"],
        common("kind"),
        next((text for text in model if text), ""),
        common("driver"),
        common("numa"),
        offers or "-",
        note,
    ]


def _device_row(pool: Object, device: Object) -> list[Cell]:
    reason = effective_attribute(pool, device, meta.UNAVAILABLE)
    return [
        pool["metadata"]["name"],
        device["name"],
        effective_attribute(pool, device, "kind"),
        effective_attribute(pool, device, "function"),
        effective_attribute(pool, device, "profile") or effective_attribute(pool, device, "model"),
        effective_attribute(pool, device, "driver"),
        effective_attribute(pool, device, "numa"),
        effective_attribute(pool, device, "iommuGroup"),
        StyledText(reason, "yellow") if reason else effective_attribute(pool, device, "state"),
    ]


def print_status(report: HostStatus) -> None:
    """Print tables on stdout, and problems on stderr."""
    from devalloc.inventory.capacity.cpus import format_cpu_list

    rows = [_row(each) for each in report.resources.values()]
    if (limit := report.host.image_limit) > 0:
        used = report.disk.images + report.disk.cache
        taken = (
            [format_size(used), format_size(max(0, limit - used))] if report.counts_content else ["not counted", "-"]
        )
        rows.append(["images", "-", "-", format_size(limit), *taken, "of the disk"])
    print_table(["RESOURCE", "CAPACITY", "RATIO", "LIMIT", "ALLOCATED", "AVAILABLE", "SOURCE"], rows)
    if report.host.nodes:
        click.echo()
        print_table(
            ["NUMA NODE", "CPUS", "MEMORY"],
            [[str(node.id), format_cpu_list(node.cpus) or "-", format_size(node.memory)] for node in report.host.nodes],
        )
    if report.gpu is not None:
        click.echo()
        _show_gpus(report)
    if report.machines:
        click.echo()
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
