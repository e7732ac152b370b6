"""``devalloc discover``: the devices of a host."""

from __future__ import annotations

from typing import Any

from devalloc.cli.render.host import print_pools
from devalloc.cli.render.output import print_objects
from devalloc.cli.terminal import print_line, print_note
from devalloc.device_kinds import kinds_by_name
from devalloc.inventory.discover import discover as look
from devalloc.programs.inventory_options import InventoryOptions


def discover(inventory: InventoryOptions, output: str) -> int:
    inventory.check_node_name()
    discovery = look(inventory.sysfs_root, node_name=inventory.node, config=inventory.config)
    for problem in discovery.problems:
        print_note(f"error: {problem}" if problem.is_error else str(problem))
    pools: list[dict[str, Any]] = [pool.to_manifest() for pool in discovery.pools]
    if output in ("json", "yaml"):
        print_objects(pools, output)
    elif output == "name":
        for pool in pools:
            print_line(f"devicepool/{pool['metadata']['name']}")
    else:
        kinds = kinds_by_name(inventory.config.device_kinds)
        looked_for = [kind for kind in kinds.values() if kind.name in inventory.config.kinds]
        print_pools(pools, wide=output == "wide", looked_for=looked_for)
    return 0
