"""What an administrator can set of the arithmetic of permits."""

from __future__ import annotations

from dataclasses import dataclass

from devalloc.scaling.permits.ledger import NO_OVERCOMMIT, NO_RESOURCES, fraction_of
from devalloc.scaling.resources import DEFAULT_COMPUTE_UNIT, Resources
from devalloc.scaling.versions import ProtocolEra

MEMORY_SLOT = 2**30
"""Bytes: the slot of machines in existing installations that name none."""


@dataclass(frozen=True, kw_only=True)
class PermitArithmetic:
    """The same for all nodes of a server. Amounts are in thousandths of a CPU and bytes."""

    era: ProtocolEra = ProtocolEra.V0_31
    """The release whose arithmetic it is (``compat``)."""
    unit: Resources = DEFAULT_COMPUTE_UNIT
    """The compute unit, for agents that do not send one."""
    cpu_watermark: float = 0.9
    """The part of a node at which machines should start to migrate away."""
    memory_watermark: float = 0.9
    system: Resources = NO_RESOURCES
    """The part of each node that is not for machines."""
    overcommit: Resources = NO_OVERCOMMIT
    """In the newest release: thousandths of the capacity that it may promise, for machines that set none."""
    memory_slot: int = MEMORY_SLOT
    """Bytes of a memory slot of machines whose object names none, for agents that count memory in slots."""

    def __post_init__(self) -> None:
        for name in ("cpu_watermark", "memory_watermark"):
            mark = getattr(self, name)
            if not 0 < mark <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, not {mark}")
        if self.unit.cpu == 0 or self.unit.memory == 0:
            raise ValueError("the compute unit must have both CPU and memory")
        if self.memory_slot <= 0:
            raise ValueError(f"memory_slot must be above 0, not {self.memory_slot}")
        if min(self.overcommit.cpu, self.overcommit.memory) < 1:
            raise ValueError("overcommit must be above 0 for both CPU and memory")

    def limits(self, limit: Resources) -> tuple[Resources, Resources]:
        """Return what a node with this effective limit has for machines, and its watermark."""
        total = limit.excess_over(self.system)
        return total, fraction_of(total, self.cpu_watermark, self.memory_watermark)


DEFAULT_ARITHMETIC = PermitArithmetic()
