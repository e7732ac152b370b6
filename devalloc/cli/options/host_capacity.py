"""A host's capacity for machines: the options that configure it, and its status as tables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import CommandFailed
from devalloc.cli.render.machines import format_size
from devalloc.cli.render.output import Cell, StyledText, print_heading, print_note, print_table

if TYPE_CHECKING:
    from fractions import Fraction

    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.inventory.capacity import CapacityConfig, HostCapacity
    from devalloc.inventory.capacity.status import HostStatus, ResourceStatus

_RATIOS = {"cpu": 4, "memory": 1, "disk": 1, "network": 2, "disk-io": 2}
_RATED = ("network", "disk_io")


def _amount_option(parse: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """A callback that parses an option with one of the grammars of amounts."""

    def read(_: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        from devalloc.inventory import capacity

        try:
            return getattr(capacity, parse)(text)
        except capacity.AmountError as error:
            raise click.BadParameter(str(error), param=parameter) from None

    return read


def _fraction_option(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """A ratio between 0 and 1. 0 means the default, as in the program whose settings these are."""
    part = _amount_option("parse_ratio")(context, parameter, text)
    if part is not None and not 0 <= part <= 1:
        raise click.BadParameter(f"invalid part of the disk {text}: write 0.2 for a fifth, at most 1", param=parameter)
    return part


def capacity_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The limits and ratios of a host, passed as ``limits: dict`` for ``capacity_config``."""
    options = [
        click.option(
            f"--oversub-{name}",
            f"ratio_{name.replace('-', '_')}",
            metavar="RATIO",
            envvar=f"DEVALLOC_OVERSUB_{name.replace('-', '_').upper()}",
            callback=_amount_option("parse_ratio"),
            help=f"How many times devalloc may promise the host's {what} to machines "
            f"[env: DEVALLOC_OVERSUB_{name.replace('-', '_').upper()}; default: {default}].",
        )
        for (name, default), what in zip(
            _RATIOS.items(), ("CPUs", "memory", "disk", "bandwidth", "disk bandwidth"), strict=True
        )
    ]
    options += [
        click.option(
            "--disk-limit",
            "disk",
            metavar="SIZE",
            envvar="DEVALLOC_DISK_LIMIT",
            callback=_amount_option("parse_size"),
            help="Disk for machines, such as 500GB (1GB is 2^30 bytes) [env: DEVALLOC_DISK_LIMIT; default: all of the "
            "data folder's file system].",
        ),
        click.option(
            "--network-limit",
            "network",
            metavar="RATE",
            envvar="DEVALLOC_NETWORK_LIMIT",
            callback=_amount_option("parse_bandwidth"),
            help="Bandwidth for machines, such as 10Gbps (bits, decimal) or 125MB/s (bytes, binary) "
            "[env: DEVALLOC_NETWORK_LIMIT; default: the speed of the uplink].",
        ),
        click.option(
            "--disk-io-limit",
            "disk_io",
            metavar="RATE",
            envvar="DEVALLOC_DISK_IO_LIMIT",
            callback=_amount_option("parse_bandwidth"),
            help="Bandwidth of the disks, such as 500MB/s [env: DEVALLOC_DISK_IO_LIMIT; default: 10^9 bytes per "
            "second].",
        ),
        click.option(
            "--uplink",
            metavar="INTERFACE",
            envvar="DEVALLOC_UPLINK",
            help="Interface through which machines reach the network [env: DEVALLOC_UPLINK; default: the one of the "
            "first IPv4 default route].",
        ),
        click.option(
            "--data-dir",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            envvar="DEVALLOC_DATA_DIR",
            help="Folder of machines' disks and images [env: DEVALLOC_DATA_DIR; default: the store's folder].",
        ),
        click.option(
            "--max-image-storage",
            "image_fraction",
            metavar="FRACTION",
            envvar="DEVALLOC_MAX_IMAGE_STORAGE",
            callback=_fraction_option,
            help="Part of the disk that images may use, at most 1 [env: DEVALLOC_MAX_IMAGE_STORAGE; default: 0.2].",
        ),
    ]

    @functools.wraps(function)
    def with_limits(**arguments: Any) -> Any:
        ratios = {name: arguments.pop(f"ratio_{name}") for name in (each.replace("-", "_") for each in _RATIOS)}
        limits = {
            name: arguments.pop(name) for name in ("disk", "network", "disk_io", "uplink", "data_dir", "image_fraction")
        }
        return function(limits={"ratios": ratios, **limits}, **arguments)

    decorated: Callable[..., Any] = with_limits
    for option in reversed(options):
        decorated = option(decorated)
    return decorated


