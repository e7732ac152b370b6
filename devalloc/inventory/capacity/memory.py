"""The memory of a host."""

from __future__ import annotations

import re
from collections.abc import Sequence

from devalloc.inventory.capacity.cpus import NumaNode
from devalloc.inventory.sysfs import Tree

_KIB = 1024
_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)


class MemoryUnknown(ValueError):
    """The host's memory cannot be told. The message says which file is wrong, and how."""


def read_memory(tree: Tree, nodes: Sequence[NumaNode]) -> tuple[int, tuple[str, ...]]:
    """Bytes for machines, and what an admin should know of them. Without /proc they are those of the NUMA nodes.

    Raises MemoryUnknown.
    """
    text = tree.proc.text("meminfo") if tree.proc else None
    on_nodes = sum(node.memory for node in nodes)
    if text is None:
        if on_nodes:
            return on_nodes, ()
        raise MemoryUnknown("cannot read the host's memory: there is no readable /proc/meminfo")
    total = parse_mem_total(text)
    # The two differ by what the kernel keeps to itself, unless this process, and so its machines, may not have the
    # memory of some nodes.
    if on_nodes < total and any(node.forbidden for node in nodes):
        return on_nodes, (f"this process, and so its machines, may use {on_nodes} of {total} bytes of memory",)
    if on_nodes and abs(total - on_nodes) > total // 16:
        return total, (f"/proc/meminfo reports {total} bytes of memory, its NUMA nodes of {on_nodes}",)
    return total, ()


def parse_mem_total(meminfo: str) -> int:
    """Bytes by the text of /proc/meminfo. Raises MemoryUnknown."""
    for line in meminfo.splitlines():
        words = line.split()
        if words and words[0] == "MemTotal:":
            amount = words[1] if len(words) > 1 else ""
            if _DIGITS.fullmatch(amount) is None:
                raise MemoryUnknown(f"parse MemTotal: {amount[:20]!r} in /proc/meminfo is not a number")
            return int(amount) * _KIB
    raise MemoryUnknown("MemTotal not found in /proc/meminfo")
