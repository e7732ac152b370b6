"""What a machine's platform needs of its host: UEFI firmware with variables of its own, and a TPM.

The variables and the content of the TPM lie in the plugin's state, outlive runs of the machine and reboots of the host,
and go with the machine. The TPM is a process (swtpm) that ``spawn`` starts beside QEMU, and that ends with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from devalloc.api.virtual_machine_migration import MigrationFirmware
from devalloc.file_lock import FileLock
from devalloc_machines.qemu import machine_files
from devalloc_machines.qemu.confinement import PathAccess, seen_by_program
from devalloc_machines.qemu.settings import FirmwareFiles, MachineConfig
from devalloc_machines.qemu.spec import MachineSpec
from devalloc_node.errors import Denied, Failed

CODE_FD, VARIABLES_FD, TPM_FD = 400, 401, 402
"""Descriptors under which QEMU inherits the firmware's images and its line to the TPM."""
DESCRIPTORS = (Path("/usr/share/qemu/firmware"), Path("/etc/qemu/firmware"))
"""Where packages, and the admin, describe firmware for QEMU (its docs/interop/firmware.json). A file in a later folder
replaces the one of its name in an earlier folder."""
_MAX_DESCRIPTOR = 1 << 16
_MAX_IMAGE = 64 << 20
"""Bytes; real ones have 4 MiB."""
_QCOW2 = b"QFI\xfb"
_TPM_SECONDS, _POLL_SECONDS = 5.0, 0.02
"""For a TPM to be gone, whose QEMU is gone: the kernel kills it then."""


def firmware_files(spec: MachineSpec, config: MachineConfig) -> FirmwareFiles:
    """The firmware that the admin named for such a machine, or that the host's packages describe.

    Raises Denied (``FirmwareMissing``, retryable; ``FirmwareInvalid``).
    """
    named, option = (
        (config.secure_boot, "--secure-boot-firmware") if spec.secure_boot else (config.uefi, "--uefi-firmware")
    )
    files = named or described_firmware(secure_boot=spec.secure_boot)
    what = "UEFI with Secure Boot" if spec.secure_boot else "UEFI"
    if files is None:
        raise Denied(
            "FirmwareMissing",
            f"machine {spec.key} requires {what}, but this host has no firmware for it: install ovmf (Debian, Ubuntu) "
            f"or edk2-ovmf (Fedora), or name the files with {option} CODE:VARS",
        )
    for file in (files.code, files.variables):
        try:
            with file.open("rb") as image:
                size, start = os.fstat(image.fileno()).st_size, image.read(len(_QCOW2))
        except OSError as error:
            raise Denied(
                "FirmwareMissing",
                f"machine {spec.key} requires {what}, but {file} cannot be read: {error.strerror}; install that "
                f"firmware, or name other files with {option} CODE:VARS",
            ) from None
        if start == _QCOW2 or not 0 < size <= _MAX_IMAGE:
            raise Denied(
                "FirmwareInvalid",
                f"firmware {file} must be a raw image of a flash chip, at most {_MAX_IMAGE >> 20} MiB; name other "
                f"files with {option} CODE:VARS",
            )
    return files


def code_digest(files: FirmwareFiles) -> str:
    """The SHA-256 digest of the code, in hexadecimal digits. Raises Denied (``FirmwareMissing``, retryable)."""
    try:
        with files.code.open("rb") as image:
            return hashlib.file_digest(image, "sha256").hexdigest()
    except OSError as error:
        raise Denied("FirmwareMissing", f"{files.code} cannot be read: {error.strerror}") from None


def identity_here(files: FirmwareFiles) -> MigrationFirmware:
    """Of the firmware of this node. Raises Denied (``FirmwareMissing``, retryable)."""
    try:
        return MigrationFirmware(code_digest=code_digest(files), variables_size=files.variables.stat().st_size)
    except OSError as error:
        raise Denied("FirmwareMissing", f"{files.variables} cannot be read: {error.strerror}") from None


def described_firmware(*, secure_boot: bool, folders: Sequence[Path] = DESCRIPTORS) -> FirmwareFiles | None:
    """The first firmware for such machines, in the order of the names of descriptors; None if there is none."""
    described: dict[str, Path] = {}
    for folder in folders:
        with suppress(OSError):
            described |= {path.name: path for path in folder.iterdir() if path.suffix == ".json"}
    for _, path in sorted(described.items()):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # an empty one hides another
            with path.open("rb") as file:
                content = json.loads(file.read(_MAX_DESCRIPTOR))
            if (files := _files_of(content, secure_boot)) is not None:
                return files
    return None


