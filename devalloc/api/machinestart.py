"""How a VirtualMachine is started or found: its kernel, its disks and emulated network cards, where QEMU listens."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from devalloc.api.fields import (
    RELATED,
    ApiModel,
    Fault,
    Mac,
    pattern_schema,
    refuse,
    shown,
    unique_by,
)
from devalloc.api.machinebounds import PositiveAmount

MAX_NUMA_NODES = 1024
"""That a kernel can tell apart."""
MAX_LINE = 2047
"""Characters of a kernel's command line."""
MAX_SOCKET_PATH = 107
"""Bytes of a path that a socket can be bound to."""

# Components but "." and "..", written so that RE2 reads it too.
_BLANK = r"\x00-\x1f\x7f"
_COMPONENT = rf"([^/.{_BLANK}][^/{_BLANK}]*|\.[^/.{_BLANK}][^/{_BLANK}]*|\.\.[^/{_BLANK}]+)"
_PATH = re.compile(rf"(/{_COMPONENT})+")
_LINE = re.compile(rf"[^{_BLANK}]*")
_INTERFACE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,14}", re.ASCII)


def _path(value: object) -> object:
    if not isinstance(value, str) or len(value) > 4096 or _PATH.fullmatch(value) is None:
        raise ValueError(f"must be an absolute path without '.', '..' and doubled '/', not {shown(value)}")
    return value


def _socket(value: object) -> object:
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) > MAX_SOCKET_PATH:
        raise ValueError(f"must have at most {MAX_SOCKET_PATH} bytes, which is what a socket's path can have")
    return _path(value)


def _line(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_LINE:
        raise ValueError(f"must have at most {MAX_LINE} characters, and has {len(value)}")
    if isinstance(value, str) and _LINE.fullmatch(value) is None:
        raise ValueError("must be one line without control characters")
    return value


def _interface(value: object) -> object:
    if not isinstance(value, str) or _INTERFACE.fullmatch(value) is None:
        raise ValueError(f"must be the name of a network interface (at most 15 characters), not {shown(value)}")
    return value


_PATH_WORDS = "must be an absolute path without '.', '..' and doubled '/'"
Path = Annotated[
    str,
    BeforeValidator(_path),
    pattern_schema(_PATH.pattern, _PATH_WORDS, maxLength=4096),
]
SocketPath = Annotated[
    str,
    BeforeValidator(_socket),
    pattern_schema(_PATH.pattern, _PATH_WORDS, maxLength=MAX_SOCKET_PATH),
]
CommandLine = Annotated[
    str,
    BeforeValidator(_line),
    pattern_schema(_LINE.pattern, "must be one line without control characters", maxLength=MAX_LINE),
]
InterfaceName = Annotated[
    str,
    BeforeValidator(_interface),
    pattern_schema(_INTERFACE.pattern, "must be the name of a network interface", maxLength=15),
]


class MachineDisk(ApiModel):
    """A disk image or block device of the host."""

    path: Path
    """Below one of the folders that the node's admin lists."""
    format: Literal["raw", "qcow2"]
    """How the image is read. It is never guessed: a guest can make a raw image look like another one."""
    read_only: bool = False
    device: Literal["virtio", "nvme"] = "virtio"
    """The controller that the guest sees."""


class MachineStart(ApiModel):
    """How the machine is started: with a kernel, from its first disk, or with a kernel and disks."""

    kernel: Path | None = None
    """The kernel's image, below one of the folders that the node's admin lists."""
    initrd: Path | None = None
    append: CommandLine = ""
    """The kernel's command line."""
    iommu: bool = False
    """Gives the guest an IOMMU, so that it can pass devices on to machines of its own."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """The host's NUMA node that its memory comes from; any where nothing is said."""
    pci_window: PositiveAmount | None = None
    """Bytes of 64-bit prefetchable addresses that each of its PCI slots reserves for the memory of a device that is
    plugged in while it runs: at least twice the device's largest BARs. As much as any device of its node needs where
    nothing is said."""
    pinned: bool = False
    """Its CPUs run on CPUs of the host that are chosen for it when it starts, as many as it can have, and on no others.
    Takes a network card with backend warm, whose setup names them."""
    disks: Annotated[list[MachineDisk], Field(max_length=16), AfterValidator(unique_by("path"))] = Field(
        default_factory=list
    )

    @model_validator(mode="after")
    def _something_to_boot(self) -> MachineStart:
        faults: list[Fault] = []
        if self.kernel is None:
            if not self.disks:
                faults.append((("kernel",), "is required where there are no disks: there is nothing to start"))
            if self.initrd is not None:
                faults.append((("initrd",), "goes with a kernel"))
            if self.append:
                faults.append((("append",), "goes with a kernel"))
        refuse(faults, RELATED)
        return self


class MachineAdopt(ApiModel):
    """A QEMU that runs already."""

    qmp_socket: SocketPath
    """Its QMP socket, below one of the folders that the node's admin lists, and of the plugin's own user."""


class MachineNic(ApiModel):
    """An emulated network card, beside the devices of claims."""

    model: Literal["virtio", "e1000e"] = "virtio"
    backend: Literal["user", "tap", "warm"] = "user"
    """``user``: through the host's own sockets, nothing reaches the guest from outside. ``tap``: an interface.
    ``warm``: the TAP interface of one of the node's warm setups, in whose network namespace the machine lives."""
    interface: InterfaceName | None = None
    """The tap interface, which exists already."""
    bandwidth: PositiveAmount | None = None
    """Bytes per second in each direction that are kept for it of what its node has. Where nothing is said it takes its
    part of what nobody has kept."""
    mac: Mac | None = None
    """A unicast MAC address; where nothing is said one that is made of who the machine is, always the same."""

    @model_validator(mode="after")
    def _interface_of_tap(self) -> MachineNic:
        if self.backend == "tap" and self.interface is None:
            refuse([(("interface",), "is required with backend tap")], RELATED)
        if self.backend != "tap" and self.interface is not None:
            refuse([(("interface",), "goes with backend tap only")], RELATED)
        return self
