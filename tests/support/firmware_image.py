"""UEFI firmware, a TPM, and disks to start from: what Debian packages for machines with Secure Boot.

- ``root``: the packages' files, with OVMF, its templates, and QEMU's descriptors of them
- ``swtpm``: an executable with everything it needs
- ``initrd``: as in the micro image, and it mounts the UEFI variables
- ``vmlinuz``: Debian's kernel, with its signature cut off
- ``bare.img``: a disk with that kernel where firmware looks for a boot loader
- ``signed.img``: a disk with Debian's shim (signed by Microsoft), GRUB and kernel (signed by Debian). GRUB tries the
  unsigned kernel first; the kernel's command line has ``kernel=unsigned`` or ``kernel=signed``
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.images import debs
from tests.support import guest, images, initramfs, micro_image
from tests.support.go_build import Progress, Unavailable
from tests.support.qemu import MICRO_APPEND

RELEASE = "bookworm"
PACKAGES = (
    *("ovmf", "swtpm", "shim-signed", "grub-efi-amd64-signed", "linux-image-cloud-amd64"),
    *("mtools", "busybox-static"),
)
MODULES = ("efivarfs", *micro_image.MODULES)
INIT = micro_image.INIT.replace("port=", "mount -t efivarfs vars /sys/firmware/efi/efivars\nport=", 1)
GRUB_CONFIG = f"""\
search --file /signed --set=root
for kernel in unsigned signed; do
  if linux /$kernel {MICRO_APPEND} kernel=$kernel; then
    initrd /initrd
    boot
  fi
done
"""
_MIB = 1 << 20
_SHIM, _GRUB = "usr/lib/shim/shimx64.efi.signed", "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed"
_LOADER = "EFI/BOOT/BOOTX64.EFI"
_NEEDED = ("lib", "lib64", "usr/lib/x86_64-linux-gnu", "usr/bin/swtpm", "usr/share/OVMF", "usr/share/qemu")


def image(progress: Progress = lambda line: None) -> images.Image:
    """Raises Unavailable."""
    sources = (sys.modules[__name__], initramfs, micro_image)
    return images.built("firmware", _build, sources, progress, guest.SERVER + MICRO_APPEND)


def _build(folder: Path, final: Path, progress: Progress) -> dict[str, str]:
    versions = debs.unpack(RELEASE, PACKAGES, folder, progress)
    root = folder / "root"
    scripts = {"bin/shell-server": guest.SERVER.encode(), "bin/online-cpu": micro_image.ONLINE_CPU.encode()}
    initrd = initramfs.build(images.only(root / "lib/modules"), MODULES, root / "bin/busybox", INIT, scripts)
    (folder / "initrd").write_bytes(initrd)
    signed = images.only(root / "boot", "vmlinuz-*").read_bytes()
    unsigned = without_signature(signed)
    (folder / "vmlinuz").write_bytes(unsigned)
    loaders = {_LOADER: (root / _SHIM).read_bytes(), "EFI/BOOT/grubx64.efi": (root / _GRUB).read_bytes()}
    progress("writing disks to start from")
    files = {"EFI/debian/grub.cfg": GRUB_CONFIG.encode(), "signed": signed, "unsigned": unsigned, "initrd": initrd}
    _write_disk(root, folder / "signed.img", loaders | files)
    _write_disk(root, folder / "bare.img", {_LOADER: unsigned})
    _keep(root)
    _write_swtpm(folder, final)
    return versions


def without_signature(kernel: bytes) -> bytes:
    """An EFI program without what its vendor has signed it with: the last part of the file, and the entry that names
    it."""
    start = int.from_bytes(kernel[0x3C:0x40], "little")
    entry = start + 24 + 112 + 4 * 8
    at, size = (int.from_bytes(kernel[entry + part : entry + part + 4], "little") for part in (0, 4))
    if kernel[start : start + 4] != b"PE\0\0" or not size or at + size != len(kernel):
        raise Unavailable("the kernel has no signature at its end")
    return kernel[:entry] + bytes(8) + kernel[entry + 8 : at]


def _write_disk(root: Path, disk: Path, files: Mapping[str, bytes]) -> None:
    """A FAT file system, as firmware reads it."""
    size = sum(map(len, files.values())) // _MIB + 8
    scratch = disk.with_suffix(".file")

    def mtools(*words: str) -> None:
        command = [*debs.program(root, "usr/bin/mtools"), "-c", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "MTOOLS_SKIP_CHECK": "1"}
        )
        if done.returncode:
            raise Unavailable(f"cannot write {disk}: {done.stderr.strip()}")

    mtools("mformat", "-C", "-i", str(disk), "-T", str(size * _MIB // 512), "::")
    for above in dict.fromkeys(str(parent) for path in files for parent in reversed(Path(path).parents[:-1])):
        mtools("mmd", "-i", str(disk), f"::{above}")
    for path, content in files.items():
        scratch.write_bytes(content)
        mtools("mcopy", "-i", str(disk), str(scratch), f"::{path}")
    scratch.unlink()


def _keep(root: Path) -> None:
    """Remove all that tests do not use."""
    shutil.rmtree(root / "lib/modules")
    needed = [root / path for path in _NEEDED]
    for path in sorted(root.rglob("*"), reverse=True):
        if any(path.is_relative_to(each) or each.is_relative_to(path) for each in needed):
            continue
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def _write_swtpm(folder: Path, final: Path) -> None:
    own = folder / "root/usr/lib/x86_64-linux-gnu/swtpm"
    command = debs.program(folder / "root", "usr/bin/swtpm")
    command[2] += f":{own}"
    words = shlex.join(word.replace(str(folder), str(final)) for word in command)
    launcher = folder / "swtpm"
    launcher.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    launcher.chmod(0o755)
