"""runc: the one that is installed, else Debian's, unpacked into the cache by a user who need not be root.

It is not built from source like the rest, for it needs a C compiler. Run this module to fetch it ahead of the tests:
``python -m tests.support.kube_runc``.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from deploy.images import debs
from tests.support.go_build import Progress, Unavailable, cache_folder, locked

RELEASE = "bookworm"


@dataclass(frozen=True)
class Runc:
    """The program, and where it finds what it is linked to."""

    program: Path
    libraries: Path | None = None
    """A folder with the one library that not every machine has; None for an installed runc."""


def runc(progress: Progress = lambda line: None) -> Runc:
    """Raises Unavailable."""
    if installed := shutil.which("runc"):
        return Runc(Path(installed))
    return unpacked(progress)


def unpacked(progress: Progress) -> Runc:
    """Debian's, from the cache."""
    folder = cache_folder() / f"runc-{RELEASE}"
    with locked(folder):
        if not (folder / "runc").exists():
            shutil.rmtree(folder / "unpacked", ignore_errors=True)
            debs.unpack(RELEASE, ["runc"], folder / "unpacked", progress)
            root = folder / "unpacked" / "root"
            (folder / "lib").mkdir(exist_ok=True)
            # Only this one: with the C library of another release beside it this machine's loader would stumble.
            library = next(root.rglob("libseccomp.so.2"), None)
            if library is None:
                raise Unavailable(f"Debian {RELEASE}'s runc comes without libseccomp")
            shutil.copy(library, folder / "lib" / library.name)
            (root / "usr" / "sbin" / "runc").rename(folder / "runc")
            shutil.rmtree(folder / "unpacked")
    return Runc(folder / "runc", folder / "lib")


if __name__ == "__main__":
    print(runc(lambda line: print(line, file=sys.stderr)))
