"""Random hosts: cards, what hangs below them at any place, and who uses it; and which of their devices are offered.

`RandomHost.of(seed)` is a plan; `build(folder)` makes the tree. `offered` is an oracle: it follows from the plan by the
rules alone (T3 to T8), and knows nothing of /sys, /proc or the inventory:

- not offered is what the host needs: the boot display, the console, an interface with a default route, address, bridge
  or another interface on it (in any network namespace), a disk that is mounted, swapped to or held;
- nor what is in use: a process that has a node of it open under any name, also only to watch it; another network
  namespace that has an interface of it; a machine that has its VFIO group open;
- nor what cannot be given away alone (IOMMU), is never given away (a BMC's display), or is not allowed;
- a whole card goes with all that is on it, a virtual function of a network card by itself;
- virtual functions that are not there yet are offered of network cards with their driver, never of a GPU without proof
  that they can be made;
- everything else is offered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from devalloc.inventory.network_namespaces import StackedInterfaces
from tests.support import pci_cards
from tests.support.fake_host import FakeHost
from tests.support.pci_cards import Function, Sriov

ALLOWED = frozenset({"gpu", "nic", "accelerator", "storage", "vf", "vgpu"})
PLACES = (
    "", "mlx5_core.sf.2/", "vdpa0/virtio7/", "virtio3/", "usb3/3-1/3-1.4/3-1.4:2.0/", "habanalabs_en.0/",
    "fpga_region/region0/dfl-port.0/", "i2c-3/3-0050/", "eth.1/port.0/lane.3/",
)  # fmt: skip
"""Where drivers put the folders of classes, below that of the function."""
NEEDED = ("route", "address", "ipv6 address", "ipv6 route", "bridge", "vlan", "stacked")
UNNEEDED = ("idle", "link-local")
NODES = {"infiniband_verbs": "infiniband/", "accel": "accel/", "tty": "", "sound": "snd/", "misc": "", "dfl": "",
         "drm": "dri/", "ptp": ""}  # fmt: skip
REAL = {"1:5": "/dev/zero", "1:7": "/dev/full", "1:8": "/dev/random", "1:9": "/dev/urandom"}
"""Nodes of any machine, by number: what a container may have under another name."""
MONITORS = ("nvidia-persiste", "nv-hostengine", "dcgm-exporter")


@dataclass
class Interface:
    """A network interface below a function."""

    name: str
    place: str
    use: str

    @property
    def is_needed(self) -> bool:
        return self.use in NEEDED


@dataclass
class Disk:
    """A disk below a function, with a partition."""

    name: str
    place: str
    number: int
    """Its minor."""
    use: str

    @property
    def is_needed(self) -> bool:
        return self.use != "idle"


@dataclass
class Node:
    """A device node below a function, or of a partition of it."""

    path: str
    folder: str
    number: str
    users: int = 0
    """Processes that have it open."""
    in_function: bool = True


@dataclass
class Member:
    """A function, and what hangs below it."""

    spec: Function
    interfaces: list[Interface] = field(default_factory=list)
    disks: list[Disk] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    is_elsewhere: bool = False
    """Another network namespace has an interface of it."""
    group_open: bool = False
    """A machine has its VFIO group open."""
    serial: str | None = None
    """In its vital product data; that of the board."""
    partner: Member | None = None
    """The function that has the interface which sends and receives by this one, too."""

    @property
    def is_needed(self) -> bool:
        """By the host."""
        other = self.partner
        if other is not None and (other.is_elsewhere or any(each.is_needed for each in other.interfaces)):
            return True
        return self.spec.boot_vga is True or any(part.is_needed for part in (*self.interfaces, *self.disks))

    @property
    def is_in_use(self) -> bool:
        """By a process or another namespace."""
        return self.is_elsewhere or self.group_open or any(node.users for node in self.nodes)

    @property
    def has_native_driver(self) -> bool:
        return self.spec.driver == "native"


@dataclass
class Card:
    """Members of one device, and the virtual functions on it."""

    kind: str
    members: list[Member]
    vfs: list[Member] = field(default_factory=list)
    """Those that exist, as the driver has made them."""

    @property
    def device(self) -> str:
        """The name of the whole card or port."""
        return _name(self.members[0].spec.address)


@dataclass
class RandomHost:
    """A plan of a host."""

    seed: int
    cards: list[Card] = field(default_factory=list)
    processes: list[tuple[str, list[str]]] = field(default_factory=list)
    """Name, and the numbers or paths of the nodes that it has open."""
    computing: list[tuple[bool, list[Node]]] = field(default_factory=list)
    """Processes of AMD's compute driver: whether it lists them, and the partitions that they use."""
    erase_policy: bool = False
    allowed: frozenset[str] = ALLOWED

    @classmethod
    def of(cls, seed: int) -> RandomHost:
        return _Planner(seed).plan()

    @property
    def stacked(self) -> StackedInterfaces:
        """What the kernel would say of interfaces that stand on others in other namespaces."""
        names = [each.name for member in self.members for each in member.interfaces if each.use == "stacked"]
        return StackedInterfaces(dict.fromkeys(names, f"net1 in the network namespace of pause {self.seed}"))

    @property
    def members(self) -> Iterator[Member]:
        for card in self.cards:
            yield from card.members
            yield from card.vfs

    def offered(self) -> dict[str, bool]:
        """By the name of each device: whether an ordinary claim may have it."""
        groups: dict[object, set[int]] = {}
        for number, card in enumerate(self.cards):
            for member in card.members:
                groups.setdefault(member.spec.iommu_group, set()).add(number)
        devices = {}
        for number, card in enumerate(self.cards):
            first = card.members[0].spec
            is_alone = all(
                member.spec.iommu_group is not None
                and (member.spec.iommu_group == "own" or groups[member.spec.iommu_group] == {number})
                for member in card.members
            )
            devices[_name(first.address)] = (
                card.kind in self.allowed
                and (card.kind != "storage" or self.erase_policy)
                and is_alone
                and not any(member.is_needed or member.is_in_use for member in card.members)
                and not card.vfs
            )
            for vf in card.vfs:
                devices[_name(vf.spec.address)] = (
                    "vf" in self.allowed
                    and first.iommu_group is not None
                    and not vf.is_needed
                    and not vf.is_in_use
                    and (card.kind == "nic" or not any(member.is_needed for member in card.members))
                )
            if first.sriov is not None and not card.vfs and card.members[0].has_native_driver:
                for address in pci_cards.vf_addresses(first.address, first.sriov):
                    devices[_name(address)] = (
                        card.kind == "nic" and first.iommu_group is not None and ("vf" in self.allowed)
                    )
        return devices

    def build(self, folder: Path) -> FakeHost:
        """The tree, with its processes."""
        return _Builder(self, FakeHost(folder)).build()


