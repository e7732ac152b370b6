"""A folder that becomes a layer: what is removed from it, compiled in it, and how it is packed so that the same files
always make the same bytes."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from deploy.images import debs
from deploy.images.cache import Unavailable
from deploy.images.contents import Base


def remove(root: Path, patterns: Iterable[str]) -> None:
    """Remove what they match. Raises Unavailable for one that matches nothing: what it is for has moved."""
    for pattern in patterns:
        paths = sorted(root.glob(pattern))
        if not paths:
            raise Unavailable(f"nothing matches {pattern}: see left_out in deploy/images/contents.toml")
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # below one that went before


def compile_all(root: Path, folder: str, base: Base, python_root: Path) -> None:
    """Compile the Python files of ``root``/``folder`` for where they will lie, by the Python below ``python_root``.

    Bytecode is never compared with its source again: the image is not changed, and has no times worth comparing.
    """
    command = [
        *debs.program(python_root, f"usr/bin/python{base.python}"),
        *("-I", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"),
        *("-s", str(root), "-p", "/", str(root / folder)),
    ]
    # With any other seed the constants of sets have another order.
    settings = {"PYTHONHOME": str(python_root / "usr"), "PYTHONHASHSEED": "0", "PYTHONUTF8": "1"}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{folder} cannot be compiled: {' '.join((done.stdout + done.stderr).split())[-400:]}")


def pack(root: Path, archive: Path) -> None:
    """The folder as a tar: sorted, owned by root, of no time, nothing writable by others but a sticky folder, and
    nothing that gives its caller the rights of its owner."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
            info = path.lstat()
            member = tarfile.TarInfo(path.relative_to(root).as_posix())
            if stat.S_ISLNK(info.st_mode):
                member.type, member.linkname, member.mode = tarfile.SYMTYPE, os.readlink(path), 0o777
                tar.addfile(member)
            elif stat.S_ISDIR(info.st_mode):
                member.type, member.mode = tarfile.DIRTYPE, 0o1777 if info.st_mode & stat.S_ISVTX else 0o755
                tar.addfile(member)
            elif stat.S_ISREG(info.st_mode):
                member.size, member.mode = info.st_size, 0o755 if info.st_mode & stat.S_IXUSR else 0o644
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                raise Unavailable(f"{path} is neither file nor folder nor link: it cannot be in an image")


def unpack(archive: Path, root: Path) -> None:
    """The folder of such a tar."""
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)  # Python 3.11.2 has no filters
        tar.extractall(root, numeric_owner=True)
