"""A guest of the micro image that has Python too: for what runs inside a machine that is scaled.

Its kernel is the micro image's, for CPUs that come and go. ``with_files`` adds what a test brings along.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from deploy.images import debs
from tests.support import guest, images, initramfs, micro_image
from tests.support.go_build import Progress

VERSION = "3.11"
PACKAGES = (f"python{VERSION}-minimal", f"libpython{VERSION}-stdlib")
LEFT_OUT = ("test", "idlelib", "lib2to3", "tkinter", "ensurepip", "distutils", "pydoc_data", "unittest", "turtledemo")
LIBRARIES = ("libc.so.6", "libm.so.6", "libz.so.1", "libexpat.so.1", "libffi.so.8", "libssl.so.3", "libcrypto.so.3")
LOADER = "lib64/ld-linux-x86-64.so.2"


def image(progress: Progress = lambda line: None) -> images.Image:
    """Raises Unavailable. It has no QEMU: any will do."""
    modules = (sys.modules[__name__], micro_image, initramfs)
    return images.built("python", _build, modules, progress, guest.SERVER)


def with_files(built: images.Image, initrd: Path, files: Mapping[str, bytes]) -> None:
    """Write the image's initial RAM disk with more files, by their paths in the guest."""
    initrd.write_bytes((built.folder / "initrd").read_bytes() + initramfs.archive(files))


def _build(folder: Path, final: Path, progress: Progress) -> dict[str, str]:
    kernel = [package for package in micro_image.PACKAGES if not package.startswith("qemu")]
    versions = debs.unpack(micro_image.RELEASE, (*kernel, *PACKAGES), folder, progress)
    root = folder / "root"
    modules = images.only(root / "lib/modules")
    scripts = {"bin/shell-server": guest.SERVER.encode(), "bin/online-cpu": micro_image.ONLINE_CPU.encode()}
    files = scripts | _python(root)
    small = initramfs.build(modules, micro_image.MODULES, root / "bin/busybox", micro_image.INIT, files)
    (folder / "initrd").write_bytes(small)
    images.write_kernel(root, folder / "vmlinux")
    shutil.rmtree(root)
    return versions


def _python(root: Path) -> dict[str, bytes]:
    files = {"bin/python3": (root / f"usr/bin/python{VERSION}").read_bytes()}
    places = [root / part for part in debs.LIBRARIES]
    for name in LIBRARIES:
        path = next(place / name for place in places if (place / name).exists())
        files[f"lib/x86_64-linux-gnu/{name}"] = path.read_bytes()
        if name == "libc.so.6":
            files[LOADER] = (path.parent / Path(LOADER).name).read_bytes()
    library = root / f"usr/lib/python{VERSION}"
    for unused in (*LEFT_OUT, *(path.name for path in library.glob("config-*"))):
        shutil.rmtree(library / unused, ignore_errors=True)
    # An emulated CPU takes seconds to compile what a first import wants.
    compiled = ("-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(library))
    subprocess.run([*debs.program(root, f"usr/bin/python{VERSION}"), *compiled], env={"PYTHONHOME": str(root / "usr")})
    for path in library.rglob("*"):
        if path.is_file():
            files[f"usr/lib/python{VERSION}/{path.relative_to(library)}"] = path.read_bytes()
    return files
