"""Between which bounds a VirtualMachine's CPUs and memory are, and how they come and go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from devalloc.api.fields import (
    RELATED,
    ApiModel,
    Fault,
    Positive,
    refuse,
)
from devalloc.api.quantity import NANO, Quantity

MIB = 2**20
MEMORY_BLOCK = 2 * MIB
"""Bytes in which virtio-mem gives and takes memory."""
SLOT_BLOCK = 128 * MIB
"""Bytes in which a guest brings the memory of a DIMM online."""
MAX_SLOTS = 255
"""DIMM slots of a machine."""
MAX_CPUS = 1024
MIN_CPU = NANO // 100
"""The least share of a CPU, in nano: a kernel bounds CPU time in no steps below a millisecond of its 100."""


def _more_than_nothing(amount: Quantity) -> Quantity:
    if amount.nano <= 0:
        raise ValueError(f"must be more than zero, and is {amount}")
    return amount


PositiveAmount = Annotated[Positive, AfterValidator(_more_than_nothing)]


def _bounds(least: Quantity, most: Quantity, use: Quantity | None) -> list[Fault]:
    """What is wrong with min <= use <= max."""
    if most < least:
        return [(("max",), f"must not be below min ({least}), and is {most}")]
    if use is not None and use < least:
        return [(("use",), f"must not be below min ({least}), and is {use}")]
    if use is not None and most < use:
        return [(("use",), f"must not be above max ({most}), and is {use}")]
    return []


class CpuBounds(ApiModel):
    """CPUs of a machine: the guest sees whole ones, and gets the time of ``use``; fractions such as 500m are fine."""

    min: PositiveAmount
    """What it never has less of, at least 10m."""
    max: PositiveAmount
    """What it never has more of. The machine is started with room for as many CPUs, rounded up."""
    use: PositiveAmount | None = None
    """What it has now; min where nothing is said."""

    @model_validator(mode="after")
    def _ordered(self) -> CpuBounds:
        faults = _bounds(self.min, self.max, self.use)
        if self.min.nano < MIN_CPU:
            faults.append((("min",), f"must be at least 10m, the least that a host can bound, and is {self.min}"))
        if self.max.nano > MAX_CPUS * NANO:
            faults.append((("max",), f"must not be above {MAX_CPUS}, and is {self.max}"))
        refuse(faults, RELATED)
        return self

    @property
    def wanted(self) -> Quantity:
        """``use``, or min."""
        return self.use or self.min

    @property
    def slots(self) -> int:
        """Whole CPUs that there must be room for."""
        return cpus_for(self.max)


def cpus_for(amount: Quantity) -> int:
    """The whole CPUs that a guest needs for an amount."""
    return -(-amount.nano // NANO)


class MemoryBounds(ApiModel):
    """Bytes of memory of a machine. It is started with min, and what is above comes and goes by the method."""

    min: PositiveAmount
    """What it never has less of: a multiple of 2Mi."""
    max: PositiveAmount
    """What it never has more of."""
    use: PositiveAmount | None = None
    """What it has now; min where nothing is said."""
    method: Literal["virtio-mem", "dimm"] = "virtio-mem"
    """How memory is added: in blocks of 2Mi, or in DIMMs of slotSize, which older guests know."""
    slot_size: PositiveAmount | None = None
    """The size of a DIMM, a multiple of 128Mi, with method dimm only."""

    @model_validator(mode="after")
    def _fit(self) -> MemoryBounds:
        faults: list[Fault] = []
        for name, amount in (("min", self.min), ("max", self.max), ("use", self.use)):
            if amount is not None and not _is_multiple(amount, MEMORY_BLOCK):
                faults.append(((name,), f"must be a multiple of 2Mi, and is {amount}"))
        refuse(faults or _bounds(self.min, self.max, self.use) or self._slot_faults(), RELATED)
        return self

    def _slot_faults(self) -> list[Fault]:
        slot = self.slot_size
        if self.method != "dimm":
            return [] if slot is None else [(("slotSize",), "goes with method dimm only")]
        if slot is None:
            return [(("slotSize",), "is required with method dimm")]
        if not _is_multiple(slot, SLOT_BLOCK):
            return [(("slotSize",), f"must be a multiple of 128Mi, and is {slot}")]
        above = [("max", self.max - self.min)] + ([] if self.use is None else [("use", self.use - self.min)])
        faults: list[Fault] = [
            ((name,), f"must be min ({self.min}) and a multiple of slotSize ({slot}) more")
            for name, amount in above
            if amount.nano % slot.nano
        ]
        if above[0][1].nano // slot.nano > MAX_SLOTS:
            faults.append((("max",), f"must be at most {MAX_SLOTS} times slotSize ({slot}) above min ({self.min})"))
        return faults

    @property
    def wanted(self) -> Quantity:
        """``use``, or min."""
        return self.use or self.min

    @property
    def slots(self) -> int:
        """DIMM slots that there must be room for; 0 with virtio-mem."""
        return (self.max - self.min).nano // self.slot_size.nano if self.slot_size is not None else 0


def _is_multiple(amount: Quantity, of: int) -> bool:
    return amount.nano % (of * NANO) == 0
