"""``devalloc discover``: the devices of a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from devalloc.cli.options import output_option
from devalloc.cli.verb import verb


@verb("discover")
@click.option(
    "--sysfs-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("/"),
    metavar="DIR",
    help="Read this tree instead of the host's: the folder that holds sys, or the sys folder itself.",
)
@click.option("--node-name", metavar="NAME", help="The node that the pools belong to; the host name by default.")
@output_option()
def discover(sysfs_root: Path, node_name: str | None, output: str) -> int:
    """List the devices of this host as DevicePools: GPUs, NICs, accelerators, NVMe, their functions and profiles.

    \b
    devalloc discover
    devalloc discover -o json | jq '.items[].metadata.name'
    """
    import socket

    from devalloc.cli.output import dump_objects, note
    from devalloc.inventory import discover as look

    found = look(sysfs_root, node_name=node_name or socket.gethostname().lower())
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
