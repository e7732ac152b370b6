"""What this host has for machines, published beside its devices: ``--host-capacity``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from devalloc.cli.verb import Failed

if TYPE_CHECKING:
    from devalloc.api.pool import DevicePool
    from devalloc.inventory import Discovery, Known

Look = Callable[["Known"], "Discovery"]


def host_pool_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--host-capacity: passed as ``host_capacity: bool``. The limits that count are those of ``node_options``."""
    return click.option(
        "--host-capacity",
        is_flag=True,
        envvar="DEVALLOC_HOST_CAPACITY",
        help="Publish the CPUs, memory and bandwidth that this host has for VirtualMachines too: machines are then "
        "placed by them, and none is started here that does not fit [env: DEVALLOC_HOST_CAPACITY].",
    )(function)


def with_host_pool(look: Look, root: Path, node_name: str, store: Path, limits: dict[str, Any]) -> Look:
    """Looks as ``look`` does, and finds the host's pool as well.

    A host whose capacity cannot be told any more has the last one that was: without a pool it would admit anything.
    Raises Failed when it cannot be told at the beginning.
    """
    from devalloc.api.problems import Problem
    from devalloc.cli.hostcapacity import settings
    from devalloc.inventory.capacity import CapacityError, discover_capacity, host_pool

    config = settings(limits, store.parent if store.parent.is_dir() else None)

    def pool() -> tuple[DevicePool, list[Problem]]:
        found = discover_capacity(root, config)
        return host_pool(found, node_name), [*found.problems]

    try:
        last, _ = pool()
    except CapacityError as error:
        raise Failed(f"--host-capacity: {error}") from error

    def found(known: Known) -> Discovery:
        nonlocal last
        devices = look(known)
        try:
            last, problems = pool()
        except CapacityError as error:
            problems = [Problem(str(error), source="capacity", severity="warning")]
        return replace(devices, pools=[*devices.pools, last], problems=[*devices.problems, *problems])

    return found
