"""A host in a box: a Linux 6.12 with Python, udev and QEMU 10, for a machine with an emulated IOMMU and SR-IOV.

The same tree runs the outer QEMU on this machine and is the root of the guest, so that a second QEMU can run in there.
What devalloc needs is installed from wheels for the guest's Python. Its shell listens on the second serial port.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

from deploy.images import debs
from tests.support import guest, images, initramfs
from tests.support.go_build import Progress, Unavailable

RELEASE, PYTHON = "trixie", "3.13"
PACKAGES = (
    *("linux-image-amd64", "qemu-system-x86", "e2fsprogs", "kmod", "udev", "busybox-static", "python3", "iproute2"),
    *("base-files", "base-passwd", "coreutils", "dash", "libc-bin", "libstdc++6", "mount", "util-linux"),
)
BOOT_MODULES = ("crc32c_generic", "ext4", "virtio_blk", "virtio_pci")
MODULES = (
    *BOOT_MODULES,
    *("igb", "igbvf", "nvme", "virtio_net", "9p", "9pnet_virtio"),
    *("vfio_pci", "vfio_iommu_type1"),
)
LEFT_OUT = ("ortools", "numpy", "cel-expr-python")
"""Of what the project needs: solvers of large batches, which the few claims of a test machine do not ask."""
LEFT_OUT_FILES = (
    "boot",
    "usr/bin/qemu-system-i386",
    "usr/bin/qemu-system-x86_64-microvm",
    "usr/lib/x86_64-linux-gnu/perl-base",
    "usr/share/zoneinfo",
)
BOOT_INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /m/*.ko; do insmod $module; done
until [ -b /dev/vda ]; do sleep 0.05; done
mount -t ext4 /dev/vda /new
for folder in dev sys proc; do mount --move /$folder /new/$folder; done
exec switch_root /new /test/init
"""
INIT = """\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:/test/bin HOME=/root LANG=C.UTF-8
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts; mount -t tmpfs run /run; mount -t tmpfs tmp /tmp
mount -t cgroup2 cgroup /sys/fs/cgroup
ip link set lo up
hostname guest
ldconfig  # Python finds the library of udev by its cache
# What the test gives: the project on one disk, and one that outlives a power cut, both known by their labels.
echo "root $(cat /proc/uptime)"
/usr/lib/systemd/systemd-udevd --daemon
udevadm trigger --action=add --subsystem-match=pci --subsystem-match=block
udevadm settle -t 60
echo "udev $(cat /proc/uptime)"
[ -b /dev/disk/by-label/project ] && mount -o ro /dev/disk/by-label/project /project
[ -b /dev/disk/by-label/state ] && mount /dev/disk/by-label/state /var/lib/devalloc
modprobe vfio-pci
/test/bin/sh /test/shell-server ttyS1
sync; echo o > /proc/sysrq-trigger; sleep 10
"""
DEVALLOC = """\
#!/usr/bin/python3
from devalloc.cli.main import main
main()
"""


def image(progress: Progress = lambda line: None) -> images.Image:
    """Raises Unavailable. Beside what every image has: ``root.ext4``, the guest's root, and ``root``, the same tree."""
    return images.built("sriov", _build, (sys.modules[__name__], initramfs), progress, guest.SERVER + _needs_text())


def program(built: images.Image, path: str) -> list[str]:
    """The command that runs a program of the guest on this machine."""
    return debs.program(built.folder / "root", path)


def _build(folder: Path, final: Path, progress: Progress) -> dict[str, str]:
    versions = debs.unpack(RELEASE, PACKAGES, folder, progress)
    root = folder / "root"
    _keep_modules(root)
    kernel_modules = images.only(root / "usr/lib/modules")
    busybox = root / "usr/bin/busybox"
    (folder / "initrd").write_bytes(initramfs.build(kernel_modules, BOOT_MODULES, busybox, BOOT_INIT, {}))
    shutil.move(images.only(root / "boot", "vmlinuz-*"), folder / "vmlinuz")
    for spent in LEFT_OUT_FILES:
        path = root / spent
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    progress("downloading wheels for the guest's Python")
    _install_wheels(root / "usr/lib/python3/dist-packages")
    _furnish(root)
    _run([*debs.program(root, "usr/bin/python3.13"), "-I", "-m", "compileall", "-q", *_python_folders(root)], root)
    images.write_launcher(folder, final)
    progress("writing the disk of the guest")
    make_disk(root, root, folder / "root.ext4", "root", mebibytes=900, journal=False)
    return versions


