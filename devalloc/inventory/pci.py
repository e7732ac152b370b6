"""PCI functions: what sysfs says about each, where their virtual functions are, and which the IOMMU cannot separate."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from devalloc.inventory.class_devices import ClassDevices
from devalloc.inventory.sysfs import Folder, Tree

_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])", re.ASCII)
_ROOT = re.compile(r"/(pci[0-9a-f]{4,8}:[0-9a-f]{2})(?:/|$)")
_HEX = re.compile(r"[0-9a-fA-F]{1,4}", re.ASCII)
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})", re.ASCII)

_SERIAL_CAPABILITY, _SRIOV_CAPABILITY, _RESIZABLE_CAPABILITY = 0x03, 0x10, 0x15
_CONFIG_SIZE = 4096
MAX_VFS = 0xFFFF
_NO_IOMMU = "vfio-noiommu"

BRIDGE = 0x06
"""Base class of bridges."""
NVIDIA = 0x10DE
_DISPLAY_3D = 0x030200
_HEADER_SIZE = 64
_READ_ENTRIES = (
    "accel", "boot_display", "boot_vga", "driver", "drm", "graphics", "infiniband_mad", "infiniband_verbs",
    "iommu_group", "mdev_supported_types", "net", "nvidia", "nvme", "physfn", "ptp", "sriov_totalvfs", "uio",
)  # fmt: skip
"""Names that are looked for in ``PciFunction.entries``."""


class Address(NamedTuple):
    """A PCI address with a domain of up to 32 bits, ordered by number."""

    domain: int
    bus: int
    slot: int
    function: int

    @staticmethod
    def parse(text: str) -> Address | None:
        """The address in ``0000:08:00.4``; None for any other text."""
        return _parsed(text)

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function}"

    @property
    def card(self) -> Address:
        """Function 0 of the slot: what the functions of one card have in common."""
        return self._replace(function=0)

    @property
    def device_name(self) -> str:
        """The address as a device name: ``0000-08-00-4``."""
        return f"{self.slot_name}-{self.function}"

    @property
    def slot_name(self) -> str:
        """The slot as the end of a pool name: ``0000-08-00``."""
        return f"{self.domain:04x}-{self.bus:02x}-{self.slot:02x}"

    def offset_by(self, functions: int) -> Address | None:
        """The address so many routing IDs further; None beyond the last bus."""
        routing = (self.bus << 8 | self.slot << 3 | self.function) + functions
        if not 0 <= routing <= 0xFFFF:
            return None
        return Address(self.domain, routing >> 8, routing >> 3 & 0x1F, routing & 7)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Address | None:
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    address = Address(*(int(part, 16) for part in match.groups()))
    return address if address.slot < 32 else None


@dataclass(frozen=True, slots=True)
class Sriov:
    """The SR-IOV capability of a physical function."""

    total: int
    """VFs that it can have at most."""
    active: int
    """VFs that are switched on."""
    offset: int | None
    """Routing IDs from the PF to its first VF; None when neither sysfs nor the configuration space tells."""
    stride: int | None
    """Routing IDs from one VF to the next."""
    vf_device: int | None
    """Device ID of the VFs; None where the kernel does not tell (before 4.16)."""

    def address(self, pf: Address, index: int) -> Address | None:
        """Where VF number ``index`` (from 0) is or will be."""
        if self.offset is None or self.stride is None or self.offset < 1:
            return None
        return pf.offset_by(self.offset + index * self.stride)


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One PCI function, as read."""

    address: Address
    folder: Folder
    class_code: int
    """Base class, subclass and programming interface: 0x030200."""
    vendor: int
    device: int | None
    driver: str | None
    iommu_group: int | None
    """None where nothing keeps the function from the host's memory, also where VFIO was told not to mind (T5)."""
    root: str | None
    """The root complex of its branch of the PCI tree: ``pci0000:00``."""
    sriov: Sriov | None
    physfn: Address | None
    """The physical function, for a VF."""
    virtfns: tuple[tuple[int, Address], ...]
    """Index and address of the VFs that exist, for a PF."""
    entries: frozenset[str]
    """The names of all that is in its folder: what is not need not be looked for."""
    below: ClassDevices = field(compare=False, repr=False)
    """What drivers have made of it."""

    @property
    def numa(self) -> int | None:
        """The NUMA node, read now; None where the machine does not say (sysfs: -1)."""
        node = self.folder.number("numa_node")
        return node if node is not None and node >= 0 else None

    @property
    def base_class(self) -> int:
        return self.class_code >> 16

    @property
    def subclass(self) -> int:
        """Base class and subclass: 0x0302."""
        return self.class_code >> 8

    @property
    def has_vfs(self) -> bool:
        """True for a PF whose VFs are switched on."""
        return bool(self.virtfns) or (self.sriov is not None and self.sriov.active > 0)

    @property
    def sleeps(self) -> bool:
        """True when the kernel has put the function to sleep: to read its configuration space would wake it."""
        power = self.folder.folder("power")
        return power is not None and power.text("runtime_status") == "suspended"

    @property
    def header(self) -> bytes | None:
        """The first 64 bytes of its configuration space, read now; None where it cannot be read."""
        return self.folder.head("config", _HEADER_SIZE)

    @property
    def responds(self) -> bool:
        """Whether its configuration space can be read now; one that fell off the bus reads as ones."""
        return responds(self.header)

    @property
    def on_vfio(self) -> bool:
        """True when a VFIO driver (or a variant of it) has the function, so that no host driver does."""
        return is_vfio_driver(self.driver)

    def has_companion(self, other: PciFunction) -> bool:
        """Whether another function of its slot is a part of its device, such as the audio function of a GPU.

        The GPU of a processor shares its slot with parts of the processor (USB, PSP), which have another vendor.
        """
        return other.vendor == self.vendor or (other.iommu_group is not None and other.iommu_group == self.iommu_group)

    @property
    def leaves_group(self) -> bool:
        """True when VFIO can give the IOMMU group of the function to a machine: no driver of the host does DMA."""
        return self.driver in _WITHOUT_DMA or self.on_vfio


