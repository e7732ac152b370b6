"""The recorded machines among the shared cases, unpacked below a folder."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.support.shared import SHARED

NAMES = ("harvester-vgpu-node", "harvester-pcidevices", "igb-guest", "hwloc-32intel64-2p8co2t-8ve")


def archive(name: str) -> Path:
    return SHARED / "sysfs" / f"{name}.tar.gz"


def unpack(name: str, folder: Path) -> Path:
    """The folder that holds the recording's `sys`. What discovery never looks at is left packed, for speed."""
    with tarfile.open(archive(name)) as tar:
        for member in tar:  # links point wherever the machine's did; discovery has to keep to its root
            parts = Path(member.name).parts
            if not {"..", "/", "power", "msi_irqs", "vpd", "resource"} & {*parts}:
                tar.extract(member, folder, set_attrs=False)
    return next(path.parent for path in [folder / "sys", *folder.glob("*/sys")] if path.is_dir())