def capacity_config(limits: dict[str, Any], data_dir: Path | None) -> CapacityConfig:
    """The configuration for the options; ``data_dir`` is used if they name none."""
    from devalloc.inventory.capacity import CapacityConfig

    ratios: dict[Any, Fraction] = {name: ratio for name, ratio in limits["ratios"].items() if ratio is not None}
    given = {name: value for name, value in limits.items() if name != "ratios" and value is not None}
    return CapacityConfig(ratios=ratios, **{"data_dir": data_dir, **given})


def discover_or_fail(root: Path, config: CapacityConfig) -> HostCapacity:
    """The host's capacity. Raises Failed."""
    from devalloc.inventory.capacity import CapacityError, discover_capacity

    try:
        return discover_capacity(root, config)
    except CapacityError as error:
        raise CommandFailed(str(error)) from None


def capacity_status(
    root: Path, node_name: str, store: Path, config: CapacityConfig, plugin: Path | None = None
) -> HostStatus:
    """The host's status, with the machines and claims of the store if there is one, and the other machines of the node
    plugin at this socket."""
    from devalloc.cli.node_machines import UnstoredMachines, unstored_machines
    from devalloc.inventory import InventoryConfig, discover
    from devalloc.inventory.capacity.gpus import gpu_status
    from devalloc.inventory.capacity.machines import machine_usage
    from devalloc.inventory.capacity.status import host_status

    host = discover_or_fail(root, config)
    machines, held, elsewhere = _machines_in_store(store, node_name)
    pools = discover(root, node_name=node_name, config=InventoryConfig(held=held)).pools
    uses = [machine_usage(machine) for machine in machines]
    others = UnstoredMachines() if plugin is None else unstored_machines(plugin, node_name, {use.id for use in uses})
    problems = [others.problem] if others.problem else []
    if elsewhere and not machines and not others.is_of_node:
        what = f"the store has machines of {', '.join(elsewhere)} but none of {node_name}"
        problems.append(f"{what}; if this host is one of them, name it with --node-name")
    uses += others.uses
    reported = host_status(host, lambda: uses, gpus=lambda: gpu_status(pools, held=held))
    return replace(reported, problems=(*reported.problems, *problems))


def _machines_in_store(path: Path, node_name: str) -> tuple[list[VirtualMachine], frozenset[str], list[str]]:
    """The node's machines, its devices that claims have, and the other nodes that have machines; empty without a
    store."""
    from devalloc.api.decode import decode
    from devalloc.api.virtual_machine import VirtualMachine
    from devalloc.cli.storage import open_embedded_store
    from devalloc.controller.reconcile.availability import device_names_held_on

    if not path.exists():
        return [], frozenset(), []
    with open_embedded_store(path) as objects:
        listed = list(objects.list(["VirtualMachine", "DeviceClaim", "DeviceClass"]).objects)
    decoded = (decode(obj).object for obj in listed if obj["kind"] == "VirtualMachine")
    placed = [each for each in decoded if isinstance(each, VirtualMachine) and each.node]
    machines = [each for each in placed if each.node == node_name]
    return (
        machines,
        device_names_held_on(node_name, listed),
        sorted({each.node for each in placed if each.node} - {node_name}),
    )


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
