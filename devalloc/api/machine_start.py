"""How a VirtualMachine is started or adopted: its kernel, disks and emulated network cards, or QEMU's socket."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from devalloc.api.fields import RELATED, ApiModel, FieldFault, Mac, pattern_schema, quote_value, raise_faults, unique_by
from devalloc.api.machine_bounds import Bytes, BytesPerSecond

MAX_NUMA_NODES = 1024
"""Maximum NUMA nodes of a kernel."""
MAX_LINE = 2047
"""Maximum characters of a kernel's command line."""
MAX_SOCKET_PATH = 107
"""Maximum bytes of a socket's path."""

# Components other than "." and "..", in a syntax that RE2 supports, too.
_BLANK = r"\x00-\x1f\x7f"
_COMPONENT = rf"([^/.{_BLANK}][^/{_BLANK}]*|\.[^/.{_BLANK}][^/{_BLANK}]*|\.\.[^/{_BLANK}]+)"
_PATH = re.compile(rf"(/{_COMPONENT})+")
_LINE = re.compile(rf"[^{_BLANK}]*")
_INTERFACE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,14}", re.ASCII)


def _path(value: object) -> object:
    if not isinstance(value, str) or len(value) > 4096 or _PATH.fullmatch(value) is None:
        raise ValueError(f"must be an absolute path without '.', '..' and doubled '/', not {quote_value(value)}")
    return value


def _socket(value: object) -> object:
    if isinstance(value, str) and len(value.encode("utf-8", "replace")) > MAX_SOCKET_PATH:
        raise ValueError(f"must have at most {MAX_SOCKET_PATH} bytes, the maximum for a socket's path")
    return _path(value)


def _line(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_LINE:
        raise ValueError(f"must have at most {MAX_LINE} characters, but has {len(value)}")
    if isinstance(value, str) and _LINE.fullmatch(value) is None:
        raise ValueError("must be one line without control characters")
    return value


def _interface(value: object) -> object:
    if not isinstance(value, str) or _INTERFACE.fullmatch(value) is None:
        raise ValueError(f"must be the name of a network interface (at most 15 characters), not {quote_value(value)}")
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
    """A path below one of the folders that the node's admin lists."""
    format: Literal["raw", "qcow2"]
    """The image's format. It is never guessed: a guest can make a raw image look like another format."""
    read_only: bool = False
    """Whether the guest can only read it."""
    device: Literal["virtio", "nvme"] = "virtio"
    """The type of controller that the guest sees."""


class MachineStart(ApiModel):
    """How the machine starts: with a kernel, from its first disk, or with a kernel and disks."""

    kernel: Path | None = None
    """The kernel image, below one of the folders that the node's admin lists."""
    initrd: Path | None = None
    """The initial RAM disk of the kernel, below one of the same folders."""
    append: CommandLine = ""
    """The kernel's command line."""
    iommu: bool = False
    """Give the guest an IOMMU, so that it can pass devices on to its own machines."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """The host's NUMA node that provides its memory; any by default."""
    pci_window: Bytes | None = None
    """The 64-bit prefetchable addresses that each of its PCI slots reserves for the memory of a device that is
    plugged in while it runs: at least twice the device's largest BARs. By default enough for every device of its node.
    """
    pinned: bool = False
    """Run its CPUs only on host CPUs that are chosen for it when it starts, as many as its maximum. Needs a network
    card with backend warm, whose setup names the CPUs."""
    disks: Annotated[list[MachineDisk], Field(max_length=16), AfterValidator(unique_by("path"))] = Field(
        default_factory=list
    )
    """The disks, in the order in which the guest sees them."""

    @model_validator(mode="after")
    def _something_to_boot(self) -> MachineStart:
        faults: list[FieldFault] = []
        if self.kernel is None:
            if not self.disks:
                faults.append((("kernel",), "is required without disks: there is nothing to start"))
            if self.initrd is not None:
                faults.append((("initrd",), "needs a kernel"))
            if self.append:
                faults.append((("append",), "needs a kernel"))
        raise_faults(faults, RELATED)
        return self


class MachineAdopt(ApiModel):
    """A QEMU that is already running."""

    qmp_socket: SocketPath
    """Its QMP socket, below one of the folders that the node's admin lists, and owned by the plugin's user."""


class MachineNic(ApiModel):
    """An emulated network card, in addition to the devices of claims."""

    model: Literal["virtio", "e1000e"] = "virtio"
    """The card that the guest sees."""
    backend: Literal["user", "tap", "warm"] = "user"
    """``user``: through the host's own sockets; nothing can reach the guest from outside. ``tap``: a TAP interface.
    ``warm``: the TAP interface of one of the node's warm setups, in whose network namespace the machine runs."""
    interface: InterfaceName | None = None
    """The TAP interface, which must exist."""
    bandwidth: BytesPerSecond | None = None
    """The rate in each direction that its node reserves for it. By default it shares the unreserved bandwidth.
    """
    mac: Mac | None = None
    """A unicast MAC address; by default one that is derived from the machine's identity and never changes."""

    @model_validator(mode="after")
    def _interface_of_tap(self) -> MachineNic:
        if self.backend == "tap" and self.interface is None:
            raise_faults([(("interface",), "is required with backend tap")], RELATED)
        if self.backend != "tap" and self.interface is not None:
            raise_faults([(("interface",), "needs backend tap")], RELATED)
        return self
