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
    """What a guest uses: ``cpus`` that are online, and ``memory`` in bytes, without what its kernel keeps from boot."""

    cpus: int
    memory: int


def similar(one: int, other: int) -> bool:
    """Whether two amounts of memory are the same but for what a kernel keeps: less than an eighth and a block apart."""
    apart = abs(one - other)
    return apart * 8 < min(one, other) and apart < _MOST_APART
