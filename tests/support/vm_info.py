"""What scaling knows of a machine, as peers write it in JSON."""

from __future__ import annotations

from typing import Any

from devalloc.scaling.peer_json import bytes_to_json, cpu_to_json
from devalloc.scaling.versions import ProtocolEra
from devalloc_neon.vm_info import VmInfo
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
