"""The recorded machines among the shared cases, unpacked below a folder."""

from __future__ import annotations

import tarfile
from functools import lru_cache
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


def unpack(name: str, folder: Path, only: tuple[str, ...] = ()) -> Path:
    """The folder that holds the recording's `sys`. What discovery never looks at is left packed, for speed.

    `only`: slots such as `0000:08:00`, when other cards are not wanted.
    """
    parts = _parts_of(name, only)
    for path, content in parts:
        place = folder / path
        if content is None:
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            place.symlink_to(content)
        else:
            place.write_bytes(content)
    tops = dict.fromkeys(Path(path).parts[0] for path, _ in parts)  # beside it may lie another recording
    return next(place for place in [folder, *(folder / top for top in tops)] if (place / "sys").is_dir())


@lru_cache
def _parts_of(name: str, only: tuple[str, ...]) -> list[tuple[str, bytes | str | None]]:
    """Paths with the content of a file, the target of a link, or None for a folder. Links point wherever the machine's
    did; discovery has to keep to its root."""
    found: list[tuple[str, bytes | str | None]] = []
    with tarfile.open(archive(name)) as tar:
        for member in tar:
            parts = Path(member.name).parts
            if {"..", "/"} & {*parts} or _UNREAD & {*parts}:
                continue
            if only and not any(part.startswith(slot) for part in parts for slot in only):
                continue
            file = tar.extractfile(member) if member.isreg() else None
            content = member.linkname if member.issym() else file.read() if file else None
            found.append((member.name, content))
    return found
