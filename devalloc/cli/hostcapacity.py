"""A host's own capacity: the options that configure it, and its status for people."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.machines import size
from devalloc.cli.output import Cell, Styled, heading, note, table
from devalloc.cli.verb import Failed

if TYPE_CHECKING:
    from fractions import Fraction

    from devalloc.api.virtualmachine import VirtualMachine
    from devalloc.inventory.capacity import CapacityConfig, HostCapacity
    from devalloc.inventory.capacity.status import HostStatus, ResourceStatus

_RATIOS = {"cpu": 4, "memory": 1, "disk": 1, "network": 2, "disk-io": 2}
_RATED = ("network", "disk_io")


def _amount(parse: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """Reads an option by one of the grammars of amounts."""

    def read(_: click.Context, parameter: click.Parameter, text: str | None) -> Any:
        if text is None:
            return None
        from devalloc.inventory import capacity

        try:
            return getattr(capacity, parse)(text)
        except capacity.AmountError as error:
            raise click.BadParameter(str(error), param=parameter) from None

    return read


def _part(context: click.Context, parameter: click.Parameter, text: str | None) -> Any:
    """A ratio that is a part of something. 0 is the default, as it is for those whose settings these were."""
    part = _amount("parse_ratio")(context, parameter, text)
    if part is not None and not 0 <= part <= 1:
        raise click.BadParameter(f"invalid part of the disk {text}: write 0.2 for a fifth, at most 1", param=parameter)
    return part


def capacity_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The limits and ratios of a host: passed as ``limits: dict`` for ``settings``."""
    options = [
        click.option(
            f"--oversub-{name}",
            f"ratio_{name.replace('-', '_')}",
            metavar="RATIO",
            envvar=f"DEVALLOC_OVERSUB_{name.replace('-', '_').upper()}",
            callback=_amount("parse_ratio"),
            help=f"How many times the host's {what} may be promised to machines "
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
            callback=_amount("parse_size"),
            help="Disk for machines, such as 500GB (1GB is 2^30 bytes) [env: DEVALLOC_DISK_LIMIT; default: all of the "
            "data folder's file system].",
        ),
        click.option(
            "--network-limit",
            "network",
            metavar="RATE",
            envvar="DEVALLOC_NETWORK_LIMIT",
            callback=_amount("parse_bandwidth"),
            help="Bandwidth for machines, as 10Gbps (bits, decimal) or 125MB/s (bytes, binary) "
            "[env: DEVALLOC_NETWORK_LIMIT; default: the speed of the uplink].",
        ),
        click.option(
            "--disk-io-limit",
            "disk_io",
            metavar="RATE",
            envvar="DEVALLOC_DISK_IO_LIMIT",
            callback=_amount("parse_bandwidth"),
            help="Bandwidth of the disks, as 500MB/s [env: DEVALLOC_DISK_IO_LIMIT; default: 10^9 bytes per second].",
        ),
        click.option(
            "--uplink",
            metavar="INTERFACE",
            envvar="DEVALLOC_UPLINK",
            help="Interface through which machines reach the network [env: DEVALLOC_UPLINK; default: that of the first "
            "IPv4 default route].",
        ),
        click.option(
            "--data-dir",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            envvar="DEVALLOC_DATA_DIR",
            help="Folder of machines' disks and images [env: DEVALLOC_DATA_DIR; default: that of the store].",
        ),
        click.option(
            "--max-image-storage",
            "image_fraction",
            metavar="FRACTION",
            envvar="DEVALLOC_MAX_IMAGE_STORAGE",
            callback=_part,
            help="Part of the disk that images may take, at most 1 [env: DEVALLOC_MAX_IMAGE_STORAGE; default: 0.2].",
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


def settings(limits: dict[str, Any], data_dir: Path | None) -> CapacityConfig:
    """The configuration for the options; ``data_dir`` where none is named."""
    from devalloc.inventory.capacity import CapacityConfig

    ratios: dict[Any, Fraction] = {name: ratio for name, ratio in limits["ratios"].items() if ratio is not None}
    given = {name: value for name, value in limits.items() if name != "ratios" and value is not None}
    return CapacityConfig(ratios=ratios, **{"data_dir": data_dir, **given})


def discovered(root: Path, config: CapacityConfig) -> HostCapacity:
    """What the host has. Raises Failed."""
    from devalloc.inventory.capacity import CapacityError, discover_capacity

    try:
        return discover_capacity(root, config)
    except CapacityError as error:
        raise Failed(str(error)) from None


def status(root: Path, node_name: str, store: Path, config: CapacityConfig, plugin: Path | None = None) -> HostStatus:
    """The host's status, with the machines and claims of the store where there is one, and the other machines of the
    node plugin at this socket."""
    from devalloc.cli.hostmachines import Beside, beside
    from devalloc.inventory import InventoryConfig, discover
    from devalloc.inventory.capacity.gpus import gpu_status
    from devalloc.inventory.capacity.machines import of_machine
    from devalloc.inventory.capacity.status import host_status

    found = discovered(root, config)
    machines, held, elsewhere = _in_store(store, node_name)
    pools = discover(root, node_name=node_name, config=InventoryConfig(held=held)).pools
    uses = [of_machine(machine) for machine in machines]
    others = Beside() if plugin is None else beside(plugin, node_name, {use.id for use in uses})
    problems = [others.problem] if others.problem else []
    if elsewhere and not machines and not others.is_of_node:
        what = f"the store has machines of {', '.join(elsewhere)} and none of {node_name}"
        problems.append(f"{what}; if this host is one of them, name it with --node-name")
    uses += others.uses
    told = host_status(found, lambda: uses, gpus=lambda: gpu_status(pools, held=held))
    return replace(told, problems=(*told.problems, *problems))


def _in_store(path: Path, node_name: str) -> tuple[list[VirtualMachine], frozenset[str], list[str]]:
    """The node's machines, the devices of it that claims hold, and the other nodes that have machines; nothing without
    a store."""
    from devalloc.api.decode import decode
    from devalloc.api.virtualmachine import VirtualMachine
    from devalloc.cli.storage import opened
    from devalloc.controller.availability import held_on

    if not path.exists():
        return [], frozenset(), []
    with opened(path) as objects:
        listed = list(objects.list(["VirtualMachine", "DeviceClaim", "DeviceClass"]).objects)
    decoded = (decode(obj).object for obj in listed if obj["kind"] == "VirtualMachine")
    placed = [each for each in decoded if isinstance(each, VirtualMachine) and each.node]
    machines = [each for each in placed if each.node == node_name]
    return machines, held_on(node_name, listed), sorted({each.node for each in placed if each.node} - {node_name})


def show(found: HostStatus) -> None:
    """Tables for people; what could not be told on stderr."""
    from devalloc.inventory.capacity.cpus import written

    rows = [_row(each) for each in found.resources.values()]
    if (limit := found.host.image_limit) > 0:
        used = found.disk.images + found.disk.cache
        taken = [size(used), size(max(0, limit - used))] if found.counts_content else ["not counted", "-"]
        rows.append(["images", "-", "-", size(limit), *taken, "of the disk"])
    table(["RESOURCE", "CAPACITY", "RATIO", "LIMIT", "ALLOCATED", "AVAILABLE", "SOURCE"], rows)
    if found.host.nodes:
        click.echo()
        table(
            ["NUMA NODE", "CPUS", "MEMORY"],
            [[str(node.id), written(node.cpus) or "-", size(node.memory)] for node in found.host.nodes],
        )
    if found.gpu is not None:
        click.echo()
        _show_gpus(found)
    if found.machines:
        click.echo()
        table(
            ["MACHINE", "STATE", "CPU", "MEMORY", "DISK", "DOWN", "UP", "DISK I/O"],
            [
                [use.id, use.state, f"{use.cpu / 1000:g}", *map(size, (use.memory, use.disk + use.volumes))]
                + [f"{size(rate)}/s" for rate in (use.download, use.upload, use.disk_io)]
                for use in found.machines
            ],
        )
    for problem in (*found.host.problems, *found.problems):
        note(str(problem))


def _show_gpus(found: HostStatus) -> None:
    gpu = found.gpu
    assert gpu is not None
    kind = "vGPUs" if gpu.mode == "vgpu" else "GPUs"
    text = f"{kind}: {gpu.total} slots, {gpu.used} used, {gpu.allocatable} more can be given"
    heading(text + (f" ({gpu.quarantined} quarantined)" if gpu.quarantined else ""))
    if gpu.profiles:
        table(
            ["PROFILE", "FRAMEBUFFER", "AVAILABLE"],
            [
                [each.name, size(each.framebuffer) if each.framebuffer else "-", str(each.available)]
                for each in gpu.profiles
            ],
        )
    if gpu.devices:
        rows: list[list[Cell]] = [
            [each.name, each.model, "yes" if each.available else Styled(each.reason, "yellow")] for each in gpu.devices
        ]
        table(["DEVICE", "MODEL", "AVAILABLE"], rows)


def _row(status: ResourceStatus) -> list[Cell]:
    found = status.capacity
    amounts = [found.capacity, found.effective_limit, status.allocated, status.available]
    capacity, limit, allocated, available = _texts(found.resource, amounts)
    source: Cell = Styled(found.source, "yellow") if found.source == "unknown" else found.source
    return [found.resource, capacity, f"{float(found.ratio):g}", limit, allocated, available, source]


def _texts(resource: str, amounts: list[int]) -> Iterator[str]:
    for amount in amounts:
        if resource == "cpu":
            yield f"{amount / 1000:g}"
        else:
            yield size(amount) + ("/s" if resource in _RATED else "")
