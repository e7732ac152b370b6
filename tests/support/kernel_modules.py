"""Kernel modules that the test host needs and that its Debian kernel does not have: the kernel's own sample of a driver
for mediated devices, ``mtty``; and ``vfio`` with the reports of memory that devices have written. A migration asks for
them, and Debian leaves them out with IOMMUFD. They are built against the headers of exactly the kernel of the host.

Headers, source and compiler come from Debian packages, as the host does, and run with the loader and the libraries of
their own release: this machine needs no compiler. Only the modules stay, in the cache, by the kernel's release.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from deploy.images import debs
from tests.support import sriov_image
from tests.support.go_build import Progress, Unavailable, cache_folder, locked
from tests.support.images import Image, only
from tests.support.qemu import Machine

SAMPLE = "samples/vfio-mdev/mtty.c"
VFIO = ("vfio_main", "group", "container", "virqfd", "iova_bitmap")
"""Parts of the module ``vfio`` of that kernel, of which the last one is the one that it lacks."""
_SOURCES = {
    SAMPLE: "module/mtty.c",
    "drivers/iommu/iommufd/iova_bitmap.c": "vfio/iova_bitmap.c",
    **{f"drivers/vfio/{name}": f"vfio/{name}" for name in ("vfio.h", *(f"{part}.c" for part in VFIO[:-1]))},
}
"""Files of the kernel's source, and where they are built."""
_VFIO_MAKEFILE = f"""\
obj-m := vfio.o
vfio-y := {" ".join(f"{part}.o" for part in VFIO)}
ccflags-y := -DCONFIG_IOMMUFD_DRIVER=1
"""
_USERS_OF_VFIO = ("vfio_pci", "vfio_pci_core", "vfio_iommu_type1")
MODULES = ("mdev", "mtty")
"""In the order in which they are loaded. The first is Debian's own, which the image of the host leaves out."""
_TOOLS = ("as", "ld", "ld.bfd", "nm", "objcopy", "objdump", "strip", "ar", "readelf")
_BY_NAME = {"tools/objtool/objtool": "objtool.real-x86", "scripts/mod/modpost": "modpost.real-lsb-64"}
"""Programs that start another one by their own name, and the one that they start here."""
_DISKS = itertools.count()


def folder(image: Image, progress: Progress = lambda line: None) -> Path:
    """The folder with ``mdev.ko``, ``mtty.ko`` and ``vfio.ko`` for the kernel of the host (an ``sriov_image``), built
    if need be.

    Raises Unavailable.
    """
    release = only(image.folder / "root/usr/lib/modules").name
    recipe = hashlib.sha256(inspect.getsource(sys.modules[__name__]).encode()).hexdigest()[:12]
    cache = cache_folder() / "kernel-modules"
    target = cache / f"{release}-{recipe}"
    with locked(cache):
        if not target.exists():
            building = cache / "building"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            _build(building, release, progress)
            (building / "out").rename(target)
            shutil.rmtree(building)
            progress(f"built {target}")
    return target


def disk(image: Image, path: Path, progress: Progress = lambda line: None) -> Path:
    """A file system with the modules, labelled ``modules``."""
    modules = folder(image, progress)
    sriov_image.make_disk(image.folder / "root", modules, path, "modules", mebibytes=8, journal=False)
    return path


@contextmanager
def loaded(host: Machine, image: Path, *, reports_writes: bool = False) -> Iterator[None]:
    """The modules in a running host, for as long as this goes on: from such a disk, which a free port has meanwhile.
    ``reports_writes``: with our vfio in place of Debian's."""
    disk_id = f"modules{next(_DISKS)}"  # the event of an earlier one must not count for this one
    host.monitor.execute("blockdev-add", driver="file", node_name=disk_id, filename=str(image), read_only=True)
    host.monitor.execute("device_add", driver="nvme", id=disk_id, bus="hot1", serial=disk_id, drive=disk_id)
    host.guest.until("mkdir -p /mnt/modules && mount -o ro /dev/disk/by-label/modules /mnt/modules")
    if reports_writes:
        host.guest.check(f"rmmod {' '.join(_USERS_OF_VFIO)} vfio && insmod /mnt/modules/vfio.ko && modprobe vfio-pci")
        host.guest.check("modprobe vfio_iommu_type1")
    for name in MODULES:
        host.guest.check(f"insmod /mnt/modules/{name}.ko")
    host.guest.check("umount /mnt/modules")
    host.monitor.execute("device_del", id=disk_id)
    host.monitor.wait_for("DEVICE_DELETED", device=disk_id, seconds=300)
    host.monitor.execute("blockdev-del", node_name=disk_id)
    try:
        yield
    finally:
        for name in reversed(MODULES):
            host.guest.check(f"rmmod {name}")
        if reports_writes:
            host.guest.check(f"rmmod {' '.join(_USERS_OF_VFIO)} vfio && modprobe vfio-pci && modprobe vfio_iommu_type1")


