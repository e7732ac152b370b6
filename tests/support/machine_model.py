"""What a machine does when it is to have other amounts: a model of QEMU, its guest's kernel and the machine layer.

Small enough to see that it is right, and held against the machine layer on a real QEMU by
``tests/machine/test_machine_model.py``. Memory comes and goes by itself, block by block, once it is requested; a guest
may keep some. A command returns when what it asked for is there, or says how far it came when its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from devalloc_node.errors import Denied

MIB = 2**20
CPU = 1000
_LOOK = 0.1  # seconds


@dataclass
class MachineModel:
    """``clock`` in seconds. Memory in bytes, CPUs whole, ``share`` in thousandths of a CPU."""

    clock: Callable[[], float]
    base: int
    room: int
    """Bytes of virtio-mem that there can be."""
    least_cpus: int
    most_cpus: int
    block: int = 2 * MIB
    rate: int = 2048 * MIB
    """Bytes that the guest takes or gives back in a second; 0: it has no driver, and does neither."""
    keeps: int = 0
    """Bytes of virtio-mem that it does not give back."""
    vcpus: int = 1
    share: int | None = None
    requested: int = 0
    cpu_left: bool = False
    """An emulated CPU has left: no more may come (QEMU 10)."""
    emulated: bool = True
    bounds_time: bool = True
    """It has a cgroup of its own."""
    _size: int = 0
    _since: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of virtio-mem that the guest has taken, now."""
        goal = max(self.requested, min(self._size, self.keeps))
        moved = int((self.clock() - self._since) * self.rate) // self.block * self.block
        if self._size < goal:
            return min(goal, self._size + moved)
        return max(goal, self._size - moved)

    @property
    def memory(self) -> int:
        return self.base + self.size

    @property
    def target(self) -> int:
        """What there will be when the guest has done all that it was asked for."""
        return self.base + self.requested

    @property
    def cpu_milli(self) -> int:
        return self.vcpus * CPU if self.share is None else min(self.share, self.vcpus * CPU)

    def request(self, size: int) -> None:
        self._size, self._since, self.requested = self.size, self.clock(), size

    def command(self, what: str, amount: int, patience: float = 10.0) -> Iterator[float]:
        """Do it: yields seconds to wait before it goes on. Raises Denied."""
        self._check(what, amount)
        if what == "memory":
            goal = -(-(amount - self.base) // self.block) * self.block
            began = self.clock()
            self.request(goal)
            while self.size != goal:
                yield _LOOK
                if self.size != goal and self.clock() - began >= patience:
                    self.request(self.size)
                    raise Denied("GuestRefused", f"it has {self.size}, and moves no further", retryable=True)
        elif what == "vcpus":
            while self.vcpus != amount:
                yield _LOOK
                self.cpu_left |= amount < self.vcpus
                self.vcpus += 1 if self.vcpus < amount else -1
        elif self.bounds_time:
            self.share = amount if amount % CPU or 0 < amount < self.vcpus * CPU else None
        elif amount % CPU or 0 < amount < self.vcpus * CPU:
            raise Denied("CgroupShared", "it has no cgroup of its own")

    def _check(self, what: str, amount: int) -> None:
        """Raises Denied for what is never begun with."""
        if what == "vcpus":
            self._within(amount, self.least_cpus, self.most_cpus)
            if self.emulated and self.cpu_left and amount > self.vcpus:
                raise Denied("CpusEmulated", "some have left it")
        elif what == "memory":
            self._within(amount, self.base, self.base + self.room)
        elif what == "cpu":
            if amount:
                self._within(amount, self.least_cpus * CPU, self.most_cpus * CPU)
        else:
            raise Denied("AmountUnknown", what)

    def _within(self, amount: int, least: int, most: int) -> None:
        if not least <= amount <= most:
            raise Denied("OutOfBounds", f"{amount} is not within {least} and {most}")

    def seen(self) -> dict[str, Any]:
        """As the machine layer shows it."""
        return {"cpu_milli": self.cpu_milli, "vcpus": self.vcpus, "memory_bytes": self.memory}
