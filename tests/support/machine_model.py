"""What a machine does when it is told to have other amounts: a model of QEMU, its guest's kernel and the machine layer.

Small enough to see that it is right, and held against the machine layer on a real QEMU by
``tests/machine/test_machine_model.py``. Memory comes and goes by itself, block by block, once it is requested; a guest
may keep some. A command returns when what it asked for is there, or says how far it came when its time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from devalloc_node.errors import Denied, NodeError

MIB = 2**20
CPU = 1000


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
    def coming(self) -> int:
        """What there may be by what was asked for: what there is, or more."""
        return self.base + max(self.size, self.requested)

    @property
    def cpu_milli(self) -> int:
        return self.vcpus * CPU if self.share is None else min(self.share, self.vcpus * CPU)

    def request(self, size: int) -> None:
        self._size, self._since, self.requested = self.size, self.clock(), size

    # What the machine layer says to commands, before it begins with them

    def checked(self, what: str, amount: int) -> None:
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

    def blocks(self, memory: int) -> int:
        """What is requested for so much memory in all: whole blocks, the next more."""
        return -(-(memory - self.base) // self.block) * self.block

    def stuck(self, goal: int) -> NodeError | None:
        """The time is over: no more is asked of the guest than what it has."""
        self.request(self.size)
        return None if self.size == goal else Denied("GuestRefused", "it moves no further", retryable=True)

    def limit(self, share: int) -> None:
        self.share = share if share % CPU or 0 < share < self.vcpus * CPU else None

    def set_cpus(self, count: int) -> None:
        self.cpu_left |= count < self.vcpus
        self.vcpus = count

    def seen(self) -> dict[str, Any]:
        return {"cpu_milli": self.cpu_milli, "vcpus": self.vcpus, "memory_bytes": self.memory}
