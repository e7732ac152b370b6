"""Where the tests' machines come from: images, built once from Debian packages, without root, into a cache outside the
tree.

Run this module to build ahead of the tests: ``python -m tests.support.images``. A folder of the cache carries a digest
of all that makes it; which versions of the packages it holds stands in its ``versions.json``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from deploy.images import debs
from tests.support.go_build import Progress, Unavailable, cache_folder, locked

Build = Callable[[Path, Path, Progress], dict[str, str]]
"""Fills a folder that will stand at the second path once it is done; returns versions by package."""


@dataclass(frozen=True)
class Image:
    """What a test machine starts from."""

    folder: Path

    @property
    def qemu(self) -> Path:
        """An executable that is qemu-system-x86_64, with everything it needs."""
        return self.folder / "qemu"

    @property
    def kernel(self) -> Path:
        elf = self.folder / "vmlinux"
        return elf if elf.exists() else self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"

    @property
    def versions(self) -> dict[str, str]:
        """Of the packages."""
        return dict(json.loads((self.folder / "versions.json").read_text()))


def built(name: str, build: Build, modules: Sequence[ModuleType], progress: Progress, also: str = "") -> Image:
    """The image, built where it is not there. ``modules`` and ``also``: what makes it; a change makes a new one."""
    if os.uname().machine != "x86_64":
        raise Unavailable(f"test machines are of x86_64, and this machine is {os.uname().machine}")
    folder = image_folder(name, modules, also)
    cache = folder.parent
    with locked(cache):
        if not folder.exists():
            building = cache / f"{name}.building"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            versions = build(building, folder, progress)
            (building / "versions.json").write_text(json.dumps(versions, indent=1))
            building.rename(folder)
            progress(f"built {folder}")
    return Image(folder)


def image_folder(name: str, modules: Sequence[ModuleType], also: str = "") -> Path:
    """Where the image is, or will be."""
    sources = [inspect.getsource(module) for module in (*modules, debs)]
    digest = hashlib.sha256("\n".join([*sources, also]).encode()).hexdigest()[:12]
    return cache_folder() / "images" / f"{name}-{digest}"


def write_launcher(folder: Path, final: Path) -> None:
    """Make ``qemu`` start the QEMU below ``folder``/root once that stands at ``final``."""
    command = [
        word.replace(str(folder), str(final)) for word in debs.program(folder / "root", "usr/bin/qemu-system-x86_64")
    ]
    firmware = [str(final / "root/usr" / part) for part in ("share/qemu", "share/seabios", "lib/ipxe/qemu")]
    modules = final / "root/usr/lib/x86_64-linux-gnu/qemu"
    words = [*command, *(word for part in firmware for word in ("-L", part))]
    launcher = folder / "qemu"
    launcher.write_text(
        f'#!/bin/sh\nexport QEMU_MODULE_DIR={shlex.quote(str(modules))}\nexec {shlex.join(words)} "$@"\n'
    )
    launcher.chmod(0o755)


def write_kernel(root: Path, kernel: Path) -> None:
    """Write the kernel of an unpacked package, of the kind that is compressed with LZ4, as the ELF file within it.

    QEMU starts it by its PVH entry. An emulated CPU takes a fifth of a boot to decompress a kernel. ``root`` also holds
    the package lz4. Raises Unavailable.
    """
    image = only(root / "boot", "vmlinuz-*").read_bytes()
    # Documentation/arch/x86/boot.rst: setup_sects; payload_offset and payload_length. The last word is the size.
    begin = (image[0x1F1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    payload = image[begin : begin + struct.unpack_from("<I", image, 0x24C)[0]]
    lz4 = [*debs.program(root, "usr/bin/lz4"), "-d", "-c"]
    with kernel.open("wb") as file:
        done = subprocess.run(lz4, input=payload[:-4], stdout=file, stderr=subprocess.PIPE, check=False)
    size = struct.unpack("<I", payload[-4:])[0]
    if done.returncode or kernel.stat().st_size != size or kernel.read_bytes()[:4] != b"\x7fELF":
        raise Unavailable(f"no ELF file of {size} bytes in the kernel below {root}: {done.stderr.decode().strip()}")


def only(folder: Path, pattern: str = "*") -> Path:
    """The one file that a pattern matches."""
    matches = sorted(folder.glob(pattern))
    if len(matches) != 1:
        raise Unavailable(f"{folder} holds {len(matches)} of {pattern}, not one")
    return matches[0]


if __name__ == "__main__":
    from tests.support import firmware_image, kernel_modules, micro_image, python_image, sriov_image

    try:
        for module in (micro_image, firmware_image, python_image, sriov_image):
            image = module.image(lambda line: print(line, file=sys.stderr))
            print(image.folder)
        print(kernel_modules.folder(image, lambda line: print(line, file=sys.stderr)))
    except Unavailable as reason:
        sys.exit(f"no test machines: {reason}")
