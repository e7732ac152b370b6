"""Programs that tests call: what is installed, else Debian's, unpacked into the cache."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

from deploy.images import debs
from tests.support.go_build import Progress, cache_folder, locked

RELEASE = "bookworm"


def nft(progress: Progress = lambda line: None) -> Path:
    """The program that judges packets. Raises Unavailable."""
    return _program("usr/sbin/nft", "nftables", progress)


def fsck_vfat(progress: Progress = lambda line: None) -> Path:
    """The program that finds faults in a FAT file system. Raises Unavailable."""
    return _program("sbin/fsck.vfat", "dosfstools", progress)


def _program(path: str, package: str, progress: Progress) -> Path:
    """The executable that a package has at this path."""
    name = Path(path).name
    if installed := shutil.which(name):
        return Path(installed)
    folder = cache_folder() / f"{name}-{RELEASE}"
    with locked(folder):
        if not (folder / name).exists():
            shutil.rmtree(folder / "root", ignore_errors=True)
            debs.unpack(RELEASE, [package], folder, progress)
            launcher = folder / f"{name}.unfinished"
            command = shlex.join(debs.program(folder / "root", path))
            launcher.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            launcher.chmod(0o755)
            launcher.replace(folder / name)
    return folder / name