def _name(address: str) -> str:
    return address.replace(":", "-").replace(".", "-")


class _Planner:
    """Chooses at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.host = RandomHost(seed)
        self.count = 0
        self.real = [*REAL]

    def plan(self) -> RandomHost:
        chance = self.random
        self.host.erase_policy = chance.random() < 0.7
        if chance.random() < 0.2:
            self.host.allowed = frozenset(each for each in ALLOWED if chance.random() < 0.6)
        for bus in chance.sample(range(1, 200), chance.randint(1, 3)):
            self.host.cards += self.card(f"0000:{bus:02x}:00")
        for card in self.host.cards:
            for member in card.members:
                if member.has_native_driver:
                    self.parts(member)
        slots = {card.members[0].spec.address[:-2]: card for card in self.host.cards}
        if len(slots) == len(self.host.cards) > 1 and chance.random() < 0.15:
            for card in chance.sample(self.host.cards, 2):
                for member in card.members:
                    member.spec = replace(member.spec, iommu_group=77)
        self.users()
        for member in self.host.members:
            if member.spec.native == "mlx5_core" and member.serial is None:
                self.count += 1
                member.serial = f"MT{self.count}"
        return self.host

    def card(self, slot: str) -> list[Card]:
        chance = self.random
        first = f"{slot}.0"
        driver = chance.choices(("native", "vfio-pci", None), (8, 2, 1))[0]
        group = chance.choices(("own", None), (12, 1))[0]
        more = {"driver": driver, "iommu_group": group}
        self.count += 1
        match chance.randrange(9):
            case 0:
                members = [Member(pci_cards.gpu(first, drm=None, boot_vga=chance.random() < 0.1, **more))]
                if chance.random() < 0.5:
                    members.append(Member(pci_cards.gpu_audio(f"{slot}.1", **more)))
                return [Card("gpu", members)]
            case 1:
                sriov = Sriov(4, offset=16, vf_device=0x7410, vf_driver="amdgpu")
                return [Card("gpu", [Member(pci_cards.amd_gpu(first, drm=None, sriov=sriov, **more))])]
            case 2:
                return [Card("nic", [Member(pci_cards.plain_nic(first, netdev=None, **more))])]
            case 3:
                count = chance.choice((0, 0, 2)) if driver == "native" else 0
                spec = pci_cards.nic(first, netdev=None, sriov=replace(_IGB, total=3), vfs=count, **more)
                vfs = [Member(replace(spec, address=address, sriov=None, boot_vga=None))
                       for address in pci_cards.vf_addresses(first, _IGB)[:count]]  # fmt: skip
                for vf in vfs:
                    self.parts(vf)
                return [Card("nic", [Member(spec)], vfs)]
            case 4:
                more |= {"netdev": None, "infiniband": None, "sriov": None}
                ports = [pci_cards.connectx(f"{slot}.{port}", **more) for port in range(chance.randint(1, 2))]
                return [Card("nic", [Member(port)]) for port in ports]
            case 5:
                return [Card("storage", [Member(pci_cards.nvme(first, nvme=None, **more))])]
            case 6:
                return [Card("display", [Member(pci_cards.bmc_vga(first, drm=None, **more))])]
            case 7:
                second = replace(pci_cards.connectx(f"{slot[:-2]}01.0"), address="")
                return self.halves(slot, second)
            case _:
                return [Card("accelerator", [Member(pci_cards.accelerator(first, **more))])]

    def halves(self, slot: str, model: Function) -> list[Card]:
        """Two functions of a card with one interface, on a bus of their own each."""
        other = f"{slot[:5]}{int(slot[5:7], 16) + 0x20 & 0xFF or 1:02x}:01.0"
        one, two = (
            Member(replace(model, address=address, netdev=None, infiniband=None, sriov=None))
            for address in (f"{slot}.0", other)
        )
        one.serial = two.serial = f"MT{self.count}"
        one.interfaces.append(Interface(f"sd{self.count}", "", self.random.choice((*NEEDED, *UNNEEDED))))
        two.partner = one
        return [Card("nic", [one]), Card("nic", [two])]

    def parts(self, member: Member) -> None:
        """What hangs below a function with its driver."""
        chance = self.random
        if member.partner is not None:
            return
        is_nic = member.spec.class_code >> 16 == 2
        if is_nic or chance.random() < 0.25:
            for _ in range(chance.randint(1, 2)):
                self.count += 1
                use = chance.choice(NEEDED) if chance.random() < 0.2 else chance.choice(UNNEEDED)
                place = chance.choice(PLACES)
                if any(each.place == place for each in member.interfaces):
                    continue
                if chance.random() < 0.12:
                    member.is_elsewhere = True
                    member.interfaces.append(Interface("", place, "elsewhere"))
                else:
                    member.interfaces.append(Interface(f"if{self.count}", place, use))
        is_drive = member.spec.class_code >> 8 == 0x0108
        if is_drive or chance.random() < 0.15:
            self.count += 1
            use = chance.choice(("mounted", "mountinfo", "swap", "held")) if chance.random() < 0.3 else "idle"
            place = "nvme/nvme9/" if is_drive else f"{chance.choice(PLACES)}host6/target6:0:0/6:0:0:0/block/"
            name = f"nvme{self.count}n1" if is_drive else f"sd{self.count}"
            member.disks.append(Disk(name, place, self.count * 16, use))
        if member.spec.class_code >> 16 in (3, 0x12) or chance.random() < 0.3:
            for kind in chance.sample([*NODES], chance.randint(1, 2)):
                self.node(member, kind)
        if member.spec.vendor == 0x1002 and chance.random() < 0.5:
            for _ in range(chance.choice((2, 4))):
                self.node(member, "drm", in_function=False)

    def node(self, member: Member, kind: str, *, in_function: bool = True) -> None:
        self.count += 1
        # DRM nodes of partitions are also known by their minor.
        minor = 128 + self.count
        number = f"226:{minor}" if kind == "drm" else f"240:{self.count}"
        if in_function and kind != "drm" and self.real and self.random.random() < 0.4:
            number = self.real.pop()
        name = f"renderD{minor}" if kind == "drm" else f"{kind}{self.count}"
        place = self.random.choice(PLACES) if in_function and kind != "drm" else ""
        member.nodes.append(Node(f"/dev/{NODES[kind]}{name}", f"{place}{kind}/{name}", number, 0, in_function))

    def users(self) -> None:
        """Processes; most of them use none of the cards."""
        chance = self.random
        for member in self.host.members:
            if member.spec.driver == "vfio-pci" and chance.random() < 0.3:
                member.group_open = True
            if member.spec.native == "nvidia" and member.has_native_driver:
                self.count += 1
                member.nodes.append(Node(f"/dev/nvidia{self.count}", "", f"195:{self.count}"))
        nodes = [node for member in self.host.members for node in member.nodes]
        for _ in range(chance.choice((0, 0, 1, 2, 3))):
            name = chance.choice(("python3", "ib_write_bw", *MONITORS))
            opened = chance.sample(nodes, min(len(nodes), chance.choice((0, 1, 1, 2))))
            for node in opened:
                node.users += 1
            self.host.processes.append((name, [node.number if node.number in REAL else node.path for node in opened]))
        partitions = [node for node in nodes if not node.in_function]
        if partitions and chance.random() < 0.5:
            is_listed = chance.random() < 0.7  # of one that is not, its use is unknown
            used = chance.sample(partitions, chance.randint(0, 1)) if is_listed else partitions
            for node in used:
                node.users += 1
            self.host.computing.append((is_listed, used))


_IGB = Sriov(7, offset=128, stride=2, vf_device=0x10CA, vf_driver="igbvf")


class _Builder:
    """Makes the tree of a plan."""

    def __init__(self, plan: RandomHost, host: FakeHost) -> None:
        self.plan, self.host = plan, host
        self.mounts: list[str] = []
        self.routes: list[str] = []
        self.partitions = 0

    def build(self) -> FakeHost:
        host = self.host
        for card in self.plan.cards:
            for member in card.members:
                host.add(member.spec)
        for member in self.plan.members:
            self.fill(member)
        rows = "".join(f"{name}\t{target}\t0\t1\t0\t0\t0\t{mask}\t0\t0\t0\n" for name, target, mask in self.ipv4)
        host.proc(
            "net/route", f"Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n{rows}"
        )
        self.tables()
        pid = 4000
        for name, opened in self.plan.processes:
            pid += 1
            host.process(pid, name, tuple(self.opened(pid, number, node) for number, node in enumerate(opened)))
        for is_listed, used in self.plan.computing:
            pid += 1
            host.process(pid, "python3", ("/dev/kfd",))
            if is_listed:
                host.write(f"class/kfd/kfd/proc/{pid}/pasid", "32770")
                for node in (node for member in self.plan.members for node in member.nodes if not node.in_function):
                    gpu_id = 1000 + int(node.number.partition(":")[2])
                    host.write(f"class/kfd/kfd/proc/{pid}/vram_{gpu_id}", "4096" if node in used else "0")
        for member in self.plan.members:
            if member.group_open:
                pid += 1
                group = host.functions[member.spec.address].group
                host.process(pid, "qemu-system-x86", (f"/dev/vfio/{group}",) if group is not None else ())
        return host

    def opened(self, pid: int, number: int, node: str) -> str:
        """What a descriptor leads to: a node by its name, or one that a container has under a name of its own."""
        if node not in REAL:
            return node
        renamed = self.host.root / f"containers/{pid}/{number}/dev/dri/renderD128"
        renamed.parent.mkdir(parents=True)
        renamed.symlink_to(REAL[node])
        return str(renamed)

    @property
    def ipv4(self) -> Iterator[tuple[str, str, str]]:
        for member in self.plan.members:
            for each in member.interfaces:
                if each.use == "route":
                    yield each.name, "00000000", "00000000"
                if each.use == "address":
                    yield each.name, "0000A8C0", "00FFFFFF"

    def tables(self) -> None:
        addresses, routes, swaps, rows = "", "", "", ""
        none = "0" * 32
        for member in self.plan.members:
            for each in member.interfaces:
                scope = {"ipv6 address": "00", "link-local": "20"}.get(each.use)
                addresses += f"fd00000000000000fc0000fffe000001 04 40 {scope} 80 {each.name}\n" if scope else ""
                if each.use == "ipv6 route":
                    routes += f"{none} 00 {none} 00 fe80{'0' * 28} 00000400 00000001 00000000 00000003 {each.name}\n"
            for disk in member.disks:
                swaps += f"/dev/{disk.name} partition 8388604 0 -2\n" if disk.use == "swap" else ""
                if disk.use == "mountinfo":
                    rows += f"22 1 8:{disk.number + 1} / / rw - ext4 /dev/root rw\n"
                if disk.use == "mounted":
                    self.host.mount(self.part(disk))
                if disk.use == "held":
                    self.host.hold(self.part(disk), f"dm-{disk.number}")
        self.host.proc("net/if_inet6", addresses)
        self.host.proc("net/ipv6_route", routes)
        self.host.proc("swaps", f"Filename Type Size Used Priority\n{swaps}")
        self.host.proc("self/mountinfo", rows)

    @staticmethod
    def part(disk: Disk) -> str:
        return f"{disk.name}p1" if disk.name.startswith("nvme") else f"{disk.name}1"

    def fill(self, member: Member) -> None:
        host, path = self.host, self.host.path(member.spec.address)
        if member.serial is not None:
            text = b"SN" + bytes([len(member.serial)]) + member.serial.encode()
            (host.sys / path / "vpd").write_bytes(b"\x90" + len(text).to_bytes(2, "little") + text + b"\x78")
        for each in member.interfaces:
            folder = f"{path}/{each.place}net"
            if each.use == "elsewhere":
                (host.sys / folder).mkdir(parents=True, exist_ok=True)
                continue
            host.write(f"{folder}/{each.name}/address", "02:00:00:00:00:01")
            host.link(f"{folder}/{each.name}/subsystem", "class/net")
            host.link(f"class/net/{each.name}", f"{folder}/{each.name}")
            if each.use == "bridge":
                host.enslave(each.name, "br0")
            if each.use == "vlan":
                host.write(f"{folder}/{each.name}/upper_{each.name}.5/type", "1")
        for disk in member.disks:
            folder = f"{path}/{disk.place}{disk.name}"
            for place, name, minor in ((folder, disk.name, 0), (f"{folder}/{self.part(disk)}", self.part(disk), 1)):
                host.write(f"{place}/dev", f"8:{disk.number + minor}")
                host.link(f"{place}/subsystem", "class/block")
                host.link(f"class/block/{name}", place)
                (host.root / f"dev/{name}").touch()
        for node in member.nodes:
            if node.path.startswith("/dev/nvidia"):
                text = f"Device Minor: \t {node.path.removeprefix('/dev/nvidia')}\n"
                host.proc(f"driver/nvidia/gpus/{member.spec.address}/information", text)
                continue
            self.partitions += not node.in_function
            top = path if node.in_function else f"devices/platform/amdgpu_xcp.{self.partitions}"
            name = node.path.removeprefix("/dev/")
            host.write(f"{top}/{node.folder}/uevent", f"DEVNAME={name}\n")
            host.write(f"{top}/{node.folder}/dev", node.number)
            kind = node.folder.rpartition("/")[0].rpartition("/")[2]
            host.link(f"{top}/{node.folder}/subsystem", f"class/{kind}")
            host.link(f"class/{kind}/{name.rpartition('/')[2]}", f"{top}/{node.folder}")
            if not node.in_function:
                bus, minor = int(member.spec.address[5:7], 16), node.number.partition(":")[2]
                topology = f"devices/virtual/kfd/kfd/topology/nodes/{self.partitions}"
                host.write(f"{topology}/gpu_id", str(1000 + int(minor)))
                if self.partitions == 1:
                    host.write("devices/virtual/kfd/kfd/dev", "234:0")
                    host.link("class/kfd/kfd", "devices/virtual/kfd/kfd")
                host.write(
                    f"{topology}/properties",
                    f"location_id {(bus << 8) + self.partitions % 8}\ndomain 0\ndrm_render_minor {minor}\n",
                )
