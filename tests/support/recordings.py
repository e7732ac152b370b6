"""The recorded machines among the shared cases, unpacked below a folder."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.support.shared import SHARED

NAMES = ("harvester-vgpu-node", "harvester-pcidevices", "igb-guest", "hwloc-32intel64-2p8co2t-8ve")

_UNREAD = {
    "power", "msi_irqs", "vpd", "resource", "config", "statistics", "local_cpus", "local_cpulist", "modalias", "irq",
    "aer_dev_correctable", "aer_dev_fatal", "aer_dev_nonfatal", "i2c-2", "i2c-3", "hwmon0", "dma_mask_bits", "enable",
    "consistent_dma_mask_bits", "d3cold_allowed", "broken_parity_status", "msi_bus", "subsystem_device", "power_state",
    "subsystem_vendor", "revision", "reset_method", "ari_enabled", "driver_override", "max_link_speed", "firmware_node",
    "max_link_width", "current_link_speed", "current_link_width",
}  # fmt: skip


def archive(name: str) -> Path:
    return SHARED / "sysfs" / f"{name}.tar.gz"


def unpack(name: str, folder: Path) -> Path:
    """The folder that holds the recording's `sys`. What discovery never looks at is left packed, for speed."""
    with tarfile.open(archive(name)) as tar:
        for member in tar:  # links point wherever the machine's did; discovery has to keep to its root
            parts = Path(member.name).parts
            if not {"..", "/"} & {*parts} and not _UNREAD & {*parts}:
                tar.extract(member, folder, set_attrs=False)
    return next(path.parent for path in [folder / "sys", *folder.glob("*/sys")] if path.is_dir())
