"""What an administrator can set of the arithmetic of permits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Self

from devalloc.api.quantity import ceil_units, parse_cpu_and_memory
from devalloc.scaling.resources import DEFAULT_COMPUTE_UNIT, NO_OVERCOMMIT, NO_RESOURCES, Resources
from devalloc.scaling.versions import ProtocolEra
from devalloc.settings import BadSetting, OneOf, Setting, setting, settings_of


def checked_unit(unit: Resources) -> Resources:
    """A compute unit that machines can have. Raises ValueError."""
    from devalloc.api.virtual_machine import MEMORY_BLOCK
    from devalloc.scaling.peer_json import bytes_to_quantity, cpu_to_quantity

    if unit.cpu == 0 or unit.memory == 0 or unit.memory % MEMORY_BLOCK:
        shown = f"{cpu_to_quantity(unit.cpu)},{bytes_to_quantity(unit.memory)}"
        raise ValueError(f"must have some CPU, and memory in multiples of 2Mi, not {shown}")
    return unit


def _unit(text: str) -> Resources:
    return checked_unit(Resources(*parse_cpu_and_memory(text, "250m,1Gi")))


def _system(text: str) -> Resources:
    return Resources(*parse_cpu_and_memory(text, "500m,1Gi"))


def _watermark(text: str) -> tuple[float, float]:
    try:
        cpu, memory = (float(part) for part in text.split(","))
    except ValueError:
        cpu = memory = 0.0
    if not (0 < cpu <= 1 and 0 < memory <= 1):
        raise ValueError(f"must be two numbers above 0 and at most 1, such as 0.9,0.8, not {text}")
    return cpu, memory


def _overcommit(text: str) -> Resources:
    try:
        cpu, memory = (Decimal(part) for part in text.split(","))
        good = all(ratio.is_finite() and Decimal("0.001") <= ratio <= 1000 for ratio in (cpu, memory))
    except (ValueError, InvalidOperation):
        good = False
    if not good:
        raise ValueError(f"must be two numbers from 0.001 to 1000, such as 2,1.5, not {text}")
    return Resources(int(cpu * 1000), int(memory * 1000))


def _memory_slot(text: str) -> int:
    from devalloc.api.virtual_machine import MEMORY_BLOCK

    try:
        size = ceil_units(text.strip(), 0)
    except ValueError:
        size = 0
    if not 0 < size < 2**64 or size % MEMORY_BLOCK:
        raise ValueError(f"must be a multiple of 2Mi, such as 1Gi, not {text}")
    return size


COMPAT = Setting(
    "Which releases of other agents and permit servers to follow if they differ.",
    flag="--compat",
    type=OneOf([era.value for era in ProtocolEra]),
    env="DEVALLOC_COMPAT",
    unset="newest, but v0.31 for granting permits",
)
COMPUTE_UNIT = Setting(
    "Step by which machines grow and shrink.",
    flag="--compute-unit",
    type=_unit,
    metavar="CPU,MEMORY",
    env="DEVALLOC_COMPUTE_UNIT",
    unset="250m,1Gi",
)
MEMORY_SLOT = 2**30
"""Bytes: the slot of machines in existing installations that name none."""


@dataclass(frozen=True, kw_only=True)
class PermitsArithmetic:
    """How a permit server counts. All have an effect only where one runs.

    The same for all nodes of a server. Amounts are in thousandths of a CPU and bytes.
    """

    era: ProtocolEra = ProtocolEra.V0_31
    """The release whose arithmetic it is (``compat``)."""
    unit: Resources = DEFAULT_COMPUTE_UNIT
    """The compute unit, for agents that do not send one."""
    watermark: tuple[float, float] = setting(
        "Parts of a node's CPU and memory at which machines should start to leave it.",
        flag="--permits-watermark",
        type=_watermark,
        default="0.9,0.9",
        metavar="FRACTION,FRACTION",
        env="DEVALLOC_PERMITS_WATERMARK",
        unset="0.9,0.9",
    )
    system: Resources = setting(
        "Part of each node that is not for machines.",
        flag="--permits-system",
        type=_system,
        default=NO_RESOURCES,
        metavar="CPU,MEMORY",
        env="DEVALLOC_PERMITS_SYSTEM",
        unset="0,0",
    )
    overcommit: Resources = setting(
        "With --compat newest: how many times a node's CPU and memory may be promised, for machines without the "
        "annotation vm.neon.tech/overcommit.",
        flag="--permits-overcommit",
        type=_overcommit,
        default=NO_OVERCOMMIT,
        metavar="RATIO,RATIO",
        env="DEVALLOC_PERMITS_OVERCOMMIT",
        unset="1,1",
    )
    """In thousandths."""
    memory_slot: int = setting(
        "Memory slot of machines whose object names none, for agents before v4.0 of the protocol, which count memory "
        "in slots.",
        flag="--memory-slot-size",
        type=_memory_slot,
        default=MEMORY_SLOT,
        metavar="SIZE",
        env="DEVALLOC_MEMORY_SLOT_SIZE",
        unset="1Gi",
    )

    def __post_init__(self) -> None:
        if not all(0 < mark <= 1 for mark in self.watermark):
            raise ValueError(f"watermark must be above 0 and at most 1, not {self.watermark}")
        if self.unit.cpu == 0 or self.unit.memory == 0:
            raise ValueError("the compute unit must have both CPU and memory")
        if self.memory_slot <= 0:
            raise ValueError(f"memory_slot must be above 0, not {self.memory_slot}")
        if min(self.overcommit.cpu, self.overcommit.memory) < 1:
            raise ValueError("overcommit must be above 0 for both CPU and memory")

    def checked(self, compat: str | None, unit: Resources | None) -> Self:
        """With ``--compat`` and ``--compute-unit`` of the process. Raises BadSetting."""
        era = self.era if compat is None else ProtocolEra(compat)
        if self.overcommit != NO_OVERCOMMIT and era is not ProtocolEra.NEWEST:
            raise BadSetting("--permits-overcommit", f"needs --compat newest: {era.value} has no overcommit of permits")
        return replace(self, era=era, unit=unit or self.unit)

    def limits(self, limit: Resources) -> tuple[Resources, Resources]:
        """Return what a node with this effective limit has for machines, and its watermark: rounded down, exact for
        the decimal numbers that are written."""
        total, (cpu, memory) = limit.excess_over(self.system), (Fraction(str(mark)) for mark in self.watermark)
        return total, Resources(int(total.cpu * cpu), int(total.memory * memory))


OF_PERMITS = tuple(each.flag for each in settings_of(PermitsArithmetic))
"""The names of these options."""
DEFAULT_ARITHMETIC = PermitsArithmetic()
