"""Whether this host, or its QEMU, can ever have a machine so large: told before it is started where it can be."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from devalloc.inventory.capacity.cpus import cpu_list
from devalloc_node.errors import Denied
from devalloc_node.machine.spec import MIB, MachineSpec

NODES = Path("/sys/devices/system/node")
EMULATED_BITS = 40
"""Bits of an address of memory in an emulated CPU (QEMU's TCG)."""
_PHYSICAL = re.compile(r"^address sizes\s*: (\d+) bits physical", re.MULTILINE)
_AMOUNT = re.compile(r"^(?:MemTotal|SwapTotal):\s*(\d+) kB$", re.MULTILINE)
_FOR_GOOD = ("Invalid SMP CPUs", "phys-bits too low", "maximum memory size")
"""What QEMU says of a machine that it will never have, whenever it is asked."""


def check(
    spec: MachineSpec,
    accel: Literal["kvm", "tcg"],
    proc: Path = Path("/proc"),
    nodes: Path = NODES,
) -> None:
    """Raises Denied: ``MachineTooLarge``, ``NumaNodeMissing``. What cannot be read bounds nothing: QEMU says it then,
    though later."""
    if spec.numa_node is not None and not (nodes / f"node{spec.numa_node}").is_dir():
        raise Denied(
            "NumaNodeMissing",
            f"machine {spec.key} is to have memory of NUMA node {spec.numa_node}, which this host has not; "
            "choose another start.numaNode",
        )
    if (whole := _bytes_of_host(proc)) is not None and spec.memory.least > whole:
        raise Denied(
            "MachineTooLarge",
            f"machine {spec.key} is to have at least {spec.memory.least // MIB}Mi of memory, and this host has "
            f"{whole // MIB}Mi with its swap; lower memory.min",
        )
    bits = address_bits(accel, proc)
    # QEMU would take half a minute for the tables of so much memory before it looks whether it can be addressed.
    if bits is not None and spec.memory.most >= 1 << bits:
        raise Denied(
            "MachineTooLarge",
            f"machine {spec.key} is to have room for {spec.memory.most // MIB}Mi of memory, and its CPUs, run with "
            f"{accel}, address less than {(1 << bits) // MIB}Mi; lower memory.max",
        )


def cpus_of(numa_node: int | None) -> tuple[int, ...]:
    """CPUs of a NUMA node that machines may run on; none where they may run on any, or nothing tells which they are."""
    if numa_node is None:
        return ()
    try:
        found = cpu_list((NODES / f"node{numa_node}" / "cpulist").read_text())
    except OSError:
        found = None
    return tuple(sorted((found or frozenset()) & os.sched_getaffinity(0)))


def never(words: str) -> bool:
    """Whether QEMU, by its last words, will never have such a machine."""
    return any(each in words for each in _FOR_GOOD)


def _bytes_of_host(proc: Path) -> int | None:
    try:
        found = _AMOUNT.findall((proc / "meminfo").read_text())
    except OSError:
        return None
    return sum(map(int, found)) * 1024 if found else None


def address_bits(accel: Literal["kvm", "tcg"], proc: Path = Path("/proc")) -> int | None:
    """Bits of a physical address of the machine's CPUs; None where the host does not tell."""
    if accel == "tcg":
        return EMULATED_BITS
    try:
        found = _PHYSICAL.search((proc / "cpuinfo").read_text())
    except OSError:
        return None
    return None if found is None else int(found[1])
