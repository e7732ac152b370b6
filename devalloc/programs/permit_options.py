"""Options of the arithmetic of a permit server, for the one of a node and that of a cluster's controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from devalloc.settings import BadSetting, OneOf, Setting, setting, settings_of

if TYPE_CHECKING:
    from devalloc.scaling.permits.arithmetic import PermitArithmetic
    from devalloc.scaling.resources import Resources

COMPAT = Setting(
    "Which releases of other agents and permit servers to follow if they differ.",
    flag="--compat",
    type=OneOf(["v0.31", "newest"]),
    env="DEVALLOC_COMPAT",
    unset="newest, but v0.31 for granting permits",
)
COMPUTE_UNIT = Setting(
    "Step by which machines grow and shrink.",
    flag="--compute-unit",
    metavar="CPU,MEMORY",
    env="DEVALLOC_COMPUTE_UNIT",
    unset="250m,1Gi",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitsOptions:
    """How a permit server counts. All have an effect only where one runs."""

    watermark: str | None = setting(
        "Parts of a node's CPU and memory at which machines should start to leave it.",
        flag="--permits-watermark",
        metavar="FRACTION,FRACTION",
        env="DEVALLOC_PERMITS_WATERMARK",
        unset="0.9,0.9",
    )
    system: str | None = setting(
        "Part of each node that is not for machines.",
        flag="--permits-system",
        metavar="CPU,MEMORY",
        env="DEVALLOC_PERMITS_SYSTEM",
        unset="0,0",
    )
    overcommit: str | None = setting(
        "With --compat newest: how many times a node's CPU and memory may be promised, for machines without the "
        "annotation vm.neon.tech/overcommit.",
        flag="--permits-overcommit",
        metavar="RATIO,RATIO",
        env="DEVALLOC_PERMITS_OVERCOMMIT",
        unset="1,1",
    )
    memory_slot_size: str | None = setting(
        "Memory slot of machines whose object names none, for agents before v4.0 of the protocol, which count memory "
        "in slots.",
        metavar="SIZE",
        env="DEVALLOC_MEMORY_SLOT_SIZE",
        unset="1Gi",
    )


OF_PERMITS = tuple(each.flag for each in settings_of(PermitsOptions))
"""The names of these options."""


def permit_arithmetic(options: PermitsOptions, compat: str | None, unit: Resources | None = None) -> PermitArithmetic:
    """The arithmetic that the options say, with ``--compat`` and the compute unit. Raises BadSetting."""
    from devalloc.scaling.permits.arithmetic import PermitArithmetic
    from devalloc.scaling.versions import ProtocolEra

    plain = PermitArithmetic()
    era = plain.era if compat is None else ProtocolEra(compat)
    if options.overcommit is not None and era is not ProtocolEra.NEWEST:
        raise BadSetting("--permits-overcommit", f"needs --compat newest: {era.value} has no overcommit of permits")
    marks = plain.cpu_watermark, plain.memory_watermark
    cpu, memory = marks if options.watermark is None else _fractions(options.watermark)
    return PermitArithmetic(
        era=era,
        unit=plain.unit if unit is None else unit,
        cpu_watermark=cpu,
        memory_watermark=memory,
        system=plain.system if options.system is None else amounts("--permits-system", options.system, "500m,1Gi"),
        overcommit=plain.overcommit if options.overcommit is None else _ratios(options.overcommit),
        memory_slot=plain.memory_slot if options.memory_slot_size is None else _slot(options.memory_slot_size),
    )


def amounts(name: str, text: str, example: str) -> Resources:
    """``CPU,MEMORY``. Raises BadSetting."""
    from devalloc.api.quantity import QuantityError, parse_cpu_and_memory
    from devalloc.scaling.resources import Resources

    try:
        return Resources(*parse_cpu_and_memory(text, example))
    except QuantityError as error:
        raise BadSetting(name, f"{error}") from None


def _fractions(text: str) -> tuple[float, float]:
    try:
        cpu, memory = (float(part) for part in text.split(","))
    except ValueError:
        cpu = memory = 0.0
    if not (0 < cpu <= 1 and 0 < memory <= 1):
        raise BadSetting(
            "--permits-watermark", f"must be two numbers above 0 and at most 1, such as 0.9,0.8, not {text}"
        )
    return cpu, memory


def _ratios(text: str) -> Resources:
    from decimal import Decimal, InvalidOperation

    from devalloc.scaling.resources import Resources

    try:
        cpu, memory = (Decimal(part) for part in text.split(","))
        good = all(ratio.is_finite() and Decimal("0.001") <= ratio <= 1000 for ratio in (cpu, memory))
    except (ValueError, InvalidOperation):
        good = False
    if not good:
        raise BadSetting("--permits-overcommit", f"must be two numbers from 0.001 to 1000, such as 2,1.5, not {text}")
    return Resources(int(cpu * 1000), int(memory * 1000))


def _slot(text: str) -> int:
    from devalloc.api.virtual_machine import MEMORY_BLOCK

    size = amounts("--memory-slot-size", f"0,{text}", "0,1Gi").memory if "," not in text else 0
    if size == 0 or size % MEMORY_BLOCK:
        raise BadSetting("--memory-slot-size", f"must be a multiple of 2Mi, such as 1Gi, not {text}")
    return size
