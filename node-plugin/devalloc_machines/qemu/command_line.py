"""The command line of QEMU for a machine: a pure function of what is wanted and of what the host has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from devalloc.api.virtual_machine import MEMORY_BLOCK
from devalloc_machines.qemu import confinement, guest_numa
from devalloc_machines.qemu.firmware import CODE_FD, TPM_FD, VARIABLES_FD
from devalloc_machines.qemu.pci import WindowReserve
from devalloc_machines.qemu.pci_layout import RootBus, expander_id, first_bus, function_below, port_places
from devalloc_machines.qemu.spec import MIB, Disk, MachineSpec, Nic, NicModel, memory_text, own_mac, whole_cpus
from devalloc_node.errors import Denied

MAX_PCI_SLOTS = 64
MACHINE_TYPE = "q35"
"""The newest version that QEMU has of it."""
NIC_DRIVERS: Mapping[NicModel, str] = {"virtio": "virtio-net-pci", "e1000e": "e1000e"}
FIRST_DISK_FD, FIRST_IMAGE_FD, FIRST_TAP_FD = 100, 150, 200
MAX_QUEUES = 16
"""Queues of a virtio disk or network card, at most."""
_CLEARING_THREADS = 16
"""That clear huge pages, at most: QEMU begins no more than there are CPUs and pages."""


@dataclass(frozen=True, slots=True)
class StartContext:
    """What the command line needs beside the spec: checked, and free of links."""

    binary: str
    accel: Literal["kvm", "tcg"]
    uuid: str
    """QEMU's ``-uuid``, by which the machine is recognised later."""
    kernel: str | None = None
    initrd: str | None = None
    block_disks: frozenset[int] = frozenset()
    """Which of the disks are block devices; the others are files."""
    user_net: bool = False
    """Cards with backend user reach the host and what the host reaches."""
    machine_type: str = MACHINE_TYPE
    is_incoming: bool = False
    """It is to receive the state of a machine that runs elsewhere, when its monitor says from where."""
    reserves: tuple[WindowReserve, ...] = ()
    """What the root ports reserve, in the order of ``port_places``; those that are not named here reserve nothing."""
    node_ports: int = 0
    """Root ports on the expander bus of each guest node (``ports_per_node``); 0: there are no such buses."""
    aperture: int = 0
    """Bytes of addresses above its memory that UEFI firmware gives to devices; 0: as many as it does by itself."""
    queues: Mapping[int, int] = field(default_factory=dict)
    """How many queues the TAP interfaces of NICs have, by the NIC's number; those that are not named here have one."""
    distances: Sequence[Sequence[int]] = ()
    """Between the guest's NUMA nodes; empty: QEMU's own."""


def cpu_id(slot: int) -> str:
    """The id of the vCPU in the slot ``slot``, counted from 0 in the order of core-id."""
    return f"cpu{slot}"


def qemu_arguments(spec: MachineSpec, start: StartContext) -> list[str]:
    """The words that start the machine, paused: devices are plugged before its first instruction, then it goes on.

    Raises Denied: ``TooFewPciSlots`` if claims outnumber the root ports, ``MachineInvalid``.
    """
    check_spec(spec)
    words = [start.binary, "-name", f"guest={spec.id},debug-threads=on", "-uuid", start.uuid, "-S"]
    words += ["-no-user-config", "-nodefaults", "-display", "none"]
    words += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"]
    words += _board(spec, start) + _cpus(spec, start) + _memory(spec, start)
    words += _SOCKETS
    words += ["-incoming", "defer"] if start.is_incoming else []
    words += _boot(spec, start)
    blocks = [] if spec.dimm_bytes is not None else [each for each in enumerate(_memory_of_nodes(spec)) if each[1][2]]
    places = RootBus(spec, len(blocks) + len(start_disks(spec)) + len(spec.nics), start.node_ports)
    for node, (_, requested, _) in blocks:
        words += _device(
            driver="virtio-mem-pci", id=virtio_mem_id(node), memdev=f"{virtio_mem_id(node)}-ram", node=node,
            **places.single(), bus="pcie.0", **{"requested-size": requested},
            # Or a guest that takes more than there are pages of would be ended by the kernel (SIGBUS).
            **({"prealloc": True} if spec.huge_page_bytes else {}),
        )  # fmt: skip
    for number, disk in enumerate(start_disks(spec)):
        words += _disk(number, disk, number in start.block_disks, places.single(), _queues(spec))
    for number, nic in enumerate(spec.nics):
        place = {"bus": "pcie.0", **places.single(), "mac": nic.mac or own_mac(spec.owner, f"nic{number}")}
        words += _nic(number, nic, place, start.user_net, start.queues.get(number, 1))
    for node in range(len(spec.numa_cells) if start.node_ports else 0):
        words += _device(
            driver="pxb-pcie", id=expander_id(node), bus="pcie.0", bus_nr=first_bus(spec, node), numa_node=node,
            **places.expander(),
        )  # fmt: skip
    for number, port in enumerate(port_places(spec, start.node_ports)):
        place = places.port() if port.node is None else function_below(port.number, start.node_ports)
        words += _device(
            driver="pcie-root-port", id=port.id, bus=port.bus, chassis=number + 1, slot=number + 1, **place,
            **_reserved(start.reserves[number] if number < len(start.reserves) else WindowReserve()),
        )  # fmt: skip
    return words