def _files_of(content: Mapping[str, Any], secure_boot: bool) -> FirmwareFiles | None:
    mapping, features = content["mapping"], set(content["features"])
    machines = [
        machine
        for target in content["targets"]
        if target["architecture"] == "x86_64"
        for machine in target["machines"]
        if "q35" in machine
    ]
    if "uefi" not in content["interface-types"] or mapping["device"] != "flash" or not machines:
        return None
    if mapping.get("mode", "split") != "split":  # no variables, or in one image with the code
        return None
    if secure_boot != ({"secure-boot", "enrolled-keys", "requires-smm"} <= features):
        return None
    if not secure_boot and features & {"requires-smm", "enrolled-keys"}:
        return None
    images = mapping["executable"], mapping["nvram-template"]
    if any(image["format"] != "raw" for image in images):
        return None
    code, variables = (Path(image["filename"]) for image in images)
    return FirmwareFiles(code, variables) if code.is_absolute() and variables.is_absolute() else None


def variable_store(spec: MachineSpec, config: MachineConfig) -> Path:
    """Where the machine's UEFI variables are. With and without Secure Boot it has two stores: keys that one has, the
    other has not."""
    return config.firmware(spec.id) / ("secure-boot.fd" if spec.secure_boot else "uefi.fd")


def make_store(spec: MachineSpec, config: MachineConfig, files: FirmwareFiles) -> Path:
    """The machine's variables, copied from the template unless it has some. Raises Denied (``FirmwareChanged``),
    OSError."""
    store = variable_store(spec, config)
    store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    size = files.variables.stat().st_size
    if store.exists():
        if (there := store.stat().st_size) != size:
            raise Denied(
                "FirmwareChanged",
                f"the UEFI variables of machine {spec.key} ({store}) have {there} bytes, but those of its firmware "
                f"{files.code} have {size}: name the firmware that it was started with before, or delete the machine",
            )
        return store
    part = store.with_suffix(".new")
    machine_files.write_synced(part, files.variables.read_bytes())
    part.rename(store)
    return store


def swtpm_binary(spec: MachineSpec, config: MachineConfig) -> str:
    """The path of swtpm. Raises Denied (``SwtpmMissing``, retryable)."""
    binary = shutil.which(config.swtpm)
    if binary is None:
        raise Denied(
            "SwtpmMissing",
            f"machine {spec.key} requires a TPM, but {config.swtpm} was not found: install swtpm, or name it with "
            "--swtpm",
        )
    return os.path.abspath(binary)


def tpm_plan(spec: MachineSpec, config: MachineConfig, uid: int | None) -> dict[str, Any]:
    """How ``spawn`` starts the TPM: as a user of its own (None: the plugin's), in its folder. Raises Denied
    (``SwtpmMissing``), OSError."""
    binary, folder = swtpm_binary(spec, config), config.tpm(spec.id)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if uid is not None:
        for path in (folder, *folder.iterdir()):
            os.chown(path, uid, uid, follow_symlinks=False)
    sees: list[tuple[str, PathAccess]] = [] if uid is None else seen_by_program(binary, (), folder, config.visible)
    return {"binary": binary, "folder": str(folder), "uid": uid, "fd": TPM_FD, "sees": sees}


def remove(machine_id: str, config: MachineConfig) -> None:
    """Remove the variables and the TPM's content of a machine that has ended. Raises Failed (``TpmRuns``,
    ``HostRefused``)."""
    await_tpm_end(machine_id, config)
    for folder in (config.firmware(machine_id), config.tpm(machine_id)):
        machine_files.remove_folder(folder)


def await_tpm_end(machine_id: str, config: MachineConfig) -> None:
    """Wait until the TPM of a machine whose QEMU has ended is gone too. Raises Failed (``TpmRuns``)."""
    try:
        lock = FileLock.of_folder(config.tpm(machine_id))
    except FileNotFoundError:
        return
    with lock:
        if not lock.lock_within(_TPM_SECONDS, _POLL_SECONDS):
            raise Failed("TpmRuns", f"the TPM of machine {machine_id} was killed but did not end: {lock.holder()}")


def files_on_host(spec: MachineSpec, config: MachineConfig) -> Iterable[str]:
    """What of the host a start of the machine depends on."""
    if spec.firmware == "uefi":
        named = config.secure_boot if spec.secure_boot else config.uefi
        yield from map(str, DESCRIPTORS if named is None else (named.code, named.variables))
    if spec.tpm:
        yield shutil.which(config.swtpm) or config.swtpm
