"""QEMU 7.2 and a Linux 6.1 that is in its shell two seconds after its start: for scaling and hot-plug.

The guest has busybox, virtio (PCI, network, block, memory) and NVMe; CPUs that appear go online. Its shell listens on
the second serial port, or on the one that ``shell=ttyS0`` on the kernel's command line names.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from deploy.images import debs
from tests.support import guest, images, initramfs
from tests.support.go_build import Progress

RELEASE = "bookworm"
PACKAGES = ("qemu-system-x86", "linux-image-cloud-amd64", "busybox-static", "lz4")
MODULES = ("virtio_pci", "virtio_mem", "virtio_net", "virtio_blk", "virtio_rng", "nvme")
INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /m/*.ko; do insmod $module; done
# What a rule of udev does in a distribution: a CPU that appears goes online.
uevent /bin/online-cpu > /dev/null 2>&1 &
port=$(sed -n 's/.*\\bshell=\\([a-zA-Z0-9]*\\).*/\\1/p' /proc/cmdline)
sh /bin/shell-server ${port:-ttyS1}
poweroff -f
"""
ONLINE_CPU = """\
#!/bin/sh
[ "$SUBSYSTEM" = cpu ] && [ "$ACTION" = add ] && echo 1 > /sys$DEVPATH/online
"""


def image(progress: Progress = lambda line: None) -> images.Image:
    """Raises Unavailable."""
    return images.built("micro", _build, (sys.modules[__name__], initramfs), progress, guest.SERVER)


def _build(folder: Path, final: Path, progress: Progress) -> dict[str, str]:
    versions = debs.unpack(RELEASE, PACKAGES, folder, progress)
    root = folder / "root"
    scripts = {"bin/shell-server": guest.SERVER.encode(), "bin/online-cpu": ONLINE_CPU.encode()}
    modules = images.only(root / "lib/modules")
    (folder / "initrd").write_bytes(initramfs.build(modules, MODULES, root / "bin/busybox", INIT, scripts))
    images.write_kernel(root, folder / "vmlinux")
    # Machines with a TPM need it: started from the ELF file, their guest finds damaged ACPI tables, and no hot-plugged
    # device (QEMU 7.2, SeaBIOS 1.16).
    images.only(root / "boot", "vmlinuz-*").rename(folder / "vmlinuz")
    for spent in ("boot", "lib/modules"):
        shutil.rmtree(root / spent)
    images.write_launcher(folder, final)
    return versions
