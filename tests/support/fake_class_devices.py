"""What drivers make of functions of a fake host: network interfaces, disks, and other devices of a class."""

from __future__ import annotations

from tests.support.fake_tree import FakeTree
from tests.support.pci_cards import Function


def named(spec: Function) -> list[tuple[str, str]]:
    """Kinds and names of what the native driver of a function makes."""
    kinds = {"net": spec.netdev, "infiniband": spec.infiniband, "drm": spec.drm, "nvme": spec.nvme}
    return [(kind, name) for kind, name in kinds.items() if name]


def add(host: FakeTree, parent: str, kind: str, name: str, spec: Function) -> None:
    """A driver has made one below the function in the folder `parent`."""
    path = f"{parent}/{kind}/{name}"
    node = f"dri/{name}" if kind == "drm" else name
    files: dict[str, str] = {"uevent": f"INTERFACE={name}" if kind == "net" else f"DEVNAME={node}"}
    if kind == "infiniband":
        files["uevent"] = f"NAME={name}"
    if kind == "net":
        files |= {
            "address": spec.mac,
            "type": "1",
            "mtu": "1500",
            "flags": "0x1003",
            "dev_port": "0",
            "speed": str(spec.speed),
            "carrier": str(int(spec.speed > 0)),
            "iflink": "2",
            "operstate": "up" if spec.speed > 0 else "down",
        }
    if kind == "nvme":
        files |= {"model": "SAMSUNG MZQL23T8HCLS-00A07", "serial": "S64HNE0R500001", "state": "live"}
    if kind == "infiniband":
        files |= {"node_guid": "506b:4b03:00c0:ffee", "ports/1/link_layer": "Ethernet"}
    for file, text in files.items():
        host.write(f"{path}/{file}", text)
    host.link(f"{path}/device", parent)
    host.link(f"{path}/subsystem", f"class/{kind}")
    host.link(f"class/{kind}/{name}", path)
    host.emit("add", kind, path)
    if kind == "nvme":
        disk = f"{path}/{name}n1"
        host.write(f"{disk}/size", "7501476528")
        host.write(f"{disk}/dev", "259:0")
        host.link(f"{disk}/subsystem", "class/block")
        (host.sys / disk / "holders").mkdir()
        host.link(f"class/block/{name}n1", disk)
        host.link(f"block/{name}n1", disk)
        host.emit("add", "block", disk)
        (host.root / "dev").mkdir(exist_ok=True)
        (host.root / f"dev/{name}n1").touch()


def drop(host: FakeTree, parent: str, kind: str, name: str) -> None:
    """The driver takes it away."""
    path = f"{parent}/{kind}/{name}"
    if kind == "nvme":
        host.remove(f"class/block/{name}n1")
        host.remove(f"block/{name}n1")
        (host.root / f"dev/{name}n1").unlink(missing_ok=True)
        host.emit("remove", "block", f"{path}/{name}n1")
    host.remove(f"class/{kind}/{name}")
    host.remove(f"{parent}/{kind}")
    host.emit("remove", kind, path)
