"""Bounds of a VirtualMachine's CPUs and memory, and how they are added and removed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from devalloc.api.fields import RELATED, ApiModel, FieldFault, Positive, Unit, raise_faults
from devalloc.api.quantity import NANO, Quantity

MIB = 2**20
MEMORY_BLOCK = 2 * MIB
"""Block size of virtio-mem in bytes."""
SLOT_BLOCK = 128 * MIB
"""Bytes of a block of DIMM memory that a guest brings online."""
MAX_SLOTS = 255
"""Maximum DIMM slots of a machine."""
MAX_CPUS = 1024
MIN_CPU = NANO // 100
"""The minimum share of a CPU, in nano: kernels limit CPU time in steps of at least 1 ms per 100 ms."""


def _reject_zero(amount: Quantity) -> Quantity:
    if amount.nano <= 0:
        raise ValueError(f"must be more than zero, but is {amount}")
    return amount


PositiveAmount = Annotated[Positive, AfterValidator(_reject_zero)]
Cpus = Annotated[PositiveAmount, Unit("CPUs")]
Bytes = Annotated[PositiveAmount, Unit("bytes")]
BytesPerSecond = Annotated[PositiveAmount, Unit("bytes/s")]


def _bounds_faults(least: Quantity, most: Quantity, use: Quantity | None) -> list[FieldFault]:
    """The violations of min <= use <= max."""
    if most < least:
        return [(("max",), f"must not be below min ({least}), but is {most}")]
    if use is not None and use < least:
        return [(("use",), f"must not be below min ({least}), but is {use}")]
    if use is not None and most < use:
        return [(("use",), f"must not be above max ({most}), but is {use}")]
    return []


class CpuBounds(ApiModel):
    """CPUs of a machine: the guest sees whole CPUs, and gets the CPU time of ``use``, which may be a fraction such as
    500m."""

    min: Cpus
    """The minimum, at least 10m."""
    max: Cpus
    """The maximum. The machine starts with room for that many CPUs, rounded up."""
    use: Cpus | None = None
    """The current amount; min by default."""

    @model_validator(mode="after")
    def _ordered(self) -> CpuBounds:
        faults = _bounds_faults(self.min, self.max, self.use)
        if self.min.nano < MIN_CPU:
            faults.append(
                (("min",), f"must be at least 10m, the smallest limit that a host can enforce, but is {self.min}")
            )
        if self.max.nano > MAX_CPUS * NANO:
            faults.append((("max",), f"must not be above {MAX_CPUS}, but is {self.max}"))
        raise_faults(faults, RELATED)
        return self

    @property
    def wanted(self) -> Quantity:
        """``use``, or min."""
        return self.use or self.min

    @property
    def slots(self) -> int:
        """The maximum, as whole CPUs."""
        return whole_cpus(self.max)


def whole_cpus(amount: Quantity) -> int:
    """The whole CPUs that a guest needs for an amount."""
    return -(-amount.nano // NANO)


class MemoryBounds(ApiModel):
    """Bytes of memory of a machine. It starts with min; memory above min is added and removed by the method."""

    min: Bytes
    """The minimum, a multiple of 2Mi."""
    max: Bytes
    """The maximum."""
    use: Bytes | None = None
    """The current amount; min by default."""
    method: Literal["virtio-mem", "dimm"] = "virtio-mem"
    """How memory is added: in blocks of 2Mi (virtio-mem), or in DIMMs of slotSize, which older guests support."""
    slot_size: Bytes | None = None
    """The size of a DIMM, a multiple of 128Mi; only with method dimm."""

    @model_validator(mode="after")
    def _fit(self) -> MemoryBounds:
        faults: list[FieldFault] = []
        for name, amount in (("min", self.min), ("max", self.max), ("use", self.use)):
            if amount is not None and not _is_multiple(amount, MEMORY_BLOCK):
                faults.append(((name,), f"must be a multiple of 2Mi, but is {amount}"))
        raise_faults(faults or _bounds_faults(self.min, self.max, self.use) or self._slot_faults(), RELATED)
        return self

    def _slot_faults(self) -> list[FieldFault]:
        slot = self.slot_size
        if self.method != "dimm":
            return [] if slot is None else [(("slotSize",), "needs method dimm")]
        if slot is None:
            return [(("slotSize",), "is required with method dimm")]
        if not _is_multiple(slot, SLOT_BLOCK):
            return [(("slotSize",), f"must be a multiple of 128Mi, but is {slot}")]
        above = [("max", self.max - self.min)] + ([] if self.use is None else [("use", self.use - self.min)])
        faults: list[FieldFault] = [
            ((name,), f"must be min ({self.min}) plus a multiple of slotSize ({slot})")
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
        """The number of DIMM slots; 0 with virtio-mem."""
        return (self.max - self.min).nano // self.slot_size.nano if self.slot_size is not None else 0


def _is_multiple(amount: Quantity, of: int) -> bool:
    return amount.nano % (of * NANO) == 0
