"""What a guest says that it has, beside what its machine was given."""

from __future__ import annotations

from dataclasses import dataclass

CPUS = "devalloc_guest_cpus_online"
MEMORY = "host_memory_total_bytes"
"""The gauges that the guest monitor tells them by."""
_MOST_APART = 128 * 2**20
"""Bytes: a block of memory, the least that a kernel brings online."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What a guest uses: ``cpus`` that are online, and ``memory`` in bytes, without what its kernel keeps from boot.
    None: it does not say."""

    cpus: int | None
    memory: int | None

    def is_behind(self, cpus: int, memory: int) -> bool:
        """Whether it has not brought online what its machine has. A kernel keeps a 64th of its memory for the table of
        its pages, and some more for itself; what is within twice that is not told apart from it."""
        kept = min(memory // 8, _MOST_APART) + memory // 32
        few = self.cpus is not None and self.cpus < cpus
        return few or (self.memory is not None and self.memory + kept < memory)


def similar(one: int, other: int) -> bool:
    """Whether two amounts of memory are the same but for what a kernel keeps: less than an eighth and a block apart."""
    apart = abs(one - other)
    return apart * 8 < min(one, other) and apart < _MOST_APART
