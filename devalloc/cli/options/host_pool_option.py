"""``--host-capacity``: publish this host's capacity for machines beside its devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.command import CommandFailed

if TYPE_CHECKING:
    from devalloc.api.pool import DevicePool
    from devalloc.inventory import DeviceRecords, Discovery

DiscoverFunction = Callable[["DeviceRecords"], "Discovery"]


def host_pool_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--host-capacity, passed as ``host_capacity: bool``. The limits come from ``node_options``."""
    return click.option(
        "--host-capacity",
        is_flag=True,
        envvar="DEVALLOC_HOST_CAPACITY",
        help="Also publish the CPUs, memory and bandwidth that this host offers to VirtualMachines: devalloc then "
        "places machines by them, and starts none that does not fit [env: DEVALLOC_HOST_CAPACITY].",
    )(function)


def with_host_pool(
    look: DiscoverFunction, root: Path, node_name: str, store: Path, limits: dict[str, Any]
) -> DiscoverFunction:
    """Extend ``look`` to find the host's pool, too.

    If the host's capacity cannot be read any more, the last known pool stays: without a pool the host would admit
    anything. Raises Failed if it cannot be read at the start.
    """
    from devalloc.api.problems import Problem
    from devalloc.cli.options.host_capacity import capacity_config
    from devalloc.inventory.capacity import CapacityError, discover_capacity, host_pool

    config = capacity_config(limits, store.parent if store.parent.is_dir() else None)

    def pool() -> tuple[DevicePool, list[Problem]]:
        capacity = discover_capacity(root, config)
        return host_pool(capacity, node_name), [*capacity.problems]

    try:
        last, _ = pool()
    except CapacityError as error:
        raise CommandFailed(f"--host-capacity: {error}") from error

    def look_with_host(records: DeviceRecords) -> Discovery:
        nonlocal last
        devices = look(records)
        try:
            last, problems = pool()
        except CapacityError as error:
            problems = [Problem(str(error), source="capacity", severity="warning")]
        return replace(devices, pools=[*devices.pools, last], problems=[*devices.problems, *problems])

    return look_with_host
