"""Run in a test host: the state of its PCI devices as JSON, as far as preparing a claim may change it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

DEVICES = Path("/sys/bus/pci/devices")
MDEVS = Path("/sys/bus/mdev/devices")
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
    devices: dict[str, object] = {}
    for device in sorted(DEVICES.iterdir()):
        facts = {name: (device / name).read_text().strip() for name in FILES if (device / name).exists()}
        for link in ("driver", "iommu_group"):
            facts[link] = os.readlink(device / link).rpartition("/")[2] if (device / link).is_symlink() else ""
        devices[device.name] = facts
    mdevs = sorted(os.listdir(MDEVS)) if MDEVS.exists() else []
    return {"devices": devices, "interfaces": _interfaces(), "nodes": _nodes(), "mdevs": mdevs}


def _interfaces() -> dict[str, list[object]]:
    """Their addresses and VFs. The kernel tells them in pieces, and where one comes, goes or is renamed meanwhile, it
    may leave another out: then they are read again."""
    for _ in range(100):
        before = _links()
        listing = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True)
        interfaces = {
            link["ifname"]: [link.get("address"), link.get("vfinfo_list", [])] for link in json.loads(listing.stdout)
        }
        if not listing.stderr and interfaces.keys() == before == _links():
            return interfaces
        time.sleep(0.1)
    raise TimeoutError(f"the interfaces do not come to rest: {sorted(interfaces)}, and then {sorted(_links())}")


def _links() -> set[str]:
    return set(os.listdir("/sys/class/net")) - {"bonding_masters"}


def _nodes() -> dict[str, dict[str, object]]:
    """The device nodes of VFIO: whose each is, and the programs that have it open."""
    nodes = sorted(Path("/dev/vfio").iterdir())
    users: dict[str, list[str]] = {str(node): [] for node in nodes}
    for opened in Path("/proc").glob("[0-9]*/fd/*") if len(nodes) > 1 else ():
        try:
            if (target := os.readlink(opened)) in users:
                users[target].append((opened.parents[1] / "comm").read_text().strip())
        except OSError:
            continue  # closed meanwhile
    return {node.name: {"owner": node.stat().st_uid, "held_by": sorted(set(users[str(node)]))} for node in nodes}


if __name__ == "__main__":
    print(json.dumps(snapshot()))