def _reserved(reserve: WindowReserve) -> dict[str, int]:
    sizes = {"pref64-reserve": reserve.prefetchable, "mem-reserve": reserve.memory}
    return {name: size for name, size in sizes.items() if size}


def check_spec(spec: MachineSpec) -> None:
    """Whether such a machine can be, before anything of it is. Raises Denied."""

    def invalid(why: str) -> Denied:
        return Denied("MachineInvalid", f"machine {spec.key}: {why}")

    for what, bounds in (("cpu", spec.cpus), ("memory", spec.memory)):
        if not 0 < bounds.least <= bounds.use <= bounds.most:
            raise invalid(f"{what} must have 0 < min <= use <= max, not {bounds.least}, {bounds.use}, {bounds.most}")
    if spec.cpus.least < confinement.LEAST:
        raise invalid(f"its cpu.min must be at least {confinement.LEAST}m, not {spec.cpus.least}m")
    block = max(MEMORY_BLOCK, spec.huge_page_bytes or 0)
    if any(amount % block for amount in (spec.memory.least, spec.memory.use, spec.memory.most, spec.dimm_bytes or 0)):
        raise invalid(f"its memory must be multiples of {memory_text(block)}")
    if spec.dimm_bytes is not None and (spec.dimm_bytes <= 0 or spec.hot_memory % spec.dimm_bytes):
        raise invalid("its memory above min must be a multiple of slotSize")
    if spec.dimm_bytes and spec.hot_memory // spec.dimm_bytes > 255:
        raise invalid("its memory above min must be at most 255 DIMMs")
    if not 0 <= spec.pci_slots <= MAX_PCI_SLOTS:
        raise invalid(f"it can have 0 to {MAX_PCI_SLOTS} PCI slots, not {spec.pci_slots}")
    if spec.adopt is None and len(spec.claims) > spec.pci_slots:
        raise Denied(
            "TooFewPciSlots",
            f"machine {spec.key} has {len(spec.claims)} claims and {spec.pci_slots} PCI slots: each device needs one",
        )
    if spec.adopt is None and spec.kernel is None and not spec.disks:
        raise invalid("it has neither a kernel nor a disk to boot from")
    if spec.kernel is None and (spec.initrd or spec.append):
        raise invalid("an initrd or a command line needs a kernel")
    if any(c in spec.append for c in "\0\n\r"):
        raise invalid("its kernel's command line must be one line")


def cpu_type(accel: str) -> str:
    """The QOM type of its vCPUs."""
    return "host-x86_64-cpu" if accel == "kvm" else "max-x86_64-cpu"


def _board(spec: MachineSpec, start: StartContext) -> list[str]:
    machine = f"{start.machine_type},dump-guest-core=off"
    if spec.iommu and start.accel == "kvm":
        machine += ",kernel-irqchip=split"
    if spec.firmware == "uefi":
        machine += f",pflash0={_CODE},pflash1={_VARIABLES}" + (",smm=on" if spec.secure_boot else "")
    words = ["-machine", machine, "-accel", "kvm" if start.accel == "kvm" else "tcg,thread=multi"]
    if spec.iommu:
        words += _device(driver="intel-iommu", intremap="on", **{"caching-mode": True, "device-iotlb": True})
    return words + _firmware(spec, start) + _tpm(spec)


