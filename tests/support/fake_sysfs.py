"""A fake /sys (and bits of /proc) below a folder, which also plays the kernel.

    host = FakeSysfs(tmp_path)
    host.add(cards.nic("0000:41:00.0"))
    host.set_numvfs("0000:41:00.0", 3)         # or host.store("bus/pci/devices/0000:41:00.0/sriov_numvfs", "3")
    discover(host.root, node_name="n")

Every operation does what the kernel does to the tree, refuses with the kernel's errno (OSError), and appends the
uevents that the kernel would send to `FakeSysfs.events`. `store` takes writes the way real sysfs does. What cards there
are: `tests.support.pci_cards`. vGPU instances: `tests.support.fake_vgpu`.

Not played: DMA, new_id. A write of 1 to `reset` is counted in `FakeSysfs.resets`, and fails for what is in
`FakeSysfs.stuck`. Processes that hold devices, netlink and /dev are in `tests.support.fake_host`. The tree is plain
files: what is not played just stays written.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support import fake_class_devices, pci_cards
from tests.support.fake_tree import FakeTree, fail, real
from tests.support.fake_vgpu import VgpuKernel
from tests.support.pci_cards import Function, Sriov


@dataclass
class Plugged:
    """A function that is plugged in, and its state."""

    spec: Function
    path: str
    """Its folder, below sys."""
    driver: str | None = None
    override: str | None = None
    group: int | None = None
    pf: str | None = None
    """Address of the PF, for a VF."""
    vfs: list[str] = field(default_factory=list)
    autoprobe: bool = True


class FakeSysfs(FakeTree):
    """A host whose /sys answers as the kernel does."""

    def __init__(self, root: Path, *, drivers: tuple[str, ...] = ("vfio-pci",), nodes: int = 2) -> None:
        super().__init__(root, nodes=nodes)
        self.functions: dict[str, Plugged] = {}
        self._loaded: set[str] = set()
        self.vgpu = VgpuKernel(self)
        self.resets: list[str] = []
        """Addresses of the functions that were reset, one after another."""
        self.stuck: set[str] = set()
        """Addresses of functions whose reset fails."""
        for driver in drivers:
            self.load_driver(driver)

    # Hot-plug.

    def add(self, spec: Function) -> str:
        """Plug a function in, with the bridges above it, and probe it; its address."""
        if spec.address in self.functions:
            raise ValueError(f"{spec.address} is already plugged in")
        ports = pci_cards.ports_above(spec.address) if spec.ports is None else spec.ports
        root = pci_cards.root_of(ports[0] if ports else spec.address)
        folder = f"devices/{root}"
        for port in ports:
            if port not in self.functions:
                self._plug(replace(pci_cards.bridge(port), numa=spec.numa), f"{folder}/{port}", pf=None)
            folder += f"/{port}"
        self._plug(spec, f"{folder}/{spec.address}", pf=None)
        if spec.vfs:
            self.set_numvfs(spec.address, spec.vfs)
        return spec.address

    def remove_function(self, address: str) -> None:
        """Pull a function (as a write of 1 to its `remove`): its driver and its VFs go first."""
        function = self._function(address)
        if function.driver:
            self._detach(address)
        self._destroy_vfs(address)
        if function.group is not None:
            self.leave_group(function.group, address)
        self.remove(f"bus/pci/devices/{address}")
        self.remove(function.path)
        del self.functions[address]
        self.emit("remove", "pci", function.path)

    def path(self, address: str, name: str = "") -> str:
        """The real folder of a function (below sys), or a file in it."""
        return self._function(address).path + (f"/{name}" if name else "")

    def _function(self, address: str) -> Plugged:
        if address not in self.functions:
            raise fail(errno.ENODEV, address)
        return self.functions[address]

    def _plug(self, spec: Function, path: str, *, pf: str | None, probe: bool = True) -> None:
        if spec.native:
            self.load_driver(spec.native)
        if spec.sriov and spec.sriov.vf_driver:
            self.load_driver(spec.sriov.vf_driver)
        group = self.group_of(spec.iommu_group)
        function = self.functions[spec.address] = Plugged(spec, path, group=group, pf=pf)
        vendor, device = spec.subsystem
        modalias = (
            f"pci:v{spec.vendor:08X}d{spec.device:08X}sv{vendor:08X}sd{device:08X}"
            f"bc{spec.class_code >> 16:02X}sc{spec.class_code >> 8 & 255:02X}i{spec.class_code & 255:02X}"
        )
        speed, width = spec.link
        files = {
            "vendor": f"0x{spec.vendor:04x}",
            "device": f"0x{spec.device:04x}",
            "class": f"0x{spec.class_code:06x}",
            "subsystem_vendor": f"0x{vendor:04x}",
            "subsystem_device": f"0x{device:04x}",
            "revision": "0xa1",
            "modalias": modalias,
            "numa_node": str(spec.numa),
            "enable": "0",
            "driver_override": "(null)",
            "current_link_speed": speed,
            "max_link_speed": speed,
            "power_state": "D0",
            "reset_method": "flr bus",
            "current_link_width": str(width),
            "max_link_width": str(width),
            "irq": "0",
            "local_cpulist": f"{8 * spec.numa}-{8 * spec.numa + 7}" if spec.numa >= 0 else "0-15",
            "resource": "0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13,
        }
        if spec.boot_vga is not None:
            files["boot_vga"] = str(int(spec.boot_vga))
        if spec.sriov:
            sriov = spec.sriov
            files |= {
                "sriov_totalvfs": str(sriov.total),
                "sriov_numvfs": "0",
                "sriov_offset": str(sriov.offset),
                "sriov_stride": str(sriov.stride),
                "sriov_vf_device": f"{sriov.vf_device:x}",
                "sriov_drivers_autoprobe": "1",
            }
        for name, text in {**files, **spec.files}.items():
            self.write(f"{path}/{name}", text)
        self.config(path, spec)
        for name in ("remove", "rescan", *(["reset"] if {**files, **spec.files}.get("reset_method") else [])):
            self.touch(f"{path}/{name}")
        self.link(f"{path}/subsystem", "bus/pci")
        self.link(f"bus/pci/devices/{spec.address}", path)
        if group is not None:
            self.join_group(group, spec.address, path)
        self._uevent_file(function)
        self.emit("add", "pci", path)
        driver = spec.native if spec.driver == "native" else spec.driver
        if driver and probe:
            self.load_driver(driver)
            self._attach(spec.address, driver)

    def config(self, path: str, spec: Function, *, gone: bool = False) -> None:
        """The first 64 bytes of the configuration space; of a device that fell off the bus all bits are ones."""
        head = spec.vendor.to_bytes(2, "little") + spec.device.to_bytes(2, "little")
        if spec.address in self.functions and self.functions[spec.address].pf:
            head = b"\xff\xff\xff\xff"  # a VF has no IDs of its own there
        with open(f"{self._sys}/{path}/config", "wb", buffering=0) as file:
            file.write(b"\xff" * 64 if gone else head.ljust(64, b"\0"))

    def _uevent_file(self, function: Plugged) -> None:
        spec = function.spec
        driver = f"DRIVER={function.driver}\n" if function.driver else ""
        self.write(
            f"{function.path}/uevent",
            (
                f"{driver}PCI_CLASS={spec.class_code:X}\nPCI_ID={spec.vendor:04X}:{spec.device:04X}\n"
                f"PCI_SUBSYS_ID={spec.subsystem[0]:04X}:{spec.subsystem[1]:04X}\nPCI_SLOT_NAME={spec.address}\n"
            ),
        )

    # Drivers.

    def load_driver(self, name: str) -> None:
        if name in self._loaded and self._has(f"bus/pci/drivers/{name}"):
            return
        self._loaded.add(name)
        for file in ("bind", "unbind", "new_id", "remove_id", "uevent"):
            self.touch(f"bus/pci/drivers/{name}/{file}")

    def _has(self, path: str) -> bool:
        return os.path.exists(f"{self._sys}/{path}")

    def driver_of(self, address: str) -> str | None:
        return self._function(address).driver

    def bind(self, driver: str, address: str) -> None:
        """A write to bus/pci/drivers/DRIVER/bind."""
        function = self._function(address)
        if not self._has(f"bus/pci/drivers/{driver}"):
            raise fail(errno.ENOENT, f"bus/pci/drivers/{driver}/bind")
        if driver != (function.override or function.spec.native):
            raise fail(errno.ENODEV, address)
        if function.driver:
            raise fail(errno.EBUSY, address)
        if _is_vfio(driver) and function.group is None:
            raise fail(errno.EINVAL, address)
        self._attach(address, driver)

    def unbind(self, driver: str, address: str) -> None:
        """A write to bus/pci/drivers/DRIVER/unbind."""
        if self._function(address).driver != driver:
            raise fail(errno.ENODEV, address)
        self._detach(address)

    def set_override(self, address: str, driver: str) -> None:
        """A write to driver_override; "" clears it. Nothing is bound until the next probe."""
        function = self._function(address)
        function.override = driver.strip() or None
        self.write(f"{function.path}/driver_override", function.override or "(null)")

    def probe(self, address: str) -> None:
        """A write to bus/pci/drivers_probe: a bound device stays as it is, no match is no error."""
        function = self._function(address)
        driver = function.override or function.spec.native
        if function.pf and not function.override and not self._function(function.pf).autoprobe:
            return
        if function.driver is not None or driver is None or not self._has(f"bus/pci/drivers/{driver}"):
            return
        if not _is_vfio(driver) or function.group is not None:  # vfio-pci refuses what has no IOMMU group
            self._attach(address, driver)

    def reset(self, address: str) -> None:
        """A write of 1 to the function's `reset`."""
        self._function(address)
        if address in self.stuck:
            raise fail(errno.ENOTTY, f"{self.path(address)}/reset")
        self.resets.append(address)

    def _attach(self, address: str, driver: str) -> None:
        function = self._function(address)
        spec, path = function.spec, function.path
        function.driver = driver
        self.link(f"{path}/driver", f"bus/pci/drivers/{driver}")
        self.link(f"bus/pci/drivers/{driver}/{address}", path)
        self._uevent_file(function)
        if _is_vfio(driver) and function.group is not None:
            self.vfio_group(function.group, present=True)
        if driver == spec.native:
            for kind, name in fake_class_devices.named(spec):
                fake_class_devices.add(self, path, kind, name, spec)
            self.vgpu.offer(address)
        self.emit("bind", "pci", path)

    def _detach(self, address: str) -> None:
        function = self._function(address)
        driver, path = function.driver, function.path
        assert driver
        if driver == function.spec.native:
            self._destroy_vfs(address)  # as igb, ixgbe, mlx5_core and nvidia do when their PF goes
            self.vgpu.withdraw(address)
            for kind, name in fake_class_devices.named(function.spec):
                fake_class_devices.drop(self, path, kind, name)
        function.driver = None
        self.remove(f"{path}/driver")
        self.remove(f"bus/pci/drivers/{driver}/{address}")
        self._uevent_file(function)
        self.emit("unbind", "pci", path)
        if (
            _is_vfio(driver)
            and function.group is not None
            and not any(f.group == function.group and _is_vfio(f.driver) for f in self.functions.values())
        ):
            self.vfio_group(function.group, present=False)

    def vfio_group(self, group: int, *, present: bool) -> None:
        """The device node of an IOMMU group comes or goes, with its class device."""
        path = f"devices/virtual/vfio/{group}"
        node = self.root / f"dev/vfio/{group}"
        if present:
            node.parent.mkdir(parents=True, exist_ok=True)
            node.touch()
        else:
            node.unlink(missing_ok=True)
        if present and not (self.sys / path).exists():
            self.write(f"{path}/uevent", f"DEVNAME=vfio/{group}")
            self.link(f"class/vfio/{group}", path)
            self.emit("add", "vfio", path)
        elif not present and (self.sys / path).exists():
            self.remove(f"class/vfio/{group}")
            self.remove(path)
            self.emit("remove", "vfio", path)

    # SR-IOV.

    def vf_addresses(self, address: str) -> list[str]:
        """Where every VF of a PF is or would be, in order of their index."""
        sriov = self._function(address).spec.sriov
        return [] if sriov is None else pci_cards.vf_addresses(address, sriov)

    def set_numvfs(self, address: str, count: int) -> None:
        """A write to sriov_numvfs; the checks stand in the kernel's order."""
        function = self._function(address)
        spec, sriov = function.spec, function.spec.sriov
        file = f"{function.path}/sriov_numvfs"
        if sriov is None:
            raise fail(errno.EACCES, file)
        if not 0 <= count <= sriov.total:
            raise fail(errno.ERANGE, file)
        if count == len(function.vfs):
            return
        if function.driver is None or function.driver != spec.native:
            raise fail(errno.ENOENT, file)
        if count == 0:
            self._destroy_vfs(address)
            return
        if function.vfs:
            raise fail(errno.EBUSY, file)
        for index, vf in enumerate(pci_cards.vf_addresses(address, sriov)[:count]):
            self._create_vf(address, index, vf, sriov)
        self.write(file, str(count))
        self.emit("change", "pci", function.path)

    def _create_vf(self, pf: str, index: int, vf: str, sriov: Sriov) -> None:
        parent = self._function(pf)
        spec = Function(
            vf,
            parent.spec.vendor,
            sriov.vf_device,
            parent.spec.class_code,
            sriov.vf_driver,
            subsystem=(parent.spec.subsystem[0], 0),
            numa=parent.spec.numa,
            link=("Unknown", 0),
            iommu_group=None if parent.spec.iommu_group is None else "own",
            netdev=f"{parent.spec.netdev}v{index}" if parent.spec.netdev else None,
            mac=f"02:00:00:00:{index >> 8:02x}:{index & 255:02x}",
            speed=parent.spec.speed,
        )
        path = f"{os.path.dirname(parent.path)}/{vf}"
        parent.vfs.append(vf)
        self._plug(spec, path, pf=pf, probe=False)
        self.link(f"{path}/physfn", parent.path)
        self.link(f"{parent.path}/virtfn{index}", path)
        if parent.autoprobe:
            self.probe(vf)

    def _destroy_vfs(self, address: str) -> None:
        function = self._function(address)
        for index, vf in reversed(list(enumerate(function.vfs))):
            self.remove(f"{function.path}/virtfn{index}")
            self.remove_function(vf)
        function.vfs.clear()
        if function.spec.sriov:
            self.write(f"{function.path}/sriov_numvfs", "0")

    def set_autoprobe(self, address: str, on: bool) -> None:
        self._function(address).autoprobe = on
        self.write(self.path(address, "sriov_drivers_autoprobe"), str(int(on)))

    # Writes as a user of sysfs makes them.

    def store(self, path: str | Path, text: str) -> None:
        """Write to a file of the tree (path below sys, links allowed), with the kernel's effect."""
        file = Path(real(f"{self._sys}/{path}"))
        if not file.exists():
            raise fail(errno.ENOENT, str(path))
        value, folder = text.strip(), file.parent.name
        relative = file.relative_to(self.sys).parts
        match relative:
            case ("bus", "pci", "drivers_probe"):
                self.probe(value)
            case ("bus", "pci", "drivers", driver, "bind"):
                self.bind(driver, value)
            case ("bus", "pci", "drivers", driver, "unbind"):
                self.unbind(driver, value)
            case (*_, "driver_override"):
                self.set_override(folder, text)
            case (*_, "sriov_numvfs"):
                if not value.isdecimal():
                    raise fail(errno.EINVAL, str(path))
                self.set_numvfs(folder, int(value))
            case (*_, "sriov_drivers_autoprobe"):
                self.set_autoprobe(folder, value == "1")
            case (*_, parent, "mdev_supported_types", kind, "create"):
                self.vgpu.create(parent, kind, value)
            case (*_, "remove") if folder in self.vgpu.mdevs:
                self.vgpu.remove(folder)
            case (*_, vf, "nvidia", "current_vgpu_type"):
                self.vgpu.set_type(vf, value)
            case (*_, "reset"):
                self.reset(folder)
            case (*_, "reset_subordinate"):
                below = f"{self.path(folder)}/"
                for address in [name for name, other in self.functions.items() if other.path.startswith(below)]:
                    self.reset(address)
            case (*_, "remove"):
                self.remove_function(folder)
            case _:
                self.write(str(file.relative_to(self.sys)), text)


def _is_vfio(driver: str | None) -> bool:
    """vfio-pci or one of its variants."""
    return driver is not None and "vfio" in driver
