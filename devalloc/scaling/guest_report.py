"""What a guest reports of its CPUs and memory, compared with what its machine was given."""

from __future__ import annotations

from dataclasses import dataclass

CPUS = "devalloc_guest_cpus_online"
MEMORY = "host_memory_total_bytes"
"""The gauges that the guest monitor tells them by."""
_MAX_DIFFERENCE = 128 * 2**20
"""Bytes: a block of memory, the least that a kernel brings online."""


@dataclass(frozen=True, slots=True)
class GuestReport:
    """What a guest uses: ``cpus`` that are online, and ``memory`` in bytes, without what its kernel keeps from boot.
    None: it does not say."""

    cpus: int | None
    memory: int | None

    def is_behind(self, cpus: int, memory: int) -> bool:
        """Whether it has not brought online what its machine has. A kernel keeps a 64th of its memory for the table of
        its pages, and some more for itself; what is within twice that is not told apart from it."""
        overhead = min(memory // 8, _MAX_DIFFERENCE) + memory // 32
        few = self.cpus is not None and self.cpus < cpus
        return few or (self.memory is not None and self.memory + overhead < memory)