_CODE, _VARIABLES = "firmware-code", "firmware-variables"
"""Block nodes of the flash chips."""
_IMAGE_SET, _FIRMWARE_SET = 800, 900
"""The first set of descriptors of images below overlays, and of the firmware; those of disks are below."""


def _firmware(spec: MachineSpec, start: StartContext) -> list[str]:
    if spec.firmware != "uefi":
        return []
    words = []
    for number, (node, fd) in enumerate(((_CODE, CODE_FD), (_VARIABLES, VARIABLES_FD)), _FIRMWARE_SET):
        words += ["-add-fd", f"fd={fd},set={number}"]
        file = file_node(f"{node}-file", f"/dev/fdset/{number}", read_only := node == _CODE, block=False)
        words += ["-blockdev", _json(file)]
        words += ["-blockdev", _json({"driver": "raw", "file": file["node-name"], "node-name": node,
                                      "read-only": read_only})]  # fmt: skip
    if spec.secure_boot:
        # Only the firmware itself, in system management mode, writes variables, and no guest sleeps past its locks.
        words += ["-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1"]
    if start.aperture:
        words += ["-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={start.aperture // MIB}"]
    return words


def _tpm(spec: MachineSpec) -> list[str]:
    if not spec.tpm:
        return []
    words = ["-chardev", f"socket,id=tpm0-line,fd={TPM_FD}", "-tpmdev", "emulator,id=tpm0,chardev=tpm0-line"]
    return words + _device(driver="tpm-crb", id="tpm0-dev", tpmdev="tpm0")


