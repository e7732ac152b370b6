"""``devalloc discover``: the devices of a host."""

from __future__ import annotations

from typing import Any

import click

from devalloc.cli.command import verb
from devalloc.cli.options.common import output_option
from devalloc.cli.options.inventory import InventoryOptions
from devalloc.cli.options.settings import settings_options
from devalloc.cli.render.output import print_note, print_objects


@verb("discover")
@settings_options(InventoryOptions, "inventory")
@output_option()
def discover(inventory: InventoryOptions, output: str) -> int:
    """List this host's devices as DevicePools, with their functions and profiles.

    \b
    devalloc discover
    devalloc discover -o json | jq '.items[].metadata.name'
    """
    from devalloc.inventory import discover as look

    discovery = look(inventory.sysfs_root, node_name=inventory.node, config=inventory.config)
    for problem in discovery.problems:
        print_note(f"error: {problem}" if problem.is_error else str(problem))
    pools: list[dict[str, Any]] = [pool.to_manifest() for pool in discovery.pools]
    if output in ("json", "yaml"):
        print_objects(pools, output)
    elif output == "name":
        for pool in pools:
            click.echo(f"devicepool/{pool['metadata']['name']}")
    else:
        from devalloc.cli.render.host import print_pools

        print_pools(pools, wide=output == "wide")
    return 0
