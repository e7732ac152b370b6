"""``devalloc discover``: the devices of a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from devalloc.cli.options import inventory_options, output_option
from devalloc.cli.verb import verb


@verb("discover")
@inventory_options
@output_option()
def discover(
    sysfs_root: Path,
    node_name: str | None,
    kinds: tuple[str, ...],
    max_vfs: int | None,
    allow_shared_groups: bool,
    adopted: tuple[str, ...],
    output: str,
) -> int:
    """List the devices of this host as DevicePools: GPUs, NICs, accelerators, NVMe, their functions and profiles.

    \b
    devalloc discover
    devalloc discover -o json | jq '.items[].metadata.name'
    """
    import socket

    from devalloc.cli.inventory import settings
    from devalloc.cli.output import dump_objects, note
    from devalloc.inventory import discover as look

    config = settings(kinds, max_vfs, allow_shared_groups, adopted)
    found = look(sysfs_root, node_name=node_name or socket.gethostname().lower(), config=config)
    for problem in found.problems:
        note(f"error: {problem}" if problem.is_error else str(problem))
    pools: list[dict[str, Any]] = [pool.to_manifest() for pool in found.pools]
    if output in ("json", "yaml"):
        dump_objects(pools, output)
    elif output == "name":
        for pool in pools:
            click.echo(f"devicepool/{pool['metadata']['name']}")
    else:
        from devalloc.cli.inventory import show_pools

        show_pools(pools, wide=output == "wide")
    return 0
