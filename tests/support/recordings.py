"""The recorded machines of ``tests/data/machines``, unpacked below a folder.

A recording is a JSON object: `folders` is a list of paths, `links` maps paths to their targets, and `files` maps paths
to contents, with one character (ISO 8859-1) for each byte. ``python -m tests.support.recordings ARCHIVE FILE`` makes
one of a tar archive of a machine's /sys.
"""

from __future__ import annotations

import sys
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.support import reference_data

NAMES = ("harvester-vgpu-node", "harvester-pcidevices", "igb-guest", "h100-guest", "hwloc-32intel64-2p8co2t-8ve")

_UNREAD = {
    "power", "msi_irqs", "vpd", "resource", "config", "statistics", "local_cpus", "local_cpulist", "modalias", "irq",
    "aer_dev_correctable", "aer_dev_fatal", "aer_dev_nonfatal", "i2c-2", "i2c-3", "hwmon0", "dma_mask_bits", "enable",
    "consistent_dma_mask_bits", "d3cold_allowed", "broken_parity_status", "msi_bus", "power_state",
    "revision", "reset_method", "ari_enabled", "driver_override", "max_link_speed", "firmware_node",
    "max_link_width", "current_link_speed", "current_link_width",
}  # fmt: skip


def unpack(name: str, folder: Path, only: tuple[str, ...] = (), *, whole: bool = False) -> Path:
    """The folder that holds the recording's `sys`. What discovery never looks at is left packed, for speed.

    `only`: slots such as `0000:08:00`, when other cards are not wanted. `whole`: all that was recorded.
    """
    recording = _recording(name)
    paths = [*recording["folders"], *recording["links"], *recording["files"]]
    if not whole:
        paths = [path for path in paths if not _UNREAD & {*path.split("/")}]
    if only:
        paths = [path for path in paths if any(part.startswith(slot) for part in path.split("/") for slot in only)]
    for path in paths:
        place = folder / path
        if path in recording["links"]:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(recording["links"][path])
        elif path in recording["files"]:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(recording["files"][path].encode("latin-1"))
        else:
            place.mkdir(parents=True, exist_ok=True)
    tops = dict.fromkeys(path.split("/")[0] for path in paths)  # beside it may lie another recording
    return next(place for place in [folder, *(folder / top for top in tops)] if (place / "sys").is_dir())


@lru_cache
def _recording(name: str) -> dict[str, Any]:
    """Links point wherever the machine's did; discovery has to keep to its root."""
    recording: dict[str, Any] = reference_data.read(reference_data.DATA / "machines" / f"{name}.json.xz")
    return recording


def recorded(archive: Path) -> dict[str, Any]:
    """A recording of what a tar archive holds."""
    folders: list[str] = []
    links: dict[str, str] = {}
    files: dict[str, str] = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if {"..", "/"} & {*Path(member.name).parts}:
                raise ValueError(f"{archive}: path {member.name!r} leads out of the archive")
            if member.issym():
                links[member.name] = member.linkname
            elif member.isdir():
                folders.append(member.name)
            elif file := tar.extractfile(member):
                files[member.name] = file.read().decode("latin-1")
    return {"folders": sorted(folders), "links": links, "files": files}


def main(arguments: list[str]) -> int:
    archive, target = arguments
    Path(target).write_bytes(reference_data.packed(recorded(Path(archive))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
