"""Run in a test host: the state of its PCI devices as JSON, as far as preparing a claim may change it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
FILES = (
    "driver_override",
    "sriov_numvfs",
    "sriov_drivers_autoprobe",
    "vendor",
    "device",
    "reset_method",
    "d3cold_allowed",
)


def snapshot() -> dict[str, object]:
    found: dict[str, object] = {}
    for device in sorted(DEVICES.iterdir()):
        facts = {name: (device / name).read_text().strip() for name in FILES if (device / name).exists()}
        for link in ("driver", "iommu_group"):
            facts[link] = os.readlink(device / link).rpartition("/")[2] if (device / link).is_symlink() else ""
        found[device.name] = facts
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    interfaces = {link["ifname"]: [link.get("address"), link.get("vfinfo_list", [])] for link in links}
    nodes = sorted(node.name for node in Path("/dev/vfio").iterdir())
    return {"devices": found, "interfaces": interfaces, "nodes": nodes}


if __name__ == "__main__":
    print(json.dumps(snapshot()))
