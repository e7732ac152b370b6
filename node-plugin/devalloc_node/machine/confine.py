"""What QEMU of a machine may take of its host, and what it sees of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from devalloc_node.machine.spec import MachineSpec, whole_cpus

GIB = 1 << 30
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
"""Where programs, their libraries and firmware lie."""
_LINKER = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives")
_KERNEL = ("/dev", "/proc", "/sys")
"""As they are: devices come and go while a machine runs, VFIO's among them."""
Access = Literal["read", "write", "as-is"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all that runs as a machine's QEMU."""

    memory: int
    """Bytes."""
    tasks: int
    """Threads and processes."""


def limits_of(spec: MachineSpec, accel: str, slack: int = GIB) -> Limits:
    """Far above what QEMU ever needs, so that only one that somebody has taken over meets them: all memory that the
    guest can have, what QEMU keeps for each part of that and for each vCPU, ``slack`` for devices, firmware and QEMU
    itself, and the translated code of an emulated CPU."""
    vcpus = whole_cpus(spec.cpus.most)
    memory = spec.memory.most + spec.memory.most // 256 + vcpus * (16 << 20) + slack
    return Limits(memory + (GIB if accel == "tcg" else 0), 256 + 2 * vcpus)


def seen_by_qemu(
    binary: str, files: Sequence[str], folder: Path, more: Sequence[Path] = ()
) -> list[tuple[str, Access]]:
    """Paths that QEMU needs, and no others: ``files`` are those that it opens itself, ``folder`` is the machine's.

    Those of a program outside of the system's folders are in the folder that it was unpacked or installed in.
    """
    seen: dict[str, Access] = dict.fromkeys((*_SYSTEM, *_LINKER), "read")
    for program in {os.path.abspath(binary), os.path.realpath(binary)}:
        own = os.path.dirname(program)
        own = os.path.dirname(own) if os.path.basename(own) in ("bin", "sbin") else own
        if own != "/" and not any(Path(own).is_relative_to(system) for system in _SYSTEM):
            seen[own] = "read"
    seen |= {str(path): "as-is" for path in more}
    seen |= dict.fromkeys(files, "read")
    seen |= dict.fromkeys(_KERNEL, "as-is")
    seen[str(folder)] = "write"
    return [(path, seen[path]) for path in sorted(seen) if os.path.lexists(path)]
