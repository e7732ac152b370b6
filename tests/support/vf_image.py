"""The guest of a machine inside a test host: busybox, and a kernel that has a driver of virtual functions.

Debian's kernel for clouds, which the other guests have, is smaller and has none. This is a Linux 6.1 as well, for CPUs
that come and go. As soon as it has its card, it is at 192.0.2.2. What CPUs and memory it has it says on its console.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from deploy.images import debs
from tests.support import images, initramfs, micro_image
from tests.support.go_build import Progress

ADDRESS = "192.0.2.2"
PACKAGES = ("linux-image-amd64", "busybox-static")
MODULES = ("virtio_pci", "virtio_mem", "igbvf")
INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /m/*.ko; do insmod $module; done
uevent /bin/online-cpu > /dev/null 2>&1 &
until [ -e /sys/class/net/eth0 ]; do sleep 0.2; done
ip addr add {ADDRESS}/24 dev eth0; ip link set eth0 up
echo "the card of this machine is up"
while :; do
    has="CPUs $(cat /sys/devices/system/cpu/online), $(sed -n 's/MemTotal: *//p' /proc/meminfo)"
    [ "$has" = "$had" ] || echo "$has"
    had=$has
    sleep 5
done
"""


def image(progress: Progress = lambda line: None) -> images.Image:
    """Raises Unavailable. It has no QEMU: any will do."""
    return images.built("vf", _build, (sys.modules[__name__], micro_image, initramfs), progress)


def _build(folder: Path, final: Path, progress: Progress) -> dict[str, str]:
    versions = debs.unpack(micro_image.RELEASE, PACKAGES, folder, progress)
    root = folder / "root"
    modules = images.only(root / "lib/modules")
    scripts = {"bin/online-cpu": micro_image.ONLINE_CPU.encode()}
    (folder / "initrd").write_bytes(initramfs.build(modules, MODULES, root / "bin/busybox", INIT, scripts))
    images.only(root / "boot", "vmlinuz-*").rename(folder / "vmlinuz")
    shutil.rmtree(root)
    return versions