def responds(header: bytes | None) -> bool:
    """Whether a header was read of a function that is there."""
    # The IDs at its beginning say nothing: those of a VF are ones by the standard.
    return header is None or header[4:16] != b"\xff" * 12


def is_vfio_driver(driver: str | None) -> bool:
    """Whether a driver of that name leaves what it has to user space: VFIO, or a variant of it."""
    return driver is not None and "vfio" in driver


def scan_functions(tree: Tree) -> dict[Address, PciFunction]:
    """Every PCI function of the tree by address, in numeric order. Functions that cannot be read are faults."""
    functions: dict[Address, PciFunction] = {}
    if tree.sys is None:
        return functions
    # Recordings of a vGPU host may hold a VF below mdev_bus only.
    for place in (("bus", "pci", "devices"), ("class", "mdev_bus")):
        listing = tree.sys.folder(*place)
        for name in listing.names() if listing else ():
            address = Address.parse(name)
            if address is None or address in functions or listing is None:
                continue
            folder = listing.folder(name)
            function = read_pci_function(address, folder) if folder else None
            if function is not None:
                functions[address] = function
    return dict(sorted(functions.items()))


def read_pci_function(address: Address, folder: Folder, *, with_vfs: bool = True) -> PciFunction | None:
    """The function in ``folder``; None, and a fault, when its class and vendor cannot be told. ``with_vfs``: False if
    only the function itself is looked at; then it seems to have no VFs."""
    class_code, vendor = folder.number("class"), folder.number("vendor")
    if class_code is None or vendor is None:
        if folder.folder("nvidia") is None:
            folder.tree.fault(folder.path, "has no readable class and vendor, so it is left out")
            return None
        folder.tree.fault(folder.path, "has no readable class and vendor; taken for an NVIDIA GPU by its nvidia folder")
        class_code, vendor = _DISPLAY_3D, NVIDIA
    # Where the folder cannot be listed, what is in it is found by its name: it may keep others from being offered.
    before = folder.tree.fault_count
    names = folder.names()
    is_listed = bool(names) and folder.tree.fault_count == before
    entries = frozenset(names if is_listed else filter(folder.has, _READ_ENTRIES))
    is_bridge = class_code >> 16 == BRIDGE  # what is below it are functions of their own
    driver = _link(folder, "driver", entries)
    sriov = _sriov(folder) if with_vfs and "sriov_totalvfs" in entries else None
    is_readable = folder.tree.fault_count == before
    root = _ROOT.search(folder.path)
    return PciFunction(
        address=address,
        folder=folder,
        class_code=class_code,
        vendor=vendor,
        device=folder.number("device"),
        driver=driver,
        iommu_group=_group(folder, driver) if "iommu_group" in entries else None,
        root=root[1] if root else None,
        sriov=sriov,
        physfn=Address.parse(_link(folder, "physfn", entries) or ""),
        virtfns=tuple(_virtfns(folder, entries)) if sriov else (),
        entries=entries,
        below=ClassDevices(folder, () if is_bridge else None, is_listed, is_readable),
    )


