"""``devalloc discover``: the devices of a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from devalloc.cli.command import verb
from devalloc.cli.options.common import inventory_options, output_option


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
    """List this host's devices as DevicePools: GPUs, NICs, accelerators, NVMe, with their functions and profiles.

    \b
    devalloc discover
    devalloc discover -o json | jq '.items[].metadata.name'
    """
    import socket

    from devalloc.cli.options.inventory import inventory_config
    from devalloc.cli.render.output import print_note, print_objects
    from devalloc.inventory import discover as look

    config = inventory_config(kinds, max_vfs, allow_shared_groups, adopted)
    discovery = look(sysfs_root, node_name=node_name or socket.gethostname().lower(), config=config)
    for problem in discovery.problems:
        print_note(f"error: {problem}" if problem.is_error else str(problem))
    pools: list[dict[str, Any]] = [pool.to_manifest() for pool in discovery.pools]
    if output in ("json", "yaml"):
        print_objects(pools, output)
    elif output == "name":
        for pool in pools:
            click.echo(f"devicepool/{pool['metadata']['name']}")
    else:
        from devalloc.cli.options.inventory import print_pools

        print_pools(pools, wide=output == "wide")
    return 0
