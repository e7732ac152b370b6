"""How a machine starts: kernel, firmware, disks, TPM, and what cloud-init does."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from devalloc.api.fields import RELATED, ApiModel, Bytes, FieldFault, quote_value, raise_faults, unique_by
from devalloc.api.host_names import CommandLine, Path

MAX_NUMA_NODES = 1024
"""Maximum NUMA nodes of a kernel."""


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
    clone: Literal["overlay", "copy"] | None = None
    """Give the machine a disk of its own that begins as the image, and never change the image. ``overlay``: a qcow2
    image with what the machine writes, over the image, which must stay as it is. ``copy``: all of the image. The
    machine's disk stays until the machine is deleted, or starts without it. Needs disk, the limit of all such disks."""

    @model_validator(mode="after")
    def _clone_is_written(self) -> MachineDisk:
        if self.clone is not None and self.read_only:
            raise_faults(
                [(("clone",), "cannot be combined with readOnly: all machines can read the image itself")], RELATED
            )
        return self


class MachineFirmware(ApiModel):
    """The firmware of the machine."""

    type: Literal["bios", "uefi"] = "bios"
    """``bios``: SeaBIOS. ``uefi``: OVMF, with UEFI variables of its own, which stay until the machine is deleted."""
    secure_boot: bool = False
    """Start only boot loaders and kernels that are signed with keys which the node's firmware template contains, such
    as those of Microsoft. Needs type uefi, and a disk to start from."""

    @model_validator(mode="after")
    def _secure_boot_of_uefi(self) -> MachineFirmware:
        if self.secure_boot and self.type != "uefi":
            raise_faults([(("secureBoot",), "needs type uefi")], RELATED)
        return self


MAX_CLOUD_INIT = 32 * 1024
"""Characters of a text for cloud-init."""


_CLOUD_INIT = re.compile(r"#|Content-Type:|MIME-Version:")


def _user_data(value: object) -> object:
    if isinstance(value, str) and value and _CLOUD_INIT.match(value) is None:
        first = quote_value(value.split("\n", 1)[0])
        raise ValueError(f"must have #cloud-config as its first line, or #! for a script, not {first}")
    return value


class MachineCloudInit(ApiModel):
    """What cloud-init in the guest does at its first start. The node makes a small read-only disk of it (data source
    NoCloud), which is the last disk of the machine. Everyone who can read the machine can read it: give it keys and
    hashes of passwords, and no secrets."""

    user_data: Annotated[
        str,
        BeforeValidator(_user_data),
        Field(min_length=1, max_length=MAX_CLOUD_INIT, json_schema_extra={"pattern": f"^({_CLOUD_INIT.pattern})"}),
    ]
    """``#cloud-config`` with users, keys and packages, a script that begins with ``#!``, or another form of
    cloud-init."""
    network_data: Annotated[str, Field(max_length=MAX_CLOUD_INIT)] = ""
    """The network, in cloud-init's format of version 2 or 1. By default the guest asks each card for an address by
    DHCP."""


class MachineStart(ApiModel):
    """How the machine starts: with a kernel, from its first disk, or with a kernel and disks."""

    kernel: Path | None = None
    """The kernel image, below one of the folders that the node's admin lists."""
    initrd: Path | None = None
    """The initial RAM disk of the kernel, below one of the same folders."""
    append: CommandLine = ""
    """The kernel's command line."""
    firmware: MachineFirmware | None = None
    """The firmware; by default the BIOS."""
    tpm: bool = False
    """Give the guest a TPM 2.0 of its own, whose content stays until the machine is deleted."""
    iommu: bool = False
    """Give the guest an IOMMU, so that it can pass devices on to its own machines."""
    numa_node: Annotated[int, Field(ge=0, lt=MAX_NUMA_NODES)] | None = None
    """The host's NUMA node that provides its memory; any by default."""
    pci_window: Bytes | None = None
    """The 64-bit prefetchable addresses that each of its PCI slots reserves for the memory of a device that is
    plugged in while it runs: at least twice the device's largest BARs. By default enough for every device of its node.
    """
    pinned: bool = False
    """Run each of its CPUs on one CPU of the host that is chosen when it starts, as many as its maximum, all on
    numaNode if that is set. No other pinned machine has these; with a network card with backend warm, its setup names
    them, and setups can share them."""
    cloud_init: MachineCloudInit | None = None
    """What cloud-init in the guest does at its first start."""
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
        elif self.firmware is not None and self.firmware.secure_boot:
            faults.append(
                (
                    ("kernel",),
                    "cannot be combined with firmware.secureBoot: the firmware would start it without checking its "
                    "signature; start from a disk",
                )
            )
        raise_faults(faults, RELATED)
        return self