def _link(folder: Folder, name: str, entries: Collection[str]) -> str | None:
    return folder.link(name) if name in entries else None


def _group(folder: Folder, driver: str | None) -> int | None:
    name = folder.link("iommu_group")
    if name is None:
        return None
    if not (name.isascii() and name.isdigit() and len(name) < 10):
        folder.tree.fault(f"{folder.path}/iommu_group", f"does not point at an IOMMU group: {name[:40]!r}")
        return None
    if is_vfio_driver(driver) and _is_without_iommu(folder):
        return None
    return int(name)


def _is_without_iommu(folder: Folder) -> bool:
    """Whether VFIO itself has made the group, for a host that has no IOMMU and lets devices be used all the same: they
    reach all of its memory, and their nodes have other names."""
    group = folder.folder("iommu_group")
    return group is not None and group.text("name") == _NO_IOMMU


def _virtfns(folder: Folder, entries: Iterable[str]) -> Iterable[tuple[int, Address]]:
    numbered = []
    for name in entries:
        match = _VIRTFN.fullmatch(name) if name.startswith("virtfn") else None
        address = Address.parse(folder.link(name) or "") if match else None
        if match and address is not None:
            numbered.append((int(match[1]), address))
    return sorted(numbered)


def _sriov(folder: Folder) -> Sriov | None:
    total = folder.number("sriov_totalvfs")
    if total is None or not 0 < total <= MAX_VFS:
        return None
    offset, stride = folder.number("sriov_offset"), folder.number("sriov_stride")
    if offset is None or stride is None:
        offset, stride = _routing_from_config(folder)
    vf_device = folder.text("sriov_vf_device") or ""  # four hexadecimal digits without 0x
    return Sriov(
        total=total,
        active=folder.number("sriov_numvfs") or 0,
        offset=offset,
        stride=stride,
        vf_device=int(vf_device, 16) if _HEX.fullmatch(vf_device) else None,
    )


def _routing_from_config(folder: Folder) -> tuple[int | None, int | None]:
    """First VF offset and VF stride out of the SR-IOV capability, for kernels before 4.14."""
    capability = _extended_capability(folder, _SRIOV_CAPABILITY)
    if len(capability) < 0x18:
        return None, None
    return int.from_bytes(capability[0x14:0x16], "little"), int.from_bytes(capability[0x16:0x18], "little")


def device_serial_number(function: PciFunction) -> str | None:
    """The serial number in the configuration space, as ``lspci`` writes it (``b4-96-91-ff-ff-6d-62-ac``); None if the
    function has none, sleeps, or its space is not readable."""
    if function.sleeps:
        return None
    number = _extended_capability(function.folder, _SERIAL_CAPABILITY)[4:12]
    if len(number) < 8 or number in (b"\0" * 8, b"\xff" * 8):
        return None
    return number[::-1].hex("-")


def _extended_capability(folder: Folder, wanted: int) -> bytes:
    """The configuration space from an extended capability on; empty if it has none, or only root could read it."""
    config = folder.raw("config", _CONFIG_SIZE) or b""
    position, seen = 0x100, set[int]()
    while 0x100 <= position <= len(config) - 4 and position not in seen:
        seen.add(position)
        header = int.from_bytes(config[position : position + 4], "little")
        if header & 0xFFFF == wanted:
            return config[position:]
        position = header >> 20
    return b""


_BARS, _ROM, _VF_BARS = range(6), 6, range(7, 13)
"""Lines of the file ``resource``."""
_MEMORY, _PREFETCHABLE, _WIDE = 0x200, 0x2000, 0x100000
"""Flags of a resource of the kernel (IORESOURCE_*)."""
_MAX_RESOURCE = 1 << 52
"""Bytes; more no processor addresses, and the file lies."""


