"""UEFI variables and the content of a TPM, of a machine that moves while it runs.

QEMU carries both: the flash chips are memory of the machine, and it reads the TPM's state from one swtpm and gives it
to the other. The target begins with a copy of the template and an empty TPM. swtpm writes what it gets to its folder
at once, but QEMU writes the variables to their file only when the CPUs run. So the target stores them before that
(``store``), and the machine is handed over only when it says that it has: whatever ends then, the target can start the
machine again with what its guest had.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from devalloc.api.virtual_machine_migration import MigrationFirmware
from devalloc_machines.qemu import firmware, machine_files
from devalloc_machines.qemu.qmp import Monitor
from devalloc_machines.qemu.settings import MachineConfig
from devalloc_machines.qemu.spec import MachineSpec
from devalloc_node.deadline import Deadline
from devalloc_node.errors import Denied, Failed

if TYPE_CHECKING:
    from devalloc_machines.qemu.records import MachineRecord

RECEIVED = "received-variables"
"""In the machine's folder, while the variables that it came with are stored."""
_FLASH_END = 1 << 32
"""The address below which the flash chips are: the code, and below it the variables."""
_SIGNATURE = slice(40, 44)
"""Of a firmware volume (UEFI Platform Initialization, volume 3): what tells variables from anything else."""


def is_carried(spec: MachineSpec) -> bool:
    """Whether a machine has any of it."""
    return spec.firmware == "uefi" or spec.tpm


def identity_of(record: MachineRecord, config: MachineConfig) -> MigrationFirmware | None:
    """The firmware that a machine was started with; None without UEFI. Raises Failed (``HostUnreadable``)."""
    if record.spec.firmware != "uefi":
        return None
    store = firmware.variable_store(record.spec, config)
    try:
        return MigrationFirmware(code_digest=record.firmware, variables_size=store.stat().st_size)
    except OSError as error:
        raise Failed("HostUnreadable", f"cannot read {store}: {error.strerror}") from None


def check_same(spec: MachineSpec, config: MachineConfig, offered: MigrationFirmware | None) -> None:
    """Whether this node has the firmware with which a machine runs elsewhere: its guest runs the code that comes with
    it, and after its next start that of this node. Raises Denied: ``OfferInvalid``, ``FirmwareDiffers``, and what
    ``firmware_files`` does."""
    if (offered is None) != (spec.firmware != "uefi"):
        raise Denied("OfferInvalid", f"machine {spec.key} cannot be received: the source offers another firmware")
    if offered is None:
        return
    files = firmware.firmware_files(spec, config)
    if firmware.identity_here(files) != offered:
        raise Denied(
            "FirmwareDiffers",
            f"machine {spec.key} cannot move here while it runs: it was started with other firmware than {files.code} "
            "and its variables; install the same version on both nodes, or restart the machine after an update",
        )


def check_nothing_left(spec: MachineSpec, config: MachineConfig) -> None:
    """Whether nothing is here that would be mixed with what is to be received, or overwritten by it. Raises Denied
    (``FirmwareRemains``)."""
    for folder in (config.firmware(spec.id), config.tpm(spec.id)) if is_carried(spec) else ():
        if folder.exists():
            raise Denied(
                "FirmwareRemains",
                f"machine {spec.key} cannot move here while it runs: this node has UEFI variables or a TPM of a "
                f"machine of that name already; remove {folder} if no one needs it",
            )


def store(record: MachineRecord, config: MachineConfig, monitor: Monitor, deadline: Deadline) -> None:
    """Have what was received on the disk of this node. Only when QEMU has all of the machine, and its CPUs do not run.
    May be done again. Raises NodeError."""
    spec = record.spec
    try:
        if spec.firmware == "uefi":
            variables = firmware.variable_store(spec, config)
            content = _received_variables(record, config, monitor, deadline)
            _write(variables, content)
        if spec.tpm:
            _sync_tpm(config.tpm(spec.id))
    except OSError as error:
        raise Failed("HostUnwritable", f"cannot store the firmware of machine {spec.key}: {error}") from None


def _received_variables(record: MachineRecord, config: MachineConfig, monitor: Monitor, deadline: Deadline) -> bytes:
    """The content of the second flash chip. Raises NodeError, OSError."""
    spec = record.spec
    size = firmware.variable_store(spec, config).stat().st_size
    code = firmware.firmware_files(spec, config).code.stat().st_size
    folder = os.open(config.folder(spec.id), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with suppress(FileNotFoundError):  # of a call that was cut off
            os.unlink(RECEIVED, dir_fd=folder)
        what = {"val": _FLASH_END - code - size, "size": size, "filename": RECEIVED}
        monitor.execute("pmemsave", what, deadline=deadline)
        try:
            return _read(folder, size, spec.key)
        finally:
            os.unlink(RECEIVED, dir_fd=folder)
    finally:
        os.close(folder)


def _read(folder: int, size: int, key: str) -> bytes:
    """Of a file that QEMU wrote, which a guest may have taken over. Raises Failed, OSError."""
    fd = os.open(RECEIVED, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(fd, "rb") as file:
        info = os.fstat(fd)
        content = file.read(size) if stat.S_ISREG(info.st_mode) and info.st_size == size else b""
    if len(content) != size:
        raise Failed("MigrationFailed", f"QEMU of machine {key} did not write the UEFI variables that it received")
    return content


def _write(variables: Path, content: bytes) -> None:
    """In place: QEMU has the file open. Raises Failed, OSError."""
    fd = os.open(variables, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "r+b") as file:
        if file.read(_SIGNATURE.stop)[_SIGNATURE] != content[_SIGNATURE]:
            raise Failed("MigrationFailed", f"what was received for {variables} are not UEFI variables")
        file.seek(0)
        file.write(content)
        file.flush()
        os.fsync(fd)
    machine_files.sync_folder(variables.parent)


def _sync_tpm(folder: Path) -> None:
    """Raises Failed, OSError."""
    states = [path for path in folder.iterdir() if path.name.endswith(".permall")]
    if not any(path.stat().st_size for path in states):
        raise Failed("MigrationFailed", f"the TPM did not write what it received to {folder}")
    for path in states:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    machine_files.sync_folder(folder)