def _cpus(spec: MachineSpec, start: StartContext) -> list[str]:
    """The least it may have is built in; what is above has ids, so that it can be unplugged."""
    least, use, most = (whole_cpus(n) for n in (spec.cpus.least, spec.cpus.use, spec.cpus.most))
    # As many bits of addresses as the host has, or the windows of devices would lie where its CPUs cannot reach. An
    # emulated CPU has 40, and takes no other number.
    words = ["-cpu", "host,host-phys-bits=on" if start.accel == "kvm" else "max"]
    sockets, cores = (most, 1) if spec.numa_cells else (1, most)
    words += ["-smp", f"cpus={least},maxcpus={most},sockets={sockets},cores={cores},threads=1"]
    for slot in range(least, use):
        place = {"socket-id": slot // cores, "core-id": slot % cores, "thread-id": 0}
        words += _device(driver=cpu_type(start.accel), id=cpu_id(slot), **place)
    return words


def _memory(spec: MachineSpec, start: StartContext) -> list[str]:
    dimms = spec.hot_memory // spec.dimm_bytes if spec.dimm_bytes else len(spec.numa_cells)
    words = ["-m", f"size={spec.memory.least}B"]
    if spec.hot_memory:
        words[1] += f",slots={max(1, dimms)},maxmem={spec.memory.most}B"
    for node, (size, _, most) in enumerate(_memory_of_nodes(spec)):
        ram, hot_ram, host = f"ram{node}", f"{virtio_mem_id(node)}-ram", host_node_of(spec, node)
        if size:
            words += _object(ram_backend(ram, size, host, spec.huge_page_bytes, spec.page_node))
        # Without a node the guest has nowhere to put hot memory.
        words += ["-numa", f"node,nodeid={node}" + (f",memdev={ram}" if size else "")]
        if spec.dimm_bytes is None and most:
            hot = ram_backend(hot_ram, most, host, spec.huge_page_bytes, spec.page_node)
            # The device takes the pages that its guest has, and no others.
            words += _object(hot | {"reserve": False} | ({"prealloc": False} if spec.huge_page_bytes else {}))
    for socket, node in enumerate(guest_numa.cells_of_vcpus(spec) if spec.numa_cells else ()):
        words += ["-numa", f"cpu,node-id={node},socket-id={socket}"]
    for source, row in enumerate(start.distances):
        for target, value in enumerate(row):
            words += ["-numa", f"dist,src={source},dst={target},val={value}"]
    for number in range(_plugged(spec) // spec.dimm_bytes if spec.dimm_bytes else 0):
        backend, device = dimm(spec, number)
        words += _object(backend)
        words += _device(**device)
    return words


def virtio_mem_id(node: int) -> str:
    """The id of the virtio-mem device of a guest node."""
    return f"vmem{node}"


def host_node_of(spec: MachineSpec, node: int) -> int | None:
    """The NUMA node of the host that the memory of a guest node comes from; None: any."""
    return spec.numa_cells[node].host_node if spec.numa_cells else spec.numa_node


def _memory_of_nodes(spec: MachineSpec) -> list[tuple[int, int, int]]:
    """For each guest node the bytes that are built in, and of those that come and go how many it has, and can have."""
    if not spec.numa_cells:
        return [(spec.memory.least, _plugged(spec), spec.hot_memory)]
    least, use, most = (
        guest_numa.memory_by_cell(spec, size) for size in (spec.memory.least, spec.memory.use, spec.memory.most)
    )
    return [(base, now - base, end - base) for base, now, end in zip(least, use, most, strict=True)]


def dimm(spec: MachineSpec, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of object-add and device_add for a DIMM by its number."""
    node = guest_numa.cell_of_dimm(spec, number) if spec.numa_cells else 0
    host, pages = host_node_of(spec, node), spec.huge_page_bytes
    backend = ram_backend(dimm_backend(number), spec.dimm_bytes or 0, host, pages, spec.page_node)
    return backend, {"driver": "pc-dimm", "id": dimm_id(number), "memdev": dimm_backend(number), "node": node}


def dimm_id(number: int) -> str:
    return f"dimm{number}"


def dimm_backend(number: int) -> str:
    return f"dimm{number}-ram"


def ram_backend(
    name: str,
    size: int,
    numa_node: int | None,
    huge_page_bytes: int | None = None,
    page_node: int | None = None,
) -> dict[str, Any]:
    """Arguments of object-add for memory of the host: on ``numa_node`` and no other, or on ``page_node`` first.

    Huge pages are all taken at once: the kernel promises none of a certain NUMA node before they are touched, and ends
    a machine that touches one too many. They come without a mounted file system, so that QEMU needs none in its view.
    """
    node, policy = (page_node, "preferred") if numa_node is None else (numa_node, "bind")
    placed = {} if node is None else {"host-nodes": [node], "policy": policy}
    if huge_page_bytes is None:
        return {"qom-type": "memory-backend-ram", "id": name, "size": size, **placed}
    huge = {"hugetlb": True, "hugetlbsize": huge_page_bytes, "share": True, "prealloc": True}
    huge |= {"prealloc-threads": _CLEARING_THREADS}
    return {"qom-type": "memory-backend-memfd", "id": name, "size": size, **huge, **placed}


def _plugged(spec: MachineSpec) -> int:
    return spec.memory.use - spec.memory.least


# Names without folders: QEMU is started in the machine's folder, which its user need not be able to reach otherwise.
_SOCKETS = [
    "-chardev", "socket,id=qmp0,path=qmp,server=on,wait=off",
    "-mon", "chardev=qmp0,mode=control",
    "-chardev", "socket,id=events0,path=events,server=on,wait=off",  # for who only listens
    "-mon", "chardev=events0,mode=control",
    "-chardev", "socket,id=console0,path=console,server=on,wait=off,logfile=console.log,logappend=on",
    "-serial", "chardev:console0",
    "-chardev", "socket,id=agent0,path=agent,server=on,wait=off",  # for who talks to the guest without a network
    "-serial", "chardev:agent0",
]  # fmt: skip


def _boot(spec: MachineSpec, start: StartContext) -> list[str]:
    if start.kernel is None:
        return []
    append = spec.append
    if "memhp_default_state=" not in append:
        # Memory that the guest's own things may not live on, or it could never be taken back.
        append = f"{append} memhp_default_state=online_movable".strip()
    words = ["-kernel", start.kernel, "-append", append]
    if start.initrd is None:
        return words
    if "," in start.initrd:  # for kernels of the multiboot kind QEMU takes it for several files, which were not checked
        raise Denied("MachineInvalid", f"machine {spec.key}: the path of its initrd, {start.initrd}, has a comma")
    return [*words, "-initrd", start.initrd]


def file_node(name: str, path: str, read_only: bool, *, block: bool) -> dict[str, Any]:
    """Arguments of blockdev-add for a file, or a block device, as it is."""
    driver = "host_device" if block else "file"
    return {"driver": driver, "filename": path, "node-name": name, "read-only": read_only}


def format_node(disk: Disk, name: str, file: str) -> dict[str, Any]:
    """The format is the one that was said; a backing file that the image names is never opened."""
    node = {"driver": disk.format, "file": file, "node-name": name, "read-only": disk.read_only}
    return node | ({"backing": None} if disk.format == "qcow2" else {})


def start_disks(spec: MachineSpec) -> tuple[Disk, ...]:
    """The disks that it starts with: those of its spec, then the one for cloud-init. Its path is the node's."""
    seed = Disk("", "raw", read_only=True)
    return (*spec.disks, seed) if spec.cloud_init is not None else spec.disks


def disk_fd(number: int) -> int:
    """The descriptor under which the disk ``number`` is open when QEMU starts: its user need not own the file."""
    return FIRST_DISK_FD + number


def image_fd(number: int) -> int:
    """The descriptor of the image below the disk ``number``, if that is an overlay."""
    return FIRST_IMAGE_FD + number


def tap_fd(number: int, queue: int = 0) -> int:
    """The descriptor of a queue of the TAP interface of the NIC ``number``."""
    return FIRST_TAP_FD + number * MAX_QUEUES + queue


def _queues(spec: MachineSpec) -> int:
    """One for each CPU that the machine can have, so that they do not wait for each other."""
    return min(whole_cpus(spec.cpus.most), MAX_QUEUES)


def _disk(number: int, disk: Disk, block: bool, place: Mapping[str, object], queues: int) -> list[str]:
    name = f"disk{number}"
    words = ["-add-fd", f"fd={disk_fd(number)},set={number}"]
    words += _blockdev(file_node(f"{name}-file", f"/dev/fdset/{number}", disk.read_only, block=block))
    words += (
        _overlay(number, disk, name) if disk.clone == "overlay" else _blockdev(format_node(disk, name, f"{name}-file"))
    )
    common = {"id": f"{name}-dev", "drive": name, "bus": "pcie.0", **place, "bootindex": number + 1}
    if disk.device == "nvme":
        return words + _device(driver="nvme", serial=name, **common)
    return words + _device(driver="virtio-blk-pci", **common, **{"num-queues": queues})


def _overlay(number: int, disk: Disk, name: str) -> list[str]:
    """An overlay over its image, which is read as the format that was said; what the overlay names is never opened."""
    image, file = f"{name}-image", f"{name}-image-file"
    words = ["-add-fd", f"fd={image_fd(number)},set={_IMAGE_SET + number}"]
    words += _blockdev(file_node(file, f"/dev/fdset/{_IMAGE_SET + number}", True, block=False))
    words += _blockdev(format_node(Disk(disk.path, disk.format, read_only=True), image, file))
    overlay = {"driver": "qcow2", "file": f"{name}-file", "node-name": name, "read-only": False, "backing": image}
    return words + _blockdev(overlay)


def _blockdev(node: Mapping[str, Any]) -> list[str]:
    return ["-blockdev", _json(node)]


def user_backend(name: str, user_net: bool) -> dict[str, Any]:
    """Arguments of netdev_add for a card that needs no interface of the host.

    Its packets end in QEMU's own network stack, which makes connections of them in the name of the host: 10.0.2.2 is
    the host's 127.0.0.1. So it makes none unless the admin allows that. IPv6 goes too, for not each version of that
    stack looks at ``restrict`` there.
    """
    return {"type": "user", "id": name, **({} if user_net else {"restrict": True, "ipv6": False})}


def _nic(number: int, nic: Nic, place: Mapping[str, object], user_net: bool, queues: int) -> list[str]:
    name = f"nic{number}"
    several: dict[str, Any] = {}
    if nic.interface is None:
        backend = user_backend(name, user_net)
    elif queues == 1:
        backend = {"type": "tap", "id": name, "fd": str(tap_fd(number))}
    else:
        backend = {"type": "tap", "id": name, "fds": ":".join(str(tap_fd(number, queue)) for queue in range(queues))}
        # An interrupt for each queue in each direction, one for changes of the card, and one for its control queue.
        several = {"mq": True, "vectors": 2 * queues + 2}
    words = ["-netdev", _json(backend)]
    place = {**place, **several}
    return words + _device(driver=NIC_DRIVERS[nic.model], id=f"{name}-dev", netdev=name, **place)


def _device(**properties: Any) -> list[str]:
    return ["-device", _json(properties)]


def _object(properties: Mapping[str, Any]) -> list[str]:
    return ["-object", _json(properties)]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))