def _build(building: Path, release: str, progress: Progress) -> None:
    version = re.match(r"[0-9]+\.[0-9]+", release)
    if version is None:
        raise Unavailable(f"the kernel {release} of the test host has no version number")
    try:
        archives = debs.fetch(
            sriov_image.RELEASE, (f"linux-headers-{release}", f"linux-source-{version[0]}"), building, progress
        )
    except Unavailable as error:
        raise Unavailable(
            f"{error} (if Debian no longer has Linux {release}, remove images/sriov-* from {cache_folder()}, so that "
            "the test host is built anew with the present one)"
        ) from error
    (source,) = (each for each in archives if each.name.startswith("linux-source-"))
    (kernel,) = (each for each in archives if each.name.startswith(f"linux-image-{release}_"))
    progress(f"Linux {release}: unpacking headers, compiler and {SAMPLE}")
    debs.extract([each for each in archives if each not in (source, kernel)], building / "root")
    made, vfio, out = building / "module", building / "vfio", building / "out"
    made.mkdir(), vfio.mkdir(), out.mkdir()
    _copy_member(kernel, lambda name: name.endswith("/mdev.ko.xz"), lambda file: _unpacked(file, out / "mdev.ko"))
    _copy_member(source, lambda name: name.endswith(".tar.xz"), lambda file: _take_sources(file, building))
    (made / "Makefile").write_text("obj-m := mtty.o\n")
    (vfio / "Makefile").write_text(_VFIO_MAKEFILE)
    progress(f"Linux {release}: compiling mtty.ko and vfio.ko")
    _wrap_tools(building / "root", building / "tools", release)
    for module, name in ((made, "mtty.ko"), (vfio, "vfio.ko")):
        _compile(building / "root", building / "tools", module, release)
        _run([str(building / "tools/strip"), "-g", "-o", str(out / name), str(module / name)])


def _wrap_tools(root: Path, tools: Path, release: str) -> None:
    """Have the programs of a tree run with the loader and libraries of their own release."""
    tools.mkdir()
    (compilers,) = (root / "usr/libexec/gcc/x86_64-linux-gnu").iterdir()
    for name in ("cc1", "collect2"):
        _write_wrapper(tools / name, debs.program(root, str((compilers / name).relative_to(root))))
    for name in _TOOLS:
        _write_wrapper(tools / name, debs.program(root, f"usr/bin/x86_64-linux-gnu-{name}"))
    compiler = debs.program(root, f"usr/bin/x86_64-linux-gnu-gcc-{compilers.name}")
    _write_wrapper(tools / "gcc", [*compiler, f"-B{tools}/"])
    kbuild = only(root / "usr/lib", "linux-kbuild-*")
    for program in [path for path in kbuild.rglob("*") if _is_program(path)]:
        original = program.with_name(f"{program.name}.elf")
        program.rename(original)
        _write_wrapper(program, debs.program(root, str(original.relative_to(root))))
    for path, name in _BY_NAME.items():
        program = kbuild / path
        original = program.with_name(f"{name}.elf")
        _write_wrapper(program, debs.program(root, str(original.relative_to(root))))
    headers = root / f"usr/src/linux-headers-{release}"
    common = only(root / "usr/src", "linux-headers-*-common")
    (headers / "Makefile").write_text(f"include {common}/Makefile\n")
    (headers / "vmlinux").unlink(missing_ok=True)  # else its type information is added, by one more program


def _compile(root: Path, tools: Path, module: Path, release: str) -> None:
    """Build the module with the compiler of a tree, whose programs get ``tools`` in front of those of this machine."""
    headers = root / f"usr/src/linux-headers-{release}"
    command = ["make", "-C", str(headers), f"M={module}", f"CC={tools}/gcc", f"HOSTCC={tools}/gcc", "modules"]
    _run(command, os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "LC_ALL": "C"})


def _is_program(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or not os.access(path, os.X_OK):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _write_wrapper(path: Path, command: Sequence[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


@contextmanager
def _members(archive: Path) -> Iterator[tarfile.TarFile]:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as members:
            yield members
        process.terminate()  # what follows the member is not needed


def _copy_member(archive: Path, wanted: Callable[[str], bool], copy: Callable[[IO[bytes]], None]) -> None:
    """Give the first wanted file of a package to ``copy``."""
    with _members(archive) as members:
        for member in members:
            if member.isfile() and wanted(member.name) and (file := members.extractfile(member)) is not None:
                copy(file)
                return
    raise Unavailable(f"{archive.name} does not contain the file that the build needs")


def _unpacked(file: IO[bytes], target: Path) -> None:
    target.write_bytes(lzma.decompress(file.read()))


def _take_sources(file: IO[bytes], building: Path) -> None:
    left = dict(_SOURCES)
    with tarfile.open(fileobj=file, mode="r|xz") as members:
        for member in members:
            target = left.pop(member.name.partition("/")[2], None) if member.isfile() else None
            if target is not None and (content := members.extractfile(member)) is not None:
                (building / target).write_bytes(content.read())
            if not left:
                return
    raise Unavailable(f"the kernel's source does not contain {', '.join(sorted(left))}")


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        words = " ".join((result.stderr or result.stdout).split())[-400:]
        raise Unavailable(f"{Path(command[0]).name} failed: {words}")
