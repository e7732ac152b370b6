"""When a guest needs more memory, when it can give some back, and how large a cache may be. Bytes; pure functions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MIB = 2**20
APART = 100 * MIB
"""What the system itself needs, and what must stay between use and threshold for a downscale to be agreed to."""
_RESERVES = {"disk": 256 * MIB, "memory": 640 * MIB}
CACHES = tuple(_RESERVES)


def usable(memory: int) -> int:
    """What of a machine's memory the workload can have."""
    return max(0, memory - APART)


def threshold(memory: int) -> int:
    """In a machine with so much memory, at which use more is wanted."""
    return usable(memory) * 85 // 100


def cache_size(memory: int, where: str) -> int:
    """Of a cache on ``disk`` or in ``memory``, whole mebibytes."""
    reserve = _RESERVES[where]
    if memory <= reserve:
        return 0
    return min((memory - reserve) * 10 // 11, memory * 3 // 4) // MIB * MIB


@dataclass(slots=True)
class MemorySamples:
    """Memory in use at the last few instants (milliseconds)."""

    most: int = 5
    _taken: deque[tuple[int, int]] = field(default_factory=deque)

    def add(self, now: int, used: int) -> None:
        self._taken.append((now, used))
        if len(self._taken) > self.most:
            self._taken.popleft()

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def used(self) -> int:
        """On average; 0 where there is none."""
        return sum(used for _, used in self._taken) // max(1, len(self._taken))

    def age(self, now: int) -> int | None:
        """Milliseconds since the last; None where there is none."""
        return now - self._taken[-1][0] if self._taken else None