def make_disk(tools: Path, content: Path | None, disk: Path, label: str, *, mebibytes: int, journal: bool) -> None:
    """An ext4 file system in a sparse file, filled without root. ``tools``: the tree whose mke2fs does it."""
    disk.unlink(missing_ok=True)
    features = [] if journal else ["-O", "^has_journal"]
    filled = ["-d", str(content)] if content else []
    mke2fs = debs.program(tools, "usr/sbin/mke2fs")
    _run(
        [
            *mke2fs,
            "-q",
            "-t",
            "ext4",
            *features,
            "-m",
            "0",
            "-L",
            label,
            "-E",
            "root_owner=0:0",
            *filled,
            str(disk),
            f"{mebibytes}M",
        ],
        tools,
    )


def _keep_modules(root: Path) -> None:
    """Remove the kernel modules that no test uses: they are half of the disk."""
    folder = images.only(root / "usr/lib/modules")
    needed = set(initramfs.modules(folder, MODULES))
    for path in folder.rglob("*.ko*"):
        if path not in needed:
            path.unlink()
    loader, *rest = debs.program(root, "usr/bin/kmod")
    _run([loader, "--argv0", "depmod", *rest, "-b", str(root), "-m", "usr/lib/modules", folder.name], root)


def _install_wheels(target: Path) -> None:
    platforms = [
        word
        for level in ("2_28_x86_64", "2_17_x86_64", "2014_x86_64")
        for word in ("--platform", f"manylinux_{level}".replace("_2014", "2014"))
    ]
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "--python-version", PYTHON]
    _run([*command, "--only-binary", ":all:", "--no-compile", *platforms, *_needs()], target.parent)


def _needs() -> list[str]:
    """What the project says it needs, for all that runs on a node."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["node"], *extras["solver"]]
    return [need for need in wanted if re.split(r"[<>=~! ]", need)[0] not in LEFT_OUT]


def _needs_text() -> str:
    return "\n".join(_needs())


def _python_folders(root: Path) -> list[str]:
    return [str(root / "usr/lib/python3.13"), str(root / "usr/lib/python3/dist-packages")]


def _furnish(root: Path) -> None:
    """The scripts of the guest, the folders it mounts on, and the users that packages would have made."""
    for folder in ("test/bin", "project", "var/lib/devalloc", "root", "proc", "sys", "dev", "run", "tmp", "mnt/host"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    scripts = {"test/init": INIT, "test/shell-server": guest.SERVER, "usr/bin/devalloc": DEVALLOC}
    for path, text in scripts.items():
        (root / path).write_text(text)
        (root / path).chmod(0o755)
    applets = subprocess.run([root / "usr/bin/busybox", "--list"], capture_output=True, text=True, check=True)
    for applet in applets.stdout.split():
        (root / "test/bin" / applet).symlink_to("/usr/bin/busybox")
    groups = (
        "kvm",
        "input",
        "render",
        "sgx",
        "tape",
        "tty",
        "disk",
        "kmem",
        "video",
        "audio",
        "cdrom",
        "dialout",
        "floppy",
        "lp",
    )
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\n" + "".join(f"{name}:x:{n}:\n" for n, name in enumerate(groups, 100)))
    (root / "etc/hostname").write_text("guest\n")
    paths = "/project", "/project/solver", "/project/node-plugin"
    (root / "usr/lib/python3/dist-packages/project.pth").write_text("\n".join(paths) + "\n")
    # Files of the guest belong to who has built it. If that is not root, mount and others would run as that user.
    for path in root.rglob("*"):
        if not path.is_symlink() and (mode := path.stat().st_mode) & (stat.S_ISUID | stat.S_ISGID):
            path.chmod(stat.S_IMODE(mode) & ~(stat.S_ISUID | stat.S_ISGID))
    if not (root / "usr/bin/sh").exists():
        (root / "usr/bin/sh").symlink_to("dash")
    if not (root / "usr/bin/python3").exists():
        (root / "usr/bin/python3").symlink_to("python3.13")


def _run(command: list[str], root: Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        words = " ".join((result.stderr or result.stdout).split())[-400:]
        raise Unavailable(f"building {root}: {Path(command[0]).name} failed: {words}")
