"""What scaling knows of a machine, as peers write it in JSON."""

from __future__ import annotations

from typing import Any

from devalloc.scaling import config as scaling_config
from devalloc.scaling.peer_json import JsonFields, Unreadable, bytes_to_json, cpu_to_json, fold_names
from devalloc.scaling.versions import ProtocolEra
from devalloc.scaling.vm_info import CpuInfo, MemoryInfo, VmInfo
from tests.support.scaling_config_json import overrides_to_json


def to_json(info: VmInfo, era: ProtocolEra = ProtocolEra.NEWEST) -> dict[str, Any]:
    """As peers of the era write it, to be encoded."""
    cpu, memory = info.cpu, info.memory
    written: dict[str, Any] = {
        "name": info.name,
        "namespace": info.namespace,
        "cpu": {"min": cpu_to_json(cpu.min), "max": cpu_to_json(cpu.max), "use": cpu_to_json(cpu.use)},
        "mem": {
            "min": memory.min,
            "max": memory.max,
            "use": memory.use,
            "slotSize": bytes_to_json(memory.slot_size),
        },
    }
    config: dict[str, Any] = {
        "autoMigrationEnabled": info.auto_migration_enabled,
        "alwaysMigrate": info.always_migrate,
        "scalingEnabled": info.scaling_enabled,
    }
    if info.scaling_config is not None:
        config["scalingConfig"] = overrides_to_json(info.scaling_config, era)
    written["config"] = config
    return written


def from_json(content: object, era: ProtocolEra = ProtocolEra.NEWEST) -> VmInfo:
    """What to_json wrote, decoded. Raises Unreadable."""
    fields = JsonFields(fold_names(content))
    cpu, memory, config = (fields.inner(name) for name in ("cpu", "mem", "config"))
    size = memory.bytes("slotSize")
    if size == 0:
        raise Unreadable("mem.slotSize must not be zero")
    overrides = None
    if config.has("scalingConfig"):
        read = scaling_config.read_overrides(config.content("scalingConfig"), era, config.path("scalingConfig"))
        if read.value is None:
            raise Unreadable("; ".join(str(problem) for problem in read.problems if problem.is_error))
        overrides = read.value
    return VmInfo(
        fields.text("namespace"),
        fields.text("name"),
        CpuInfo(cpu.cpu("min"), cpu.cpu("max"), cpu.cpu("use")),
        MemoryInfo(memory.whole("min", 16), memory.whole("max", 16), memory.whole("use", 16), size),
        scaling_enabled=config.flag("scalingEnabled"),
        auto_migration_enabled=config.flag("autoMigrationEnabled"),
        always_migrate=config.flag("alwaysMigrate"),
        scaling_config=overrides,
    )