@dataclass(frozen=True, slots=True)
class BarSizes:
    """Bytes, by the kind of window of a PCI bridge that they need."""

    prefetchable: int = 0
    """Of BARs that are prefetchable and of 64 bits: their window lies anywhere."""
    other: int = 0
    """Of all others, and of the ROM: their window lies below 4 GiB."""
    prefetchable_32: int = 0
    """The part of ``other`` that is prefetchable. Firmware puts it into the window of ``prefetchable``, which then lies
    below 4 GiB as a whole."""

    @property
    def total(self) -> int:
        """Of all BARs together."""
        return self.prefetchable + self.other

    def __add__(self, other: BarSizes) -> BarSizes:
        return BarSizes(
            self.prefetchable + other.prefetchable,
            self.other + other.other,
            self.prefetchable_32 + other.prefetchable_32,
        )

    def __or__(self, other: BarSizes) -> BarSizes:
        """The more of each."""
        return BarSizes(
            max(self.prefetchable, other.prefetchable),
            max(self.other, other.other),
            max(self.prefetchable_32, other.prefetchable_32),
        )


NO_BARS = BarSizes()


def bar_sizes(tree: Tree, addresses: Iterable[str]) -> BarSizes:
    """Of PCI functions that are passed through together. What is not there, or cannot be read, counts as nothing."""
    folders = (tree.sys.folder("bus", "pci", "devices", address) if tree.sys else None for address in addresses)
    return sum((_sizes(folder, (*_BARS, _ROM)) for folder in folders if folder is not None), NO_BARS)


def largest_bar_sizes(tree: Tree) -> BarSizes:
    """The most that any device needs that a machine can be given of this host: a card with all of its functions, one
    of its virtual functions (also one that is not there yet), or a part of it, which has at most what its card has. A
    resizable BAR counts with its largest size, which a driver of the host can give it later."""
    devices = tree.sys.folder("bus", "pci", "devices") if tree.sys else None
    cards: dict[Address, BarSizes] = {}
    most = NO_BARS
    for name in devices.names() if devices else ():
        address = Address.parse(name)
        folder = devices.folder(name) if devices and address else None
        if address is None or folder is None or (folder.number("class") or 0) >> 16 == BRIDGE:
            continue
        own = _sizes(folder, (*_BARS, _ROM), largest=_resizable(folder))
        if folder.has("physfn"):
            most |= own
        else:
            cards[address.card] = cards.get(address.card, NO_BARS) + own
            most |= _sizes(folder, _VF_BARS, parts=folder.number("sriov_totalvfs") or 0)
    for sizes in cards.values():
        most |= sizes
    return most


def _resizable(folder: Folder) -> dict[int, int]:
    """The largest size in bytes of each BAR that can be resized, by its number: as the kernel says (since 6.1), or out
    of the configuration space."""
    sizes = {}
    for number in _BARS:
        try:
            mask = int(folder.text(f"resource{number}_resize") or "0", 16)  # bit 0: 1 MiB
        except ValueError:
            continue
        if mask > 0:
            sizes[number] = 1 << (mask.bit_length() - 1 + 20)
    if sizes:
        return sizes
    capability = _extended_capability(folder, _RESIZABLE_CAPABILITY)
    entries = (int.from_bytes(capability[8:12], "little") >> 5 & 7) if len(capability) >= 12 else 0
    for at in range(4, 4 + 8 * entries, 8):
        supported, control = (int.from_bytes(capability[n : n + 4], "little") for n in (at, at + 4))
        if supported >> 4 and control & 7 in _BARS:  # bit 4: 1 MiB
            sizes[control & 7] = 1 << (supported.bit_length() - 1 + 16)
    return sizes


def _sizes(
    folder: Folder, lines: Iterable[int], parts: int = 1, largest: Mapping[int, int] = MappingProxyType({})
) -> BarSizes:
    """``parts``: the resources are those of so many functions together; 0: of none. ``largest``: sizes that count if
    they are larger, by line."""
    rows = (folder.text("resource") or "").splitlines()
    sizes = NO_BARS
    for line in lines:
        if line >= len(rows) or not parts:
            continue
        try:
            start, end, flags = (int(word, 16) for word in rows[line].split())
        except ValueError:
            continue
        size = max((end - start + 1) // parts, largest.get(line, 0))
        if flags & _MEMORY and 0 < size <= _MAX_RESOURCE:
            if not flags & _PREFETCHABLE or line == _ROM:
                sizes += BarSizes(other=size)
            else:
                sizes += BarSizes(prefetchable=size) if flags & _WIDE else BarSizes(other=size, prefetchable_32=size)
    return sizes


_WITHOUT_DMA = frozenset({None, "pci-stub"})
"""Drivers of functions that VFIO lets stay in a group as they are."""
_PORT_DRIVERS = frozenset({None, "pcieport"})
"""Those that leave DMA alone, as VFIO sees it; since Linux 5.19 ``shpchp``, of hot-plug bridges, is none of them."""


@dataclass(frozen=True, slots=True)
class IommuGroups:
    """Which functions are in which IOMMU group."""

    members: Mapping[int, tuple[PciFunction, ...]]
    shared_allowed: bool
    """The admin lets devices go that share a group with another slot."""
    bound_together: bool = False
    """The admin lets the first device of a group take the others from their drivers, too."""
    stays: Callable[[PciFunction, Collection[PciFunction]], bool] = lambda function, members: False
    """Whether a function cannot be taken along then; with all members of its group."""

    @classmethod
    def of(
        cls,
        functions: Collection[PciFunction],
        shared_allowed: bool,
        *,
        bound_together: bool = False,
        stays: Callable[[PciFunction, Collection[PciFunction]], bool] = lambda function, members: False,
    ) -> IommuGroups:
        members: dict[int, list[PciFunction]] = {}
        for function in functions:
            if function.iommu_group is not None and not _is_passive(function):
                members.setdefault(function.iommu_group, []).append(function)
        groups = {group: tuple(group_members) for group, group_members in members.items()}
        return cls(groups, shared_allowed or bound_together, bound_together, stays)

    def peers(self, device: Collection[PciFunction]) -> list[PciFunction]:
        """What else is in the groups of functions."""
        own = {function.address for function in device}
        groups = sorted({function.iommu_group for function in device if function.iommu_group is not None})
        return [peer for group in groups for peer in self.members.get(group, ()) if peer.address not in own]

    def objections(self, device: Collection[PciFunction], together: Collection[Address] = frozenset()) -> Iterator[str]:
        """Why functions that are given away as one device cannot be.

        ``together``: addresses that may be in the same group because they come and go with the device.
        """
        for function in device:
            if function.iommu_group is None:
                yield f"no IOMMU group for {function.address} (is the IOMMU switched on?)"
        own = {function.address for function in device}
        for group in sorted({function.iommu_group for function in device if function.iommu_group is not None}):
            members = self.members.get(group, ())
            peers = [peer for peer in members if peer.address not in own and peer.address not in together]
            if peers and (objection := self._objection(group, peers, min(own))) is not None:
                yield objection

    def _objection(self, group: int, peers: list[PciFunction], first: Address) -> str | None:
        if not self.shared_allowed:
            names = ", ".join(str(peer.address) for peer in peers[:3]) + (", …" if len(peers) > 3 else "")
            return f"IOMMU group {group} is shared with {names}"
        if self.bound_together:
            members = self.members.get(group, ())
            staying = next((peer for peer in peers if self.stays(peer, members)), None)
            if staying is not None:
                peer = f"{staying.address} of its IOMMU group {group} has the driver {staying.driver}"
                return f"in use: {peer} and cannot go along; bind it to vfio-pci, unless the host needs it"
        head = min(peer.address for peer in peers)
        if self.bound_together and head < first:
            return f"IOMMU group {group} goes with {head}"
        busy = next((peer for peer in peers if not peer.leaves_group), None)
        if busy is not None:
            peer = f"{busy.address} of its IOMMU group {group} has the driver {busy.driver}"
            return f"in use: {peer}; bind it to vfio-pci, unless the host needs it"
        # One group goes to one machine: of the devices in it only the first is offered, and takes the others along.
        return f"IOMMU group {group} goes with {head}" if head < first else None


def _is_passive(function: PciFunction) -> bool:
    """A bridge without a driver of its own: VFIO lets it stay with the host."""
    return function.base_class == BRIDGE and function.driver in _PORT_DRIVERS
